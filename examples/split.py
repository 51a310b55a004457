"""A script that splits responses into steps where a language model was unsure of the next word:
AdaptiveStep (Liu et al. 2025, arXiv 2502.13943).

    python -m examples.split --input responses.jsonl --policy FOLDER

The input's rows have `problem` and `response`; steps.jsonl has `steps` in place of the response. Those words
begin a step whose token is among the share of all tokens that have the least probability, so no word or
number is cut. (data.split_by has other ways: by line, by sentence.)
"""

import argparse
import bisect
import dataclasses
import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

import prm_jax
from prm_jax import InputError
from prm_jax.data.steps import cut
from prm_jax.formats import encode
from prm_jax.scoring import LikelihoodScorer


class Tokens(NamedTuple):
    """The tokens of one response."""

    letters: list[int]  # the place of each token's last letter in the text
    log_odds_L: np.ndarray  # of each token's probability


def read_tokens(scorer: LikelihoodScorer, rows: list[tuple[str, tuple[str]]]) -> list[Tokens]:
    """The tokens of each row, (problem, (response,))."""
    letters, by_token = [], []
    encoded = encode(scorer.format, scorer.tokenizer, rows)
    for (_, (text,)), one in zip(rows, encoded, strict=True):
        tokens = scorer.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        end = one.start + len(tokens["input_ids"])
        if one.ids_L[one.start : end].tolist() != tokens["input_ids"]:
            raise InputError(f"policy: format {scorer.format.name} does not write a response as it is")
        letters.append([stop - 1 for _, stop in tokens["offset_mapping"]])
        # Every token is a step of its own.
        by_token.append(dataclasses.replace(one, step_end_T=np.arange(one.start, end)))
    return [Tokens(*pair) for pair in zip(letters, scorer.score_encoded(by_token), strict=True)]


def unsure_words(texts: list[str], tokens: list[Tokens], share: float) -> list[list[int]]:
    """Where the words begin, in each text, of which the language model was least sure."""
    limit = np.quantile(np.concatenate([one.log_odds_L for one in tokens]), share, method="inverted_cdf")
    places = []
    for text, one in zip(texts, tokens, strict=True):
        begins = [match.start() for match in re.finditer(r"\S+", text)]
        unsure = [letter for letter, x in zip(one.letters, one.log_odds_L, strict=True) if x <= limit]
        # White space belongs to the word behind it.
        words = {bisect.bisect_right(begins, letter) - (not text[letter].isspace()) for letter in unsure}
        places.append([begins[word] for word in sorted(words) if word < len(begins)])
    return places


def main():
    parser = argparse.ArgumentParser(description="Split responses into steps.")
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", default="steps.jsonl")
    parser.add_argument("--policy", default="embedded", help="a language model")
    parser.add_argument("--share", type=float, default=0.02, help="of all tokens that begin a step")
    args = parser.parse_args()
    rows = [json.loads(line) for line in Path(args.input).read_text().splitlines()]
    texts = [row.pop("response").strip() for row in rows]
    scorer = prm_jax.load(f"policy:{args.policy}").scorer
    asked = [(row["problem"], (text,)) for row, text in zip(rows, texts, strict=True)]
    places = unsure_words(texts, read_tokens(scorer, asked), args.share)
    steps = [cut(*pair) for pair in zip(texts, places, strict=True)]
    lines = [json.dumps(row | {"steps": own}) + "\n" for row, own in zip(rows, steps, strict=True)]
    Path(args.output).write_text("".join(lines))
    print(f"{args.output}: {len(rows)} solutions, {sum(map(len, steps))} steps")


if __name__ == "__main__":
    main()
