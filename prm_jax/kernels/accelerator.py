"""Attention on GPU and TPU: adapters of library kernels, none of our own.

The GPU's is cuDNN's through jax.nn, the TPU's JAX's own splash attention. Both take the mask of mask.py as an array, one
byte a pair; splash attention leaves out the tiles in which nothing is visible. It agrees with an einsum in interpret mode and
lowers for a TPU (tests/test_attention.py). No chip has run either.

Dimension key: B rows, L tokens (queries and keys), H query heads, G key/value heads, K head size.
"""

import jax
import jax.numpy as jnp

from prm_jax.kernels.mask import visible
from prm_jax.launch.mesh import platform

TILE = 512  # tokens of splash attention's tiles; fewer where rows are shorter
LANES = 128  # of a TPU's vector register: tiles are multiples of it


def cudnn_takes(q_BLHK) -> bool:
    """Half precision; its backward pass with a mask takes rows of even length and heads of a multiple of 8, on all chips up
    to 128."""
    _, L, _, K = q_BLHK.shape
    return q_BLHK.dtype in (jnp.bfloat16, jnp.float16) and L % 2 == 0 and K % 8 == 0 and K <= 128


def cudnn(q_BLHK, k_BLGK, v_BLGK, visible_until_BL):
    """Softmax attention, o_BLHK."""
    mask_B1LL = visible(visible_until_BL)[:, None]
    return jax.nn.dot_product_attention(q_BLHK, k_BLGK, v_BLGK, mask=mask_B1LL, implementation="cudnn")


def splash(q_BLHK, k_BLGK, v_BLGK, visible_until_BL, cap=None):
    """Softmax attention, o_BLHK; every token must see at least itself."""
    # It imports Pallas, which takes a second.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as library

    _, L, _, K = q_BLHK.shape
    t = min(TILE, -(-L // LANES) * LANES)
    more = -L % t
    own_L = jnp.arange(L + more)
    visible_until_BL = jnp.pad(visible_until_BL, ((0, 0), (0, more)), constant_values=L)
    visible_until_BL = jnp.where(visible_until_BL < L, visible_until_BL, own_L)  # padding sees itself alone
    names = ("q", "kv", "kv_compute", "q_dq", "kv_dq", "q_dkv", "kv_dkv", "kv_dkv_compute")
    sizes = library.BlockSizes(**{f"block_{name}": t for name in names})

    def row(q_LHK, k_LGK, v_LGK, mask_LL):
        kernel = library.make_splash_mha(
            mask_LL[None],  # one for all heads
            block_sizes=sizes,
            head_shards=1,
            q_seq_shards=1,
            residual_checkpoint_name="attention",
            attn_logits_soft_cap=cap,
            interpret=platform() != "tpu",
        )
        # The library has made a traced array of this flag and would branch on it.
        kernel.fwd_mask_info = kernel.fwd_mask_info._replace(is_dynamic_mask=True)
        return kernel(*(x.swapaxes(0, 1) for x in (q_LHK, k_LGK, v_LGK))).swapaxes(0, 1)

    padded = [jnp.pad(x, ((0, 0), (0, more), (0, 0), (0, 0))) for x in (q_BLHK * K**-0.5, k_BLGK, v_BLGK)]
    return jax.vmap(row)(*padded, visible(visible_until_BL))[:, :L]
