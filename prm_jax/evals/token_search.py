"""Searches tokens that make a verifier like a wrong solution: the gradient attack of "Reward Under Attack" (arXiv
2603.06621), by greedy coordinate gradient (Zou et al. 2023, 2307.15043).

The tokens are a suffix of the line that the verifier likes least. The gradient of the solution's score by the one-hot
ids says, to first order, what each token in each of the suffix's places would add; the best few are scored as texts.

Dimension key: L tokens, D model, V vocabulary, T steps, n tokens of the suffix.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from prm_jax import InputError, rerank
from prm_jax.evals.tables import interval_of, plus_minus
from prm_jax.formats import Encoded, encode
from prm_jax.heads import good_logit
from prm_jax.launch import cli
from prm_jax.launch.config import Count, Natural, expect
from prm_jax.launch.mesh import row_shards
from prm_jax.model import PRM
from prm_jax.packing import doubled, layout_batch
from prm_jax.scoring import ModelScorer


@dataclasses.dataclass(frozen=True)
class TokenSearch:
    """The keys of a search; conf/task/attack.yaml explains them."""

    rounds: Natural
    solutions: Count
    tokens: Count
    top_k: Count


@functools.partial(jax.jit, static_argnames="aggregator")
def one_hot_gradient(model: PRM, batch, has_step_T, aggregator: str):
    """Gradient of a solution's log score by the one-hot ids of its row, gradient_LV; all rows of the batch are the same."""
    embed_VD = model.embed[...]

    def score(x_LD):
        # The row's own embeddings are the table, of which token l looks up row l.
        copy = jax.tree.map(lambda w: w, model)
        copy.embed = nnx.Param(x_LD)
        ids_BL = jnp.broadcast_to(jnp.arange(len(x_LD)), batch["pos"].shape)
        x_BTD = copy(ids_BL, batch["pos"], batch["visible_until"], batch["step_end"])
        logit_T = good_logit(copy.step_logits(x_BTD), model.cfg.head)[0]
        return rerank.aggregate(logit_T[None], has_step_T[None], aggregator, unit="logit")[0]

    grad_LD = jax.grad(score)(embed_VD[batch["ids"][0]])
    return grad_LD.astype(jnp.float32) @ embed_VD.T.astype(jnp.float32)


def gradient_of(model: PRM, encoded: Encoded, aggregator: str) -> np.ndarray:
    """`one_hot_gradient` of a solution, in few shapes."""
    n_steps = len(encoded.step_end_T)
    slots = doubled(8, n_steps)
    batch, *_ = layout_batch([[encoded]] * row_shards(), doubled(64, len(encoded.ids_L)), slots)
    return np.asarray(one_hot_gradient(model, batch, np.arange(slots) < n_steps, aggregator))


def log_scores(scorer, aggregator: str, problem: str, versions) -> np.ndarray:
    return rerank.solution_scores(scorer.score([(problem, steps) for steps in versions]), aggregator).astype(
        np.float64
    )


def search(
    scorer: ModelScorer, cfg: TokenSearch, aggregator: str, problem: str, steps, is_wrong: Callable, rng=None
):
    """(P before, P of the best version found that `is_wrong(problem, steps)` still calls wrong, that version); with `rng`
    candidates are drawn at random in place of by the gradient."""

    def encoded(steps) -> Encoded:
        return encode(scorer.format, scorer.tokenizer, [(problem, steps)])[0]

    def version(x_n, place=None):
        """(the solution with these tokens, the first of which is at `place`), as a text, which is what is handed in; None
        where that is no plain one or has other ids."""
        text = scorer.tokenizer.decode(
            x_n.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        new = (*steps[:t], steps[t] + text, *steps[t + 1 :])
        try:
            ids_L = encoded(new).ids_L
        except InputError:  # it holds the format's own marks
            return None
        place = int(np.argmax(ids_L == x_n[0])) if place is None else place
        is_same = np.array_equal(ids_L, np.insert(plain_L, place, x_n))
        return (new, place) if is_same and text.isprintable() and "\ufffd" not in text else None

    plain_L, logit_T = encoded(steps).ids_L, scorer.score([(problem, steps)])[0]
    t = len(steps) - 1 - int(np.argmin(logit_T[::-1]))  # the lowest, of equal ones the last
    # The search begins with a token that the solution lacks and that stays itself, so that its place is known.
    fresh = (np.full(cfg.tokens, v) for v in range(scorer.model.cfg.vocab) if v not in plain_L)
    x_n, made = next(((x_n, made) for x_n in fresh if (made := version(x_n))), (None, None))
    expect(
        made, "token_search.tokens", cfg.tokens, f"fewer: no token stays itself so often after {steps[t]!r}"
    )
    (now, place), here, tried = made, -np.inf, set()
    before = log_scores(scorer, aggregator, problem, [steps])[0]
    best = before, steps
    for _ in range(cfg.rounds):
        gain_nV = gradient_of(scorer.model, encoded(now), aggregator)[place : place + len(x_n)]
        gain_nV = gain_nV - np.take_along_axis(gain_nV, x_n[:, None], 1)
        order = np.argsort(-gain_nV, axis=None) if rng is None else rng.permutation(gain_nV.size)
        places = zip(*np.unravel_index(order, gain_nV.shape), strict=True)
        replaced = (np.where(np.arange(len(x_n)) == n, v, x_n) for n, v in places)
        new = (new_n for new_n in replaced if (key := new_n.tobytes()) not in tried and not tried.add(key))
        pairs = ((new_n, made[0]) for new_n in new if (made := version(new_n, place)))
        kept = [*itertools.islice((pair for pair in pairs if is_wrong(problem, pair[1])), cfg.top_k)]
        if not kept:
            break
        score_n = log_scores(scorer, aggregator, problem, [new for _, new in kept])
        if score_n.max() > here:  # else the next round scores the candidates that come next
            here, (x_n, now) = score_n.max(), kept[score_n.argmax()]
            best = max(best, (here, now), key=lambda x: x[0])
    return float(np.exp(before)), float(np.exp(best[0])), best[1]


def table(scorer, cfg: TokenSearch, aggregator: str, wrong: list, is_wrong: Callable, seed: int) -> dict:
    """P of some wrong solutions before and after the search, and after as many candidates that are drawn at random."""
    rng, made = np.random.default_rng(seed), []
    rows = [wrong[i] for i in sorted(rng.permutation(len(wrong))[: cfg.solutions])]
    for row in cli.progress("searching", len(rows), "solution", iterable=rows):
        made.append([search(scorer, cfg, aggregator, *row, is_wrong, source) for source in (None, rng)])
    p_N3 = np.array([(before, after, random) for (before, after, _), (_, random, _) in made])
    values = dict(zip(("before", "gradient", "random"), p_N3.T, strict=True))
    values |= {f"{name}_above": p_N > 0.5 for name, p_N in values.items()} | {"gain": p_N3[:, 1] - p_N3[:, 2]}
    problems = np.array([problem for problem, _ in rows])
    numbers = {
        name: [float(x_N.mean()), *interval_of(np.mean, problems, seed, x_N)] for name, x_N in values.items()
    }
    names = "problem", "steps", "before", "after", "edited"
    texts = [dict(zip(names, (*row, *best), strict=True)) for row, (best, _) in zip(rows, made, strict=True)]
    return {"solutions": len(rows), "keys": dataclasses.asdict(cfg), "numbers": numbers, "found": texts}


def show(results: dict):
    shown = {
        name: f"{value:.3f} {plus_minus(low_high)}" for name, (value, *low_high) in results["numbers"].items()
    }
    print(
        f"tokens      {results['keys']['tokens']} after the lowest line of {results['solutions']} unsound solutions"
    )
    print(f"{'':<12}{'mean P':<24}above .5")
    for name in ("before", "gradient", "random"):
        print(f"{name:<12}{shown[name]:<24}{shown[f'{name}_above']}")
    print(f"{'difference':<12}{shown['gain']:<24}gradient - random, mean P")
