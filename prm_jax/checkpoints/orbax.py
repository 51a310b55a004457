"""Saves and restores the Orbax checkpoints of a run: the newest states, to resume from, and the best models.

Orbax gives a step's folder its name once it is complete, and compares names and shapes when it restores; the
sums of all bits are ours.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from flax import nnx
from omegaconf import DictConfig

from prm_jax import InputError
from prm_jax.checkpoints import hf_config
from prm_jax.checkpoints.tokenizer import load_tokenizer
from prm_jax.launch.config import expect, parse
from prm_jax.launch.devices import tune_malloc
from prm_jax.launch.files import read_json, write_json
from prm_jax.launch.mesh import shardings
from prm_jax.launch.run_folder import run_config
from prm_jax.lora import LoraConfig, attach, merge
from prm_jax.model import PRM, ModelConfig, cast_backbone

args = ocp.args
# Orbax logs every call at length; errors in its threads it also raises.
for name in ("absl", "asyncio"):
    logging.getLogger(name).setLevel(logging.CRITICAL)
MODEL = "model_config.json"
LARGE = 1 << 28  # bytes of a state whose copy for a save does not wait beside the next step


class Checkpoints:
    """`checkpoints/latest/STEP` holds model, optimiser and notes, `best/STEP` model and notes. Each keeps
    two steps, in case the newest is damaged. Saves of small states are asynchronous."""

    def __init__(self, run: Path):
        folder = run.resolve() / "checkpoints"
        self.latest, self.best = (manager(folder / name, max_to_keep=2) for name in ("latest", "best"))

    def save(self, step: int, model, opt, notes: dict, best=None):
        """Saves the state to resume from and, if there is one, the model `best`, of the same structure."""
        states = [(self.latest, composite(notes, model=model, opt=opt))]
        if best is not None and self.best.latest_step() != step:
            states.insert(0, (self.best, composite({}, model=best)))
        is_large = sum(x.nbytes for x in jax.tree.leaves((model, opt))) > LARGE
        for saved, state in states:
            with write_errors(saved):
                saved.save(step, args=state)
                if is_large:
                    saved.wait_until_finished()
                    tune_malloc()  # the next step would find what the save freed cut up

    def restore(self, model, opt) -> tuple[int, dict] | None:
        """`restore_newest` of the state; later steps are deleted, since the run makes them again."""
        for saved in (self.best, self.latest):
            saved.wait_until_finished()  # a save under way has no name yet
        restored = restore_newest(self.latest, model=model, opt=opt)
        for saved in (self.best, self.latest):
            for step in saved.all_steps():  # a kept best model would not be that of the run that goes on
                if restored is None or step > restored[0]:
                    saved.delete(step)
        if restored and restored[1].get("best_step") == restored[0] != self.best.latest_step():
            self.best.save(restored[0], args=composite({}, model=model))  # a kill had cut this save
        return restored

    def close(self):
        """Waits for saves under way."""
        for saved in (self.best, self.latest):
            with write_errors(saved):
                saved.close()


@contextlib.contextmanager
def write_errors(saved: ocp.CheckpointManager) -> Iterator[None]:
    """Turns the failure of an earlier save, which Orbax raises at the next call, into an InputError."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0][:300]
        message = f"a checkpoint could not be written; those before are whole ({reason})"
        raise InputError(f"{saved.directory}: {message}") from None


def manager(folder: Path, **options) -> ocp.CheckpointManager:
    # Its barriers carry the folder's name, since `latest` and `best` may save the same step.
    barriers = ocp.options.MultiprocessingOptions(barrier_sync_key_prefix=folder.name)
    items = {name: ocp.StandardCheckpointHandler() for name in ("model", "opt")}
    items["notes"] = ocp.JsonCheckpointHandler()
    options = ocp.CheckpointManagerOptions(multiprocessing_options=barriers, **options)
    return ocp.CheckpointManager(folder, options=options, item_handlers=items)


def abstract_arrays(tree, layout):
    """Shapes and dtypes of the arrays of a tree with the shardings of `layout`, a tree like it."""
    return jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree, layout)


@jax.jit
def array_bit_sum(x) -> jax.Array:
    """Of one array alone: XLA would hold the integers of all arrays of a program at once."""
    return jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").sum(dtype=jnp.uint32)


def bit_sum(state) -> int:
    """The sum of all arrays' bits as integers, modulo 2^32: it depends on no sharding, and a flipped bit
    changes it. Orbax itself keeps no checksum of arrays."""
    return sum(int(array_bit_sum(x)) for x in jax.tree.leaves(state)) % (1 << 32)


def composite(notes: dict, **modules) -> args.Composite:
    """What a step holds: the modules' arrays, and notes with their sums of bits."""
    states = {name: nnx.state(module) for name, module in modules.items()}
    sums = {name: bit_sum(state) for name, state in states.items()}
    saved = {name: args.StandardSave(state) for name, state in states.items()}
    return args.Composite(**saved, notes=args.JsonSave(notes | {"bit_sums": sums}))


def restore_step(saved: ocp.CheckpointManager, step: int, **modules) -> dict:
    """The notes of a step, which fills the modules in place; ValueError where its arrays are not those that
    were saved."""
    stored = saved.item_metadata(step)
    states = {}
    target = {}
    for name, module in modules.items():
        states[name] = nnx.state(module)
        arrays, tree = jax.tree.flatten(abstract_arrays(states[name], shardings(states[name])))
        kept = jax.tree.leaves(stored[name].tree)
        # Orbax would give up at the first such array, and let its reads of the others run into a closed loop.
        if [x.shape for x in kept] != [x.shape for x in arrays]:
            raise ValueError(f"{name} has arrays of other shapes")
        # Read in the types that were saved, of which the sums are, then cast.
        arrays = [x.update(dtype=like.dtype) for x, like in zip(arrays, kept, strict=True)]
        target[name] = args.StandardRestore(tree.unflatten(arrays))
    out = saved.restore(step, args=args.Composite(**target, notes=args.JsonRestore()))
    sums = out["notes"].pop("bit_sums", {})
    found = {name: bit_sum(out[name]) for name in modules}
    damaged = [name for name in found if sums.get(name, found[name]) != found[name]]
    if damaged:
        raise ValueError(f"bits of {' and '.join(damaged)} have changed")
    for name, module in modules.items():
        nnx.update(module, jax.tree.map(lambda x, like: x.astype(like.dtype), out[name], states[name]))
    return out["notes"]


def restore_newest(saved: ocp.CheckpointManager, **modules) -> tuple[int, dict] | None:
    """(step, notes) of the newest step that can be read, which fills the modules (abstract or not) in place;
    None where there is none. A line names each that cannot; InputError if no step can."""
    steps = sorted(saved.all_steps(), reverse=True)
    for step in steps:
        try:
            return step, restore_step(saved, step, **modules)
        except Exception as error:  # of many kinds, by the file that is damaged
            reason = " ".join(str(error).split())[:200]
            message = f"{saved.directory}/{step}: damaged, or of another model than this run's ({reason})"
            if step == steps[-1]:
                raise InputError(message) from error
            print(f"checkpoint  {message}; falls back to the step before")
    return None


def save_description(folder: Path, cfg: ModelConfig, tokenizer):
    """Writes the model's configuration, the tokenizer, and a config.json that names the tokenizer's class."""
    folder.mkdir(exist_ok=True)
    tokenizer.save_pretrained(folder)
    write_json(folder / "config.json", hf_config.hf_config(cfg, tokenizer))
    write_json(folder / MODEL, dataclasses.asdict(cfg))


def read_model(folder: Path, **changes) -> ModelConfig:
    """The configuration of a run's model, with `changes`."""
    path = folder / "model" / MODEL
    expect(path.is_file(), str(path), "no file", "the model of a run that has made its first step")
    try:
        return parse(read_json(path) | changes, ModelConfig)
    except (InputError, AssertionError) as error:
        raise InputError(f"{path}: {error}") from error


def restore_run(folder: Path, which: str, dtype: str) -> tuple[PRM, object, DictConfig, int]:
    """(model, tokenizer, configuration, step) of a run's `best` or `latest` checkpoint, sharded over the
    mesh in use. Low-rank updates are merged, and the backbone's matrices are stored in the compute dtype."""
    run = run_config(folder)
    saved = folder.resolve() / "checkpoints" / which
    cfg = read_model(folder, dtype=dtype, remat="none")
    model = jax.eval_shape(lambda: cast_backbone(PRM(cfg, rngs=nnx.Rngs(0))))
    if run.optimizer.trainable == "lora":
        updates = parse(run.lora, LoraConfig, "lora")
        model = jax.eval_shape(lambda model: attach(model, updates, 0), model)
    with manager(saved, read_only=True) as steps:
        restored = restore_newest(steps, model=model)
    expect(restored is not None, str(saved), "no step", "a checkpoint; resume the run to make one")
    return merge(model), load_tokenizer(folder / "model"), run, restored[0]
