"""What would a step cost on machines that are not here? The real train and score steps, compiled ahead of time.

Nothing is allocated: arrays are shapes with a layout. `target=cpu` compiles for fake CPU devices; `target=tpu` for TPU v5p
slices by TPU's own compiler. Bytes come from the compiled program, step times from a chip's published rates.

Dimension key: A accumulated micro-batches, B rows, L tokens, T step marks.
"""

import dataclasses
import importlib.util
import math
import os
import re
import time

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax import InputError
from prm_jax.bench.models import forward_flops
from prm_jax.kernels.remat import REMAT
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import parse
from prm_jax.launch.mesh import MeshConfig, layout, make_mesh, row_sharding
from prm_jax.lora import LoraConfig, attach
from prm_jax.model import PRM, ModelConfig, cast_backbone
from prm_jax.scoring import step_log_odds
from prm_jax.training import TRAINABLE, LossConfig, OptimizerConfig, make_transform, train_step

# Topologies of v5p chips, three-dimensional tori.
SLICES = {8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8", 512: "8x8x8"}


@dataclasses.dataclass(frozen=True)
class Chip:
    flops: float  # bfloat16 FLOP/s
    memory: float  # bytes
    memory_rate: float  # bytes/s
    near: int  # so many devices are joined by the fast links
    near_rate: float  # bytes/s that a device sends over them
    far_rate: float  # bytes/s that a device sends to all others


@dataclasses.dataclass(frozen=True)
class Case:
    model: str
    devices: int
    fsdp: int
    tensor: int


@dataclasses.dataclass(frozen=True)
class AotConfig:
    """conf/aot.yaml says what each key means."""

    target: str
    models: dict[str, dict[str, int]]
    cases: list
    steps: list
    tokens: int
    marks: int
    rows: int
    remat: str
    optimizer: OptimizerConfig
    lora: LoraConfig
    chips: dict[str, Chip]


@cli.command("aot")
def main(cfg):
    """Compile the real train and score steps for many devices, and report bytes, collectives and expected step times."""
    given, cfg = cfg, parse(cfg, AotConfig)
    if cfg.target not in ("cpu", "tpu"):
        raise InputError(f"target: got {cfg.target!r}, expected cpu or tpu")
    if cfg.target == "tpu" and importlib.util.find_spec("libtpu") is None:
        raise InputError(
            'target: tpu needs the TPU compiler (no TPU), of the version that jax names: pip install "jax[tpu]"'
        )
    cases = [parse(case, Case, f"cases[{i}]") for i, case in enumerate(cfg.cases)]
    for i, case in enumerate(cases):
        if case.model not in cfg.models:
            raise InputError(f"cases[{i}].model: got {case.model!r}, expected {', '.init_distributed(cfg.models)}")
    for step in cfg.steps:
        if step not in ("train", "score"):
            raise InputError(f"steps: got {step!r}, expected train or score")
    if cfg.remat not in ("none", *REMAT):
        raise InputError(f"remat: got {cfg.remat!r}, expected none, {', '.join(REMAT)}")
    run_folder.create_run_folder(run_folder.output_dir(), given)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", max(case.devices for case in cases))
    print("memory      GB on one device without activations, by what trains and how it is stored", flush=True)
    choices = [row | {"model": name} for name in cfg.models for row in memory_choices(cfg, name)]
    print_table(choices, ("model", "choice", "parameters", "gradients", "moments", "total"), 1e9)
    compiled, path = [], run_folder.output_dir() / "results.json"

    def write():
        run_folder.write_json(path, {"memory": choices, "compiled": compiled, "versions": run_folder.versions()})

    write()
    for case in cases:
        for step in cfg.steps:
            try:
                compiled.append(compile_case(cfg, case, step))
                print_case(compiled[-1])
            except jax.errors.JaxRuntimeError as error:  # TPU's compiler refuses what its memory cannot hold
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                why = str(error).splitlines()[0]
                compiled.append(vars(case) | {"step": step, "target": cfg.target, "error": why})
                print(f"{case.model} {step:<6}{case.devices:>4} {cfg.target} devices: {why}", flush=True)
            write()
    print(f"results     {path}")


def model_config(cfg: AotConfig, name: str) -> ModelConfig:
    fixed = {"rope_theta": 1e6, "norm_eps": 1e-6, "qkv_bias": True, "tied": False, "head": "scalar"}
    return ModelConfig(**cfg.models[name], **fixed, dtype="bfloat16", remat=cfg.remat)


def abstract_state(model_cfg: ModelConfig, opt_cfg: OptimizerConfig, lora: LoraConfig):
    """(model, optimiser) as train.py makes them, shapes only."""
    tx = make_transform(opt_cfg, 1000)

    def make():
        model = PRM(model_cfg, rngs=nnx.Rngs(0))
        model = model if opt_cfg.trainable == "all" else cast_backbone(model)
        model = attach(model, lora, 0) if opt_cfg.trainable == "lora" else model
        return model, nnx.Optimizer(model, tx, wrt=TRAINABLE[opt_cfg.trainable])

    return jax.eval_shape(make)


def memory_choices(cfg: AotConfig, name: str) -> list[dict]:
    """Bytes of parameters, gradients and moments on one device for each way to train one of the models."""
    model_cfg, rows = model_config(cfg, name), []
    for trains, mu, nu in (
        ("all", "float32", "float32"),
        ("all", "bfloat16", "float32"),
        ("all", "bfloat16", "bfloat16"),
        ("lora", "float32", "float32"),
        ("head", "float32", "float32"),
    ):
        opt_cfg = dataclasses.replace(cfg.optimizer, trainable=trains, mu_dtype=mu, nu_dtype=nu)
        model, opt = abstract_state(model_cfg, opt_cfg, cfg.lora)
        moments = f"mu {mu}, nu {nu}" if trains == "all" else f"rank {cfg.lora.rank}" * (trains == "lora")
        row = {"choice": f"{trains} {moments}".strip()}
        row |= {"parameters": n_bytes(model), "gradients": n_bytes(nnx.state(model, TRAINABLE[trains]))}
        row["moments"] = n_bytes(opt)
        rows.append(row | {"total": row["parameters"] + row["gradients"] + row["moments"]})
    return rows


def n_bytes(tree, placed=None) -> int:
    """Bytes of a tree of abstract arrays, or of one device's share of them where `placed` gives their shardings."""
    leaves = jax.tree.leaves(tree)
    shapes = [x.shape for x in leaves]
    if placed is not None:
        shapes = [where.shard_shape(x.shape) for x, where in zip(leaves, jax.tree.leaves(placed), strict=True)]
    return sum(math.prod(shape) * x.dtype.itemsize for shape, x in zip(shapes, leaves, strict=True))


def target_devices(target: str, n: int):
    """n devices to compile for, none of which need exist."""
    if target == "cpu":
        return jax.devices()[:n]
    from jax.experimental import topologies

    if n not in SLICES:
        raise InputError(f"cases: devices: got {n}, expected one of {', '.join(map(str, SLICES))} for a TPU")
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost"}  # there is none to ask
    return topologies.get_topology_desc(platform="tpu", topology_name=f"v5p:{SLICES[n]}").devices


def compile_case(cfg: AotConfig, case: Case, step: str) -> dict:
    """Compiles one step (train or score) for one model and mesh; what it stores, sends and would take."""
    model_cfg, devices = model_config(cfg, case.model), case.devices
    data = devices // (case.fsdp * case.tensor)
    rows = cfg.rows * data * case.fsdp
    mesh = make_mesh(MeshConfig(data, case.fsdp, case.tensor), rows, target_devices(cfg.target, devices))
    started = time.perf_counter()
    with jax.set_mesh(mesh):
        if step == "train":
            state = abstract_state(model_cfg, cfg.optimizer, cfg.lora)
        else:
            state = (jax.eval_shape(lambda: cast_backbone(PRM(model_cfg, rngs=nnx.Rngs(0)))),)
        placed = layout(state)
        stored = [n_bytes(*pair) for pair in zip(state, placed, strict=True)]
        state = jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), state, placed)
        lead = (1, rows) if step == "train" else (rows,)  # [A, B, ...] or [B, ...]
        kinds = dict.fromkeys(("ids", "pos", "visible_until"), (cfg.tokens, jnp.int32)) | {
            "token_weight": (cfg.tokens, jnp.float32)
        }
        kinds |= {"step_end": (cfg.marks, jnp.int32)}
        kinds |= dict.fromkeys(("label", "rating", "weight"), (cfg.marks, jnp.float32))
        batch = {
            name: jax.ShapeDtypeStruct((*lead, size), dtype, sharding=row_sharding(len(lead) - 1))
            for name, (size, dtype) in kinds.items()
        }
        if step == "train":
            key = jax.eval_shape(lambda: jax.random.key(0))
            key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=NamedSharding(mesh, P()))
            lowered = train_step.lower(*state, batch, LossConfig("prm", 1.0, 0.0), key)
        else:
            batch = {name: batch[name] for name in ("ids", "pos", "visible_until", "step_end")}
            lowered = step_log_odds.lower(*state, batch)
        compiled = lowered.compile()
    memory = compiled.memory_analysis()
    sent = collectives(compiled.as_text())
    pairs = rows * cfg.tokens * (cfg.tokens + 1) // 2
    forward = forward_flops(model_cfg, rows * cfg.tokens, pairs)
    useful = forward * (3 if step == "train" else 1) / devices
    computed = useful * (4 / 3 if step == "train" and cfg.remat == "full" else 1)
    result = {
        "model": case.model,
        "step": step,
        "devices": devices,
        "mesh": dict(mesh.shape),
        "target": cfg.target,
        "rows": rows,
        "tokens": rows * cfg.tokens,
        "compile_seconds": time.perf_counter() - started,
        "parameter_bytes": stored[0],
        "optimizer_bytes": stored[1] if step == "train" else 0,
        "activation_bytes": memory.temp_size_in_bytes,
        "collectives": sent,
        "sent_bytes": sum(c["sent_bytes"] for c in sent.values()),
        "flops": computed,
        "chips": {},
    }
    result["device_bytes"] = sum(result[k] for k in ("parameter_bytes", "optimizer_bytes", "activation_bytes"))
    for name, chip in cfg.chips.items():
        seconds = {
            "compute": computed / chip.flops,
            # Every stored byte is read, and written by a train step; activations are left out.
            "memory": (2 if step == "train" else 1) * sum(stored) / chip.memory_rate,
            "links": result["sent_bytes"] / (chip.near_rate if devices <= chip.near else chip.far_rate),
        }
        best, worst = max(seconds.values()), sum(seconds.values())
        result["chips"][name] = seconds | {
            "all_overlapped": best,
            "nothing_overlapped": worst,
            "mfu_all_overlapped": useful / chip.flops / best,
            "mfu_nothing_overlapped": useful / chip.flops / worst,
            "fits": result["device_bytes"] < chip.memory,
        }
    return result


BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4, "s64": 8, "u64": 8, "f64": 8}  # fmt: skip
KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


def collectives(hlo: str) -> dict[str, dict[str, float]]:
    """{kind: count, sent_bytes} of one execution of a compiled program, from its text.

    Loop bodies count as often as they run. sent_bytes is what one device sends in the usual ring algorithms, of groups of
    g devices and whole arrays of n bytes: all-gather, reduce-scatter and all-to-all n (g - 1) / g, all-reduce twice that,
    collective-permute n.
    """
    bodies = {
        name: text
        for name, text in re.findall(
            r"^(?:ENTRY )?%?([\w.\-]+) \(.*?\) -> .*? \{$(.*?)^\}", hlo, flags=re.MULTILINE | re.DOTALL
        )
    }
    entry = re.search(r"^ENTRY %?([\w.\-]+)", hlo, flags=re.MULTILINE)[1]
    devices = int(re.search(r"num_partitions=(\d+)", hlo)[1])
    total = {kind: {"count": 0, "sent_bytes": 0.0} for kind in KINDS}

    def visit(name: str, times: int):
        for line in bodies.get(name, "").splitlines():
            if loop := re.search(r" while\(.*condition=%?([\w.\-]+), body=%?([\w.\-]+)", line):
                visit(loop[2], times * trip_count(line, loop[1], bodies))
                continue
            for called in re.findall(r"(?:calls|to_apply)=%?([\w.\-]+)", line):
                visit(called, times)
            for group in re.findall(r"(?:branch_computations|called_computations)=\{([^}]*)\}", line):
                for called in group.split(","):
                    visit(called.strip().lstrip("%"), times)
            match = re.search(rf" = (.*?) ({'|'.join(KINDS)})(-start)?\(", line)
            if match:
                kind, n = match[2], sent_bytes(match[1], match[2], bool(match[3]), line, devices)
                total[kind]["count"] += times
                total[kind]["sent_bytes"] += times * n

    visit(entry, 1)
    return {kind: numbers for kind, numbers in total.items() if numbers["count"]}


def trip_count(line: str, condition: str, bodies: dict[str, str]) -> int:
    """How often a loop runs: as XLA notes it, else the largest constant of its condition (a loop counts from 0 up to it)."""
    if known := re.search(r'known_trip_count"?:\{"n":"(\d+)"', line):
        return int(known[1])
    text = bodies[condition]
    text += "".join(bodies.get(called, "") for called in re.findall(r"calls=%?([\w.\-]+)", text))
    return max(map(int, re.findall(r"constant\((\d+)\)", text)), default=1)


def sent_bytes(shape: str, kind: str, is_start: bool, line: str, devices: int) -> float:
    """Bytes that one device sends in one collective whose result has this shape, as HLO writes it."""
    sizes = [
        BYTES[dtype] * math.prod(int(n) for n in dims.split(",") if n)
        for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", shape)
    ]
    if is_start and kind in ("all-gather", "collective-permute"):
        sizes = sizes[1:2]  # operand, result, and what else the pair needs
    n = sum(sizes)
    if kind == "collective-permute":
        return n
    g = group_size(line) or devices
    share = (g - 1) / g
    return {"all-reduce": 2 * n * share, "reduce-scatter": n * (g - 1)}.get(kind, n * share)


def group_size(line: str) -> int | None:
    """How many devices take part together in a collective, in any of HLO's ways to write it; None: all of them."""
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
        return len(listed[1].split(","))
    if iota := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
        return int(iota[1])
    if mesh := re.search(r"replica_groups=mesh\[(.*?)\].*? \{('.*?)\}", line):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        # An axis, or a part of it: 'axis':(number of parts before it) size.
        used = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", mesh[2])
        return math.prod(int(part or sizes[axis]) for axis, part in used)
    if "replica_groups={}" in line:
        return None
    raise ValueError(f"replica groups written in an unknown way: {line.strip()[:300]}")


def print_table(rows: list[dict], keys: tuple[str, ...], unit: float):
    """Aligned columns; numbers in `unit`."""
    cells = [
        [f"{row[k] / unit:,.1f}" if isinstance(row[k], int | float) else str(row[k]) for k in keys] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(keys, *cells, strict=True)]
    for line in [keys, *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


def print_case(r: dict):
    mesh = " x ".join(f"{name} {n}" for name, n in r["mesh"].items() if n > 1)
    print(
        f"{r['model']} {r['step']:<6}{r['devices']:>4} {r['target']} devices ({mesh}), {r['tokens']:,} tokens: GB a device "
        f"{r['parameter_bytes'] / 1e9:.1f} parameters + {r['optimizer_bytes'] / 1e9:.1f} optimiser + "
        f"{r['activation_bytes'] / 1e9:.1f} activations = {r['device_bytes'] / 1e9:.1f}; sends {r['sent_bytes'] / 1e9:.2f} ("
        + ", ".join(f"{c['count']} {kind}" for kind, c in r["collectives"].items())
        + f"); compiled in {r['compile_seconds']:.0f} s"
    )
    for name, c in r["chips"].items():
        print(
            f"    {name:<6} seconds: {c['compute']:.3f} compute, {c['memory']:.3f} memory, {c['links']:.3f} links; a step "
            f"{c['all_overlapped']:.3f} to {c['nothing_overlapped']:.3f}, MFU {c['mfu_nothing_overlapped']:.0%} to "
            f"{c['mfu_all_overlapped']:.0%}" + ("" if c["fits"] else "; DOES NOT FIT"),
            flush=True,
        )


if __name__ == "__main__":
    main()
