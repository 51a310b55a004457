"""Exports a run of train.py to the Hugging Face layout: python -m prm_jax.export checkpoint=RUN to=FOLDER"""

import dataclasses
import shutil
from pathlib import Path
from typing import Literal

import numpy as np

from prm_jax.checkpoints.card import model_card, step_tag
from prm_jax.checkpoints.folders import training_tokens
from prm_jax.checkpoints.hf import save
from prm_jax.checkpoints.hf_config import architecture
from prm_jax.checkpoints.open import Loaded, open_checkpoint
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import expect, parse

ROW = "3 + 4 * 2 = ?", ("4 * 2 = 8", "3 + 8 = 11")  # the solution that an export scores again


@dataclasses.dataclass(frozen=True)
class ExportConfig:  # conf/export.yaml says what each key means
    checkpoint: str | None
    to: str
    which: Literal["best", "latest"]


@cli.command("export", ExportConfig)
def main(cfg):
    """Export a run of train.py to the Hugging Face layout, which transformers loads."""
    raw_cfg, cfg = cfg, parse(cfg, ExportConfig)
    to = Path(cfg.to)
    run_folder.claim_folder(run_folder.output_dir(), raw_cfg)
    run = Path(cfg.checkpoint) if cfg.checkpoint else run_folder.newest_run()
    loaded = open_checkpoint(run, cfg.which, None, "float32")
    export(loaded, run, to)
    size = sum(path.stat().st_size for path in to.iterdir())
    print(f"exported    {loaded.name} to {to}, {size / 2**20:.2f} MiB")


def export(loaded: Loaded, run: Path, to: Path):
    """Writes a run's model to a new folder, which gets its name once it has been read back."""
    is_free = not to.exists() or to.is_dir() and not any(to.iterdir())
    expect(is_free, "to", str(to), "a new or an empty folder")
    path, tag = run / "summary.json", step_tag(loaded.format, loaded.tokenizer)
    summary = run_folder.read_json(path) if path.exists() else {}
    notes = {
        "format": dict(loaded.config.format),
        "label_kind": loaded.label_kind,
        "objective": loaded.objective,
        "step_tag_id": tag,
        "policy_tokens": training_tokens(str(run)),
    }
    new = Path(f"{to.absolute()}.unfinished")
    shutil.rmtree(new, ignore_errors=True)  # of a call that was killed
    try:
        save(new, loaded.model, loaded.tokenizer, **notes)
        read_back(new, loaded)
        card = model_card(to.name, loaded.name, architecture(loaded.model.cfg), loaded.config, summary, tag)
        card.save(new / "README.md")
        new.replace(to)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def read_back(folder: Path, loaded: Loaded):
    """InputError unless the folder opens as the same model, with the same scores of one solution."""
    again = open_checkpoint(folder, "best", None, "float32")
    expect(again.objective == loaded.objective, "export: objective", again.objective, loaded.objective)
    before_T, after_T = score_row(loaded), score_row(again)
    is_same = np.allclose(before_T, after_T, rtol=1e-4, atol=1e-4)
    expect(is_same, "export: scores of the folder", after_T.tolist(), f"the run's {before_T.tolist()}")


def score_row(loaded: Loaded) -> np.ndarray:
    scorer = loaded.likelihood_scorer(1) if loaded.objective == "lm" else loaded.scorer(1)
    return scorer.score([ROW])[0]
