"""Exports a run of train.py to the Hugging Face layout: python -m prm_jax.export checkpoint=RUN to=FOLDER"""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Literal

import numpy as np
from huggingface_hub import ModelCard, ModelCardData

from prm_jax.checkpoints.folders import end_ids, is_run, locate
from prm_jax.checkpoints.hf import save
from prm_jax.checkpoints.hf_config import architecture
from prm_jax.checkpoints.open import Loaded, implicit_format, open_checkpoint
from prm_jax.formats import policy_format, read_format, turn_end, with_pad
from prm_jax.heads import HEADS
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import expect, parse
from prm_jax.launch.files import write_json

ROW = "3 + 4 * 2 = ?", ("4 * 2 = 8", "3 + 8 = 11")  # the solution that an export scores again
MEANING = {
    "correctness": "the step, and all before it, are right",
    "value": "the completer that made the labels would reach the right answer from here",
    "advantage": "by how much the step changes the completer's chance of the right answer: (1 + A) / 2",
    "unknown": "what its data say",
}
SCORES = """
A step's score: {meaning} ({kind} labels). It is read at {place}.

```python
import prm_jax

print(prm_jax.load("{name}").score("3 + 4 * 2 = ?", ["4 * 2 = 8", "3 + 8 = 11"]))
```
"""
IMPLICIT = """
A step's score: beta log(p / p_reference) of its tokens, p_reference of the model that training began with.

```python
import prm_jax

verifier = prm_jax.load("{name}", format={format}, reference="{reference}")
```
"""
VLLM = """
vLLM answers with the probabilities of {classes} at {places}:

```bash
vllm serve {name} --runner pooling --dtype float32 --pooler-config '{pooler}'
```
"""


@dataclasses.dataclass(frozen=True)
class ExportConfig:  # conf/export.yaml says what each key means
    checkpoint: str | None
    to: str
    which: Literal["best", "latest"]


@cli.command("export", ExportConfig)
def main(raw_cfg):
    """Export a run of train.py to the Hugging Face layout, which transformers loads."""
    cfg = parse(raw_cfg, ExportConfig)
    to = Path(cfg.to)
    run = Path(cfg.checkpoint) if cfg.checkpoint else run_folder.newest_run()
    expect(is_run(run), "checkpoint", str(run), "a run's folder")
    run_folder.claim_folder(run_folder.output_dir(), raw_cfg)
    loaded = open_checkpoint(run, cfg.which, None, "float32")
    export(loaded, to)
    if loaded.objective == "lm":
        fmt = policy_format(loaded.format, loaded.tokenizer)
        ends = end_ids(locate(str(run))) | turn_end(fmt, loaded.tokenizer) | {loaded.tokenizer.eos_token_id}
        write_json(to / "generation_config.json", {"eos_token_id": sorted(ends - {None})})
    size = sum(path.stat().st_size for path in to.iterdir())
    print(f"exported    {loaded.name} to {to}, {size / 2**20:.2f} MiB")


def export(loaded: Loaded, to: Path):
    """Writes a run's model to a new folder, which gets its name once it has been read back."""
    is_free = not to.exists() or to.is_dir() and not any(to.iterdir())
    expect(is_free, "to", str(to), "a new or an empty folder")
    notes = {
        "format": dict(loaded.config.format),
        "label_kind": loaded.label_kind,
        "objective": loaded.objective,
        "step_tag_id": step_tag(loaded.format, loaded.tokenizer),
    }
    if isinstance(loaded.format.chat, str):  # a file of this machine
        loaded.tokenizer.chat_template = Path(loaded.format.chat).read_text()
        notes["format"]["chat"] = True
    new = Path(f"{to.absolute()}.unfinished")
    shutil.rmtree(new, ignore_errors=True)  # of a call that was killed
    try:
        save(new, loaded.model, loaded.tokenizer, **notes)
        read_back(new, loaded)
        model_card(to.name, loaded, notes["step_tag_id"]).save(new / "README.md")
        new.replace(to)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def step_tag(fmt, tokenizer) -> int | None:
    """Id of the token at which a step's score is read; None where the format puts nothing after a step."""
    fmt = with_pad(fmt, tokenizer)
    is_read = fmt.separator and not fmt.drop_separator
    return tokenizer.encode(fmt.separator, add_special_tokens=False)[-1] if is_read else None


def read_back(folder: Path, loaded: Loaded):
    """InputError unless the folder opens as the same model, with the same scores of one solution."""
    again = open_checkpoint(folder, "best", None, "float32")
    expect(again.objective == loaded.objective, "export: objective", again.objective, loaded.objective)
    before_T, after_T = (x.scorer(1).score([ROW])[0] for x in (loaded, again))
    is_same = np.allclose(before_T, after_T, rtol=1e-4, atol=1e-4)
    expect(is_same, "export: scores of the folder", after_T.tolist(), f"the run's {before_T.tolist()}")


def model_card(name: str, loaded: Loaded, tag: int | None) -> ModelCard:
    """The README.md of an export: what its scores mean and how to get them; `tag`: the step tag's id."""
    kind = loaded.label_kind
    is_lm = loaded.objective == "lm"
    layout = architecture(loaded.model.cfg)
    task = "text-generation" if is_lm else "token-classification"
    about = ModelCardData(library_name="transformers", pipeline_tag=task, tags=["process-reward-model"])
    text = f"---\n{about.to_yaml()}\n---\n# {name}\n\nMade with prm_jax from {Path(loaded.name).name}, "
    text += f"objective {loaded.config.objective}, laid out for the class {layout}.\n"
    if not is_lm:
        place = "the end of each step" if tag is None else f"the step tag, token {tag}"
        meaning = "the answer is right" if loaded.objective == "orm" else MEANING[kind]
        text += SCORES.format(meaning=meaning, kind=kind, place=place, name=name)
    elif loaded.config.objective == "implicit":
        known = vars(read_format(loaded.format.name))
        fmt = {key: x for key, x in vars(implicit_format(loaded)).items() if key == "name" or x != known[key]}
        text += IMPLICIT.format(name=name, format=fmt, reference=loaded.config.init)
    pooler = {"task": "token_classify", "pooling_type": "ALL"}
    places = "all tokens (take those of step tags)"
    if layout.endswith("ProcessRewardModel") and tag is not None:  # whose default is STEP
        pooler |= {"pooling_type": "STEP", "step_tag_id": tag}
        places = "the step tags"
    if layout.endswith(("ForTokenClassification", "RewardModel")):
        classes = ", ".join(HEADS[loaded.model.cfg.head].labels)
        text += VLLM.format(name=name, pooler=json.dumps(pooler), places=places, classes=classes)
    return ModelCard(text, ignore_metadata_errors=True)


if __name__ == "__main__":
    main()
