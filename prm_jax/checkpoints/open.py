"""Opens a run, an export of ours or a released Hugging Face checkpoint with all that its outputs mean.

What a released checkpoint means is in its format (conf/format, formats.py); hf.py reads it, orbax.py a run.
"""

import dataclasses
from pathlib import Path

from omegaconf import DictConfig

from prm_jax import InputError
from prm_jax.checkpoints import hf, hf_config
from prm_jax.checkpoints.folders import base_of, open_weights
from prm_jax.checkpoints.orbax import load_run
from prm_jax.checkpoints.released import Ensemble, TokenShareHead, TwoTokenHead
from prm_jax.formats import Format, all_formats, verdicts
from prm_jax.launch.config import expect, parse
from prm_jax.model import PRM
from prm_jax.scoring import HeadScorer, ModelScorer, RatioScorer

OUTCOME = ("ForSequenceClassification", "ForRewardModel")  # classes that score a text at its last token


@dataclasses.dataclass(frozen=True)
class Loaded:  # a verifier or a policy, with everything that its outputs depend on
    model: PRM
    tokenizer: object
    format: Format | None  # None for a language model
    objective: str  # prm, orm (an outcome model, read at every step), or lm (no step scores)
    label_kind: str  # what its scores mean: correctness, value (of a named completer), advantage or unknown
    name: str  # folder and step, for results and figures
    reference: PRM | None = None  # second model of an implicit PRM's log-ratios
    config: DictConfig | None = None  # the configuration of a run of ours

    def scorer(self, batch_rows: int, row_tokens: int | None = None) -> ModelScorer:
        if self.objective == "lm":
            hint = "checkpoint=policy:NAME scores by its likelihood"
            raise InputError(
                f"{self.name}: is a language model (objective=lm), so it has no step head; {hint}"
            )
        fields = {name: value for name, value in vars(self).items() if name not in ("config", "reference")}
        fields |= {"batch_rows": batch_rows, "row_tokens": row_tokens}
        return (
            HeadScorer(**fields)
            if self.reference is None
            else RatioScorer(**fields, reference=self.reference)
        )


def open_checkpoint(path: str | Path, which: str, fmt: Format | None, dtype: str, reference=None) -> Loaded:
    """Opens the `which` checkpoint of a run folder, a Hugging Face folder, or a hub name. Runs and our exports bring
    their format. Other checkpoints are read with `fmt`, with `auto` by their step head, and with None as a language
    model. `reference` names the second model of an implicit PRM."""
    implicit = fmt is not None and fmt.head == "implicit"
    if implicit and reference is None:
        hint = "scores by the log-ratio of two models, so name the second: reference=FOLDER"
        raise InputError(f"reference: format={fmt.name} {hint}")
    if reference is not None and not implicit:
        raise InputError(
            f"reference: format={fmt.name if fmt else 'null'} uses only one model, expected null"
        )
    open_one = of_run if (Path(path) / "checkpoints").is_dir() else of_folder
    loaded = open_one(str(path), which, None if implicit else fmt, dtype)
    if loaded.objective == "implicit":
        loaded = dataclasses.replace(loaded, objective="lm")
        if (
            fmt is not None
        ):  # a run of ours: its reference is what it started from, its scale what it learned with
            implicit, reference, beta = True, reference or loaded.config.init, loaded.config.loss.beta
            fmt = dataclasses.replace(
                loaded.format, head="implicit", score="log_ratio", beta=beta, label_kind="value"
            )
    if (most := max(loaded.tokenizer.get_vocab().values(), default=0)) >= loaded.model.cfg.vocab:
        raise InputError(
            f"{path}: its tokenizer has id {most}, but its model embeds {loaded.model.cfg.vocab} tokens"
        )
    if not implicit:
        return loaded
    if loaded.objective != "lm":
        raise InputError(f"{path}: has a step head, but format={fmt.name} reads a language model")
    second = open_checkpoint(hf.locate(reference), which, None, dtype)
    if (vocab := second.model.cfg.vocab) < len(loaded.tokenizer):
        raise InputError(f"{reference}: has {vocab} tokens, but {path} writes in {len(loaded.tokenizer)}")
    return dataclasses.replace(
        loaded, format=fmt, objective="prm", label_kind=fmt.label_kind, reference=second.model
    )


def of_run(path: str, which: str, fmt: Format | None, dtype: str) -> Loaded:
    model, tokenizer, run, step = load_run(Path(path), which, dtype)
    stored = stored_format(parse(run.format, Format, "format"), fmt, path)
    return Loaded(
        model, tokenizer, stored, run.objective, run.data.label_kind, f"{path} step {step}", config=run
    )


def of_folder(path: str, which: str, fmt: Format | None, dtype: str) -> Loaded:
    folder = hf.locate(path)
    config, where, tensors = hf_config.read_config(folder), str(folder / "config.json"), open_weights(folder)
    # An adapter may add tokens.
    if base_of(folder) and (embed := tensors.get("model.embed_tokens.weight")):
        config |= {"vocab_size": embed.get_shape()[0]}
    notes = config.get("prm_jax") or {}  # of our exports: format, head, label kind, objective, policy tokens
    kind, layer = hf.find_head(tensors, str(folder), notes.get("head"))
    if "format" in notes:
        fmt = stored_format(parse(notes["format"], Format, f"{where}: prm_jax.format"), fmt, path)
        as_lm = notes.get("objective") == "lm"
    else:
        as_lm = fmt is None
        fmt = (
            None if as_lm else choose_format(fmt, kind, layer, config.get("architectures") or [], str(folder))
        )
    hf_config.shape_of(config, where)  # checked before transformers makes a list of the claimed layers
    tokenizer = hf.load_tokenizer(folder)
    head, ids, objective, label_kind = "none", None, "lm", "unknown"
    if not as_lm:
        head = {"tokens": "binary", "vocabulary": "none", "ensemble": "none"}.get(fmt.head, kind)
        ids = verdicts(fmt, tokenizer)
        objective = notes.get("objective", "orm" if fmt.outcome else "prm")
        expect(objective in ("prm", "orm"), f"{where}: prm_jax.objective", objective, "prm or orm")
        label_kind = notes.get("label_kind", fmt.label_kind)
        kinds = ("correctness", "value", "advantage", "unknown")
        expect(label_kind in kinds, f"{where}: prm_jax.label_kind", label_kind, ", ".join(kinds))
    keeps_lm = as_lm or fmt.head == "vocabulary"
    cfg = hf_config.model_config(config, where, head=head, lm_head=keeps_lm, dtype=dtype)
    capped = head == "binary" and ids is not None and cfg.final_logit_softcap is not None
    cfg = dataclasses.replace(cfg, head="none", lm_head=True) if capped else cfg
    model = hf.load(folder, cfg, dtype=None, verdicts=ids if cfg.head == "binary" else None)
    if capped:
        model = TwoTokenHead(model, *ids)
    elif not as_lm and fmt.head == "vocabulary":
        model = TokenShareHead(model, *ids)
    elif not as_lm and fmt.head == "ensemble":
        model = Ensemble(model, tensors, layer)
    return Loaded(model, tokenizer, fmt, objective, label_kind, path)


def stored_format(stored: Format, requested: Format | None, path: str) -> Format:
    """The format that a run or an export brings; prints it where another was requested."""
    changes = (requested.changes or {}) if requested else {}
    ignored = [f"format.{key}={value}" for key, value in changes.items() if value != getattr(stored, key)]
    ignored += [f"format={requested.name}"] if requested and requested.name != "auto" else []
    if ignored and requested != stored:
        print(f"format      {path}: is read with its own, {stored.name}, not with {', '.join(ignored)}")
    return stored


def choose_format(fmt: Format, kind: str, layer: str, classes: list, where: str) -> Format:
    """`fmt`, or for auto the one format whose checkpoints have this head; InputError where the head does not fit.
    `classes` are the architectures of config.json, which distinguish an outcome model from a PRM."""
    is_outcome = kind != "none" and any(str(name).endswith(OUTCOME) for name in classes)
    description = f"has the step head {layer}.weight ({kind})" if kind != "none" else "has no step head"
    if is_outcome:
        description = (
            f"is an outcome model ({', '.join(map(str, classes))}), with the head {layer}.weight ({kind})"
        )
    heads = (None, kind) if kind != "none" else ("tokens", "vocabulary", "implicit")
    suitable = (True, False) if not classes else (is_outcome,)  # values of Format.outcome
    fits = [f for f in all_formats() if f.head in heads and f.layer == layer and f.outcome in suitable]
    listed = " or ".join(f"format={f.name}" for f in fits) or "no known format"
    listed += ", of a critic format=judge" * (kind == "none")
    if fmt.name == "auto":
        defaults = [f for f in fits if f.auto]
        if len(defaults) != 1 or defaults[0].head is None:
            raise InputError(
                f"{where}: {description}; say which convention (conf/format) it follows: {listed}"
            )
        if others := " and ".join(f"format={f.name}" for f in fits if not f.auto):
            print(f"format      {where}: is read with format={defaults[0].name}; its head fits {others}, too")
        return parse(dataclasses.asdict(defaults[0]) | (fmt.changes or {}), Format, "format")
    if fmt.head not in heads or fmt.outcome not in suitable:
        reads = fmt.head or "one" if fmt.outcome in suitable else "texts" if fmt.outcome else "steps"
        raise InputError(f"{where}: {description}, but format={fmt.name} reads {reads}; expected {listed}")
    return fmt
