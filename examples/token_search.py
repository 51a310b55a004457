"""A script that searches tokens which make a verifier like a wrong solution: the gradient attack of "Reward
Under Attack" (arXiv 2603.06621), by greedy coordinate gradient (Zou et al. 2023, arXiv 2307.15043).

    python -m examples.token_search --checkpoint RUN      # or --input rows.jsonl, as in examples/attack.py

The tokens end the line that the verifier likes least. The gradient of the score by the one-hot ids says, to
first order, what each token in each of their places would add; the best few are scored as texts, and beside
them as many drawn at random. Dimension key: L tokens, D model, V vocabulary, T steps, n tokens of the suffix.
"""

import argparse
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import prm_jax
from examples.attack import Steps, is_sound, read_file, sample_task
from prm_jax import InputError
from prm_jax.api import Verifier
from prm_jax.formats import Encoded, encode
from prm_jax.heads import good_logit
from prm_jax.model import PRM
from prm_jax.packing import doubled, layout_train
from prm_jax.rerank import aggregate, solution_scores
from prm_jax.stats import bootstrap_interval

TOKENS = 4  # of the suffix
ROUNDS = 20  # replacements, of one token each
TOP_K = 64  # candidates of a round that are scored


@functools.partial(jax.jit, static_argnames="aggregator")
def one_hot_gradient(model: PRM, batch, has_step_T, aggregator: str):
    """The gradient of the log score by the one-hot ids, gradient_LV, of the one solution of a batch."""
    embed_VD = model.embed[...]

    def score(x_LD):
        # The row's own embeddings are the table, of which token l looks up row l.
        copy = jax.tree.map(lambda w: w, model)
        copy.embed = nnx.Param(x_LD)
        ids_1L = jnp.arange(len(x_LD))[None]
        x_1TD = copy(ids_1L, batch["pos"], batch["visible_until"], batch["step_end"])
        logit_1T = good_logit(copy.step_logits(x_1TD), model.cfg.head)
        return aggregate(logit_1T, has_step_T[None], aggregator, unit="logit")[0]

    grad_LD = jax.grad(score)(embed_VD[batch["ids"][0]])
    return grad_LD.astype(jnp.float32) @ embed_VD.T.astype(jnp.float32)


def gradient_of(model: PRM, encoded: Encoded, aggregator: str) -> np.ndarray:
    """`one_hot_gradient` of a solution, in few shapes."""
    slots = doubled(8, len(encoded.step_end_T))
    batch, *_ = layout_train([[encoded]], doubled(64, len(encoded.ids_L)), slots)
    has_step_T = np.arange(slots) < len(encoded.step_end_T)
    return np.asarray(one_hot_gradient(model, batch, has_step_T, aggregator))


class Candidate(NamedTuple):
    steps: Steps  # of the whole solution, as a text, which is what is handed in
    ids_n: np.ndarray  # of the suffix
    place: int  # of its first token in the solution's ids


class Search:
    """The search for one wrong solution."""

    def __init__(self, verifier: Verifier, problem: str, steps: Steps):
        self.verifier, self.scorer = verifier, verifier.scorer
        self.problem, self.steps = problem, steps
        self.plain_L = self.encoded(steps).ids_L
        logit_T = verifier.log_odds(problem, steps)
        self.line = len(steps) - 1 - int(np.argmin(logit_T[::-1]))  # the lowest, of equal ones the last

    def encoded(self, steps: Steps) -> Encoded:
        return encode(self.scorer.format, self.scorer.tokenizer, [(self.problem, steps)])[0]

    def log_scores(self, versions: list[Steps]) -> np.ndarray:
        logits = self.verifier.log_odds([self.problem] * len(versions), versions)
        return np.asarray(solution_scores(logits, self.verifier.aggregator), np.float64)

    def candidate(self, ids_n: np.ndarray, place: int | None = None) -> Candidate | None:
        """The solution with these tokens; None where their text is no plain one or has other ids."""
        decode = self.scorer.tokenizer.decode
        text = decode(ids_n.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        line = self.steps[self.line] + text
        steps = (*self.steps[: self.line], line, *self.steps[self.line + 1 :])
        try:
            ids_L = self.encoded(steps).ids_L
        except InputError:  # it holds the format's own marks
            return None
        place = int(np.argmax(ids_L == ids_n[0])) if place is None else place
        stays = np.array_equal(ids_L, np.insert(self.plain_L, place, ids_n))
        is_plain = text.isprintable() and "\ufffd" not in text
        return Candidate(steps, ids_n, place) if stays and is_plain else None

    def first(self) -> Candidate:
        """A suffix of one repeated token that the solution lacks, so that its place is known."""
        for v in range(self.scorer.model.cfg.vocab):
            if v not in self.plain_L and (made := self.candidate(np.full(TOKENS, v))):
                return made
        raise InputError(f"TOKENS: got {TOKENS}, expected fewer: no token stays itself so often")

    def replacements(self, now: Candidate, rng: np.random.Generator | None) -> Iterator[Candidate]:
        """Candidates with one other token: by the gradient's promise, or with `rng` in random order."""
        gradient_LV = gradient_of(self.scorer.model, self.encoded(now.steps), self.verifier.aggregator)
        gain_nV = gradient_LV[now.place : now.place + TOKENS]
        gain_nV = gain_nV - np.take_along_axis(gain_nV, now.ids_n[:, None], 1)
        order = np.argsort(-gain_nV, axis=None) if rng is None else rng.permutation(gain_nV.size)
        for n, v in zip(*np.unravel_index(order, gain_nV.shape), strict=True):
            if made := self.candidate(np.where(np.arange(TOKENS) == n, v, now.ids_n), now.place):
                yield made

    def run(self, is_wrong: Callable[[str, Steps], bool], rng=None) -> tuple[float, float, Steps]:
        """(P before, P of the best version that `is_wrong` still calls wrong, that version)."""
        now, here = self.first(), -np.inf  # where the search stands, and its log score
        tried = set()
        before = self.log_scores([self.steps])[0]
        best, best_steps = before, self.steps
        for _ in range(ROUNDS):
            new = (c for c in self.replacements(now, rng) if c.steps not in tried)
            kept = list(itertools.islice((c for c in new if is_wrong(self.problem, c.steps)), TOP_K))
            if not kept:
                break
            tried.update(c.steps for c in kept)
            score_n = self.log_scores([c.steps for c in kept])
            if score_n.max() > here:  # else the next round scores the candidates that come next
                here, now = score_n.max(), kept[score_n.argmax()]
            if here > best:
                best, best_steps = here, now.steps
        return float(np.exp(before)), float(np.exp(best)), best_steps


def main():
    parser = argparse.ArgumentParser(description="Search tokens that make a verifier like wrong solutions.")
    parser.add_argument("--checkpoint", help="a model with a step head; the newest finished run if left out")
    parser.add_argument("--input", help="a file of labelled solutions or a graded pool")
    parser.add_argument("--solutions", type=int, default=50, help="wrong ones, at most")
    parser.add_argument("--aggregator", default="prod")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    verifier = prm_jax.load(args.checkpoint, aggregator=args.aggregator)
    solutions = read_file(args.input, 1000, args.seed) if args.input else sample_task(1000, args.seed)
    wrong = [row for row, sound in zip(*solutions[:2], strict=True) if not sound][: args.solutions]

    def is_wrong(problem: str, steps: Steps) -> bool:
        return solutions.task is None or not is_sound(solutions.task, problem, steps)

    rng, p_N3 = np.random.default_rng(args.seed), []  # before, by the gradient, at random
    for row in wrong:
        search = Search(verifier, *row)
        before, by_gradient, found = search.run(is_wrong)
        p_N3.append((before, by_gradient, search.run(is_wrong, rng)[1]))
        print(f"{before:.3f} -> {by_gradient:.3f}  {' | '.join(found)}")
    p_N3, problems = np.array(p_N3), [problem for problem, _ in wrong]
    for name, p_N in zip(("before", "gradient", "random"), p_N3.T, strict=True):
        print(f"{name:<10} mean P {p_N.mean():.3f}, above .5: {(p_N > 0.5).mean():.3f}")
    gain_N = p_N3[:, 1] - p_N3[:, 2]
    low, high = bootstrap_interval(lambda rows: gain_N[rows].mean(), problems, args.seed)
    print(f"gradient - random: {gain_N.mean():.3f} [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    main()
