"""What every figure shares: one colour a role, curves over runs, names at the ends of lines, saving.

Figures take numbers from results.json, where nan is null. S: runs that differ in their seed.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy import special

plt.rcParams.update(
    {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 9,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "figure.dpi": 150,
        "savefig.dpi": 300,
        "figure.constrained_layout.use": True,
        "savefig.bbox": "tight",
        "pdf.fonttype": 42,  # text stays text
    }
)

# Okabe-Ito, distinct for every colour vision; in grey, markers and dashes tell them apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = tuple(zip(COLOURS, "os^DvPX", strict=True))
BLUE, ORANGE, GREY = *COLOURS[:2], "#666666"
ROLES = {  # {words in a series' name: (colour, marker, dashes)}; the first that fit
    "oracle": (GREY, "", "-."),
    "majority vote": (GREY, "", "--"),
    "outcome model": (ORANGE, "s", "-"),
    "likelihood": (COLOURS[2], "^", "-"),
    "PRM": (BLUE, "o", "-"),
    "best of n": (BLUE, "o", "-"),
    "checker (": (COLOURS[6], "X", "-"),
}
FEWEST_SEEDS = 8  # of an interval over seeds: of fewer a t interval covers too seldom where runs are skewed
WIDTH = 6.4  # inches of a paper's figure: legible at 600 pixels


def line_style(i: int) -> dict:
    turn, i = divmod(i, len(LINES))
    colour, marker = LINES[i]
    style = {"color": colour, "marker": marker, "markersize": 3.5, "linewidth": 1.4}
    return style | {"linestyle": ("-", "--", ":")[turn % 3]}  # the eighth line is no first one again


def role_of(name: str) -> str | None:
    return next((words for words in ROLES if words in name), None)


def role_styles(names: Sequence[str]) -> dict[str, dict]:
    """{series: its style}. A role has one colour in all figures, and dashes for its second and third series;
    series without a role share the other colours."""
    styles, roles = {}, []
    for name in names:
        role = role_of(name)
        turn = roles.count(role)
        colour, marker, dashes = ROLES.get(role, (*LINES[3 + turn % 4], ("-", "--", ":", "-.")[turn % 4]))
        if role and turn:
            dashes = ("--", ":")[turn % 2 - 1]
        styles[name] = {"color": colour, "marker": marker, "linestyle": dashes, "markersize": 3.5}
        roles.append(role)
    return styles


def label_ends(axes):
    """Writes each line's name behind its last point, in its colour, neighbours a line of text apart."""
    lines = sorted(axes.get_lines(), key=lambda line: line.get_ydata()[-1])
    y_L = np.array([line.get_ydata()[-1] for line in lines], float)
    low, high = axes.get_ylim()
    gap = 0.13 * (high - low) / (axes.get_figure().get_figheight() * axes.get_position().height)  # inches
    for _ in range(200):
        push_L = np.maximum(gap - np.diff(y_L), 0) / 2
        y_L[:-1] -= push_L
        y_L[1:] += push_L
    behind = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
    for line, y in zip(lines, y_L, strict=True):
        x = line.get_xdata()
        y -= gap if x[-1] < x[0] else 0  # below a line that runs to the left
        axes.annotate(line.get_label(), (x[-1], y), color=line.get_color(), **behind)


def floats(x) -> np.ndarray:
    """Numbers of results.json as an array, null as nan."""
    return np.array(x, float)


def over_seeds(y_S) -> tuple[float, float, float]:
    """(mean, low, high) of the defined values over runs. From FEWEST_SEEDS on the ends are those of a 95 % t
    interval, else lowest and highest; of fewer than two they are nan, and of none the mean, too."""
    y_S = np.asarray(y_S, float)
    y_S = y_S[np.isfinite(y_S)]
    n = len(y_S)
    mean = y_S.mean() if len(y_S) else np.nan
    if n < 2:
        return mean, np.nan, np.nan
    if n < FEWEST_SEEDS:
        return mean, min(mean, y_S.min()), max(mean, y_S.max())  # a mean of equal values is rounded
    half = special.stdtrit(n - 1, 0.975) * y_S.std(ddof=1) / np.sqrt(n)
    return mean, mean - half, mean + half


def band(axes, x, low_X, high_X, style: dict):
    axes.fill_between(x, floats(low_X), floats(high_X), color=style["color"], alpha=0.12, linewidth=0)


def panels(rows: int, columns: int, height: float, width: float = WIDTH, **kwargs):
    return plt.subplots(rows, columns, figsize=(width, height), squeeze=False, **kwargs)


def size_axis(axes, sizes, label: str):
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axes.minorticks_off()
    axes.set_xlabel(label)


def legend_above(figure, axes, columns: int):
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=columns)


def plain(text: str) -> str:
    """Text with $ escaped: matplotlib would read text between two $ as mathematics, and fail on \\boxed."""
    return text.replace("$", r"\$")


def save(figure, path: Path) -> Path:
    """Writes a PNG, and beside it a PDF for a paper; returns the PNG."""
    figure.savefig(path)
    figure.set_layout_engine("none")  # the places that it found are the PDF's, too
    figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})
    plt.close(figure)
    return path
