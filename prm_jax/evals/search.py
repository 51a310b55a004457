"""task=search: share of problems solved against policy tokens, by method and difficulty, under each
verifier."""

import contextlib
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import jax
import numpy as np

from prm_jax import InputError, rerank, stats, tasks, votes
from prm_jax.data import grading
from prm_jax.data.pools import Problem, read_pool, write_pool
from prm_jax.data.questions import Question, read_questions
from prm_jax.data.splits import TaskData
from prm_jax.evals.pool_arrays import Pool, log_scores, pool_arrays
from prm_jax.evals.setup import Setup
from prm_jax.evals.tables import show_table
from prm_jax.evals.task import Task
from prm_jax.evals.verifiers import data_of, describe, is_run, open_scorer, own_runs
from prm_jax.formats import Format
from prm_jax.generate import search
from prm_jax.generate.policies import Server
from prm_jax.generate.samples import policy_pool
from prm_jax.generate.sampling import Policy, Sampling, draw_pool, open_policy
from prm_jax.generate.search_state import SearchState
from prm_jax.launch import run_folder
from prm_jax.launch.config import Count, NotNegative, Rule, expect, one_of
from prm_jax.launch.progress import progress
from prm_jax.tasks.checkers import (
    CHECKERS,
    Grader,
    checker_rule,
    choose_checker,
    is_own,
    open_grader,
    task_grader,
)

CHOICES = {"best": "best score", "vote": "weighted vote", "policy": "best score + w log p of the policy"}
METHODS = Rule(lambda x: x and {*x} <= search.METHODS.keys(), f"a list of {', '.join(search.METHODS)}")
BUDGETS = Rule(lambda x: x and all(type(n) is int and n > 0 for n in x), "a list of whole numbers of tokens")


@dataclasses.dataclass(frozen=True)
class Config(search.Options):
    methods: Annotated[list, METHODS]
    budgets: Annotated[list, BUDGETS]
    problems: Count
    input: str | None
    policy: str | None
    policy_format: Format
    samples: Count
    difficulties: Count
    checker: Annotated[str, checker_rule(CHECKERS)] | None
    aggregator: Annotated[str, one_of(rerank.AGGREGATORS)] | None
    choice: Annotated[str, one_of(CHOICES)]
    policy_weight: NotNegative
    max_steps: Count
    sampling: Sampling
    batch_rows: Count
    server: Server


@dataclasses.dataclass(frozen=True)
class SearchInputs:
    """The problems of a search, the policy that writes, and its samples without a verifier."""

    questions: list[Question]
    policy: Policy
    grader: Grader
    samples: list[Problem]

    def arrays(self, pool: list[Problem]) -> Pool:
        rule = self.grader.checker  # groups equal answers; else these are equal as texts
        return pool_arrays(pool, grading.group_pool(pool, rule) if rule in grading.RULES else None)


class Search(Task):
    Config = Config

    def run(self, setup: Setup) -> dict:
        cfg, verifiers = self.cfg, []
        for k, name in enumerate(setup.checkpoints):
            inputs = file_inputs(setup, cfg) if cfg.input else task_inputs(setup, cfg, name)
            with contextlib.closing(inputs.grader):
                verifiers.append(search_all(setup, cfg, inputs, open_scorer(setup, name), k))
        return {"verifiers": verifiers, "choice": cfg.choice, "stop_at": cfg.stop_at, "samples": cfg.samples}

    def show(self, results: dict):
        rule = results["choice"]
        for v in results["verifiers"]:
            value = f"value of a prefix: {v['aggregator']} of its step scores"
            print(f"verifier    {v['verifier']} ({v['label_kind']}), {value}")
            solved = f"pass@1 {v['pass_at_1']:.3f}, pass@{results['samples']} {v['pass_at_n']:.3f}"
            if v["majority"] is not None:
                solved += f", majority {v['majority']:.3f}"
            tokens = f"{v['tokens_per_solution']:.1f} tokens a solution"
            print(f"policy      {v['policy']}: {tokens}; {v['problems']} problems: {solved}")
            rows = {}
            for s in v["searches"]:  # the mean of the policy tokens that were spent, beside the share solved
                row = rows.setdefault(s["method"], {})
                row |= {
                    f"at {s['budget']}": s[rule]["share"],
                    f"{s['budget']}: spent": f"{s['policy_tokens']:.0f}",
                }
            show_table(f"solved by {CHOICES[rule]}, at a budget of policy tokens", rows, digits=3)
            if unfinished := sum(s.get("unfinished_problems", 0) for s in v["searches"]):
                print(
                    f"  {unfinished} problems of all searches have no finished solution, and count as wrong"
                )

    def figures(self, results: dict, folder: Path) -> list[Path]:
        from prm_jax.figures.search import search_figures

        return search_figures(results, folder, CHOICES[results["choice"]])

    def metric(self, results: dict) -> float | None:
        """The largest share solved under the first verifier."""
        rule = results["choice"]
        return max(s[rule]["share"] for s in results["verifiers"][0]["searches"])


def task_inputs(setup: Setup, cfg: Config, name: str) -> SearchInputs:
    """Fresh problems of the embedded task of a verifier or of `data`."""
    data_cfg, _ = data_of(setup, name if is_run(name) else next(iter(own_runs(setup)), name))
    if not isinstance(data_cfg, TaskData):
        raise InputError(f"input: the data {data_cfg.name} has no problems to draw; name a file, input=FILE")
    checker, task, seed = cfg.checker or "task", tasks.find_task(data_cfg.name), setup.cfg.seed
    known = ("task", data_cfg.name, *grading.RULES)
    expect(checker in known, "checker", checker, f"{', '.join(known)} for problems of {data_cfg.name}")
    grader = open_grader(checker) if checker in grading.RULES else task_grader(task)
    texts = tasks.make_problems(task, data_cfg.task, cfg.problems, "test", seed + 1)
    questions = [Question(str(i), text) for i, text in enumerate(texts)]
    if cfg.policy:
        return named_policy(setup, cfg, questions, grader)
    sampling = Sampling(data_cfg.temperature, None, 1.0, data_cfg.max_tokens)
    samples = list(policy_pool(data_cfg, texts, cfg.samples, seed))
    return SearchInputs(questions, writer(cfg, data_cfg.policy, sampling), grader, samples)


def file_inputs(setup: Setup, cfg: Config) -> SearchInputs:
    """The problems of the key `input`, under the policy of the key `policy`."""
    expect(cfg.policy, "policy", cfg.policy, "the policy that searches the problems of input=FILE")
    checker = choose_checker(cfg.checker, [cfg.input])
    questions = list(itertools.islice(read_questions(cfg.input, is_own(checker)), cfg.problems))
    expect(questions, "input", cfg.input, "a file with problems")
    for q in questions if checker in grading.RULES else ():
        expect(q.answer is not None, f"{cfg.input}: problem {q.id}", None, "a right answer to check by")
    return named_policy(setup, cfg, questions, open_grader(checker, [cfg.input]))


def named_policy(setup: Setup, cfg: Config, questions: list[Question], grader: Grader) -> SearchInputs:
    """The inputs with the policy of the key `policy`, whose samples are kept."""
    policy, path = writer(cfg, cfg.policy, cfg.sampling), setup.folder / "samples.jsonl"
    draw_pool(path, policy, questions, cfg.samples, setup.cfg.seed, grader.grade, len(questions))
    return SearchInputs(questions, policy, grader, read_pool(path))


def writer(cfg: Config, name: str, sampling: Sampling) -> Policy:
    return open_policy(name, "best", cfg.policy_format, "float32", sampling, cfg.batch_rows, cfg.server)


def search_all(setup: Setup, cfg: Config, inputs: SearchInputs, scorer, k: int) -> dict:
    """The numbers of one verifier: every method at every budget."""
    seed, (right_P, baseline) = setup.cfg.seed, policy_baseline(inputs, setup.cfg.seed)
    is_value = scorer.objective == "orm" or scorer.label_kind in ("value", "advantage")
    aggregator = cfg.aggregator or ("last" if is_value else "prod")
    bins = np.array_split(np.argsort(-right_P, kind="stable"), min(cfg.difficulties, len(right_P)))
    rounds, rows = list(itertools.product(cfg.budgets, cfg.methods)), []
    solved, tokens = {}, {}
    title = f"searching ({Path(scorer.name).name})"
    for budget, method in progress(title, len(rounds), "search", iterable=rounds):
        file = setup.folder / "searches" / f"{k}_{method}_{budget}.jsonl.gz"
        size = baseline["tokens_per_solution"]
        costs, pool = search_once(seed, cfg, inputs, scorer, aggregator, method, budget, size, file)
        solved[method, budget] = solved_by(pool, inputs, aggregator, cfg.policy_weight)
        tokens[method, budget] = np.array(costs.pop("tokens_by_problem"))
        rows.append({"method": method, "budget": budget, **costs})
    for budget in cfg.budgets if len(cfg.methods) > 1 and min(map(len, bins)) > 1 else ():
        of_methods = [solved[method, budget] for method in cfg.methods]
        choice_P = choose_by_difficulty(np.stack([by_rule[cfg.choice] for by_rule in of_methods]), bins)
        solved["optimal", budget] = {
            rule: np.choose(choice_P, [by_rule[rule] for by_rule in of_methods]) for rule in of_methods[0]
        }
        tokens_P = np.choose(choice_P, [tokens[method, budget] for method in cfg.methods])
        rows.append({"method": "optimal", "budget": budget, "policy_tokens": float(tokens_P.mean())})
    for row in rows:
        by_rule = solved[row["method"], row["budget"]]
        row |= {rule: shares(x_P, bins, seed) for rule, x_P in by_rule.items()}
    about = {"aggregator": aggregator, "policy": inputs.policy.name, "problems": len(inputs.questions)}
    difficulty = [float(right_P[members].mean()) for members in bins]
    return describe(scorer) | about | baseline | {"difficulty_pass_at_1": difficulty, "searches": rows}


def choose_by_difficulty(solved_MP: np.ndarray, bins: Sequence[np.ndarray]) -> np.ndarray:
    """Index of a method of M for each problem: compute-optimal choice (Snell et al. 2024). In each group of
    difficulty, an array of problems, every second problem gets the method that solves most of the others, and
    they get theirs."""
    choice_P = np.zeros(solved_MP.shape[1], int)
    for members in bins:
        for half, others in ((members[::2], members[1::2]), (members[1::2], members[::2])):
            choice_P[half] = solved_MP[:, others].mean(1).argmax()
    return choice_P


def policy_baseline(inputs: SearchInputs, seed: int) -> tuple[np.ndarray, dict]:
    """(the share of right samples of each problem, what the policy's samples cost and solve without a
    verifier)."""
    pool = inputs.arrays(inputs.samples)
    majority = None
    if pool.answer_PN is not None:
        majority = float(rerank.expectation(votes.vote(pool.answer_PN), pool.right_PN).mean())
    right_P, problems = pool.right_PN.sum(1) / pool.present_PN.sum(1), [q.problem for q in inputs.questions]
    return right_P, {
        "tokens_per_solution": search.tokens_per_solution(inputs.policy, problems, jax.random.key(seed)),
        "pass_at_1": float(right_P.mean()),
        "pass_at_1_interval": stats.mean_interval(right_P, seed).tolist(),
        "pass_at_n": float(pool.right_PN.any(1).mean()),
        "majority": majority,
    }


def search_once(
    seed: int,
    cfg: Config,
    inputs: SearchInputs,
    scorer,
    aggregator: str,
    method: str,
    budget: int,
    size,
    file: Path,
) -> tuple[dict, list[Problem]]:
    """(costs, the graded pool) of one method at one budget, read if it is done already. size: tokens of a
    solution."""
    done = file.with_name(file.name.replace(".jsonl.gz", ".json"))
    if done.exists():
        return run_folder.read_json(done, policy_tokens=float, tokens_by_problem=list), read_pool(file)
    questions, key = inputs.questions, jax.random.key(seed)
    scoring = getattr(scorer, "stats", None)
    before = scoring.computed if scoring else 0
    state = SearchState(inputs.policy, scorer, [q.problem for q in questions], aggregator, cfg.max_steps, key)
    search.search(state, method, budget, size, cfg)
    costs = {
        "policy_tokens": float(state.tokens_P.mean()),
        "tokens_by_problem": state.tokens_P.tolist(),
        "verifier_tokens": (scoring.computed - before) / len(questions) if scoring else None,
        "finished": float(np.mean([len(state.finished(p)) for p in range(len(questions))])),
        "unfinished_problems": int((~state.has_finished_P).sum()),
    }
    drawn = state.pool([q.id for q in questions], [q.answer for q in questions], "search")
    pool = [inputs.grader.grade(problem) for problem in drawn]
    write_pool(file, pool)
    run_folder.write_json(done, costs)
    return costs, pool


def solved_by(pool: list[Problem], inputs: SearchInputs, aggregator: str, policy_weight: float) -> dict:
    """{rule of the final choice: share solved of each problem}: of CHOICES, and any finished solution. Where
    the policy gives no log p of its texts the rule `policy` is the best score."""
    arrays = inputs.arrays(pool)
    step_PNT, mask_PNT, unit = log_scores(arrays, "search", arrays.unit("search", "logit"))
    score_PN, present_PN = rerank.aggregate(step_PNT, mask_PNT, aggregator, unit=unit), arrays.present_PN
    scores = {"best": score_PN, "policy": score_PN}
    if arrays.logp_PN is not None:
        scores["policy"] = rerank.with_reference(score_PN, arrays.logp_PN, policy_weight)
    golds = arrays.right_PN, arrays.eligible_PN, present_PN, np.array([present_PN.shape[1]])
    best = {rule: np.asarray(rerank.best_of_n(x_PN, *golds))[:, 0] for rule, x_PN in scores.items()}
    vote_P = np.zeros(len(pool))  # where a budget pays for no answer at all nobody has a vote
    if arrays.answer_PN is not None:
        weight_PN = votes.vote(arrays.answer_PN, score_PN, present_PN)
        vote_P = np.asarray(rerank.expectation(weight_PN, arrays.right_PN))
    return best | {"oracle": (arrays.right_PN * arrays.eligible_PN).max(1), "vote": vote_P}


def shares(right_P, bins, seed: int) -> dict:
    """The share solved with its interval, over all problems and by difficulty."""

    def share(x_P) -> dict:
        return {"share": float(x_P.mean()), "interval": stats.mean_interval(x_P, seed).tolist()}

    return share(right_P) | {"by_difficulty": [share(right_P[members]) for members in bins]}
