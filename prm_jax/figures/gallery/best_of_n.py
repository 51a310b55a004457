"""Problems solved against n, and by a solution without a wrong step: a PRM, an ORM, votes, the oracle."""

from prm_jax.figures.paper import Drawn, difference, legend_above, of, panels, selection, size_axis
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import GREY, floats, line_style


def draw(stages: dict[str, list[Stage]]) -> Drawn:
    results = of(stages["pool"])
    first = results[0]
    sizes = [int(n) for n in first["oracle"]]
    figure, ((left, right),) = panels(1, 2, 4.1, sharey=True)
    drawn = Drawn(figure, f"{first['n_problems']} problems x {first['n_candidates']} samples, exact over all subsets")
    title = {"prm": "PRM", "orm": "ORM"}

    def curve(axes, panel, series, numbers, style, line=None):
        """Markers at powers of two, the line through every n where there is a closed form."""
        x, y_SX = sizes, floats([list(table.values()) for table in numbers])
        drawn.curve(axes, panel, series, x, y_SX, style)
        if line:
            axes.plot(range(1, first["n_candidates"] + 1), floats(line).mean(0), color=style["color"], linewidth=0.8)

    for i, (scorer, how) in enumerate(first["headline"].items()):
        tables = [r["scorers"][scorer][how] for r in results]
        name, style = title.get(scorer, scorer), line_style(i)
        curve(left, "solved", f"{name}, best of n ({how})", [t["best_of_n"] for t in tables], style)
        if "trace" in tables[0]:
            curve(right, "without a wrong step", f"{name}, best of n ({how})", [t["trace"] for t in tables], style)
        if scorer == "prm":
            style = line_style(i) | {"linestyle": ":", "markerfacecolor": "white"}
            curve(left, "solved", f"{name}, weighted vote", [t["weighted_vote"] for t in tables], style)
    for rule, label, dashes in (("majority", "majority vote", "--"), ("oracle", "oracle: any of n is right", "-.")):
        style = {"color": GREY, "linestyle": dashes, "linewidth": 1.2, "marker": ""}
        curve(left, "solved", label, [r[rule] for r in results], style)
    for axes, name in ((left, "share of problems solved"), (right, "solved without a wrong step")):
        size_axis(axes, sizes, "n, solutions a problem")
        axes.set_title(name, fontsize=9)
    legend_above(figure, left, 2)
    n = min(16, sizes[-1])
    prm, orm = (selection(first, scorer) for scorer in first["headline"])
    others = {"PRM - ORM": orm, "PRM - majority vote": "majority"}
    drawn.says = [difference(title, [(r, prm, b) for r in results], n) for title, b in others.items()]
    drawn.says += [peak(drawn, f"{title.get(x, x)}, best of n ({how})") for x, how in first["headline"].items()]
    return drawn


def peak(drawn: Drawn, series: str, panel: str = "solved") -> str:
    """Where the mean of a series is highest, and each run's own place."""
    rows = [row for row in drawn.rows if row["panel"] == panel and row["series"] == series]
    runs = floats([row["values"].split() for row in rows]).T
    at = [f"{rows[i]['x']:g}" for i in runs.argmax(1)]
    top = max(rows, key=lambda row: row["y"])
    return (
        f"{series}: highest at {top['x']:g} ({top['y']:.3f}), runs at {', '.join(at)}; {rows[-1]['y']:.3f} at the end"
    )
