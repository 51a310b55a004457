"""OmegaPRM (Luo et al. 2024): bisection for a solution's first error, and a tree of states with more errors.

Both are generators that yield a prefix and are sent its roll-outs; `run_batched` runs many at once.
"""

import dataclasses
import math
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from prm_jax.launch.config import Count, NotNegative, Positive, Share
from prm_jax.protocols import Prefix


class RollOut(NamedTuple):
    """A policy's completion of a prefix."""

    steps: tuple[str, ...]  # without those of the prefix
    answer: str | None
    right: bool  # by the checker, which may err
    finished: bool  # not cut off
    tokens: int  # its cost


class MC(NamedTuple):
    """Monte-Carlo estimate of a prefix's value."""

    right: int
    k: int  # roll-outs

    @property
    def share(self) -> float:
        return self.right / self.k

    def best_of(self, n: int) -> float:
        """Unbiased P(any of n roll-outs is right), pass@n: 1 - C(wrong, n) / C(k, n); n <= k."""
        return 1 - math.comb(self.k - self.right, n) / math.comb(self.k, n)


def estimate(roll_outs: Sequence[RollOut]) -> MC:
    return MC(sum(r.right for r in roll_outs), len(roll_outs))


def run_batched(searches: Sequence[Generator], complete: Callable[[list[Prefix]], list]) -> list:
    """Runs generators that yield prefixes and are sent `complete`'s result for each; returns what they
    return. Each round is one call of `complete` with the next prefix of every unfinished generator."""
    results, replies = [None] * len(searches), dict.fromkeys(range(len(searches)))
    while replies:
        prefixes = {}
        for i, reply in replies.items():
            try:
                prefixes[i] = searches[i].send(reply)
            except StopIteration as end:
                results[i] = end.value
        replies = dict(zip(prefixes, complete(list(prefixes.values())), strict=True)) if prefixes else {}
    return results


def bisect(length: int, is_alive: Callable[[int], Generator]) -> Generator:
    """Binary search for the first of `length` steps whose prefix has no correct roll-out. The empty prefix
    counts as alive, the whole solution as dead. is_alive(number of steps), itself such a generator, says
    whether any roll-out of the prefix is correct; it runs at most ceil(log2 length) times."""
    low, high = 0, length  # lengths of an alive and of a dead prefix
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
class TreeConfig:  # settings of the tree; conf/labeling.yaml says what each key means
    searches: Count
    alpha: Share
    beta: Share
    length: Positive
    c_puct: NotNegative


@dataclasses.dataclass
class State:
    """A completed prefix."""

    mc: MC
    pending: list[
        tuple[float, int, RollOut]
    ]  # (Q, rank, roll-out) of those to be searched, the best one last
    visits: int = 0


def quality(share: float, r: RollOut, cfg: TreeConfig) -> float:
    """Q = alpha^(1 - MC) beta^(words / L): high for short wrong roll-outs from states that mostly go right.
    The paper counts tokens; words, as OpenR counts, are known without a tokenizer."""
    return cfg.alpha ** (1 - share) * cfg.beta ** (len(" ".join(r.steps).split()) / cfg.length)


def build_tree(problem: str, solutions: Sequence[RollOut], k: int, cfg: TreeConfig) -> Generator:
    """Searches the tree of one problem; returns ({steps: State}, [(steps, answer, search) of each searched
    solution]).

    Each search bisects the wrong roll-out with the highest Q + U, U = c_puct sqrt(visits of all states) / (1
    + visits of this one), among the states with 0 < MC < 1; the states that it visits join the tree. The
    root's roll-outs are `solutions` and, where these are less than k, completions. No text is searched twice,
    and none that was cut off, since it might have become right. search: start, the state's number of steps;
    first_error, a step's index; q; u."""
    states, paths, seen = {}, [], set()

    def add(steps: tuple[str, ...], roll_outs: Sequence[RollOut]):
        mc, pending = estimate(roll_outs), []
        for r in roll_outs if 0 < mc.right < mc.k else ():
            if r.steps and r.finished and not r.right and (*steps, *r.steps) not in seen:
                seen.add((*steps, *r.steps))
                pending.append((quality(mc.share, r, cfg), -len(pending), r))
        states[steps] = State(mc, sorted(pending))

    add((), list(solutions) if len(solutions) >= k else [*solutions, *(yield problem, ())])
    while len(paths) < cfg.searches and any(state.pending for state in states.values()):
        scale = cfg.c_puct * math.sqrt(sum(state.visits for state in states.values()))
        u = {steps: scale / (1 + state.visits) for steps, state in states.items() if state.pending}
        start = max(u, key=lambda steps: states[steps].pending[-1][0] + u[steps])
        q, _, r = states[start].pending.pop()
        states[start].visits += 1

        def is_alive(kept: int, start=start, r=r):
            steps = (*start, *r.steps[:kept])
            if steps not in states:
                add(steps, (yield problem, steps))
            return states[steps].mc.right > 0

        error = len(start) + (yield from bisect(len(r.steps), is_alive))
        search = {"start": len(start), "first_error": error, "q": q, "u": u[start]}
        paths.append(((*start, *r.steps), r.answer, search))
    return states, paths
