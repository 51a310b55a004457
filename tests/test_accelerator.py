"""What training, scoring and sampling run lowers for GPUs and TPUs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import ShapeDtypeStruct
from jax._src.cudnn import fused_attention_stablehlo as fused
from jax.export import DisabledSafetyCheck, export

from prm_jax import bench
from prm_jax.attention import attend, dense
from prm_jax.generate.decoding import Stops, _decode, _first, _prefill, _put, empty_rows, prepare, resize
from prm_jax.generate.policies import Sampling
from prm_jax.model import PRM, ModelConfig, cast_backbone, make_cache
from prm_jax.packing import pack_batch
from prm_jax.scoring import step_log_odds
from prm_jax.training import train_step

# Names that may change with cuDNN.
CUDNN = [f"__cudnn$fmhaScaleBiasSoftmax{part}" for part in ("", "Backward")]


@functools.partial(jax.jit, static_argnames="attention")
def both_passes(attention, q, k, v, until_BL, do):
    """The output of attention and the gradients of q, k and v."""
    o, pull = jax.vjp(lambda *qkv: attention(*qkv, until_BL), q, k, v)
    return o, *pull(do)


@pytest.mark.skipif(jax.devices()[0].platform == "cpu", reason="JAX_PLATFORMS names no GPU or TPU")
@pytest.mark.parametrize("name", ("embedded", "small", "500m", "1500m"))
def test_the_kernel_of_this_chip_computes_attention(name):
    _, _, _, heads, kv_heads, K, _ = bench.SHAPES[name]
    key_q, key_k, key_v, key_do = jax.random.split(jax.random.key(0), 4)
    q, do = (jax.random.normal(key, (2, 1024, heads, K), jnp.bfloat16) for key in (key_q, key_do))
    k, v = (jax.random.normal(key, (2, 1024, kv_heads, K), jnp.bfloat16) for key in (key_k, key_v))
    until_BL = jnp.repeat(jnp.arange(1, 5) * 256 - 1, 256) * jnp.ones((2, 1), jnp.int32)
    found = both_passes(attend, q, k, v, until_BL, do)
    with jax.default_matmul_precision("highest"):
        exact = both_passes(dense, *(x.astype("float32") for x in (q, k, v)), until_BL, do.astype("float32"))
    for x, y in zip(found, exact, strict=True):
        assert jnp.abs(x - y).max() < 0.03 * jnp.abs(y).max()


@pytest.fixture(params=[("cuda", "gpu"), ("tpu", "tpu")], ids=["cuda", "tpu"])
def lowered(request, monkeypatch):
    """The StableHLO of a jitted function for a GPU with cuDNN, or for a TPU."""
    target, platform = request.param
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91_000)
    monkeypatch.setattr(fused, "check_compute_capability", lambda least: True)
    monkeypatch.setattr(fused, "is_cuda_compute_capability_equal", lambda one: False)
    checks = list(map(DisabledSafetyCheck.custom_call, CUDNN))

    def lower(f, *args) -> tuple[str, str]:
        return target, export(f, platforms=[target], disabled_checks=checks)(*args).mlir_module()

    jax.clear_caches()  # what was traced for another platform
    yield lower
    jax.clear_caches()


def calls(text: str, target: str) -> bool:
    return ("__cudnn$fmha" if target == "cuda" else "tpu_custom_call") in text


@pytest.mark.parametrize("name", ("embedded", "small", "500m", "1500m"))
def test_the_kernels_lower(lowered, name):
    _, _, _, heads, kv_heads, K, _ = bench.SHAPES[name]
    q, kv = (ShapeDtypeStruct((2, 2048, n, K), jnp.bfloat16) for n in (heads, kv_heads))
    arrays = q, kv, kv, ShapeDtypeStruct((2, 2048), jnp.int32), q

    def lower(attention):
        return lowered(jax.jit(functools.partial(both_passes, attention)), *arrays)

    target, text = lower(dense)
    assert not calls(text, target)
    assert calls(lower(attend)[1], target)


def test_training_scoring_and_sampling_lower(lowered):
    fields = dict(zip(bench.SHAPE_FIELDS, bench.SHAPES["1500m"], strict=True))
    fields |= {"layers": 2, "remat": "dots", "rope_theta": 1e6, "norm_eps": 1e-6, "qkv_bias": True}
    shape = ModelConfig(**fields, tied=False, head="scalar", dtype="bfloat16")
    state, batch = bench.abstract_state(shape), pack_batch([[]] * 8, 2048, 64)
    step = {name: x[None] for name, x in batch.items()}
    assert calls(*lowered(train_step, state["model"], state["opt"], step, bench.LOSS, state["key"])[::-1])
    abstract_model = lambda cfg: jax.eval_shape(lambda: cast_backbone(PRM(cfg, rngs=nnx.Rngs(0))))
    assert calls(*lowered(step_log_odds, abstract_model(shape), batch)[::-1])

    lm = dataclasses.replace(shape, head="none", lm_head=True)
    model = abstract_model(lm)
    i32, sampling = lambda *shape: ShapeDtypeStruct(shape, jnp.int32), Sampling(1.0, None, 1.0, 256)
    stops = Stops(*[ShapeDtypeStruct((lm.vocab,), bool)] * 2)
    model = prepare.eval_shape(model)
    prompts = model, i32(4, 128), i32(4)
    computed = jax.eval_shape(_prefill, *prompts)
    cache, key = jax.eval_shape(lambda: make_cache(lm, 64, 192)), jax.eval_shape(lambda: jax.random.key(0))
    put = cache, computed, i32(8), i32(8)
    _, *last = jax.eval_shape(_put, *put)
    first = model, *last, dict.fromkeys(("number", "prefix", "sample"), i32(8)), key, stops, sampling
    loop = model, cache, empty_rows(64, 256), 8, stops, 64, sampling
    programs = [(_prefill, prompts), (_first, first), (_put, put), (_decode, loop)]
    for f, args in [*programs, (resize, (cache, i32(32), 64))]:
        assert "stablehlo" in lowered(f, *args)[1]
