"""Training less, and storing less: low-rank updates, a frozen backbone, low-precision moments."""

import dataclasses
import itertools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import TINY, printed
from flax import nnx
from test_losses import OPT, make_batch
from test_train import SMALL, THIN, parameters, records

import train
from prm_jax import InputError
from prm_jax.checkpoints import hf
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.checkpoints.orbax import restore_run
from prm_jax.lora import LoraConfig, LowRank, attach, merge
from prm_jax.model import PRM, cast_backbone
from prm_jax.scoring import step_log_odds
from prm_jax.training import LossConfig, make_optimizer, train_step

LORA = LoraConfig(rank=3, alpha=6.0, targets=["w_q", "w_v", "w_down"])
LOSS = LossConfig("prm", "bce", 1.0, 0.0)


def arrays(model):
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree.leaves_with_path(model)}


def trained(model, opt_cfg, rng, steps=3):
    opt = make_optimizer(model, opt_cfg, 10)
    batch = jax.tree.map(jnp.asarray, make_batch(rng, 4))
    for _ in range(steps):
        model, opt, metrics = train_step(model, opt, batch, LOSS, jax.random.key(0))
    return model, opt, float(metrics["loss"]), {k: v[0] for k, v in batch.items()}


def test_experts_have_no_updates():
    moe = PRM(dataclasses.replace(TINY, experts=3, experts_per_token=1), rngs=nnx.Rngs(0))
    with pytest.raises(InputError, match="^lora.targets: got 'w_up'"):
        attach(moe, LoraConfig(rank=3, alpha=6.0, targets=["w_up"]), 0)


def test_only_the_updates_and_the_head_train_and_the_merged_matrices_do_the_same(rng):
    cfg = dataclasses.replace(TINY, layers=3)
    base = PRM(cfg, rngs=nnx.Rngs(0))
    model = attach(PRM(cfg, rngs=nnx.Rngs(0)), LORA, 0)
    a_q, a_v = model.blocks.w_q.a[...], model.blocks.w_v.a[...]
    assert a_q.shape == (3, 32, 3) and model.blocks.w_down.b.shape == (3, 3, 32)
    different = [*a_q, a_v[0]]
    assert not any(np.allclose(x, y) for x, y in itertools.combinations(different, 2))
    np.testing.assert_allclose(a_q.std(), 32**-0.5, rtol=0.2)
    batch = {k: jnp.asarray(v[0]) for k, v in make_batch(rng, 4).items()}
    before = arrays(model)
    np.testing.assert_array_equal(step_log_odds(model, batch), step_log_odds(base, batch))

    model, opt, _, batch = trained(model, dataclasses.replace(OPT, trainable="lora"), rng)
    after = arrays(model)
    moved = {key for key in after if not np.array_equal(before[key], after[key])}
    updates = {f".blocks.{name}.{ab}.value" for name in LORA.targets for ab in "ab"}
    assert moved == updates | {".w_head.value", ".b_head.value"}
    assert optax.tree.get(opt.opt_state, "mu").keys() == {"blocks", "w_head", "b_head"}  # of nothing frozen
    scores = step_log_odds(model, batch)
    w_q = model.blocks.w_q
    expected = np.asarray(w_q.base[...]) + 2.0 * np.asarray(w_q.a[...]) @ np.asarray(w_q.b[...])
    merged = merge(model)
    assert merged.blocks.w_q.shape == (3, 32, 32) and arrays(merged).keys() == arrays(base).keys()
    np.testing.assert_allclose(merged.blocks.w_q[...], expected, atol=1e-6)
    np.testing.assert_allclose(step_log_odds(merged, batch), scores, atol=1e-6)
    assert np.abs(scores - step_log_odds(base, batch)).max() > 1e-3


def test_thin_matrices_take_half_the_memory_and_give_the_same_scores(rng):
    cfg = dataclasses.replace(TINY, dtype="bfloat16")
    batch = {k: jnp.asarray(v[0]) for k, v in make_batch(rng, 4).items()}
    full, low = PRM(cfg, rngs=nnx.Rngs(0)), cast_backbone(attach(PRM(cfg, rngs=nnx.Rngs(0)), LORA, 0))
    kept = {key.split(".")[-2] for key, x in arrays(low).items() if x.dtype == np.float32}
    assert low.blocks.w_q.base[...].dtype == low.embed[...].dtype == jnp.bfloat16
    assert kept == {"a", "b", "b_q", "b_k", "b_v", "norm_attn", "norm_ffn", "norm_out", "w_head", "b_head"}
    np.testing.assert_array_equal(step_log_odds(low, batch), step_log_odds(full, batch))


@pytest.mark.slow
def test_lora_run_resumes_bitwise_and_its_export_scores_as_the_run(monkeypatch, tmp_path):
    args = [*SMALL, *THIN, "optimizer.trainable=lora", "lora.rank=2"]
    out = printed(train.main, monkeypatch, *args, "hydra.run.dir=whole", cwd=tmp_path)
    assert "of them train" in out
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")  # after the checkpoint before the last
    shutil.rmtree(tmp_path / "killed" / "checkpoints" / "latest" / "12")
    (tmp_path / "killed" / "summary.json").unlink()
    printed(train.main, monkeypatch, "resume=killed", cwd=tmp_path)
    assert records(tmp_path / "killed") == records(tmp_path / "whole")
    for mine, theirs in zip(*(parameters(tmp_path / r, 12) for r in ("killed", "whole")), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    model, tokenizer, config, step = restore_run(tmp_path / "whole", "best", "float32")
    assert step in (6, 12) and not isinstance(model.blocks.w_q, LowRank)
    hf.save(tmp_path / "export", model, tokenizer, format=dict(config.format))
    rows = [("4 +5 max3 mod7?", ("4+5=2", "2max3=3"))]
    opened = [open_checkpoint(tmp_path / name, "best", None, "float32") for name in ("whole", "export")]
    np.testing.assert_array_equal(*(checkpoint.scorer(1, 64).score(rows)[0] for checkpoint in opened))
