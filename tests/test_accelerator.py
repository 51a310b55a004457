"""what=accelerator runs from end to end, and all that it runs lowers for GPUs and TPUs."""

import dataclasses
import json
import math
import sys

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import ShapeDtypeStruct
from jax._src.cudnn import fused_attention_stablehlo as fused
from jax.export import DisabledSafetyCheck, export
from omegaconf import OmegaConf

from prm_jax.attention import dense
from prm_jax.bench import __main__ as bench
from prm_jax.bench import accelerator, common, memory
from prm_jax.bench.models import LOSS
from prm_jax.generate.sampling import Sampling, decode_loop, first_token, prefill
from prm_jax.launch.config import CONF
from prm_jax.model import PRM, ModelConfig, cast_backbone
from prm_jax.packing import pack_batch
from prm_jax.scoring import step_log_odds
from prm_jax.training import train_step

SHAPES = OmegaConf.to_container(OmegaConf.load(CONF / "bench.yaml").accelerator.models)
TINY = {
    "train": ("solutions=2", "rows=1", "mean_tokens=30", "longest=40"),
    "score": (
        "problems=1",
        "candidates=2",
        "mean_tokens=30",
        "longest=40",
        "rows=1",
        "tokens=128",
        "repeats=1",
    ),
    "sampling": ("prompts=1", "prompt_tokens=8", "n=2", "new_tokens=4", "rows=2", "repeats=1"),
}
TINY = [f"accelerator.{what}.{key}" for what, keys in TINY.items() for key in keys] + [
    "warmup=0",
    "repeats=1",
]
TINY += ["accelerator.tokens=80", "accelerator.models.embedded.layers=1"]
TINY += [f"~accelerator.models.{name}" for name in SHAPES if name != "embedded"]
CUDNN = [
    f"__cudnn$fmhaScaleBiasSoftmax{part}" for part in ("", "Backward")
]  # names that may change with cuDNN


def test_every_kernel_and_job_has_its_line_and_a_failure_does_not_end_the_others(monkeypatch, tmp_path):
    def too_large(cfg):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nallocating")

    monkeypatch.setattr(common, "matmul_peak", lambda *asked: 1e11)
    monkeypatch.setitem(accelerator.JOBS, "sampling", too_large)
    monkeypatch.setattr(sys, "argv", ["bench", "what=accelerator", *TINY, f"hydra.run.dir={tmp_path}/a"])
    bench.main()
    got, text = json.loads((tmp_path / "a/results.json").read_text()), (tmp_path / "a/results.md").read_text()
    for kernel in ("dense", "one_product", "tiled"):
        errors = [got[f"embedded/{kernel}/{of}_error"] for of in ("output", "gradient")]
        assert 1e-4 < min(errors) and max(errors) < 0.03  # bfloat16's
    assert "| embedded/sampling | nan | JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory |" in text
    for job in ("score", "train"):
        speed, share = got[f"embedded/{job}/tokens_per_second"], got[f"embedded/{job}/share_of_measured_peak"]
        predicted = common.shown(got[f"embedded/{job}/predicted_gb"])
        assert (
            f"| embedded/{job} | {predicted} | nan | {common.shown(speed)} | {common.shown(share)} |" in text
        )
        assert 0 < got[f"embedded/{job}/predicted_gb"] < 0.1
    assert got["processor"] and got["versions"]["jaxlib"] and got["devices"] == 1


@pytest.mark.parametrize(
    ("device", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("TPU v5 lite", 197),
        ("TPU v5", 459),
        ("TPU v5p", 459),
    ],
)
def test_peaks_are_found_by_the_names_of_devices(device, tflops):
    assert accelerator.published_peak(device) == 1e12 * tflops
    assert math.isnan(accelerator.published_peak("NVIDIA L40S"))


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


@pytest.mark.parametrize("name", SHAPES)
def test_the_kernels_lower(lowered, name):
    heads, kv_heads, K = (SHAPES[name][key] for key in ("heads", "kv_heads", "head_dim"))
    q, kv = (ShapeDtypeStruct((2, 2048, n, K), jnp.bfloat16) for n in (heads, kv_heads))
    arrays = q, kv, kv, ShapeDtypeStruct((2, 2048), jnp.int32), q
    target, text = lowered(accelerator.output_and_gradients(dense), *arrays)
    assert not calls(text, target)
    for kernel in accelerator.KERNELS["gpu" if target == "cuda" else "tpu"].values():
        assert calls(lowered(accelerator.output_and_gradients(kernel), *arrays)[1], target)


def test_training_scoring_and_sampling_lower(lowered):
    shape = ModelConfig(**memory.FIXED | SHAPES["qwen_1500m"] | {"layers": 2, "remat": "dots"})
    model, opt = memory.abstract_state(shape)
    batch, key = pack_batch([[]] * 8, 2048, 64), jax.eval_shape(lambda: jax.random.key(0))
    step = {name: x[None] for name, x in batch.items()}
    assert calls(*lowered(train_step, model, opt, step, LOSS, key)[::-1])
    assert calls(*lowered(step_log_odds, memory.abstract_state(shape, trainable="head")[0], batch)[::-1])

    lm = dataclasses.replace(shape, head="none", lm_head=True)
    model = jax.eval_shape(lambda: cast_backbone(PRM(lm, rngs=nnx.Rngs(0))))
    i32, sampling = lambda *shape: ShapeDtypeStruct(shape, jnp.int32), Sampling(1.0, None, 1.0, 256)
    prompts, stop_V = (model, i32(4, 128), i32(4)), ShapeDtypeStruct((lm.vocab,), bool)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 64))
    rows = {"prompt": i32(64), "first": i32(64), "is_real": ShapeDtypeStruct((64,), bool), "key": keys}
    x_PD, cache = jax.eval_shape(prefill, *prompts)
    first = model, x_PD, cache, rows, stop_V, sampling
    state, _ = first_token.eval_shape(*first)
    for f, args in (
        (prefill, prompts),
        (first_token, first),
        (decode_loop, (model, state, rows, 1, stop_V, 63, sampling)),
    ):
        assert "stablehlo" in lowered(f, *args)[1]
