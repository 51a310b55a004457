"""Writes the README.md of an export: what the model scores, how to serve it, its data, metrics and versions."""

import json
import re
from pathlib import Path

from omegaconf import OmegaConf

from prm_jax.checkpoints.hf_config import CLASSES, HEADLESS
from prm_jax.formats import Format, with_pad
from prm_jax.heads import HEADS
from prm_jax.launch import run_folder
from prm_jax.launch.config import parse
from prm_jax.model import ModelConfig

MEANING = {
    "correctness": "the step, and all before it, are right",
    "value": "the completer that made the labels would reach the right answer from here",
    "advantage": "by how much the step changes the completer's chance of the right answer: (1 + A) / 2, A in [-1, 1]",
    "unknown": "what its data say",
}
CODE = """import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("{name}")
model = AutoModelForTokenClassification.from_pretrained("{name}").eval()
encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
ids, ends = {begin}encode(problem), []
for step in steps:  # each by itself, then the separator, at whose last token the step's score is read
    ids += encode(step) + encode({separator!r})
    ends.append(len(ids) - 1)
print({good})  # P(the step is good) of each step"""
OURS = 'import prm_jax\nprint(prm_jax.load("{name}").score(problem, steps))'


def code(name: str, cfg: ModelConfig, fmt: Format) -> str:
    """Python that scores the steps of a solution: by transformers where it has the class and the format is plain."""
    is_plain = fmt.tokenized == "apart" and fmt.prefix == "{problem}" and not (fmt.strip or fmt.number)
    begin = "[tokenizer.bos_token_id] * (tokenizer.bos_token_id is not None) + " if fmt.bos else ""
    logits = "model(torch.tensor([ids])).logits[0, ends]"
    good = f"{logits}[:, 0].sigmoid()" if cfg.head == "scalar" else f"1 - {logits}.softmax(-1)[:, 0]"
    template = OURS if HEADS[cfg.head].hidden or cfg.family in HEADLESS or not is_plain else CODE
    text = template.format(name=name, begin=begin, separator=fmt.separator, good=good)
    return f'```python\nproblem, steps = "3 + 4 * 2 = ?", ["4 * 2 = 8", "3 + 8 = 11"]\n{text}\n```'


def step_tag(fmt, tokenizer) -> int | None:
    """Id of the token at which a step's score is read; None where the format puts nothing after a step."""
    fmt = with_pad(fmt, tokenizer)
    is_read = fmt.separator and not fmt.drop_separator
    return tokenizer.encode(fmt.separator, add_special_tokens=False)[-1] if is_read else None


def serving(cfg: ModelConfig, tag: int | None) -> str:
    """What vLLM and code for other PRMs must know about the step head."""
    head, family = HEADS[cfg.head], CLASSES[cfg.family]
    names = ", ".join(f"class {i} is `{label}`" for i, label in enumerate(head.labels))
    lines = [
        f"- Step tag: token id {tag}, at which scores are read (also `prm_jax.step_tag_id` of config.json).",
        f"- Labels: {names}; code for TRL's models, which calls them LABEL_0 and LABEL_1, reads them by number.",
    ]
    pooler = json.dumps({"pooling_type": "STEP", "step_tag_id": tag})
    if head.hidden and cfg.family == "qwen2":
        flag = f"`--override-pooler-config '{pooler}'` (`--pooler-config` in newer versions)"
        why = "versions 0.9 and 0.10 look for Qwen's id 151651 by default and would read nothing here"
        lines.append(f"- vLLM has its class. Set the step tag by {flag}: {why}.")
    elif head.hidden:
        lines.append(f"- No library has a class for this head on {family}: `AutoModel` loads the backbone.")
    else:
        old = json.dumps({"architectures": [f"{family}ForTokenClassification"]})
        new = "recognise ForTokenClassification (pooling task `token_classify`: take the logits at the step tag)"
        needs = f"`--hf-overrides '{old}'` and a class of that name"
        lines.append(f"- vLLM: newer versions {new}; older ones need {needs}.")
    return "\n".join(lines)


def model_card(name: str, step: int, cfg: ModelConfig, config, summary: dict, tag: int | None) -> str:
    what, use, meaning, sections = (
        "A language model",
        "`AutoModelForCausalLM` of transformers loads it.",
        "",
        {},
    )
    if cfg.head != "none":
        use = "`AutoModelForTokenClassification` of transformers loads it; read the logits at the step ends."
        if HEADS[cfg.head].hidden:
            use = "Its layout is Qwen2.5-Math-PRM's (score.0, ReLU, score.2), whose class comes with Qwen's weights."
        elif cfg.family in HEADLESS:
            use = "`AutoModel` of transformers loads the backbone, whose output `score` reads; no class has this head."
        what = f"A process reward model (objective {config.objective}, step head {cfg.head})"
        meaning = (
            f"\nMeaning of a label: {MEANING[config.data.label_kind]} ({config.data.label_kind} labels).\n"
        )
        fmt = parse(config.format, Format, "format")
        sections = {"Use": code(name, cfg, fmt), "Use elsewhere": serving(cfg, tag)}
    metrics = "\n".join(f"| {k} | {v:.6g} |" for k, v in summary.items() if type(v) in (int, float))
    init = config.policy if "policy" in config else config.init  # of RL, of training
    base = f"base_model: {init}\n" if init.count("/") == 1 and not Path(init).exists() else ""
    unfinished = "" if summary.get("finished") else "The run had not finished."
    sections |= {
        "Format of its input": as_block(config.format),
        "Data": re.sub(
            r'"/[^"]*/', '"', as_block(config.data)
        ),  # names of files, not their folders on this machine
        "Metrics": "Of the run, on its validation split where the name begins with eval; "
        f"this is step {step}. {unfinished}\n\n| number | value |\n|---|---|\n{metrics}",
        "Made with": "\n".join(
            f"- {k}: {v}" for k, v in summary.get("versions", run_folder.versions()).items()
        ),
    }
    head = f"""---
library_name: transformers
pipeline_tag: {"text-generation" if config.objective == "lm" else "token-classification"}
tags: [process-reward-model, prm_jax]
{base}---
# {name}

{what}, trained with prm_jax. {use}
{meaning}"""
    return head + "".join(f"\n## {title}\n\n{text}\n" for title, text in sections.items())


def as_block(node) -> str:
    return f"```json\n{json.dumps(OmegaConf.to_container(node, resolve=True), indent=2, ensure_ascii=False)}\n```"
