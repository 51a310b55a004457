"""A cache of samples of an embedded task's policy, each drawn once and kept with its provenance."""

import dataclasses
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from prm_jax import InputError, tasks
from prm_jax.data.pools import Problem, iter_pool
from prm_jax.data.rows import file_fingerprint
from prm_jax.data.splits import TaskData
from prm_jax.formats import read_format
from prm_jax.generate.pools import draw_pool
from prm_jax.generate.sampling import Policy, Sampling, fingerprint, open_policy
from prm_jax.launch.files import cache_folder, sha256
from prm_jax.launch.hosts import max_over_processes

ROWS = 512  # decoded at a time: fastest for a small model on CPU
# The code that decides a sample. The checker's is not part of it: kept samples have no grades.
CODE = ["model.py", "attention.py", "visibility.py", "rope.py", "formats.py", "encoding.py"]
CODE += ["data/questions.py", "data/steps.py", "data/thoughts.py"]
CODE += [f"generate/{name}.py" for name in ("samples", "pools", "sampling", "decoding", "policies")]
CODE += [f"kernels/{name}.py" for name in ("cpu", "accelerator", "draw", "experts")]


def policy_pool(cfg: TaskData, problems: Sequence[str], n: int, seed: int) -> Iterator[Problem]:
    """The problems with n graded samples each, kept in a folder named by a hash of all they depend on."""
    policy = open_lab_policy(cfg.policy, cfg.temperature, cfg.max_tokens)
    code = [file_fingerprint(Path(__file__).parents[1] / file) for file in CODE]
    model = fingerprint(policy.model), policy.dtype, policy.tokenizer.get_vocab(), policy.eos_ids
    settings = dataclasses.asdict(policy.format), vars(policy.sampling), list(problems), n, seed
    origin = json.dumps([code, model, settings], sort_keys=True)
    name = f"{Path(cfg.name).name}_{sha256(origin)[:16]}"
    path = cache_folder() / "samples" / name / "pool.jsonl"
    if int(max_over_processes(not path.exists())):  # a process that draws needs all the others
        draw_samples(path, policy, problems, n, seed)
    grade = tasks.find_task(cfg.name).grade
    right = []
    texts = hashlib.sha256()
    for p in map(grade, iter_pool(path)):
        texts.update(repr([p.problem, *(c.steps for c in p.candidates)]).encode())
        right += [bool(c.finished and c.correct) for c in p.candidates]
    drawn = f"{len(problems)} problems x {n} of {policy.name}, {np.mean(right):.3f} right"
    print(f"samples     {drawn}, hash {texts.hexdigest()[:8]}, kept in {path.parent}")
    return map(grade, iter_pool(path))


def draw_samples(path: Path, policy: Policy, problems: Sequence[str], n: int, seed: int):
    """Writes pool.jsonl and about.json, elsewhere until complete: another run may be drawing the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    questions = [Problem(str(i), problem) for i, problem in enumerate(problems)]
    with tempfile.TemporaryDirectory(dir=path.parents[1]) as folder:
        draw_pool(Path(folder) / path.name, policy, questions, n, seed, lambda p: p, len(questions))
        for name in ("about.json", path.name):
            os.replace(Path(folder) / name, path.with_name(name))


@functools.cache
def open_lab_policy(path: str, temperature: float, max_tokens: int) -> Policy:
    """The policy of an embedded task, opened once."""
    try:
        if path.startswith(("http://", "https://")):
            raise InputError(f"{path}: is a server; samples are kept by the weights of a model of ours")
        sampling = Sampling(temperature, None, 1.0, max_tokens)
        return open_policy(path, "best", read_format("plain"), "float32", sampling, ROWS)
    except InputError as error:
        raise InputError(f"data.policy: {error}") from None
