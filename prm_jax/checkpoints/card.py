"""README.md of an export: what the model scores and how, the data, the numbers, the code, and what others must know to serve it."""

import json
from pathlib import Path

import yaml
from omegaconf import OmegaConf

from prm_jax.checkpoints.hf_config import CLASSES, HEADLESS
from prm_jax.heads import HEADS
from prm_jax.launch import run_folder
from prm_jax.model import ModelConfig

MEANING = {
    "correctness": "the step, and all before it, are right",
    "value": "the completer that made the labels would reach the right answer from here",
    "advantage": "by how much the step changes the completer's chance of the right answer: (1 + A) / 2, A in [-1, 1]",
    "unknown": "what its data say",
}


class Dumper(yaml.SafeDumper):
    """YAML that shows a line break as one."""


Dumper.add_representer(str, lambda d, x: d.represent_scalar("tag:yaml.org,2002:str", x, '"' if "\n" in x else None))


def step_tag(fmt, tokenizer) -> int | None:
    """Id of the token that a step's score is read at; None where the format puts nothing after a step."""
    is_read = fmt.separator and not fmt.drop_separator
    return tokenizer.encode(fmt.separator, add_special_tokens=False)[-1] if is_read else None


def serving(cfg: ModelConfig, tag: int | None) -> str:
    """What vLLM and code written for other PRMs must know of a step head."""
    head, family = HEADS[cfg.head], CLASSES[cfg.family]
    names = ", ".join(f"class {i} is `{label}`" for i, label in enumerate(head.labels))
    lines = [
        f"- Step tag: token id {tag}, at which scores are read (also `prm_jax.step_tag_id` of config.json).",
        f"- Labels: {names}; code written for TRL's models, which calls them LABEL_0 and LABEL_1, reads them by number.",
    ]
    pooler = json.dumps({"pooling_type": "STEP", "step_tag_id": tag})
    if head.hidden and cfg.family == "qwen2":
        lines.append(
            f"- vLLM has its class. Give it the step tag, `--override-pooler-config '{pooler}'` (`--pooler-config` in newer "
            "versions): by default versions 0.9 and 0.10 look for id 151651, Qwen's own, and would read nothing here."
        )
    elif head.hidden:
        lines.append(
            f"- Neither transformers nor vLLM has a class for this head on {family}: `AutoModel` loads the backbone."
        )
    else:
        old = json.dumps({"architectures": [f"{family}ForTokenClassification"]})
        lines.append(
            f"- vLLM: newer versions know a class by the ending ForTokenClassification (pooling task `token_classify`, logits of "
            f"every token: take those at the step tag); older ones need `--hf-overrides '{old}'` and a class of that name."
        )
    return "\n".join(lines)


def model_card(name: str, step: int, cfg: ModelConfig, config, summary: dict, tag: int | None) -> str:
    """README.md of an exported run: what it scores and how, the data, the numbers, and the code that made them."""
    plain = lambda node: OmegaConf.to_container(node, resolve=True)
    section = lambda node: f"```yaml\n{yaml.dump(plain(node), Dumper=Dumper, sort_keys=False).strip()}\n```"
    use = "`AutoModelForTokenClassification` of transformers loads it; read the logits at the step ends."
    if cfg.head == "none":
        use = "`AutoModelForCausalLM` of transformers loads it."
    elif HEADS[cfg.head].hidden:
        use = "It has the layout of Qwen2.5-Math-PRM (score.0, ReLU, score.2), whose class is code beside Qwen's checkpoints."
    elif cfg.family in HEADLESS:
        use = "`AutoModel` of transformers, which has no class with this head, loads the backbone; `score` reads its output."
    is_lm = cfg.head == "none"
    metrics = "\n".join(f"| {k} | {v:.6g} |" for k, v in summary.items() if type(v) in (int, float))
    versions = "\n".join(f"- {k}: {v}" for k, v in summary.get("versions", run_folder.versions()).items())
    init = config.policy if "policy" in config else config.init  # of RL, of training
    base = f"base_model: {init}\n" if init.count("/") == 1 and not Path(init).exists() else ""
    unfinished = "" if summary.get("finished") else "The run had not finished."
    validation = "Of the run, on its validation split where the name begins with eval"
    served = {} if is_lm else {"Use elsewhere": serving(cfg, tag)}
    what = (
        "A language model" if is_lm else f"A process reward model (objective {config.objective}, step head {cfg.head})"
    )
    says = "" if is_lm else f"\nA label says: {MEANING[config.data.label_kind]} ({config.data.label_kind} labels).\n"
    sections = served | {
        "Format of its input": section(config.format),
        "Data": section(config.data),
        "Metrics": f"{validation}; this is step {step}. {unfinished}\n\n| number | value |\n|---|---|\n{metrics}",
        "Made with": versions,
    }
    about = f"""---
library_name: transformers
pipeline_tag: {"text-generation" if config.objective == "lm" else "token-classification"}
tags: [process-reward-model, prm_jax]
{base}---
# {name}

{what}, trained with prm_jax. {use}
{says}"""
    return about + "".join(f"\n## {title}\n\n{text}\n" for title, text in sections.items())
