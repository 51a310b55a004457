"""Step labels without people: how often a policy's completions of each prefix end right (Math-Shepherd, Wang et al. 2024).

python -m prm_jax.labeling input=FILE checkpoint=POLICY k=8     writes labels.jsonl (native rows) and about.json

A label of step t is of the K completions of the problem and steps 1..t: soft their share that is right, hard whether any is,
threshold whether the share is at least `threshold`. So labels are values (data.label_kind=value), of the policy as completer. Rows
keep the counts, so that other labels can be made of them without new completions.
"""

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import jax

from prm_jax import InputError, tasks
from prm_jax.data import sources
from prm_jax.data.answers import extract
from prm_jax.data.formats import Format
from prm_jax.data.grading import Checker
from prm_jax.data.pools import Candidate, Problem, read_pool
from prm_jax.data.questions import grader, steps_of
from prm_jax.data.rows import append_rows, field_error, read_rows
from prm_jax.data.solutions import Solution
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import Count, Natural, Share, expect, parse
from prm_jax.launch.hosts import init_distributed, set_cpu_devices, share_file, share_folder, writable_folder
from prm_jax.launch.mesh import MeshConfig, make_mesh
from prm_jax.sampling import Policy, Sampling, fingerprint, open_policy

# label -> f(number of right ones of k completions, k, threshold) -> label
LABELS = {
    "soft": lambda right, k, threshold: right / k,
    "hard": lambda right, k, threshold: float(right > 0),
    "threshold": lambda right, k, threshold: float(right >= threshold * k),
}


def count_right(
    policy: Policy,
    prefixes: Sequence[tuple[str, tuple[str, ...]]],
    golds: Sequence[str | None],
    k: int,
    key,
    first: int,
    grade,
) -> list[tuple[int, int]]:
    """(how many of k completions of each distinct prefix end right, their tokens); prefix i draws with fold_in(key, first + i)."""
    samples = policy.extend(prefixes, k, "end", key, first)
    found = []
    for (problem, steps), answer, own in zip(prefixes, golds, samples, strict=True):
        whole = [(*steps, *steps_of(policy.format, c.text)) for c in own]
        # A completion that was cut is not right, whatever it says last.
        candidates = [
            Candidate(s or ("",), extract("\n".join(s)), finished=c.ended == "end") for s, c in zip(whole, own)
        ]
        graded = grade(Problem("", problem, answer, tuple(candidates))).candidates
        found.append((sum(c.finished and bool(c.correct) for c in graded), sum(len(c.ids_L) for c in own)))
    return found


def label_file(
    path: Path,
    policy: Policy,
    solutions: Sequence[Solution],
    golds: dict[str, str | None],
    label: str,
    threshold: float,
    k: int,
    seed: int,
    grade: Callable[[Problem], Problem],
) -> dict:
    """Appends a native row with labels for each solution to `path`, and writes about.json beside it; returns the counts.

    Prefixes that solutions share are completed once. Rows are made in fixed chunks, as in `draw_pool`: a file that was cut off
    becomes the undisturbed one.
    """
    start, counts = time.perf_counter(), collections.Counter()
    about = {"label_kind": "value", "completer": policy.name, "weights": fingerprint(policy.model), "label": label}
    about |= {"k": k, "seed": seed, "sampling": dataclasses.asdict(policy.sampling), "format": policy.format.name}
    about |= {"threshold": threshold, "batch_rows": policy.batch_rows}
    share_file(path), share_file(path.with_name("about.json"))
    run_folder.check_about(path, about)
    key = jax.random.key(seed)
    starts = [0]  # number of steps before each solution: the numbers of its prefixes
    for s in solutions:
        starts.append(starts[-1] + len(s.steps))

    def label_rows(chunk: Sequence[Solution], first: int) -> list[dict]:
        distinct = list({(s.problem, s.steps[: t + 1]): None for s in chunk for t in range(len(s.steps))})
        golds_here = [golds[problem] for problem, _ in distinct]
        right = count_right(policy, distinct, golds_here, k, key, starts[first], grade)
        found, paid, rows = dict(zip(distinct, right, strict=True)), set(), []
        for s in chunk:
            prefixes = [(s.problem, s.steps[: t + 1]) for t in range(len(s.steps))]
            right_T, tokens = [found[p][0] for p in prefixes], sum(found[p][1] for p in prefixes if p not in paid)
            paid |= set(prefixes)
            row = {
                "id": s.id,
                "prompt": s.problem,
                "completions": list(s.steps),
                "outcome": s.outcome,
                "answer": s.answer,
            }
            row |= {"labels": [LABELS[label](right, k, threshold) for right in right_T], "label_kind": "value"}
            rows.append(
                row | {"right": right_T, "k": k, "completer": policy.name, "seed": seed, "policy_tokens": tokens}
            )
        return rows

    fields = lambda s: {"id": s.id, "prompt": s.problem, "completions": list(s.steps)}
    size = max(1, policy.batch_rows // k)  # prefixes of so many solutions fill a few batches
    with cli.progress("labelling", len(solutions), "solution") as bar:
        for rows, old in append_rows(path, solutions, size, fields, label_rows):
            counts.update(solutions=len(rows), resumed=old, steps=sum(len(row["labels"]) for row in rows))
            counts.update(policy_tokens=sum(row["policy_tokens"] for row in rows))
            bar.update(len(rows))
    about |= {"finished": True, "counts": dict(counts), "seconds": time.perf_counter() - start}
    run_folder.write_json(path.with_name("about.json"), about | {"versions": run_folder.versions()})
    return counts


@dataclasses.dataclass(frozen=True)
class LabelingConfig:
    """conf/labeling.yaml says what each key means."""

    checkpoint: str
    which: Literal["best", "latest"]
    format: Format
    dtype: str
    input: str
    k: Count
    label: Literal["soft", "hard", "threshold"]
    threshold: Share
    checker: Literal["task", "string", "number", "math"]
    sampling: Sampling
    batch_rows: Count
    seed: Natural
    mesh: MeshConfig
    cpu_devices: Count
    distributed: str | dict | None
    resume: str | None


def read_input(path: str, by_task: bool) -> tuple[list[Solution], dict[str, str | None]]:
    """(solutions, {problem: its right answer}) of a pool, or of native rows, which name no right answer and so need `by_task`."""
    if "candidates" in next(iter(read_rows(path)))[1]:
        pool = read_pool(path)
        golds = {p.problem: p.answer for p in pool}
        for p in () if by_task else pool:
            if p.answer is None:
                found = field_error("answer", None, "the right answer, which completions are checked against")
                raise InputError(f"{path}: problem {p.id}: {found}")
        make = lambda p, n, c: Solution(p.problem, c.steps, None, None, _number(c.correct), c.answer, f"{p.id}/{n}")
        return [make(p, n, c) for p in pool for n, c in enumerate(p.candidates)], golds
    expect(by_task, "checker", "other than task", "task for native rows, which have no right answers; a pool has them")
    solutions, counts = sources.load(path, "native")
    cli.print_counts(counts)
    return solutions, {s.problem: None for s in solutions}


def _number(correct: bool | None) -> float | None:
    return None if correct is None else float(correct)


@cli.command("labeling")
def main(cfg):
    """Label the steps of solutions by a policy's completions of their prefixes."""
    set_cpu_devices(run_folder.of_resumed(cfg, "cpu_devices"))
    init_distributed(cfg)
    resumes = cfg.resume is not None
    folder, given = run_folder.resumed(cfg) if resumes else (share_folder(run_folder.output_dir()), cfg)
    folder, cfg = writable_folder(folder), parse(given, LabelingConfig)
    by_task = cfg.checker == "task"
    solutions, golds = read_input(cfg.input, by_task)
    with (
        jax.set_mesh(make_mesh(cfg.mesh, cfg.batch_rows)),
        contextlib.closing(Checker("string" if by_task else cfg.checker)) as checker,
    ):
        policy = open_policy(cfg.checkpoint, cfg.which, cfg.format, cfg.dtype, cfg.sampling, cfg.batch_rows)
        if not resumes:
            run_folder.create_run_folder(folder, given)
        path, grade = folder / "labels.jsonl", tasks.grade if by_task else grader(checker)
        counts = label_file(path, policy, solutions, golds, cfg.label, cfg.threshold, cfg.k, cfg.seed, grade)
    if policy.stats.tokens:
        print(policy.stats.summary())
    print("counts      " + ", ".join(f"{n:,} {name}" for name, n in counts.items() if n))
    print(f"labels      {path}; train on them: data=jsonl data.path={path} data.label_kind=value")


if __name__ == "__main__":
    main()
