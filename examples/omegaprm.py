"""A script that builds OmegaPRM's tree of each problem (Luo et al. 2024): wrong roll-outs, each bisected for
its first error, and the values of the states on the way.

    python -m prm_jax.sampling input=questions.jsonl n=8 hydra.run.dir=pool
    python -m examples.omegaprm --input pool/pool.jsonl --checkpoint embedded
    python train.py data=jsonl data.path=tree.jsonl data.label_kind=value

label=first_error of prm_jax.labeling bisects given solutions; the tree looks for more among the completions.
A row is a searched solution; each state's value labels the first row through it, and the last step has 0."""

import argparse
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

from prm_jax.data.pools import Problem, read_pool
from prm_jax.data.questions import make_candidate
from prm_jax.data.writing import write_rows
from prm_jax.formats import read_format
from prm_jax.generate.sampling import Sampling, open_policy
from prm_jax.launch import cli
from prm_jax.tasks.checkers import is_own, open_grader

K = 8  # roll-outs of a state
SEARCHES = 100  # at most this many wrong roll-outs are bisected in a problem's tree
ALPHA, BETA, LENGTH = 0.5, 0.9, 500  # Q = ALPHA^(1 - MC) BETA^(words / LENGTH)
LAW = Sampling(temperature=1.0, top_k=None, top_p=1.0, max_tokens=256)
C_PUCT = 0.125  # U = C_PUCT sqrt(visits of all states) / (1 + visits of this one)

Steps = tuple[str, ...]


class RollOut(NamedTuple):
    steps: Steps  # with those of its state
    right: bool
    finished: bool = True


@dataclasses.dataclass
class State:
    """A prefix with its roll-outs."""

    value: float  # share of right ones
    pending: list[tuple[float, int, Steps]]  # (Q, -rank, steps) of those to be searched, the best one last
    visits: int = 0


def grow_tree(roots: list[RollOut], complete: Callable) -> tuple[dict[Steps, State], list[Steps]]:
    """The states and searched solutions of a problem, from roll-outs of it; complete(steps) draws K more.

    Each search bisects the wrong roll-out with the highest Q + U of the states with 0 < value < 1; the states
    that it visits join the tree. No text is searched twice, and none that was cut off, since it might have
    become right. The paper counts tokens; words, as OpenR counts, are known without a tokenizer."""
    states, paths, seen = {}, [], set()

    def add(steps: Steps, roll_outs: list[RollOut]):
        value, pending = sum(r.right for r in roll_outs) / len(roll_outs), []
        for r in roll_outs if 0 < value < 1 else ():
            if r.finished and not r.right and r.steps != steps and r.steps not in seen:
                seen.add(r.steps)
                words = len(" ".join(r.steps[len(steps) :]).split())
                q = ALPHA ** (1 - value) * BETA ** (words / LENGTH)
                pending.append((q, -len(pending), r.steps))
        states[steps] = State(value, sorted(pending))

    add((), roots if len(roots) >= K else [*roots, *complete(())])
    while len(paths) < SEARCHES and any(state.pending for state in states.values()):
        scale = C_PUCT * math.sqrt(sum(state.visits for state in states.values()))
        score = {s: x.pending[-1][0] + scale / (1 + x.visits) for s, x in states.items() if x.pending}
        start = max(score, key=score.get)
        steps = states[start].pending.pop()[2]
        states[start].visits += 1
        alive, dead = len(start), len(steps)  # lengths of a prefix with a right roll-out and of one without
        while dead - alive > 1:
            middle = (alive + dead) // 2
            if steps[:middle] not in states:
                add(steps[:middle], complete(steps[:middle]))
            alive, dead = (middle, dead) if states[steps[:middle]].value > 0 else (alive, middle)
        paths.append(steps)
    return states, paths


def tree_rows(problem: Problem, states: dict[Steps, State], paths: list[Steps]) -> Iterator[dict]:
    """A native row of each searched solution."""
    value_of = {steps: state.value for steps, state in states.items()}
    for i, steps in enumerate(paths):
        labels = [value_of.pop(steps[:t], None) for t in range(1, len(steps))]
        row = {"id": f"{problem.id}/tree/{i}", "prompt": problem.problem, "completions": list(steps)}
        yield row | {"labels": [*labels, 0.0], "outcome": 0.0, "label_kind": "value"}


def label_problems(problems: list[Problem], policy, grade: Callable, seed: int = 0) -> Iterator[dict]:
    """The rows of all problems. A state's completions draw with its number, apart from the pool's draws."""
    numbers = itertools.count()
    for problem in problems:

        def complete(steps: Steps, problem=problem) -> list[RollOut]:
            prefix, key = (problem.problem, steps), jax.random.fold_in(jax.random.key(seed), 1)
            (samples,) = policy.extend([prefix], K, "end", key, [next(numbers)])
            candidates = tuple(make_candidate(policy.format, sample, steps) for sample in samples)
            graded = grade(dataclasses.replace(problem, candidates=candidates)).candidates
            return [RollOut(c.steps, bool(c.finished and c.correct), c.finished) for c in graded]

        roots = [RollOut(c.steps, c.outcome == 1) for c in problem.candidates if c.outcome is not None]
        yield from tree_rows(problem, *grow_tree(roots, complete))


def main():
    parser = argparse.ArgumentParser(description="Build OmegaPRM's trees.")
    parser.add_argument("--input", required=True, help="a pool, whose candidates are roll-outs of the root")
    parser.add_argument("--checkpoint", default="embedded", help="the policy, as in prm_jax.sampling")
    parser.add_argument("--checker", help="as in prm_jax.sampling")
    parser.add_argument("--output", default="tree.jsonl")
    args = parser.parse_args()
    policy = open_policy(args.checkpoint, "best", read_format("plain"), "auto", LAW, K)
    grader = open_grader(args.checker, [args.input])
    pool = read_pool(args.input, as_written=is_own(grader.checker))
    write_rows(args.output, label_problems(pool, policy, grader.grade))
    print(f"{args.output}: {policy.stats.summary()}")


if __name__ == "__main__":
    cli.script(main)
