"""Opens a run, an export of ours or a released Hugging Face checkpoint with all that its outputs mean.

What a released checkpoint means is in its format (conf/format, formats.py); hf.py reads it, orbax.py a run.

Dimension key: B rows, T step ends, D model, V vocabulary, C verdicts.
"""

import dataclasses
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from omegaconf import DictConfig

from prm_jax.checkpoints import hf, hf_config
from prm_jax.checkpoints.folders import is_run, locate, open_weights
from prm_jax.checkpoints.orbax import restore_run
from prm_jax.checkpoints.tokenizer import load_tokenizer
from prm_jax.formats import Format, all_formats, verdicts
from prm_jax.kernels.cpu import soft_cap
from prm_jax.launch.config import expect, parse
from prm_jax.launch.devices import choose_dtype, has_bfloat16_unit
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
        """The Scorer of its step head, of its log-ratio to the reference, or of a language model's likelihood
        of each step."""
        fields = {name: x for name, x in vars(self).items() if name not in ("config", "reference")}
        fields |= {"batch_rows": batch_rows, "row_tokens": row_tokens}
        if self.objective == "lm":
            return LikelihoodScorer(**fields | {"objective": "prm", "label_kind": "unknown"})
        if self.reference is None:
            return HeadScorer(**fields)
        return RatioScorer(reference=self.reference, **fields)


def open_checkpoint(path: str | Path, which: str, fmt: Format | None, dtype: str, reference=None) -> Loaded:
    """Opens the `which` checkpoint of a run folder, a Hugging Face folder, or a hub name. Runs and our
    exports bring their format. Others are read with `fmt`, with `auto` by their step head, with None as a
    language model. `reference` names the second model of an implicit PRM."""
    path = os.path.expanduser(path)  # where no command line was: in Python, YAML, a stored run
    dtype = resolve_dtype(dtype, path)
    is_implicit = fmt is not None and fmt.head == "implicit"
    is_right = is_implicit == (reference is not None)
    expect(is_right, "reference", reference, "a model with an implicit format, null with others")
    asked = None if is_implicit else fmt
    loaded = load_run(path, which, asked, dtype) if is_run(path) else load_folder(path, asked, dtype)
    vocab = loaded.model.cfg.vocab
    most = max(loaded.tokenizer.get_vocab().values(), default=0)
    expect(most < vocab, f"{path}: highest id of the tokenizer", most, f"one of the model's {vocab}")
    if loaded.objective == "implicit":  # a run of ours: its reference is what it started from
        if fmt is None:
            return dataclasses.replace(loaded, objective="lm")
        reference = reference or loaded.config.init
        fmt = implicit_format(loaded)
    elif is_implicit:
        expect(loaded.objective == "lm", "format", fmt.name, f"none: {path} has a step head")
    else:
        return loaded
    second = open_checkpoint(reference, "best", None, dtype)
    # What our own run began with may be a verifier, whose backbone it took as a language model.
    is_lm = second.objective == "lm" or loaded.objective == "implicit"
    ids, others = loaded.tokenizer.get_vocab(), second.tokenizer.get_vocab()
    is_wide = second.model.cfg.vocab > max(ids.values())
    has_tokens = is_wide and sum(others.get(token) == i for token, i in ids.items()) > 0.99 * len(ids)
    expect(is_lm and has_tokens, "reference", reference, f"a language model with the tokens of {path}")
    implicit = {"format": fmt, "label_kind": fmt.label_kind, "reference": second.model}
    return dataclasses.replace(loaded, objective="prm", **implicit)


def implicit_format(loaded: Loaded) -> Format:
    """How a run of objective=implicit is read as a verifier."""
    said = {"head": "implicit", "score": "log_ratio", "beta": loaded.config.loss.beta}
    return dataclasses.replace(loaded.format, **said, label_kind="value", good=None, bad=None)


def resolve_dtype(name: str, path: str) -> str:
    """The compute dtype of the scores or samples of a model; of `auto` on a CPU bfloat16 where the processor
    multiplies it faster than float32 and the model is wide."""
    dtype = choose_dtype(name)
    if name == "auto" and dtype == "float32" and has_bfloat16_unit() and hf_config.is_wide(path):
        print(f"dtype       bfloat16, which this processor multiplies faster than float32: {path}")
        return "bfloat16"
    return dtype


def load_run(path: str, which: str, fmt: Format | None, dtype: str) -> Loaded:
    model, tokenizer, run, step = restore_run(Path(path), which, dtype)
    stored = parse(run.format, Format, "format")
    note_ignored(stored, fmt, path)
    name = f"{path} step {step}"
    return Loaded(model, tokenizer, stored, run.objective, run.data.label_kind, name, config=run)


def load_folder(path: str, fmt: Format | None, dtype: str) -> Loaded:
    """A Hugging Face folder, ours or another."""
    folder = locate(path)
    config = hf_config.read_config(folder)
    where = str(folder / "config.json")
    notes = config.get("prm_jax") or {}  # of our exports: format, head, label kind, objective, policy tokens
    weights = open_weights(folder)
    head, layer = hf.find_head(weights, str(folder), notes.get("head"))
    as_lm = fmt is None
    if "format" in notes:
        stored = parse(notes["format"], Format, f"{where}: prm_jax.format")
        note_ignored(stored, fmt, path)
        fmt = stored
        as_lm = notes.get("objective") == "lm"
    elif not as_lm:
        fmt = choose_format(fmt, head, layer, config.get("architectures") or [], str(folder))
    tokenizer = load_tokenizer(folder)
    if not as_lm and fmt.outcome:  # encoding.encode_outcome
        tokenizer.pad_token_id = config.get("pad_token_id")
    by_tokens = not as_lm and fmt.head in ("tokens", "vocabulary")
    ids = verdicts(fmt, tokenizer) if by_tokens else ()
    heads = {"head": head, "lm_head": "format" in notes and "lm_head.weight" in weights}
    if as_lm or by_tokens:
        heads = {"head": "none", "lm_head": True}
    cfg = hf_config.model_config(config, where, **heads, dtype=dtype)
    model = hf.load(folder, cfg, stored="file")
    if as_lm:
        return Loaded(model, tokenizer, fmt, "lm", "unknown", path)
    model = VerdictHead(model, *ids) if by_tokens else model
    objective = notes.get("objective", "orm" if fmt.outcome else "prm")
    return Loaded(model, tokenizer, fmt, objective, notes.get("label_kind", fmt.label_kind), path)


def note_ignored(stored: Format, requested: Format | None, path: str):
    """Says where another format was requested than `stored`, with which the checkpoint is read."""
    if requested is not None and requested != stored and (requested.name != "auto" or requested.changes):
        keys = "".join(f" and format.{key}" for key in requested.changes or {})
        print(f"format      {path}: is read with {stored.name}, not with {requested.name}{keys}")


def choose_format(fmt: Format, head: str, layer: str, classes: list, where: str) -> Format:
    """`fmt`, or for auto the one format whose checkpoints have this head. `classes`: the architectures of
    config.json, which tell an outcome model from a PRM."""
    is_outcome = head != "none" and any(str(name).endswith(OUTCOME) for name in classes)
    heads = (None, head) if head != "none" else ("tokens", "vocabulary", "implicit")
    suitable = (is_outcome,) if classes else (True, False)  # values of Format.outcome
    fits = [f for f in all_formats() if f.head in heads and f.layer == layer and f.outcome in suitable]
    listed = " or ".join(f"format={f.name}" for f in fits) or "no known format"
    if head == "none":
        listed += ", of a critic format=judge"
    what = "an outcome model" if is_outcome else "a checkpoint"
    found = f"format={fmt.name} for {what} with the head {layer}.weight ({head})"
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


class VerdictHead(nnx.Module):
    """A released PRM without a step head, which only scores: its step logits, from the hidden states x_BTD,
    are those of its verdicts' tokens. Of two, the bad and the good one, P(good) is the softmax; of the good
    one alone it is the probability among the whole vocabulary (Granite's PRMs). HeadScorer reads it as a
    model with the head of its `cfg`."""

    def __init__(self, model: PRM, *ids: int):
        self.model = model
        self.ids = ids
        self.cfg = dataclasses.replace(model.cfg, head="binary" if len(ids) == 2 else "scalar")

    def __call__(self, *args):
        return self.model(*args)

    def step_logits(self, x_BTD):
        if len(self.ids) == 1:
            (good,) = self.ids
            logit_BTV = self.model.vocab_logits(x_BTD)
            others_BTV = logit_BTV.at[..., good].set(-jnp.inf)
            return logit_BTV[..., good, None] - jax.nn.logsumexp(others_BTV, axis=-1, keepdims=True)
        ids = np.array(self.ids)
        embed, unembed = self.model.embed, self.model.unembed
        w_DC = embed[...][ids].T if unembed is None else unembed[...][:, ids]
        x_BTD, w_DC = x_BTD.astype(jnp.float32), w_DC.astype(jnp.float32)
        logit_BTC = jnp.matmul(x_BTD, w_DC, precision=jax.lax.Precision.HIGHEST)
        return soft_cap(self.cfg.logit_scale * logit_BTC, self.cfg.final_logit_softcap)
