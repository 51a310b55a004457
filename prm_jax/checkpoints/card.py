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
SCORES = """
A step's score: {meaning} ({kind} labels). It is read at the step tag, token {tag} (step_tag_id of vLLM's
pooler).

```python
import prm_jax

print(prm_jax.load("{name}").score("3 + 4 * 2 = ?", ["4 * 2 = 8", "3 + 8 = 11"]))
```
"""


def step_tag(fmt, tokenizer) -> int | None:
    """Id of the token at which a step's score is read; None where the format puts nothing after a step."""
    fmt = with_pad(fmt, tokenizer)
    is_read = fmt.separator and not fmt.drop_separator
    return tokenizer.encode(fmt.separator, add_special_tokens=False)[-1] if is_read else None


def model_card(name: str, run_name: str, architecture: str, run, summary: dict, tag: int | None) -> ModelCard:
    """The card of an export of `run`, a configuration; `tag`: the step tag's id."""
    is_lm = run.objective in ("lm", "implicit")
    task = "text-generation" if is_lm else "token-classification"
    about = ModelCardData(library_name="transformers", pipeline_tag=task, tags=["process-reward-model"])
    text = f"---\n{about.to_yaml()}\n---\n# {name}\n\nMade with prm_jax from {Path(run_name).name}, "
    text += f"objective {run.objective}, laid out for the class {architecture}.\n"
    if not is_lm:
        kind = run.data.label_kind
        text += SCORES.format(meaning=MEANING[kind], kind=kind, tag=tag, name=name)
    facts = {
        "format": OmegaConf.to_container(run.format, resolve=True),
        "data": OmegaConf.to_container(run.data, resolve=True),
        "metrics": {key: x for key, x in summary.items() if type(x) in (int, float)},
        "versions": summary.get("versions", versions()),
    }
    facts = json.dumps(facts, indent=2, ensure_ascii=False)
    facts = re.sub(r'"/[^"]*/', '"', facts)  # names of files, not their folders on this machine
    return ModelCard(f"{text}\n```json\n{facts}\n```\n", ignore_metadata_errors=True)
