"""Run by test_sharding.py in a process of its own with eight devices: what every mesh computes, as one JSON
object."""

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import TINY
from flax import nnx
from test_losses import OPT, make_batch
from test_sampling import ANY, PLAIN, PROBLEMS, new_tokenizer, random_model, sampled

from prm_jax import InputError, bench, vocabulary
from prm_jax.attention import SHORT
from prm_jax.checkpoints import hf
from prm_jax.checkpoints.orbax import Checkpoints
from prm_jax.encoding import Encoded
from prm_jax.formats import Format
from prm_jax.generate.sampling import Policy
from prm_jax.kernels.cpu import matmul
from prm_jax.launch.devices import MeshConfig, make_mesh
from prm_jax.launch.mesh import check_divides, make_sharded, shard_batch, shardings
from prm_jax.model import PRM, make_cache
from prm_jax.scoring import HeadScorer, RatioScorer, step_log_odds
from prm_jax.training import LossConfig, eval_step, make_optimizer, train_step

# Every kind of parameter at once, and a window that only rows long enough for tiles notice.
CFG = dataclasses.replace(TINY, family="llama", remat="full", lm_head=True, tied=False, head="mlp")
CFG = dataclasses.replace(CFG, qk_norm=True, o_bias=True, mlp_bias=True, window=SHORT)
LOSS = LossConfig("prm", "bce", 1.0, 0.3)
MESHES = {"fsdp": (1, 8, 1), "all": (2, 2, 2)}


def leaves(tree):
    return [np.asarray(x).tolist() for x in jax.tree.leaves(nnx.state(tree))]


def make(seed=0):
    return make_sharded(lambda: PRM(CFG, rngs=nnx.Rngs(seed)))


def start():
    model = make()
    return model, make_optimizer(model, OPT, 10)


def train(model, opt):
    """Losses of three steps of two micro-batches, held-out sums after them, how often a step compiled."""
    batch = shard_batch(make_batch(np.random.default_rng(3), 16, A=2), 8, axis=1)
    losses, before = [], train_step._cache_size()
    for _ in range(3):
        model, opt, metrics = train_step(model, opt, batch, LOSS, jax.random.key(0))
        losses.append([float(metrics[name]) for name in ("loss", "grad_norm", "accuracy")])
    held_out = eval_step(model, {k: v[0] for k, v in batch.items()}, LOSS)
    sums = {name: float(x) for name, x in held_out.items() if name != "logit"}
    return {"losses": losses, "sums": sums, "compiled": train_step._cache_size() - before}, model, opt


def score(model):
    """Step scores of five solutions, most of them alone in a long row, under both kinds of score."""
    rng = np.random.default_rng(4)
    lengths = [SHORT + 20, 9, SHORT + 30, SHORT + 5, SHORT + 25]
    tokens = [rng.integers(0, CFG.vocab, n).astype(np.int32) for n in lengths]
    solutions = [Encoded(ids_L, np.array([5, len(ids_L) - 1]), 2) for ids_L in tokens]
    scores = []
    about = {"tokenizer": None, "format": Format("plain", "\n"), "label_kind": "correctness", "name": "tiny"}
    about |= {"model": model, "batch_rows": 16, "row_tokens": SHORT + 32}
    reference = jax.tree.map(lambda x: 0.5 * x, model)
    for scorer in (HeadScorer(**about), RatioScorer(**about, reference=reference)):
        scores += scorer.score_encoded(solutions)
    return np.concatenate(scores).tolist()


@jax.jit
def gradient_norm(model, batch):
    """Of the sum of all scores of long rows."""
    return optax.tree.norm(jax.grad(lambda model: step_log_odds(model, batch).sum())(model))


@jax.jit
def decode(model, ids_BL):
    """Hidden states of the last token of each row, x_BD; the last two come one by one."""
    (B, L), cache = ids_BL.shape, make_cache(CFG, *ids_BL.shape)
    for at, n in ((0, L - 2), (L - 2, 1), (L - 1, 1)):
        pos_BL = jnp.broadcast_to(jnp.arange(at, at + n), (B, n))
        x_BLD, cache = model(ids_BL[:, at : at + n], pos_BL, jnp.full((B, n), L - 1), cache=cache)
    return x_BLD[:, -1]


def prompts():
    ids_BL = np.random.default_rng(7).integers(0, CFG.vocab, (8, 12)).astype(np.int32)
    return shard_batch({"ids": ids_BL}, 8)["ids"]


def forward(model):
    """What a model computes that does not train."""
    L = SHORT + 32
    ids_BL = np.random.default_rng(5).integers(0, CFG.vocab, (8, L)).astype(np.int32)
    pos_BL = np.broadcast_to(np.arange(L, dtype=np.int32), ids_BL.shape)
    batch = {"ids": ids_BL, "pos": pos_BL, "visible_until": np.full_like(ids_BL, L - 1), "step_end": pos_BL}
    gradient = float(gradient_norm(model, shard_batch(batch, 8)))
    return {"scores": score(model), "long_gradient": gradient, "decoded": decode(model, prompts()).tolist()}


def sample(model):
    """Ids of 2 samples of each of 3 prompts, which the devices do not divide."""
    tokenizer = new_tokenizer()
    policy = Policy(model, tokenizer, PLAIN, "tiny", ANY, batch_rows=8, eos_ids=(tokenizer.eos_token_id,))
    found, _ = sampled(policy, 8, 2, problems=PROBLEMS[:3], temperature=0.8, top_p=0.9)
    return [[c.ids_L.tolist() for c in own] for own in found]


def rounding():
    """Mean relative error of a weight gradient in bfloat16."""
    x_nD, dy_nF = np.random.default_rng(6).standard_normal((2, 256, 64)).astype(jnp.bfloat16)
    gradient = jax.grad(lambda w_DF: (matmul(x_nD, w_DF) * dy_nF).astype(jnp.float32).sum())
    dw_DF = np.asarray(jax.jit(gradient)(jnp.zeros((64, 64), jnp.bfloat16)), np.float64)
    exact_DF = x_nD.astype(np.float64).T @ dy_nF.astype(np.float64)
    return float((np.abs(dw_DF - exact_DF) / np.abs(exact_DF)).mean())


def main(folder: Path):
    """`folder` holds Hugging Face checkpoints `f32` and `bf16`, and then a run's checkpoint, `run`."""
    model, opt = start()
    out = {"one": forward(model) | train(model, opt)[0]}
    vocabulary.LOGITS = 300  # the meshes read the vocabulary in blocks
    for name, shape in MESHES.items():
        with jax.set_mesh(make_mesh(MeshConfig(*shape), 8)):
            model, opt = start()
            out[name] = forward(model) if name == "all" else {}
            learned, model, opt = train(model, opt)
            out[name] |= learned
            w_q, mu = model.blocks.w_q[...], opt.opt_state[1][0].mu["blocks"]["w_down"][...]
            out[name]["shards"] = [w_q.addressable_data(0).shape, mu.addressable_data(0).shape]
            out[name]["on_rule"] = all(
                x.sharding.is_equivalent_to(where, x.ndim)
                for tree in (model, opt)
                for x, where in zip(jax.tree.leaves(tree), jax.tree.leaves(shardings(tree)), strict=True)
            )
            out[name]["f32"] = leaves(hf.load(folder / "f32", CFG))
            out[name]["bf16"] = leaves(hf.load(folder / "bf16", CFG))
            if name == "all":
                out["samples"] = sample(make_sharded(random_model))
                with pytest.raises(InputError) as refused:
                    check_divides(CFG, 6, "batch.rows")
                out["refused"] = str(refused.value)
    checkpoints = Checkpoints(folder / "run")  # of the last mesh
    checkpoints.save(3, model, opt, {}, model)
    saved = leaves(model), leaves(opt)
    out["restored"] = {}
    for n, shape in ((1, None), (4, (1, 2, 2))):
        mesh = shape and jax.set_mesh(make_mesh(MeshConfig(*shape), 8, jax.devices()[:n]))
        with mesh or contextlib.nullcontext():
            model, opt = start()
            checkpoints.restore(model, opt)
            placed = {len(x.sharding.device_set) for x in jax.tree.leaves(nnx.state(model))}
            out["restored"][f"{n} {shape}"] = (leaves(model), leaves(opt)) == saved and placed == {n}
    checkpoints.close()
    out["rounding"] = {"one": rounding()}
    for name, shape in (("data", (8, 1, 1)), ("fsdp", (1, 8, 1))):
        with jax.set_mesh(make_mesh(MeshConfig(*shape), 8)):
            out["rounding"][name] = rounding()
    with jax.set_mesh(make_mesh(MeshConfig(8, 1, 1), 8)):
        out["gathers"] = decode.lower(make(), prompts()).compile().as_text().count(" all-gather(")
    sizes = (1, 8), (1, 12), (1, 11), (2, 6)
    out["parts"] = [make_mesh(MeshConfig(None, fsdp, 1), rows).shape["data"] for fsdp, rows in sizes]
    with jax.set_mesh(make_mesh(MeshConfig(1, 4, 2), 8)):
        out["memory"] = bench.bench_memory(SimpleNamespace(shape="small", dtype="bfloat16"))
    print(json.dumps(out))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
