"""A decoder-only transformer of FAMILIES, its step head and its KV cache.

Dimension key: B rows, L tokens, D model, F ffn, H query heads, G key/value heads, K head size (k = K / 2), V vocabulary,
T step ends, C head outputs, E experts; I layers, the leading axis of all parameters of the blocks; S keys that a query may
see: the row's own L tokens, or the slots of a cache; n tokens of all rows together.
"""

import dataclasses
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from prm_jax import InputError
from prm_jax.attention import attend
from prm_jax.heads import HEADS
from prm_jax.kernels.cpu import add_bias, flatten_tokens, matmul
from prm_jax.kernels.experts import mixture
from prm_jax.kernels.mask import soft_cap
from prm_jax.kernels.remat import remat, save_for_backward
from prm_jax.launch.mesh import IN_SPLIT, OUT_SPLIT, constrain_rows, embed_lookup, path_names, shard_heads
from prm_jax.lora import LowRank
from prm_jax.rope import RopeScaling, rotate, rotations

# model_type of a config.json
FAMILIES = ("qwen2", "qwen3", "qwen3_moe", "llama", "mistral", "granite", "gemma2", "gemma3_text")
ALWAYS = 1 << 30  # last place that sees a token of a cache, where all that follow do


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """What fixes the parameters' shapes and how they are used; checkpoints/hf_config.py makes it from a config.json."""

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
    max_positions: int = (
        32_768  # longest row that the model was made for (max_position_embeddings); only exports say it
    )
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # Qwen3: queries and keys are normed, head by head, before the rotation
    window: int | None = None  # a query sees its own and the window - 1 tokens before it
    sliding: tuple[bool, ...] | None = None  # the layers that the window holds for; None: all
    rope_scaling: RopeScaling | None = None
    activation: Literal["silu", "gelu"] = "silu"  # of the gate; gelu: its tanh form (Gemma)
    post_norms: bool = False  # Gemma: what attention and the gated layer give is normed before it is added
    embed_scale: float = 1.0  # Gemma multiplies embeddings and queries, Granite also what a block adds and logits
    residual_scale: float = 1.0
    query_scale: float = 1.0  # beside K^-1/2
    logit_scale: float = 1.0  # of the vocabulary logits
    attn_logit_softcap: float | None = None  # Gemma 2: attention scores s are cap tanh(s / cap),
    final_logit_softcap: float | None = None  # and so are the vocabulary logits
    local_rope_theta: float | None = None  # Gemma 3: rope_theta of the layers that slide, unscaled; None: that of all
    experts: int = 0  # Qwen3-MoE: E gated layers in place of one (kernels/experts.py),
    experts_per_token: int = 0  # of which each token takes so many
    norm_topk_prob: bool = False  # the taken experts' weights sum to 1
    lm_head: bool = False  # keep the vocabulary projection of an untied model (language-model loss)
    head: str = "none"  # step head: none, or a key of HEADS
    head_dropout: float = 0.0  # probability of dropping a feature before the step head, in training only
    dtype: str = "float32"  # compute dtype; norms, softmax, heads and losses stay float32
    remat: str = "none"  # what the backward pass computes again: none, dots (all but linear layers, attention), full (each block)

    def __post_init__(self):
        assert self.head in ("none", *HEADS), f"head: got {self.head!r}, expected none or one of {', '.join(HEADS)}"
        assert self.heads % self.kv_heads == 0, f"heads: {self.heads} is no multiple of kv_heads {self.kv_heads}"
        assert self.family in FAMILIES, f"model_type: got {self.family!r}, expected {', '.join(FAMILIES)}"
        for name in ("window", "attn_logit_softcap", "final_logit_softcap"):
            found = getattr(self, name)
            assert found is None or found > 0, f"{name}: got {found}, expected above 0"
        layers = len(self.sliding or range(self.layers))
        assert layers == self.layers, f"layer_types: has {layers} layers, expected {self.layers}"
        E, taken = self.experts, self.experts_per_token
        assert min(1, E) <= taken <= E, f"num_experts_per_tok: got {taken}, expected 1 to {E}"
        assert not (E and self.mlp_bias), "mlp_bias: experts have none"
        assert self.head_dim % 2 == 0, f"head_dim: {self.head_dim} is odd; rotary embeddings need pairs"


@flatten_tokens
def linear(x_nD, w_DF, b_F=None, dtype=None):
    """x @ w (+ b), computed in the dtype of x; the result is in `dtype`, or in that of x."""
    y_nF = w_DF(x_nD) if isinstance(w_DF, LowRank) else matmul(x_nD, w_DF[...].astype(x_nD.dtype), dtype)
    if b_F is not None:
        y_nF = add_bias(y_nF, b_F[...].astype(y_nF.dtype))
    return save_for_backward(y_nF, "linear")


@flatten_tokens
def exact_linear(x_nD, w_DF, b_F):
    """x @ w + b in float32, on an accelerator too, which else rounds the factors."""
    return jnp.matmul(x_nD, w_DF[...], precision=jax.lax.Precision.HIGHEST) + b_F[...]


@flatten_tokens
def rms_norm(x_nD, gain_D, eps):
    """Root-mean-square norm in float32, returned in the dtype of x."""
    x32_nD = x_nD.astype(jnp.float32)
    scale_n1 = jax.lax.rsqrt(jnp.mean(x32_nD * x32_nD, -1, keepdims=True) + eps)
    return (x32_nD * scale_n1 * gain_D[...]).astype(x_nD.dtype)


def norm(x, gain, cfg: ModelConfig):
    """x normed as every block and the output do, over its last axis; x itself where there is no gain."""
    return x if gain is None else rms_norm(x, gain, cfg.norm_eps)


@flatten_tokens
def gated(gate_nF, up_nF, activation: str):
    """activation(gate) * up in float32, returned in their dtype: SwiGLU, GeGLU (Shazeer 2020)."""
    f = {"silu": jax.nn.silu, "gelu": jax.nn.gelu}[activation]
    return (f(gate_nF.astype(jnp.float32)) * up_nF.astype(jnp.float32)).astype(up_nF.dtype)


def at_step_ends(x_BLD, step_end_BT):
    """The entries at the rows' step ends, x_BTD."""
    return jnp.take_along_axis(x_BLD, step_end_BT[:, :, None], axis=1)


class Cache(NamedTuple):
    """Keys and values of the tokens so far, for calls that go on with them. All rows take the same slots, one after another:
    a token is written to one place of memory in all of them, and what is shorter has its padding before its first token.
    """

    # (k_BGKS, v_BGSK) of each layer: an array a layer is written in place, a slice of all is copied. On CPU the products of one
    # query with many keys are twice as fast so.
    layers: tuple
    visible_until_BS: jax.Array  # last slot that sees each slot's token; -1 where there is none yet
    length: jax.Array  # slots that are filled

    def take(self, row_b):
        """The cache of the rows numbered in row_b, copied: a prompt for each of its samples, the beams that survive."""
        layers = jax.tree.map(lambda x_BGxx: x_BGxx[row_b], self.layers)
        return Cache(layers, self.visible_until_BS[row_b], self.length)

    def grow(self, slots: int):
        """The cache with so many empty slots more."""
        pad = lambda x, axis: jnp.pad(x, [(0, slots * (i == axis)) for i in range(x.ndim)])
        layers = tuple((pad(k_BGKS, 3), pad(v_BGSK, 2)) for k_BGKS, v_BGSK in self.layers)
        visible_until_BS = jnp.pad(self.visible_until_BS, ((0, 0), (0, slots)), constant_values=-1)
        return Cache(layers, visible_until_BS, self.length)


def write_slots(old_BSx, new_BLx, slot, axis: int):
    """The old entries with the new ones from this slot of `axis` on."""
    return jax.lax.dynamic_update_slice_in_dim(old_BSx, new_BLx, slot, axis)


def make_cache(cfg: ModelConfig, rows: int, slots: int) -> Cache:
    """An empty one; memory is 2 I B S G K numbers of the compute dtype."""
    zeros_BGSK = jnp.zeros((rows, cfg.kv_heads, slots, cfg.head_dim), cfg.dtype)
    return Cache(
        ((zeros_BGSK.swapaxes(2, 3), zeros_BGSK),) * cfg.layers, jnp.full((rows, slots), -1), jnp.zeros((), jnp.int32)
    )


def init_normal(rngs, shape, scale):
    """A parameter drawn from a normal distribution of standard deviation `scale`."""
    return nnx.Param(rngs.params.normal(shape) * scale)


def head_scale(key: str, dim: int) -> float:
    """Standard deviation that a matrix of the step head starts with."""
    return dim**-0.5 if key == "w_mlp_head" else 0.02


class Block(nnx.Module):
    """Pre-norm attention and a gated layer."""

    def __init__(self, cfg: ModelConfig, *, rngs: nnx.Rngs):
        D, F, H, G, K = cfg.dim, cfg.ffn, cfg.heads, cfg.kv_heads, cfg.head_dim
        each = (cfg.experts,) if cfg.experts else ()
        self.cfg = cfg
        self.norm_attn = nnx.Param(jnp.ones(D))
        self.w_q = init_normal(rngs, (D, H * K), D**-0.5)
        self.w_k = init_normal(rngs, (D, G * K), D**-0.5)
        self.w_v = init_normal(rngs, (D, G * K), D**-0.5)
        self.b_q = nnx.Param(jnp.zeros(H * K)) if cfg.qkv_bias else None
        self.b_k = nnx.Param(jnp.zeros(G * K)) if cfg.qkv_bias else None
        self.b_v = nnx.Param(jnp.zeros(G * K)) if cfg.qkv_bias else None
        self.norm_q = nnx.Param(jnp.ones(K)) if cfg.qk_norm else None
        self.norm_k = nnx.Param(jnp.ones(K)) if cfg.qk_norm else None
        self.w_o = init_normal(rngs, (H * K, D), (H * K) ** -0.5)
        self.b_o = nnx.Param(jnp.zeros(D)) if cfg.o_bias else None
        self.norm_attn_out = nnx.Param(jnp.ones(D)) if cfg.post_norms else None
        self.norm_ffn = nnx.Param(jnp.ones(D))
        self.w_router = init_normal(rngs, (D, cfg.experts), D**-0.5) if cfg.experts else None
        self.w_gate = init_normal(rngs, (*each, D, F), D**-0.5)
        self.w_up = init_normal(rngs, (*each, D, F), D**-0.5)
        self.w_down = init_normal(rngs, (*each, F, D), F**-0.5)
        self.b_gate = nnx.Param(jnp.zeros(F)) if cfg.mlp_bias else None
        self.b_up = nnx.Param(jnp.zeros(F)) if cfg.mlp_bias else None
        self.b_down = nnx.Param(jnp.zeros(D)) if cfg.mlp_bias else None
        self.norm_ffn_out = nnx.Param(jnp.ones(D)) if cfg.post_norms else None

    def __call__(self, x_BLD, rope, visible_until_BS, slot_BL=None, past=None):
        """The residual stream after this block, x_BLD, and `past` with the keys and values of its tokens.

        `past`: those of the tokens before (k_BGKS, v_BGSK), among which the new ones take the slots slot_BL.
        """
        cfg = self.cfg
        heads = lambda y_BLx: y_BLx.reshape(*y_BLx.shape[:2], -1, cfg.head_dim)
        h_BLD = norm(x_BLD, self.norm_attn, cfg)
        q_BLHK = norm(heads(linear(h_BLD, self.w_q, self.b_q)), self.norm_q, cfg)
        k_BLGK = norm(heads(linear(h_BLD, self.w_k, self.b_k)), self.norm_k, cfg)
        v_BLGK = heads(linear(h_BLD, self.w_v, self.b_v))
        q_BLHK, k_BLGK = rotate(q_BLHK, *rope), rotate(k_BLGK, *rope)
        if not cfg.qk_norm:  # whose backward pass needs them as they came, so that these would be kept besides
            q_BLHK, k_BLGK = save_for_backward(q_BLHK, "attention"), save_for_backward(k_BLGK, "attention")
        k_BSGK, v_BSGK = k_BLGK, v_BLGK
        if past is not None:
            k_BGKS = write_slots(past[0], k_BLGK.transpose(0, 2, 3, 1), slot_BL[0, 0], axis=3)
            v_BGSK = write_slots(past[1], v_BLGK.swapaxes(1, 2), slot_BL[0, 0], axis=2)
            past, k_BSGK, v_BSGK = (k_BGKS, v_BGSK), k_BGKS.transpose(0, 3, 1, 2), v_BGSK.swapaxes(1, 2)
        own_attend = partial(attend, cap=cfg.attn_logit_softcap)
        o_BLHK = shard_heads(own_attend, cfg.query_scale * q_BLHK, k_BSGK, v_BSGK, visible_until_BS, slot_BL)
        h_BLD = linear(o_BLHK.reshape(*x_BLD.shape[:2], -1), self.w_o, self.b_o)
        x_BLD += cfg.residual_scale * norm(h_BLD, self.norm_attn_out, cfg)

        def ffn(h_nD, dot):
            h_nF = gated(dot(h_nD, self.w_gate, self.b_gate), dot(h_nD, self.w_up, self.b_up), cfg.activation)
            return dot(h_nF, self.w_down, self.b_down)

        h_BLD = norm(x_BLD, self.norm_ffn, cfg)
        if cfg.experts:
            logit_BLE = linear(h_BLD, self.w_router)
            h_BLD = mixture(h_BLD, logit_BLE, cfg.experts_per_token, cfg.norm_topk_prob, ffn)
        else:
            h_BLD = ffn(h_BLD, linear)
        return x_BLD + cfg.residual_scale * norm(h_BLD, self.norm_ffn_out, cfg), past


class PRM(nnx.Module):
    """Transformer with a step head (`head`), a vocabulary projection (`unembed` or tied), or both."""

    def __init__(self, cfg: ModelConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.embed = init_normal(rngs, (cfg.vocab, cfg.dim), 0.02)
        self.blocks = jax.vmap(lambda r: Block(cfg, rngs=r))(rngs.split(cfg.layers))
        self.norm_out = nnx.Param(jnp.ones(cfg.dim))
        self.unembed = init_normal(rngs, (cfg.dim, cfg.vocab), cfg.dim**-0.5) if cfg.lm_head and not cfg.tied else None
        head, scale = HEADS.get(cfg.head), lambda key: head_scale(key, cfg.dim)
        self.w_mlp_head = init_normal(rngs, (cfg.dim, cfg.dim), scale("w_mlp_head")) if head and head.hidden else None
        self.b_mlp_head = nnx.Param(jnp.zeros(cfg.dim)) if head and head.hidden else None
        self.w_head = init_normal(rngs, (cfg.dim, head.outputs), scale("w_head")) if head else None
        self.b_head = nnx.Param(jnp.zeros(head.outputs)) if head else None

    def __call__(self, ids_BL, pos_BL, visible_until_BL, step_end_BT=None, cache=None):
        """Hidden states after the final norm, x_BLD; with `step_end_BT` those of the step ends alone, x_BTD.

        `visible_until_BL`: last place in its row that sees each token (attention.py). With a `cache`, whose rows these tokens
        go on, places are slots: ALWAYS is seen by all that follows, and padding, before a row's first token, by its own alone.
        Returns (x, cache) then; tokens for which no slots are left give NaN, they and all that follow.
        """
        cfg, slot_BL, visible_until_BS = self.cfg, None, visible_until_BL
        x_BLD = cfg.embed_scale * embed_lookup(self.embed[...], ids_BL).astype(cfg.dtype)
        if cache is not None:
            L, at = ids_BL.shape[1], cache.length
            end, slot_BL = at + L, jnp.broadcast_to(at + jnp.arange(L), ids_BL.shape)
            visible_until_BS = write_slots(cache.visible_until_BS, visible_until_BL, at, axis=1)
            x_BLD = jnp.where(end <= visible_until_BS.shape[1], x_BLD, jnp.nan)  # no slots are left
        local_BS = visible_until_BS
        if cfg.window is not None:
            local_BS = jnp.minimum(visible_until_BS, jnp.arange(visible_until_BS.shape[1]) + cfg.window - 1)
        rope = local_rope = rotations(pos_BL, cfg.head_dim, cfg.rope_theta, cfg.rope_scaling)
        if cfg.local_rope_theta is not None:
            local_rope = rotations(pos_BL, cfg.head_dim, cfg.local_rope_theta, None)
        sees_window, sees_all = (local_rope, local_BS), (rope, visible_until_BS)

        def layer(x_BLD, xs):
            block, is_sliding, past = xs
            # What is the same for both kinds is not selected: a selection is kept for the backward pass once a layer.
            choose = lambda x, y: x if x is y else jnp.where(is_sliding, x, y)
            layer_rope, layer_visible_BS = jax.tree.map(choose, sees_window, sees_all)
            x_BLD, past = block(x_BLD, layer_rope, layer_visible_BS, slot_BL, past)
            return constrain_rows(x_BLD), past

        slides_I = np.array(cfg.sliding or [cfg.window is not None] * cfg.layers)
        if cache is None:
            x_BLD, _ = jax.lax.scan(remat(layer, cfg.remat), x_BLD, (self.blocks, slides_I, None))
        else:
            layers = []
            for xs in zip(self.layers(), slides_I, cache.layers, strict=True):
                x_BLD, past = layer(x_BLD, xs)
                layers.append(past)
            cache = Cache(tuple(layers), visible_until_BS, end)
        if step_end_BT is not None:
            x_BLD = at_step_ends(x_BLD, step_end_BT)
        x_BLD = norm(x_BLD, self.norm_out, cfg)
        return x_BLD if cache is None else (x_BLD, cache)

    def layers(self) -> list[Block]:
        """The blocks, one by one."""
        one = lambda i: jax.tree.map(lambda w: w[i], self.blocks)
        return self.blocks if isinstance(self.blocks, list | nnx.List) else [one(i) for i in range(self.cfg.layers)]

    def step_logits(self, x_BTD, k_dropout=None):
        """Logits of the step head from hidden states at step ends, float32 logit_BTC."""
        x_BTD = x_BTD.astype(jnp.float32)
        if k_dropout is not None and self.cfg.head_dropout > 0:
            keep = 1 - self.cfg.head_dropout
            x_BTD = jnp.where(jax.random.bernoulli(k_dropout, keep, x_BTD.shape), x_BTD / keep, 0)
        if HEADS[self.cfg.head].hidden:
            x_BTD = jax.nn.relu(exact_linear(x_BTD, self.w_mlp_head, self.b_mlp_head))
        return exact_linear(x_BTD, self.w_head, self.b_head)

    def vocab_logits(self, x_BLD):
        """Next-token logits, float32 logit_BLV: products of the compute dtype, summed in float32 and not rounded."""
        w_DV = self.embed[...].T if self.cfg.tied else self.unembed[...]
        return soft_cap(self.cfg.logit_scale * linear(x_BLD, w_DV, dtype=jnp.float32), self.cfg.final_logit_softcap)

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


def choose_dtype(name: str) -> str:
    """The compute dtype of a config: `auto` is bfloat16 on GPU and TPU, and float32 on CPU, where bfloat16 is faster only on
    processors with instructions for it (AVX512-BF16, AMX), and short rows gain nothing."""
    if name == "auto":
        return "float32" if jax.devices()[0].platform == "cpu" else "bfloat16"
    if name not in ("float32", "bfloat16"):
        raise InputError(f"dtype: got {name!r}, expected auto, float32 or bfloat16")
    return name


def cast_backbone(model: PRM) -> PRM:
    """The model with the backbone's matrices stored in the compute dtype: every use casts them to it, so no score changes.

    For matrices that do not train; one that does stays float32, where small updates add up.
    """

    def store(path, x):
        *_, last = on_way = path_names(path)
        is_matrix = not {*OUT_SPLIT, *IN_SPLIT}.isdisjoint(on_way) and last not in ("a", "b")
        return x.astype(model.cfg.dtype) if is_matrix else x

    return jax.tree.map_with_path(store, model)


def for_decoding(model: PRM) -> PRM:
    """Under jit, before a loop of calls with a cache: matrices in the compute dtype and each layer's on their own. In the loop
    every step would copy them once more to cast them and to take them out of their stacks."""
    model = cast_backbone(jax.tree.map(lambda x: x, model))
    model.blocks = nnx.List(model.layers())
    return model
