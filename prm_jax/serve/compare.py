"""Compares our scores with those of a server with vLLM's /pooling.

python -m prm_jax.serve.compare checkpoint=X url=U input=FILE sends our token ids, so that only the model differs.
docs/vllm.md says what vLLM needs for each released format.
"""

import collections
import dataclasses
import itertools
import json
import os
import urllib.error
import urllib.request
from typing import Literal

import numpy as np

from prm_jax import InputError
from prm_jax.checkpoints.card import step_tag
from prm_jax.checkpoints.folders import locate
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.data import sources
from prm_jax.data.units import probability
from prm_jax.evals.common import ScoreBatch
from prm_jax.formats import Encoded, Format, encode
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import Count, Positive, expect, parse
from prm_jax.model import choose_dtype
from prm_jax.scoring import ModelScorer

REQUEST = 32  # solutions


@dataclasses.dataclass(frozen=True)
class CompareConfig:
    """conf/compare.yaml says what each key means."""

    checkpoint: str
    which: Literal["best", "latest"]
    dtype: str
    format: Format
    url: str
    served_as: str | None
    input: str
    most: Count
    batch: ScoreBatch
    seconds: Positive


def read_solutions(path: str, most: int) -> list[tuple[str, str, tuple[str, ...]]]:
    """The first (id, problem, steps) rows of a file of solutions or a pool."""
    rows = itertools.islice(sources.load_placed(path, "native", collections.Counter()), most)
    return [(str(s.id), s.problem, s.steps) for *_, s in rows]


def ask(url: str, body: dict, seconds: float) -> dict:
    """The JSON answer to a POST of /pooling; InputError with the server's message where it refuses."""
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get("PRM_JAX_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(f"{url.rstrip('/')}/pooling", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        why = " ".join(error.read().decode(errors="replace").split())[:300]
        raise InputError(f"{url}: status {error.code}: {why}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{url}: no answer of /pooling ({error})") from None


def at_steps(class_nC: np.ndarray, encoded: Encoded, tag: int | None, where: str) -> np.ndarray:
    """P(good) at each step of a solution, score_T, from a server's class probabilities: class_nC has a row a token or a
    step tag (vLLM's STEP pooling), an outcome model one row. Classes are [good], or bad and one or two good ones."""
    class_nC = np.atleast_2d(class_nC)
    tags_n = encoded.step_end_T if tag is None else np.flatnonzero(encoded.ids_L == tag)
    # Number of rows -> the token of each.
    places = {len(encoded.ids_L): np.arange(len(encoded.ids_L)), len(tags_n): tags_n}
    if len(class_nC) not in places or class_nC.shape[1] > 3:
        expected = f"{' or '.join(map(str, sorted(places)))} rows of 1 to 3 classes"
        hint = "is the step tag the server's? (docs/vllm.md)"
        raise InputError(
            f"{where}: the server gave an array of shape {class_nC.shape}, expected {expected}; {hint}"
        )
    if not ((class_nC >= 0) & (class_nC <= 1)).all():
        values = class_nC.ravel()[:4]
        raise InputError(
            f"{where}: the server gave {values}, expected probabilities: use_activation is off there"
        )
    good_n = class_nC[:, -1] if class_nC.shape[1] < 3 else class_nC[:, 1:].sum(-1)
    return good_n[np.searchsorted(places[len(class_nC)], encoded.step_end_T)]


def gives_one_row(checkpoint: str) -> bool:
    """Whether a server reads a checkpoint as a model of one score per text; our outcome models are read as PRMs."""
    config = locate(checkpoint) / "config.json"
    classes = run_folder.read_json(config).get("architectures") if config.exists() else None
    return any("SequenceClassification" in name for name in classes or ())


def server_scores(
    scorer: ModelScorer, encoded: list[Encoded], ids: list[str], cfg: CompareConfig
) -> list[np.ndarray]:
    """P(good) of each solution's steps by the server."""
    tag = None if scorer.format.outcome else step_tag(scorer.format, scorer.tokenizer)
    body = {"task": "classify" if gives_one_row(cfg.checkpoint) else "token_classify"}
    body |= {"model": cfg.served_as} if cfg.served_as else {}
    scores = []
    for start in range(0, len(encoded), REQUEST):
        batch = encoded[start : start + REQUEST]
        answer = ask(cfg.url, body | {"input": [e.ids_L.tolist() for e in batch]}, cfg.seconds)
        try:
            data = [
                np.array(row["data"], np.float64)
                for row in sorted(answer["data"], key=lambda row: row["index"])
            ]
        except (KeyError, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
            raise InputError(f"{cfg.url}: an answer that is none of /pooling ({why})") from None
        expect(len(data) == len(batch), f"{cfg.url}: results", len(data), f"{len(batch)}, one a solution")
        scores += [at_steps(*pair, tag, f"solution {i}") for *pair, i in zip(data, batch, ids[start:])]
    return scores


@cli.command("compare")
def main(cfg):
    """Score the same rows by us and by a vLLM server (or another that has its /pooling), and print the difference."""
    raw_cfg, cfg, folder = cfg, parse(cfg, CompareConfig), run_folder.output_dir()
    with run_folder.locked_run_folder(folder, raw_cfg):
        solutions = read_solutions(cfg.input, cfg.most)
        loaded = open_checkpoint(cfg.checkpoint, cfg.which, cfg.format, choose_dtype(cfg.dtype))
        scorer = loaded.scorer(cfg.batch.rows, cfg.batch.tokens)
        ids, texts = [i for i, *_ in solutions], [(problem, steps) for _, problem, steps in solutions]
        encoded = encode(scorer.format, scorer.tokenizer, texts)
        theirs = server_scores(scorer, encoded, ids, cfg)
        ours = [probability(score_T) for score_T in scorer.score_encoded(encoded)]
    ours_n, theirs_n = np.concatenate(ours), np.concatenate(theirs)
    places = [(i, t) for i, ours_T in zip(ids, ours, strict=True) for t in range(1, len(ours_T) + 1)]
    difference_n = np.abs(ours_n - theirs_n)
    largest, mean, worst = float(difference_n.max()), float(difference_n.mean()), int(difference_n.argmax())
    name, step = places[worst]
    side = float(np.mean((ours_n >= 0.5) == (theirs_n >= 0.5)))
    weakest = float(np.mean([a.argmin() == b.argmin() for a, b in zip(ours, theirs, strict=True)]))
    results = {"verifier": scorer.name, "url": cfg.url, "format": scorer.format.name, "dtype": cfg.dtype}
    results |= {
        "solutions": len(ours),
        "steps": len(ours_n),
        "largest_difference": largest,
        "mean_difference": mean,
    }
    results |= {"at": {"id": name, "step": step}, "same_side_of_half": side, "same_weakest_step": weakest}
    run_folder.write_json(folder / "results.json", results)
    print(f"compared    {len(ours)} solutions, {len(ours_n)} steps of {scorer.name}, ours in {cfg.dtype}")
    print(f"differs     P(good) by at most {largest:.3g}, {mean:.3g} on average")
    print(f"worst       solution {name}, step {step}: ours {ours_n[worst]:.6f}, theirs {theirs_n[worst]:.6f}")
    print(f"same        side of 0.5 {side:.4f}, weakest step {weakest:.4f}")
    print(f"results     {folder / 'results.json'}")


if __name__ == "__main__":
    main()
