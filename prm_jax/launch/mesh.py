"""Places models and batches on the mesh in use (launch/devices.py) by the rule of sharding.py.

Without a mesh everything is on the first device."""

import functools
import math

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from prm_jax.launch.config import expect
from prm_jax.launch.sharding import ROWS, pin, spec


def sharding(*axes):
    """The sharding of an array on the mesh in use; `axes` (mesh axes or None) split its first axes."""
    mesh = jax.sharding.get_mesh()
    return SingleDeviceSharding(jax.devices()[0]) if mesh.empty else NamedSharding(mesh, P(*axes))


def map_layout(f, tree, sizes: dict[str, int]):
    """f(array, PartitionSpec) of every array: gradients and moments are split as their parameter."""

    def map_variable(x):
        mesh_axes = x.get_metadata("mesh_axes", ()) if isinstance(x, nnx.Variable) else ()
        return jax.tree.map(lambda array: f(array, spec(mesh_axes, array.shape, sizes)), x)

    return jax.tree.map(map_variable, tree, is_leaf=lambda x: isinstance(x, nnx.Variable))


def shardings(tree):
    """The sharding of every array, real or abstract, of a model or optimiser on the mesh in use."""
    return map_layout(lambda _, axes: sharding(*axes), tree, jax.sharding.get_mesh().shape)


def make_sharded(make, *args, donate=()):
    """make(*args) with every array made in shards; `donate` numbers arguments to reuse."""
    return jax.jit(make, out_shardings=shardings(jax.eval_shape(make, *args)), donate_argnums=donate)(*args)


def constrain(tree):
    """Constrains every array of a model, optimiser or gradient to the sharding of its parameter under jit."""
    return map_layout(lambda x, axes: pin(x, *axes), tree, jax.sharding.get_abstract_mesh().shape)


def row_shards() -> int:
    """The number of parts into which the mesh in use splits the rows of a batch."""
    return math.prod(jax.sharding.get_mesh().shape.get(axis, 1) for axis in ROWS)


def pad_rows(n: int, most: int) -> int:
    """The power of two that the mesh splits, at most `most`, to which n rows are padded: few shapes serve."""
    shards = row_shards()
    return min(most, -(-(1 << (n - 1).bit_length()) // shards) * shards)


def check_divides(model_cfg, rows: int, key: str):
    """InputError where the mesh in use cannot split the rows of a batch or the heads of the model evenly."""
    n = row_shards()
    tensor = jax.sharding.get_mesh().shape.get("tensor", 1)
    expect(rows % n == 0, key, rows, f"a multiple of {n} (mesh.data x mesh.fsdp)")
    for name in ("heads", "kv_heads"):
        heads = getattr(model_cfg, name)
        expect(heads % tensor == 0, "mesh.tensor", tensor, f"a divisor of the model's {heads} {name}")


def row_sharding(axis: int):
    """The sharding of an array whose axis number `axis` is the rows of a batch."""
    return sharding(*[None] * axis, ROWS)


def local_rows(rows: int) -> np.ndarray:
    """Ascending indices of the rows of a batch that this process holds; it need not read the others."""
    slices = row_sharding(0).addressable_devices_indices_map((rows,)).values()
    return np.unique(np.concatenate([np.arange(rows)[s] for s in slices]))


def shard_batch(batch: dict[str, np.ndarray], rows: int, axis: int = 0):
    """A batch of `rows` rows on the mesh, of which each process passes its own rows, or all, along `axis`."""
    shapes = {name: (*x.shape[:axis], rows, *x.shape[axis + 1 :]) for name, x in batch.items()}
    make = functools.partial(jax.make_array_from_process_local_data, row_sharding(axis))
    return {name: make(x, shapes[name]) for name, x in batch.items()}


def replicate(x):
    """The whole array on every device under jit, so that every process can read it."""
    return pin(x)
