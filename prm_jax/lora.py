"""LoRA (Hu et al. 2021): a frozen matrix W [D, F] is used as W + alpha / rank * A B, where A and B train.

Dimension key: n rows x tokens, D in, F out, r rank. The stack of blocks puts a layer axis in front."""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
from flax import nnx

from prm_jax.kernels.cpu import matmul
from prm_jax.launch.config import Count, Positive, Rule, expect
from prm_jax.launch.mesh import make_sharded


@dataclasses.dataclass(frozen=True)
class LoraConfig:  # conf/train.yaml says what each key means
    rank: Count
    alpha: Positive
    targets: Annotated[list, Rule(bool, "names of a block's matrices, such as [w_q, w_v]")]


class LowRank(nnx.Module):
    """Replaces the matrix `base` of a block; `linear` in model.py calls it."""

    def __init__(self, base: nnx.Param, a_Dr, b_rF, scale: float):
        self.base, self.scale = base, scale
        rows, columns = base.mesh_axes or (None, None)
        self.a = nnx.LoRAParam(a_Dr, decays=True, mesh_axes=(rows, None))
        self.b = nnx.LoRAParam(b_rF, decays=True, mesh_axes=(None, columns))

    def __call__(self, x_nD):
        base_DF, a_Dr, b_rF = (w[...].astype(x_nD.dtype) for w in (self.base, self.a, self.b))
        return matmul(x_nD, base_DF) + matmul(self.scale * matmul(x_nD, a_Dr), b_rF)

    def merged(self):
        """The parameter base + scale A B, in the dtype of the base."""
        update_DF = self.scale * (self.a[...] @ self.b[...])
        return self.base.replace((self.base[...].astype(jnp.float32) + update_DF).astype(self.base.dtype))


def attach(model, cfg: LoraConfig, seed: int):
    """The model with low-rank updates of `cfg.targets`, which do nothing yet: A ~ N(0, 1 / D), B = 0."""
    # [layers, D, F]; experts have one axis more, and no updates of their own
    weights = vars(model.blocks).items()
    matrices = [name for name, w in weights if isinstance(w, nnx.Param) and w[...].ndim == 3]
    for name in cfg.targets:
        expect(name in matrices, "lora.targets", name, f"names among {', '.join(matrices)}")
    for name, key in zip(cfg.targets, jax.random.split(jax.random.key(seed), len(cfg.targets)), strict=True):
        w_DF = getattr(model.blocks, name)
        layers, D, F = w_DF[...].shape
        a_Dr = D**-0.5 * jax.random.normal(key, (layers, D, cfg.rank))
        b_rF = jnp.zeros((layers, cfg.rank, F))
        setattr(model.blocks, name, LowRank(w_DF, a_Dr, b_rF, cfg.alpha / cfg.rank))
    return model


def merge(model):
    """The model with its low-rank updates, if any, added to their matrices, for export."""
    low_rank = {name: w for name, w in vars(model.blocks).items() if isinstance(w, LowRank)}
    merged = make_sharded(lambda low_rank: {name: w.merged() for name, w in low_rank.items()}, low_rank)
    for name, w_DF in merged.items():
        setattr(model.blocks, name, w_DF)
    return model
