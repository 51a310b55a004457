"""Search at test time: spends policy tokens where a verifier scores the steps so far highly.

Methods are written against `policy.extend` and `scorer.score` (protocols.py) and search all problems at once,
with one call of each a round. `budget` is the mean number of policy tokens a problem. An entry of METHODS
says how a method searches and how it spends a budget; `search` repeats it until the budget is spent, so that
methods compare at equal cost. The finished solutions are a pool, from which the best score or a weighted vote
chooses (rerank.py, votes.py).

Dimension key: P problems."""

import collections
import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from prm_jax.generate.mcts import mcts
from prm_jax.generate.search_state import Node, SearchState
from prm_jax.launch.config import Count
from prm_jax.protocols import Policy

# The methods. Each searches the given problems (their numbers) once, at a cost that grows with its plan.


def best_of_n(state: SearchState, problems: Iterable[int], width: int):
    """Samples `width` whole solutions."""
    state.grow([Node(p) for p in problems], width, "end")


def beam(state: SearchState, problems: Iterable[int], width: int, branch: int, apart=False, block=1, ahead=0):
    """Beam search (Snell et al. 2024): a round samples `width` next steps, of which the best width / branch
    continue. As in search-and-learn's recipes a finished solution leaves the beam, equal texts are one, and
    where fewer are left the best are continued more often, so that each round has its width. apart: each of
    width / branch subtrees keeps its best step, and ends when that is finished (DVTS, Beeching et al. 2024).
    A step is ranked by its value, or by that of the node that `ahead` more greedy steps reach (lookahead).
    `block`: least number of tokens between two choices; long blocks with a value or outcome model are
    value-guided search (2505.17373)."""
    groups = max(1, width // branch) if apart else 1
    beams = [(Node(p), group) for p in problems for group in range(groups)]
    n = width // groups  # next steps of each beam: of the first round, then `branch`
    keep = max(1, n // branch)
    for _ in range(state.max_steps):
        children = state.grow([node for node, _ in beams], n, block=block)
        n = branch
        rivals = collections.defaultdict(dict)
        for (node, group), siblings in zip(beams, children, strict=True):
            live = [child for child in siblings if child.is_open or apart and child.finish_reason == "eos"]
            rivals[node.problem, group] |= {(child.steps, child.is_open): child for child in live}
        nodes = [node for distinct in rivals.values() for node in distinct.values()]
        values = state.look_ahead(nodes, ahead) if ahead else [node.value for node in nodes]
        value_of = dict(zip(nodes, values, strict=True))
        beams = []
        for (_, group), distinct in rivals.items():
            ranked = sorted(distinct.values(), key=value_of.get, reverse=True)
            still_open = itertools.cycle([node for node in ranked[:keep] if node.is_open])
            beams += [(node, group) for node in itertools.islice(still_open, keep)]
        if not beams:
            break


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the methods; conf/task/search.yaml says what each key means."""

    branch: Count
    ahead: Count
    block: Count
    simulations: Count


class Method(NamedTuple):
    """A search, and how it spends a budget."""

    run: Callable  # run(state, problems, **arguments)
    plan: Callable  # plan(width, options) -> arguments
    cost: Callable = lambda options: 1  # estimated cost of a unit of width in whole solutions
    step: Callable = lambda options: 1  # the least difference of widths that changes the plan


def plan_beam(width: int, options: Options, apart: bool = False, block: int = 1, ahead: int = 0) -> dict:
    """A beam of `width` samples a step, rounded down to a multiple of `branch`."""
    branch = min(width, options.branch)
    width = width // branch * branch
    return {"width": width, "branch": branch, "apart": apart, "ahead": ahead, "block": block}


BRANCH = operator.attrgetter("branch")
METHODS = {
    "best_of_n": Method(best_of_n, lambda width, o: {"width": width}),
    "beam": Method(beam, plan_beam, step=BRANCH),
    "dvts": Method(beam, lambda n, o: plan_beam(n, o, apart=True), step=BRANCH),
    "lookahead": Method(beam, lambda n, o: plan_beam(n, o, ahead=o.ahead), lambda o: 1 + o.ahead, BRANCH),
    "vgs": Method(beam, lambda n, o: plan_beam(n, o, apart=True, block=o.block), step=BRANCH),
    "mcts": Method(mcts, lambda n, o: {"simulations": o.simulations, "branch": min(o.branch, n)}),
}


def tokens_per_solution(policy: Policy, problems: Sequence[str], key, n: int = 2) -> float:
    """The mean number of tokens of a whole solution, from n samples of each problem."""
    state = SearchState(policy, None, problems, "prod", 1, key)
    state.write([Node(p) for p in range(len(problems))], n, "end")
    return state.tokens_P.mean() / n


def search(state: SearchState, method: str, budget: float, per_solution: float, options: Options):
    """Spends a mean of `budget` policy tokens a problem by a method of METHODS. Every second problem is
    searched first, with the width that per_solution pays for. Their measured cost of a unit of width sets the
    width of the others. `spend_rest` spends what is left."""
    state.budget = budget
    state.per_solution = per_solution
    if not per_solution:  # a server's empty texts would never spend the budget
        return
    P = len(state.problems)
    unit = measured = per_solution * METHODS[method].cost(options)  # tokens a unit of width
    for problems in filter(None, (list(range(0, P, 2)), list(range(1, P, 2)))):
        left = budget * P - state.tokens_P.sum()
        width = max(1.0, min(budget, left / len(problems)) / measured)
        measured = search_by_width(state, method, problems, width, options) / width
        if not measured:
            return
    spend_rest(state, method, unit, options)


def spend_rest(state: SearchState, method: str, unit: float, options: Options):
    """Searches problems with a unit's cost left again; the last tokens pay for one solution each."""
    P = len(state.problems)
    spent = 1.0
    while spent > 0:
        left = state.budget * P - state.tokens_P.sum()
        least_first = sorted(range(P), key=lambda p: state.tokens_P[p])
        problems = [p for p in least_first if state.tokens_P[p] + unit <= state.budget]
        if problems and left >= unit * len(problems):
            width = min(left, sum(state.budget - state.tokens_P[problems])) / len(problems) / unit
        else:
            method, width, unit = "best_of_n", 1.0, state.per_solution  # from here on, whole solutions
            lengths = [[x.tokens for x in state.finished(p)] or [unit] for p in least_first]
            problems = least_first[: np.searchsorted(np.cumsum([np.mean(x) for x in lengths]), left)]
        spent = search_by_width(state, method, problems, width, options) if problems else 0.0


def search_by_width(state: SearchState, method: str, problems: list, width: float, options: Options) -> float:
    """Searches each problem once with a mean `width`: 2.1 is 3 for a tenth. Returns the mean tokens."""
    chosen = METHODS[method]
    step = chosen.step(options)
    step = step if width >= step else 1
    low = int(width / step) * step
    before = state.tokens_P.sum()
    n_more = round((width - low) / step * len(problems))
    for n, part in ((low + step, problems[:n_more]), (low, problems[n_more:])):
        if part:
            chosen.run(state, part, **chosen.plan(n, options))
            state.finish_unsolved(part)
    return float(state.tokens_P.sum() - before) / len(problems)
