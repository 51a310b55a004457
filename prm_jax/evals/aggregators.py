"""Which aggregators of step scores tables and figures show."""

from collections.abc import Iterable

from prm_jax.launch.config import expect
from prm_jax.rerank import AGGREGATORS

HIDDEN_BY_DEFAULT = ("max", "sum_logit", "weighted", "softmin")


def shown_aggregators(names: str | list | None, headlines: Iterable[str] = ()) -> list[str]:
    """The aggregators of tables and figures: `names`, or `all`, by default without HIDDEN_BY_DEFAULT; and
    headlines."""
    if names is None:
        names = [name for name in AGGREGATORS if name not in HIDDEN_BY_DEFAULT]
    if isinstance(names, str):
        names = list(AGGREGATORS) if names == "all" else [names]
    for name in names:
        expect(name in AGGREGATORS, "aggregators", name, f"all, null, or names of {', '.join(AGGREGATORS)}")
    return [name for name in AGGREGATORS if name in {*names, *headlines}]
