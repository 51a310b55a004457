"""Saves and restores the Orbax checkpoints of a run: the newest states, to resume from, and the best models.

A step's folder gets its name once it is complete. `checksums.json` is its last file and is verified before loading.
"""

import contextlib
import dataclasses
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from flax import nnx
from omegaconf import DictConfig

from prm_jax import InputError
from prm_jax.checkpoints import hf, hf_config
from prm_jax.data.rows import file_fingerprint
from prm_jax.launch.config import expect, parse
from prm_jax.launch.files import read_json, sha256, write_json
from prm_jax.launch.hosts import broadcast
from prm_jax.launch.mesh import abstract_arrays, shardings
from prm_jax.launch.run_folder import run_config
from prm_jax.lora import LoraConfig, attach, merge
from prm_jax.model import PRM, ModelConfig, cast_backbone

args = ocp.args
# Orbax logs every call at length; errors in its threads it also raises.
for name in ("absl", "asyncio"):
    logging.getLogger(name).setLevel(logging.CRITICAL)
CHECKSUMS = "checksums.json"  # {file: sha256} of a step's folder
COMPLETED_AFTER_SAVE = "_CHECKPOINT_METADATA"  # times of the save, which nothing depends on
MODEL = "model_config.json"


class Checkpoints:
    """`checkpoints/latest/STEP` holds model, optimiser and notes, `best/STEP` model and notes. Each keeps two steps, in
    case the newest is damaged. Saves are asynchronous."""

    def __init__(self, run: Path):
        folder = run.resolve() / "checkpoints"
        self.latest, self.best = (manager(folder / name) for name in ("latest", "best"))
        sys.unraisablehook = skip_closed_loops

    def save(self, step: int, model, opt, notes: dict, best=None):
        """Saves the state to resume from and, if there is one, the model `best`, of the same structure."""
        state, structure = args.StandardSave(nnx.state(model)), {"structure": structure_hash(model)}
        with write_errors(self.latest):
            if best is not None and self.best.latest_step() != step:
                kept = args.StandardSave(nnx.state(best))
                self.best.save(step, args=args.Composite(model=kept, notes=args.JsonSave(structure)))
            notes = args.JsonSave(notes | structure)
            self.latest.save(
                step, args=args.Composite(model=state, opt=args.StandardSave(nnx.state(opt)), notes=notes)
            )

    def restore(self, model, opt) -> tuple[int, dict] | None:
        """(step, notes) of the newest undamaged state, which fills `model` and `opt` in place with their shardings.
        Newer steps are deleted, since the run makes them again. None where no checkpoint was saved yet."""
        for saved in (self.best, self.latest):
            saved.wait_until_finished()  # a save under way has no name yet
        step = newest_whole(Path(self.latest.directory))
        for saved, newest in ((self.best, newest_whole(Path(self.best.directory))), (self.latest, step)):
            # The run makes the later steps again, perhaps with other numbers: a kept best model would not be theirs.
            last = min(-1 if x is None else x for x in (newest, step))
            for later in [s for s in saved.all_steps() if s > last]:
                saved.delete(later)
        return None if step is None else (step, restore_step(self.latest, step, model=model, opt=opt))

    def close(self):
        """Waits for saves under way."""
        for saved in (self.best, self.latest):
            with write_errors(saved):
                saved.close()


def skip_closed_loops(unraisable):
    """sys.unraisablehook without TensorStore's report that nobody waits any more for an abandoned write."""
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


@contextlib.contextmanager
def write_errors(saved: ocp.CheckpointManager) -> Iterator[None]:
    """Turns the failure of an earlier save, which Orbax raises at the next call, into an InputError."""
    try:
        yield
    except (OSError, ValueError) as error:
        why = re.search(r"No space left on device|Disk quota exceeded|Read-only file system", str(error))
        if why is None and not isinstance(error, OSError):
            raise
        sys.unraisablehook = lambda unraisable: None  # the abandoned coroutines
        reason = why[0] if why else str(error).splitlines()[0]
        message = f"a checkpoint could not be written ({reason}); those before are whole"
        raise InputError(f"{saved.directory}: {message}") from None


def manager(folder: Path) -> ocp.CheckpointManager:
    """A manager that keeps two checkpoints and whose saving thread adds checksums before the step's folder gets its
    name. Its barriers carry the folder's name, since `latest` and `best` may save the same step."""

    def write_checksums():
        if jax.process_index() == 0:
            for step in folder.glob("*.orbax-checkpoint-tmp"):
                files = sorted(p for p in step.rglob("*") if p.is_file() and p.name != COMPLETED_AFTER_SAVE)
                write_json(step / CHECKSUMS, {str(p.relative_to(step)): file_fingerprint(p) for p in files})

    barriers = ocp.options.MultiprocessingOptions(barrier_sync_key_prefix=folder.name)
    saves = ocp.AsyncOptions(post_finalization_callback=write_checksums)
    options = ocp.CheckpointManagerOptions(
        max_to_keep=2, multiprocessing_options=barriers, async_options=saves
    )
    return ocp.CheckpointManager(folder, options=options)


def find_damage(step: Path) -> str | None:
    """What is wrong with a step's folder; None where every file holds what was written."""
    try:
        sums = read_json(step / CHECKSUMS)
    except (OSError, InputError):
        sums = {}
    if not sums:
        return f"has no whole {CHECKSUMS}, the last file of a checkpoint: incomplete, or written by another version"
    for name, expected in sums.items():
        if not (step / name).is_file():
            return f"{name} is missing"
        if file_fingerprint(step / name) != expected:
            return f"{name} is not as it was written"
    return None


def newest_whole(folder: Path) -> int | None:
    """The newest undamaged step of a folder, None if it is empty; prints newer ones. InputError if all are damaged."""

    def choose() -> tuple[int | None, str | None]:
        damage = {}  # {step's folder: what is wrong}, newest first
        for step in sorted((int(p.name) for p in folder.glob("*") if p.name.isdigit()), reverse=True):
            if (wrong := find_damage(folder / str(step))) is None:
                for damaged, why in damage.items():
                    print(f"checkpoint  {damaged}: {why}; falls back to step {step}")
                return step, None
            damage[folder / str(step)] = wrong
        return None, next((f"{path}: {why}; no other step is whole" for path, why in damage.items()), None)

    step, error = choose() if jax.process_index() == 0 else (None, None)
    if jax.process_count() > 1:
        step, error = json.loads(broadcast(json.dumps((step, error)).encode()))
    if error:
        raise InputError(error)
    return step


# The fields of ModelConfig that are always hashed. Others are hashed only where they differ from their default, so that
# a new field leaves earlier checkpoints readable.
HASHED = "vocab dim layers heads kv_heads head_dim ffn rope_theta norm_eps qkv_bias tied family o_bias mlp_bias qk_norm"
HASHED = {*HASHED.split(), "window", "sliding", "rope_scaling", "lm_head", "head"}
NOT_HASHED = {"dtype", "remat", "head_dropout", "max_positions"}  # change no parameter and no output
# Field: its name in runs before 2026-11-23.
RENAMED = {"local_rope_theta": "near_theta", "post_norms": "out_norms", "attn_logit_softcap": "score_cap"}
RENAMED |= {
    "final_logit_softcap": "logit_cap",
    "experts_per_token": "experts_taken",
    "max_positions": "positions",
}
RENAMED |= {"norm_topk_prob": "shares_to_one"}


def structure_hash(model) -> str:
    """sha256 of the names and shapes of a model's parameters and of the configuration of what it computes."""
    shapes = sorted(
        (jax.tree_util.keystr(path), x.shape) for path, x in jax.tree.leaves_with_path(nnx.state(model))
    )
    values, fields = dataclasses.asdict(model.cfg), {}
    for field in dataclasses.fields(model.cfg):
        name, is_default = field.name, getattr(model.cfg, field.name) == field.default
        if name in HASHED or not is_default and name not in NOT_HASHED:
            fields[RENAMED.get(name, name)] = values[name]
    return sha256(json.dumps([shapes, fields], sort_keys=True))


def restore_step(manager: ocp.CheckpointManager, step: int, **modules) -> dict:
    """The notes of a step, which fills the modules (abstract or not) in place, sharded over the mesh in use.
    InputError where the saved model has another structure than `modules["model"]`."""
    try:
        notes = manager.restore(step, args=args.Composite(notes=args.JsonRestore()))["notes"]
        if notes.pop("structure", None) != structure_hash(modules["model"]):
            raise ValueError("another structure")
        states = {name: nnx.state(module) for name, module in modules.items()}
        target = {name: args.StandardRestore(abstract_arrays(x, shardings(x))) for name, x in states.items()}
        out = manager.restore(step, args=args.Composite(**target))
    except (ValueError, KeyError, FileNotFoundError) as error:
        why = "its parameters are not those that this code has for the run's configuration: written by another version?"
        raise InputError(f"{manager.directory}/{step}: {why}") from error
    for name, module in modules.items():
        nnx.update(module, out[name])
    return notes


def save_description(folder: Path, cfg: ModelConfig, tokenizer):
    """Writes the model's configuration, the tokenizer, and a config.json that names the tokenizer's class."""
    folder.mkdir(exist_ok=True)
    tokenizer.save_pretrained(folder)
    write_json(folder / "config.json", hf_config.hf_config(cfg, tokenizer))
    write_json(folder / MODEL, dataclasses.asdict(cfg))


def load_description(folder: Path) -> ModelConfig:
    """The ModelConfig that `save_description` wrote, with defaults for fields that did not exist then."""
    path = folder / MODEL
    if not path.is_file():
        raise InputError(
            f"{path}: no such file: the run stopped before its first step, or another version wrote it"
        )
    values = read_json(path)
    try:
        values = {new: values.pop(old) for new, old in RENAMED.items() if old in values} | values
        return parse(values, ModelConfig)
    except (ValueError, TypeError, AttributeError, AssertionError) as error:
        raise InputError(f"{path}: {error}: written by another version?") from error


def load_run(folder: Path, which: str, dtype: str) -> tuple[PRM, object, DictConfig, int]:
    """(model, tokenizer, configuration, step) of a run's `best` or `latest` checkpoint, sharded over the mesh in
    use. Low-rank updates are merged, and the backbone's matrices are stored in the compute dtype."""
    expect(which in ("best", "latest"), "which", which, "best or latest")
    run = run_config(folder)
    cfg = dataclasses.replace(load_description(folder / "model"), dtype=dtype, remat="none")
    saved = folder.resolve() / "checkpoints" / which
    step = newest_whole(saved)
    if step is None:
        raise InputError(f"{saved}: holds no checkpoint")
    model = jax.eval_shape(lambda: cast_backbone(PRM(cfg, rngs=nnx.Rngs(0))))
    if run.optimizer.trainable == "lora":
        updates = parse(run.lora, LoraConfig, "lora")
        model = jax.eval_shape(lambda model: attach(model, updates, 0), model)
    with ocp.CheckpointManager(saved, options=ocp.CheckpointManagerOptions(read_only=True)) as manager:
        restore_step(manager, step, model=model)
    return merge(model), hf.load_tokenizer(folder / "model"), run, step
