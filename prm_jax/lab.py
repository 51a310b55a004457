"""The lab: what the policy of an embedded task samples, drawn once and kept with its provenance."""

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from prm_jax import InputError, tasks
from prm_jax.data.formats import read_format
from prm_jax.data.pools import Problem, iter_pool
from prm_jax.data.questions import Question
from prm_jax.data.splits import TaskData
from prm_jax.launch import run_folder
from prm_jax.launch.config import expect
from prm_jax.launch.hosts import max_over_processes
from prm_jax.sampling import Policy, Sampling, draw_pool, fingerprint, open_policy

CACHE = Path.home() / ".cache" / "prm_jax" / "samples"
ROWS = 512  # decoded at a time: a small model is fastest so on CPU


def policy_pool(cfg: TaskData, problems: Sequence[str], n: int, seed: int) -> Iterator[Problem]:
    """The problems with n graded samples each of the task's policy.

    They are drawn once: a folder of CACHE, named by a hash of all that they depend on, keeps them and what made them.
    """
    policy = open_lab_policy(cfg.policy, cfg.temperature, cfg.max_tokens)
    texts = hashlib.sha256(json.dumps(list(problems)).encode()).hexdigest()
    depends = json.dumps([fingerprint(policy.model), vars(policy.sampling), texts, n, seed])
    name = f"{cfg.name}_{hashlib.sha256(depends.encode()).hexdigest()[:16]}"
    path = CACHE / name / "pool.jsonl"
    if int(max_over_processes(not path.exists())):  # one that draws needs all the others
        CACHE.mkdir(parents=True, exist_ok=True)
        questions = [Question(str(i), problem) for i, problem in enumerate(problems)]
        # Apart until it is complete: another run may be drawing the same.
        with tempfile.TemporaryDirectory(prefix=name, dir=CACHE) as part:
            grade = functools.partial(tasks.grade, tasks.TASKS[cfg.name])
            draw_pool(Path(part) / path.name, policy, questions, n, seed, grade, len(questions))
            path.parent.mkdir(exist_ok=True)
            for file in ("about.json", path.name):
                os.replace(Path(part) / file, path.with_name(file))
    counts = run_folder.read_json(path.with_name("about.json"))["counts"]
    right = counts["right"] / counts["candidates"]
    print(f"samples     {len(problems)} problems x {n} of {policy.name}, {right:.3f} right, kept in {path.parent}")
    return iter_pool(path)


@functools.cache
def open_lab_policy(path: str, temperature: float, max_tokens: int) -> Policy:
    law = Sampling(temperature, None, 1.0, max_tokens)
    try:
        expected = "a model at hand: samples are kept by its weights, and those behind a server are not known"
        expect(not path.startswith(("http://", "https://")), "the policy", path, expected)
        return open_policy(path, "best", read_format("plain"), "float32", law, ROWS)
    except InputError as error:
        raise InputError(f"data.policy: {error}") from None
