"""task=search: share of problems solved against policy tokens, by method and difficulty, under each verifier."""

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import jax
import numpy as np

from prm_jax import InputError, rerank, stats, tasks, votes
from prm_jax.data import grading
from prm_jax.data.formats import Format
from prm_jax.data.pools import Problem, read_pool, write_pool
from prm_jax.data.questions import Question, read_questions
from prm_jax.data.splits import TaskData
from prm_jax.evals import pool_metrics
from prm_jax.evals.common import Setup, data_of, describe, is_run, open_scorer, plus_minus
from prm_jax.generate import search
from prm_jax.generate.remote import Server
from prm_jax.generate.samples import policy_pool
from prm_jax.generate.sampling import Policy, Sampling, draw_pool, open_policy
from prm_jax.generate.search_state import SearchState
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import Count, Rule, expect, one_of

are_methods = lambda names: bool(names) and all(name in search.METHODS for name in names)
are_budgets = lambda budgets: bool(budgets) and all(type(x) is int and x > 0 for x in budgets)


@dataclasses.dataclass(frozen=True)
class Config(search.Options):
    """conf/task/search.yaml says what each key means."""

    methods: Annotated[list, Rule(are_methods, f"a list of {', '.join(search.METHODS)}")]
    budgets: Annotated[list, Rule(are_budgets, "a list of whole numbers of tokens")]
    problems: Count
    questions: str | None
    policy: str | None
    policy_format: Format
    samples: Count
    difficulties: Count
    checker: Annotated[str, one_of(tasks.CHECKERS)]
    aggregator: Annotated[str, one_of(rerank.AGGREGATORS)] | None
    choice: Literal["best", "vote"]
    max_steps: Count
    sampling: Sampling
    batch_rows: Count
    server: Server


EQUAL_COST = 0.1  # two searches are compared where what they spent differs by no larger share


def needs_checkpoint(cfg: Config) -> bool:
    return True


@dataclasses.dataclass(frozen=True)
class Arena:
    """The problems of a search, who writes, and what the policy solves alone."""

    questions: list[Question]
    policy: Policy
    grade: Callable[[Problem], Problem]
    groups: Callable[[list[Problem]], list | None]  # of equal answers
    samples: list[Problem]


def run(setup: Setup, cfg: Config) -> dict:
    verifiers = []
    with contextlib.closing(grading.Checker(cfg.checker if cfg.checker in grading.RULES else "string")) as checker:
        for k, name in enumerate(setup.checkpoints):
            arena = open_arena(setup, cfg, name, checker)
            verifiers.append(search_all(setup, cfg, arena, open_scorer(setup, name), k))
    return {"verifiers": verifiers, **{key: getattr(cfg, key) for key in ("choice", "stop_at", "samples")}}


def open_arena(setup: Setup, cfg: Config, name: str, checker) -> Arena:
    by_task, data_cfg = cfg.checker not in grading.RULES, None
    if cfg.questions is None:
        own = next((x for x in (name, *setup.checkpoints) if is_run(x)), name)
        data_cfg, _ = data_of(setup, own)
        if not isinstance(data_cfg, TaskData):
            raise InputError(
                f"questions: the data {data_cfg.name} has no problems to draw; name a file, questions=FILE"
            )
        task, checkers = tasks.TASKS[data_cfg.name], ("task", data_cfg.name, *grading.RULES)
        expect(
            cfg.checker in checkers, "checker", cfg.checker, f"{', '.join(checkers)} for problems of {data_cfg.name}"
        )
        texts = tasks.make_problems(task, data_cfg.task, cfg.problems, "test", setup.cfg.seed + 1)
        questions = [Question(str(i), text) for i, text in enumerate(texts)]
    else:
        expect(cfg.policy, "policy", cfg.policy, "the policy that searches the problems of questions=FILE")
        questions = list(itertools.islice(read_questions(cfg.questions), cfg.problems))
        expect(questions, "questions", cfg.questions, "a file with problems")
        if not by_task and (lacking := next((q for q in questions if q.answer is None), None)):
            raise InputError(f"{cfg.questions}: problem {lacking.id}: has no right answer to check by")
        task = tasks.of_files([cfg.questions], cfg.checker) if by_task else None
    law, path = cfg.sampling, cfg.policy
    if path is None:
        law, path = Sampling(data_cfg.temperature, None, 1.0, data_cfg.max_tokens), data_cfg.policy
    policy = open_policy(path, "best", cfg.policy_format, "float32", law, cfg.batch_rows, cfg.server)
    grade = functools.partial(tasks.grade, task) if by_task else grading.grader(checker)
    if cfg.policy is None:
        samples = list(policy_pool(data_cfg, [q.problem for q in questions], cfg.samples, setup.cfg.seed))
    else:
        path = setup.folder / "samples.jsonl"
        draw_pool(path, policy, questions, cfg.samples, setup.cfg.seed, grade, len(questions))
        samples = read_pool(path)
    groups = lambda pool: None if by_task else grading.group_pool(pool, cfg.checker)
    return Arena(questions, policy, grade, groups, samples)


def search_all(setup: Setup, cfg: Config, arena: Arena, scorer, k: int) -> dict:
    """The numbers of one verifier: every method at every budget."""
    alone = policy_alone(arena, setup.cfg.seed)
    is_value = scorer.objective == "orm" or scorer.label_kind in ("value", "advantage")
    how = cfg.aggregator or ("last" if is_value else "prod")
    right_P = alone.pop("right_P")
    bins = np.array_split(np.argsort(-right_P, kind="stable"), min(cfg.difficulties, len(right_P)))
    found, solved = [], {}
    rounds = list(itertools.product(cfg.budgets, cfg.methods))
    with cli.progress(f"searching ({Path(scorer.name).name})", len(rounds), "search") as bar:
        for budget, method in rounds:
            file = setup.folder / "searches" / f"{k}_{method}_{budget}.jsonl.gz"
            about, pool = search_once(
                setup, cfg, arena, scorer, how, method, budget, alone["tokens_per_solution"], file
            )
            solved[method, budget] = solved_by(pool, arena, how)
            tokens = budget * (1 if cfg.stop_at is None else cfg.first)
            planned = search.plan(method, tokens, alone["tokens_per_solution"], cfg)
            about = {"method": method, "budget": budget, "plan": planned} | about
            found.append(about | shares(solved[method, budget], bins, setup.cfg.seed))
            bar.update(1)
    spent = {row["budget"]: row["policy_tokens"] for row in found if row["method"] == "best_of_n"}
    for row in found:
        if row["method"] == "best_of_n" or row["budget"] not in spent:
            continue
        row["tokens_to_best_of_n"] = row["policy_tokens"] / spent[row["budget"]]
        if abs(row["tokens_to_best_of_n"] - 1) <= EQUAL_COST:
            pair = (solved[method, row["budget"]][cfg.choice][:, None] for method in (row["method"], "best_of_n"))
            row["minus_best_of_n"] = stats.paired_differences(*pair, setup.cfg.seed)[0]
    about = describe(scorer) | {"aggregator": how, "policy": arena.policy.name, "problems": len(arena.questions)}
    return about | alone | {"difficulty_pass_at_1": [float(right_P[own].mean()) for own in bins], "searches": found}


def policy_alone(arena: Arena, seed: int) -> dict:
    """What the policy's samples cost and solve without a verifier."""
    pool = pool_metrics.pool_arrays(arena.samples, arena.groups(arena.samples))
    tokens = search.tokens_per_solution(arena.policy, [q.problem for q in arena.questions], jax.random.key(seed))
    majority = None
    if pool.answer_PN is not None:
        majority = float(rerank.expectation(votes.vote(pool.answer_PN), pool.right_PN).mean())
    right_P = pool.right_PN.sum(1) / pool.present_PN.sum(1)
    return {
        "tokens_per_solution": tokens,
        "pass_at_1": float(right_P.mean()),
        "pass_at_1_interval": np.ravel(stats.mean_interval(right_P[:, None], seed)).tolist(),
        "pass_at_n": float(pool.right_PN.any(1).mean()),
        "majority": majority,
        "right_P": right_P,
    }


def search_once(
    setup: Setup, cfg: Config, arena: Arena, scorer, how: str, method: str, budget: int, per_solution: float, file: Path
):
    """(costs, the graded pool) of one method at one budget; read where an interrupted evaluation has it."""
    done = file.with_name(file.name.removesuffix(".jsonl.gz") + ".json")
    if done.exists():
        return run_folder.read_json(done), read_pool(file)
    questions, start = arena.questions, time.perf_counter()
    before = getattr(scorer, "stats", None) and scorer.stats.computed
    state = SearchState(
        arena.policy, scorer, [q.problem for q in questions], how, cfg.max_steps, jax.random.key(setup.cfg.seed)
    )
    search.search(state, method, budget, per_solution, cfg)
    about = {
        "policy_tokens": float(state.tokens_P.mean()),
        "policy_tokens_05_95": np.quantile(state.tokens_P, [0.05, 0.95]).tolist(),  # over problems
        "verifier_tokens": None if before is None else (scorer.stats.computed - before) / len(questions),
        "seconds": time.perf_counter() - start,
        "finished": float(np.mean([len(state.finished(p)) for p in range(len(questions))])),
        "unfinished_problems": int((~state.has_finished_P).sum()),
    }
    pool = state.pool([q.id for q in questions], [q.answer for q in questions], "search")
    pool = [arena.grade(problem) for problem in pool]
    write_pool(file, pool)
    run_folder.write_json(done, about)
    return about, pool


def solved_by(pool: list[Problem], arena: Arena, how: str) -> dict[str, np.ndarray]:
    """{rule of the final choice: share solved of each problem}: best score, weighted vote, any of what was found."""
    arrays = pool_metrics.pool_arrays(pool, arena.groups(pool))
    step_PNT, mask_PNT, unit = pool_metrics.log_scores(arrays, "search", arrays.unit("search", "logit"))
    score_PN, present_PN = rerank.aggregate(step_PNT, mask_PNT, how, unit=unit), arrays.present_PN
    N = np.array([present_PN.shape[1]])
    best_P1 = rerank.best_of_n(score_PN, arrays.right_PN, arrays.eligible_PN, present_PN, N)
    solved = {"best": np.asarray(best_P1)[:, 0], "oracle": (arrays.right_PN * arrays.eligible_PN).max(1)}
    solved["vote"] = np.zeros(len(pool))  # where a budget pays for no answer at all nobody has a vote
    if arrays.answer_PN is not None:
        law_PN = votes.vote(arrays.answer_PN, score_PN, present_PN)
        solved["vote"] = np.asarray(rerank.expectation(law_PN, arrays.right_PN))
    return solved


def shares(solved: dict, bins, seed: int) -> dict:
    table = {}
    for rule, right_P in solved.items():
        by = [{"share": float(own.mean()), "interval": interval(own, seed)} for own in (right_P[own] for own in bins)]
        table[rule] = {"share": float(right_P.mean()), "interval": interval(right_P, seed), "by_difficulty": by}
    return table


def interval(right_P, seed: int) -> list[float]:
    return np.ravel(stats.mean_interval(right_P[:, None], seed)).tolist()


def show(results: dict):
    rule = results["choice"]
    name = {"best": "best score", "vote": "weighted vote"}[rule]
    for v in results["verifiers"]:
        show_policy(v, results["samples"])
        found = {(s["method"], s["budget"]): s for s in v["searches"]}
        methods, budgets = (list(dict.fromkeys(names)) for names in zip(*found, strict=True))
        print(f"solved      {f'by {name}, at a budget of policy tokens':<44}" + "".join(f"{b:>7}" for b in budgets))
        for method in methods:
            shares = "".join(f"{found[method, b][rule]['share']:>7.3f}" for b in budgets)
            spent = [found[method, b]["policy_tokens"] / b for b in budgets]
            print(f"  {f'{method}, spent {min(spent):.2f} to {max(spent):.2f} of it':<54}{shares}")
        if unfinished := sum(s["unfinished_problems"] for s in v["searches"]):
            print(f"  {unfinished} problems of all searches together have no finished solution, and count as wrong")


def show_policy(v: dict, samples: int):
    print(f"verifier    {v['verifier']} ({v['label_kind']}), value of a prefix: {v['aggregator']} of its step scores")
    majority = "" if v["majority"] is None else f", majority {v['majority']:.3f}"
    print(
        f"policy      {v['policy']}: {v['tokens_per_solution']:.1f} tokens a solution; {v['problems']} problems: "
        f"pass@1 {v['pass_at_1']:.3f}, pass@{samples} {v['pass_at_n']:.3f}{majority}"
    )


def detail(results: dict):
    """What stands in report.txt alone: what each search cost and found, its interval, and the test against best-of-n."""
    rule = results["choice"]
    for v in results["verifiers"]:
        print(f"searches    under {v['verifier']}")
        print(
            f"  {'budget':>6} {'method':<10} {'policy':>6} {'5-95 %':>10} {'verifier':>9} {'s':>6} {'found':>6}  {'best score':<25} {'vote':<6} any    best of n less; as"
        )
        for s in v["searches"]:
            cost = "" if s["verifier_tokens"] is None else f"{s['verifier_tokens']:.0f}"
            spread = "{:.0f}-{:.0f}".format(*s["policy_tokens_05_95"])
            line = f"  {s['budget']:>6} {s['method']:<10} {s['policy_tokens']:>6.0f} {spread:>10} {cost:>9} {s['seconds']:>6.1f} {s['finished']:>6.1f}"
            line += f"  {s['best']['share']:.3f} {plus_minus(s['best']['interval'])} "
            line += f"{s['vote']['share']:<6.3f}"
            d = s.get("minus_best_of_n")
            against = f"{d['difference']:+.3f} p={d['p']:.3f}" if d else ""
            if not d and "tokens_to_best_of_n" in s:
                against = f"at {s['tokens_to_best_of_n']:.2f} x"
            print(
                f"{line} {s['oracle']['share']:.3f}  {against:<15} {', '.join(f'{key}={x}' for key, x in s['plan'].items() if x)}"
            )
    print(f"drawn       by {rule}; policy and verifier: tokens a problem; best of n less: {rule}, paired over problems")
