"""A script that chooses what to have labelled next: wrong answers that a verifier takes for right (active
learning, Lightman et al. 2023, section 4).

    python -m prm_jax.sampling input=questions.jsonl checkpoint=POLICY n=64 hydra.run.dir=pool
    python -m examples.mining --checkpoint RUN --pool pool/pool.jsonl
    python -m prm_jax.labeling input=mined.jsonl checkpoint=POLICY     # or people, or examples/relabel.py

Of each problem's different solutions it keeps the highest-scored with a wrong answer, up to the share WRONG,
then the highest-scored of the rest. mined.jsonl and uniform.jsonl are pools with equally many solutions of
each problem, to compare what the two teach. Dimension key: N samples of a problem.
"""

import argparse
import dataclasses

import numpy as np

import prm_jax
from prm_jax.data.pools import Candidate, read_pool, write_pool
from prm_jax.rerank import solution_scores

KEPT = 5  # different solutions of a problem
WRONG = 0.8  # share of them with a wrong answer


def different(candidates: tuple[Candidate, ...]) -> list[int]:
    """Indices of the different solutions, of equal ones the first."""
    steps = [candidate.steps for candidate in candidates]
    return [n for n, own in enumerate(steps) if steps.index(own) == n]


def mine(candidates: tuple[Candidate, ...], score_N: np.ndarray, kept: int, wrong: float) -> list[int]:
    """Indices of `kept` different solutions. Of equal scores the first comes first; what was cut is not known
    to be wrong."""
    ranked = sorted(different(candidates), key=lambda n: -score_N[n])
    chosen = [n for n in ranked if candidates[n].outcome == 0][: round(kept * wrong)]
    return chosen + [n for n in ranked if n not in chosen][: kept - len(chosen)]


def main():
    parser = argparse.ArgumentParser(description="Choose solutions to have labelled next.")
    parser.add_argument("--checkpoint", help="as in evaluate.py; the newest finished run if it is left out")
    parser.add_argument("--pool", required=True, help="graded candidates")
    parser.add_argument("--aggregator", default="prod")
    args = parser.parse_args()
    verifier = prm_jax.load(args.checkpoint, aggregator=args.aggregator)
    chosen = {"mined": [], "uniform": []}
    for problem in read_pool(args.pool):
        candidates = problem.candidates
        log_odds = verifier.log_odds([problem.problem] * len(candidates), [c.steps for c in candidates])
        mined = mine(candidates, solution_scores(log_odds, verifier.aggregator), KEPT, WRONG)
        for name, indices in (("mined", mined), ("uniform", different(candidates)[:KEPT])):
            some = tuple(candidates[n] for n in indices)
            chosen[name].append(dataclasses.replace(problem, candidates=some))
    for name, problems in chosen.items():
        write_pool(f"{name}.jsonl", problems)
        outcomes = [c.outcome for problem in problems for c in problem.candidates]
        share = outcomes.count(0) / len(outcomes)
        print(f"{name}.jsonl: {len(outcomes)} solutions, {share:.3f} with a wrong answer")


if __name__ == "__main__":
    main()
