"""Step labels without people: how often a policy's completions of each prefix end right (Math-Shepherd, Wang et al. 2024).

python -m prm_jax.labeling input=FILE checkpoint=POLICY k=8     writes labels.jsonl (native rows) and about.json

MC_t is the share of the K completions of the problem and steps 1..t that are right. LABELS are functions of these. first_error
spends less: in a solution with a wrong answer it finds the first prefix of which no completion is right by bisection
(OmegaPRM, Luo et al. 2024), ceil(log2 T) prefixes of T, all solutions of a chunk at once; steps before it are good, it is
bad, what follows is not labelled; all steps of a solution with a right answer are good. tree looks for more such solutions
among the completions (omegaprm.py). So labels are values of the policy as completer, or advantages of it
(data.label_kind=value, advantage). Rows keep the counts, so that other labels can be made of them without new completions.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import jax
import numpy as np

from prm_jax import InputError, tasks
from prm_jax.data import sources
from prm_jax.data.grading import RULES, Checker, extract, grader
from prm_jax.data.pools import Candidate, Problem, read_pool
from prm_jax.data.rows import append_rows, field_error, read_rows, write_rows
from prm_jax.data.solutions import Solution, native_row
from prm_jax.data.steps import steps_of
from prm_jax.generate.omegaprm import MC, Prefix, RollOut, Tree, estimate, find_first_error, grow, in_rounds
from prm_jax.generate.sampling import Policy, PolicyConfig, fingerprint, open_policy
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import Count, Share, expect, one_of, parse
from prm_jax.launch.hosts import share_file, start_command, writable_folder
from prm_jax.launch.mesh import make_mesh


def ratio(mc: Sequence[MC], how: "Labels") -> list[float | None]:
    """GenPRM's relative progress (Zhao et al. 2025): is MC_t / MC_(t-1) at least the threshold? 0 for the first t with MC_t = 0.

    What follows that step, and every step of a problem of which no completion was right, has nothing to be measured by: null.
    """
    n_alive = next((t for t, here in enumerate(mc) if not here.right), len(mc))
    steps = itertools.pairwise(mc)
    good = lambda a, b: float(b.right > 0 and b.right * a.k / (a.right * b.k) >= how.threshold)
    return [good(a, b) if t < n_alive else None for t, (a, b) in enumerate(steps)]


def advantage(mc: Sequence[MC], how: "Labels") -> list[float]:
    """PAV's progress A_t = Q_t - Q_(t-1) under the best of `prover` completions (Setlur et al. 2024), as (1 + A) / 2."""
    q = [here.best_of(how.prover) for here in mc]
    return [(1 + after - before) / 2 for before, after in itertools.pairwise(q)]


# label -> f(MC of the bare problem and of every prefix, settings) -> label of every step
LABELS = {
    "soft": lambda mc, how: [here.share for here in mc[1:]],
    "hard": lambda mc, how: [float(here.right > 0) for here in mc[1:]],
    "threshold": lambda mc, how: [float(here.share >= how.threshold) for here in mc[1:]],
    "ratio": ratio,
    "advantage": advantage,
}
OF_PROBLEM = ("ratio", "advantage")  # need the MC of the bare problem
SEARCHES = ("first_error", "tree")  # look for the error of a wrong answer
KINDS = {"advantage": "advantage"}  # label -> label_kind, where it is not value


@dataclasses.dataclass(frozen=True)
class Adapt:
    """K of a problem's prefixes by the MC of the bare problem: k[i] where it is below below[i], the last one for the rest."""

    below: tuple[Share, ...]
    k: tuple[Count, ...]

    def __post_init__(self):
        rising = all(a < b for a, b in itertools.pairwise(self.below))
        expect(self.below and rising, "adapt.below", list(self.below), "rising shares")
        n = len(self.below) + 1
        expect(len(self.k) == n, "adapt.k", list(self.k), f"{n} numbers, one more than adapt.below")

    def choose(self, share: float) -> int:
        return self.k[sum(share >= bound for bound in self.below)]


@dataclasses.dataclass(frozen=True)
class Noise:
    """How often the checker errs, at random."""

    false_positive: Share = 0.0  # share of the wrong completions that it takes for right ones
    false_negative: Share = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labels:
    """How steps are labelled; conf/labeling.yaml says what each key means."""

    label: Annotated[str, one_of((*LABELS, *SEARCHES))]
    threshold: Share
    prover: Count
    k: Count
    adapt: Adapt | None
    noise: Noise
    tree: Tree

    def __post_init__(self):
        fewest = min((self.k, *(self.adapt.k if self.adapt else ())))
        fits = self.label != "advantage" or self.prover <= fewest
        expect(fits, "prover", self.prover, f"at most {fewest}, the completions that its best are of")


def roll_outs(policy: Policy, prefixes: Sequence[Prefix], golds, k: int, seed: int, noise: Noise, grade):
    """k graded completions, RollOut, of each distinct prefix.

    What is drawn for a prefix, and where the checker errs, depends on the seed, its text and the completion's number alone: not
    on its neighbours, so labels of any kind and file see the same completions.
    """
    digests = [hashlib.sha256(json.dumps(prefix).encode()).digest() for prefix in prefixes]
    numbers = [int.from_bytes(digest[:4], "big") >> 1 for digest in digests]
    samples, found = policy.extend(prefixes, k, "end", jax.random.key(seed), numbers), []
    for (problem, steps), digest, own in zip(prefixes, digests, samples, strict=True):
        new = [steps_of(policy.format, c.text) for c in own]
        candidates = []
        for more, c in zip(new, own, strict=True):
            whole = (*steps, *more) or ("",)
            candidates.append(Candidate(whole, extract("\n".join(whole)), finished=c.finish_reason == "eos"))
        graded = grade(Problem("", problem, golds[problem], tuple(candidates))).candidates
        errs = np.random.default_rng([seed, int.from_bytes(digest, "big")]).random(k)
        made = []
        for c, more, sample, u in zip(graded, new, own, errs, strict=True):
            right = u >= noise.false_negative if c.correct else u < noise.false_positive
            # A completion that was cut is not right, whatever it says last.
            made.append(RollOut(more, c.answer, c.finished and bool(right), c.finished, len(sample.ids_L)))
        found.append(made)
    return found


class Completions:
    """The roll-outs of the prefixes of some problems, each prefix completed once."""

    def __init__(self, how: Labels, ask: Callable[[list[Prefix], int], list[list[RollOut]]]):
        self.how, self.ask, self.found, self.unpaid = how, ask, {}, {}

    def __call__(self, prefixes: Sequence[Prefix]) -> list[list[RollOut]]:
        """The roll-outs of each prefix; what is new takes one call of the policy for each K."""
        if self.how.adapt and (problems := dict.fromkeys(problem for problem, steps in prefixes if steps)):
            self([(problem, ()) for problem in problems])
        by_k = collections.defaultdict(list)
        # Those with as many steps go together: a batch is done when its longest completion is.
        for prefix in sorted(dict.fromkeys(prefixes), key=lambda prefix: len(prefix[1])):
            if prefix not in self.found:
                by_k[self.k(prefix)].append(prefix)
        for k, new in sorted(by_k.items()):
            self.found.update(zip(new, self.ask(new, k), strict=True))
            self.unpaid.update((prefix, self.found[prefix]) for prefix in new)
        return [self.found[prefix] for prefix in prefixes]

    def k(self, prefix: Prefix) -> int:
        """K of a prefix; the bare problem, whose MC decides on the others, has `how.k`."""
        problem, steps = prefix
        return self.how.adapt.choose(self.mc((problem, ())).share) if steps and self.how.adapt else self.how.k

    def mc(self, prefix: Prefix) -> MC | None:
        return estimate(self.found[prefix]) if prefix in self.found else None

    def pay(self, prefixes: Sequence[Prefix]) -> dict[str, int]:
        """What these prefixes cost, and how many of their completions were cut or state no answer that the checker could
        read; what solutions share is paid for by the first that asks."""
        own = [r for prefix in prefixes for r in self.unpaid.pop(prefix, ())]
        lost = sum(not r.finished or r.answer is None for r in own)
        return {"policy_tokens": sum(r.tokens for r in own), "unanswered": lost}


def prefixes_of(s: Solution) -> list[Prefix]:
    """The bare problem, then what each step ends."""
    return [(s.problem, s.steps[:t]) for t in range(len(s.steps) + 1)]


def scanned(solutions: Sequence[Solution], how: Labels, complete: Completions) -> list[list[float | None]]:
    """Labels of all steps by completions of all prefixes."""
    first = 0 if how.label in OF_PROBLEM else 1
    complete([prefix for s in solutions for prefix in prefixes_of(s)[first:]])
    return [LABELS[how.label](list(map(complete.mc, prefixes_of(s))), how) for s in solutions]


def bisected(solutions: Sequence[Solution], complete: Completions) -> list[list[float | None]]:
    """Labels up to the first error of solutions with a wrong answer, of all steps of those with a right one."""
    errors = iter(in_rounds([find_first_error(s.problem, s.steps) for s in solutions if s.outcome == 0], complete))
    at = [next(errors) if s.outcome == 0 else len(s.steps) for s in solutions]
    place = lambda t, error: None if t > error else float(t < error)
    return [[place(t, error) for t in range(len(s.steps))] for s, error in zip(solutions, at, strict=True)]


def tree_rows(solutions: Sequence[Solution], states: dict, paths: Sequence, complete: Completions) -> list[dict]:
    """A row for each path of a problem's tree, MC of its states as labels: each state's in the first path that it lies on.

    The last step has the label 0, since the answer is wrong. `start`: steps of the state that was searched from; `visits`: how
    often each was; q and u: what it was chosen by.
    """
    rows, labelled, first = [], set(), solutions[0]
    for i, path in enumerate(paths):
        s = Solution(first.problem, path.steps, None, None, 0.0, path.answer, f"{first.id}/tree/{i}", first.task)
        prefixes = [path.steps[: t + 1] for t in range(len(path.steps))]
        labels = [states[p].mc.share if p in states and p not in labelled else None for p in prefixes[:-1]] + [0.0]
        labelled.update(prefixes)
        visits = [states[p].visits if p in states else None for p in prefixes]
        more = {"start": path.start, "first_error": path.first_error, "q": path.q, "u": path.u, "visits": visits}
        rows.append(row_of(s, labels, complete) | more)
    return rows


def row_of(s: Solution, labels: Sequence[float | None], complete: Completions) -> dict:
    """The native row of a solution, with how many of k completions of each prefix are right; null where none was asked."""
    problem, *mc = map(complete.mc, prefixes_of(s))
    row = native_row(s, labels) | {"right": [x and x.right for x in mc], "k": next((x.k for x in mc if x), None)}
    if problem:
        row |= {"problem_right": problem.right, "problem_k": problem.k}
    return row | complete.pay(prefixes_of(s))


def label_file(
    path: Path, policy: Policy, solutions: Sequence[Solution], golds: dict, how: Labels, seed: int, grade: Callable
) -> dict:
    """Writes native rows with labels, problem by problem, to `path`, and about.json beside it; returns the counts.

    A search leaves out, and counts, what has no outcome, as a solution that was cut off: nobody knows whether it is wrong.
    label=tree keeps a line a problem in trees.jsonl beside it, and makes the rows of it. Lines are made in fixed chunks of
    whole problems, as in `draw_pool`: a file that was cut off becomes the undisturbed one. Prefixes are completed once.
    """
    start, counts = time.perf_counter(), collections.Counter()
    if how.label in SEARCHES:
        known = [s for s in solutions if s.outcome is not None]
        solutions, counts["without_outcome_left_out"] = known, len(solutions) - len(known)
    made = {"label_kind": KINDS.get(how.label, "value"), "completer": policy.name, "seed": seed}
    made |= {"noise": dataclasses.asdict(how.noise)}
    about = made | {"weights": fingerprint(policy.model), "sampling": dataclasses.asdict(policy.sampling)}
    about |= {"format": policy.format.name, "batch_rows": policy.batch_rows}
    about |= {f.name: dataclasses.asdict(how)[f.name] for f in dataclasses.fields(Labels)}
    is_tree = how.label == "tree"
    lines = path.with_name("trees.jsonl") if is_tree else path
    share_file(lines), share_file(path.with_name("about.json"))
    run_folder.check_about(lines, about)
    by_problem = {}
    for s in solutions:
        by_problem.setdefault(s.problem, []).append(s)
    new = lambda: Completions(how, lambda p, k: roll_outs(policy, p, golds, k, seed, how.noise, grade))

    def label_rows(chunk: Sequence[Solution], _) -> list[dict]:
        complete = new()
        labels = bisected(chunk, complete) if how.label == "first_error" else scanned(chunk, how, complete)
        return [row_of(s, label_T, complete) | made for s, label_T in zip(chunk, labels, strict=True)]

    def grow_trees(chunk: Sequence[list[Solution]], _) -> list[dict]:
        complete, found = new(), []
        given = [[RollOut(s.steps, s.answer, s.outcome > 0, True, 0) for s in own] for own in chunk]
        searches = [grow(own[0].problem, r, how.k, how.tree) for own, r in zip(chunk, given, strict=True)]
        for own, (states, paths) in zip(chunk, in_rounds(searches, complete), strict=True):
            problem, root = own[0].problem, states[()].mc
            row = {"id": own[0].id, "prompt": problem, "given": len(own), "right": root.right, "k": root.k}
            rows = [row | made for row in tree_rows(own, states, paths, complete)]
            # What no path paid for: the completions of a problem without a search.
            spent = {name: n + sum(row[name] for row in rows) for name, n in complete.pay([(problem, ())]).items()}
            found.append(row | {"states": len(states), **spent, "paths": rows})
        return found

    # Chunks with full batches: a scan asks for all prefixes of a solution at once, a search for one of a solution or problem.
    k = max(how.adapt.k) if how.adapt else how.k
    at_once = policy.batch_rows * (4 if how.label in SEARCHES else 1) // k
    groups, unit = list(by_problem.values()), "problem" if is_tree else "solution"
    size = max(1, at_once if is_tree else at_once * len(groups) // len(solutions))
    chunks = [groups[i : i + size] for i in range(0, len(groups), size)]
    if is_tree:
        fields = lambda own: {"id": own[0].id, "prompt": own[0].problem, "given": len(own)}
    else:
        chunks = [[s for own in chunk for s in own] for chunk in chunks]
        fields = lambda s: {"id": s.id, "prompt": s.problem, "completions": list(s.steps)}
    with cli.progress("labelling", sum(map(len, chunks)), unit) as bar:
        for found, old in append_rows(lines, chunks, None, fields, grow_trees if is_tree else label_rows):
            rows = [row for line in found for row in line["paths"]] if is_tree else found
            counts.update({name: sum(line[name] for line in found) for name in ("policy_tokens", "unanswered")})
            counts.update(resumed=old, solutions=len(rows), steps=sum(len(row["labels"]) for row in rows))
            counts.update(labelled=sum(y is not None for row in rows for y in row["labels"]))
            bar.update(len(found))
    if is_tree:
        write_rows(path, (row for _, line in read_rows(lines) for row in line["paths"]))
    about |= {"finished": True, "counts": dict(counts), "seconds": time.perf_counter() - start}
    run_folder.write_json(path.with_name("about.json"), about | {"versions": run_folder.versions()})
    return counts


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelingConfig(Labels, PolicyConfig):
    """conf/labeling.yaml says what each key means."""

    input: str


def read_input(path: str, checker: str) -> tuple[list[Solution], dict[str, str | None]]:
    """(solutions, {problem: its right answer}) of a pool, or of native rows, which have none and so need an exact checker."""
    by_task = checker not in RULES
    if "candidates" in next(iter(read_rows(path)))[1]:
        pool = read_pool(path)
        golds = {p.problem: p.answer for p in pool}
        for p in () if by_task else pool:
            if p.answer is None or p.answer != golds[p.problem]:
                expected = "the one right answer of its text, which completions are checked against"
                raise InputError(f"{path}: problem {p.id}: {field_error('answer', p.answer, expected)}")
        make = lambda p, n, c: Solution(p.problem, c.steps, None, None, c.outcome, c.answer, f"{p.id}/{n}", p.task)
        return [make(p, n, c) for p in pool for n, c in enumerate(p.candidates)], golds
    expect(by_task, "checker", checker, "task for native rows, which have no right answers; a pool has them")
    solutions, counts = sources.load(path, "native")
    cli.print_counts(counts)
    return solutions, {s.problem: None for s in solutions}


@cli.command("labeling")
def main(cfg):
    """Label the steps of solutions by a policy's completions of their prefixes."""
    folder, given, resumes = start_command(cfg)
    folder, cfg = writable_folder(folder), parse(given, LabelingConfig)
    solutions, golds = read_input(cfg.input, cfg.checker)
    if by_task := cfg.checker not in RULES:
        task = tasks.of_files([cfg.input], cfg.checker)
        solutions = [dataclasses.replace(s, task=tasks.name_of(task)) for s in solutions]
    with (
        run_folder.claimed(folder, given, resumes),
        jax.set_mesh(make_mesh(cfg.mesh, cfg.batch_rows)),
        contextlib.closing(Checker("string" if by_task else cfg.checker)) as checker,
    ):
        if cfg.label in SEARCHES and all(s.outcome is None for s in solutions):
            expected = f"0 or 1: label={cfg.label} searches wrong answers, and no solution has an outcome"
            raise field_error(f"{cfg.input}: {solutions[0].id}: outcome", None, expected)
        policy = open_policy(cfg.checkpoint, cfg.which, cfg.format, cfg.dtype, cfg.sampling, cfg.batch_rows, cfg.server)
        path, grade = folder / "labels.jsonl", functools.partial(tasks.grade, task) if by_task else grader(checker)
        counts = label_file(path, policy, solutions, golds, cfg, cfg.seed, grade)
    if policy.stats.tokens:
        print(policy.stats.summary())
    cli.print_counts(counts, totals=())
    kind = KINDS.get(cfg.label, "value")
    print(f"labels      {path}; train on them: data=jsonl data.path={path} data.label_kind={kind}")
