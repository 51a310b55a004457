"""A decoder-only transformer of FAMILIES, its step head and its KV cache.

Dimension key: B rows, L tokens, D model, F ffn, H query heads, G key/value heads, K head size (k = K / 2), V
vocabulary, T step ends, C head outputs, E experts; I layers, the leading axis of all parameters of the
blocks; S keys that a query may see (the row's own L tokens, or the slots of a cache); n tokens of all rows
together."""

import dataclasses
import math
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from prm_jax.attention import attend
from prm_jax.heads import HEADS
from prm_jax.kernels.cpu import (
    add_bias,
    as_bits,
    flatten_tokens,
    from_bits,
    matmul,
    save_for_backward,
    soft_cap,
)
from prm_jax.kernels.experts import mixture
from prm_jax.launch.sharding import IN_SPLIT, OUT_SPLIT, constrain_rows, embed_lookup, platform, shard_heads
from prm_jax.rope import RopeScaling, rotate, rotations

LOGITS = 1 << 24  # of the vocabulary that are held at a time: 67 MB
# model_type of a config.json
FAMILIES = ("qwen2", "qwen3", "qwen3_moe", "llama", "mistral", "granite", "gemma2", "gemma3_text")
# Rematerialisation (Chen et al. 2016, 1604.06174): a block saves its input and its named values. `dots` names
# outputs of linear layers, and attention's inputs and outputs (of cuDNN's kernel not the outputs).
REMAT = {"dots": jax.checkpoint_policies.save_only_these_names("linear", "attention"), "full": None}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """What fixes the parameters' shapes and their use; checkpoints/hf_config.py reads a config.json."""

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
    family: str = "qwen2"  # model_type of the config.json: what it is called; the fields say what is computed
    max_positions: int = 32_768  # longest row the model was made for (max_position_embeddings)
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # Qwen3: queries and keys are normed, head by head, before the rotation
    window: int | None = None  # a query sees its own and the window - 1 tokens before it
    sliding: tuple[bool, ...] | None = None  # the layers that the window holds for; None: all
    rope_scaling: RopeScaling | None = None
    activation: Literal["silu", "gelu"] = "silu"  # of the gate; gelu: its tanh form (Gemma)
    post_norms: bool = False  # Gemma: outputs of attention and gated layer are normed before they are added
    embed_scale: float = 1.0  # Gemma scales embeddings and queries; Granite also block outputs and logits
    residual_scale: float = 1.0
    query_scale: float = 1.0  # beside K^-1/2
    logit_scale: float = 1.0  # of the vocabulary logits
    attn_logit_softcap: float | None = None  # Gemma 2: attention scores s are cap tanh(s / cap),
    final_logit_softcap: float | None = None  # and so are the vocabulary logits
    local_rope_theta: float | None = None  # Gemma 3: unscaled, of the sliding layers; None: the same for all
    experts: int = 0  # Qwen3-MoE: E gated layers in place of one (kernels/experts.py)
    experts_per_token: int = 0  # how many of them compute each token
    norm_topk_prob: bool = False  # the weights of a token's experts sum to 1
    lm_head: bool = False  # keep the vocabulary projection of an untied model (language-model loss)
    head: str = "none"  # step head: none, or a key of HEADS
    head_dropout: float = 0.0  # probability of dropping a feature before the step head, in training only
    dtype: str = "float32"  # compute dtype; norms, softmax, heads and losses stay float32
    remat: str = "none"  # what the backward pass recomputes: none, or dots or full (REMAT)

    def __post_init__(self):
        heads = "none", *HEADS
        assert self.head in heads, f"head: got {self.head!r}, expected one of {', '.join(heads)}"
        G = self.kv_heads
        assert self.heads % G == 0, f"heads: {self.heads} is no multiple of {G} kv_heads"
        assert self.family in FAMILIES, f"model_type: got {self.family!r}, expected {', '.join(FAMILIES)}"
        positive = "window attn_logit_softcap final_logit_softcap rope_theta local_rope_theta norm_eps "
        positive += "embed_scale residual_scale query_scale logit_scale"
        for name in positive.split():
            value = getattr(self, name)
            assert value is None or 0 < value < math.inf, f"{name}: got {value}, expected a number above 0"
        layers = self.layers if self.sliding is None else len(self.sliding)
        assert layers == self.layers, f"layer_types: has {layers} layers, expected {self.layers}"
        E, per_token = self.experts, self.experts_per_token
        assert min(1, E) <= per_token <= E, f"num_experts_per_tok: got {per_token}, expected 1 to {E}"
        assert not (E and self.mlp_bias), "mlp_bias: experts have none"
        assert self.head_dim % 2 == 0, f"head_dim: {self.head_dim} is odd; rotary embeddings need pairs"


@flatten_tokens
def linear(x_nD, w_DF, b_F=None, dtype=None):
    """x @ w (+ b), computed in the dtype of x; the result is in `dtype`, or in that of x."""
    if isinstance(w_DF, nnx.Module):  # a layer in place of the matrix (lora.py)
        y_nF = w_DF(x_nD)
    else:
        y_nF = matmul(x_nD, w_DF[...].astype(x_nD.dtype), dtype)
    if b_F is not None:
        y_nF = add_bias(y_nF, b_F[...].astype(y_nF.dtype))
    return save_for_backward(y_nF, "linear")


@flatten_tokens
def exact_linear(x_nD, w_DF, b_F):
    """x @ w + b in full float32; accelerators round the factors by default."""
    return jnp.matmul(x_nD, w_DF[...], precision=jax.lax.Precision.HIGHEST) + b_F[...]


@flatten_tokens
def norm(x_nD, gain_D, cfg: ModelConfig):
    """Root-mean-square norm in float32, returned in the dtype of x; x itself where there is no gain."""
    if gain_D is None:
        return x_nD
    x32_nD = x_nD.astype(jnp.float32)
    scale_n1 = jax.lax.rsqrt(jnp.mean(x32_nD * x32_nD, -1, keepdims=True) + cfg.norm_eps)
    return (x32_nD * scale_n1 * gain_D[...]).astype(x_nD.dtype)


@flatten_tokens
def gated(gate_nF, up_nF, activation: str):
    """activation(gate) * up in float32, returned in their dtype: SwiGLU, GeGLU (Shazeer 2020)."""
    f = {"silu": jax.nn.silu, "gelu": jax.nn.gelu}[activation]
    return (f(gate_nF.astype(jnp.float32)) * up_nF.astype(jnp.float32)).astype(up_nF.dtype)


def at_step_ends(x_BLD, step_end_BT):
    """The entries at the rows' step ends, x_BTD."""
    return jnp.take_along_axis(x_BLD, step_end_BT[:, :, None], axis=1)


class Cache(NamedTuple):
    """Keys and values of the tokens so far. A row has its padding before its first token."""

    # (k_BGKS, v_BGSK) of each layer, which is written in place: slices of one array would be copied. In these
    # layouts the products of one query with many keys are twice as fast on CPU.
    layers: tuple
    visible_until_BS: jax.Array  # last slot that sees each slot's token; -1 where there is none yet
    length_B: jax.Array  # number of filled slots

    def take(self, row_b):
        """A copy of rows row_b: a prompt once for each of its samples, or the rows that go on."""
        return jax.tree.map(lambda x_B: x_B[row_b], self)

    def put(self, place_b, rows: "Cache"):
        """The cache with other rows, of no more slots, in the places place_b; one beyond the last is left
        out."""
        rows = rows.grow(self.visible_until_BS.shape[1] - rows.visible_until_BS.shape[1])
        return jax.tree.map(lambda x_B, x_b: x_B.at[place_b].set(x_b, mode="drop"), self, rows)

    def grow(self, slots: int):
        """The cache with `slots` more empty slots."""
        more, none = (0, slots), (0, 0)
        pads = (none, none, none, more), (none, none, more, none)  # of k_BGKS, of v_BGSK
        layers = tuple(tuple(map(jnp.pad, layer, pads)) for layer in self.layers)
        visible_until_BS = jnp.pad(self.visible_until_BS, (none, more), constant_values=-1)
        return Cache(layers, visible_until_BS, self.length_B)


def write(x_B, slot_BL, new_B, axis=0):
    """The rows x_B with new_B in slots slot_BL of an axis of each; a slot beyond the last is left out. Row by
    row, since XLA would gather what is indexed by rows, too, from all devices (1.1 x the time of sampling)."""
    before = (slice(None),) * axis
    set_slots = jax.vmap(lambda x, slot_L, new: x.at[*before, slot_L].set(new))
    return set_slots(x_B, slot_BL, new_B.astype(x_B.dtype))


def make_cache(cfg: ModelConfig, rows: int, slots: int) -> Cache:
    """An empty cache of 2 I B S G K numbers, of the compute dtype; float32 on CPU, where XLA would convert a
    whole bfloat16 cache to write one token (85 times as long for 64 rows of 128 slots)."""
    dtype = jnp.float32 if platform() == "cpu" else cfg.dtype
    zeros_BGSK = jnp.zeros((rows, cfg.kv_heads, slots, cfg.head_dim), dtype)
    layers = ((zeros_BGSK.swapaxes(2, 3), zeros_BGSK),) * cfg.layers
    return Cache(layers, jnp.full((rows, slots), -1), jnp.zeros(rows, jnp.int32))


def matrix(rngs, shape, scale, mesh_axes=(), **metadata):
    """A matrix drawn from a normal distribution of standard deviation `scale`, and what is known of it.

    `mesh_axes`: how a mesh splits its last two axes (launch/sharding.py); such a matrix is stored in the
    compute dtype where it does not train. Weight decay applies to matrices alone (`decays`). `in_head=True`
    marks what trains with optimizer.trainable=head or lora."""
    return nnx.Param(rngs.params.normal(shape) * scale, decays=True, mesh_axes=mesh_axes, **metadata)


def head_scale(key: str, dim: int) -> float:
    """Standard deviation of a step head's matrix at its start."""
    return dim**-0.5 if key == "w_mlp_head" else 0.02


class Block(nnx.Module):
    """Pre-norm attention and a gated layer."""

    def __init__(self, cfg: ModelConfig, *, rngs: nnx.Rngs):
        D, F, H, G, K = cfg.dim, cfg.ffn, cfg.heads, cfg.kv_heads, cfg.head_dim
        each = (cfg.experts,) if cfg.experts else ()

        def gain(n: int, wanted: bool = True):
            return nnx.Param(jnp.ones(n)) if wanted else None

        def bias(n: int, wanted: bool):
            return nnx.Param(jnp.zeros(n)) if wanted else None

        self.cfg = cfg
        self.norm_attn = gain(D)
        self.w_q = matrix(rngs, (D, H * K), D**-0.5, OUT_SPLIT)
        self.w_k = matrix(rngs, (D, G * K), D**-0.5, OUT_SPLIT)
        self.w_v = matrix(rngs, (D, G * K), D**-0.5, OUT_SPLIT)
        self.b_q = bias(H * K, cfg.qkv_bias)
        self.b_k = bias(G * K, cfg.qkv_bias)
        self.b_v = bias(G * K, cfg.qkv_bias)
        self.norm_q = gain(K, cfg.qk_norm)
        self.norm_k = gain(K, cfg.qk_norm)
        self.w_o = matrix(rngs, (H * K, D), (H * K) ** -0.5, IN_SPLIT)
        self.b_o = bias(D, cfg.o_bias)
        self.norm_attn_out = gain(D, cfg.post_norms)
        self.norm_ffn = gain(D)
        self.w_router = matrix(rngs, (D, cfg.experts), D**-0.5) if cfg.experts else None
        self.w_gate = matrix(rngs, (*each, D, F), D**-0.5, OUT_SPLIT)
        self.w_up = matrix(rngs, (*each, D, F), D**-0.5, OUT_SPLIT)
        self.w_down = matrix(rngs, (*each, F, D), F**-0.5, IN_SPLIT)
        self.b_gate = bias(F, cfg.mlp_bias)
        self.b_up = bias(F, cfg.mlp_bias)
        self.b_down = bias(D, cfg.mlp_bias)
        self.norm_ffn_out = gain(D, cfg.post_norms)

    def __call__(self, x_BLD, rope, visible_until_BS, slot_BL=None, past=None):
        """The residual stream after this block, x_BLD, and `past`, keys and values (k_BGKS, v_BGSK) of the
        tokens before, with those of these tokens in the slots slot_BL."""
        cfg = self.cfg
        h_BLD = norm(x_BLD, self.norm_attn, cfg)
        h_BLD, past = self.attention(h_BLD, rope, visible_until_BS, slot_BL, past)
        x_BLD += cfg.residual_scale * norm(h_BLD, self.norm_attn_out, cfg)
        h_BLD = self.feed_forward(norm(x_BLD, self.norm_ffn, cfg))
        return x_BLD + cfg.residual_scale * norm(h_BLD, self.norm_ffn_out, cfg), past

    def attention(self, h_BLD, rope, visible_until_BS, slot_BL, past):
        """What each token reads of those that it sees, h_BLD; and `past` with these tokens."""
        cfg, (B, L, _) = self.cfg, h_BLD.shape
        q_BLHK = linear(h_BLD, self.w_q, self.b_q).reshape(B, L, -1, cfg.head_dim)
        k_BLGK = linear(h_BLD, self.w_k, self.b_k).reshape(B, L, -1, cfg.head_dim)
        v_BLGK = linear(h_BLD, self.w_v, self.b_v).reshape(B, L, -1, cfg.head_dim)
        q_BLHK = rotate(norm(q_BLHK, self.norm_q, cfg), *rope)
        k_BLGK = rotate(norm(k_BLGK, self.norm_k, cfg), *rope)
        if not cfg.qk_norm:  # the norm's backward pass keeps its own inputs, and these would be kept besides
            q_BLHK = save_for_backward(q_BLHK, "attention")
            k_BLGK = save_for_backward(k_BLGK, "attention")
        k_BSGK, v_BSGK = k_BLGK, v_BLGK
        if past is not None:
            k_BGKS = write(past[0], slot_BL, k_BLGK.transpose(0, 2, 3, 1), axis=2)
            v_BGSK = write(past[1], slot_BL, v_BLGK.swapaxes(1, 2), axis=1)
            past = k_BGKS, v_BGSK
            k_BSGK, v_BSGK = k_BGKS.transpose(0, 3, 1, 2), v_BGSK.swapaxes(1, 2)
        capped_attend = partial(attend, cap=cfg.attn_logit_softcap)
        q_BLHK = cfg.query_scale * q_BLHK
        o_BLHK = shard_heads(capped_attend, q_BLHK, k_BSGK, v_BSGK, visible_until_BS, slot_BL)
        return linear(o_BLHK.reshape(B, L, -1), self.w_o, self.b_o), past

    def feed_forward(self, h_BLD):
        """The gated layer, or a mixture of them."""
        cfg = self.cfg

        def layer(h_nD, dot):
            gate_nF, up_nF = dot(h_nD, self.w_gate, self.b_gate), dot(h_nD, self.w_up, self.b_up)
            return dot(gated(gate_nF, up_nF, cfg.activation), self.w_down, self.b_down)

        if not cfg.experts:
            return layer(h_BLD, linear)
        logit_BLE = linear(h_BLD, self.w_router)
        return mixture(h_BLD, logit_BLE, cfg.experts_per_token, cfg.norm_topk_prob, layer)


class PRM(nnx.Module):
    """Transformer with a step head (`head`), a vocabulary projection (`unembed` or tied), or both."""

    def __init__(self, cfg: ModelConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.embed = matrix(rngs, (cfg.vocab, cfg.dim), 0.02, IN_SPLIT)
        self.blocks = jax.vmap(lambda r: Block(cfg, rngs=r))(rngs.split(cfg.layers))
        self.norm_out = nnx.Param(jnp.ones(cfg.dim))
        has_unembed = cfg.lm_head and not cfg.tied
        self.unembed = matrix(rngs, (cfg.dim, cfg.vocab), cfg.dim**-0.5, OUT_SPLIT) if has_unembed else None
        head = HEADS.get(cfg.head)
        has_hidden = head is not None and head.hidden

        def head_matrix(key, outputs):
            return matrix(rngs, (cfg.dim, outputs), head_scale(key, cfg.dim), in_head=True)

        self.w_mlp_head = head_matrix("w_mlp_head", cfg.dim) if has_hidden else None
        self.b_mlp_head = nnx.Param(jnp.zeros(cfg.dim), in_head=True) if has_hidden else None
        self.w_head = head_matrix("w_head", head.outputs) if head else None
        self.b_head = nnx.Param(jnp.zeros(head.outputs), in_head=True) if head else None

    def __call__(self, ids_BL, pos_BL, visible_until_BL, step_end_BT=None, cache=None, ropes=None):
        """Hidden states after the final norm: x_BLD; with `step_end_BT` those of the step ends alone, x_BTD;
        with a `cache`, whose rows these tokens continue, (x, cache).

        `visible_until_BL`: the last place of its row that sees each token (visibility.py). With a cache
        places are slots: a token with ALWAYS is seen by all that follow, padding before a row's first token
        only by itself; what passes a row's last slot is NaN. `ropes`: those of pos_BL, where the caller has
        them."""
        cfg = self.cfg
        slot_BL, visible_until_BS = None, visible_until_BL
        x_BLD = cfg.embed_scale * embed_lookup(self.embed[...], ids_BL).astype(cfg.dtype)
        if cache is not None:
            slot_BL = cache.length_B[:, None] + jnp.arange(ids_BL.shape[1])
            visible_until_BS = write(cache.visible_until_BS, slot_BL, visible_until_BL)
            has_slot_BL = slot_BL < visible_until_BS.shape[1]
            x_BLD = jnp.where(has_slot_BL[..., None], x_BLD, jnp.nan)
        rope, local_rope = ropes or self.ropes(pos_BL)
        place_S = jnp.arange(visible_until_BS.shape[1])

        def layer(x_BLD, xs):
            block, is_sliding, past = xs
            block = jax.tree.map(from_bits, block)
            layer_rope, layer_visible_BS = rope, visible_until_BS
            # Only where they differ: the backward pass would keep a selection of each layer.
            if cfg.local_rope_theta is not None:
                layer_rope = jax.tree.map(partial(jnp.where, is_sliding), local_rope, rope)
            if cfg.window is not None:
                local_BS = jnp.minimum(visible_until_BS, place_S + cfg.window - 1)
                layer_visible_BS = jnp.where(is_sliding, local_BS, visible_until_BS)
            x_BLD, past = block(x_BLD, layer_rope, layer_visible_BS, slot_BL, past)
            return constrain_rows(x_BLD), past

        slides_I = np.array(cfg.sliding or [cfg.window is not None] * cfg.layers)
        if cache is None:
            if cfg.remat != "none":
                layer = jax.checkpoint(layer, policy=REMAT[cfg.remat])
            x_BLD, _ = jax.lax.scan(layer, x_BLD, (jax.tree.map(as_bits, self.blocks), slides_I, None))
        else:
            layers = []
            for xs in zip(self.layers(), slides_I, cache.layers, strict=True):
                x_BLD, past = layer(x_BLD, xs)
                layers.append(past)
            cache = Cache(tuple(layers), visible_until_BS, slot_BL[:, -1] + 1)
        if step_end_BT is not None:
            x_BLD = at_step_ends(x_BLD, step_end_BT)
        x_BLD = norm(x_BLD, self.norm_out, cfg)
        return x_BLD if cache is None else (x_BLD, cache)

    def ropes(self, pos_BL):
        """The rotations of layers that see all tokens, and of those that see a window."""
        cfg = self.cfg
        rope = rotations(pos_BL, cfg.head_dim, cfg.rope_theta, cfg.rope_scaling)
        if cfg.local_rope_theta is None:
            return rope, rope
        return rope, rotations(pos_BL, cfg.head_dim, cfg.local_rope_theta, None)

    def layers(self) -> list[Block]:
        """The blocks, one by one."""
        if isinstance(self.blocks, list | nnx.List):
            return self.blocks
        return [jax.tree.map(lambda w, i=i: w[i], self.blocks) for i in range(self.cfg.layers)]

    def step_logits(self, x_BTD, k_dropout=None):
        """Logits of the step head from hidden states at step ends, float32 logit_BTC."""
        x_BTD = x_BTD.astype(jnp.float32)
        if k_dropout is not None and self.cfg.head_dropout > 0:
            keep = 1 - self.cfg.head_dropout
            x_BTD = jnp.where(jax.random.bernoulli(k_dropout, keep, x_BTD.shape), x_BTD / keep, 0)
        if HEADS[self.cfg.head].hidden:
            x_BTD = jax.nn.relu(exact_linear(x_BTD, self.w_mlp_head, self.b_mlp_head))
        return exact_linear(x_BTD, self.w_head, self.b_head)

    def vocab_matrix(self):
        """The projection to the vocabulary, w_DV, in the compute dtype."""
        w_DV = self.embed[...].T if self.cfg.tied and self.unembed is None else self.unembed[...]
        return w_DV.astype(self.cfg.dtype)

    def vocab_logits(self, x_BLD):
        """Next-token logits, float32 logit_BLV."""
        return read_logits(self.cfg, self.vocab_matrix(), x_BLD)

    def next_logprobs(self, x_BLD, ids_BL):
        """log p of each token's successor in nats, logp_BL; the last entry of a row means nothing."""
        return self.logprobs(x_BLD, jnp.roll(ids_BL, -1, axis=1))

    def logprobs(self, x_BLD, target_BL):
        """log p in nats of a token at each place, logp_BL. It takes b places at a time, with at most LOGITS
        logits, in all rows, which lie on all devices."""
        B, L = target_BL.shape
        b = min(L, max(1, LOGITS // (B * self.cfg.vocab)))

        # Not jax.lax.map: under its vmap each place has a gradient of the whole vocabulary matrix.
        @jax.checkpoint
        def block(_, places):
            x_BbD, target_Bb = places
            logit_BbV = self.vocab_logits(x_BbD)
            target_logit_Bb1 = jnp.take_along_axis(logit_BbV, target_Bb[..., None], axis=-1)
            return None, target_logit_Bb1[..., 0] - jax.nn.logsumexp(logit_BbV, axis=-1)

        def in_blocks(x_BL):
            padding = [(0, 0), (0, -L % b)] + [(0, 0)] * (x_BL.ndim - 2)
            return jnp.pad(x_BL, padding).reshape(B, -1, b, *x_BL.shape[2:]).swapaxes(0, 1)

        if b == L:
            return block(None, (x_BLD, target_BL))[1]
        _, logp_nBb = jax.lax.scan(block, None, (in_blocks(x_BLD), in_blocks(target_BL)))
        return logp_nBb.swapaxes(0, 1).reshape(B, -1)[:, :L]


def read_logits(cfg: ModelConfig, w_DV, x_BLD):
    """Logits of a vocabulary projection: factors in the compute dtype, sums in float32."""
    logit_BLV = cfg.logit_scale * linear(x_BLD, w_DV, dtype=jnp.float32)
    return soft_cap(logit_BLV, cfg.final_logit_softcap)


def cast_backbone(model: PRM) -> PRM:
    """The model with the backbone's matrices stored in the compute dtype, to which every use casts them, so
    no score changes. Only for a backbone that does not train: small updates add up in float32 alone, which
    low-rank factors keep."""

    def cast(x):
        in_backbone = isinstance(x, nnx.Param) and x.get_metadata("mesh_axes", ()) in (IN_SPLIT, OUT_SPLIT)
        return jax.tree.map(lambda w: w.astype(model.cfg.dtype), x) if in_backbone else x

    return jax.tree.map(cast, model, is_leaf=lambda x: isinstance(x, nnx.Variable))


def for_decoding(model: PRM) -> PRM:
    """The model for a loop of calls with a cache, under jit: matrices cast, each layer's parameters apart,
    and tied logits of a CPU by a matrix of their own. Else every step would copy them again."""
    model = cast_backbone(jax.tree.map(lambda x: x, model))
    model.blocks = nnx.List(model.layers())
    if model.cfg.tied and platform() == "cpu":
        model.unembed = nnx.data(nnx.Param(model.embed[...].T))
    return model
