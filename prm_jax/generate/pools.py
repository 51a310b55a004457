"""Pools: n graded solutions of every problem of a file.

python -m prm_jax.sampling checkpoint=POLICY input=FILE n=64     writes pool.jsonl and about.json"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal

import jax

from prm_jax.checkpoints.open import resolve_dtype
from prm_jax.data.grading import RULES
from prm_jax.data.questions import COUNTS, count_line, make_candidate, read_questions
from prm_jax.data.writing import append_rows, keep_rows, require_same
from prm_jax.generate import policies
from prm_jax.generate.policies import PolicyFormat, Sampling, SamplingStats, Server
from prm_jax.generate.sampling import describe, open_policy
from prm_jax.launch import cli, devices, run_folder
from prm_jax.launch.config import Count, Seed, expect, parse
from prm_jax.launch.progress import print_counts, progress
from prm_jax.tasks.checkers import CHECKERS, checker_rule, is_own, open_grader


def draw_pool(
    path: Path, policy, problems: Iterable, n: int, seed: int, grade: Callable, total: int | None = None
) -> dict:
    """Appends one graded problem a line to `path`, n solutions each, with about.json beside it; returns the
    counts. A stopped call is resumed byte for byte, since problems are drawn in fixed chunks."""
    about = {"policy": policy.name, "dtype": policy.dtype, "n": n, "seed": seed} | describe(policy)

    def check(row: dict, q):
        require_same(row, id=q.id, problem=q.problem)
        count_line(row)

    def draw_rows(questions, first: int, old: int) -> list[dict]:
        prefixes = [(q.problem, ()) for q in questions]
        numbers = range(first, first + len(questions))
        drawn = policy.extend(prefixes, n, "end", jax.random.key(seed), numbers)
        rows = []
        for q, samples in zip(questions, drawn, strict=True):
            candidates = tuple(make_candidate(policy.format, c) for c in samples)
            graded = grade(dataclasses.replace(q, candidates=candidates))
            rows.append({**dataclasses.asdict(graded), "policy_tokens": sum(len(c.ids_L) for c in samples)})
        return rows[old:]

    policy.stats = SamplingStats()
    size = max(1, 4 * policy.batch_rows // n)
    appended = append_rows(path, problems, size, check, draw_rows)
    with progress("sampling", total, "problem") as bar:
        return keep_rows(path, about, appended, count_line, dict.fromkeys(COUNTS, 0), bar)


def right_answers(path: str, asked: Iterable, checker: str) -> dict[str, str | None]:
    """{problem: its answer} of pools.Problems; InputError where one has two, or none for a
    checker that compares answers."""
    answers = {}
    for question in asked:
        place = f"{path}: {question.id}: answer"
        has_answer = question.answer is not None or checker not in RULES
        expect(has_answer, place, None, f"the right answer, for checker={checker}")
        first = answers.setdefault(question.problem, question.answer)
        is_same = first == question.answer or checker == "task"  # which asks no answer
        expect(is_same, place, question.answer, f"{first}, as this problem has above")
    return answers


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandConfig:
    """The keys of commands that sample and check answers; their conf files say what each means."""

    which: Literal["best", "latest"]
    format: PolicyFormat
    sampling: Sampling
    checker: Annotated[str, checker_rule(CHECKERS)] | None
    seed: Seed
    dtype: str
    batch_rows: Count
    mesh: devices.MeshConfig
    cpu_devices: Count
    distributed: str | dict | None
    resume: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyConfig(CommandConfig):
    """The keys of sampling and labelling, whose policy may be behind a server."""

    checkpoint: str
    input: str
    columns: dict[str, str] | None
    server: Server = dataclasses.field(default_factory=Server)


def fix_dtype(cfg: PolicyConfig, raw_cfg) -> PolicyConfig:
    """Replaces dtype=auto by what this processor computes faster, in raw_cfg too: a resumed run keeps it."""
    if cfg.checkpoint.startswith(("http://", "https://")):
        return cfg
    raw_cfg.dtype = resolve_dtype(cfg.dtype, cfg.checkpoint)
    return dataclasses.replace(cfg, dtype=raw_cfg.dtype)


def configured_policy(cfg: CommandConfig, path: str, dtype: str, server: Server | None = None):
    """The policy at `path` with the keys of a command."""
    policy = open_policy(path, cfg.which, cfg.format.whole(), dtype, cfg.sampling, cfg.batch_rows, server)
    require_format(policy, cfg.format, "format")
    return policy


def require_format(policy, asked: PolicyFormat, section: str):
    """InputError where a key of the configured format is unlike the policy's own, which it would ignore."""
    for key, default in vars(PolicyFormat()).items():
        value, own = getattr(asked, key), getattr(policy.format, key)
        expect(value in (default, own), f"{section}.{key}", value, f"{own!r}, as {policy.name} has")


@contextlib.contextmanager
def policy_at_work(cfg: PolicyConfig, problem: str):
    """The policy, on the mesh; prints how it reads the first problem, and at the end its cost."""
    with jax.set_mesh(devices.make_mesh(cfg.mesh, cfg.batch_rows)):
        policy = configured_policy(cfg, cfg.checkpoint, cfg.dtype, cfg.server)
        policies.show_prompt(policy, problem)
        yield policy
    if policy.stats.tokens:
        print(policy.stats.summary())


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingConfig(PolicyConfig):  # conf/sampling.yaml says what each key means
    n: Count


@cli.command("sampling", SamplingConfig)
def main(cfg):
    """Draw a graded pool: n solutions of every problem of a file, by a language model."""
    _, folder, raw_cfg = run_folder.start_command(cfg)
    cfg = fix_dtype(parse(raw_cfg, SamplingConfig), raw_cfg)
    questions = list(read_questions(cfg.input, is_own(cfg.checker), cfg.columns))
    path = folder / "pool.jsonl"
    grader = open_grader(cfg.checker, [cfg.input])
    run_folder.claim_folder(folder, raw_cfg)
    with policy_at_work(cfg, questions[0].problem) as policy:
        counts = draw_pool(path, policy, questions, cfg.n, cfg.seed, grader.grade, len(questions))
    print_counts(counts, totals=())
    graded = counts["candidates"] - counts["ungraded"]  # a cut candidate fills a place, and is not right
    rate = "no answer to grade by"
    if graded:
        rate = f"{counts['right'] / graded:.3f} of {graded:,} right by {grader.name}"
    print(f"pool        {rate}; {path}")
