"""The verifiers of an evaluation: from the key `checkpoint` to Scorers, their record, the data of a run."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from prm_jax import InputError
from prm_jax.checkpoints import names
from prm_jax.checkpoints.folders import is_run, locate
from prm_jax.checkpoints.names import OpenOptions, folders_of, members_of, needs_folder, open_verifier
from prm_jax.data.splits import DataConfig, TaskData, data_config, problem_hash
from prm_jax.data.writing import score_into
from prm_jax.evals.setup import EvaluateConfig, Setup, check_unchanged
from prm_jax.launch import run_folder
from prm_jax.launch.config import expect
from prm_jax.launch.files import read_json


def checkpoints(cfg: EvaluateConfig) -> list[str]:
    """The verifiers of the key `checkpoint`: a sweep's runs for its folder, the newest run for null."""
    if cfg.checkpoint is None:
        return [str(run_folder.newest_run())]
    asked = cfg.checkpoint if isinstance(cfg.checkpoint, list) else [cfg.checkpoint]
    expect(asked, "checkpoint", asked, "at least one verifier")
    found = []
    for name in map(str, asked):
        found += map(str, run_folder.runs_of(Path(name))) if needs_folder(name) else [name]
    expect(len({*found}) == len(found), "checkpoint", found, "each verifier once")
    for member in itertools.chain(*map(members_of, found)):
        if needs_folder(member):
            locate(member)  # before another one works for an hour
    return found


def own_runs(setup: Setup) -> list[str]:
    """Those checkpoints, and members of ensembles, that are runs of ours."""
    return [member for name in setup.checkpoints for member in members_of(name) if is_run(member)]


def open_scorer(setup: Setup, name: str):
    """The Scorer of one checkpoint argument."""
    cfg = setup.cfg
    data = setup.data
    runs = own_runs(setup)
    if data.name == "of_run" and runs and not setup.files:  # an embedded task has a checker and a policy
        data = run_folder.run_config(Path(runs[0])).data
    tasks = {part.name for part in (data.get("sources") or {"": data}).values()}
    same = {key: getattr(cfg, key) for key in ("which", "format", "dtype", "reference", "seed")}
    rows = {"rows": cfg.batch.rows, "tokens": cfg.batch.tokens}
    task = tasks.pop() if len(tasks) == 1 else None
    options = OpenOptions(**same, **rows, data=data, task=task, files=setup.files)
    scorer = open_verifier(name, options)
    check_unchanged(setup.folder, {name: scorer.name})  # a run that went on has another step in its name
    return scorer


def one_scorer(setup: Setup):
    given = setup.checkpoints
    expect(len(given) == 1, "checkpoint", given, "one verifier: this task takes no more")
    return open_scorer(setup, given[0])


def describe(scorer) -> dict:
    kind = {"label_kind": scorer.label_kind, "objective": scorer.objective, "scores_unit": scorer.unit}
    return {"verifier": scorer.name, **kind, **getattr(scorer, "about", {})}


def data_of(setup: Setup, name: str) -> tuple[DataConfig, int]:
    """(the data of the key `data`, or the run's own; the seed of the run)."""
    run = next((run_folder.run_config(Path(member)) for member in members_of(name) if is_run(member)), None)
    if setup.data.name != "of_run":
        return data_config(setup.data), run.seed if run else 0
    if run is None:
        raise InputError(f"data: {name} is no run of ours, so name the data set to evaluate on: data=NAME")
    return data_config(run.data), run.seed


def task_data(setup: Setup) -> TaskData:
    """The embedded task of the first run, or of the key `data`."""
    data_cfg, _ = data_of(setup, next(iter(own_runs(setup)), setup.checkpoints[0]))
    if not isinstance(data_cfg, TaskData):
        raise InputError(f"input: the data {data_cfg.name} has no problems to draw; name a file, input=FILE")
    return data_cfg


def settings_of(name: str) -> dict:
    """The settings of a run; another verifier is a setting itself."""
    return run_folder.settings(name) if is_run(name) else {"verifier": name}


def known_rows(name: str, rows: Sequence) -> list[bool]:
    """Which of some solutions or problems have a problem that a run, or a run of an ensemble, was trained on;
    prints how many problems these are."""
    known = set()
    for folder in folders_of(name):
        path = Path(folder) / "data.json"
        if path.exists():
            known.update(read_json(path, problems=list)["problems"])
    hashes = [problem_hash(row.problem) for row in rows]
    if n := len(known & set(hashes)):
        print(f"note        {name} was trained on {n} of these problems: its numbers here are too good")
    return [x in known for x in hashes]


def note_seen(name: str, seen: int, what: str):
    """Says in a report how many of these problems, or of solutions' problems, a verifier was trained on."""
    if seen:
        print(f"note        {name} was trained on {seen} of these {what}")


def backbone_of(name: str) -> str | None:
    """The language model that the training of a run of ours, or of a shipped verifier, began from."""
    if name in ("embedded_prm", "embedded_orm"):
        return "embedded"
    begin = run_folder.run_config(Path(name)).get("init") if is_run(name) else None
    return None if begin == "random" else begin


def likelihood_scores(setup: Setup, model: str | None, solutions: list, path: Path) -> list | None:
    """Log-odds of the likelihood of each step of solutions under a language model, kept in a file; None
    without a model, and where it cannot be opened, which is said."""
    if model is None:
        return None
    try:
        scorer = open_scorer(setup, f"policy:{model}")
    except InputError as error:
        print(f"likelihood  left out: {error}")
        return None
    return list(score_into(path, scorer, solutions, len(solutions)))


def new_name(scorer, taken: set[str]) -> str:
    """The name of a verifier's scores in a pool: the first free of prm, prm_1, ... (checker, checker_1)."""
    built_in = names.BUILT_IN.fullmatch(scorer.name) or names.ENSEMBLE.fullmatch(scorer.name)
    first = (built_in[1] or built_in[0].partition(":")[0]) if built_in else scorer.objective
    numbered = itertools.chain([first], (f"{first}_{i}" for i in itertools.count(1)))
    return next(name for name in numbered if name not in taken)
