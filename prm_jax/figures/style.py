"""What every figure shares: colours, markers, curves over runs, captions, saving.

Figures take numbers from results.json, where nan is null. S: runs that differ in their seed.
"""

import re
import textwrap
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
        "figure.constrained_layout.use": True,
        "savefig.bbox": "tight",
        "pdf.fonttype": 42,  # text stays text
    }
)

# Okabe-Ito, distinct for every colour vision; in grey, markers and dashes tell them apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = tuple(zip(COLOURS, "os^DvPX", strict=True))
BLUE, ORANGE, GREY = *COLOURS[:2], "#666666"
OUTSIDE = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "fontsize": 7.5}  # a legend beside its axes
NO_LINE = {"linestyle": "none"}
FEWEST_SEEDS = 8  # of an interval over seeds: of fewer a t interval covers too seldom where runs are skewed
WIDTH = 6.4  # inches of a paper's figure: legible at 600 pixels


def line_style(i: int) -> dict:
    turn, i = divmod(i, len(LINES))
    colour, marker = LINES[i]
    style = {"color": colour, "marker": marker, "markersize": 3.5, "linewidth": 1.4}
    return style | {"linestyle": ("-", "--", ":")[turn % 3]}  # the eighth line is no first one again


def floats(x) -> np.ndarray:
    """Numbers of results.json as an array, null as nan."""
    return np.array(x, float)


def over_seeds(y_SX) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean_X, low_X, high_X) of the defined values over runs; intervals of fewer than two, and means of
    none, are nan. From FEWEST_SEEDS on the ends are those of a 95 % t interval, else lowest and highest."""
    y_SX = np.ma.masked_invalid(np.asarray(y_SX, float))
    n_X, mean_X, low_X, high_X = y_SX.count(0), y_SX.mean(0), y_SX.min(0), y_SX.max(0)
    half_X = special.stdtrit(n_X - 1, 0.975) * y_SX.std(0, ddof=1) / np.sqrt(np.maximum(n_X, 1))
    low_X = np.ma.where(n_X >= FEWEST_SEEDS, mean_X - half_X, low_X)
    high_X = np.ma.where(n_X >= FEWEST_SEEDS, mean_X + half_X, high_X)
    mean_X, low_X, high_X = (np.ma.filled(np.ma.asarray(x_X), np.nan) for x_X in (mean_X, low_X, high_X))
    return mean_X, np.where(n_X > 1, low_X, np.nan), np.where(n_X > 1, high_X, np.nan)


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


def caption(figure, text: str, results: dict):
    """Writes below the figure what it was made from, of absolute paths the last two parts, and the commit."""
    text = re.sub(r"(?<![\w.:/-])/(?:[^\s/,;]+/)*(?=[^\s/,;]+/[^\s/,;]+)", "", text)
    text += f". Commit {results['versions']['commit']}."
    text = textwrap.fill(text, int(17 * figure.get_figwidth()))  # characters of this size
    figure.text(0, -0.02, plain(text), fontsize=6.5, color=GREY, va="top")


def plain(text: str) -> str:
    """Text with $ escaped: matplotlib would read text between two $ as mathematics, and fail on \\boxed."""
    return text.replace("$", r"\$")


def save(figure, path: Path, text: str = "", results: dict | None = None) -> Path:
    """Writes a PNG, and beside it a PDF for a paper, with the caption `text` if any; returns the PNG."""
    if text:
        caption(figure, text, results)
    figure.savefig(path)
    figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})
    plt.close(figure)
    return path
