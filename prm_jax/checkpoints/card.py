"""Makes the README.md of an export: what its scores mean, how to get them, its data, metrics and versions."""

import json
import re
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData
from omegaconf import OmegaConf

from prm_jax.formats import with_pad
from prm_jax.launch.run_folder import versions

MEANING = {
    "correctness": "the step, and all before it, are right",
    "value": "the completer that made the labels would reach the right answer from here",
    "advantage": "by how much the step changes the completer's chance of the right answer: (1 + A) / 2",
    "unknown": "what its data say",
}
SCORE = """import prm_jax

print(prm_jax.load("{name}").score("3 + 4 * 2 = ?", ["4 * 2 = 8", "3 + 8 = 11"]))"""


def step_tag(fmt, tokenizer) -> int | None:
    """Id of the token at which a step's score is read; None where the format puts nothing after a step."""
    fmt = with_pad(fmt, tokenizer)
    is_read = fmt.separator and not fmt.drop_separator
    return tokenizer.encode(fmt.separator, add_special_tokens=False)[-1] if is_read else None


def model_card(name: str, run_name: str, architecture: str, run, summary: dict, tag: int | None) -> ModelCard:
    """The card of an export of `run`, a configuration; `tag`: the step tag's id."""
    is_lm = run.objective in ("lm", "implicit")
    data = json.dumps(OmegaConf.to_container(run.data, resolve=True))
    data = re.sub(r'"/[^"]*/', '"', data)  # names of files, not their folders on this machine
    init = str(run.get("policy") or run.get("init"))  # of RL, of training
    base = init if init.count("/") == 1 and not Path(init).exists() else None
    task = "text-generation" if is_lm else "token-classification"
    tags = ["process-reward-model", "prm_jax"]
    about = ModelCardData(library_name="transformers", pipeline_tag=task, tags=tags, base_model=base)
    text = f"---\n{about.to_yaml()}\n---\n# {name}\n\nMade with prm_jax from {Path(run_name).name}, "
    text += f"objective {run.objective}, laid out for the class {architecture}.\n"
    if not is_lm:
        kind = run.data.label_kind
        text += f"\nA step's score: {MEANING[kind]} ({kind} labels). It is read after each step, at the step "
        text += f"tag, token {tag} (step_tag_id of vLLM's pooler).\n"
        text += f"\n```python\n{SCORE.format(name=name)}\n```\n"
    blocks = {
        "Format": OmegaConf.to_container(run.format, resolve=True),
        "Data": json.loads(data),
        "Metrics": {key: x for key, x in summary.items() if type(x) in (int, float)},
        "Versions": summary.get("versions", versions()),
    }
    for title, block in blocks.items():
        text += f"\n## {title}\n\n```json\n{json.dumps(block, indent=2, ensure_ascii=False)}\n```\n"
    return ModelCard(text, ignore_metadata_errors=True)
