"""Problems to learn from and to evaluate on: those of an embedded task, or of files."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from prm_jax import InputError, tasks
from prm_jax.checkpoints.verifiers import members_of, needs_folder
from prm_jax.data.grading import RULES
from prm_jax.data.questions import read_questions
from prm_jax.data.splits import TaskData, problem_hash
from prm_jax.launch.config import expect
from prm_jax.launch.files import read_json
from prm_jax.rl.rollouts import Rollout
from prm_jax.tasks.checkers import Grader, is_own

VERIFIER = "verifier"
DISTINCT = 4096  # problems of an embedded task to learn from; then they come again in another order


class Problems(NamedTuple):
    train: list[str]
    held_out: list[str]
    is_right: Callable[[Rollout], bool]  # whether a finished response has the right answer
    task: tasks.EmbeddedTask | None = None  # the embedded task whose exact checker judges the steps


def known_problems(apart: str | None, verifiers: Iterable[str | None]) -> set[str]:
    """Hashes of the problems that the run `apart` was trained or validated on; of apart=verifier all runs
    among the `verifiers` and their members."""
    runs = [apart] if apart else []
    if apart == VERIFIER:
        members = dict.fromkeys(member for name in verifiers if name for member in members_of(name))
        runs = [name for name in members if (Path(name) / "data.json").exists()]
        for name in filter(needs_folder, members.keys() - {*runs}):
            print(
                f"note        {name} does not say on which problems it was trained: some may be among these"
            )
    known = set()
    for run in runs:
        file = Path(run) / "data.json"
        expect(file.exists(), "apart", run, "a run of train.py")
        record = read_json(file, problems=list, validation=list)
        known |= {*record["problems"], *record["validation"]}
    return known


def task_problems(data: TaskData, n_held_out: int, seed: int, known: Iterable[str] = ()) -> Problems:
    """Problems of an embedded task, none of which has a hash in `known`."""
    task = tasks.find_task(data.name)

    def draw(split: str, n: int) -> list[str]:
        drawn = tasks.make_problems(task, data.task, n + len(known), split, seed)
        return [problem for problem in drawn if problem_hash(problem) not in known][:n]

    train, held_out = draw("train", DISTINCT), draw("validation", n_held_out)
    return Problems(train, held_out, lambda r: task.solved(r.problem, r.steps), task)


def file_problems(train: str, held_out: str, grader: Grader, n_held_out: int) -> Problems:
    """All problems of the file `train`, the first of `held_out`; InputError where one is in both."""
    answers = {}
    compares_answers = grader.checker in RULES
    splits = []
    for path in (train, held_out):
        problems = {}
        for question in read_questions(path, is_own(grader.checker)):
            place = f"{path}: {question.id}"
            has_answer = question.answer is not None or not compares_answers
            expect(has_answer, f"{place}: answer", None, "the right answer")
            is_new = question.problem not in answers or question.problem in problems
            expect(is_new, place, question.problem[:60], "a problem that is not learned from")
            if answers.setdefault(question.problem, question.answer) != question.answer:
                raise InputError(
                    f"{place}: answer: has two, {answers[question.problem]} and {question.answer}"
                )
            problems[question.problem] = None
        splits.append(list(problems))

    def is_right(r: Rollout) -> bool:
        return grader.right(r.problem, r.steps, answers[r.problem])

    return Problems(splits[0], splits[1][:n_held_out], is_right, grader.task)
