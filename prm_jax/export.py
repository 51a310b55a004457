"""Export a run of train.py to the Hugging Face layout: python -m prm_jax.export checkpoint=RUN to=FOLDER"""

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Literal

from omegaconf import OmegaConf

from prm_jax import InputError
from prm_jax.checkpoints.hf import save
from prm_jax.checkpoints.orbax import load_run
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import parse
from prm_jax.model import HEADS, ModelConfig


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """conf/export.yaml says what each key means."""

    checkpoint: str | None
    to: str
    which: Literal["best", "latest"]


MEANING = {
    "correctness": "the step, and all before it, are right",
    "value": "the completer that made the labels would reach the right answer from here",
    "advantage": "by how much the step changes the completer's chance of the right answer: (1 + A) / 2, A in [-1, 1]",
    "unknown": "what its data say",
}


def model_card(name: str, step: int, cfg: ModelConfig, config, summary: dict) -> str:
    """README.md of an exported run: what it scores and how, the data, the numbers, and the code that made them."""
    section = lambda node: "```yaml\n" + OmegaConf.to_yaml(node, resolve=True).strip() + "\n```"
    use = "`AutoModelForTokenClassification` of transformers loads it; read the logits at the step ends."
    if cfg.head == "none":
        use = "A language model without a step head; `AutoModelForCausalLM` of transformers loads it."
    elif HEADS[cfg.head].hidden:
        use = "It has the layout of Qwen2.5-Math-PRM (`Qwen2ForProcessRewardModel`: score.0, ReLU, score.2)."
    metrics = "\n".join(f"| {k} | {v:.6g} |" for k, v in summary.items() if type(v) in (int, float))
    versions = "\n".join(f"- {k}: {v}" for k, v in summary.get("versions", run_folder.versions()).items())
    base = f"base_model: {config.init}\n" if config.init.count("/") == 1 and not Path(config.init).exists() else ""
    unfinished = "" if summary.get("finished") else "The run had not finished."
    validation = "Of the run, on its validation split where the name begins with eval"
    sections = {
        "Format of its input": section(config.format),
        "Data": section(config.data),
        "Metrics": f"{validation}; this is step {step}.\n{unfinished}\n\n| number | value |\n|---|---|\n{metrics}",
        "Made with": versions,
    }
    about = f"""---
library_name: transformers
pipeline_tag: {"text-generation" if config.objective == "lm" else "token-classification"}
tags: [process-reward-model, prm_jax]
{base}---
# {name}

A process reward model (objective {config.objective}, step head {cfg.head}), trained with prm_jax. {use}

A label says: {MEANING[config.data.label_kind]} ({config.data.label_kind} labels).
"""
    return about + "".join(f"\n## {title}\n\n{text}\n" for title, text in sections.items())


def require_free(folder: Path):
    """InputError unless an export may be written here: into a new or empty folder, or over an earlier export."""
    with contextlib.suppress(OSError, ValueError):
        if "prm_jax" in json.loads((folder / "config.json").read_text()):
            return
    for path in sorted(folder.glob("*")):
        raise InputError(f"to: {folder} holds {path.name} and is no earlier export; expected a new or an empty folder")


@cli.command("export")
def main(cfg):
    """Export a run of train.py to the Hugging Face layout, which transformers loads."""
    given, cfg = cfg, parse(cfg, ExportConfig)
    to = Path(cfg.to)
    run_folder.create_run_folder(run_folder.output_dir(), given)
    require_free(to)
    run = Path(cfg.checkpoint) if cfg.checkpoint else run_folder.newest_run()
    model, tokenizer, config, step = load_run(run, cfg.which, "float32")
    objective = "lm" if config.objective == "implicit" else config.objective  # without its reference no more than that
    save(to, model, tokenizer, format=dict(config.format), label_kind=config.data.label_kind, objective=objective)
    path = run / "summary.json"
    summary = run_folder.read_json(path) if path.exists() else {}
    (to / "README.md").write_text(model_card(to.name, step, model.cfg, config, summary))
    size = sum(path.stat().st_size for path in to.iterdir())
    print(f"exported    step {step} of {run} to {to}, {size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
