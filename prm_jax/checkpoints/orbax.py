"""Orbax checkpoints of a run: the newest complete state to resume from, and apart from it the best model."""

import contextlib
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from flax import nnx
from omegaconf import DictConfig, OmegaConf

from prm_jax import InputError
from prm_jax.checkpoints import hf, hf_config
from prm_jax.launch.config import parse
from prm_jax.launch.mesh import layout
from prm_jax.lora import LoraConfig, attach, merge
from prm_jax.model import PRM, cast_backbone

args = ocp.args


class Checkpoints:
    """`checkpoints/latest/STEP` holds model, optimiser and notes (the step is the data position); `checkpoints/best/STEP` the model alone.

    Saves are asynchronous and a step's folder appears only when it is whole, so a killed run loses nothing but time.
    """

    def __init__(self, run: Path):
        folder = run.resolve() / "checkpoints"
        self.latest, self.best = (manager(folder / name) for name in ("latest", "best"))

    def save(self, step: int, model, opt, notes: dict, is_best: bool):
        state = nnx.state(model)
        if is_best and self.best.latest_step() != step:
            self.best.save(step, args=args.Composite(model=args.StandardSave(state)))
        self.latest.save(
            step,
            args=args.Composite(
                model=args.StandardSave(state), opt=args.StandardSave(nnx.state(opt)), notes=args.JsonSave(notes)
            ),
        )

    def restore(self, model, opt) -> tuple[int, dict] | None:
        """Fills `model` and `opt` in place from the newest state, laid out as they are; returns its step and notes.

        None where the run was stopped before its first checkpoint: started again, it is the same run.
        """
        step = self.latest.latest_step()
        if step is None:
            return None
        with explained(self.latest.directory):
            out = self.latest.restore(
                step,
                args=args.Composite(
                    model=args.StandardRestore(like(model)),
                    opt=args.StandardRestore(like(opt)),
                    notes=args.JsonRestore(),
                ),
            )
        nnx.update(model, out["model"])
        nnx.update(opt, out["opt"])
        return step, out["notes"]

    def close(self):
        """Waits for saves under way."""
        self.best.close()
        self.latest.close()


def manager(folder: Path) -> ocp.CheckpointManager:
    """Keeps one checkpoint; processes wait for each other under the folder's name, since both folders may save the same step."""
    together = ocp.options.MultiprocessingOptions(barrier_sync_key_prefix=folder.name)
    return ocp.CheckpointManager(
        folder, options=ocp.CheckpointManagerOptions(max_to_keep=1, multiprocessing_options=together)
    )


@contextlib.contextmanager
def explained(folder):
    """Orbax's pages about trees that differ, in a line."""
    try:
        yield
    except ValueError as error:
        raise InputError(
            f"{folder}: its parameters are not those that this code has for the run's configuration: written by another version?"
        ) from error


def like(module):
    """Restore target: the shapes, dtypes and placement of `module`."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), nnx.state(module))


def run_config(folder: Path):
    """The configuration that a run folder was made with."""
    path = folder / ".hydra" / "config.yaml"
    if not path.exists():
        raise InputError(f"{path}: no such file, expected a run folder of train.py")
    return OmegaConf.load(path)


def load_run(folder: Path, which: str, dtype: str) -> tuple[PRM, object, DictConfig, int]:
    """(model, tokenizer, configuration, step) of a run's `best` or `latest` checkpoint, laid out on the mesh in use.

    Low-rank updates are merged, and the backbone's matrices are stored in the compute dtype.
    """
    if which not in ("best", "latest"):
        raise InputError(f"which: got {which!r}, expected best or latest")
    run, described = run_config(folder), folder / "model"
    is_lm = run.objective == "lm"
    uses = {"head": "none" if is_lm else run.model.head, "lm_head": is_lm or run.loss.lm_weight > 0}
    cfg = hf_config.model_config(hf_config.read_config(described), str(described / "config.json"), dtype=dtype, **uses)
    updates = parse(run.lora, LoraConfig, "lora") if run.optimizer.trainable == "lora" else None

    def make():
        model = cast_backbone(PRM(cfg, rngs=nnx.Rngs(0)))
        return model if updates is None else attach(model, updates, 0)

    model = jax.eval_shape(make)
    target = jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
        nnx.state(model),
        layout(nnx.state(model)),
    )
    saved = folder.resolve() / "checkpoints" / which
    if not saved.is_dir():
        raise InputError(f"{saved}: no such folder")
    with ocp.CheckpointManager(saved) as manager:
        step = manager.latest_step()
        if step is None:
            raise InputError(f"{saved}: holds no checkpoint")
        with explained(saved):
            found = manager.restore(step, args=args.Composite(model=args.StandardRestore(target)))["model"]
        nnx.update(model, found)
    return merge(model), hf.load_tokenizer(described), run, step
