"""A pool of candidates as arrays: what is right, who can win, step scores by name, the policy's own likelihood.

Dimension key: P problems, N candidates, T steps; n all candidates one after another, m all their steps.
"""

import collections
import dataclasses
import math
from array import array
from collections.abc import Iterable

import numpy as np

from prm_jax import InputError, metrics
from prm_jax.data.grading import is_blank
from prm_jax.data.pools import Problem, range_error
from prm_jax.data.rows import require
from prm_jax.data.units import UNITS, as_probability, log_p_to_log_odds

POLICY = "policy"  # the name of the policy's own likelihood, log p of each step, among step scores


@dataclasses.dataclass(frozen=True)
class Pool:
    """A pool as arrays, without its texts. Further axes: n all candidates one after another, m all their steps.
    eligible_PN is False for candidates that are unfinished or have no answer: they fill a place of the n and never win
    (OpenAI's protocol), so right_PN is 0 there. answer_PN numbers the answers of a problem; -1 where not eligible."""

    ids: list[str]  # of the problems
    right_PN: np.ndarray
    present_PN: np.ndarray
    eligible_PN: np.ndarray
    answer_PN: np.ndarray | None  # None if no candidate has an answer
    dropped: dict[str, int]
    finished_n: np.ndarray  # a candidate that was cut has no outcome to measure scores against
    steps_n: np.ndarray  # number of steps
    length_n: np.ndarray  # characters
    repeats_n: np.ndarray  # whether the first step repeats the problem
    scores: dict[str, np.ndarray]  # {name: score_m}, float64, of the scores that every candidate has
    units: dict[str, set]  # {name: units of its scores by the problems, None where a problem names none}
    lacking: dict[str, int]  # {name of scores that only some candidates have: number of candidates without}
    n_repeated: int  # problems with the text of an earlier one
    logp_PN: np.ndarray | None  # log p under the policy that drew them, where all finished candidates have it
    reference_PN: (
        np.ndarray | None
    )  # the policy's law over a problem's distinct texts, shared evenly by equal texts
    cost_P: (
        np.ndarray
    )  # policy tokens a candidate, the mean of a problem's; 1 where they are not known of all problems
    labels: list | None = None  # correctness label_T of each candidate, where they are known

    def unit(self, name: str, default: str) -> str:
        """The unit of step scores by the file, or `default`; InputError if it names two, or a score is out of range."""
        units = sorted({unit or default for unit in self.units[name]})
        require(len(units) == 1, f"scores_unit.{name}", " and ".join(units), "one unit in all problems")
        low, high, score_m = UNITS[units[0]].low, UNITS[units[0]].high, self.scores[name]
        for m in np.flatnonzero((score_m < low) | (score_m > high))[:1]:
            n = int(np.searchsorted(np.cumsum(self.steps_n), m, side="right"))
            p, place = np.argwhere(self.present_PN)[n]
            raise range_error(self.ids[p], place, name, m - self.steps_n[:n].sum(), score_m[m], units[0])
        if (
            self.units[name] == {None}
            and units[0] != "probability"
            and 0 <= score_m.min()
            and score_m.max() <= 1
        ):
            print(
                f"scores      {name}: all in [0, 1], read as {units[0]}; probabilities need scores_unit=probability"
            )
        return units[0]

    def log_reference(self) -> tuple[np.ndarray | None, str]:
        """(log p of the candidates, its source): of the policy; where a pool has none the log of the share of a
        problem's candidates that have a candidate's answer; (None, "none") without answers, too."""
        if self.logp_PN is not None:
            return self.logp_PN, "policy"
        if self.answer_PN is None:
            return None, "none"
        same_PN = np.stack([(row_N[:, None] == row_N).sum(1) for row_N in self.answer_PN])
        return np.log(same_PN / self.present_PN.sum(1, keepdims=True)), "votes"

    def labelled(self) -> tuple[np.ndarray, np.ndarray]:
        """(index, label) of the labelled steps up to and including each candidate's first wrong one."""
        pairs = []
        for start, label_T in zip(np.cumsum(self.steps_n) - self.steps_n, self.labels, strict=True):
            pairs += [(start + t, label_T[t]) for t in metrics.labelled_steps(label_T)[0]]
        return np.array([index for index, _ in pairs], int), np.array([label for _, label in pairs], float)


def pool_arrays(
    problems: Iterable[Problem], answer_groups: list[list[int]] | None = None, step_labels=None
) -> Pool:
    """Arrays of a graded pool, which is read problem by problem, none kept; answers are grouped as texts unless a
    checker has grouped them. step_labels: {(problem text, steps): correctness labels} where they are known. Raises
    InputError naming problem and candidate where `correct` is missing."""
    ids, count_P, units, labels, texts = [], array("i"), collections.defaultdict(set), [], set()
    tokens_p = []
    right_n, finished_n, blank_n, repeats_n, answer_n, steps_n, length_n = (array(kind) for kind in "bbbbiii")
    logp_n, log_copies_n = array("d"), array("d")
    scores, having = collections.defaultdict(lambda: array("d")), collections.Counter()
    for p, problem in enumerate(problems):
        ids.append(problem.id), texts.add(hash(problem.problem)), count_P.append(len(problem.candidates))
        tokens_p.append(problem.policy_tokens)
        number = {text: i for i, text in enumerate(dict.fromkeys(c.answer for c in problem.candidates))}
        question, copies = (
            problem.problem.strip(),
            collections.Counter(c.steps for c in problem.candidates if c.logp),
        )
        for n, c in enumerate(problem.candidates):
            if c.correct is None and c.finished:
                place = f"pool: problem {problem.id}: candidates[{n}].correct"
                how = "checker=math grades the answers against the problem's, task=score ranks without them"
                raise InputError(f"{place}: nobody graded it; {how}")
            right_n.append(c.outcome == 1), finished_n.append(c.finished), blank_n.append(is_blank(c.answer))
            answer_n.append(answer_groups[p][n] if answer_groups else number[c.answer])
            repeats_n.append(question in c.steps[0])
            steps_n.append(len(c.steps)), length_n.append(sum(map(len, c.steps)))
            for name, score_T in c.step_scores.items():
                scores[name].extend(score_T)
                units[name].add(problem.scores_unit.get(name))
                having[name] += 1
            logp_n.append(sum(c.logp) if c.logp else -math.inf)
            log_copies_n.append(math.log(copies[c.steps] or 1))
            if c.logp and POLICY not in c.step_scores:
                scores[POLICY].extend(log_p_to_log_odds(c.logp))
                units[POLICY].add("logit")
                having[POLICY] += 1
            labels += [step_labels[problem.problem, c.steps]] if step_labels else []
    count_P, right_n, steps_n, length_n = map(np.array, (count_P, right_n, steps_n, length_n))
    finished_n, blank_n = np.array(finished_n, bool), np.array(blank_n, bool)
    has_answers, present_PN = not blank_n.all(), np.arange(count_P.max()) < count_P[:, None]

    def spread(x_n, empty, dtype):
        x_PN = np.full(present_PN.shape, empty, dtype)
        x_PN[present_PN] = x_n
        return x_PN

    logp_PN = reference_PN = None
    if finished_n.any() and np.isfinite(np.array(logp_n)[finished_n]).all():
        logp_PN = spread(logp_n, -np.inf, float)
        log_law_PN = logp_PN - spread(log_copies_n, 0.0, float)
        total_P1 = np.logaddexp.reduce(log_law_PN, axis=1, keepdims=True)
        reference_PN = np.exp(log_law_PN - np.where(np.isfinite(total_P1), total_P1, 0.0))
    silent_n = blank_n & has_answers
    eligible_n, complete = (
        finished_n & ~silent_n,
        [name for name in sorted(having) if having[name] == len(right_n)],
    )
    dropped = {"missing": present_PN.size - len(right_n), "unfinished": int((~finished_n).sum())}
    return Pool(
        ids=ids, finished_n=finished_n, steps_n=steps_n, length_n=length_n, repeats_n=np.array(repeats_n, bool),
        right_PN=spread(right_n & eligible_n, 0, np.float32), present_PN=present_PN,
        eligible_PN=spread(eligible_n, False, bool),
        answer_PN=spread(np.where(eligible_n, answer_n, -1), -1, np.int32) if has_answers else None,
        dropped=dropped | {"without_answer": int(silent_n.sum())},
        scores={name: np.frombuffer(scores[name]) for name in complete}, units=units,
        lacking={name: len(right_n) - n for name, n in sorted(having.items()) if name not in complete},
        n_repeated=len(ids) - len(texts), logp_PN=logp_PN, reference_PN=reference_PN,
        cost_P=np.ones(len(ids)) if None in tokens_p else np.array(tokens_p) / count_P,
        labels=labels if step_labels else None,
    )  # fmt: skip


def log_scores(pool: Pool, name: str, unit: str, problems=slice(None)) -> tuple[np.ndarray, np.ndarray, str]:
    """(step_PNT, mask_PNT, unit) of step scores as `rerank.aggregate` takes them: log-odds, others as log P(good)."""
    end_n = np.concatenate([[0], np.cumsum(pool.steps_n)])
    first, last = (pool.present_PN[:p].sum() for p in problems.indices(len(pool.ids))[:2])
    steps_PN = np.zeros(pool.present_PN[problems].shape, int)
    steps_PN[pool.present_PN[problems]] = pool.steps_n[first:last]
    mask_PNT = np.arange(pool.steps_n.max()) < steps_PN[..., None]
    score_PNT = np.zeros(mask_PNT.shape)
    score_PNT[mask_PNT] = pool.scores[name][end_n[first] : end_n[last]]
    with np.errstate(
        over="ignore", divide="ignore"
    ):  # log-odds beyond float32 are as certain as infinite ones
        if np.isinf(UNITS[unit].low):
            return score_PNT.astype(np.float32), mask_PNT, "logit"
        logp_PNT = np.log(as_probability(score_PNT, unit), where=mask_PNT, out=np.zeros_like(score_PNT))
        return logp_PNT.astype(np.float32), mask_PNT, "logp"
