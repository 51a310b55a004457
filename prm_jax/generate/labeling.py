"""Labels steps by how often a policy's completions of each prefix end right (Math-Shepherd, Wang et al.
2024).

python -m prm_jax.labeling input=FILE checkpoint=POLICY k=8   writes labels.jsonl (native rows) and about.json

MC_t is the share of right completions among K of the problem and steps 1..t, for a finished solution's last
step its own outcome; LABELS are functions of these. first_error costs less: it bisects solutions with a wrong
answer (omegaprm.py). tree looks for more such solutions among the completions. So labels are values or
advantages of the policy (data.label_kind=value, advantage). Rows keep the counts, from which other labels can
be made.
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import jax
import numpy as np

from prm_jax.data import sources
from prm_jax.data.grading import RULES, extract
from prm_jax.data.pools import Candidate, Problem, pool_solutions, read_pool
from prm_jax.data.rows import append_rows, is_pool, read_rows, require, require_same, write_rows
from prm_jax.data.steps import format_steps
from prm_jax.generate import omegaprm
from prm_jax.generate.omegaprm import MC, RollOut, TreeConfig, estimate
from prm_jax.generate.sampling import Policy, PolicyConfig, fingerprint, policy_at_work
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import Count, Share, expect, one_of, parse
from prm_jax.launch.hosts import writable_folder
from prm_jax.launch.progress import print_counts, progress
from prm_jax.launch.run_folder import described_file, start_command
from prm_jax.protocols import Prefix
from prm_jax.solutions import Solution, native_row
from prm_jax.tasks.checkers import choose_checker, is_own, open_grader


def ratio(mc: Sequence[MC], cfg: "Labels") -> list[float | None]:
    """GenPRM's relative progress (Zhao et al. 2025): 1 where MC_t / MC_(t-1) is at least the threshold, else
    0. The first t with MC_t = 0 has 0; later steps, and all steps of a problem without a right completion,
    have null."""
    n_alive = next((t for t, x in enumerate(mc) if not x.right), len(mc))
    alive = list(itertools.pairwise(mc))[:n_alive]
    labels = [float(b.right > 0 and b.right * a.k / (a.right * b.k) >= cfg.threshold) for a, b in alive]
    return labels + [None] * (len(mc) - 1 - len(labels))


def advantage(mc: Sequence[MC], cfg: "Labels") -> list[float]:
    """(1 + A_t) / 2 by PAV (Setlur et al. 2024): A_t = Q_t - Q_(t-1), Q = P(any of `prover` completions is
    right)."""
    q = [x.best_of(cfg.prover) for x in mc]
    return [(1 + after - before) / 2 for before, after in itertools.pairwise(q)]


# label -> f(MC of the bare problem and of every prefix, settings) -> label of every step
LABELS = {
    "soft": lambda mc, cfg: [x.share for x in mc[1:]],
    "hard": lambda mc, cfg: [float(x.right > 0) for x in mc[1:]],
    "threshold": lambda mc, cfg: [float(x.share >= cfg.threshold) for x in mc[1:]],
    "ratio": ratio,
    "advantage": advantage,
}
SEARCHES = ("first_error", "tree")  # look for the error of a wrong answer
KINDS = {"advantage": "advantage"}  # label -> label_kind, where it is not value


@dataclasses.dataclass(frozen=True)
class AdaptiveK:
    """K of a problem's prefixes: k[i] where the MC of the bare problem is below below[i], else the last k."""

    below: tuple[Share, ...]
    k: tuple[Count, ...]

    def __post_init__(self):
        is_rising = self.below and list(self.below) == sorted({*self.below})
        expect(is_rising, "adapt.below", list(self.below), "rising shares")
        fits = len(self.k) == len(self.below) + 1
        expect(fits, "adapt.k", list(self.k), "one number more than adapt.below")

    def choose(self, share: float) -> int:
        return self.k[sum(share >= bound for bound in self.below)]


@dataclasses.dataclass(frozen=True)
class Noise:
    """Random errors of the checker."""

    false_positive: Share  # share of the wrong completions that it takes for right ones
    false_negative: Share


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labels:  # settings of labels; conf/labeling.yaml says what each key means
    label: Annotated[str, one_of((*LABELS, *SEARCHES))]
    threshold: Share
    prover: Count
    k: Count
    adapt: AdaptiveK | None
    noise: Noise
    tree: TreeConfig

    def __post_init__(self):
        fewest = min((self.k, *(self.adapt.k if self.adapt else ())))
        fits = self.label != "advantage" or self.prover <= fewest
        expect(fits, "prover", self.prover, f"at most {fewest}, the number of completions")


def roll_outs(policy: Policy, prefixes: Sequence[Prefix], golds, k: int, seed: int, noise: Noise, grade):
    """k graded completions, RollOut, of each distinct prefix. They and the checker's errors depend only on
    the seed, the prefix's text and the completion's number, so labels of any kind and file see the same
    ones."""
    digests = [hashlib.sha256(json.dumps(prefix).encode()).digest() for prefix in prefixes]
    numbers = [int.from_bytes(digest[:4], "big") >> 1 for digest in digests]
    continuations, groups = policy.extend(prefixes, k, "end", jax.random.key(seed), numbers), []
    for (problem, steps), digest, samples in zip(prefixes, digests, continuations, strict=True):
        new = [format_steps(policy.format, c.text) for c in samples]
        candidates = []
        for more, c in zip(new, samples, strict=True):
            whole = (*steps, *more) or ("",)
            candidates.append(Candidate(whole, extract("\n".join(whole)), finished=c.finish_reason == "eos"))
        graded = grade(Problem("", problem, golds[problem], tuple(candidates))).candidates
        uniform_k = np.random.default_rng([seed, int.from_bytes(digest, "big")]).random(k)
        group = []
        for c, more, sample, u in zip(graded, new, samples, uniform_k, strict=True):
            is_right = u >= noise.false_negative if c.correct else u < noise.false_positive
            is_right = c.finished and bool(is_right)  # a cut completion is not, whatever it says last
            group.append(RollOut(more, c.answer, is_right, c.finished, len(sample.ids_L)))
        groups.append(group)
    return groups


class Completions:
    """The roll-outs of prefixes; each prefix is completed once."""

    def __init__(self, cfg: Labels, sample: Callable[[list[Prefix], int], list[list[RollOut]]]):
        self.cfg, self.sample = cfg, sample
        self.roll_outs: dict[Prefix, list[RollOut]] = {}
        self.uncharged: dict[Prefix, list[RollOut]] = {}

    def __call__(self, prefixes: Sequence[Prefix]) -> list[list[RollOut]]:
        """The roll-outs of each prefix. New prefixes take one call of the policy for each K."""
        if self.cfg.adapt and (problems := dict.fromkeys(problem for problem, steps in prefixes if steps)):
            self([(problem, ()) for problem in problems])
        by_k = collections.defaultdict(list)
        # Prefixes of equal length go together: a batch takes as long as its longest completion.
        for prefix in sorted(dict.fromkeys(prefixes), key=lambda prefix: len(prefix[1])):
            if prefix not in self.roll_outs:
                by_k[self.k(prefix)].append(prefix)
        for k, new in sorted(by_k.items()):
            completed = dict(zip(new, self.sample(new, k), strict=True))
            self.roll_outs.update(completed)
            self.uncharged.update(completed)
        return [self.roll_outs[prefix] for prefix in prefixes]

    def k(self, prefix: Prefix) -> int:
        """K of a prefix. The bare problem, whose MC decides about the others, has `cfg.k`."""
        problem, steps = prefix
        return self.cfg.adapt.choose(self.mc((problem, ())).share) if steps and self.cfg.adapt else self.cfg.k

    def mc(self, prefix: Prefix) -> MC | None:
        return estimate(self.roll_outs[prefix]) if prefix in self.roll_outs else None

    def charge_tokens(self, prefixes: Sequence[Prefix]) -> dict[str, int]:
        """Policy tokens and unanswered (cut or unreadable) completions of prefixes, each charged once."""
        charged = [r for prefix in prefixes for r in self.uncharged.pop(prefix, ())]
        unanswered = sum(not r.finished or r.answer is None for r in charged)
        return {"policy_tokens": sum(r.tokens for r in charged), "unanswered": unanswered}


def prefixes_of(s: Solution) -> list[Prefix]:
    """The bare problem, then the prefix that each step ends."""
    return [(s.problem, s.steps[:t]) for t in range(len(s.steps) + 1)]


def label_all_prefixes(solutions: Sequence[Solution], complete: Completions) -> list[list[float | None]]:
    """Labels of all steps by completions of all prefixes. The last step's MC is the solution's own outcome,
    as in the programs of GenPRM and distilabel, where it has one: nothing is left to complete."""
    cfg = complete.cfg
    first = 0 if cfg.label in ("ratio", "advantage") else 1  # these need the MC of the bare problem
    complete([p for s in solutions for p in prefixes_of(s)[first : None if s.outcome is None else -1]])
    labels = []
    for s in solutions:
        mc = list(map(complete.mc, prefixes_of(s)))
        if s.outcome is not None:
            mc[-1] = MC(round(cfg.k * s.outcome), cfg.k)
        labels.append(LABELS[cfg.label](mc, cfg))
    return labels


def label_to_first_error(solutions: Sequence[Solution], complete: Completions) -> list[list[float | None]]:
    """Labels up to the first error of solutions with a wrong answer, of all steps of those with a right
    one."""
    searches = [omegaprm.find_first_error(s.problem, s.steps) for s in solutions if s.outcome < 0.5]
    errors = iter(omegaprm.run_batched(searches, complete))
    labels = []
    for s in solutions:
        error = next(errors) if s.outcome < 0.5 else len(s.steps)
        labels.append([None if t > error else float(t < error) for t in range(len(s.steps))])
    return labels


def row_of(s: Solution, labels: Sequence[float | None], complete: Completions) -> dict:
    """The native row of a solution; right: of k completions of each prefix, null where none were drawn."""
    problem, *mc = map(complete.mc, prefixes_of(s))
    row = native_row(s, labels)
    row |= {"right": [x and x.right for x in mc], "k": next((x.k for x in mc if x), None)}
    if problem:
        row |= {"problem_right": problem.right, "problem_k": problem.k}
    return row | complete.charge_tokens(prefixes_of(s))


def rows_of(solutions: Sequence[Solution], complete: Completions, origin: dict) -> list[dict]:
    """The rows of solutions, with labels by all prefixes or by bisection."""
    label = label_to_first_error if complete.cfg.label == "first_error" else label_all_prefixes
    labels = label(solutions, complete)
    return [row_of(s, label_T, complete) | origin for s, label_T in zip(solutions, labels, strict=True)]


def tree_line(
    group: Sequence[Solution], states: dict, paths: list, complete: Completions, origin: dict
) -> dict:
    """A problem's tree, searched from its solutions, and a row for each path of it. A state's MC labels the
    first path through it; the last step has 0. visits: of each state."""
    first, rows, labelled = group[0], [], set()
    for i, (steps, answer, search) in enumerate(paths):
        s = Solution(first.problem, steps, None, None, 0.0, answer, f"{first.id}/tree/{i}", first.task)
        prefixes = [steps[: t + 1] for t in range(len(steps))]
        known = [states.get(prefix) for prefix in prefixes]
        new = [state if p not in labelled else None for state, p in zip(known, prefixes, strict=True)]
        labels = [state and state.mc.share for state in new[:-1]]
        labelled.update(prefixes)
        visits = [state and state.visits for state in known]
        rows.append({**row_of(s, [*labels, 0.0], complete), **search, "visits": visits, **origin})
    # The completions of a problem without a search are charged to no path.
    cost = complete.charge_tokens([(first.problem, ())])
    cost = {name: n + sum(row[name] for row in rows) for name, n in cost.items()}
    root = states[()].mc
    line = {"id": first.id, "prompt": first.problem, "given": len(group), "right": root.right, "k": root.k}
    return {**line, "states": len(states), **cost, "paths": rows}


def tree_lines(groups: Sequence[list[Solution]], complete: Completions, origin: dict) -> list[dict]:
    """The `tree_line` of each problem, given by its solutions, which are roll-outs of the root."""
    cfg, searches = complete.cfg, []
    for group in groups:
        root = [RollOut(s.steps, s.answer, s.outcome >= 0.5, True, 0) for s in group]
        searches.append(omegaprm.build_tree(group[0].problem, root, cfg.k, cfg.tree))
    trees = zip(groups, omegaprm.run_batched(searches, complete), strict=True)
    return [tree_line(group, states, paths, complete, origin) for group, (states, paths) in trees]


def counts_of(line: dict) -> dict[str, int]:
    """The counts of a line of labels.jsonl or trees.jsonl."""
    labels = [y for row in line.get("paths", [line]) for y in row["labels"]]
    counts = {name: line[name] for name in ("policy_tokens", "unanswered")}
    counts |= {"solutions": len(line.get("paths", [line])), "steps": len(labels)}
    return counts | {"labelled": sum(y is not None for y in labels)}


def label_file(
    path: Path, policy, solutions: list[Solution], golds: dict, cfg: Labels, seed: int, grade: Callable
) -> dict:
    """Writes native rows with labels, problem by problem, to `path`, and about.json beside it; returns the
    counts. A search leaves out and counts solutions without an outcome, such as cut ones, which may not be
    wrong. label=tree makes the rows from trees.jsonl, a line a problem. A stopped call is resumed as in
    `draw_pool`."""
    is_tree, is_search = cfg.label == "tree", cfg.label in SEARCHES
    used = [s for s in solutions if s.outcome is not None or not is_search]
    n_left_out, by_problem = len(solutions) - len(used), {}
    for s in used:
        by_problem.setdefault(s.problem, []).append(s)
    groups = list(by_problem.values())
    settings = {f.name: dataclasses.asdict(cfg)[f.name] for f in dataclasses.fields(Labels)}
    origin = {"label_kind": KINDS.get(cfg.label, "value"), "completer": policy.name, "seed": seed}
    origin["noise"] = settings["noise"]
    about = {**origin, **settings, "weights": fingerprint(policy.model), "format": policy.format.name}
    about |= {"sampling": dataclasses.asdict(policy.sampling), "batch_rows": policy.batch_rows}

    def sample(prefixes: list[Prefix], k: int) -> list[list[RollOut]]:
        return roll_outs(policy, prefixes, golds, k, seed, cfg.noise, grade)

    def make(items: list, _, old: int) -> list[dict]:
        make_lines = tree_lines if is_tree else rows_of
        return make_lines(items, Completions(cfg, sample), origin)[old:]

    def check(line: dict, item):
        if is_tree:
            require_same(line, id=item[0].id, prompt=item[0].problem, given=len(item))
        else:
            require_same(line, id=item.id, prompt=item.problem, completions=list(item.steps))

    # Chunks fill batches: with all prefixes of a solution or, in a search, with one of each solution or
    # problem.
    at_once = policy.batch_rows * (4 if is_search else 1) // (max(cfg.adapt.k) if cfg.adapt else cfg.k)
    size = max(1, at_once if is_tree else at_once * len(groups) // sum(map(len, groups)))
    chunks = [groups[i : i + size] for i in range(0, len(groups), size)]
    if not is_tree:
        chunks = [list(itertools.chain(*chunk)) for chunk in chunks]
    lines, total = path.with_name("trees.jsonl") if is_tree else path, sum(map(len, chunks))
    with described_file(lines, about) as counts, progress("labelling", total, "line") as bar:
        for new, old in append_rows(lines, chunks, None, check, make):
            counts.update(resumed=old)
            for line in new:
                counts.update(counts_of(line))
            bar.update(len(new))
        if is_search:
            counts["without_outcome_left_out"] = n_left_out
        if is_tree:
            write_rows(path, (row for _, line in read_rows(lines) for row in line["paths"]))
    return counts


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelingConfig(Labels, PolicyConfig):  # conf/labeling.yaml says what each key means
    input: str


def read_input(path: str, checker: str) -> tuple[list[Solution], dict[str, str | None]]:
    """(solutions, {problem: right answer}) of a pool, or of native rows without answers, for an exact
    checker."""
    if not is_pool(next(iter(read_rows(path)))[1]):
        expected = "task for native rows, which have no right answers; a pool has them"
        expect(checker not in RULES, "checker", checker, expected)
        solutions, counts = sources.load(path, "native")
        print_counts(counts)
        return solutions, {s.problem: None for s in solutions}
    pool = read_pool(path, as_written=is_own(checker))
    golds = {p.problem: p.answer for p in pool}
    for p in pool:
        is_known = p.answer is not None or checker not in RULES
        is_one = p.answer == golds[p.problem] or not (checker in RULES or is_own(checker))
        expected = "the one right answer of its text, which completions are checked against"
        require(is_known and is_one, f"{path}: problem {p.id}: answer", p.answer, expected)
    return [solution for p in pool for solution in pool_solutions(p)], golds


@cli.command("labeling", LabelingConfig)
def main(cfg):
    """Label the steps of solutions by a policy's completions of their prefixes."""
    folder, raw_cfg, resumes = start_command(cfg)
    folder, cfg = writable_folder(folder), parse(raw_cfg, LabelingConfig)
    cfg = dataclasses.replace(cfg, checker=choose_checker(cfg.checker, [cfg.input]))
    solutions, golds = read_input(cfg.input, cfg.checker)
    grader = open_grader(cfg.checker, [cfg.input])
    if grader.task:
        solutions = [dataclasses.replace(s, task=grader.checker) for s in solutions]
    has_outcomes = any(s.outcome is not None for s in solutions)
    expected = f"0 or 1 of some solution: label={cfg.label} searches wrong answers"
    require(cfg.label not in SEARCHES or has_outcomes, f"{cfg.input}: outcome", None, expected)
    path, claim = folder / "labels.jsonl", run_folder.locked_run_folder(folder, raw_cfg, resumes)
    with claim, contextlib.closing(grader), policy_at_work(cfg) as policy:
        counts = label_file(path, policy, solutions, golds, cfg, cfg.seed, grader.grade)
    print_counts(counts, totals=())
    kind = KINDS.get(cfg.label, "value")
    print(f"labels      {path}; train on them: data=jsonl data.path={path} data.label_kind={kind}")
