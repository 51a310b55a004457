"""Parses and checks the bodies of requests, and makes the bodies of answers."""

import time
import uuid

import numpy as np

from prm_jax.checkpoints.card import step_tag
from prm_jax.data.units import UNITS, probability
from prm_jax.formats import Encoded
from prm_jax.heads import HEADS
from prm_jax.launch.config import shown
from prm_jax.launch.files import STRICT, decode_json
from prm_jax.rerank import AGGREGATORS
from prm_jax.scoring import ModelScorer
from prm_jax.serve.worker import Job, Refused

MOST_CHARACTERS = 16  # a token; no text has as many on average, so what has more need not be tokenised


def expect(is_right: bool, where: str, value, expected: str, status: int = 400):
    if not is_right:
        raise Refused(status, f"{where}: got {shown(value, 80)}, expected {expected}")


def read_json(body: bytes) -> dict:
    """The JSON object of a body; NaN and Infinity, which Python accepts, are refused."""
    parsed = decode_json(body, "the body", STRICT.decode)
    expect(isinstance(parsed, dict), "the body", parsed, "a JSON object")
    return parsed


def check_keys(value, where: str, allowed: tuple[str, ...]):
    expect(isinstance(value, dict), where, value, "an object")
    for key in value:
        expect(key in allowed, f"{where}: unknown key", key, ", ".join(allowed))


def check_list(x, where: str, most: int):
    expect(isinstance(x, list) and x, where, x, "a list that is not empty")
    expect(len(x) <= most, where, f"{len(x)} entries", f"at most {most}", 413)


def check_sizes(sizes: list[int], limits):
    """Refuses a request by its characters, since counting them costs nothing."""
    longest, most = max(sizes), MOST_CHARACTERS * limits.tokens
    expected = f"at most {most}: {limits.tokens} tokens have no more"
    expect(longest <= most, "the longest solution", f"{longest} characters", expected, 413)
    total, expected = sum(sizes), f"at most {limits.characters} (each solution counts with its problem)"
    expect(total <= limits.characters, "the body", f"{total} characters in all solutions", expected, 413)


def score_job(body: dict, default: str, limits) -> tuple[Job, list[int]]:
    """(job with all solutions, number of solutions of each problem) of POST /score. The body is {"problem", "steps"},
    {"problem", "candidates": [steps, ..]} or {"problems": [such objects]}, each optionally with "aggregator"."""
    many = "problems" in body
    keys = ("problems",) if many else ("problem", "steps", "candidates")
    check_keys(body, "the body", (*keys, "aggregator"))
    aggregator = body.get("aggregator", default)
    expect(
        aggregator in list(AGGREGATORS), "aggregator", aggregator, ", ".join(AGGREGATORS)
    )  # it may have no hash
    problems = body["problems"] if many else [{key: x for key, x in body.items() if key != "aggregator"}]
    check_list(problems, "problems", limits.solutions)
    rows, counts = [], []
    for p, problem in enumerate(problems):
        where = f"problems[{p}]." if many else ""
        check_keys(problem, where.rstrip("."), ("problem", "steps", "candidates"))
        expect(isinstance(text := problem.get("problem"), str), f"{where}problem", text, "a text")
        is_one = "steps" in problem
        expect(is_one != ("candidates" in problem), f"{where}steps", sorted(problem), "steps or candidates")
        candidates = [problem["steps"]] if is_one else problem["candidates"]
        check_list(candidates, f"{where}candidates", limits.solutions)
        for c, steps in enumerate(candidates):
            key = f"{where}steps" if is_one else f"{where}candidates[{c}]"
            check_list(steps, key, limits.steps)
            for t, step in enumerate(steps):
                expect(isinstance(step, str), f"{key}[{t}]", step, "a text")
            rows.append((text, tuple(steps)))
        counts.append(len(candidates))
    expect(
        len(rows) <= limits.solutions,
        "problems",
        f"{len(rows)} solutions",
        f"at most {limits.solutions}",
        413,
    )
    sizes = [len(problem) + sum(map(len, steps)) + len(steps) for problem, steps in rows]
    check_sizes(sizes, limits)
    return Job(rows, sizes, aggregator), counts


def score_answer(job: Job, counts: list[int], scorer) -> dict:
    """The answer to POST /score: candidates with step scores, aggregate and weakest step, and a ranking per problem."""
    problems, start, log_odds = [], 0, UNITS[scorer.unit].log_odds
    for count in counts:
        scores, score_N = job.scores[start : start + count], np.array(job.log_scores[start : start + count])
        start += count
        candidates = []
        for score_T, score in zip(scores, score_N.tolist(), strict=True):
            steps = {"probability": probability(log_odds(score_T)).tolist(), "log_odds": score_T.tolist()}
            candidates.append({**steps, "log_score": score, "weakest_step": int(score_T.argmin()) + 1})
        problems.append({"candidates": candidates, "ranking": np.argsort(-score_N, kind="stable").tolist()})
    return {
        "aggregator": job.aggregator,
        "unit": scorer.unit,
        "label_kind": scorer.label_kind,
        "problems": problems,
    }


def no_pooling(scorer) -> str | None:
    """Why a scorer has no scores in vLLM's form; None where it has."""
    if not isinstance(scorer, ModelScorer):
        return "it scores texts, without tokens"
    if scorer.reference is not None:
        return "it scores by the log-ratio of two models"
    if HEADS[scorer.model.cfg.head].outputs > 2:
        return f"its head has {HEADS[scorer.model.cfg.head].outputs} classes, of which one score is made"
    if not scorer.format.outcome and step_tag(scorer.format, scorer.tokenizer) is None:
        return f"format={scorer.format.name} reads scores at no token of its own"
    return None


def pooling_job(body: dict, scorer, names: tuple[str, ...], limits) -> tuple[Job, bool]:
    """(job with the inputs as tokens, whether to answer with probabilities) of POST /pooling, vLLM's request. The
    input is a text, a list of texts, token ids, or a list of lists of token ids. Scores are read at every step tag
    (vLLM's STEP pooling), for an outcome format at the last token."""
    why, outcome = no_pooling(scorer), isinstance(scorer, ModelScorer) and scorer.format.outcome
    expect(why is None, "/pooling", names[0], f"a verifier that vLLM could serve: {why}; POST /score")
    expect("messages" not in body, "messages", "a conversation", "its text or its token ids as `input`")
    known = ("model", "input", "task", "use_activation", "add_special_tokens", "encoding_format", "user")
    check_keys(body, "the body", known)
    model, task = body.get("model"), body.get("task")
    expect(model is None or model in names, "model", model, f"{names[0]!r}, or none", 404)
    known = ("token_classify", "classify")[: 1 + outcome]  # for an outcome model both give one row
    expect(task in (*known, None), "task", task, " or ".join(known))
    for key in ("use_activation", "add_special_tokens"):
        expect(body.get(key) in (None, True, False), key, body.get(key), "true or false")
    expect(
        body.get("encoding_format", "float") == "float",
        "encoding_format",
        body.get("encoding_format"),
        "float",
    )
    inputs, vocab = body.get("input"), scorer.model.cfg.vocab
    if isinstance(inputs, str) or isinstance(inputs, list) and inputs and type(inputs[0]) is int:
        inputs = [inputs]
    check_list(inputs, "input", limits.solutions)
    for i, one in enumerate(inputs):
        if isinstance(one, str):
            continue
        check_list(one, f"input[{i}]", limits.tokens)
        for token in one:
            expect(
                type(token) is int and 0 <= token < vocab,
                f"input[{i}]",
                token,
                f"token ids from 0 to {vocab - 1}",
            )
    sizes, special = [len(one) for one in inputs], body.get("add_special_tokens") is not False
    check_sizes(sizes, limits)

    def encode(numbered_inputs) -> list[Encoded]:
        """Runs in the worker, since a tokenizer belongs to one thread."""
        tag, encoded = step_tag(scorer.format, scorer.tokenizer), []
        for i, one in numbered_inputs:
            ids = scorer.tokenizer.encode(one, add_special_tokens=special) if isinstance(one, str) else one
            ids_L = np.array(ids, np.int32)
            read_T = np.arange(len(ids_L))[-1:] if outcome else np.flatnonzero(ids_L == tag)
            expect(len(read_T), f"input[{i}]", f"{len(ids_L)} tokens", f"some with the step tag, token {tag}")
            encoded.append(Encoded(ids_L, read_T.astype(np.int32), 0))
        return encoded

    return Job(list(enumerate(inputs)), sizes, encode=encode), body.get("use_activation") is not False


def pooling_answer(job: Job, activated: bool, scorer, name: str) -> dict:
    """vLLM's answer to POST /pooling: for each input a row per step tag, [P(good)] for a head with one output, else
    [P(bad), P(good)]; without activation logits, with 0 for bad."""
    two, data = HEADS[scorer.model.cfg.head].outputs == 2, []
    for index, logit_T in enumerate(job.scores):
        good_T = probability(logit_T) if activated else logit_T.astype(np.float64)
        bad_T = probability(-logit_T) if activated else np.zeros_like(good_T)
        rows = np.stack([bad_T, good_T] if two else [good_T], -1)
        rows = rows[0] if scorer.format.outcome else rows
        data.append({"index": index, "object": "pooling", "data": rows.tolist()})
    answer = {"id": f"pool-{uuid.uuid4().hex}", "object": "list", "created": int(time.time()), "model": name}
    usage = {"prompt_tokens": job.tokens, "total_tokens": job.tokens, "completion_tokens": 0}
    return answer | {"data": data, "usage": usage}
