"""Shared by all tests: tiny models, and where real data lie."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "prm_jax"))

import numpy as np
import pytest
from flax import nnx

from prm_jax.model import PRM, ModelConfig

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("PRM_JAX_DATA", ROOT.parent / "shared" / "data"))

TINY = ModelConfig(
    vocab=64,
    dim=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    ffn=48,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    qkv_bias=True,
    tied=True,
    head="scalar",
)


@pytest.fixture
def tiny_model():
    return PRM(TINY, rngs=nnx.Rngs(0))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def real_data(name: str) -> Path:
    """A file of the real data, or a skip that says what is missing."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"real data absent: {path} (set PRM_JAX_DATA)")
    return path
