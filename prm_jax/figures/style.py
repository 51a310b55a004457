"""What every figure shares: colours, markers, curves over runs, captions, saving. Nothing outside this folder draws.

Figures take numbers from results.json, fresh or as read back, where nan is null. S: runs that differ in their seed.
"""

import dataclasses
import io
import re
import textwrap
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from scipy import special

from prm_jax.launch.run_folder import short_commit

STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
SAVED = {"figure.dpi": 150, "figure.constrained_layout.use": True, "savefig.bbox": "tight"}
plt.rcParams.update(STYLE | SAVED)

# Okabe-Ito, distinct for every colour vision; several are as light as another, so in grey their markers and dashes tell them apart.
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
    dash = {"linestyle": ("--", ":")[turn % 2 - 1]} if turn else {}  # the eighth line is no first one again
    return {"color": colour, "marker": marker, "markersize": 3.5, "linewidth": 1.4} | dash


def floats(x) -> np.ndarray:
    """Numbers of results.json as an array, null as nan."""
    return np.array(x, float)


def percent(x) -> np.ndarray:
    return 100 * floats(x)


def over_seeds(y_SX, kind: str = "auto") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean_X, low_X, high_X) of the defined values over runs; intervals of fewer than two, and means of none, are nan.
    kind: "t", a 95 % t interval; "range", lowest to highest; "auto", t from FEWEST_SEEDS on, else the range."""
    y_SX = np.ma.masked_invalid(np.asarray(y_SX, float))
    n_X, mean_X, low_X, high_X = y_SX.count(0), y_SX.mean(0), y_SX.min(0), y_SX.max(0)
    half_X = special.stdtrit(n_X - 1, 0.975) * y_SX.std(0, ddof=1) / np.sqrt(np.maximum(n_X, 1))
    is_t_X = (kind == "t") | ((kind == "auto") & (n_X >= FEWEST_SEEDS))
    ends = np.ma.where(is_t_X, mean_X - half_X, low_X), np.ma.where(is_t_X, mean_X + half_X, high_X)
    mean_X, *ends = (np.ma.filled(np.ma.asarray(x_X), np.nan) for x_X in (mean_X, *ends))
    return mean_X, *(np.where(n_X > 1, end_X, np.nan) for end_X in ends)


@dataclasses.dataclass
class Drawn:
    """A figure, the text of its caption, the rows of its table, and its statements: one line of words a comparison. Of
    several runs thin lines are runs, a bold line is their mean, a band its interval (over_seeds)."""

    figure: plt.Figure
    text: str
    rows: list[dict] = dataclasses.field(default_factory=list)
    statements: list[str] = dataclasses.field(default_factory=list)
    spread: str = "thin lines: runs, bands: 95 % t intervals of their mean"

    def curve(
        self, axes, panel: str, series: str, x, y_SX, style: dict, share=True, band=True, interval=None
    ):
        """Draws the mean over runs with its band, and adds a row to the table for each x. share: values lie in [0, 1],
        and so does the band. interval: (low_X, high_X) of a single run."""
        x, (mean_X, *ends) = np.asarray(x, float), over_seeds(y_SX)
        low_X, high_X = ends if interval is None else floats(interval)
        for y_X in y_SX if len(np.unique(floats(y_SX), axis=0)) > 1 else ():
            axes.plot(x, y_X, "." * (len(x) == 1), color=style["color"], linewidth=0.5, alpha=0.35)
        if band:
            ends = np.clip((low_X, high_X), 0, 1) if share else (low_X, high_X)
            axes.fill_between(x, *ends, color=style["color"], alpha=0.12, linewidth=0)
        axes.plot(x, mean_X, **style, label=plain(series))
        for row in zip(x.tolist(), mean_X, low_X, high_X, np.transpose(y_SX).tolist(), strict=True):
            self.row(panel, series, *row)

    def dots(self, axes, panel: str, series: str, height: float, value_S, style: dict):
        """Draws the runs of one setting at a height, their mean and its interval, and adds a row to the table."""
        mean, low, high = self.number(panel, series, value_S)
        style = style | NO_LINE
        axes.plot([low, high], [height, height], color=style["color"], linewidth=1.2)
        axes.plot(value_S, [height] * len(value_S), **style | {"alpha": 0.45, "markersize": 3})
        axes.plot(mean, height, **style | {"markersize": 6})

    def legend_above(self, axes, columns: int):
        handles, labels = axes.get_legend_handles_labels()
        self.figure.legend(handles, labels, loc="outside upper center", ncols=columns, fontsize=8)

    def number(self, panel: str, series: str, value_S, x="") -> tuple:
        """Adds the mean over runs to the table; returns it and its interval: (mean, low, high)."""
        self.row(panel, series, x, *(interval := over_seeds(value_S)), value_S)
        return interval

    def row(self, panel: str, series: str, x, y, low, high, value_S):
        """Adds a number to the table: its interval, how many runs have it, and the value of each."""
        numbers = [
            float(f"{number:.6g}") if isinstance(number, float) else number for number in (x, y, low, high)
        ]
        row = dict(zip(("panel", "series", "x", "y", "low", "high"), (panel, series, *numbers), strict=True))
        n, values = (
            int(np.isfinite(floats(value_S)).sum()),
            " ".join(f"{value:.6g}" for value in floats(value_S)),
        )
        self.rows.append(row | {"runs": n, "values": values})


def panels(rows: int, columns: int, height: float, width: float = 0, **kwargs):
    return plt.subplots(rows, columns, figsize=(max(WIDTH, width), height), dpi=125, squeeze=False, **kwargs)


def size_axis(axes, sizes, label: str):
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axes.minorticks_off()
    axes.set_xlabel(label)


def caption(figure, text: str, results: dict):
    """Writes below the figure what it was made from, of absolute paths the last two parts; the commit last."""
    text = re.sub(r"(?<![\w.:/-])/(?:[^\s/,;]+/)*(?=[^\s/,;]+/[^\s/,;]+)", "", text)
    text += f". Commit {short_commit(results['versions']['commit'])}."
    text = textwrap.fill(text, int(17 * figure.get_figwidth()))  # characters of this size
    figure.text(0, -0.02, plain(text), fontsize=6.5, color=GREY, va="top")


def plain(text: str) -> str:
    """Text with $ escaped: matplotlib would read text between two $ as its own mathematics, and fail on \\boxed."""
    return text.replace("$", r"\$")


def save(figure, path: Path, text: str = "", results: dict | None = None) -> Path:
    """Writes a PNG, with the caption `text` if there is one; 256 colours make it a third of the size."""
    if text:
        caption(figure, text, results)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", pil_kwargs={"compress_level": 0})  # it is read again at once
    plt.close(figure)
    few = {
        "method": Image.Quantize.FASTOCTREE,
        "dither": Image.Dither.NONE,
    }  # median cut may lose a thin line's colour
    Image.open(drawn).convert("RGB").quantize(256, **few).save(path, optimize=True)
    return path
