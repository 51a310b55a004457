"""What a pool of candidates says about its verifiers: selection and vote curves, intervals, reward against KL, calibration.

Arrays in, one JSON-ready dict out (`measure`); the mathematics is in rerank.py, votes.py and stats.py. One protocol for
every number: means over problems of expectations over the n-subsets of a problem's own candidates (all of them where n is
larger); who cannot win fills a place.

Dimension key
  P problems, N candidates, T steps, n subset sizes, b betas
"""

import collections
import dataclasses
import functools
import itertools
from array import array
from collections.abc import Iterable
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax import InputError, metrics, rerank, stats, votes
from prm_jax.data.grading import is_blank
from prm_jax.data.pools import Problem, outside
from prm_jax.data.rows import field_error
from prm_jax.data.units import UNITS, as_probability
from prm_jax.evals import standing, traces
from prm_jax.launch.config import Count, one_of

# From the arg max to the reference: solution scores are a few nats apart, seldom below a thousandth.
PLACES = 1 << 23  # of steps, padded to the longest solution of the pool: more are not laid out at a time
BETA_b = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 64), [np.inf]])


@dataclasses.dataclass(frozen=True)
class Rules:
    """How candidates are compared; conf/task/best_of_n.yaml says what each key means."""

    scores_unit: Annotated[str, one_of(UNITS)]
    aggregator: Annotated[str, one_of(rerank.AGGREGATORS)]
    ties: Literal["share", "first"]
    vote_draws: Count
    vote_counts: Annotated[str, one_of(votes.COUNTS)] | None = None

    @property
    def counts(self) -> str:
        """What a winning group of votes counts, a name of votes.COUNTS."""
        return self.vote_counts or ("first" if self.ties == "first" else "mean")


@dataclasses.dataclass(frozen=True)
class Pool:
    """A pool as arrays, without its texts: which candidates exist, which may win, whether they are right, what they answer, and
    step scores. Further axes: n all candidates one after another, m all their steps.

    eligible_PN is False for the unfinished and those without an answer: they fill a place of the n and never win (OpenAI's
    protocol), so right_PN is 0 there. answer_PN numbers the answers of a problem, -1 for who is not eligible; None if no
    candidate has one.
    """

    ids: list[str]  # of the problems
    right_PN: np.ndarray
    present_PN: np.ndarray
    eligible_PN: np.ndarray
    answer_PN: np.ndarray | None
    dropped: dict[str, int]
    finished_n: np.ndarray  # what was cut has no outcome to measure scores against
    steps_n: np.ndarray  # how many
    length_n: np.ndarray  # characters
    repeats_n: np.ndarray  # the first step repeats the problem
    scores: dict[str, np.ndarray]  # score_m of the names that every candidate has, float64
    units: dict[str, set]  # units that the problems say of the scores of a name, None where one says nothing
    lacking: dict[str, int]  # name that only some candidates have -> how many have not
    n_repeated: int  # problems whose text an earlier one has
    labels: list | None = None  # correctness label_T of each candidate, where they are known

    def unit(self, name: str, default: str) -> str:
        """The unit of step scores: what the file says, or `default`; InputError where it says two, or a score is outside its range."""
        units = sorted({unit or default for unit in self.units[name]})
        if len(units) > 1:
            raise field_error(f"scores_unit.{name}", " and ".join(units), "one unit in all problems")
        low, high, score_m = UNITS[units[0]].low, UNITS[units[0]].high, self.scores[name]
        for m in np.flatnonzero((score_m < low) | (score_m > high))[:1]:
            n = int(np.searchsorted(np.cumsum(self.steps_n), m, side="right"))
            p, own = np.argwhere(self.present_PN)[n]
            raise outside(self.ids[p], own, name, m - self.steps_n[:n].sum(), score_m[m], units[0])
        if self.units[name] == {None} and units[0] != "probability" and 0 <= score_m.min() and score_m.max() <= 1:
            print(f"scores      {name}: all in [0, 1], read as {units[0]}; probabilities need scores_unit=probability")
        return units[0]

    def labelled(self) -> tuple[np.ndarray, np.ndarray]:
        """(index, label) of the labelled steps up to and including each candidate's first wrong one."""
        kept, start_n = [metrics.labelled_steps(label_T)[0] for label_T in self.labels], np.cumsum(self.steps_n)
        index = [start + t for start, own in zip(start_n - self.steps_n, kept, strict=True) for t in own]
        label = [label_T[t] for label_T, own in zip(self.labels, kept, strict=True) for t in own]
        return np.array(index, int), np.array(label, float)


def pool_arrays(problems: Iterable[Problem], answer_groups: list[list[int]] | None = None, step_labels=None) -> Pool:
    """Arrays of a graded pool, which is read problem by problem, none kept; answers are grouped as texts unless `answer_groups`
    (of a checker) is given. step_labels: {(problem text, steps): correctness labels} where they are known.

    Raises InputError naming problem and candidate where `correct` is missing.
    """
    ids, count_P, units, labels, texts = [], array("i"), collections.defaultdict(set), [], set()
    right_n, finished_n, blank_n, repeats_n, answer_n, steps_n, length_n = (array(kind) for kind in "bbbbiii")
    scores, having = collections.defaultdict(lambda: array("d")), collections.Counter()
    for p, problem in enumerate(problems):
        ids.append(problem.id), texts.add(hash(problem.problem)), count_P.append(len(problem.candidates))
        number = {text: i for i, text in enumerate(dict.fromkeys(c.answer for c in problem.candidates))}
        for n, c in enumerate(problem.candidates):
            if c.correct is None and c.finished:
                place = f"pool: problem {problem.id}: candidates[{n}].correct"
                raise InputError(f"{place}: nobody graded it; checker=math grades the answers against the problem's")
            right_n.append(c.outcome == 1), finished_n.append(c.finished), blank_n.append(is_blank(c.answer))
            answer_n.append(answer_groups[p][n] if answer_groups else number[c.answer])
            repeats_n.append(problem.problem.strip() in c.steps[0])
            steps_n.append(len(c.steps)), length_n.append(sum(map(len, c.steps)))
            for name, score_T in c.step_scores.items():
                scores[name].extend(score_T)
            having.update(c.step_scores.keys())
            labels += [step_labels[problem.problem, c.steps]] if step_labels else []
        for name in {name for c in problem.candidates for name in c.step_scores}:
            units[name].add(problem.scores_unit.get(name))
    count_P, right_n, steps_n, length_n = map(np.array, (count_P, right_n, steps_n, length_n))
    finished_n, blank_n = np.array(finished_n, bool), np.array(blank_n, bool)
    has_answers, present_PN = not blank_n.all(), np.arange(count_P.max()) < count_P[:, None]

    def spread(x_n, empty, dtype):
        x_PN = np.full(present_PN.shape, empty, dtype)
        x_PN[present_PN] = x_n
        return x_PN

    silent_n = blank_n & has_answers
    eligible_n = finished_n & ~silent_n
    dropped = {"missing": present_PN.size - len(right_n), "unfinished": int((~finished_n).sum())}
    return Pool(
        ids,
        spread(right_n & eligible_n, 0, np.float32),
        present_PN,
        spread(eligible_n, False, bool),
        spread(np.where(eligible_n, answer_n, -1), -1, np.int32) if has_answers else None,
        dropped | {"without_answer": int(silent_n.sum())},
        finished_n,
        steps_n,
        length_n,
        np.array(repeats_n, bool),
        {name: np.frombuffer(scores[name]) for name in sorted(having) if having[name] == len(right_n)},
        units,
        {name: len(right_n) - n for name, n in sorted(having.items()) if n < len(right_n)},
        len(ids) - len(texts),
        labels if step_labels else None,
    )


def log_scores(pool: Pool, name: str, unit: str, of=slice(None)) -> tuple[np.ndarray, np.ndarray, str]:
    """(step_PNT, mask_PNT, unit) as `rerank.aggregate` takes them, of the step scores `name` of the problems `of`: log-odds as
    they are, of other units the log-probability."""
    end_n = np.concatenate([[0], np.cumsum(pool.steps_n)])
    first, last = (pool.present_PN[:p].sum() for p in of.indices(len(pool.ids))[:2])
    steps_PN = np.zeros(pool.present_PN[of].shape, int)
    steps_PN[pool.present_PN[of]] = pool.steps_n[first:last]
    mask_PNT = np.arange(pool.steps_n.max()) < steps_PN[..., None]
    score_PNT = np.zeros(mask_PNT.shape)
    score_PNT[mask_PNT] = pool.scores[name][end_n[first] : end_n[last]]
    with np.errstate(over="ignore", divide="ignore"):  # log-odds beyond float32 are as certain as infinite ones
        if np.isinf(UNITS[unit].low):
            return score_PNT.astype(np.float32), mask_PNT, "logit"
        logp_PNT = np.log(as_probability(score_PNT, unit), where=mask_PNT, out=np.zeros_like(score_PNT))
        return logp_PNT.astype(np.float32), mask_PNT, "logp"


def solution_scores(pool: Pool, name: str, unit: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """({aggregator: score_PN}, which candidates have a step of probability 0): a few problems at a time, padded to whole ones."""
    score, is_zero_PN = {how: [] for how in rerank.AGGREGATORS}, []
    at_once = max(1, PLACES // (pool.present_PN.shape[1] * pool.steps_n.max()))
    for at in range(0, len(pool.ids), at_once):
        step_PNT, mask_PNT, kind = log_scores(pool, name, unit, slice(at, at + at_once))
        is_zero_PN.append((step_PNT == -np.inf).any(-1))
        for how, x_PN in rerank.aggregate_all(step_PNT, mask_PNT, tuple(rerank.AGGREGATORS), unit=kind).items():
            score[how].append(np.asarray(x_PN))
    return {how: np.concatenate(x) for how, x in score.items()}, np.concatenate(is_zero_PN)


def measure(pool: Pool, scorers: list[str], rules: Rules, seed: int, value_scorers=(), outcome_scorers=()) -> dict:
    """Every number of a pool under the step scores named in `scorers`: the results.json of task=best_of_n.

    Where the pool has correctness labels, `trace` counts winners without a wrong step, `chosen` is what traces.py says of them,
    and step scores are calibrated against them; otherwise, and those of `value_scorers`, which estimate chances of success,
    against the outcome of a step's solution. `outcome_scorers` have learned the outcome at the last step, so their headline
    aggregator is `last`.
    """
    headline = {scorer: "last" if scorer in outcome_scorers else rules.aggregator for scorer in scorers}
    P, N = pool.right_PN.shape
    golds = {"best_of_n": pool.right_PN} | ({"trace": right_traces(pool)} if pool.labels else {})
    mask_PN = None if pool.present_PN.all() else pool.present_PN  # None is computed faster
    sizes, k_vote = sorted({2**k for k in range(N.bit_length())} | {N}), jax.random.key(seed)
    # A number's path in the results -> {n: its value_P}, its mean (and interval) for every n = 1..N.
    value, curve = {}, {}

    def exact(name, x_Pn, is_headline=True):
        x_Pn = np.asarray(x_Pn, float)
        value[name] = {n: x_Pn[:, n - 1] for n in sizes}
        curve[name] = {"curve": x_Pn.mean(0).tolist()}
        if is_headline:
            curve[name]["curve_interval"] = stats.mean_interval(x_Pn, seed).tolist()

    def drawn(name, log_weight_PN=None):  # the votes without a closed form
        args = pool.answer_PN, pool.right_PN, log_weight_PN, mask_PN, np.array(sizes)
        x_Pn = votes.vote_curve(k_vote, *args, draws=rules.vote_draws, ties=rules.ties, counts=rules.counts)
        value[name] = dict(zip(sizes, np.asarray(x_Pn, float).T, strict=True))

    exact(("oracle",), rerank.pass_at_n(pool.right_PN, pool.eligible_PN, mask_PN))
    result = {
        "n_problems": P,
        "n_candidates": N,
        "mean": float((pool.right_PN.sum(-1) / pool.present_PN.sum(-1)).mean()),
        **{field.name: getattr(rules, field.name) for field in dataclasses.fields(Rules)},
        "vote_counts": rules.counts,
        "headline": headline,
        "dropped": pool.dropped,
        "scores_units": {},
        "zero_scores": {},
        "reward_kl": {},
        "calibration": {},
        "length_correlation": {},
    }
    if pool.labels:
        outcomes = np.where(pool.finished_n, pool.right_PN[pool.present_PN], None)
        result["step_shares"] = standing.step_shares(pool.labels, outcomes)
    ended_n, by_headline = pool.finished_n, {}
    problem_n = np.argwhere(pool.present_PN)[ended_n, 0]
    # A first step that repeats the problem makes a candidate longer, and its scores other ones: length is compared apart.
    result["repeat_the_problem"] = int(pool.repeats_n.sum())
    if pool.answer_PN is None:
        result["majority_rule"] = "none: no candidate has an answer"
    elif rules.ties == "share" and N <= votes.EXACT_VOTE_SIZE:
        result["majority_rule"] = "exact over all subsets"
        exact(("majority",), votes.majority_curve(pool.answer_PN, pool.right_PN, mask_PN, counts=rules.counts))
    else:
        result["majority_rule"] = f"mean of {rules.vote_draws} random subsets"
        drawn(("majority",))
    for scorer in scorers:
        result["scores_units"][scorer] = unit = pool.unit(scorer, rules.scores_unit)
        score_PN, is_zero_PN = solution_scores(pool, scorer, unit)
        result["zero_scores"][scorer] = int((is_zero_PN & pool.eligible_PN).any(-1).sum())
        for how in rerank.AGGREGATORS:
            x_PN, name = score_PN[how], ("scorers", scorer, how)
            for rule, gold_PN in golds.items():
                best_Pn = rerank.best_of_n(x_PN, gold_PN, pool.eligible_PN, mask_PN, ties=rules.ties)
                exact((*name, rule), best_Pn, how == headline[scorer])
            if pool.answer_PN is not None and how == headline[scorer]:
                drawn((*name, "weighted_vote"), x_PN)
            elif pool.answer_PN is not None:
                law_PN = votes.vote(pool.answer_PN, x_PN, ties=rules.ties, counts=rules.counts)
                value[*name, "weighted_vote"] = {N: np.asarray(rerank.expectation(law_PN, pool.right_PN), float)}
        by_headline[scorer] = score_PN[headline[scorer]]
        given = by_headline[scorer], pool.right_PN, pool.present_PN, pool.eligible_PN, mask_PN
        laws = reward_against_kl(*given, np.array(sizes), rules.ties)
        by_beta, by_n = jax.tree.map(lambda x: np.asarray(x).tolist(), laws)
        by_beta |= {"beta": BETA_b.tolist()}
        result["reward_kl"][scorer] = {"reweighted": by_beta, "best_of_n": by_n | {"n": sizes}}
        score_n, right_n = (np.asarray(x_PN)[pool.present_PN][ended_n] for x_PN in (by_headline[scorer], pool.right_PN))
        group_n3 = np.stack([problem_n, right_n, pool.repeats_n[ended_n]], -1)
        about_length = standing.length_correlation(score_n, pool.length_n[ended_n], group_n3, problem_n, seed)
        result["length_correlation"][scorer] = about_length
        result["calibration"][scorer] = calibration(pool, scorer, unit, score_PN, scorer not in value_scorers)
    if pool.labels:
        result["chosen"] = traces.measure(pool, by_headline, golds["trace"], rules, seed)

    # The same resampled problems for every number, so that all differences are paired.
    value_PX = np.stack([x_P for by_size in value.values() for x_P in by_size.values()], -1)
    columns = value_PX.mean(0), *stats.mean_interval(value_PX, seed), rerank.subset_band(value_PX)
    rows = iter(np.stack(columns, -1).tolist())
    for name, by_size in value.items():
        *path, rule = name
        place = functools.reduce(lambda table, part: table.setdefault(part, {}), path, result)
        # Beside best_of_n its siblings are `band`, `interval`, `curve`, of headlines `curve_interval` [lows, highs]; beside other
        # rules `RULE_band` and so on.
        before = "" if rule == "best_of_n" else f"{rule}_"
        mean, low, high, band = zip(*[next(rows) for _ in by_size])
        for key, numbers in ((rule, mean), (f"{before}interval", zip(low, high)), (f"{before}band", band)):
            place[key] = dict(zip(map(str, by_size), numbers, strict=True))
        for key, numbers in curve.get(name, {}).items():
            place[f"{before}{key}"] = numbers
    written = lambda name: ".".join(part for part in name if part != "scorers")
    pairs = [(a, b, n) for a, b, at_all in comparisons(list(value), headline) for n in (sizes if at_all else [N])]
    a_PX, b_PX = (
        (np.stack([value[pair[side]][pair[2]] for pair in pairs], -1) for side in (0, 1)) if pairs else ((), ())
    )
    tests = zip(pairs, stats.paired_differences(a_PX, b_PX, seed) if pairs else (), strict=True)
    result["differences"] = [{"a": written(a), "b": written(b), "n": n} | test for (a, b, n), test in tests]
    return result


def right_traces(pool: Pool) -> np.ndarray:
    """trace_PN: 1 for a right candidate without a wrong step (Uesato et al. 2022's trace, here with the answer)."""
    trace_PN = pool.right_PN.copy()
    trace_PN[pool.present_PN] *= [metrics.labelled_steps(label_T)[1] == -1 for label_T in pool.labels]
    return trace_PN


def comparisons(names, headline: dict[str, str]):
    """(a, b, whether at every size): at the pool's size every rule with the majority vote, every aggregator with its scorer's
    headline one, and the headline's weighted vote with its selection; at every size the headline selections with the majority
    vote and in pairs."""
    selections = [("scorers", scorer, how, "best_of_n") for scorer, how in headline.items()]
    for name in names:
        if name[0] != "scorers":
            continue
        own = (*name[:2], headline[name[1]], "best_of_n")
        if ("majority",) in names and name[3] != "trace":
            yield name, ("majority",), name == own
        if name != own and (name[3] == "best_of_n" or name[2:] == (own[2], "weighted_vote")):
            yield name, own, False
    yield from ((a, b, True) for a, b in itertools.combinations(selections, 2))


@functools.partial(jax.jit, static_argnames="ties")
def reward_against_kl(score_PN, right_PN, present_PN, eligible_PN, mask_PN, size_n, ties: str) -> tuple[dict, dict]:
    """Expected accuracy and mean score against KL from the uniform law: (of KL-reweighting by BETA_b, of best-of-n by size_n).

    Gao et al. 2023, figures 1 and 2, with a gold label for the gold reward. KL in nats, means over problems; the reference
    of both is uniform over a problem's candidates, eligible or not. `score` is the aggregated score that the laws climb, in
    nats: the mean over what can win and has a finite score, of the problems where something does.
    """

    def means(law_PN, kl_P):
        accuracy_P = rerank.expectation(law_PN, right_PN * eligible_PN)
        score_P = rerank.mean_score(law_PN, score_PN, eligible_PN)
        return {"kl": kl_P.mean(), "accuracy": accuracy_P.mean(), "score": jnp.nanmean(score_P)}

    def best_of(n):
        law_PN = rerank.winner_probs(score_PN, n, eligible_PN, mask_PN, ties=ties)
        kl_P = rerank.kl_divergence(law_PN, present_PN / present_PN.sum(-1, keepdims=True))
        return means(law_PN, kl_P)

    def tilted(beta):
        law = rerank.reweight(score_PN, beta, None, eligible_PN, mask_PN)
        return means(law.weight_PN, law.kl_P)

    return jax.lax.map(tilted, jnp.asarray(BETA_b, jnp.float32)), jax.lax.map(best_of, size_n)


def calibration(pool: Pool, scorer: str, unit: str, score_PN, by_labels: bool) -> dict:
    """Reliability, ECE and Brier score of step scores as P(good), and of exp(solution score) against the outcome, by
    aggregator (of those whose score is the log of a probability); of what has an outcome."""
    ended_n = pool.finished_n
    right = pool.right_PN[pool.present_PN][ended_n].astype(float)
    solutions = {
        how: calibration_numbers(np.exp(np.asarray(score_PN[how], float)[pool.present_PN][ended_n]), right)
        for how, aggregator in rerank.AGGREGATORS.items()
        if aggregator.is_log_probability
    }
    kept_m, y_m = np.repeat(ended_n, pool.steps_n), np.repeat(right, pool.steps_n[ended_n])
    if exact := pool.labels is not None and by_labels:
        kept_m, y_m = pool.labelled()
    steps = calibration_numbers(as_probability(pool.scores[scorer][kept_m], unit), y_m)
    return {"solutions": solutions, "steps": steps, "step_label": "exact" if exact else "outcome"}


def calibration_numbers(p, y) -> dict:
    p = np.clip(p, 0.0, 1.0)  # exp(log(...)) may pass 1 by a rounding
    numbers = {"ece": metrics.ece(p, y), "brier": metrics.brier(p, y), "auroc": metrics.auroc(p, y >= 0.5)}
    return numbers | {"reliability": reliability_table(p, y)}


def reliability_table(p, y) -> dict:
    """The curve behind a figure of calibration."""
    return {name: x.tolist() for name, x in zip(("mean_score", "mean_label", "n"), metrics.reliability(p, y))}
