"""Problems to learn from and to evaluate on: those of an embedded task, or of files."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig

from prm_jax import tasks
from prm_jax.checkpoints.names import folders_of, needs_folder
from prm_jax.data.questions import read_questions
from prm_jax.data.splits import TaskData, data_config, problem_hash
from prm_jax.generate.pools import right_answers
from prm_jax.launch.config import expect
from prm_jax.launch.files import read_json
from prm_jax.rl.rollouts import Rollout
from prm_jax.tasks.checkers import Grader, is_own, open_grader

DISTINCT = 4096  # problems of an embedded task to learn from; then they come again in another order


class Problems(NamedTuple):
    train: list[str]
    held_out: list[str]
    is_right: Callable[[Rollout], bool]  # whether a finished response has the right answer
    task: tasks.EmbeddedTask | None = None  # the embedded task whose exact checker judges the steps
    data: DictConfig | None = None  # the configuration of the embedded task that they were drawn from


def load_problems(cfg, raw_data: DictConfig) -> Problems:
    """The problems of the files cfg.input and cfg.held_out, else of the embedded task."""
    if cfg.input is None:
        known = known_problems(cfg.apart, cfg.reward.prm_checkpoint)
        drawn = task_problems(data_config(raw_data), cfg.eval.problems, cfg.seed, known)
        return drawn._replace(data=raw_data)
    grader = open_grader(cfg.checker, [cfg.input, cfg.held_out])
    is_used = cfg.reward.prm or grader.task or not cfg.reward.prm_checkpoint
    expect(is_used, "reward.prm", 0, "a weight: a verifier is watched only where exact labels judge it")
    return file_problems(cfg.input, cfg.held_out, grader, cfg.eval.problems, cfg.columns)


def known_problems(apart: str | None, verifier: str | None) -> set[str]:
    """Hashes of the problems that the run `apart` and the verifier's runs trained or validated on."""
    expect(apart is None or (Path(apart) / "data.json").exists(), "apart", apart, "a run of train.py")
    known = set()
    folders = folders_of(verifier) if verifier else []
    for name in dict.fromkeys([*filter(None, [apart]), *folders]):
        file = Path(name) / "data.json"
        if file.exists():
            record = read_json(file, problems=list, validation=list)
            known |= {*record["problems"], *record["validation"]}
        elif needs_folder(name):
            note = "does not say on which problems it was trained: some may be among these"
            print(f"note        {name} {note}")
    return known


def task_problems(data: TaskData, n_held_out: int, seed: int, known: Iterable[str] = ()) -> Problems:
    """Problems of an embedded task, none of which has a hash in `known`."""
    task = tasks.find_task(data.name)

    def draw(split: str, n: int) -> list[str]:
        drawn = tasks.make_problems(task, data.task, n + len(known), split, seed)
        return [problem for problem in drawn if problem_hash(problem) not in known][:n]

    train, held_out = draw("train", DISTINCT), draw("validation", n_held_out)
    return Problems(train, held_out, lambda r: task.solved(r.problem, r.steps), task)


def file_problems(train: str, held_out: str, grader: Grader, n_held_out: int, columns=None) -> Problems:
    """All problems of the file `train`, the first of `held_out`; InputError where one is in both."""

    def read(path: str) -> dict[str, str | None]:
        return right_answers(path, read_questions(path, is_own(grader.checker), columns), grader.checker)

    to_learn, to_solve = read(train), read(held_out)
    known = set(map(problem_hash, to_learn))
    for problem in to_solve:
        is_new = problem_hash(problem) not in known
        expect(is_new, held_out, problem[:60], f"a problem that is not in {train}")
    answers = to_learn | to_solve

    def is_right(r: Rollout) -> bool:
        steps = (r.thought, *r.steps) if r.thought else r.steps
        return grader.right(r.problem, steps, answers[r.problem])

    return Problems([*to_learn], [*to_solve][:n_held_out], is_right, grader.task)
