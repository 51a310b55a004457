"""task=split: splits responses into steps, by their text or where a language model was unsure of the next word."""

import bisect
import collections
import dataclasses
import re
from collections.abc import Iterator

import numpy as np

from prm_jax import InputError
from prm_jax.data.rows import read_rows, row_place, write_rows
from prm_jax.data.sources import problem_and_text
from prm_jax.data.steps import SPLITS, cut
from prm_jax.evals.setup import Setup
from prm_jax.evals.verifiers import one_scorer
from prm_jax.formats import encode
from prm_jax.launch.config import Share, expect
from prm_jax.launch.progress import print_counts, progress
from prm_jax.scoring import CHUNK, LikelihoodScorer


@dataclasses.dataclass(frozen=True)
class Config:
    needs_checkpoint = False
    input: str | None
    split_by: str | None
    share: Share
    two_pass: bool

    def __post_init__(self):
        expect(self.input is not None, "input", None, "a file of responses, input=FILE")
        expect(
            self.split_by in (*SPLITS, "confidence"),
            "split_by",
            self.split_by,
            ", ".join([*SPLITS, "confidence"]),
        )


def run(setup: Setup, cfg: Config) -> dict:
    """Writes solutions.jsonl: the rows of the file with `steps` in place of their text."""
    needed = "checkpoint=policy:FOLDER with split_by=confidence, and null with any other"
    expect(
        bool(setup.checkpoints) == (cfg.split_by == "confidence"), "checkpoint", setup.cfg.checkpoint, needed
    )
    counts = collections.Counter()
    rows, path = list(passes(cfg, counts)), setup.folder / "solutions.jsonl"
    print_counts(counts)
    expect(rows, cfg.input, "no text", "at least one response")
    texts = [row["steps"][0] for row in rows]
    if cfg.split_by == "confidence":
        places = unsure_words(one_scorer(setup), [row["problem"] for row in rows], texts, cfg.share)
    else:
        places = map(SPLITS[cfg.split_by], texts)
    for row, text, cuts in zip(rows, texts, places, strict=True):
        row["steps"] = cut(text, cuts)
    write_rows(path, rows)
    n_steps = [len(row["steps"]) for row in rows]
    sums = {
        "solutions": len(rows),
        "steps": sum(n_steps),
        "of_one_step": n_steps.count(1),
        "most_steps": max(n_steps),
    }
    return {"path": str(path), "split_by": cfg.split_by, **sums, "counts": dict(counts)}


def passes(cfg: Config, counts: collections.Counter) -> Iterator[dict]:
    """Yields the file's rows, each text as one step; with `two_pass` a trace (up to </think>) and the answer behind it as
    two rows, so that each is scored without the other; ReasonFlux-PRM tells the two apart (Zou et al. 2025, 2506.18896).
    A text without a trace is an answer, a trace without an end has none."""
    for number, row in read_rows(cfg.input):
        try:
            fields = problem_and_text(row)
        except InputError as error:
            raise InputError(f"{row_place(cfg.input, number)}: {error}") from None
        (problem, text), name = fields.values(), str(number if row.get("id") is None else row["id"])
        trace, mark, answer = text.rpartition("</think>")
        if not mark and text.lstrip().startswith("<think>"):
            trace, answer = text, ""
        pieces = {f"{name}/think": trace + mark, f"{name}/answer": answer} if cfg.two_pass else {name: text}
        kept = {key: value for key, value in row.items() if key not in fields}
        counts["rows_without_steps_dropped"] += not text.strip()
        for piece_id, piece in pieces.items():
            if piece := piece.strip():
                yield kept | {"id": piece_id, "problem": problem, "steps": [piece]}


def unsure_words(scorer, problems: list[str], texts: list[str], share: float) -> list[list[int]]:
    """Where the words begin of which a language model was least sure: those with the `share` of all tokens that have the
    least probability (AdaptiveStep, Liu et al. 2025, 2502.13943, where it is .02). No word or number is cut."""
    is_policy = isinstance(scorer, LikelihoodScorer)
    expect(is_policy, "checkpoint", scorer.name, "a language model, checkpoint=policy:FOLDER")
    letters, log_odds = [], []  # of each text's tokens: the last letter, the probability
    with progress("reading", len(texts), "response") as bar:
        for start in range(0, len(texts), CHUNK):
            some, options = (
                texts[start : start + CHUNK],
                {"add_special_tokens": False, "return_offsets_mapping": True},
            )
            tokens, rows = (
                scorer.tokenizer(some, **options),
                zip(problems[start:], ((text,) for text in some)),
            )
            of_tokens = []
            for ids, e in zip(
                tokens["input_ids"], encode(scorer.format, scorer.tokenizer, rows), strict=True
            ):
                end = e.start + len(ids)
                is_whole = e.ids_L[e.start : end].tolist() == ids
                expect(
                    is_whole,
                    "format",
                    scorer.format.name,
                    "one that writes a response as it is, such as plain",
                )
                of_tokens.append(dataclasses.replace(e, step_end_T=np.arange(e.start, end)))
            log_odds += scorer.score_encoded(of_tokens)
            letters += [[end - 1 for _, end in spans] for spans in tokens["offset_mapping"]]
            bar.update(len(some))
    limit = np.quantile(np.concatenate(log_odds), share, method="inverted_cdf")
    places = []
    for text, letter_L, x_L in zip(texts, letters, log_odds, strict=True):
        begins = [match.start() for match in re.finditer(r"\S+", text)]
        words = {
            bisect.bisect_right(begins, i) - (not text[i].isspace())
            for i, x in zip(letter_L, x_L)
            if x <= limit
        }
        places.append([begins[word] for word in sorted(words) if word < len(begins)])
    return places


def show(results: dict):
    numbers = ", ".join(f"{results[name]:,} {name}" for name in ("solutions", "steps"))
    print(
        f"{results['split_by']:<12}{numbers}, at most {results['most_steps']:,}; {results['of_one_step']:,} have one"
    )
    print(f"solutions   {results['path']}")
