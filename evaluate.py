"""Evaluates verifiers: each task writes results.json (every number behind every figure), report.txt and
figures/*.png.

A task is one class (prm_jax/evals/task.py): best_of_n is BestOfN of prm_jax/evals/best_of_n.py, its keys are
conf/task/best_of_n.yaml. Sets of labelled mistakes share one, Benchmarks.
"""

import contextlib
import dataclasses
import importlib
import sys

import jax
from omegaconf import OmegaConf

from prm_jax.critics.prompts import CriticFormat
from prm_jax.evals.setup import EvaluateConfig, Setup, check_inputs
from prm_jax.evals.task import Task
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import CONF, parse
from prm_jax.launch.devices import make_mesh
from prm_jax.launch.files import read_yaml, write_json

COMMON = [field.name for field in dataclasses.fields(EvaluateConfig)]
ELSEWHERE = ("task", "data", "distributed", "cpu_devices")  # read by the command, or by the task itself
# conf/format/judge.yaml and the other critics begin with it.
cli.store_defaults("critic_defaults", CriticFormat)


def main():
    """Starts the command, with the defaults of the task that the command line names among its keys."""
    named = [word.partition("=")[2] for word in sys.argv if word.startswith("task=")] or ["report"]
    file = CONF / "task" / f"{named[-1]}.yaml"
    keys = task_class(read_yaml(file).task).Config if file.exists() else EvaluateConfig
    cli.store_defaults("task_defaults", keys)
    evaluate()


def task_class(name: str) -> type[Task]:
    """BestOfN of prm_jax/evals/best_of_n.py for best_of_n."""
    return vars(importlib.import_module(f"prm_jax.evals.{name}"))[name.title().replace("_", "")]


@cli.command("evaluate", EvaluateConfig)
def evaluate(cfg) -> float | None:
    """Evaluates verifiers by a task of conf/task; returns the headline number of its results."""
    _, folder, cfg = run_folder.start_command(cfg)
    Chosen = task_class(cfg.task)
    common = parse(OmegaConf.masked_copy(cfg, COMMON), EvaluateConfig)
    task = Chosen(parse(cfg, Chosen.Config, elsewhere=(*COMMON, *ELSEWHERE)))
    names = []
    if task.needs_checkpoint or common.checkpoint is not None:
        from prm_jax.evals import verifiers  # models, critics and servers, which other tasks do without

        names = verifiers.checkpoints(common)
    if cfg.resume is None:
        cfg.checkpoint = names or None  # a resumed evaluation must not find another newest run
    mesh = make_mesh(common.mesh, common.batch.rows)
    run_folder.claim_folder(folder, cfg)
    with jax.set_mesh(mesh):
        (folder / "figures").mkdir(exist_ok=True)
        files = check_inputs(folder, cfg)
        results = task.run(Setup(common, names, cfg.data, folder, files))
        results |= {"task": cfg.task, "seed": common.seed} | run_folder.made_by(folder)
    results["metric"] = task.metric(results)
    write_json(folder / "results.json", results)
    with (folder / "report.txt").open("w") as report, contextlib.redirect_stdout(report):
        task.show(results)
        task.detail(results)
    task.show(results)
    print(f"results     {folder / 'results.json'}; every table as text: report.txt")
    draws = common.figures and jax.process_index() == 0
    paths = task.figures(results, folder / "figures") if draws else []
    if paths:
        print(f"figures     {folder / 'figures'}: {', '.join(path.name for path in paths)}")
    return results["metric"]


if __name__ == "__main__":
    main()
