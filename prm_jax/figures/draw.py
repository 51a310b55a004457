"""Which figures a task's results become."""

from pathlib import Path

from prm_jax import witness
from prm_jax.figures.benchmarks import prmbench_figures, processbench_figures
from prm_jax.figures.best_of_n import best_of_n_figures
from prm_jax.figures.steps import solution_figures, step_figures
from prm_jax.figures.witness import witness_figures


def draw(results: dict, folder: Path) -> list[Path]:
    """Draws everything that results.json holds numbers for; returns the paths."""
    match results["task"]:
        case "steps":
            return step_figures(results, folder)
        case "best_of_n":
            return best_of_n_figures(results, folder)
        case "report":
            pool = best_of_n_figures(results, folder) if "scorers" in results else []
            return step_figures(results, folder) + pool
        case "score":
            return solution_figures(results, folder)
        case "processbench":
            return processbench_figures(results, folder)
        case "prmbench":
            return prmbench_figures(results, folder)
        case "witness":
            shown = {
                key: x for key, x in results.items() if key not in ("by_beta", "plane", "versions")
            }  # the page has its own grids
            return [*witness_figures(results, folder), witness.page(folder / "witness.html", shown)]
    raise ValueError(results["task"])
