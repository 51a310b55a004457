"""Exports a run of train.py to the Hugging Face layout: python -m prm_jax.export checkpoint=RUN to=FOLDER"""

import contextlib
import dataclasses
from pathlib import Path
from typing import Literal

from prm_jax import InputError
from prm_jax.checkpoints.card import model_card, step_tag
from prm_jax.checkpoints.folders import training_tokens
from prm_jax.checkpoints.hf import UNFINISHED, save
from prm_jax.checkpoints.orbax import load_run
from prm_jax.formats import Format
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import parse


@dataclasses.dataclass(frozen=True)
class ExportConfig:  # conf/export.yaml says what each key means
    checkpoint: str | None
    to: str
    which: Literal["best", "latest"]


def require_free(folder: Path):
    """InputError unless the folder is new, empty or an earlier export, finished or not."""
    if (folder / UNFINISHED).is_dir():  # a kill has left it
        return
    with contextlib.suppress(OSError, InputError):
        if "prm_jax" in run_folder.read_json(folder / "config.json"):
            return
    if folder.exists() and not folder.is_dir():
        raise InputError(f"to: {folder} is a file; expected a new or an empty folder")
    for path in sorted(folder.glob("*")):
        raise InputError(
            f"to: {folder} holds {path.name} and is no earlier export; expected a new or an empty folder"
        )


@cli.command("export", ExportConfig)
def main(cfg):
    """Export a run of train.py to the Hugging Face layout, which transformers loads."""
    raw_cfg, cfg = cfg, parse(cfg, ExportConfig)
    to = Path(cfg.to)
    with run_folder.locked_run_folder(run_folder.output_dir(), raw_cfg):
        require_free(to)
        run = Path(cfg.checkpoint) if cfg.checkpoint else run_folder.newest_run()
        model, tokenizer, config, step = load_run(run, cfg.which, "float32")
        # Without its reference an implicit PRM is a language model.
        objective = "lm" if config.objective == "implicit" else config.objective
        tag = step_tag(parse(config.format, Format, "format"), tokenizer)
        notes = {"label_kind": config.data.label_kind, "objective": objective, "step_tag_id": tag}
        path = run / "summary.json"
        summary = run_folder.read_json(path) if path.exists() else {}
        notes |= {"policy_tokens": training_tokens(str(run))}
        save(to, model, tokenizer, format=dict(config.format), **notes)
        (to / "README.md").write_text(model_card(to.name, step, model.cfg, config, summary, tag))
        size = sum(path.stat().st_size for path in to.iterdir())
    print(f"exported    step {step} of {run} to {to}, {size / 2**20:.2f} MiB")
