"""Search at test time: policy tokens go where a verifier's scores of the steps so far are high.

Every method is written against two functions, `policy.extend` and `scorer.score` (protocols.py), and goes through all problems at
once: one call of each a round. `budget` is the mean number of policy tokens a problem. An entry of METHODS says how it searches and
what it makes of a budget; `search` spends what a first search leaves, so that methods compare at equal cost. The finished
solutions are a pool, from which the final choice is made: the best score, or a weighted vote (rerank.py, votes.py).

Dimension key: P problems.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np

from prm_jax.generate.mcts import mcts
from prm_jax.generate.search_state import Node, SearchState
from prm_jax.launch.config import Count, Positive, Share
from prm_jax.protocols import Policy

# The methods. Each searches the given problems (their numbers) once, at a cost that its plan fixes.


def best_of_n(state: SearchState, problems: Iterable[int], width: int):
    """Samples `width` whole solutions."""
    state.grow([Node(p) for p in problems], width, "end")


def beam(state: SearchState, problems: Iterable[int], width: int, branch: int, groups=1, block=1, ahead=0):
    """Searches step by step with a beam (Snell et al. 2024) in `groups` apart: 1 is plain, width / branch is DVTS (Beeching
    et al. 2024).

    Each group starts with width / groups samples, keeps its best width / (groups branch), samples `branch` of each, and so on;
    what ends leaves the beam. A step's worth is its value, or that of the node that `ahead` more greedy steps reach
    (lookahead). `block`: tokens between two choices at least, rounded up to a step; 1: every step. Long blocks with a value or
    outcome model are value-guided search (2505.17373).
    """
    keep = max(1, width // (groups * branch))
    beams, n = [(Node(p), group) for p in problems for group in range(groups)], width // groups
    for _ in range(state.max_steps):
        children, n = state.grow([node for node, _ in beams], n, block=block), branch
        nodes, groups_of = [], []
        for (_, group), siblings in zip(beams, children, strict=True):
            nodes += (still_open := [node for node in siblings if node.is_open])
            groups_of += [group] * len(still_open)
        if ahead:
            nodes = state.look_ahead(nodes, ahead)
        rivals = collections.defaultdict(list)
        for node, group in zip(nodes, groups_of, strict=True):
            rivals[node.problem, group].append(node)
        by_value = {key: sorted(nodes, key=lambda node: node.value) for key, nodes in rivals.items()}
        beams = [(node, group) for (_, group), nodes in by_value.items() for node in nodes[-keep:]]
        if not beams:
            break


@dataclasses.dataclass(frozen=True)
class Options:
    """What the methods leave open; conf/task/search.yaml says what each key means."""

    branch: Count
    ahead: Count
    block: Count
    simulations: Count
    rule: Literal["puct", "gumbel"]
    stop_at: Share | None
    first: Positive


@dataclasses.dataclass(frozen=True)
class Method:
    """A search, and how it spends a budget."""

    run: Callable  # run(state, problems, **arguments)
    plan: Callable  # plan(width, options) -> arguments
    cost: Callable = lambda options: 1  # whole solutions that a unit of width costs, before this is measured
    step: Callable = lambda options: 1  # by how much the widths that `plan` tells apart differ


def plan_beam(width: int, options: Options, apart: bool = False, block: int = 1, ahead: int = 0) -> dict:
    """`width` samples a step, `branch` of each node kept: a multiple of options.branch, or fewer than it of one node.

    `apart`: each node kept is a group of its own.
    """
    branch = min(width, options.branch)
    keep = width // branch
    groups = keep if apart else 1
    return {"width": keep * branch, "branch": branch, "groups": groups, "ahead": ahead, "block": block}


def plan_mcts(width: int, options: Options) -> dict:
    return {"simulations": options.simulations, "branch": min(options.branch, width), "rule": options.rule}


def branch_of(options: Options) -> int:
    return options.branch


METHODS = {
    "best_of_n": Method(best_of_n, lambda width, options: {"width": width}),
    "beam": Method(beam, plan_beam, step=branch_of),
    "dvts": Method(beam, lambda n, options: plan_beam(n, options, apart=True), step=branch_of),
    "lookahead": Method(
        beam, lambda n, options: plan_beam(n, options, ahead=options.ahead), lambda o: 1 + o.ahead, branch_of
    ),
    "vgs": Method(beam, lambda n, options: plan_beam(n, options, apart=True, block=options.block), step=branch_of),
    "mcts": Method(mcts, plan_mcts),
}


def plan(method: str, budget: float, per_solution: float, options: Options) -> dict:
    """The arguments with which a method spends `budget` policy tokens a problem, before its cost is measured.

    per_solution: the policy's mean tokens of a whole solution.
    """
    unit = per_solution * METHODS[method].cost(options)
    return METHODS[method].plan(max(1, int(budget / unit)), options)


def tokens_per_solution(policy: Policy, problems: Sequence[str], key, n: int = 2) -> float:
    """The policy's mean tokens of a whole solution, from n samples of each problem."""
    state = SearchState(policy, None, problems, "prod", 1, key)
    state.write([Node(p) for p in range(len(problems))], n, "end")
    return state.tokens_P.mean() / n


def search(state: SearchState, method: str, budget: float, per_solution: float, options: Options):
    """Spends `budget` policy tokens a problem, in the mean of all problems, by a method of METHODS.

    Every second problem is searched first, by the width that per_solution pays for. What a unit of width cost them sets the
    width of the others. Problems that left more than a unit costs at most are searched again; the last tokens pay for one
    whole solution each of the problems that took least. With options.stop_at `search_unsolved` spends the budgets.
    """
    state.budget, state.per_solution, state.stop_at = budget, per_solution, options.stop_at
    if options.stop_at is not None:
        return search_unsolved(state, method, budget, options)
    P = len(state.problems)
    # Tokens of a unit of width: at most, as far as is known before a search, and as the first half of the problems had it.
    unit = measured = per_solution * METHODS[method].cost(options)
    for problems in filter(None, (list(range(0, P, 2)), list(range(1, P, 2)))):
        left = budget * P - state.tokens_P.sum()
        width = max(1.0, min(budget, left / len(problems)) / measured)
        measured = search_by_width(state, method, problems, width, options) / width
    while measured:  # 0: a server's empty texts
        left, least_first = budget * P - state.tokens_P.sum(), sorted(range(P), key=lambda p: state.tokens_P[p])
        problems = [p for p in least_first if state.tokens_P[p] + unit <= budget]
        if problems and left >= unit * len(problems):
            width = min(left, sum(budget - state.tokens_P[problems])) / len(problems) / unit
        else:
            lengths = [[x.tokens for x in state.finished(p)] or [per_solution] for p in least_first]
            method, width, unit = "best_of_n", 1.0, per_solution
            problems = least_first[: np.searchsorted(np.cumsum([np.mean(x) for x in lengths]), left)]
        if not problems or not search_by_width(state, method, problems, width, options):
            break


def search_by_width(state: SearchState, method: str, problems: list[int], width: float, options: Options) -> float:
    """Searches each problem once, by the plan of `width` whole solutions: of 2.1 a tenth of the problems has 3, the others 2.

    Returns the mean tokens spent.
    """
    step = METHODS[method].step(options) if width >= METHODS[method].step(options) else 1
    before, low = state.tokens_P.sum(), int(width / step) * step
    n_more = round((width - low) / step * len(problems))
    for n, part in ((low + step, problems[:n_more]), (low, problems[n_more:])):
        if part:
            METHODS[method].run(state, part, **METHODS[method].plan(n, options))
            state.finish_unsolved(part)
    return float(state.tokens_P.sum() - before) / len(problems)


def search_unsolved(state: SearchState, method: str, budget: float, options: Options):
    """Spends the budgets of all problems as one: each problem is searched by the plan of the share options.first; what is left
    goes to further searches, by the same plan, of the problems that have no finished solution of at least the probability
    options.stop_at, those that took least first."""
    P, arguments = len(state.problems), plan(method, options.first * budget, state.per_solution, options)
    problems = list(range(P))
    while problems:
        before = state.tokens_P.sum()
        METHODS[method].run(state, problems, **arguments)
        state.finish_unsolved(problems)
        left, cost = budget * P - state.tokens_P.sum(), (state.tokens_P.sum() - before) / len(problems)
        if not cost:  # a server's empty texts would go on for ever
            break
        least_first = sorted(filter(state.goes_on, range(P)), key=lambda p: state.tokens_P[p])
        problems = least_first[: max(0, int(left / cost))]
