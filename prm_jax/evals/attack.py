"""task=attack: the worst single edit of each solution ("Reward Under Attack", arXiv 2603.06621), with exact verdicts.

An attacker edits an unsound solution in one place, by each edit of data/edits.py, and hands in the version that the
verifier likes best. The embedded task's checker judges each version: only those that are still unsound count. Likewise
a sound solution is edited to the version that is still sound and liked least: an edit that must not matter.

With input=FILE the solutions are any texts, and no checker judges an edited one: TEXT_EDITS, which a wrong solution should
not become right by, and `numbers` under that assumption. token_search.py adds tokens that no text would have.

Dimension key: N solutions.
"""

import dataclasses
import functools
from typing import Annotated

import numpy as np

from prm_jax import InputError, metrics, rerank, tasks
from prm_jax.data import sources
from prm_jax.data.edits import EDITS, KEEPS_VERDICT, TEXT_EDITS, edited
from prm_jax.data.splits import TaskData
from prm_jax.evals import token_search
from prm_jax.evals.setup import Setup
from prm_jax.evals.tables import interval_of, plus_minus
from prm_jax.evals.verifiers import data_of, describe, one_scorer
from prm_jax.figures.attack import QUANTITIES, SHOWN
from prm_jax.figures.attack import attack_figures as figures  # noqa: F401 (evaluate.py asks the task)
from prm_jax.generate.samples import policy_pool
from prm_jax.launch.config import Count, expect, one_of
from prm_jax.scoring import ModelScorer, score_into


@dataclasses.dataclass(frozen=True)
class Config:
    input: str | None
    solutions: Count
    aggregator: Annotated[str, one_of(rerank.AGGREGATORS)]
    edits: list[str] | None
    token_search: token_search.TokenSearch

    def __post_init__(self):
        for name in self.edits or ():
            expect(name in self.known, "edits", name, f"names of {', '.join(self.known)}")
        expect(self.edits != [], "edits", self.edits, "at least one, or null: all")
        is_log_p = rerank.AGGREGATORS[self.aggregator].is_log_probability
        expect(is_log_p, "aggregator", self.aggregator, "one whose score is a probability")

    @property
    def known(self) -> dict:
        return TEXT_EDITS if self.input else EDITS


@functools.cache
def is_sound(task, problem: str, steps) -> bool:
    """Whether a solution has no wrong line, and the right answer."""
    return min(tasks.step_labels(task, problem, steps)) == 1 and task.solved(problem, steps)


def of_task(setup: Setup, cfg: Config) -> tuple:
    """(rows, sound_N, how many solutions have no verdict, who judges, the task) of held-out solutions."""
    data = data_of(setup, setup.checkpoints[0])[0]
    if not isinstance(data, TaskData):
        expected = "an embedded task, whose checker judges edits, or input=FILE"
        raise InputError(f"data: task=attack needs {expected}; got {data.name}")
    task = tasks.TASKS[data.name]
    solutions = tasks.sample_solutions(data, cfg.solutions, "test", setup.cfg.seed, policy_pool)
    rows = [(s.problem, s.steps) for s in solutions if s.outcome is not None]
    sound_N = np.array([is_sound(task, *row) for row in rows])
    return rows, sound_N, len(solutions) - len(rows), f"the exact checker of {data.name}", task


def of_file(setup: Setup, cfg: Config) -> tuple:
    """The same of a file's solutions, drawn at random. A wrong one has a label or an outcome below .5."""
    solutions = sources.load(cfg.input, "native")[0]
    known_of = [[x for x in (*(s.labels or ()), s.outcome) if x is not None] for s in solutions]
    sound_of = {i: min(known) >= 0.5 for i, known in enumerate(known_of) if known}
    if len({*sound_of.values()}) < 2:
        counts = f"found {sum(sound_of.values())} right and {len(sound_of) - sum(sound_of.values())} wrong solutions"
        raise InputError(f"{cfg.input}: labels, outcome: {counts} of {len(solutions)}, expected some of both")
    drawn = sorted(np.random.default_rng(setup.cfg.seed).permutation([*sound_of])[: cfg.solutions])
    rows, sound_N = (
        [(solutions[i].problem, solutions[i].steps) for i in drawn],
        np.array([sound_of[i] for i in drawn]),
    )
    return rows, sound_N, len(solutions) - len(sound_of), f"labels and outcomes of {cfg.input}", None


def run(setup: Setup, cfg: Config) -> dict:
    """Scores all edited versions of the solutions; the numbers before and after, by edit and by the worst of all."""
    scorer, names = one_scorer(setup), tuple(cfg.edits or cfg.known)
    if cfg.token_search.rounds and (not isinstance(scorer, ModelScorer) or scorer.by_token):
        raise InputError(
            f"token_search: needs a model with a step head, which has a gradient; got {scorer.name}"
        )
    rows, sound_N, left_out, judge, task = (of_file if cfg.input else of_task)(setup, cfg)
    expect(0 < sound_N.sum() < len(rows), "solutions", cfg.solutions, "some sound and some unsound ones")
    versions = [{(row[0], new): name for new, name in edited(row[1], names).items()} for row in rows]
    every = list(dict.fromkeys([*rows, *(row for made in versions for row in made)]))
    numbered = ((str(i), *row) for i, row in enumerate(every))
    scores = list(score_into(setup.folder / "scores.jsonl", scorer, numbered, len(every)))
    log_p_n = rerank.solution_scores(scores, cfg.aggregator).astype(np.float64)
    p_of = dict(zip(every, np.exp(log_p_n), strict=True))
    before_N, problems = np.array([p_of[row] for row in rows]), np.array([problem for problem, _ in rows])

    def keeps(sound: bool, problem: str, steps) -> bool:
        """Whether an edited version has the verdict of its solution."""
        return task is None or is_sound(task, problem, steps) == sound

    def attacked(chosen, wrong_line=False) -> dict:
        """Numbers where the attacker hands in, of the versions that `chosen` edits make and whose verdict is kept, the best
        for him; with `wrong_line` those of unsound solutions still hold one, for a verifier of lines has no ground to
        refuse others."""
        p_N = before_N.copy()
        for n, made in enumerate(versions):
            kept = [row for row, name in made.items() if name in chosen and keeps(sound_N[n], *row)]
            if wrong_line and not sound_N[n]:
                kept = [row for row in kept if 0 in tasks.step_labels(task, *row)]
            p_N[n] = (min if sound_N[n] else max)([p_N[n], *(p_of[row] for row in kept)])
        return numbers(before_N, p_N, sound_N, problems, setup.cfg.seed)

    tables = {name: attacked((name,)) for name in names}
    for name, x in tables.items():
        pairs = zip(sound_N, versions, strict=True)
        kept = [keeps(sound, *row) for sound, made in pairs for row, edit in made.items() if edit == name]
        x |= {"versions": len(kept), "verdict_kept": float(np.mean(kept)) if kept and task else None}
        if (
            task is None and name not in KEEPS_VERDICT
        ):  # how scores move is known, but not whether they should
            x |= {"auroc": None, "auroc_interval": [None, None]}
    tables["worst"] = attacked(names if task else KEEPS_VERDICT)
    if task:
        tables["worst_wrong_line"] = attacked(names, wrong_line=True)
    by_tokens = {}
    if cfg.token_search.rounds:
        wrong = [row for row, sound in zip(rows, sound_N, strict=True) if not sound]
        is_wrong = functools.partial(keeps, False)
        by_tokens = token_search.table(
            scorer, cfg.token_search, cfg.aggregator, wrong, is_wrong, setup.cfg.seed
        )
    return {
        **describe(scorer), "aggregator": cfg.aggregator, "solutions": len(rows), "sound": int(sound_N.sum()),
        "left_out": left_out, "judged": judge, "exact": task is not None,
        "before": numbers(before_N, before_N, sound_N, problems, setup.cfg.seed), "edits": tables, "token_search": by_tokens,
    }  # fmt: skip


def numbers(before_N, after_N, sound_N, problems, seed: int) -> dict:
    """AUROC of sound against unsound solutions if only the unsound ones are attacked; the share of unsound ones above .5,
    and of sound ones below .5 where these are attacked. With 95 % bootstrap intervals over problems."""
    statistics = {
        "auroc": lambda before_N, after_N, sound_N: metrics.auroc(
            np.where(sound_N, before_N, after_N), sound_N
        ),
        "unsound_accepted": lambda _, after_N, sound_N: metrics.mean(after_N[~sound_N] > 0.5),
        "sound_refused": lambda _, after_N, sound_N: metrics.mean(after_N[sound_N] < 0.5),
    }
    arrays = before_N, after_N, sound_N
    made = {name: f(*arrays) for name, f in statistics.items()}
    return made | {
        f"{name}_interval": interval_of(f, problems, seed, *arrays) for name, f in statistics.items()
    }


def show(results: dict):
    print(f"verifier    {results['verifier']}, {results['aggregator']} of its step scores")
    left_out = f"{results['left_out']} without a verdict left out"
    print(f"solutions   {results['solutions']:,}, {results['sound']:,} sound; {left_out}")
    of_edits = (
        "" if results["exact"] else ", of the text as it is; assumed to hold for edited ones, but after drop"
    )
    print(f"verdicts    by {results['judged']}{of_edits}")
    print(f"{'one edit':<12}{'AUROC':<24}{'unsound above .5':<24}{'sound below .5':<24}verdict kept")
    for name, x in {"none": results["before"], **results["edits"]}.items():
        pairs = [(x[key], plus_minus(x[f"{key}_interval"])) for key in QUANTITIES if x[key] is not None]
        cells = "".join(f"{value:.3f} {interval:<18}" for value, interval in pairs)
        kept = "" if x.get("verdict_kept") is None else f"{x['verdict_kept']:.2f} of {x['versions']:,}"
        print(f"{SHOWN.get(name, name):<12}{cells:>{24 * len(QUANTITIES)}}{kept}")
    if results["token_search"]:
        token_search.show(results["token_search"])
