"""Problems solved against n, and by a solution without a wrong step: a PRM, an ORM, votes, the oracle."""

from prm_jax.figures.best_of_n import draw_best_of_n
from prm_jax.figures.paper import Stages, results_at
from prm_jax.figures.style import Drawn, floats


def draw(stages: Stages) -> Drawn:
    drawn = draw_best_of_n(results_at(stages["pool"]))
    series = dict.fromkeys(row["series"] for row in drawn.rows if row["panel"] == "solved")
    drawn.statements = [peak(drawn, name) for name in series]
    return drawn


def peak(drawn: Drawn, series: str) -> str:
    """Says where the mean of a series is highest, and where each run is."""
    rows = [row for row in drawn.rows if row["panel"] == "solved" and row["series"] == series]
    value_SX, top = floats([row["values"].split() for row in rows]).T, max(rows, key=lambda row: row["y"])
    tops = ", ".join(f"{rows[i]['x']:g}" for i in value_SX.argmax(1))
    return (
        f"{series}: highest at {top['x']:g} ({top['y']:.3f}), runs at {tops}; {rows[-1]['y']:.3f} at the end"
    )
