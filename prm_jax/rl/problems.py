"""Problems to learn from and to evaluate on: an embedded task's, those of files, or steps that a critic judges."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, NamedTuple

import numpy as np

from prm_jax import InputError, tasks
from prm_jax.checkpoints.verifiers import members_of, needs_folder
from prm_jax.data.critiques import prompt_text, verdict_at
from prm_jax.data.grading import RULES
from prm_jax.data.questions import read_questions
from prm_jax.data.splits import TaskData, load_splits, problem_hash
from prm_jax.formats import read_format
from prm_jax.generate.samples import policy_pool
from prm_jax.launch.config import expect
from prm_jax.launch.files import read_json
from prm_jax.rl.rollouts import Rollout
from prm_jax.solutions import Solution
from prm_jax.tasks.checkers import CHECKERS, Grader, checker_of, is_own

VERIFIER = "verifier"
DISTINCT = 4096  # problems of an embedded task to learn from; then they come again in another order


@dataclasses.dataclass(frozen=True)
class QuestionsConfig:  # conf/rl.yaml says what each key means
    input: str | None
    held_out: str | None
    checker: Annotated[str, checker_of(CHECKERS)] | None
    critic: str | None = None
    apart: str | None = None

    def __post_init__(self):
        both = (self.input is None) == (self.held_out is None)
        expect(both, "questions.held_out", self.held_out, "a file beside input, and only beside it")
        expect(not self.critic or not self.input, "input", self.input, "null: a critic learns from data")
        is_task = not self.critic and not self.input
        is_idle = is_own(self.checker) and not self.input
        expect(not is_idle, "input", None, f"problems that checker={self.checker} checks")
        fits = is_task or self.apart in (None, VERIFIER)
        expect(fits, "questions.apart", self.apart, "null: it is for an embedded task's problems")

    def apart_from(self, verifiers: Iterable[str | None]) -> list[str]:
        """The runs whose problems are left out: with apart=verifier those that made the verifiers, as far as known."""
        if self.apart != VERIFIER:
            return [self.apart] if self.apart else []
        members = dict.fromkeys(member for name in verifiers if name for member in members_of(name))
        runs = [name for name in members if (Path(name) / "data.json").exists()]
        for name in filter(needs_folder, members.keys() - {*runs}):
            print(
                f"note        {name} does not say on which problems it was trained: some may be among these"
            )
        return runs


class Problems(NamedTuple):
    train: list[str]
    held_out: list[str]
    is_right: Callable[[Rollout], bool]
    task: ModuleType | None  # the embedded task whose exact checker judges the steps
    verdict: Callable[[Rollout], bool | None] | None = (
        None  # of a critic: whether it says good; None: it says nothing
    )

    def watch(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """The shares of a critic's roll-outs that say good (half of them should) and that come to no verdict."""
        if self.verdict is None:
            return {}
        verdicts = [self.verdict(r) for r in rollouts]
        return {
            "says_good": verdicts.count(True) / len(verdicts),
            "no_verdict": verdicts.count(None) / len(verdicts),
        }


def of_task(data: TaskData, n_held_out: int, seed: int, apart: Iterable[str] = ()) -> Problems:
    """Problems of an embedded task, none of them among those that the runs `apart` were trained or validated on."""
    task, known = tasks.TASKS[data.name], set()
    for run in apart:
        expect((record := Path(run) / "data.json").exists(), "questions.apart", run, "a run of train.py")
        record = read_json(record, problems=list, validation=list)
        known |= {*record["problems"], *record["validation"]}

    def draw(split: str, n: int) -> list[str]:
        drawn = tasks.make_problems(task, data.task, n + len(known), split, seed)
        return [problem for problem in drawn if problem_hash(problem) not in known][:n]

    splits = draw("train", DISTINCT), draw("validation", n_held_out)
    return Problems(*splits, lambda r: task.solved(r.problem, r.steps), task)


def of_files(cfg: QuestionsConfig, grader: Grader, n_held_out: int) -> Problems:
    """All problems of one file, the first of the other; InputError without an answer, in both, or with two answers."""
    answers, splits, by_answer = {}, [], grader.checker in RULES
    for path in (cfg.input, cfg.held_out):
        splits.append(problems := {})
        for q in read_questions(path, is_own(grader.checker)):
            expect(
                not by_answer or q.answer is not None, f"{path}: answer of {q.id}", None, "the right answer"
            )
            is_new = q.problem not in answers or q.problem in problems
            expect(is_new, f"{path}: {q.id}", q.problem[:60], "one not learned from")
            if answers.setdefault(q.problem, q.answer) != q.answer:
                raise InputError(
                    f"{path}: {q.id}: has the answer {q.answer}, but before it was {answers[q.problem]}"
                )
            problems[q.problem] = None
    train, held_out = list(splits[0]), list(splits[1])[:n_held_out]
    return Problems(
        train, held_out, lambda r: grader.right(r.problem, r.steps, answers[r.problem]), grader.task
    )


def of_critic(data: TaskData, name: str, n_held_out: int, seed: int) -> Problems:
    """Labelled steps of the task's solutions, for a critic of format `name`; right: its verdict is the label. Right and
    wrong steps are equally many, as in StepWiser (arXiv 2508.19229, 3.3); surplus ones are left out."""
    fmt, splits, labels = read_format(name), load_splits(data, seed, policy_pool).splits, {}
    writes = fmt.critic and fmt.critic.ask is None and fmt.critic.next is None
    expect(
        writes,
        "questions.critic",
        name,
        "a critic that writes its verdict and is asked each step anew: lab_critic",
    )

    def balanced(solutions: Iterable[Solution], rng) -> list[str]:
        steps = [(s, t, y >= 0.5) for s in solutions for t, y in enumerate(s.labels) if y is not None]
        is_good = {prompt_text(fmt, None, s.problem, s.steps[: t + 1]): good for s, t, good in steps}
        labels.update(is_good)
        good, bad = ([text for text in is_good if is_good[text] is side] for side in (True, False))
        n = min(len(good), len(bad))
        print(f"steps       {len(good):,} right and {len(bad):,} wrong ones to judge, {n:,} of each kept")
        expect(n, "data.solutions", f"{len(good)} right, {len(bad)} wrong steps", "some of each")
        sides = ([texts[i] for i in rng.permutation(len(texts))[:n]] for texts in (good, bad))
        return [text for pair in zip(*sides, strict=True) for text in pair]

    def verdict(r: Rollout) -> bool | None:
        start = verdict_at(fmt, text := "\n".join(r.steps))
        return None if start is None else text.startswith(fmt.good, start)

    train, held_out = (
        balanced(splits[side], np.random.default_rng(seed)) for side in ("train", "validation")
    )
    return Problems(train, held_out[:n_held_out], lambda r: verdict(r) is labels[r.problem], None, verdict)
