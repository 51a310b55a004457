"""Times step scores of random candidates that share their problem's tokens; the peer pads sorted batches of 32."""

import numpy as np

from prm_jax.bench import common
from prm_jax.bench.common import BenchConfig, Row
from prm_jax.data.formats import Encoded, Format
from prm_jax.data.packing import layout_row, plan_rows
from prm_jax.data.units import probability
from prm_jax.scoring import ModelScorer, ScoringStats

PROBLEM, STEP = 80, 40  # tokens


def bench_score(cfg: BenchConfig) -> list[Row]:
    s, rng, encoded = cfg.score, np.random.default_rng(cfg.seed), []
    shape, scores, ours = common.model_config(cfg, cfg.dtypes[0]), {}, {}
    for _ in range(s.problems):
        problem_L = rng.integers(0, shape.vocab, PROBLEM)
        for n in common.random_lengths(rng, s.candidates, s.mean_tokens, s.longest):
            ids_L = np.concatenate([problem_L, rng.integers(0, shape.vocab, n)]).astype(np.int32)
            ends_T = np.append(np.arange(PROBLEM + STEP, len(ids_L) - 1, STEP), len(ids_L) - 1).astype(np.int32)
            encoded.append(Encoded(ids_L, ends_T, PROBLEM))
    job = {"solutions": [{"ids": e.ids_L.tolist(), "step_end": e.step_end_T.tolist()} for e in encoded]}
    theirs = common.run_peer(cfg, job)  # first: an error in its environment is raised at once
    for dtype in cfg.dtypes:
        model, plain = common.random_model(cfg, dtype), Format("plain", separator="\n")
        scorer = ModelScorer(model, None, plain, "correctness", "prm", "bench", None, s.rows, s.tokens)

        def score(scorer=scorer, dtype=dtype):
            scorer.stats = ScoringStats()
            scores[dtype] = scorer.score_encoded(encoded)

        ours[dtype] = common.median_seconds(score, 1, s.repeats)
        scores[dtype] = list(map(probability, scores[dtype]))
    work, width = scorer.stats, scorer.row_tokens
    rows = [[encoded[i].ids_L for i in pack] for pack in plan_rows([e.ids_L for e in encoded], width, share=True)[0]]
    pairs = sum(int((layout_row(row, share=True)[1] + 1).sum()) for row in rows)
    flops = common.forward_flops(shape, work.computed, pairs)  # a shared token counts once
    return [
        Row("tokens", work.tokens, f"of {len(encoded)} solutions"),
        Row("tokens_a_computed_token", work.tokens / work.computed, "shared prefixes"),
        Row("padding_share", 1 - work.computed / work.places, f"{s.rows} rows of {width} tokens a batch"),
        *[Row(f"{dtype}_seconds", seconds, f"median of {s.repeats}") for dtype, seconds in ours.items()],
        *common.speed(cfg, work.tokens, flops, ours, {dtype: r["seconds"] for dtype, r in theirs.items()}),
        *common.differences(cfg, "score", scores, theirs, "largest, of P(good)"),
    ]
