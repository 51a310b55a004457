"""OmegaPRM (Luo et al. 2024): the first error of a solution by bisection, and a tree of states in which to look for the next one.

Both are generators that yield a prefix, (problem, steps), and are sent its roll-outs; `in_rounds` runs many of them at once,
so that a round of all problems is one call of the policy.
"""

import dataclasses
import math
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from prm_jax.launch.config import Count, NotNegative, Positive, Share
from prm_jax.protocols import Prefix


class RollOut(NamedTuple):
    """A policy's completion of a prefix."""

    steps: tuple[str, ...]  # after those of the prefix
    answer: str | None
    right: bool  # as the checker says, which may err
    finished: bool  # not cut off
    tokens: int  # that it cost


class MC(NamedTuple):
    """Monte-Carlo estimate of a prefix's value."""

    right: int
    k: int  # roll-outs

    @property
    def share(self) -> float:
        return self.right / self.k

    def best_of(self, n: int) -> float:
        """The chance that one of n roll-outs is right, without bias (pass@n): 1 - C(wrong, n) / C(k, n); needs n <= k."""
        return 1 - math.comb(self.k - self.right, n) / math.comb(self.k, n)


def estimate(roll_outs: Sequence[RollOut]) -> MC:
    return MC(sum(r.right for r in roll_outs), len(roll_outs))


def in_rounds(searches: Sequence[Generator], complete: Callable[[list[Prefix]], list]) -> list:
    """What generators return, each of which yields prefixes one after another and is sent what `complete` says of them.

    One call of `complete` a round has the next prefix of every generator that has not returned yet.
    """
    found, answers = [None] * len(searches), dict.fromkeys(range(len(searches)))
    while answers:
        asked = {}
        for i, answer in answers.items():
            try:
                asked[i] = searches[i].send(answer)
            except StopIteration as end:
                found[i] = end.value
        answers = dict(zip(asked, complete(list(asked.values())), strict=True)) if asked else {}
    return found


def bisect(length: int, is_alive: Callable[[int], Generator]) -> Generator:
    """The index of the first of so many steps after which no roll-out is right, if all are dead and none is alive.

    is_alive(steps kept), itself such a generator, says whether any roll-out is right; it is asked at most ceil(log2 length) times.
    """
    low, high = 0, length  # kept steps that are known to be alive, to be dead
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if (yield from is_alive(middle)) else (low, middle)
    return high - 1


def find_first_error(problem: str, steps: tuple[str, ...]) -> Generator:
    """The index of the first error of a solution with a wrong answer."""

    def is_alive(kept: int):
        roll_outs = yield problem, steps[:kept]
        return any(r.right for r in roll_outs)

    return bisect(len(steps), is_alive)


@dataclasses.dataclass(frozen=True)
class Tree:
    """How a tree is searched; conf/labeling.yaml says what each key means."""

    searches: Count
    alpha: Share
    beta: Share
    length: Positive
    c_puct: NotNegative


@dataclasses.dataclass
class State:
    """A prefix that was completed."""

    mc: MC
    open: list[tuple[float, int, RollOut]]  # (Q, rank, roll-out) of those to be searched, the best one last
    visits: int = 0


@dataclasses.dataclass(frozen=True)
class Search:
    """A solution with a wrong answer that was searched for its first error."""

    steps: tuple[str, ...]
    answer: str | None
    start: int  # its steps in the state whose roll-out it was
    q: float
    u: float
    first_error: int  # index of a step


def quality(share: float, r: RollOut, cfg: Tree) -> float:
    """Q = alpha^(1 - MC) beta^(words / L): wrong roll-outs from states that mostly go right, and short ones, come first.

    The paper counts tokens; words, as OpenR counts, are known of solutions that nobody tokenised.
    """
    return cfg.alpha ** (1 - share) * cfg.beta ** (len(" ".join(r.steps).split()) / cfg.length)


def exploration(state: State, visits: int, cfg: Tree) -> float:
    """U = c_puct sqrt(visits of all states) / (1 + visits of this one)."""
    return cfg.c_puct * math.sqrt(visits) / (1 + state.visits)


def grow(problem: str, given: Sequence[RollOut], k: int, cfg: Tree) -> Generator:
    """({steps of each state: State}, [every Search, one after another]) of the tree of one problem.

    Each search takes, of the states with 0 < MC < 1, the wrong roll-out with the highest Q + U and bisects it; states on the
    way join the tree. The root's roll-outs are the `given` solutions and, if these are less than k, completions. No text is
    searched twice, and none that was cut off: nobody knows whether it would have been wrong.
    """
    states, paths, known = {}, [], set()

    def add(steps: tuple[str, ...], roll_outs: Sequence[RollOut]):
        mc, fresh = estimate(roll_outs), []
        for r in roll_outs if 0 < mc.right < mc.k else ():
            if r.steps and r.finished and not r.right and (*steps, *r.steps) not in known:
                known.add((*steps, *r.steps))
                fresh.append((quality(mc.share, r, cfg), -len(fresh), r))
        states[steps] = State(mc, sorted(fresh))

    roll_outs = list(given) if len(given) >= k else [*given, *(yield problem, ())]
    add((), roll_outs)
    while len(paths) < cfg.searches and (left := [item for item in states.items() if item[1].open]):
        visits = sum(state.visits for state in states.values())
        start, state = max(left, key=lambda item: item[1].open[-1][0] + exploration(item[1], visits, cfg))
        u, (q, _, r) = exploration(state, visits, cfg), state.open.pop()
        state.visits += 1

        def is_alive(kept: int, start=start, r=r):
            steps = (*start, *r.steps[:kept])
            if steps not in states:
                add(steps, (yield problem, steps))
            return states[steps].mc.right > 0

        error = len(start) + (yield from bisect(len(r.steps), is_alive))
        paths.append(Search((*start, *r.steps), r.answer, len(start), q, u, error))
    return states, paths
