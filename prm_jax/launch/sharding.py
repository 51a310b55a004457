"""How one array is split over the mesh in use: what model code says under jit.

Mesh axes: `data` splits the rows of a batch; `fsdp` splits rows and parameters, which are gathered layer by
layer; `tensor` splits heads and features (Shoeybi et al. 2020). Without a mesh nothing is split."""

import jax
from jax.sharding import PartitionSpec as P

AXES = ("data", "fsdp", "tensor")
ROWS = AXES[:2]
# The mesh axes that split a matrix [in, out] whose outputs, or whose inputs, are heads or features: a pair
# needs one sum over `tensor`. A parameter declares them as `mesh_axes`; all others are not split.
OUT_SPLIT = ("fsdp", "tensor")
IN_SPLIT = ("tensor", "fsdp")


def platform() -> str:
    """cpu, gpu or tpu: the platform of the mesh in use (whose devices need not exist), else jax's default."""
    mesh = jax.sharding.get_abstract_mesh()
    return jax.default_backend() if mesh.empty else mesh.abstract_device.platform


def spec(mesh_axes: tuple[str | None, ...], shape: tuple[int, ...], sizes: dict[str, int]) -> P:
    """The PartitionSpec of an array whose last axes `mesh_axes` split, on a mesh of these sizes. Not split
    are axes that the mesh does not divide, and those of experts and stacked layers."""
    pairs = zip([None] * (len(shape) - len(mesh_axes)) + list(mesh_axes), shape, strict=True)
    axes = [a if sizes.get(a, 1) > 1 and n % sizes[a] == 0 else None for a, n in pairs]
    # No trailing None, as jax itself writes it; otherwise the outputs of a step would not match its inputs.
    while axes and axes[-1] is None:
        axes.pop()
    return P(*axes)


def pin(x, *axes):
    """Constrains x to `sharding(*axes)` under jit."""
    return x if jax.sharding.get_abstract_mesh().empty else jax.lax.with_sharding_constraint(x, P(*axes))


def constrain_rows(x):
    """Splits the rows of the residual stream x_BLD over data and fsdp under jit. Over `tensor`, too, the
    linear layers would exchange nine times the bytes (72B on 64 devices)."""
    return pin(x, ROWS)


def embed_lookup(embed_VD, ids_BL):
    """embed_VD[ids_BL], sharded as the residual stream, under jit. Unconstrained, XLA may gather every
    row of the batch."""
    sizes = jax.sharding.get_abstract_mesh().shape
    features = spec(IN_SPLIT, embed_VD.shape, sizes)[1:]
    return constrain_rows(pin(embed_VD[pin(ids_BL, "data")], "data", None, *features))


def shard_heads(attend, q_BLHK, k_BLGK, v_BLGK, *rest_BL):
    """attend(...) on each device's own rows and heads, since XLA cannot split kernels."""
    if jax.sharding.get_abstract_mesh().size <= 1:
        return attend(q_BLHK, k_BLGK, v_BLGK, *rest_BL)
    heads, rows = P(ROWS, None, "tensor"), P(ROWS)
    places = (heads,) * 3 + (rows,) * len(rest_BL)
    split = jax.shard_map(attend, in_specs=places, out_specs=heads, check_vma=False)
    return split(q_BLHK, k_BLGK, v_BLGK, *rest_BL)


def features_are_split() -> bool:
    """Whether `tensor` splits features, under jit."""
    return jax.sharding.get_abstract_mesh().shape.get("tensor", 1) > 1


def map_rows(f, whole, *rows_Bx):
    """(sums, of_rows) of f(whole, *rows_Bx), computed on each device's own rows under jit: sums over all
    rows, which XLA could not split, and what stays with its rows."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.size <= 1 or mesh.manual_axes:  # the latter inside another such function
        return f(whole, *rows_Bx)

    def own(whole, *rows_Bx):
        sums, of_rows = f(whole, *rows_Bx)
        return jax.lax.psum(sums, ROWS), of_rows

    specs = P(), *(P(ROWS) for _ in rows_Bx)
    return jax.shard_map(own, in_specs=specs, out_specs=(P(), P(ROWS)), check_vma=False)(whole, *rows_Bx)
