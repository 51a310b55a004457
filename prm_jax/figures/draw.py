"""Which figures a task's results become."""

from pathlib import Path

from prm_jax.figures.benchmarks import prmbench_figures, processbench_figures
from prm_jax.figures.best_of_n import best_of_n_figures
from prm_jax.figures.search import search_figures
from prm_jax.figures.steps import solution_figures, step_figures
from prm_jax.figures.witness import witness_figures

FIGURES = {
    "steps": (step_figures,),
    "best_of_n": (best_of_n_figures,),
    "report": (step_figures, best_of_n_figures),
    "score": (solution_figures,),
    "search": (search_figures,),
    "processbench": (processbench_figures,),
    "prmbench": (prmbench_figures,),
    "witness": (witness_figures,),
}


def draw(results: dict, folder: Path) -> list[Path]:
    """Draws everything that results.json holds numbers for; returns the paths. task=moves and task=mining are tables, without a figure."""
    return [path for figures in FIGURES.get(results["task"], ()) for path in figures(results, folder)]
