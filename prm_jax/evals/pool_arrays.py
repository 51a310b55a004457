"""A pool of candidates as arrays: what is right, who can win, step scores, the policy's likelihood.

Dimension key: P problems, N candidates, T steps; n all candidates one after another, m all their steps.
"""

import collections
import dataclasses
import math
from array import array
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from prm_jax import InputError
from prm_jax.data.grading import count_apart, is_blank
from prm_jax.data.pools import Problem
from prm_jax.data.units import UNITS, as_probability, log_p_to_log_odds
from prm_jax.launch.config import expect
from prm_jax.solutions import first_error

POLICY = "policy"  # the name of the policy's own likelihood, log p of each step, among step scores


class CandidateRow(NamedTuple):
    """What is kept of one candidate; later, of all candidates, an array a field."""

    right: bool
    finished: bool
    blank: bool  # states no answer
    answer: int  # number of its answer among those of the problem
    sound: bool  # no step is labelled wrong
    steps: int  # number of steps
    length: int  # characters
    logp: float  # log p under the policy that drew it, -inf where it is not known


@dataclasses.dataclass(frozen=True)
class Pool:
    """A pool as arrays, without its texts. eligible_PN is False for candidates that are unfinished or have no
    answer: they fill a place of the n and never win (OpenAI's protocol), so right_PN is 0 there. answer_PN
    numbers the answers of a problem; -1 where not eligible."""

    right_PN: np.ndarray
    present_PN: np.ndarray
    eligible_PN: np.ndarray
    answer_PN: np.ndarray | None  # None if no candidate has an answer
    dropped: dict[str, int]
    finished_PN: np.ndarray  # a candidate that was cut has no outcome to measure scores against
    trace_PN: np.ndarray | None  # right without a wrong step (Uesato et al. 2022); None without labels
    steps_PN: np.ndarray  # number of steps
    length_PN: np.ndarray  # characters
    scores: dict[str, np.ndarray]  # {name: score_m}, float64, of the scores that every candidate has
    units: dict[str, set]  # {name: units of its scores by the problems, None where a problem names none}
    lacking: dict[str, int]  # {name of scores that only some candidates have: number of candidates without}
    logp_PN: np.ndarray | None  # log p under the policy that drew them, where all finished candidates have it
    votes_apart: int  # answers that equal another one as numbers and have votes of their own

    def unit(self, name: str, default: str) -> str:
        """The unit of step scores by the file, or `default`; InputError where they have several, or a score
        is out of its range."""
        units = sorted({unit or default for unit in self.units[name]})
        expect(len(units) == 1, f"scores_unit.{name}", " and ".join(units), "one unit in all problems")
        low, high = UNITS[units[0]].low, UNITS[units[0]].high
        for x in (float(self.scores[name].min()), float(self.scores[name].max())):
            expect(low <= x <= high, f"scores_unit.{name}", x, f"a {units[0]} in [{low:g}, {high:g}]")
        return units[0]


def pool_arrays(
    problems: Iterable[Problem], answer_groups: list[list[int]] | None = None, step_labels=None
) -> Pool:
    """Arrays of a graded pool, which is read problem by problem, none kept; answers are grouped as texts
    unless a checker has grouped them. step_labels: {(problem text, steps): correctness labels}."""
    counts, rows = [], []
    scores, units = collections.defaultdict(lambda: array("d")), collections.defaultdict(set)
    having = collections.Counter()  # {name: number of candidates with its scores}
    votes_apart = 0
    for p, problem in enumerate(problems):
        counts.append(len(problem.candidates))
        number = {text: i for i, text in enumerate(dict.fromkeys(c.answer for c in problem.candidates))}
        groups = answer_groups[p] if answer_groups else [number[c.answer] for c in problem.candidates]
        votes_apart += count_apart(problem.candidates, groups)
        for n, c in enumerate(problem.candidates):
            if c.correct is None and c.finished:
                expected = "nobody graded it; checker=math grades, task=score ranks without grades"
                raise InputError(f"pool: problem {problem.id}: candidates[{n}].correct: {expected}")
            row = CandidateRow(
                right=c.outcome == 1,
                finished=c.finished,
                blank=is_blank(c.answer),
                answer=groups[n],
                sound=not step_labels or first_error(step_labels[problem.problem, c.steps]) == -1,
                steps=len(c.steps),
                length=sum(map(len, c.steps)),
                logp=sum(c.logp) if c.logp else -math.inf,
            )
            rows.append(row)
            stored = dict(c.step_scores)
            unit_of = problem.scores_unit
            if c.logp and POLICY not in stored:
                stored[POLICY] = log_p_to_log_odds(c.logp)
                unit_of = unit_of | {POLICY: "logit"}
            for name, score_T in stored.items():
                scores[name].extend(score_T)
                units[name].add(unit_of.get(name))
                having[name] += 1
    all_n = CandidateRow(*map(np.array, zip(*rows, strict=True)))
    present_PN = np.arange(max(counts)) < np.array(counts)[:, None]

    def spread(x_n, empty=0) -> np.ndarray:
        x_PN = np.full(present_PN.shape, empty, x_n.dtype)
        x_PN[present_PN] = x_n
        return x_PN

    has_logp = all_n.finished.any() and np.isfinite(all_n.logp[all_n.finished]).all()
    has_answers = not all_n.blank.all()  # in a pool without any answer all may win
    silent_n = all_n.blank & has_answers
    eligible_n = all_n.finished & ~silent_n
    right_n = (all_n.right & eligible_n).astype(np.float32)
    answer_n = np.where(eligible_n, all_n.answer, -1).astype(np.int32)
    return Pool(
        right_PN=spread(right_n),
        present_PN=present_PN,
        eligible_PN=spread(eligible_n),
        answer_PN=spread(answer_n, -1) if has_answers else None,
        dropped={
            "missing": present_PN.size - len(rows),
            "unfinished": int((~all_n.finished).sum()),
            "without_answer": int(silent_n.sum()),
        },
        finished_PN=spread(all_n.finished),
        trace_PN=spread(right_n * all_n.sound) if step_labels else None,
        steps_PN=spread(all_n.steps),
        length_PN=spread(all_n.length),
        scores={name: np.frombuffer(scores[name]) for name, n in sorted(having.items()) if n == len(rows)},
        units=units,
        lacking={name: len(rows) - n for name, n in sorted(having.items()) if n < len(rows)},
        logp_PN=spread(all_n.logp, -np.inf) if has_logp else None,
        votes_apart=votes_apart,
    )


def log_scores(pool: Pool, name: str, unit: str) -> tuple[np.ndarray, np.ndarray, str]:
    """(step_PNT, mask_PNT, unit) of step scores as `rerank.aggregate` takes them: log-odds ("logit"), others
    as log P(good) ("logp")."""
    mask_PNT = np.arange(pool.steps_PN.max()) < pool.steps_PN[..., None]
    score_PNT = np.zeros(mask_PNT.shape, np.float32)
    # Log-odds beyond float32 are as certain as infinite ones.
    with np.errstate(over="ignore", divide="ignore"):
        if np.isinf(UNITS[unit].low):
            score_PNT[mask_PNT] = pool.scores[name]
            return score_PNT, mask_PNT, "logit"
        score_PNT[mask_PNT] = np.log(as_probability(pool.scores[name], unit))
        return score_PNT, mask_PNT, "logp"
