"""Step scores for many solutions: text in, one P(step good) a step out. Training, evaluation and search all score here.

Dimension key: B rows, L tokens, T step marks.
"""

import dataclasses
import functools
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax import InputError, checkpoint, cli, hf
from prm_jax.batches import Example, eval_batches, row_marks
from prm_jax.formats import Format, encode
from prm_jax.model import PRM, good_logit
from prm_jax.rows import field, read_rows, row_place, wrong


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
        model = hf.load(folder, hf.model_config(config, str(folder / "config.json"), head=head, dtype=dtype))
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
    return jax.nn.sigmoid(good_logit(model.step_logits(x_BLD, batch["mark"]), head))


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
        device_batch = {k: jnp.asarray(batch[k]) for k in ("ids", "pos", "until", "mark")}
        score_BT = np.asarray(step_scores(verifier.model, device_batch, verifier.model.cfg.head))
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


def read_scores(path, n_steps: dict[str, int], unit: str) -> list[np.ndarray]:
    """Stored step scores of the solutions {id: number of steps}, in that order, as P(good): float64, one array a solution.

    The file has one row {id, scores} a solution, in any order; unit=logit takes unbounded scores and gives their
    sigmoid. Raises InputError naming file, line and id.
    """
    scores, line_of = {}, {}
    for number, row in read_rows(path):
        where = row_place(path, number)
        try:
            i = field(row, "id", str)
            where += f": id {i!r}"
            if i in line_of:
                raise InputError(f"is the id of {row_place(path, line_of[i])} too")
            if i not in n_steps:
                raise InputError(
                    f"no solution has it, expected one of {len(n_steps)} such as {next(iter(n_steps))!r}"
                )
            found = field(row, "scores", list)
            if len(found) != n_steps[i]:
                raise InputError(f"scores: found {len(found)}, expected {n_steps[i]}, one a step")
            for t, score in enumerate(found):
                if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
                    raise wrong(f"scores[{t}]", score, "a finite number")
                if unit == "probability" and not 0 <= score <= 1:
                    hint = "a probability in [0, 1]; scores_unit=logit takes unbounded scores"
                    raise wrong(f"scores[{t}]", score, hint)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        scores[i], line_of[i] = np.array(found, np.float64), number
    if missing := [i for i in n_steps if i not in scores]:
        more = f" and {len(missing) - 1} more ids" if len(missing) > 1 else ""
        raise InputError(
            f"{path}: no row has the id {missing[0]!r}{more}, expected one for each of {len(n_steps)} solutions"
        )
    in_order = (scores[i] for i in n_steps)
    return [np.exp(-np.logaddexp(0, -score_T)) if unit == "logit" else score_T for score_T in in_order]
