"""The one style of every figure: colours, markers, captions, saving. Nothing outside this folder draws."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.colors import LinearSegmentedColormap

plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 150})

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # Okabe-Ito: distinct for every colour vision


BAD_TO_GOOD = LinearSegmentedColormap.from_list("bad_to_good", [ORANGE, "#F0E442", BLUE])


def save(figure, path: Path) -> Path:
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)
    return path


def plain(text: str) -> str:
    """Text as it is: matplotlib would read what stands between two $ as its own mathematics, and fail on \\boxed."""
    return text.replace("$", r"\$")


# Okabe-Ito again, in an order in which neighbours differ in lightness too; every line has a marker of its own beside.
LINES = (
    ("#0072B2", "o"),
    ("#D55E00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#E69F00", "v"),
    ("#56B4E9", "P"),
    ("#000000", "X"),
)


def line_style(i: int) -> dict:
    colour, marker = LINES[i % len(LINES)]
    return {"color": colour, "marker": marker, "markersize": 3.5, "linewidth": 1.4}


def commit(results: dict) -> str:
    """The commit that made the results, with a + where its tree was modified."""
    name = results["versions"]["commit"]
    return f"Commit {name[:10].rstrip('+')}{'+' if name.endswith('+') else ''}."
