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

REQUEST = 32  # solutions


def ask(url: str, body: dict) -> dict:
    """The JSON answer to a POST of /pooling."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/pooling", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def read_steps(class_nC: np.ndarray, encoded: Encoded) -> np.ndarray:
    """P(good) at each step of a solution, p_T. class_nC has a row a token, a row a step tag or one row (of an
    outcome model); its classes are [good], or bad and one or two good ones."""
    class_nC = np.atleast_2d(class_nC)
    good_n = class_nC[:, 0] if class_nC.shape[1] == 1 else class_nC[:, 1:].sum(-1)
    tags_n = np.flatnonzero(encoded.ids_L == encoded.ids_L[encoded.step_end_T[0]])
    if len(good_n) == len(encoded.ids_L):
        return good_n[encoded.step_end_T]
    if len(good_n) == len(tags_n):
        return good_n[np.isin(tags_n, encoded.step_end_T)]
    if len(good_n) == len(encoded.step_end_T):
        return good_n
    expected = f"{len(tags_n)} (a row a step tag) or {len(encoded.ids_L)} (a row a token)"
    raise InputError(
        f"the server gave {len(good_n)} rows for a solution, expected {expected}: is its tag ours?"
    )


def compare(verifier: Verifier, rows: list[tuple], url: str, fields: dict) -> list[np.ndarray]:
    """|ours - theirs| of P(good) of each step of each row, difference_T."""
    encoded = encode(verifier.scorer.format, verifier.scorer.tokenizer, rows)
    theirs = []
    for start in range(0, len(rows), REQUEST):
        batch = encoded[start : start + REQUEST]
        answer = ask(url, fields | {"input": [one.ids_L.tolist() for one in batch]})
        results = sorted(answer["data"], key=lambda result: result["index"])
        theirs += [read_steps(np.array(x["data"]), one) for x, one in zip(results, batch, strict=True)]
    ours = verifier.score([problem for problem, _ in rows], [steps for _, steps in rows])
    return [np.abs(a_T[: len(b_T)] - b_T) for a_T, b_T in zip(ours, theirs, strict=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--dtype", default="float32", help="ours; the server's is mostly bfloat16")
    parser.add_argument("--task", default="token_classify", help="classify for a *ForSequenceClassification")
    args = parser.parse_args()
    with open(args.input) as lines:
        solutions = [json.loads(line) for line in lines]
    rows = [(solution["prompt"], tuple(solution["completions"])) for solution in solutions]
    verifier = prm_jax.load(args.checkpoint, dtype=args.dtype)
    differences = compare(verifier, rows, args.url, {"task": args.task})
    step_n = np.concatenate(differences)
    worst = int(np.argmax([difference_T.max() for difference_T in differences]))
    print(f"{len(rows)} solutions, {len(step_n)} steps of {verifier.scorer.name}, ours in {args.dtype}")
    print(f"P(good) differs by {step_n.mean():.3g} on average, {step_n.max():.3g} at most (line {worst + 1})")


if __name__ == "__main__":
    main()
