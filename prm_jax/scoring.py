"""Step scores for many solutions: text in, one score a step out, mostly P(step good). Training, evaluation and search all score here.

Dimension key: B rows, L tokens, T step marks.
"""

import collections
import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from prm_jax import InputError
from prm_jax.checkpoints import hf, hf_config
from prm_jax.checkpoints import orbax as checkpoint
from prm_jax.checkpoints.tensors import open_tensors
from prm_jax.data.formats import SCORES, Encoded, Format, encode, read_format, verdicts
from prm_jax.data.packing import choose_width, doubled, fits_window, layout_batch, plan_rows
from prm_jax.launch import cli
from prm_jax.launch.config import parse
from prm_jax.launch.hosts import same_file
from prm_jax.launch.mesh import check_divides, replicate, row_parts, shard_batch
from prm_jax.model import PRM, good_logit

CHUNK = 2048  # solutions in memory at a time: enough for tight packing and whole problems, a few megabytes


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


def load_verifier(path: str | Path, which: str, fmt: Format, dtype: str, reference: str | None = None) -> Verifier:
    """A run folder of ours, or a Hugging Face folder or hub name of a released PRM.

    A run and our own exports bring their format; other checkpoints are read with `fmt`, or, where that is `auto`, with the
    one format that their step head belongs to. `reference` is the second model of an implicit PRM.
    """
    folder = Path(path)
    if (folder / "checkpoints").is_dir():
        model, tokenizer, run, step = checkpoint.load_run(folder, which, dtype)
        if run.objective == "lm":
            raise InputError(f"{folder}: was trained with objective=lm, so it cannot score steps")
        fmt = parse(run.format, Format, "format")
        return Verifier(model, tokenizer, fmt, run.data.label_kind, run.objective, f"{folder} step {step}")
    folder = hf.locate(str(path))
    config, where = hf_config.read_config(folder), str(folder / "config.json")
    kind, layer = hf.find_head(open_tensors(folder), str(folder))
    notes = config.get("prm_jax", {})  # of our own exports: format, meaning of the labels, objective
    if "format" in notes:
        fmt = parse(notes["format"], Format, f"{where}: prm_jax.format")
    elif fmt.name == "auto":
        fits = hf.FORMATS[layer]
        if len(fits) > 1:
            lacks = "has no step head" if kind == "none" else f"has the step head {layer}.weight ({kind})"
            raise InputError(f"{folder}: {lacks}; say which convention it follows: format={' or format='.join(fits)}")
        fmt = read_format(fits[0])
    expected = {"tokens": "none", "implicit": "none"}.get(fmt.head, fmt.head)
    if kind != expected if fmt.head else kind == "none":
        has = f"has the step head {layer}.weight ({kind})" if kind != "none" else "has no step head (score.weight)"
        fits = " or format=".join(hf.FORMATS[layer])
        raise InputError(f"{folder}: {has}, but format={fmt.name} reads {fmt.head or 'one'}; expected format={fits}")
    if (fmt.head == "implicit") != (reference is not None):
        raise InputError(
            f"reference: format={fmt.name} scores by the log-ratio of two models, so name the second: reference=FOLDER"
            if fmt.head == "implicit"
            else f"reference: format={fmt.name} uses one model alone, expected null"
        )
    if fmt.head == "implicit":
        cfg = hf_config.model_config(config, where, lm_head=True, dtype=dtype)
        tokenizer = hf.load_tokenizer(folder)
        second = hf.locate(reference)
        other = hf_config.model_config(
            hf_config.read_config(second), str(second / "config.json"), lm_head=True, dtype=dtype
        )
        if other.vocab < len(tokenizer):
            raise InputError(f"{second}: has {other.vocab} tokens, but {folder} writes in {len(tokenizer)}")
        pair = [hf.load(f, c, dtype=None) for f, c in ((folder, cfg), (second, other))]
        return Verifier(pair[0], tokenizer, fmt, "value", "prm", str(path), pair[1])
    cfg = hf_config.model_config(config, where, head="binary" if fmt.head == "tokens" else kind, dtype=dtype)
    tokenizer = hf.load_tokenizer(folder)
    model = hf.load(folder, cfg, dtype=None, verdicts=verdicts(fmt, tokenizer))
    label_kind, objective = notes.get("label_kind", "correctness"), notes.get("objective", "prm")
    return Verifier(model, tokenizer, fmt, label_kind, objective, str(path))


@jax.jit
def good_probability(model: PRM, batch):
    """P(good) at the marks of a packed batch, p_BT in [0, 1]; the step head sees no other token."""
    x_BTD = model(batch["ids"], batch["pos"], batch["visible_until"], batch["step_end"])
    return replicate(jax.nn.sigmoid(good_logit(model.step_logits(x_BTD), model.cfg.head)))


@jax.jit
def log_ratio(policy: PRM, reference: PRM, batch):
    """log policy - log reference of the token after each token, in nats, ratio_BL (Yuan et al. 2024)."""
    logp_BL = [
        model.next_logprobs(model(batch["ids"], batch["pos"], batch["visible_until"]), batch["ids"])
        for model in (policy, reference)
    ]
    return replicate(logp_BL[0] - logp_BL[1])


def step_scores(fmt: Format, value_n: np.ndarray, encoded: Encoded) -> np.ndarray:
    """Step scores of one solution, score_T, in the range that the format states.

    The values are P(good) at its marks, or, where scores are log-ratios, those of all its tokens.
    """
    if fmt.score == "log_ratio":  # summed over each step's tokens; value l is about token l + 1
        sum_L = np.concatenate([[0.0], np.cumsum(value_n, dtype=np.float64)])
        before_T = np.append(encoded.start - 1, encoded.step_end_T[:-1])
        return (fmt.beta * (sum_L[encoded.step_end_T] - sum_L[before_T])).astype(np.float32)
    return 2 * value_n - 1 if fmt.score == "difference" else value_n


@dataclasses.dataclass
class ScoringStats:
    """What scoring computed: tokens of the solutions, those of them left after sharing, places in the rows for them, and
    the shapes (rows, tokens, marks) of the batches, each of which is compiled once."""

    solutions: int = 0
    tokens: int = 0
    computed: int = 0
    places: int = 0
    shapes: set = dataclasses.field(default_factory=set)

    def summary(self) -> str:
        widths = ", ".join(f"{width:,}" for width in sorted({shape[1] for shape in self.shapes}))
        return (
            f"scored      {self.solutions:,} distinct solutions in rows of {widths} tokens: {self.tokens / self.computed:.2f} tokens "
            f"of solutions a computed token, {1 - self.computed / self.places:.1%} padding, {len(self.shapes)} shapes compiled"
        )


def score_stream(
    verifier: Verifier,
    rows: Iterable,
    *,
    batch_rows: int,
    row_tokens: int | None,
    total: int | None = None,
    done: int = 0,
) -> Iterator[np.ndarray]:
    """Step scores of (problem, steps) rows, in their order: one float32 array a row, a score a step.

    Reads CHUNK rows at a time, so memory does not grow with the stream. Within a chunk a row that repeats is scored once,
    and a prefix that several solutions share (the problem, first steps) is computed once. A score depends on its own
    solution alone, whatever shares the row or the batch. `row_tokens` of None is chosen from the lengths in the first
    chunk; a solution that is longer doubles the rows from its chunk on. The progress bar goes from `done` to `total`.
    """
    rows, work = iter(rows), ScoringStats()
    with cli.progress("scoring", total, "solution", done) as bar:
        while chunk := [(problem, tuple(steps)) for problem, steps in itertools.islice(rows, CHUNK)]:
            distinct = {row: i for i, row in enumerate(dict.fromkeys(chunk))}
            encoded = encode(verifier.format, verifier.tokenizer, list(distinct))
            row_tokens = fit_width(verifier, encoded, row_tokens)
            scores = score_encoded(verifier, encoded, batch_rows, row_tokens, work)
            for (problem, _), i in distinct.items():
                if not np.isfinite(scores[i]).all():
                    raise InputError(
                        f"{verifier.name}: gives {scores[i]} as step scores of a solution of {problem[:60]!r}, expected numbers"
                    )
            yield from (scores[distinct[row]] for row in chunk)
            bar.update(len(chunk))
    if work.solutions:
        print(work.summary())


def may_share(verifier: Verifier, row_tokens: int) -> bool:
    """Whether a row can be a prefix tree: in one the next token is not the next place, as a log-ratio has it."""
    return verifier.format.score != "log_ratio" and fits_window(verifier.model.cfg, row_tokens)


def fit_width(verifier: Verifier, encoded: list[Encoded], row_tokens: int | None) -> int:
    """Tokens of a row that takes each solution: `row_tokens` doubled as needed, or chosen where it is None."""
    longest = max(len(e.ids_L) for e in encoded)
    if row_tokens is not None:
        return doubled(row_tokens, longest)
    sequences = [e.ids_L for e in encoded]
    return choose_width(longest, lambda width: plan_rows(sequences, width, may_share(verifier, width))[0])


def score_encoded(
    verifier: Verifier, encoded: list[Encoded], batch_rows: int, row_tokens: int, work: ScoringStats
) -> list[np.ndarray]:
    """`score_stream` of one chunk: packed rows, few shapes (mark slots and row counts are powers of two, the latter rounded
    up to what the mesh in use divides). Adds to `work`."""
    check_divides(verifier.model.cfg, batch_rows, "batch.rows")
    by_ratio, share = verifier.format.score == "log_ratio", may_share(verifier, row_tokens)
    packs, computed = plan_rows([e.ids_L for e in encoded], row_tokens, share)
    work.solutions += len(encoded)
    work.tokens += sum(len(e.ids_L) for e in encoded)
    work.computed += computed
    scores: list[np.ndarray] = [None] * len(encoded)

    def finish(pending):
        value_Bn, layouts = pending
        for value_n, (pack, reads) in zip(np.asarray(value_Bn), layouts, strict=True):
            for i, read_n in zip(pack, reads, strict=True):
                scores[i] = step_scores(verifier.format, value_n[read_n], encoded[i])

    pending = None
    for at in range(0, len(packs), batch_rows):
        here = packs[at : at + batch_rows]
        B = 1 << (len(here) - 1).bit_length()
        B = min(batch_rows, -(-B // row_parts()) * row_parts())
        here += [[]] * (B - len(here))
        batch, places, slots = layout_batch([[encoded[i] for i in pack] for pack in here], row_tokens, share=share)
        layouts = list(zip(here, places if by_ratio else slots, strict=True))
        work.places += B * row_tokens
        if by_ratio:
            del batch["step_end"]  # every token has a value
            value_Bn = log_ratio(verifier.model, verifier.reference, shard_batch(batch, B))
        else:
            value_Bn = good_probability(verifier.model, shard_batch(batch, B))
        work.shapes.add((B, row_tokens, 0 if by_ratio else batch["step_end"].shape[1]))
        if pending:  # read one batch late, while the device computes the next
            finish(pending)
        pending = value_Bn, layouts
    finish(pending)
    return scores


def score_solutions(verifier: Verifier, rows: Sequence, *, batch_rows: int, row_tokens: int | None) -> list[np.ndarray]:
    """`score_stream` of a list of rows, as a list."""
    return list(score_stream(verifier, rows, batch_rows=batch_rows, row_tokens=row_tokens, total=len(rows)))


def score_into(path: Path, verifier: Verifier, rows: Iterable, *, batch_rows: int, row_tokens: int | None, total: int):
    """Appends the step scores of (id, problem, steps) rows to a scores file, one JSON object {id, scores} a line, as they come.

    Rows whose line is there already are not scored again, so an interrupted file is gone on with; a line that was cut off
    is dropped. Raises InputError where a line belongs to another row. Of several processes each writes a file of its own,
    and all go on with that of process 0.
    """
    same_file(path)
    rows, ids, done = iter(rows), collections.deque(), 0
    with path.open("a+b") as file:
        file.seek(0)
        while (line := file.readline()).endswith(b"\n"):
            found, row = json.loads(line)["id"], next(rows, (None,))
            done += 1
            if found != row[0]:
                raise InputError(f"{path} line {done}: id: got {found!r}, expected {row[0]!r}: scores of other input")
        file.truncate(file.tell() - len(line))

        def texts():
            for i, problem, steps in rows:
                ids.append(i)
                yield problem, steps

        if done:
            print(f"scored      {done} of {total} solutions before, in {path}")
        for score_T in score_stream(
            verifier, texts(), batch_rows=batch_rows, row_tokens=row_tokens, total=total, done=done
        ):
            file.write(json.dumps({"id": ids.popleft(), "scores": score_T.tolist()}).encode() + b"\n")


def stored_scores(path: Path) -> Iterator[np.ndarray]:
    """The scores of a file that `score_into` wrote, row by row."""
    with path.open() as file:
        for line in file:
            yield np.array(json.loads(line)["scores"], np.float32)
