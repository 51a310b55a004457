"""A decoder-only transformer (Qwen2, Qwen3, Llama, Mistral) and the heads that read its hidden states at step marks.

Dimension key: B rows, L tokens, D model, F ffn, H query heads, G key/value heads, K head size, V vocabulary,
T step ends, C head outputs. Parameters of the blocks carry a leading layer axis.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from prm_jax import InputError
from prm_jax.attention import attend
from prm_jax.kernels.products import add_bias, matmul
from prm_jax.kernels.remat import remat, save_for_backward
from prm_jax.launch.mesh import IN_SPLIT, OUT_SPLIT, embed_lookup, on_own_heads, split_rows
from prm_jax.lora import LowRank

FAMILIES = ("qwen2", "qwen3", "llama", "mistral")  # model_type of a config.json


@dataclasses.dataclass(frozen=True)
class Head:
    """A step head: what it reads out of a hidden state, and what its logits mean.

    A Linear layer of C outputs, after a Linear layer of D outputs and a ReLU where it is `hidden`.
    """

    labels: tuple[str, ...]  # what each of the C logits is of, as in `id2label` of a config.json
    log_odds: Callable  # logit_BTC -> logit_BT, the log-odds that the step is good
    hidden: bool = False

    @property
    def outputs(self) -> int:
        return len(self.labels)

    @property
    def layer(self) -> str:
        """Name of the last Linear layer in Hugging Face files."""
        return "score.2" if self.hidden else "score"


def two_classes(logit_BTC):
    """Class 1 is good, as in TRL and Qwen2.5-Math-PRM."""
    return logit_BTC[..., 1] - logit_BTC[..., 0]


def three_ratings(logit_BTC):
    """Classes are the ratings -1, 0, +1; neutral counts as good: P(good) = P(0) + P(+1) (Lightman et al. 2023, appendix F)."""
    return jnp.logaddexp(logit_BTC[..., 1], logit_BTC[..., 2]) - logit_BTC[..., 0]


HEADS = {
    "scalar": Head(("good",), lambda logit_BTC: logit_BTC[..., 0]),
    "binary": Head(("bad", "good"), two_classes),
    "mlp": Head(("bad", "good"), two_classes, hidden=True),
    "ternary": Head(("bad", "neutral", "good"), three_ratings),
}


def good_logit(logit_BTC, head: str):
    """The step head's C logits as one: the log-odds that the step is good, logit_BT."""
    return HEADS[head].log_odds(logit_BTC)


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are slowed for rows longer than the model was first trained at (`rope_frequencies`).

    `slow` and `fast` count turns that a pair of features makes over that first length: below `slow` its frequency is
    divided by `factor`, above `fast` it is kept, and between the two it is blended.
    """

    kind: str  # rope_type of a config.json: linear (all are divided), llama3, yarn
    factor: float
    length: int = 0  # tokens that the model was first trained at
    slow: float = 1.0
    fast: float = 32.0
    attention: float = 1.0  # yarn: factor of cosine and sine, so that scores grow by its square
    truncate: bool = True  # yarn: the bounds of the blend are whole pairs


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Everything that fixes the shape of the parameters and how they are used; `hf.py` makes it from a config.json."""

    vocab: int  # V
    dim: int  # D
    layers: int
    heads: int  # H
    kv_heads: int  # G; H / G queries share one key/value head
    head_dim: int  # K
    ffn: int  # F
    rope_theta: float
    norm_eps: float
    qkv_bias: bool  # Qwen2 has biases on q, k, v only
    tied: bool  # the vocabulary logits reuse the embedding
    family: str = "qwen2"  # model_type of the config.json; the fields say what is computed, this only what it is called
    # max_position_embeddings of the config.json: the longest row that the model was made for; only exports say it.
    positions: int = 32_768
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # Qwen3: queries and keys are normed, head by head, before the rotation
    window: int | None = None  # a query sees its own and the window - 1 tokens before it
    sliding: tuple[bool, ...] | None = None  # the layers that the window holds for; None: all
    rope_scaling: RopeScaling | None = None
    lm_head: bool = False  # keep the vocabulary projection of an untied model (language-model loss)
    head: str = "none"  # step head: none, or a key of HEADS
    head_dropout: float = 0.0  # probability of dropping a feature before the step head, in training only
    dtype: str = "float32"  # compute dtype; norms, softmax, heads and losses stay float32
    remat: str = "none"  # what the backward pass computes again: none, dots (all but linear layers, attention), full (each block)

    def __post_init__(self):
        assert self.head in ("none", *HEADS), f"head: got {self.head!r}, expected none or one of {', '.join(HEADS)}"
        assert self.heads % self.kv_heads == 0, f"heads: {self.heads} is no multiple of kv_heads {self.kv_heads}"
        assert self.family in FAMILIES, f"model_type: got {self.family!r}, expected {', '.join(FAMILIES)}"
        assert self.window is None or self.window > 0, f"sliding_window: got {self.window}, expected above 0"
        assert self.sliding is None or len(self.sliding) == self.layers, (
            f"layer_types: has {len(self.sliding)} layers, expected {self.layers}"
        )
        assert self.head_dim % 2 == 0, f"head_dim: {self.head_dim} is odd; rotary embeddings need pairs"


def choose_dtype(name: str) -> str:
    """The compute dtype of a config: `auto` is bfloat16 on GPU and TPU, and float32 on CPU, where bfloat16 is faster only on
    processors with instructions for it (AVX512-BF16, AMX), and short rows gain nothing."""
    if name == "auto":
        return "float32" if jax.devices()[0].platform == "cpu" else "bfloat16"
    if name not in ("float32", "bfloat16"):
        raise InputError(f"dtype: got {name!r}, expected auto, float32 or bfloat16")
    return name


def normal(rngs, shape, scale):
    return nnx.Param(rngs.params.normal(shape) * scale)


def head_scale(key: str, dim: int) -> float:
    """Standard deviation that a matrix of the step head starts with."""
    return dim**-0.5 if key == "w_mlp_head" else 0.02


def linear(x_BLD, w_DF, b_F=None):
    """x @ w (+ b) over the last axis, computed in the dtype of x.

    Flattened to two axes because XLA's CPU backend takes twice as long for the weight gradient of a 3-D product.
    """
    x_nD = x_BLD.reshape(-1, x_BLD.shape[-1])
    y_nF = w_DF(x_nD) if isinstance(w_DF, LowRank) else matmul(x_nD, w_DF[...].astype(x_BLD.dtype))
    if b_F is not None:
        y_nF = add_bias(y_nF, b_F[...].astype(y_nF.dtype))
    return save_for_backward(y_nF, "linear").reshape(*x_BLD.shape[:-1], -1)


def rms_norm(x_BLD, gain_D, eps):
    """Root-mean-square norm in float32, returned in the dtype of x."""
    x32_BLD = x_BLD.astype(jnp.float32)
    scale_BL1 = jax.lax.rsqrt(jnp.mean(x32_BLD * x32_BLD, -1, keepdims=True) + eps)
    return (x32_BLD * scale_BL1 * gain_D[...]).astype(x_BLD.dtype)


def rope_frequencies(cfg: ModelConfig):
    """Radians a position for each pair of features, freq_k.

    Where they are scaled: Llama 3.1 blends by the number of turns a pair makes over the first length, YaRN (Peng et al.
    2023, section 3.2) by the number of the pair, between those that make `fast` and `slow` turns.
    """
    freq_k, how = cfg.rope_theta ** (-jnp.arange(0, cfg.head_dim, 2) / cfg.head_dim), cfg.rope_scaling
    if how is None:
        return freq_k
    keep_k = 0.0
    if how.kind == "llama3":
        keep_k = jnp.clip((how.length * freq_k / (2 * jnp.pi) - how.slow) / (how.fast - how.slow), 0, 1)
    if how.kind == "yarn":
        pairs = cfg.head_dim / 2 / math.log(cfg.rope_theta)
        low, high = (pairs * math.log(how.length / (2 * math.pi * turns)) for turns in (how.fast, how.slow))
        if how.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, cfg.head_dim - 1)
        keep_k = 1 - jnp.clip((jnp.arange(len(freq_k)) - low) / max(high - low, 0.001), 0, 1)
    return freq_k * (keep_k + (1 - keep_k) / how.factor)


def rotate(x_BLHK, cos_BL1k, sin_BL1k):
    """Rotary position embedding; feature j pairs with feature j + K/2, as in the Hugging Face checkpoints."""
    a_BLHk, b_BLHk = jnp.split(x_BLHK.astype(jnp.float32), 2, -1)
    y_BLHK = jnp.concatenate([a_BLHk * cos_BL1k - b_BLHk * sin_BL1k, b_BLHk * cos_BL1k + a_BLHk * sin_BL1k], -1)
    return y_BLHK.astype(x_BLHK.dtype)


def at_marks(x_BLD, step_end_BT):
    """The rows' entries at their step ends, x_BTD."""
    return jnp.take_along_axis(x_BLD, step_end_BT[:, :, None], axis=1)


class Block(nnx.Module):
    """Pre-norm attention and SwiGLU."""

    def __init__(self, cfg: ModelConfig, *, rngs: nnx.Rngs):
        D, F, H, G, K = cfg.dim, cfg.ffn, cfg.heads, cfg.kv_heads, cfg.head_dim
        self.cfg = cfg
        self.norm_attn = nnx.Param(jnp.ones(D))
        self.w_q = normal(rngs, (D, H * K), D**-0.5)
        self.w_k = normal(rngs, (D, G * K), D**-0.5)
        self.w_v = normal(rngs, (D, G * K), D**-0.5)
        self.b_q = nnx.Param(jnp.zeros(H * K)) if cfg.qkv_bias else None
        self.b_k = nnx.Param(jnp.zeros(G * K)) if cfg.qkv_bias else None
        self.b_v = nnx.Param(jnp.zeros(G * K)) if cfg.qkv_bias else None
        self.norm_q = nnx.Param(jnp.ones(K)) if cfg.qk_norm else None
        self.norm_k = nnx.Param(jnp.ones(K)) if cfg.qk_norm else None
        self.w_o = normal(rngs, (H * K, D), (H * K) ** -0.5)
        self.b_o = nnx.Param(jnp.zeros(D)) if cfg.o_bias else None
        self.norm_ffn = nnx.Param(jnp.ones(D))
        self.w_gate = normal(rngs, (D, F), D**-0.5)
        self.w_up = normal(rngs, (D, F), D**-0.5)
        self.w_down = normal(rngs, (F, D), F**-0.5)
        self.b_gate = nnx.Param(jnp.zeros(F)) if cfg.mlp_bias else None
        self.b_up = nnx.Param(jnp.zeros(F)) if cfg.mlp_bias else None
        self.b_down = nnx.Param(jnp.zeros(D)) if cfg.mlp_bias else None

    def __call__(self, x_nD, cos_BL1k, sin_BL1k, visible_until_BL):
        """The residual stream after this block, x_nD."""
        cfg = self.cfg
        B, L = visible_until_BL.shape
        h_nD = rms_norm(x_nD, self.norm_attn, cfg.norm_eps)
        q_BLHK = linear(h_nD, self.w_q, self.b_q).reshape(B, L, cfg.heads, cfg.head_dim)
        k_BLGK = linear(h_nD, self.w_k, self.b_k).reshape(B, L, cfg.kv_heads, cfg.head_dim)
        v_BLGK = linear(h_nD, self.w_v, self.b_v).reshape(B, L, cfg.kv_heads, cfg.head_dim)
        if cfg.qk_norm:
            q_BLHK = rms_norm(q_BLHK, self.norm_q, cfg.norm_eps)
            k_BLGK = rms_norm(k_BLGK, self.norm_k, cfg.norm_eps)
        q_BLHK, k_BLGK = rotate(q_BLHK, cos_BL1k, sin_BL1k), rotate(k_BLGK, cos_BL1k, sin_BL1k)
        if not cfg.qk_norm:  # whose backward pass needs them as they came, so that these would be kept besides
            q_BLHK, k_BLGK = save_for_backward(q_BLHK, "attention"), save_for_backward(k_BLGK, "attention")
        o_BLHK = on_own_heads(attend, q_BLHK, k_BLGK, v_BLGK, visible_until_BL)
        x_nD += linear(o_BLHK.reshape(B * L, -1), self.w_o, self.b_o)

        h_nD = rms_norm(x_nD, self.norm_ffn, cfg.norm_eps)
        gate_nF, up_nF = linear(h_nD, self.w_gate, self.b_gate), linear(h_nD, self.w_up, self.b_up)
        # In float32, which XLA's CPU backend computes twice as fast as bfloat16.
        h_nF = (jax.nn.silu(gate_nF.astype(jnp.float32)) * up_nF.astype(jnp.float32)).astype(h_nD.dtype)
        x_nD += linear(h_nF, self.w_down, self.b_down)
        return x_nD


class PRM(nnx.Module):
    """Transformer with a step head (`head`), a vocabulary projection (`unembed` or tied), or both."""

    def __init__(self, cfg: ModelConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.embed = normal(rngs, (cfg.vocab, cfg.dim), 0.02)
        self.blocks = jax.vmap(lambda r: Block(cfg, rngs=r))(rngs.split(cfg.layers))
        self.norm_out = nnx.Param(jnp.ones(cfg.dim))
        self.unembed = normal(rngs, (cfg.dim, cfg.vocab), cfg.dim**-0.5) if cfg.lm_head and not cfg.tied else None
        head, scale = HEADS.get(cfg.head), lambda key: head_scale(key, cfg.dim)
        self.w_mlp_head = normal(rngs, (cfg.dim, cfg.dim), scale("w_mlp_head")) if head and head.hidden else None
        self.b_mlp_head = nnx.Param(jnp.zeros(cfg.dim)) if head and head.hidden else None
        self.w_head = normal(rngs, (cfg.dim, head.outputs), scale("w_head")) if head else None
        self.b_head = nnx.Param(jnp.zeros(head.outputs)) if head else None

    def __call__(self, ids_BL, pos_BL, visible_until_BL, step_end_BT=None):
        """Hidden states after the final norm, x_BLD; with `step_end_BT` those of the step ends alone, x_BTD.

        `visible_until_BL`: last position that sees each token (attention.py).
        """
        cfg = self.cfg
        slides, near_BL = jnp.array(cfg.sliding or [True] * cfg.layers), visible_until_BL
        if cfg.window is not None:
            near_BL = jnp.minimum(visible_until_BL, jnp.arange(visible_until_BL.shape[1]) + cfg.window - 1)
        angle_BL1k = pos_BL[:, :, None, None] * rope_frequencies(cfg)
        attention = 1.0 if cfg.rope_scaling is None else cfg.rope_scaling.attention
        cos_BL1k, sin_BL1k = attention * jnp.cos(angle_BL1k), attention * jnp.sin(angle_BL1k)

        def layer(x_nD, block_and_slides):
            block, is_sliding = block_and_slides
            seen_BL = jnp.where(is_sliding, near_BL, visible_until_BL)
            return split_rows(block(x_nD, cos_BL1k, sin_BL1k, seen_BL)), None

        layer = remat(layer, cfg.remat)
        x_nD = embed_lookup(self.embed[...], ids_BL).astype(cfg.dtype).reshape(-1, cfg.dim)
        x_nD, _ = jax.lax.scan(layer, x_nD, (self.blocks, slides))
        x_BLD = x_nD.reshape(*ids_BL.shape, cfg.dim)
        if step_end_BT is not None:
            x_BLD = at_marks(x_BLD, step_end_BT)
        return rms_norm(x_BLD, self.norm_out, cfg.norm_eps)

    def step_logits(self, x_BTD, k_dropout=None):
        """Logits of the step head from hidden states at step ends, float32 logit_BTC."""
        x_BTD = x_BTD.astype(jnp.float32)
        if k_dropout is not None and self.cfg.head_dropout > 0:
            keep = 1 - self.cfg.head_dropout
            x_BTD = jnp.where(jax.random.bernoulli(k_dropout, keep, x_BTD.shape), x_BTD / keep, 0)
        if HEADS[self.cfg.head].hidden:
            x_BTD = jax.nn.relu(linear(x_BTD, self.w_mlp_head, self.b_mlp_head))
        return linear(x_BTD, self.w_head, self.b_head)

    def vocab_logits(self, x_BLD):
        """Next-token logits, float32 logit_BLV."""
        w_DV = self.embed[...].T if self.cfg.tied else self.unembed[...]
        return linear(x_BLD, w_DV.astype(x_BLD.dtype)).astype(jnp.float32)

    def next_logprobs(self, x_BLD, ids_BL):
        """log p of each following token in nats, logp_BL; the last of a row has none and is meaningless.

        A few places of all rows at a time, because logits of a whole batch over a large vocabulary do not fit; of all rows,
        so that each device of a mesh has some of its own.
        """
        B, L = ids_BL.shape

        def one(place):
            x_BD, target_B = place
            logit_BV = self.vocab_logits(x_BD)
            return logit_BV[jnp.arange(B), target_B] - jax.nn.logsumexp(logit_BV, axis=-1)

        places = x_BLD.swapaxes(0, 1), jnp.roll(ids_BL, -1, axis=1).T
        return jax.lax.map(one, places, batch_size=max(1, min(L, 256 // B))).T


def cast_backbone(model: PRM) -> PRM:
    """The model with the backbone's matrices stored in the compute dtype: every use casts them to it, so no score changes.

    For matrices that do not train; one that does stays float32, where small updates add up.
    """

    def store(path, x):
        names = [str(getattr(key, "name", "")) for key in path]
        is_matrix = not {*OUT_SPLIT, *IN_SPLIT}.isdisjoint(names) and {"a", "b"}.isdisjoint(names)
        return x.astype(model.cfg.dtype) if is_matrix else x

    return jax.tree.map_with_path(store, model)
