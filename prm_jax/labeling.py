"""Step labels without people: how often a policy's completions of each prefix end right (Math-Shepherd, Wang et al. 2024).

python -m prm_jax.labeling input=FILE checkpoint=POLICY k=8     writes labels.jsonl (native rows) and about.json

A label of step t is of the K completions of the problem and steps 1..t: soft their share that is right, hard whether any is,
threshold whether the share is at least `threshold`. first_error spends less: in a solution with a wrong answer it finds the
first prefix of which no completion is right by bisection (OmegaPRM, Luo et al. 2024), ceil(log2 T) prefixes of T, all
solutions of a chunk at once; steps before it are good, it is bad, what follows is not labelled; all steps of a solution with
a right answer are good. So labels are values (data.label_kind=value), of the policy as completer. Rows keep the counts, so that
other labels can be made of them without new completions.
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
from prm_jax.data.grading import Checker
from prm_jax.data.pools import Candidate, Problem, read_pool
from prm_jax.data.questions import grader, steps_of
from prm_jax.data.rows import append_rows, field_error, read_rows
from prm_jax.data.solutions import Solution
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import Count, Share, expect, parse
from prm_jax.launch.hosts import init_distributed, set_cpu_devices, share_file, share_folder, writable_folder
from prm_jax.launch.mesh import make_mesh
from prm_jax.sampling import Policy, PolicyConfig, fingerprint, open_policy

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


def first_errors(lengths: Sequence[int], is_alive: Callable[[list[tuple[int, int]], int], list[bool]]) -> list[int]:
    """For each solution of so many steps, whose answer is wrong, the index of the first step after which nothing is right.

    is_alive([(solution, steps kept)], round) says of which prefixes some completion is right; a round asks one prefix of every
    solution that is not done, so that T steps take ceil(log2 T) rounds.
    """
    rounds, low_n, high_n = 0, [0] * len(lengths), list(lengths)  # kept steps that are known to be alive, to be dead
    while open_n := [n for n in range(len(lengths)) if high_n[n] - low_n[n] > 1]:
        asked = [(n, (low_n[n] + high_n[n]) // 2) for n in open_n]
        for (n, kept), alive in zip(asked, is_alive(asked, rounds), strict=True):
            (low_n if alive else high_n)[n] = kept
        rounds += 1
    return [high - 1 for high in high_n]


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

    def complete(prefixes: list, first: int, key) -> dict:
        """{prefix: (right ones, tokens)} of distinct prefixes."""
        distinct = list(dict.fromkeys(prefixes))
        answers = [golds[problem] for problem, _ in distinct]
        return dict(zip(distinct, count_right(policy, distinct, answers, k, key, first, grade), strict=True))

    def all_prefixes(chunk: Sequence[Solution], first: int):
        """(labels, right ones of every prefix) of each solution, and what was completed."""
        prefixes = [[(s.problem, s.steps[: t + 1]) for t in range(len(s.steps))] for s in chunk]
        found = complete([p for own in prefixes for p in own], starts[first], key)
        right = [[found[p][0] for p in own] for own in prefixes]
        return [[LABELS[label](n, k, threshold) for n in right_T] for right_T in right], right, found

    def bisected(chunk: Sequence[Solution], first: int):
        """The same of label=first_error; null where a prefix was not asked or a step is not labelled."""
        right, found = [[None] * len(s.steps) for s in chunk], {}
        wrong = [n for n, s in enumerate(chunk) if s.outcome == 0]

        def is_alive(asked, rounds):
            prefixes = [(chunk[wrong[n]].problem, chunk[wrong[n]].steps[:kept]) for n, kept in asked]
            found.update(complete(prefixes, starts[first], jax.random.fold_in(key, rounds)))
            for (n, kept), prefix in zip(asked, prefixes, strict=True):
                right[wrong[n]][kept - 1] = found[prefix][0]
            return [found[prefix][0] > 0 for prefix in prefixes]

        errors = dict(zip(wrong, first_errors([len(chunk[n].steps) for n in wrong], is_alive), strict=True))
        place = lambda n, t: None if t > errors.get(n, t) else float(t != errors.get(n))
        return [[place(n, t) for t in range(len(s.steps))] for n, s in enumerate(chunk)], right, found

    def label_rows(chunk: Sequence[Solution], first: int) -> list[dict]:
        labels, right, found = (bisected if label == "first_error" else all_prefixes)(chunk, first)
        rows = []
        for s, label_T, right_T in zip(chunk, labels, right, strict=True):
            # A prefix that several solutions share is paid for once, by the first.
            tokens = sum(found.pop((s.problem, s.steps[: t + 1]), (0, 0))[1] for t in range(len(s.steps)))
            row = {
                "id": s.id,
                "prompt": s.problem,
                "completions": list(s.steps),
                "outcome": s.outcome,
                "answer": s.answer,
            }
            row |= {"labels": label_T, "label_kind": "value", "right": right_T, "k": k}
            rows.append(row | {"completer": policy.name, "seed": seed, "policy_tokens": tokens})
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelingConfig(PolicyConfig):
    """conf/labeling.yaml says what each key means."""

    input: str
    k: Count
    label: Literal["soft", "hard", "threshold", "first_error"]
    threshold: Share


def read_input(path: str, checker: str) -> tuple[list[Solution], dict[str, str | None]]:
    """(solutions, {problem: its right answer}) of a pool, or of native rows, which name no right answer and so need checker=task."""
    by_task = checker == "task"
    if "candidates" in next(iter(read_rows(path)))[1]:
        pool = read_pool(path)
        golds = {p.problem: p.answer for p in pool}
        for p in () if by_task else pool:
            if p.answer is None or p.answer != golds[p.problem]:
                expected = "the one right answer of its text, which completions are checked against"
                raise InputError(f"{path}: problem {p.id}: {field_error('answer', p.answer, expected)}")
        make = lambda p, n, c: Solution(p.problem, c.steps, None, None, _number(c.correct), c.answer, f"{p.id}/{n}")
        return [make(p, n, c) for p in pool for n, c in enumerate(p.candidates)], golds
    expect(by_task, "checker", checker, "task for native rows, which have no right answers; a pool has them")
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
    solutions, golds = read_input(cfg.input, cfg.checker)
    with (
        jax.set_mesh(make_mesh(cfg.mesh, cfg.batch_rows)),
        contextlib.closing(Checker("string" if by_task else cfg.checker)) as checker,
    ):
        if cfg.label == "first_error" and (unknown := next((s for s in solutions if s.outcome is None), None)):
            raise field_error(
                f"{cfg.input}: {unknown.id}: outcome", None, "0 or 1: label=first_error searches wrong answers"
            )
        policy = open_policy(cfg.checkpoint, cfg.which, cfg.format, cfg.dtype, cfg.sampling, cfg.batch_rows, cfg.server)
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
