"""A script that compares our scores with those of a vLLM server that serves the same checkpoint.

    python -m prm_jax.export checkpoint=RUN to=DIR         # DIR/README.md says what vLLM must be told
    vllm serve DIR --runner pooling --dtype float32 --pooler-config '{"task": "token_classify", ...}'
    python -m examples.compare_vllm --checkpoint DIR --url http://HOST:8000 --input rows.jsonl

It sends our token ids to POST /pooling, so that only the model differs, and prints by how much P(good) of
the steps does: a wrong step tag, head or order of classes shows. The input has TRL's columns.
"""

import argparse
import json
import urllib.request

import numpy as np

import prm_jax
from prm_jax import InputError
from prm_jax.api import Verifier
from prm_jax.formats import Encoded, encode


def ask(url: str, body: dict) -> dict:
    """The JSON answer to a POST of /pooling."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/pooling", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def read_steps(class_nC: np.ndarray, encoded: Encoded) -> np.ndarray:
    """P(good) at each step of a solution, p_T. class_nC has a row a token, a row a step tag or one row (of an
    outcome model); its classes are [good], or bad and one or two good ones."""
    good_n = class_nC[:, 0] if class_nC.shape[1] == 1 else class_nC[:, 1:].sum(-1)
    tags_n = np.flatnonzero(encoded.ids_L == encoded.ids_L[encoded.step_end_T[0]])
    if len(good_n) == len(encoded.ids_L):
        return good_n[encoded.step_end_T]
    if len(good_n) == len(tags_n):
        return good_n[np.isin(tags_n, encoded.step_end_T)]
    if len(good_n) == 1:
        return good_n
    raise InputError(f"url: {len(good_n)} rows for {len(tags_n)} step tags: is the server's tag ours?")


def compare(verifier: Verifier, rows: list[tuple], url: str, task: str) -> list[np.ndarray]:
    """|ours - theirs| of P(good) of each step of each row, difference_T."""
    ours = verifier.score([problem for problem, _ in rows], [steps for _, steps in rows])
    differences = []
    for p_T, one in zip(ours, encode(verifier.scorer.format, verifier.scorer.tokenizer, rows), strict=True):
        answer = ask(url, {"task": task, "input": [one.ids_L.tolist()]})
        theirs_T = read_steps(np.atleast_2d(answer["data"][0]["data"]), one)
        differences.append(np.abs(p_T[: len(theirs_T)] - theirs_T))
    return differences


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("--checkpoint", "--url", "--input"):
        parser.add_argument(name, required=True)
    parser.add_argument("--task", default="token_classify", help="classify for a *ForSequenceClassification")
    args = parser.parse_args()
    with open(args.input) as lines:
        solutions = [json.loads(line) for line in lines]
    rows = [(solution["prompt"], tuple(solution["completions"])) for solution in solutions]
    verifier = prm_jax.load(args.checkpoint, dtype="float32")
    differences = compare(verifier, rows, args.url, args.task)
    step_n, worst = np.concatenate(differences), np.argmax([np.max(own) for own in differences])
    print(f"{len(rows)} solutions, {len(step_n)} steps of {verifier.scorer.name}, ours in float32")
    print(f"P(good) differs by {step_n.mean():.3g} on average, {step_n.max():.3g} at most (line {worst + 1})")


if __name__ == "__main__":
    main()
