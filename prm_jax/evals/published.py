"""Published numbers of ProcessBench and PRMBench (assets/published.yaml), as shares of 1."""

from pathlib import Path

import yaml

TABLES = yaml.safe_load((Path(__file__).parents[1] / "assets" / "published.yaml").read_text())
PRMBENCH_GROUPS, SOCRATIC_GROUPS = TABLES["prmbench"]["groups"], TABLES["socratic_groups"]


def shares(benchmark: str, number: str, columns: list[str]) -> dict:
    """{source, number: {system: {column: share}}} of a table's rows in per cent."""
    table = TABLES[benchmark]
    systems = {}
    for system, row in table[number].items():
        systems[system] = {name: x / 100 for name, x in zip(columns, row, strict=True)}
    return {"source": table["source"], number: systems}


PROCESSBENCH = shares("processbench", "f1", TABLES["processbench"]["columns"])
PRMBENCH_CLASSES = [name for names in PRMBENCH_GROUPS.values() for name in names]
PRMBENCH = shares("prmbench", "prmscore", ["overall", *PRMBENCH_CLASSES])
