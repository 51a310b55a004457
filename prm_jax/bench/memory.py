"""Memory of a large model's state, and of its compiled train and score steps, on devices that need not exist.

Nothing is allocated: arrays are shapes. target=cpu compiles in float32 (a rough guide), target=tpu for slices of v5p.
"""

import importlib.util
import math
import os

import jax
from flax import nnx

from prm_jax import InputError
from prm_jax.bench.common import BenchConfig, Row
from prm_jax.bench.models import LOSS, OPTIMIZER
from prm_jax.launch.config import expect, parse
from prm_jax.launch.hosts import set_cpu_devices
from prm_jax.launch.mesh import abstract_arrays, make_mesh, row_sharding, shardings
from prm_jax.launch.progress import progress
from prm_jax.launch.sharding import AXES
from prm_jax.lora import LoraConfig, attach
from prm_jax.model import PRM, ModelConfig, cast_backbone
from prm_jax.packing import pack_batch
from prm_jax.scoring import step_log_odds
from prm_jax.training import TRAINABLE, OptimizerConfig, make_transform, train_step

# Topologies of v5p chips, three-dimensional tori.
SLICES = {8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8", 512: "8x8x8"}
FIXED = {
    "rope_theta": 1e6,
    "norm_eps": 1e-6,
    "qkv_bias": True,
    "tied": False,
    "head": "scalar",
    "dtype": "bfloat16",
}
FIXED |= {"remat": "full"}
LORA = LoraConfig(16, 32.0, ["w_q", "w_k", "w_v", "w_o", "w_gate", "w_up", "w_down"])
# Name in the table -> changes of OPTIMIZER.
CHOICES = {"all": {}, "all_mu_bfloat16": {"mu_dtype": "bfloat16"}}
CHOICES |= {"lora_rank_16": {"trainable": "lora"}, "head": {"trainable": "head"}}


def abstract_state(model_cfg: ModelConfig, **choice):
    """(model, optimiser) as train.py makes them, as shapes without arrays."""
    cfg = OptimizerConfig(**(OPTIMIZER | choice))

    def make():
        model = PRM(model_cfg, rngs=nnx.Rngs(0))
        model = model if cfg.trainable == "all" else cast_backbone(model)
        model = attach(model, LORA, 0) if cfg.trainable == "lora" else model
        return model, nnx.Optimizer(model, make_transform(model, cfg, 1000), wrt=TRAINABLE[cfg.trainable])

    return jax.eval_shape(make)


def state_bytes(model_cfg: ModelConfig, **choice) -> dict[str, int]:
    """Bytes of parameters, gradients and Adam moments on one device."""
    model, opt = abstract_state(model_cfg, **choice)
    trees = {"parameters": model, "gradients": nnx.state(model, opt.wrt), "moments": opt}
    return {
        name: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree)) for name, tree in trees.items()
    }


def compiled_bytes(
    model_cfg: ModelConfig, step: str, mesh, rows: int, tokens: int, step_ends: int
) -> dict[str, int]:
    """Bytes per device of a train or score step, compiled for a batch of `rows` rows of this many tokens and step ends:
    arguments, results that reuse no argument, temporaries."""
    with jax.set_mesh(mesh):
        batch, trains = pack_batch([[]] * rows, tokens, step_ends), step == "train"
        if trains:
            model, opt = abstract_state(model_cfg)
            state = {"model": model, "opt": opt, "key": jax.eval_shape(lambda: jax.random.key(0))}
            batch = {name: x[None] for name, x in batch.items()}
        else:  # frozen matrices are stored in the compute dtype, as in scoring
            state = {"model": abstract_state(model_cfg, trainable="head")[0]}
        layout = shardings(state) | {"batch": dict.fromkeys(batch, row_sharding(axis=int(trains)))}
        arguments = abstract_arrays(state | {"batch": batch}, layout)
        lowered = train_step.lower(**arguments, cfg=LOSS) if trains else step_log_odds.lower(**arguments)
        stats = lowered.compile().memory_analysis()
    results = stats.output_size_in_bytes - stats.alias_size_in_bytes
    return {
        "arguments": stats.argument_size_in_bytes,
        "results": results,
        "temporaries": stats.temp_size_in_bytes,
    }


def tpu_devices(n: int):
    """Descriptions of n TPU chips to compile for; none need exist."""
    from jax.experimental import topologies

    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost"}  # without a TPU host
    return topologies.get_topology_desc(platform="tpu", topology_name=f"v5p:{SLICES[n]}").devices


def row(name: str, parts: dict[str, int], note: str) -> Row:
    shares = " + ".join(f"{n / 1e9:.3g} {part}" for part, n in parts.items())
    return Row(f"{name}_gb", sum(parts.values()) / 1e9, f"{shares}, {note}")


def bench_memory(cfg: BenchConfig) -> list[Row]:
    """Memory of each model's state under CHOICES on one device, and of each case's compiled steps per device."""
    m, sizes = cfg.memory, [case.data * case.fsdp * case.tensor for case in cfg.memory.cases]
    models = {
        name: parse(shape | FIXED, ModelConfig, f"memory.models.{name}") for name, shape in m.models.items()
    }
    for i, (case, n) in enumerate(zip(m.cases, sizes, strict=True)):
        expect(case.model in models, f"memory.cases[{i}].model", case.model, ", ".join(models))
        expect(
            m.target == "cpu" or n in SLICES, f"memory.cases[{i}]", n, f"{', '.join(map(str, SLICES))} chips"
        )
    if m.target == "tpu" and importlib.util.find_spec("libtpu") is None:
        raise InputError(
            'memory.target: tpu needs its compiler (no TPU), of jax\'s version: pip install "jax[tpu]"'
        )
    jax.config.update("jax_platforms", "cpu")
    set_cpu_devices(max(sizes, default=1))
    rows = []
    for name, model_cfg in models.items():
        rows += [
            row(f"{name}_{key}", state_bytes(model_cfg, **x), "one device") for key, x in CHOICES.items()
        ]
    programs = [(case, step) for case in m.cases for step in ("train", "score")]
    for case, step in progress("compiling", len(programs), "program", iterable=programs):
        mesh = "_".join(f"{axis}{n}" for axis in AXES if (n := getattr(case, axis)) > 1)
        name, parts, n = (
            f"{case.model}_{step}_{mesh}",
            case.data * case.fsdp,
            case.data * case.fsdp * case.tensor,
        )
        mesh = make_mesh(case, parts, tpu_devices(n) if m.target == "tpu" else jax.devices()[:n])
        try:
            parts = compiled_bytes(models[case.model], step, mesh, parts, m.tokens, m.step_ends)
            rows.append(row(name, parts, f"each {m.target} device"))
        except jax.errors.JaxRuntimeError as error:  # TPU's compiler refuses what its memory cannot hold
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            rows.append(Row(f"{name}_gb", math.nan, str(error).splitlines()[0]))
    return rows
