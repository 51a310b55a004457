"""Step scores for many solutions: text in, one P(step good) a step out. Training, evaluation and search all score here.

Dimension key: B rows, L tokens, T step marks.
"""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import numpy as np

from prm_jax import InputError, checkpoint, cli, hf
from prm_jax.batches import Example, eval_batches, row_marks
from prm_jax.formats import Format, encode
from prm_jax.model import PRM, good_logit
from prm_jax.sharding import check_divides, everywhere, put_rows


@dataclasses.dataclass(frozen=True)
class Verifier:
    """A model that scores steps, with all that its scores depend on."""

    model: PRM
    tokenizer: object
    format: Format
    label_kind: str  # what its scores mean: correctness or value
    objective: str  # prm, or orm: an outcome model read at every step
    name: str  # folder and step, for results and figures


def load_verifier(path: str | Path, which: str, fmt: Format, dtype: str) -> Verifier:
    """A run folder of ours, or a Hugging Face folder or hub name with a step head (read with the format `fmt`)."""
    folder = Path(path)
    if not (folder / "checkpoints").is_dir():
        folder = hf.locate(str(path))
        config = hf.read_config(folder)
        head = hf.detect_head(hf.open_tensors(folder), str(folder))
        if head == "none":
            raise InputError(f"{folder}: has no step head (score.weight), so it cannot score steps")
        model = hf.load(
            folder, hf.model_config(config, str(folder / "config.json"), head=head, dtype=dtype), thinned=True
        )
        notes = config.get("prm_jax", {})  # of our own exports: format, meaning of the labels, objective
        fmt = cli.parse(notes["format"], Format, "format") if "format" in notes else fmt
        kind, objective = notes.get("label_kind", "correctness"), notes.get("objective", "prm")
        return Verifier(model, hf.load_tokenizer(folder), fmt, kind, objective, str(path))
    model, tokenizer, run, step = checkpoint.load_run(folder, which, dtype)
    if run.objective == "lm":
        raise InputError(f"{folder}: was trained with objective=lm, so it cannot score steps")
    fmt = cli.parse(run.format, Format, "format")
    return Verifier(model, tokenizer, fmt, run.data.label_kind, run.objective, f"{folder} step {step}")


@functools.partial(jax.jit, static_argnames="head")
def step_scores(model: PRM, batch, head: str):
    """P(good) at every mark slot of a packed batch, score_BT in [0, 1]."""
    x_BLD = model(batch["ids"], batch["pos"], batch["until"])
    return everywhere(jax.nn.sigmoid(good_logit(model.step_logits(x_BLD, batch["mark"]), head)))


def score_solutions(verifier: Verifier, rows, *, batch_rows: int, row_tokens: int) -> list[np.ndarray]:
    """Step scores of (problem, steps) rows, in their order: one float32 array a row, a score a step.

    Rows are packed longest first. A score depends on its own solution alone, whatever shares the row or the batch. A
    solution longer than `row_tokens` widens the rows of this call to the next multiple of it.
    """
    check_divides(verifier.model.cfg, batch_rows, "batch.rows")
    encoded = encode(verifier.format, verifier.tokenizer, rows)
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
        device_batch = put_rows({k: batch[k] for k in ("ids", "pos", "until", "mark")}, batch_rows)
        score_BT = np.asarray(step_scores(verifier.model, device_batch, verifier.model.cfg.head))
        for row, pack in enumerate(packs):
            ends = np.cumsum([len(examples[i].mark_T) for i in pack])
            for i, part in zip(pack, np.split(score_BT[row], ends)[: len(pack)], strict=True):
                scores[i] = part
        bar.update(sum(map(len, packs)))
    bar.close()
    return scores


def write_scores(path: Path, ids: list[str], scores: list[np.ndarray]):
    """A scores file: one JSON object {id, scores} a line."""
    with path.open("w") as file:
        for i, score_T in zip(ids, scores, strict=True):
            file.write(json.dumps({"id": i, "scores": [float(s) for s in score_T]}) + "\n")
