"""Step scores for many solutions: text in, one score a step out, mostly P(step good). Training, evaluation and search all score here.

Dimension key: B rows, L tokens, T step marks.
"""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax import InputError, checkpoint, cli, hf
from prm_jax.batches import Example, eval_batches, row_marks
from prm_jax.formats import SCORES, Format, encode, read_format, verdicts
from prm_jax.model import PRM, good_logit


@dataclasses.dataclass(frozen=True)
class Verifier:
    """A model that scores steps, with all that its scores depend on."""

    model: PRM
    tokenizer: object
    format: Format
    label_kind: str  # what its scores mean: correctness or value
    objective: str  # prm, or orm: an outcome model read at every step
    name: str  # folder and step, for results and figures
    reference: PRM | None = None  # of an implicit PRM: the model that its log-ratios are taken against

    @property
    def range(self) -> tuple[float, float]:
        """Lowest and highest score; [0, 1] where scores are probabilities."""
        return SCORES[self.format.score]


def load_verifier(
    path: str | Path, which: str, fmt: Format, dtype: str, reference: str | None = None
) -> Verifier:
    """A run folder of ours, or a Hugging Face folder or hub name of a released PRM.

    A run and our own exports bring their format; other checkpoints are read with `fmt`, or, where that is `auto`, with the
    one format that their step head belongs to. `reference` is the second model of an implicit PRM.
    """
    folder = Path(path)
    if (folder / "checkpoints").is_dir():
        model, tokenizer, run, step = checkpoint.load_run(folder, which, dtype)
        if run.objective == "lm":
            raise InputError(f"{folder}: was trained with objective=lm, so it cannot score steps")
        fmt = cli.parse(run.format, Format, "format")
        return Verifier(model, tokenizer, fmt, run.data.label_kind, run.objective, f"{folder} step {step}")
    folder = hf.locate(str(path))
    config, where = hf.read_config(folder), str(folder / "config.json")
    kind, layer = hf.find_head(hf.open_tensors(folder), str(folder))
    notes = config.get("prm_jax", {})  # of our own exports: format, meaning of the labels, objective
    if "format" in notes:
        fmt = cli.parse(notes["format"], Format, "format")
    elif fmt.name == "auto":
        fits = hf.FORMATS[layer]
        if len(fits) > 1:
            lacks = "has no step head" if kind == "none" else f"has the step head {layer}.weight ({kind})"
            raise InputError(
                f"{folder}: {lacks}; say which convention it follows: format={' or format='.join(fits)}"
            )
        fmt = read_format(fits[0])
    expected = {"tokens": "none", "implicit": "none"}.get(fmt.head, fmt.head)
    if kind != expected if fmt.head else kind == "none":
        has = (
            f"has the step head {layer}.weight ({kind})"
            if kind != "none"
            else "has no step head (score.weight)"
        )
        fits = " or format=".join(hf.FORMATS[layer])
        raise InputError(
            f"{folder}: {has}, but format={fmt.name} reads {fmt.head or 'one'}; expected format={fits}"
        )
    if (fmt.head == "implicit") != (reference is not None):
        raise InputError(
            f"reference: format={fmt.name} scores by the log-ratio of two models, so name the second: reference=FOLDER"
            if fmt.head == "implicit"
            else f"reference: format={fmt.name} uses one model alone, expected null"
        )
    tokenizer = hf.load_tokenizer(folder)
    if fmt.head == "implicit":
        cfg = hf.model_config(config, where, lm_head=True, dtype=dtype)
        second = hf.locate(reference)
        other = hf.model_config(
            hf.read_config(second), str(second / "config.json"), lm_head=True, dtype=dtype
        )
        if other.vocab < len(tokenizer):
            raise InputError(f"{second}: has {other.vocab} tokens, but {folder} writes in {len(tokenizer)}")
        pair = [hf.load(f, c, dtype=None) for f, c in ((folder, cfg), (second, other))]
        return Verifier(pair[0], tokenizer, fmt, "value", "prm", str(path), pair[1])
    cfg = hf.model_config(config, where, head="binary" if fmt.head == "tokens" else kind, dtype=dtype)
    model = hf.load(folder, cfg, dtype=None, verdicts=verdicts(fmt, tokenizer))
    label_kind, objective = notes.get("label_kind", "correctness"), notes.get("objective", "prm")
    return Verifier(model, tokenizer, fmt, label_kind, objective, str(path))


@functools.partial(jax.jit, static_argnames="head")
def step_scores(model: PRM, batch, head: str):
    """P(good) at every mark slot of a packed batch, score_BT in [0, 1]."""
    x_BLD = model(batch["ids"], batch["pos"], batch["until"])
    return jax.nn.sigmoid(good_logit(model.step_logits(x_BLD, batch["mark"]), head))


@jax.jit
def step_log_ratios(policy: PRM, reference: PRM, batch):
    """Sum over each step's tokens of log policy(token) - log reference(token) in nats, ratio_BT (Yuan et al. 2024)."""
    ratio_BL = 0.0
    for model, sign in ((policy, 1), (reference, -1)):
        x_BLD = model(batch["ids"], batch["pos"], batch["until"])
        ratio_BL += sign * model.next_logprobs(x_BLD, batch["ids"])
    l_L = jnp.arange(batch["ids"].shape[1]) + 1  # the token that entry l is about
    is_in_BTL = (l_L > batch["before"][:, :, None]) & (l_L <= batch["mark"][:, :, None])
    return jnp.where(is_in_BTL, ratio_BL[:, None], 0.0).sum(-1)


def batch_scores(verifier: Verifier, batch):
    """Scores at the mark slots of one packed batch, score_BT, in the range that the format states."""
    if verifier.format.score == "log_ratio":
        return verifier.format.beta * step_log_ratios(verifier.model, verifier.reference, batch)
    p_BT = step_scores(verifier.model, batch, verifier.model.cfg.head)
    return 2 * p_BT - 1 if verifier.format.score == "difference" else p_BT


def score_solutions(verifier: Verifier, rows, *, batch_rows: int, row_tokens: int) -> list[np.ndarray]:
    """Step scores of (problem, steps) rows, in their order: one float32 array a row, a score a step.

    Rows that repeat are scored once. Rows are packed longest first. A score depends on its own solution alone, whatever shares the row or the batch. A
    solution longer than `row_tokens` widens the rows of this call to the next multiple of it.
    """
    rows = [(problem, tuple(steps)) for problem, steps in rows]
    distinct = {row: i for i, row in enumerate(dict.fromkeys(rows))}
    encoded = encode(verifier.format, verifier.tokenizer, list(distinct))
    unlabelled = [np.full(len(e.mark_T), np.nan, np.float32) for e in encoded]
    examples = [
        Example(e.ids_L, e.mark_T, nan_T, nan_T, e.start)
        for e, nan_T in zip(encoded, unlabelled, strict=True)
    ]
    if not examples:
        return []
    row_tokens *= -(-max(len(e.ids_L) for e in examples) // row_tokens)
    scores: list[np.ndarray] = unlabelled  # each is replaced below
    bar = cli.progress("scoring", len(examples), "solution")
    for batch, packs in eval_batches(examples, row_tokens, row_marks(examples, row_tokens), batch_rows):
        device_batch = {k: jnp.asarray(batch[k]) for k in ("ids", "pos", "until", "mark", "before")}
        score_BT = np.asarray(batch_scores(verifier, device_batch))
        for row, pack in enumerate(packs):
            ends = np.cumsum([len(examples[i].mark_T) for i in pack])
            for i, part in zip(pack, np.split(score_BT[row], ends)[: len(pack)], strict=True):
                scores[i] = part
        bar.update(sum(map(len, packs)))
    bar.close()
    return [scores[distinct[row]] for row in rows]


def write_scores(path: Path, ids: list[str], scores: list[np.ndarray]):
    """A scores file: one JSON object {id, scores} a line."""
    with path.open("w") as file:
        for i, score_T in zip(ids, scores, strict=True):
            file.write(json.dumps({"id": i, "scores": [float(s) for s in score_T]}) + "\n")
