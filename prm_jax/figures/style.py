"""The one style of every figure: colours, markers, captions, saving. Nothing outside this folder draws.

Figures take numbers from results.json, fresh or as read back, where nan is null.
"""

import io
import textwrap
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from PIL import Image

STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
SAVED = {"figure.dpi": 150, "figure.constrained_layout.use": True, "savefig.bbox": "tight"}
plt.rcParams.update(STYLE | SAVED)

# Okabe-Ito, distinct for every colour vision, in an order in which neighbours differ in lightness too; every line has
# a marker of its own beside.
LINES = (
    ("#0072B2", "o"),
    ("#D55E00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#E69F00", "v"),
    ("#56B4E9", "P"),
    ("#000000", "X"),
)
BLUE, ORANGE, GREY = LINES[0][0], LINES[1][0], "#666666"
BAD_TO_GOOD = LinearSegmentedColormap.from_list("bad_to_good", [ORANGE, "#F0E442", BLUE])
OUTSIDE = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "fontsize": 7.5}  # a legend beside its axes


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


def reliability(axes, curves):
    """Mean label against mean score of the bins that hold something, larger dots hold more; dashed: perfect calibration.

    curves: (numbers, index of the line style, label) of each.
    """
    for curve, i, label in curves:
        n, x, y = (floats(curve[name]) for name in ("n", "mean_score", "mean_label"))
        n, x, y, style = n[n > 0], x[n > 0], y[n > 0], line_style(i)
        axes.plot(x, y, color=style["color"], linewidth=1, alpha=0.5)
        axes.scatter(x, y, s=3 + 7 * np.log10(n), color=style["color"], marker=style["marker"], label=label)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle="--")
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))


def square_root(axes):
    """The axis of a KL, along which best-of-n is nearly straight (Gao et al. 2023)."""
    axes.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))


def caption(figure, text: str, results: dict):
    """What the figure rests on, below it; the commit last."""
    width = int(17 * figure.get_figwidth())  # characters of this size
    text = textwrap.fill(f"{text}. {commit(results)}", width)
    figure.text(0, -0.02, plain(text), fontsize=6.5, color=GREY, va="top")


def commit(results: dict) -> str:
    """The commit that made the results, with a + where its tree was modified."""
    name = results["versions"]["commit"]
    return f"Commit {name[:10].rstrip('+')}{'+' if name.endswith('+') else ''}."


def plain(text: str) -> str:
    """Text as it is: matplotlib would read what stands between two $ as its own mathematics, and fail on \\boxed."""
    return text.replace("$", r"\$")


def save(figure, path: Path) -> Path:
    """A PNG of 256 colours, a third of the size: pictures lie in repositories and are sent around."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    plt.close(figure)
    Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    return path
