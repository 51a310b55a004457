"""Attention by library kernels: cuDNN's on GPU, through jax.nn, and JAX's splash attention on TPU.

Both take the mask (visibility.py) as an array of one byte per pair; splash attention skips tiles without a
visible pair. It agrees with an einsum in interpret mode (tests/test_attention.py), and both lower with their
gradients (tests/test_accelerator.py, which on a chip checks their numbers). Neither has run on one.

Dimension key: B rows, L tokens (queries and keys), H query heads, G key/value heads, K head size."""

import jax
import jax.numpy as jnp

from prm_jax.launch.sharding import platform
from prm_jax.visibility import visible

TILE = 512  # tokens of a tile at most
LANES = 128  # of a TPU's vector register; tiles are multiples of it


def cudnn_takes(q_BLHK) -> bool:
    """Whether cuDNN can run it and its masked backward pass, which asks for the multiples of 2 and 8."""
    _, L, _, K = q_BLHK.shape
    return q_BLHK.dtype in (jnp.bfloat16, jnp.float16) and L % 2 == 0 and K % 8 == 0 and K <= 128


def cudnn(q_BLHK, k_BLGK, v_BLGK, visible_until_BL):
    """Softmax attention o_BLHK by cuDNN."""
    mask_B1LL = visible(visible_until_BL)[:, None]
    return jax.nn.dot_product_attention(q_BLHK, k_BLGK, v_BLGK, mask=mask_B1LL, implementation="cudnn")


def splash(q_BLHK, k_BLGK, v_BLGK, visible_until_BL, cap=None):
    """Softmax attention o_BLHK by splash attention; every token must see itself."""
    # Imported here because Pallas takes a second.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as library

    _, L, _, K = q_BLHK.shape
    t = min(TILE, -(-L // LANES) * LANES)
    more = -L % t
    index_L = jnp.arange(L + more)
    visible_until_BL = jnp.pad(visible_until_BL, ((0, 0), (0, more)), constant_values=L)
    visible_until_BL = jnp.where(visible_until_BL < L, visible_until_BL, index_L)  # padding sees only itself
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
        # vmap makes this flag a traced array, on which the library would branch.
        kernel.fwd_mask_info = kernel.fwd_mask_info._replace(is_dynamic_mask=True)
        return kernel(*(x.swapaxes(0, 1) for x in (q_LHK, k_LGK, v_LGK))).swapaxes(0, 1)

    padded = [jnp.pad(x, ((0, 0), (0, more), (0, 0), (0, 0))) for x in (q_BLHK * K**-0.5, k_BLGK, v_BLGK)]
    return jax.vmap(row)(*padded, visible(visible_until_BL))[:, :L]
