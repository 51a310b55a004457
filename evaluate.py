"""Evaluates verifiers: each task writes results.json (every number behind every figure), report.txt and figures/*.png.

A task is one file of conf/task (its keys) and one of prm_jax/evals: `Config` parses its keys (`needs_checkpoint`: is a
verifier needed, true by default), `run` returns its numbers, `show` prints them, and `figures(results, folder)` draws.
"""

import dataclasses
import importlib

import prm_jax  # isort: skip  # noqa: F401 (first, since it hears Ctrl-C during the imports)
import jax
from omegaconf import OmegaConf

from prm_jax.evals.common import (
    EvaluateConfig,
    Setup,
    check_data,
    check_inputs,
    checkpoints,
    trained,
    write_report,
)
from prm_jax.evals.sentences import sentences
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import parse
from prm_jax.launch.hosts import start_command, writable_folder
from prm_jax.launch.mesh import make_mesh
from prm_jax.model import choose_dtype

COMMON = [field.name for field in dataclasses.fields(EvaluateConfig)]
ELSEWHERE = ("task", "data", "distributed", "cpu_devices")  # read by the command, or by the task itself


@cli.command("evaluate")
def main(cfg):
    """Evaluate verifiers by a task of conf/task: step metrics, best-of-N, search, benchmarks, your own solutions."""
    folder, cfg, resumes = start_command(cfg)
    folder = writable_folder(folder)
    check_data(cfg)
    task = importlib.import_module(f"prm_jax.evals.{cfg.task}")
    common = parse(OmegaConf.masked_copy(cfg, COMMON), EvaluateConfig)
    task_cfg = parse(cfg, task.Config, elsewhere=(*COMMON, *ELSEWHERE))
    common = dataclasses.replace(common, dtype=choose_dtype(common.dtype))
    names = checkpoints(common, getattr(task_cfg, "needs_checkpoint", True))
    if not resumes:
        cfg.checkpoint = names or None  # a resumed evaluation must not find another newest run
    mesh = make_mesh(common.mesh, common.batch.rows)
    with run_folder.locked_run_folder(folder, cfg, resumes), jax.set_mesh(mesh):
        (folder / "figures").mkdir(exist_ok=True)
        files = check_inputs(folder, cfg)
        results = task.run(Setup(common, names, cfg.data, folder, files), task_cfg)
        results |= {"task": cfg.task, "seed": common.seed} | run_folder.made_by(folder)
    if len(names) == 1 and not {"runs", "scorers"} & results.keys():  # each run or scorer has its own
        results["trained"] = trained(names[0])
    run_folder.write_json(folder / "results.json", results)
    write_report(folder / "report.txt", task, results)
    task.show(results)
    print(f"results     {folder / 'results.json'}; every table as text: report.txt")
    paths = (
        task.figures(results, folder / "figures")
        if jax.process_index() == 0 and hasattr(task, "figures")
        else ()
    )
    if paths:
        print(f"figures     {folder / 'figures'}: {', '.join(path.name for path in paths)}")
    print("".join(f"{line}\n" for line in sentences(results)), end="")


if __name__ == "__main__":
    main()
