"""Labels steps by how often a policy's completions of each prefix end right (Math-Shepherd, Wang et al.
2024).

python -m prm_jax.labeling input=FILE checkpoint=POLICY k=8   writes labels.jsonl (native rows) and about.json

MC_t is the share of right completions among K of the problem and steps 1..t, for a finished solution's last
step its own outcome; LABELS are functions of these. label=first_error costs less: it bisects solutions with a
wrong answer (OmegaPRM, Luo et al. 2024). So labels are values or advantages of the policy (data.label_kind).
Rows keep the counts, from which other labels can be made."""

import collections
import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import jax

from prm_jax.data import sources
from prm_jax.data.grading import RULES
from prm_jax.data.pools import Problem, pool_solutions, read_pool
from prm_jax.data.questions import make_candidate
from prm_jax.data.rows import is_pool, is_sample, read_rows
from prm_jax.data.writing import append_rows, keep_rows, native_row, require_same
from prm_jax.generate.pools import PolicyConfig, fix_dtype, policy_at_work, right_answers
from prm_jax.generate.sampling import describe
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import Count, Share, expect, one_of, parse
from prm_jax.launch.files import sha256
from prm_jax.launch.progress import print_counts, progress
from prm_jax.protocols import Prefix
from prm_jax.solutions import Solution
from prm_jax.tasks.checkers import is_own, open_grader


class MC(NamedTuple):
    """Monte-Carlo estimate of a prefix's value: how many of its k completions are right."""

    right: float  # a whole number, or 0 to 1 of 1: a solution's own outcome
    k: int

    @property
    def share(self) -> float:
        return self.right / self.k


def ratio(mc: Sequence[MC], threshold: float) -> list[float | None]:
    """GenPRM's relative progress (Zhao et al. 2025): 1 where MC_t / MC_(t-1) is at least the threshold, else
    0. The first t with MC_t = 0 has 0; later steps, and all of a problem without a right completion, null."""
    labels = []
    for before, after in itertools.pairwise(mc):
        if before.right == 0:
            break
        relative = after.right * before.k / (before.right * after.k)
        labels.append(float(after.right > 0 and relative >= threshold))
    return labels + [None] * (len(mc) - 1 - len(labels))


def advantage(mc: Sequence[MC], _) -> list[float]:
    """(1 + A_t) / 2 with A_t = MC_t - MC_(t-1): the completer is PAV's prover (Setlur et al. 2024)."""
    return [(1 + after.share - before.share) / 2 for before, after in itertools.pairwise(mc)]


# label -> f(MC of the bare problem and of every prefix, threshold) -> label of every step
LABELS = {
    "soft": lambda mc, _: [x.share for x in mc[1:]],
    "hard": lambda mc, _: [float(x.right >= 0.5) for x in mc[1:]],  # any; an outcome may be a fraction
    "threshold": lambda mc, threshold: [float(x.share >= threshold) for x in mc[1:]],
    "ratio": ratio,
    "advantage": advantage,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labels:  # settings of labels; conf/labeling.yaml says what each key means
    label: Annotated[str, one_of((*LABELS, "first_error"))]
    threshold: Share
    k: Count

    @property
    def kind(self) -> str:
        return "advantage" if self.label == "advantage" else "value"


class Completions:
    """Counts of right completions of prefixes, each drawn once: by seed, text and number alone."""

    def __init__(self, policy, golds: dict, k: int, seed: int, grade: Callable):
        self.policy = policy
        self.golds = golds
        self.k = k
        self.key = jax.random.key(seed)
        self.grade = grade
        self.mc: dict[Prefix, MC] = {}
        self.costs: dict[Prefix, dict] = {}  # of the prefixes that no row has been charged for

    def __call__(self, prefixes: Sequence[Prefix]) -> list[MC]:
        """The MC of each prefix; new ones take one call of the policy."""
        new = [prefix for prefix in dict.fromkeys(prefixes) if prefix not in self.mc]
        if new:
            self.draw(new)
        return [self.mc[prefix] for prefix in prefixes]

    def draw(self, new: list[Prefix]):
        new.sort(key=lambda prefix: len(prefix[1]))  # a batch takes as long as its longest completion
        numbers = [int(sha256(json.dumps(prefix))[:8], 16) >> 1 for prefix in new]
        groups = self.policy.extend(new, self.k, "end", self.key, numbers)
        for (problem, steps), samples in zip(new, groups, strict=True):
            candidates = tuple(make_candidate(self.policy.format, sample, steps) for sample in samples)
            graded = self.grade(Problem("", problem, self.golds[problem], candidates)).candidates
            n_right = sum(bool(c.finished and c.correct) for c in graded)  # a cut one is not right
            tokens = sum(len(sample.ids_L) for sample in samples)
            unanswered = sum(not c.finished or c.answer is None for c in graded)
            self.mc[problem, steps] = MC(n_right, self.k)
            self.costs[problem, steps] = {"policy_tokens": tokens, "unanswered": unanswered}

    def charge(self, prefixes: Sequence[Prefix]) -> dict[str, int]:
        """Policy tokens and unanswered (cut or unreadable) completions of prefixes, each charged once."""
        costs = [self.costs.pop(prefix) for prefix in prefixes if prefix in self.costs]
        return {name: sum(cost[name] for cost in costs) for name in ("policy_tokens", "unanswered")}


def prefixes_of(s: Solution) -> list[Prefix]:
    """The bare problem, then the prefix that each step ends."""
    return [(s.problem, s.steps[:t]) for t in range(len(s.steps) + 1)]


def label_all_prefixes(solutions: Sequence[Solution], complete: Completions, cfg: Labels) -> list[list]:
    """Labels of all steps by completions of all prefixes; the last step's MC is the outcome, if known."""
    first = 0 if cfg.label in ("ratio", "advantage") else 1  # these need the MC of the bare problem
    unknown = []
    for s in solutions:
        last = len(s.steps) if s.outcome is None else len(s.steps) - 1
        unknown += prefixes_of(s)[first : last + 1]
    complete(unknown)
    labels = []
    for s in solutions:
        mc = [complete.mc.get(prefix) for prefix in prefixes_of(s)]
        if s.outcome is not None:
            mc[-1] = MC(s.outcome, 1)
        labels.append(LABELS[cfg.label](mc, cfg.threshold))
    return labels


def label_to_first_error(solutions: Sequence[Solution], complete: Completions) -> list[list]:
    """Labels up to the first error of solutions with a wrong answer, of all steps of those with a right one:
    OmegaPRM's binary search for the first prefix without a right completion."""
    alive = {i: 0 for i, s in enumerate(solutions) if s.outcome < 0.5}  # steps of an alive prefix
    dead = {i: len(solutions[i].steps) for i in alive}
    while unsure := [i for i in alive if dead[i] - alive[i] > 1]:
        middle = {i: (alive[i] + dead[i]) // 2 for i in unsure}
        mc = complete([(solutions[i].problem, solutions[i].steps[: middle[i]]) for i in unsure])
        for i, x in zip(unsure, mc, strict=True):
            (alive if x.right else dead)[i] = middle[i]
    labels = []
    for i, s in enumerate(solutions):
        error = dead[i] - 1 if i in dead else len(s.steps)
        labels.append([None if t > error else float(t < error) for t in range(len(s.steps))])
    return labels


def row_of(s: Solution, labels: Sequence[float | None], complete: Completions) -> dict:
    """The native row of a solution; right: of k completions of each prefix, null where none were drawn."""
    problem, *mc = map(complete.mc.get, prefixes_of(s))
    row = native_row(s, labels)
    row["right"] = [x and x.right for x in mc]
    row["k"] = complete.k if any(mc) else None
    if problem:
        row |= {"problem_right": problem.right, "problem_k": problem.k}
    return row | complete.charge(prefixes_of(s))


def count_row(row: dict) -> collections.Counter:
    """The counts of one row of labels."""
    labelled = sum(y is not None for y in row["labels"])
    costs = {name: row[name] for name in ("policy_tokens", "unanswered")}
    return collections.Counter(solutions=1, steps=len(row["labels"]), labelled=labelled, **costs)


def label_file(
    path: Path, policy, solutions: list[Solution], golds: dict, cfg: Labels, seed: int, grade: Callable
) -> dict:
    """Writes native rows with labels, problem by problem, to `path`, and about.json beside it; returns the
    counts. first_error leaves out and counts solutions without an outcome. A stopped call is resumed."""
    is_search = cfg.label == "first_error"
    used = [s for s in solutions if s.outcome is not None or not is_search]
    expect(used, "label", cfg.label, "another label: no solution of the file has an outcome to search by")
    origin = {"label_kind": cfg.kind, "completer": policy.name, "seed": seed}
    about = origin | {name: getattr(cfg, name) for name in ("label", "threshold", "k")} | describe(policy)

    def label_rows(chunk: list[Solution], _, old: int) -> list[dict]:
        complete = Completions(policy, golds, cfg.k, seed, grade)
        if is_search:
            labels = label_to_first_error(chunk, complete)
        else:
            labels = label_all_prefixes(chunk, complete, cfg)
        rows = [row_of(s, label_T, complete) | origin for s, label_T in zip(chunk, labels, strict=True)]
        return rows[old:]

    def check(row: dict, s: Solution):
        require_same(row, id=s.id, prompt=s.problem, completions=list(s.steps))

    # Chunks of whole problems fill batches: with all prefixes of a solution, or in a search with one of each.
    at_once = policy.batch_rows * (4 if is_search else 1) // cfg.k
    chunks = whole_problems(used, at_once)
    appended = append_rows(path, chunks, None, check, label_rows)
    counts = {"without_outcome_left_out": len(solutions) - len(used)} if is_search else {}
    with progress("labelling", len(used), "solution") as bar:
        return keep_rows(path, about, appended, count_row, counts, bar)


def whole_problems(solutions: Sequence[Solution], at_once: int) -> list[list[Solution]]:
    """Chunks of about `at_once` solutions, all those of a problem in one."""
    by_problem = collections.defaultdict(list)
    for s in solutions:
        by_problem[s.problem].append(s)
    groups = list(by_problem.values())
    size = max(1, at_once * len(groups) // max(1, len(solutions)))
    return [list(itertools.chain(*groups[i : i + size])) for i in range(0, len(groups), size)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelingConfig(Labels, PolicyConfig):  # conf/labeling.yaml says what each key means
    pass


def read_input(path: str, checker: str, columns=None) -> tuple[list[Solution], dict[str, str | None]]:
    """(solutions, {problem: right answer}) of a pool, or of native rows for an exact checker."""
    _, first = next(iter(read_rows(path, columns)))
    if not (is_pool(first) or is_sample(first)):
        expected = (
            "a pool, such as prm_jax.sampling makes; native rows need checker=chain or FILE.py:FUNCTION"
        )
        expect(checker not in RULES, "input", path, expected)
        solutions, counts = sources.load(path, "native", columns=columns)
        print_counts(counts)
        return solutions, {s.problem: None for s in solutions}
    pool = read_pool(path, as_written=is_own(checker), columns=columns)
    return list(pool_solutions(pool)), right_answers(path, pool, checker)


@cli.command("labeling", LabelingConfig)
def main(cfg):
    """Label the steps of solutions by a policy's completions of their prefixes."""
    _, folder, raw_cfg = run_folder.start_command(cfg)
    cfg = fix_dtype(parse(raw_cfg, LabelingConfig), raw_cfg)
    grader = open_grader(cfg.checker, [cfg.input])
    solutions, golds = read_input(cfg.input, grader.checker, cfg.columns)
    if grader.task:
        solutions = [dataclasses.replace(s, task=grader.checker) for s in solutions]
    path = folder / "labels.jsonl"
    run_folder.claim_folder(folder, raw_cfg)
    with policy_at_work(cfg, solutions[0].problem) as policy:
        counts = label_file(path, policy, solutions, golds, cfg, cfg.seed, grader.grade)
    print_counts(counts, totals=())
    print(f"labels      {path}; train on them: data=jsonl data.path={path} data.label_kind={cfg.kind}")
