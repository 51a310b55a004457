"""Published numbers of ProcessBench and PRMBench (assets/published.yaml), as shares of 1."""

from pathlib import Path

import yaml

TABLES = yaml.safe_load((Path(__file__).parents[1] / "assets" / "published.yaml").read_text())


def shares(columns, rows: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """{system: {column: share}} of rows in per cent."""
    return {
        system: {name: x / 100 for name, x in zip(columns, row, strict=True)} for system, row in rows.items()
    }


_PROCESSBENCH, _PRMBENCH = TABLES["processbench"], TABLES["prmbench"]
PRMBENCH_GROUPS, SOCRATIC_GROUPS = _PRMBENCH["groups"], TABLES["socratic_groups"]
PRMBENCH_CLASSES = tuple(name for names in PRMBENCH_GROUPS.values() for name in names)
PROCESSBENCH = {
    "source": _PROCESSBENCH["source"],
    "f1": shares(_PROCESSBENCH["columns"], _PROCESSBENCH["f1"]),
}
PRMBENCH = {
    "source": _PRMBENCH["source"],
    "prmscore": shares(("overall", *PRMBENCH_CLASSES), _PRMBENCH["prmscore"]),
}
