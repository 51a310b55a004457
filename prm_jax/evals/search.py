"""task=search: share of problems solved against policy tokens, by method, under each verifier."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import jax
import numpy as np

from prm_jax import rerank, tasks, votes
from prm_jax.data import grading
from prm_jax.data.pools import Problem, read_pool, write_pool
from prm_jax.data.questions import read_questions
from prm_jax.evals.pool_arrays import Pool, log_scores, pool_arrays
from prm_jax.evals.setup import Setup
from prm_jax.evals.tables import show_table
from prm_jax.evals.task import Task
from prm_jax.evals.verifiers import describe, open_scorer, task_data
from prm_jax.generate import search
from prm_jax.generate.policies import PolicyFormat, Server, show_prompt
from prm_jax.generate.pools import draw_pool, require_format, right_answers
from prm_jax.generate.samples import open_lab_policy, policy_pool
from prm_jax.generate.sampling import Sampling, open_policy
from prm_jax.generate.search_state import SearchState
from prm_jax.launch.config import Count, Rule, expect, one_of
from prm_jax.launch.hosts import share_file
from prm_jax.launch.progress import progress
from prm_jax.protocols import Policy
from prm_jax.tasks import checkers

CHOICES = {"best": "best score", "vote": "weighted vote"}
METHODS = Rule(lambda x: x and {*x} <= search.METHODS.keys(), f"a list of {', '.join(search.METHODS)}")
BUDGETS = Rule(lambda x: x and all(type(n) is int and n > 0 for n in x), "a list of whole numbers of tokens")


@dataclasses.dataclass(frozen=True)
class Config(search.Options):
    methods: Annotated[list, METHODS]
    budgets: Annotated[list, BUDGETS]
    problems: Count
    input: str | None
    columns: dict[str, str] | None
    policy: str | None
    policy_format: PolicyFormat
    samples: Count
    checker: Annotated[str, checkers.checker_rule(checkers.CHECKERS)] | None
    aggregator: Annotated[str, one_of(rerank.AGGREGATORS)] | None
    choice: Annotated[str, one_of(CHOICES)]
    max_steps: Count
    sampling: Sampling
    batch_rows: Count
    server: Server


@dataclasses.dataclass(frozen=True)
class SearchInputs:
    """The problems of a search, the policy that writes, and its samples without a verifier."""

    questions: list[Problem]
    policy: Policy
    grader: checkers.Grader
    samples: list[Problem]

    def arrays(self, pool: list[Problem]) -> Pool:
        return pool_arrays(pool, grading.group_pool(pool, self.grader.checker))


class Search(Task):
    Config = Config
    drawing = "search"

    def run(self, setup: Setup) -> dict:
        inputs = functools.cache(lambda: search_inputs(setup, self.cfg))
        verifiers = [search_all(setup, self.cfg, inputs, k) for k in range(len(setup.checkpoints))]
        return {"verifiers": verifiers, "choice": self.cfg.choice}

    def show(self, results: dict):
        rule = results["choice"]
        for v in results["verifiers"]:
            print(f"verifier    {v['verifier']}, a prefix by the {v['aggregator']} of its step scores")
            alone = {name: v[name] for name in ("pass_at_1", "pass_at_n", "majority", "tokens_per_solution")}
            show_table("policy alone", {v["policy"]: alone}, digits=3)
            rows = {}
            for s in v["searches"]:  # the mean of the policy tokens that were spent, beside the share solved
                row = rows.setdefault(s["method"], {})
                row[f"at {s['budget']}"] = s[rule]["share"]
                row[f"{s['budget']}: spent"] = f"{s['policy_tokens']:.0f}"
            show_table(f"solved by {CHOICES[rule]}, at a budget of policy tokens", rows, digits=3)
            if unfinished := sum(s["unfinished_problems"] for s in v["searches"]):
                print(f"  {unfinished} problems of all searches have no finished solution: counted as wrong")

    def metric(self, results: dict) -> float | None:
        """The largest share solved under the first verifier."""
        rule = results["choice"]
        return max(s[rule]["share"] for s in results["verifiers"][0]["searches"])


def search_inputs(setup: Setup, cfg: Config) -> SearchInputs:
    """The problems of `input`, or fresh ones of an embedded task, whose own policy writes for policy=null."""
    if cfg.input:
        expect(cfg.policy, "policy", cfg.policy, "the policy that searches the problems of input=FILE")
        questions = read_questions(cfg.input, checkers.is_own(cfg.checker), cfg.columns)
        questions = list(itertools.islice(questions, cfg.problems))
        grader = checkers.open_grader(cfg.checker, [cfg.input])
        right_answers(cfg.input, questions, grader.checker)  # an error now, not after hours of samples
    else:
        expect(cfg.columns is None, "columns", cfg.columns, "null without input=FILE")
        data_cfg = task_data(setup)
        task = tasks.find_task(data_cfg.name)
        is_own_checker = cfg.checker in (None, "task", task.name)
        expect(is_own_checker, "checker", cfg.checker, f"task: {task.name} checks its problems itself")
        texts = tasks.make_problems(task, data_cfg.task, cfg.problems, "test", setup.cfg.seed + 1)
        questions = [Problem(str(i), text) for i, text in enumerate(texts)]
        grader = checkers.task_grader(task)
    if cfg.policy is None:
        policy = open_lab_policy(data_cfg.policy, data_cfg.temperature, data_cfg.max_tokens)
        require_format(policy, cfg.policy_format, "policy_format")
        samples = list(policy_pool(data_cfg, texts, cfg.samples, setup.cfg.seed))
        policy = dataclasses.replace(policy, batch_rows=cfg.batch_rows)
        return SearchInputs(questions, policy, grader, samples)
    fmt = cfg.policy_format.whole()
    policy = open_policy(cfg.policy, "best", fmt, "float32", cfg.sampling, cfg.batch_rows, cfg.server)
    require_format(policy, cfg.policy_format, "policy_format")
    path = setup.folder / "samples.jsonl"
    show_prompt(policy, questions[0].problem)
    draw_pool(path, policy, questions, cfg.samples, setup.cfg.seed, grader.grade, len(questions))
    return SearchInputs(questions, policy, grader, read_pool(path))


def search_all(setup: Setup, cfg: Config, get_inputs: Callable[[], SearchInputs], k: int) -> dict:
    """The numbers of verifier k: every method at every budget."""
    scorer = open_scorer(setup, setup.checkpoints[k])  # before the samples, which may take hours
    inputs = get_inputs()
    seed = setup.cfg.seed
    samples = inputs.arrays(inputs.samples)
    right_P = samples.right_PN.sum(1) / samples.present_PN.sum(1)
    problems = [q.problem for q in inputs.questions]
    size = search.tokens_per_solution(inputs.policy, problems, jax.random.key(seed))
    aggregator = cfg.aggregator or rerank.default_aggregator(scorer, "search")
    searches = []
    folder = setup.folder / "searches"
    folder.mkdir(exist_ok=True)
    rounds = list(itertools.product(cfg.budgets, cfg.methods))
    title = f"searching ({Path(scorer.name).name})"
    for budget, method in progress(title, len(rounds), "search", iterable=rounds):
        file = folder / f"{k}_{method}_{budget}.jsonl.gz"
        share_file(file)  # which is empty where no process has it
        if not file.exists() or not file.stat().st_size:
            key = jax.random.key(seed)
            state = SearchState(inputs.policy, scorer, problems, aggregator, cfg.max_steps, key)
            search.search(state, method, budget, size, cfg)
            write_pool(file, map(inputs.grader.grade, state.pool(inputs.questions, "search")))
        about = {"method": method, "budget": budget}
        searches.append(about | outcome(read_pool(file), inputs, aggregator))
    majority = np.nan
    if samples.answer_PN is not None:
        majority = float(rerank.expectation(votes.vote(samples.answer_PN), samples.right_PN).mean())
    return describe(scorer) | {
        "aggregator": aggregator,
        "policy": inputs.policy.name,
        "problems": len(problems),
        "tokens_per_solution": size,
        "pass_at_1": float(right_P.mean()),
        "right": right_P.tolist(),
        "pass_at_n": float(samples.right_PN.any(1).mean()),
        "majority": majority,
        "searches": searches,
    }


def outcome(pool: list[Problem], inputs: SearchInputs, aggregator: str) -> dict:
    """The policy tokens of a search's pool, and what it solves by the rules of CHOICES: the share, and the
    chance of each problem."""
    arrays = inputs.arrays(pool)
    step_PNT, mask_PNT, unit = log_scores(arrays, "search", arrays.unit("search", "logit"))
    score_PN = rerank.aggregate(step_PNT, mask_PNT, aggregator, unit=unit)
    size = np.array([arrays.present_PN.shape[1]])
    best_P1 = rerank.best_of_n(score_PN, arrays.right_PN, arrays.eligible_PN, arrays.present_PN, size)
    vote_P = np.zeros(len(pool))  # where a budget pays for no answer at all nobody has a vote
    if arrays.answer_PN is not None:
        weight_PN = votes.vote(arrays.answer_PN, score_PN, arrays.present_PN)
        vote_P = np.asarray(rerank.expectation(weight_PN, arrays.right_PN))
    tokens = [problem.policy_tokens for problem in pool]
    unfinished = sum(not any(c.finished for c in problem.candidates) for problem in pool)
    row = {"policy_tokens": float(np.mean(tokens)), "tokens": tokens, "unfinished_problems": unfinished}
    for rule, x_P in {"best": np.asarray(best_P1)[:, 0], "vote": vote_P}.items():
        row[rule] = {"share": float(x_P.mean()), "solved": x_P.tolist()}
    return row
