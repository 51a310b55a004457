"""Many devices, and many processes, as one: the mesh, and the one rule that lays out every array on it.

Mesh axes: `data` splits the rows of a batch; `fsdp` splits rows and parameters alike, each layer's being gathered when its
turn comes; `tensor` splits heads and features (Shoeybi et al. 2020). Where no mesh is set everything lies on the first
device and nothing here has an effect.
"""

import dataclasses
import itertools
import math

import jax
import numpy as np
from flax import nnx
from jax.experimental.mesh_utils import create_device_mesh
from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from prm_jax import InputError
from prm_jax.launch.config import Count, expect

AXES = ("data", "fsdp", "tensor")
ROWS = AXES[:2]
# The mesh axes over the two axes of a matrix [in, out]; a parameter says its own as `mesh_axes`. Heads and features are outputs
# of one kind of product and inputs of the next, so that a pair of them needs one sum over `tensor`. What says none (norms,
# biases, step heads) is small and lies whole on every device.
OUT_SPLIT = ("fsdp", "tensor")
IN_SPLIT = ("tensor", "fsdp")


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """conf/train.yaml says what each key means."""

    data: Count | None
    fsdp: Count
    tensor: Count


def make_mesh(cfg: MeshConfig, rows: int, devices=None) -> Mesh:
    """The given devices, or every device of every process, as a mesh for batches of so many rows.

    Devices that CPUs were cut into need not all be used: a `data` of null takes as many of each process as divide the rows.
    Raises InputError where the axes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    inner, on_cpu = cfg.fsdp * cfg.tensor, devices[0].platform == "cpu"
    if on_cpu and cfg.data is None:
        devices = usable_devices(devices, rows * cfg.tensor, inner)
    data = len(devices) // inner if cfg.data is None else cfg.data
    if on_cpu and jax.process_count() == 1 and data:
        devices = devices[: data * inner]
    if data * inner != len(devices):
        asked = f"data {cfg.data} x fsdp {cfg.fsdp} x tensor {cfg.tensor}"
        hint = "; cpu_devices says how many a CPU makes" if on_cpu else ""
        raise InputError(f"mesh: {asked} does not make the {len(devices)} devices there are{hint}")
    # An axis of 8 goes over parts of two axes of a TPU slice of 4 x 4 x 4, which jax.make_mesh refuses.
    grid = create_device_mesh((data, cfg.fsdp, cfg.tensor), devices, allow_split_physical_axes=True)
    # Auto: XLA places what the model code, free of sharding, does not say.
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 3)


def usable_devices(devices: list, rows: int, inner: int) -> list:
    """The first few devices of each process: as many as divide the rows and are a multiple of `inner`; if none do, all."""
    process = lambda device: device.process_index
    processes = [list(own) for _, own in itertools.groupby(sorted(devices, key=process), process)]
    for n in range(min(map(len, processes)), 0, -1):
        total = n * len(processes)
        if total % inner == 0 and rows % total == 0:
            return [device for own in processes for device in own[:n]]
    return devices


def platform() -> str:
    """cpu, gpu or tpu: what the devices of the mesh in use are (they need not exist), or else jax's own choice."""
    mesh = jax.sharding.get_abstract_mesh()
    return jax.default_backend() if mesh.empty else mesh.abstract_device.platform


def path_names(path) -> list[str]:
    """The names on the way to a parameter of a model or a moment of an optimiser, from a jax key path; the last is its own."""
    found = [str(getattr(key, "name", getattr(key, "key", ""))) for key in path]
    return [name for name in found if name != "value"]


def spec(mesh_axes: tuple[str | None, ...], shape: tuple[int, ...], sizes: dict[str, int]) -> P:
    """How an array is split whose last axes lie over `mesh_axes`, on a mesh of these sizes.

    An axis that the mesh does not divide evenly stays whole, and so do those before, of stacked layers and experts: the loop
    over layers takes one at a time.
    """
    axes = [None] * (len(shape) - len(mesh_axes)) + list(mesh_axes)
    axes = [a if sizes.get(a, 1) > 1 and n % sizes[a] == 0 else None for a, n in zip(axes, shape, strict=True)]
    # Without trailing None, as jax itself writes it; else the outputs of a step would not match its inputs.
    while axes and axes[-1] is None:
        axes.pop()
    return P(*axes)


def sharding(*axes):
    """Of an array on the mesh in use: for each of its first axes the mesh axes that split it, or None."""
    mesh = jax.sharding.get_mesh()
    return SingleDeviceSharding(jax.devices()[0]) if mesh.empty else NamedSharding(mesh, P(*axes))


def map_layout(f, tree, sizes: dict[str, int]):
    """f(array, its PartitionSpec) of every array: a parameter, its gradient and its Adam moments are split as it declares."""

    def map_variable(x):
        mesh_axes = x.get_metadata("mesh_axes", ()) if isinstance(x, nnx.Variable) else ()
        return jax.tree.map(lambda array: f(array, spec(mesh_axes, array.shape, sizes)), x)

    return jax.tree.map(map_variable, tree, is_leaf=lambda x: isinstance(x, nnx.Variable))


def shardings(tree):
    """The sharding of every array of a model or optimiser (abstract ones will do) on the mesh in use."""
    return map_layout(lambda _, axes: sharding(*axes), tree, jax.sharding.get_mesh().shape)


def abstract_arrays(tree, layout):
    """Shapes and dtypes of the arrays of a tree with the shardings of `layout`, a tree like it."""
    return jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree, layout)


def make_sharded(make, *args, donate=()):
    """make(*args) with every array of the result made where it belongs, never whole on one device.

    Arguments numbered in `donate` give their memory to the result.
    """
    return jax.jit(make, out_shardings=shardings(jax.eval_shape(make, *args)), donate_argnums=donate)(*args)


def pin(x, *axes):
    """Under jit: holds x to `sharding(*axes)`."""
    return x if jax.sharding.get_abstract_mesh().empty else jax.lax.with_sharding_constraint(x, P(*axes))


def constrain(tree):
    """Under jit: pins every array of a model, optimiser or gradient to the layout that its parameter declares."""
    return map_layout(lambda x, axes: pin(x, *axes), tree, jax.sharding.get_abstract_mesh().shape)


def constrain_rows(x):
    """Under jit: pins the residual stream, x_BLD, rows over data and fsdp, each row whole on every device of `tensor`.

    Rows split over `tensor` too would store less for the backward pass, but XLA then makes the linear layers, which flatten
    it to two axes, trade rows for features among all devices: nine times the bytes (72B on 64 devices).
    """
    return pin(x, ROWS)


def embed_lookup(embed_VD, ids_BL):
    """Under jit: embed_VD[ids_BL], split as the residual stream.

    Each device looks up its own features for the rows of its whole fsdp group, and an all-to-all trades features for rows;
    left to itself XLA may gather every row of the batch.
    """
    sizes = jax.sharding.get_abstract_mesh().shape
    features = spec(IN_SPLIT, embed_VD.shape, sizes)[1:]
    return constrain_rows(pin(embed_VD[pin(ids_BL, "data")], "data", None, *features))


def shard_heads(attend, q_BLHK, k_BLGK, v_BLGK, *rest_BL):
    """attend(...) on each device's own rows and heads: attention needs no communication, and kernels cannot be split by XLA."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.size <= 1:
        return attend(q_BLHK, k_BLGK, v_BLGK, *rest_BL)
    heads, rows = P(ROWS, None, "tensor"), P(ROWS)
    split = jax.shard_map(attend, in_specs=(heads,) * 3 + (rows,) * len(rest_BL), out_specs=heads, check_vma=False)
    return split(q_BLHK, k_BLGK, v_BLGK, *rest_BL)


def features_are_split() -> bool:
    """Under jit: does `tensor` split features, so that what only rows split will not do?"""
    return jax.sharding.get_abstract_mesh().shape.get("tensor", 1) > 1


def sum_over_rows(product, x_nD, y_nF):
    """Under jit: product(x, y), a sum over rows, from each device's own rows and a sum over the devices, for a product that
    XLA cannot split itself; only where features are not split."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.size <= 1:
        return product(x_nD, y_nF)
    summed = lambda x_nD, y_nF: jax.lax.psum(product(x_nD, y_nF), ROWS)
    return jax.shard_map(summed, in_specs=P(ROWS), out_specs=P(), check_vma=False)(x_nD, y_nF)


def row_shards() -> int:
    """Among how many parts of the mesh in use the rows of a batch are split."""
    shape = jax.sharding.get_mesh().shape
    return math.prod(shape.get(axis, 1) for axis in ROWS)


def check_divides(model_cfg, rows: int, key: str):
    """InputError where the mesh in use cannot split the rows of a batch or the heads of the model evenly."""
    n, tensor = row_shards(), jax.sharding.get_mesh().shape.get("tensor", 1)
    expect(rows % n == 0, key, rows, f"a multiple of {n} (mesh.data x mesh.fsdp)")
    for name in ("heads", "kv_heads"):
        heads = getattr(model_cfg, name)
        expect(heads % tensor == 0, "mesh.tensor", tensor, f"a divisor of the model's {heads} {name}")


def row_sharding(axis: int):
    """Sharding of an array whose axis number `axis` is the rows of a batch."""
    return sharding(*[None] * axis, ROWS)


def local_rows(rows: int) -> np.ndarray:
    """Which of a batch's rows this process holds, ascending; it need not read the others."""
    slices = row_sharding(0).addressable_devices_indices_map((rows,)).values()
    return np.unique(np.concatenate([np.arange(rows)[s] for s in slices]))


def shard_batch(batch: dict[str, np.ndarray], rows: int, axis: int = 0):
    """A batch of `rows` rows in all on the mesh; each process gives its own rows, or all of them, along `axis`."""
    where, shape = row_sharding(axis), lambda x: (*x.shape[:axis], rows, *x.shape[axis + 1 :])
    return {name: jax.make_array_from_process_local_data(where, x, shape(x)) for name, x in batch.items()}


def replicate(x):
    """Under jit: the whole array on every device, so that every process can read it."""
    return pin(x)
