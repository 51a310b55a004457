"""Opens a run, an export of ours or a released Hugging Face checkpoint with all that its outputs mean.

What a released checkpoint means is in its format (conf/format, formats.py); hf.py reads it, orbax.py a run.
"""

import dataclasses
from pathlib import Path

from omegaconf import DictConfig

from prm_jax import InputError
from prm_jax.checkpoints import hf, hf_config
from prm_jax.checkpoints.folders import is_run, locate, open_weights
from prm_jax.checkpoints.orbax import restore_run
from prm_jax.checkpoints.released import TokenShareHead, TwoTokenHead
from prm_jax.checkpoints.tokenizer import load_tokenizer
from prm_jax.formats import Format, all_formats, verdicts
from prm_jax.launch.config import expect, parse
from prm_jax.model import PRM
from prm_jax.scoring import HeadScorer, LikelihoodScorer, ModelScorer, RatioScorer

OUTCOME = ("ForSequenceClassification", "ForRewardModel")  # classes that score a text at its last token


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A verifier or a policy, with everything that its outputs depend on."""

    model: PRM
    tokenizer: object
    format: Format | None  # None for a language model
    objective: str  # prm, orm (an outcome model, read at every step), or lm (no step scores)
    label_kind: str  # what its scores mean: correctness, value (of a named completer), advantage or unknown
    name: str  # folder and step, for results and figures
    reference: PRM | None = None  # second model of an implicit PRM's log-ratios
    config: DictConfig | None = None  # the configuration of a run of ours

    def scorer(self, batch_rows: int, row_tokens: int | None = None) -> ModelScorer:
        """The Scorer of its step head, or of its log-ratio to the reference."""
        if self.objective == "lm":
            hint = "checkpoint=policy:NAME scores by its likelihood"
            raise InputError(f"{self.name}: is a language model (objective=lm), without a step head; {hint}")
        if self.reference is None:
            return HeadScorer(**self._fields(batch_rows, row_tokens))
        return RatioScorer(reference=self.reference, **self._fields(batch_rows, row_tokens))

    def likelihood_scorer(self, batch_rows: int, row_tokens: int | None = None) -> LikelihoodScorer:
        """The Scorer of a language model's likelihood of each step."""
        kind = {"objective": "prm", "label_kind": "unknown"}
        return LikelihoodScorer(**self._fields(batch_rows, row_tokens) | kind)

    def _fields(self, batch_rows: int, row_tokens: int | None) -> dict:
        fields = {name: x for name, x in vars(self).items() if name not in ("config", "reference")}
        return fields | {"batch_rows": batch_rows, "row_tokens": row_tokens}


def open_checkpoint(path: str | Path, which: str, fmt: Format | None, dtype: str, reference=None) -> Loaded:
    """Opens the `which` checkpoint of a run folder, a Hugging Face folder, or a hub name. Runs and our
    exports bring their format. Others are read with `fmt`, with `auto` by their step head, with None as a
    language model. `reference` names the second model of an implicit PRM."""
    path, is_implicit = str(path), fmt is not None and fmt.head == "implicit"
    is_right = is_implicit == (reference is not None)
    expect(is_right, "reference", reference, "a model with an implicit format, null with others")
    load = load_run if is_run(path) else load_folder
    loaded = load(path, which, None if is_implicit else fmt, dtype)
    vocab = loaded.model.cfg.vocab
    most = max(loaded.tokenizer.get_vocab().values(), default=0)
    expect(most < vocab, f"{path}: highest id of the tokenizer", most, f"one of the model's {vocab}")
    if loaded.objective == "implicit" and fmt is None:
        return dataclasses.replace(loaded, objective="lm")
    if loaded.objective == "implicit":  # a run of ours: its reference is what it started from
        beta, reference = loaded.config.loss.beta, reference or loaded.config.init
        said = {"head": "implicit", "score": "log_ratio", "beta": beta, "label_kind": "value"}
        fmt = dataclasses.replace(loaded.format, **said)
    elif not is_implicit:
        return loaded
    expect(loaded.objective in ("lm", "implicit"), f"{path}: format", fmt.name, "another: it has a step head")
    second = open_checkpoint(reference, "best", None, dtype).model
    is_wide = second.cfg.vocab >= len(loaded.tokenizer)
    expect(is_wide, "reference", reference, f"a model with the tokens of {path}")
    kind = fmt.label_kind
    return dataclasses.replace(loaded, format=fmt, objective="prm", label_kind=kind, reference=second)


def load_run(path: str, which: str, fmt: Format | None, dtype: str) -> Loaded:
    model, tokenizer, run, step = restore_run(Path(path), which, dtype)
    stored, kind = parse(run.format, Format, "format"), run.data.label_kind
    note_ignored(stored, fmt, path)
    return Loaded(model, tokenizer, stored, run.objective, kind, f"{path} step {step}", config=run)


def load_folder(path: str, which: str, fmt: Format | None, dtype: str) -> Loaded:
    """A Hugging Face folder, ours or another."""
    folder = locate(path)
    config, where, tensors = hf_config.read_config(folder), str(folder / "config.json"), open_weights(folder)
    notes = config.get("prm_jax") or {}  # of our exports: format, head, label kind, objective, policy tokens
    kind, layer = hf.find_head(tensors, str(folder), notes.get("head"))
    as_lm = fmt is None
    if "format" in notes:
        stored = parse(notes["format"], Format, f"{where}: prm_jax.format")
        note_ignored(stored, fmt, path)
        fmt, as_lm = stored, notes.get("objective") == "lm"
    elif not as_lm:
        fmt = choose_format(fmt, kind, layer, config.get("architectures") or [], str(folder))
    tokenizer = load_tokenizer(folder)
    if as_lm:
        cfg = hf_config.model_config(config, where, lm_head=True, dtype=dtype)
        model = hf.load(folder, cfg, stored="file")
        return Loaded(model, tokenizer, fmt, "lm", "unknown", path)
    objective = notes.get("objective", "orm" if fmt.outcome else "prm")
    label_kind = notes.get("label_kind", fmt.label_kind)
    ids = verdicts(fmt, tokenizer)
    head = {"tokens": "binary", "vocabulary": "none"}.get(fmt.head, kind)
    cfg = hf_config.model_config(config, where, head=head, lm_head=fmt.head == "vocabulary", dtype=dtype)
    if fmt.head == "tokens" and cfg.final_logit_softcap is not None:  # capped logits are no linear head
        cfg = dataclasses.replace(cfg, head="none", lm_head=True)
        model = TwoTokenHead(hf.load(folder, cfg, stored="file"), *ids)
    else:
        model = hf.load(folder, cfg, stored="file", verdicts=ids if fmt.head == "tokens" else None)
    if fmt.head == "vocabulary":
        model = TokenShareHead(model, *ids)
    return Loaded(model, tokenizer, fmt, objective, label_kind, path)


def note_ignored(stored: Format, requested: Format | None, path: str):
    """Says where another format was requested than the one that a run or an export brings."""
    if requested is not None and requested != stored and (requested.name != "auto" or requested.changes):
        keys = "".join(f" and format.{key}" for key in requested.changes or {})
        print(f"format      {path}: is read with its own, {stored.name}, not with {requested.name}{keys}")


def choose_format(fmt: Format, kind: str, layer: str, classes: list, where: str) -> Format:
    """`fmt`, or for auto the one format whose checkpoints have this head. `classes`: the architectures of
    config.json, which tell an outcome model from a PRM."""
    is_outcome = kind != "none" and any(str(name).endswith(OUTCOME) for name in classes)
    heads = (None, kind) if kind != "none" else ("tokens", "vocabulary", "implicit")
    suitable = (is_outcome,) if classes else (True, False)  # values of Format.outcome
    fits = [f for f in all_formats() if f.head in heads and f.layer == layer and f.outcome in suitable]
    listed = " or ".join(f"format={f.name}" for f in fits) or "no known format"
    if kind == "none":
        listed += ", of a critic format=judge"
    what = "an outcome model" if is_outcome else "a checkpoint"
    found = f"format={fmt.name} for {what} with the head {layer}.weight ({kind})"
    if fmt.name != "auto":
        is_right = fmt.head in heads and fmt.outcome in suitable
        expect(is_right, f"{where}: format", found, listed)
        return fmt
    defaults = [f for f in fits if f.auto]
    is_one = len(defaults) == 1 and defaults[0].head is not None
    expect(is_one, f"{where}: format", found, f"the name of its convention, {listed}")
    if others := " and ".join(f"format={f.name}" for f in fits if not f.auto):
        print(f"format      {where}: is read with format={defaults[0].name}; its head fits {others}, too")
    return parse(dataclasses.asdict(defaults[0]) | (fmt.changes or {}), Format, "format")
