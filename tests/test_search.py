"""Search: methods on problems with known answers, against exact and ignorant verifiers, by hand and against
mctx's own loop."""

import dataclasses
import json
import math
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest
from conftest import printed
from omegaconf import OmegaConf

import evaluate
from prm_jax import tasks
from prm_jax.data.pools import Candidate, Problem, read_pool
from prm_jax.evals.pool_arrays import pool_arrays
from prm_jax.evals.search import outcome
from prm_jax.formats import Format
from prm_jax.generate import search
from prm_jax.generate.mcts import mctx_step
from prm_jax.generate.sampling import Sampling
from prm_jax.generate.search import METHODS, Options, beam
from prm_jax.generate.search_state import SearchState
from prm_jax.launch.config import CONF, parse
from prm_jax.protocols import Continuation
from prm_jax.scorers import CheckerScorer, NoisyChecker
from prm_jax.tasks import chain
from prm_jax.tasks.chain import CHAIN

CFG = parse(OmegaConf.load(CONF / "data/chain.yaml").task, chain.Config, "data.task")
OPTIONS = Options(branch=4, ahead=1, block=12, simulations=32)
KEY = jax.random.key(0)
PLAIN, LAW = Format("plain", "\n"), Sampling(1.0, None, 1.0, 80)


@dataclasses.dataclass
class Solver:
    """The chain's noisy solver as a policy: a line, or all of them, as the language model writes them; a
    token a character."""

    format: Format = PLAIN
    name: str = "solver"
    sampling: Sampling = LAW

    def extend(self, prefixes, n, stop, key, numbers=None):
        numbers = range(len(prefixes)) if numbers is None else numbers
        of_key = jax.random.key_data(key).tolist()
        seed = lambda number, j: [*of_key, int(number), j]
        draw = lambda p, number, j: self.go_on(
            *p, stop, np.random.default_rng(seed(number, j * (self.sampling.temperature > 0)))
        )
        return [[draw(p, number, j) for j in range(n)] for p, number in zip(prefixes, numbers, strict=True)]

    def go_on(self, problem, steps, stop, rng):
        start, operations, _ = chain.parse_problem(problem)
        lines = [chain.parse_line(step) for step in steps]
        left = operations[sum(len(own) for _, own, _ in lines) :]
        value = lines[-1][2] if lines else start
        asked = "".join(f" {name}{operand}" for name, operand in left)
        new = CHAIN.solve(CFG, f"{value}{asked} mod7?", rng) if left else ()
        new = new[:1] if stop == "step" else new
        text, reason = "".join(f"{step}\n" for step in new), "stop" if stop == "step" and left else "eos"
        return Continuation(
            np.zeros(len(text) + (reason == "eos"), np.int32), np.zeros(len(text)), text, reason
        )


@dataclasses.dataclass
class Scripted:
    """A policy whose next steps are {steps so far: texts in turn}; after one in upper case it ends."""

    script: dict
    format: Format = PLAIN
    name: str = "script"
    sampling: Sampling = LAW

    def extend(self, prefixes, n, stop, key, numbers=None):
        return [[self.go_on(steps, j, stop) for j in range(n)] for _, steps in prefixes]

    def go_on(self, steps, j, stop):
        written = []
        while not (steps and steps[-1].isupper()) and not (written and stop == "step"):
            texts = self.script["".join(steps)]
            written.append(texts[0 if self.sampling.temperature == 0 else j % len(texts)])
            steps = (*steps, written[-1])
        reason = "eos" if steps[-1].isupper() else "stop"
        return Continuation(
            np.zeros(len(written) or 1, np.int32), np.zeros(1), "".join(f"{x}\n" for x in written), reason
        )


class Table:
    """A verifier whose score of a step is that of the steps up to it; `asked` keeps every call's rows."""

    unit, label_kind, objective, name = "logit", "correctness", "prm", "table"

    def __init__(self, logits):
        self.logits, self.asked = logits, []

    def score(self, rows):
        self.asked.append(list(rows))
        return [
            np.array([self.logits["".join(steps[: t + 1])] for t in range(len(steps))], np.float32)
            for _, steps in rows
        ]


class Ignorant:
    """Another random score for each row that it is asked, be the texts equal or not."""

    unit, label_kind, objective, name = "logit", "unknown", "prm", "ignorant"

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def score(self, rows):
        return [self.rng.standard_normal(len(steps)).astype(np.float32) for _, steps in rows]


class Counting:
    """Another verifier, whose rows are kept."""

    def __init__(self, scorer):
        self.scorer, self.unit, self.asked = scorer, scorer.unit, []

    def score(self, rows):
        self.asked.append(set(rows))
        return self.scorer.score(rows)


def problems_of(n):
    return tasks.make_problems(CHAIN, CFG, n, "test", 7)


def explore(scorer, problems, policy=None, how="prod"):
    return SearchState(policy or Solver(), scorer, problems, how, 20, KEY)


def solved(state):
    """Of each problem, whether its best finished solution is right."""
    best = [max(state.finished(p), key=lambda x: x.value) for p in range(len(state.problems))]
    return np.array([float(CHAIN.solved(q, x.steps)) for q, x in zip(state.problems, best, strict=True)])


@pytest.fixture(scope="module")
def alone():
    """(problems, right_PN of 64 samples, tokens of a sample)."""
    problems = problems_of(200)
    samples = Solver().extend([(p, ()) for p in problems], 64, "end", jax.random.key(1))
    lines = [[tuple(c.text.split()) for c in own] for own in samples]
    right = [[CHAIN.solved(p, steps) for steps in own] for p, own in zip(problems, lines, strict=True)]
    tokens = sum(len(c.ids_L) for own in samples for c in own)
    return problems, np.array(right, float), tokens / (200 * 64)


def run(scorer, alone, method, samples):
    problems, _, per_solution = alone
    state = explore(scorer, problems)
    search.search(state, method, samples * per_solution, per_solution, OPTIONS)
    return state


@pytest.mark.parametrize("method", ["beam", "dvts", "lookahead", "vgs", "mcts"])
def test_with_the_exact_checker_search_solves_more_than_as_many_samples(alone, method):
    state = run(CheckerScorer(CHAIN.step_labels), alone, method, 8)
    assert solved(state).mean() > alone[1][:, :8].max(1).mean()
    assert state.tokens_P.mean() <= 1.03 * 8 * alone[2]


@pytest.mark.parametrize("method", METHODS)
def test_a_random_scorer_changes_nothing(alone, method):
    """A method that were better or worse than one sample would have a bias of its own."""
    state = run(Ignorant(), alone, method, 8)
    gain_P = solved(state) - alone[1].mean(1)
    assert abs(gain_P.mean()) <= 3.3 * gain_P.std() / np.sqrt(len(gain_P))  # a level of .999
    assert 0.98 <= state.tokens_P.mean() / (8 * alone[2]) <= 1.03


@pytest.mark.parametrize("method", METHODS)
def test_every_method_spends_a_small_budget(alone, method):
    """60 tokens are two solutions of this policy: the width is a small number, and a beam's cost far from its
    mean. The test above has a large one."""
    problems = alone[0][:80]
    per_solution = search.tokens_per_solution(Solver(), problems, KEY)
    state = explore(CheckerScorer(CHAIN.step_labels), problems)
    search.search(state, method, 60, per_solution, OPTIONS)
    assert 0.98 <= state.tokens_P.mean() / 60 <= 1.02


@pytest.mark.parametrize("method", METHODS)
def test_a_problem_is_searched_alike_alone_and_among_others_and_no_text_is_scored_twice(method):
    problems, arguments = problems_of(6), METHODS[method].plan(4, OPTIONS)
    scorer = Counting(CheckerScorer(CHAIN.step_labels))
    among = explore(scorer, problems)
    METHODS[method].run(among, range(6), **arguments)
    texts = [row for asked in scorer.asked for row in asked]
    assert len(texts) == len(set(texts)) > 15
    for p in (0, 5):
        alone = explore(CheckerScorer(CHAIN.step_labels), problems)
        METHODS[method].run(alone, [p], **arguments)
        assert [(x.steps, x.value) for x in alone.nodes[p]] == [(x.steps, x.value) for x in among.nodes[p]]
        assert alone.tokens_P[p] == among.tokens_P[p] == alone.tokens_P.sum()


SCRIPT = {"": "ab", "a": "cd", "b": "ef", "ac": "GH", "ad": "GH", "be": "GH", "bf": "GH"}
LOGITS = {"a": 1, "b": 2, "ac": 5, "ad": -5, "be": 0, "bf": 1, "acG": 0, "acH": 3, "adG": -1, "adH": 0, "beG": 1, "beH": 2, "bfG": 0, "bfH": 4}  # fmt: skip


def texts(nodes):
    return ["".join(x.steps) for x in nodes]


def test_equal_texts_are_one_beam_and_a_beam_keeps_its_width():
    """a is likely and scores a little more than b, under which the right answer R lies, not seen by two a."""
    script = {"": "aaab", "a": "cW", "b": "dR", "ac": "WW", "bd": "WW"}
    logits = {"a": 2, "b": 1, "ac": 1, "aW": 0, "bd": 0, "bR": 5, "acW": 0, "bdW": 0}
    state = explore(Table(logits), ["?"], Scripted(script), "last")
    beam(state, [0], width=4, branch=2)
    assert max(state.finished(0), key=lambda x: x.value).steps == ("b", "R")
    assert texts(state.nodes[0])[4:8] == ["ac", "aW", "bd", "bR"]  # both were kept, and R left the beam
    alone = explore(Table(logits), ["?"], Scripted(script | {"": "aaaa"}), "last")
    beam(alone, [0], width=4, branch=2)
    # One text left: all of the width is its own.
    assert texts(alone.nodes[0]) == ["a"] * 4 + ["ac", "aW"] * 2 + ["acW"] * 4


def random_tree(rng, depth=4):
    """(script, {path: whether a right leaf lies at or below it}) of a tree whose branches may end early."""
    script, holds = {}, {}

    def grow(path):
        script[path] = "".join(
            x.upper() if len(path) == depth - 1 or rng.random() < 0.2 else x for x in "abc"
        )
        for child in (path + x for x in script[path]):
            holds[child] = bool(rng.random() < 0.02) if child[-1].isupper() else grow(child)
        return any(holds[path + x] for x in script[path])

    return script, {"": grow("")} | holds


@pytest.mark.parametrize("apart", [False, True])
def test_beams_of_random_trees_are_those_of_the_definition(apart):
    """A beam keeps the best two of all open children, each of two subtrees its best one to the end."""
    rng = np.random.default_rng(1)
    for _ in range(40):
        script, holds = random_tree(rng)
        logits = {path: float(x) for path, x in zip(holds, rng.permutation(len(holds)), strict=True)}
        state = explore(Table(logits), ["?"], Scripted(script), "last")
        beam(state, [0], width=6, branch=3, apart=apart)
        finished, beams = set(), [""]
        while beams:
            children = [path + x for path in beams for x in script[path]]
            finished |= {path for path in children if path[-1].isupper()}
            ranked = sorted(children, key=lambda path: -logits[path])
            ranked = ranked[:1] if apart else [path for path in ranked if path[-1].islower()][:2]
            beams = [path for path in ranked if path[-1].islower()]
        assert {*texts(state.finished(0))} == finished


def test_lookahead_chooses_by_what_follows_and_pays_for_it():
    """Greedy play goes a, c (5) and b, e (0): a is better two steps on, though b scores higher."""
    scorer = Table(LOGITS)
    state = explore(scorer, ["?"], Scripted(SCRIPT), "last")
    beam(state, [0], width=2, branch=2, ahead=1)
    assert texts(state.nodes[0]) == ["a", "b", "ac", "ad", "acG", "acH"]
    assert state.nodes[0][0].value == pytest.approx(
        math.log(1 / (1 + math.exp(-1)))
    )  # its own score, not the later one
    assert state.tokens_P[0] == 6 + 2 + 2


def test_the_tree_grown_by_single_visits_is_that_of_mctx():
    """A random game of depth 4: values and priors of every state from a table that mctx can read under
    jit."""
    P, K, simulations, states = 5, 3, 12, 1 + 3 + 9 + 27 + 81
    rng = np.random.default_rng(0)
    prior = rng.normal(size=(P, states, K)).astype(np.float32)
    value = rng.random((P, states)).astype(np.float32)
    at_end = np.arange(states) >= 40
    reward = np.where(at_end, rng.random((P, states)), 0).astype(np.float32)
    root = mctx.RootFnOutput(prior_logits=prior[:, 0], value=value[:, 0], embedding=np.zeros(P, np.int32))

    def output(state_P):
        own, rows = np.minimum if isinstance(state_P, np.ndarray) else jnp.minimum, np.arange(P)
        state_P, known = own(state_P, states - 1), state_P < states
        return (
            prior[rows, state_P],
            reward[rows, state_P] * known,
            (~at_end)[state_P] * known * 1.0,
            value[rows, state_P] * known,
        )

    prior, reward, at_end, value = (jnp.asarray(x) for x in (prior, reward, at_end, value))

    def recurrent(params, key, action_P, state_P):
        child_P = 3 * state_P + 1 + action_P
        prior_PK, reward_P, discount_P, value_P = output(child_P)
        return mctx.RecurrentFnOutput(
            reward=reward_P, discount=discount_P, prior_logits=prior_PK, value=value_P
        ), child_P

    def loop(low, high, body, start):  # the same random numbers: of each simulation its own
        step = lambda at, x: body(at, (jax.random.fold_in(KEY, at), x[1]))
        return jax.lax.fori_loop(low, high, step, start)

    more = {"loop_fn": loop, "dirichlet_fraction": 0.0}
    search_tree = lambda: mctx.muzero_policy((), KEY, root, recurrent, simulations, **more).search_tree
    whole = jax.jit(search_tree)()
    tree, state_PN = None, np.zeros((P, simulations + 1), int)
    for at in range(simulations):
        nothing = np.zeros((P, K), np.float32), *np.zeros((3, P), np.float32)
        if tree is None:
            tree = mctx_step(root, None, at, nothing, KEY, simulations=simulations)
        seen = mctx_step(root, tree, at, nothing, KEY, simulations=simulations)
        parent_P = np.asarray(seen.parents[:, at + 1])
        action_P = np.asarray(seen.action_from_parent[:, at + 1])
        state_PN[:, at + 1] = 3 * state_PN[np.arange(P), parent_P] + 1 + action_P
        new_node = output(jnp.asarray(state_PN[:, at + 1]))
        tree = mctx_step(root, tree, at, new_node, KEY, simulations=simulations)
    for name in ("parents", "action_from_parent", "children_visits"):
        assert np.array_equal(getattr(tree, name), getattr(whole, name)), name
    np.testing.assert_allclose(tree.node_values, whole.node_values, rtol=1e-6)


def test_what_is_cut_never_wins_and_what_is_open_is_completed():
    class Cut(Scripted):
        def go_on(self, steps, j, stop):
            ended = super().go_on(steps, j, stop)
            is_cut = steps[:1] == ("b",) or j == 1 and not steps
            return dataclasses.replace(ended, finish_reason="length") if is_cut else ended

    state = explore(Table(LOGITS), ["?", "?"], Cut(SCRIPT), "last")
    state.max_steps = 1
    beam(state, [0], width=2, branch=2)
    assert texts(state.nodes[0]) == ["a", "b"] and not state.finished(0)
    state.finish_unsolved([0, 1])  # b, which scores higher, is cut; the second problem was not searched
    assert texts(state.finished(0)) == ["acG"] == texts(state.finished(1))
    broken = explore(Table(LOGITS), ["?"], Cut({"": "bb", **{k: v for k, v in SCRIPT.items() if k}}), "last")
    beam(broken, [0], width=1, branch=1)
    broken.finish_unsolved([0])
    (problem,) = broken.pool([Problem("x", "?")], "search")
    assert [c.finished for c in problem.candidates] == [False]


def test_the_noisy_checker_has_the_faults_that_it_is_given():
    rows = [(p, (f"step {i}",)) for i in range(4000) for p in ("good", "bad")]
    judge = lambda problem, steps: [float(problem == "good")] * len(steps)
    noisy = NoisyChecker(judge, 0.0, 2.0, 0, "noisy")
    good, bad = np.array([x[0] for x in noisy.score(rows)]).reshape(-1, 2).T
    assert (good.mean() - bad.mean()) / good.std() == pytest.approx(2.0, abs=0.06)
    p = 1 / (1 + np.exp(-np.concatenate([good, bad])))  # log-odds mean what they say
    near = abs(p - 0.7) < 0.1
    assert np.repeat([1.0, 0.0], 4000)[near].mean() == pytest.approx(p[near].mean(), abs=0.05)
    blind = NoisyChecker(judge, 0.15, 8.0, 0, "blind")
    bad = np.array([x[0] for x in blind.score(rows)]).reshape(-1, 2)[:, 1]
    assert (bad > 0).mean() == pytest.approx(0.15, abs=0.02)
    assert blind.score(rows[::-1])[0] == blind.score(rows)[-1]
    # One that it takes for right is no error to it, and one that it sees makes what follows wrong.
    judge = lambda problem, steps: [float(step != "wrong") for step in steps]
    of = lambda missed: (
        NoisyChecker(judge, missed, 8.0, 0, "x").score([("p", ("right", "wrong", "right"))])[0] > 0
    )
    assert of(0.0).tolist() == [True, False, False] and of(1.0).tolist() == [True, True, True]
    value = NoisyChecker(judge, 0.0, 8.0, 0, "x", label_kind="value")
    assert (value.score([("p", ("right", "wrong", "right"))])[0] > 0).tolist() == [True, False, True]


SMALL = ("task=search", "data=chain", "problems=8", "samples=4", "branch=2")
SMALL += ("methods=[best_of_n,beam]", "budgets=[120]")


def test_every_final_choice_on_one_small_tree():
    """The score likes 5 best, two paths to 6 together weigh more; nothing ends in a 7."""
    paths = {("1", "5"): 2.0, ("2", "6"): 1.5, ("3", "6"): 1.5}

    def gold(answer: str) -> Problem:
        candidates = []
        for steps, logit in paths.items():
            scores = {"search": (9.0, logit)}
            candidates.append(Candidate(steps, steps[-1], steps[-1] == answer, True, scores))
        return Problem("x", "?", answer, tuple(candidates), {"search": "logit"}, policy_tokens=8)

    found = outcome([gold(x) for x in "567"], SimpleNamespace(arrays=pool_arrays), "last")
    expected = {"best": [1, 0, 0], "vote": [0, 1, 0]}
    assert {rule: found[rule]["solved"] for rule in expected} == expected
    assert (found["tokens"], found["unfinished_problems"]) == ([8] * 3, 0)


@pytest.mark.slow
def test_the_task_writes_pools_and_numbers_and_goes_on(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    asked = (*SMALL, "checkpoint=[checker,values]", f"hydra.run.dir={folder}")
    monkeypatch.delattr("prm_jax.evals.search.open_policy")  # the data's is open
    out = printed(evaluate.main, monkeypatch, *asked, cwd=tmp_path)
    assert "kept in" in out and not (folder / "samples.jsonl").exists()  # another search takes the same
    results = json.loads((folder / "results.json").read_text())
    assert [v["verifier"] for v in results["verifiers"]] == ["checker", "values"]
    assert [v["aggregator"] for v in results["verifiers"]] == ["prod", "last"]
    first = results["verifiers"][0]["searches"]
    assert [(s["method"], s["budget"]) for s in first] == [("best_of_n", 120), ("beam", 120)]
    product = lambda c: -np.logaddexp(0, -np.array(c.step_scores["search"])).sum()
    for s in first:
        pool = read_pool(folder / "searches" / f"0_{s['method']}_{s['budget']}.jsonl.gz")
        best = lambda p: [
            c.correct for c in p.candidates if product(c) > max(map(product, p.candidates)) - 1e-3
        ]
        assert s["best"]["share"] == pytest.approx(np.mean([np.mean(best(p)) for p in pool]), abs=1e-6)
        assert len(s["best"]["solved"]) == 8 and 0.9 < s["policy_tokens"] / s["budget"] < 1.1
    assert first[1]["best"]["share"] > results["verifiers"][0]["pass_at_1"]
    (shown,) = re.findall(r"^  beam +([.\d]+) +\d+$", out, re.MULTILINE)[:1]
    assert shown == f"{first[1]['best']['share']:.3f}"
    assert (folder / "figures" / "search.png").exists()
    kept, tables = (folder / "searches" / "0_beam_120.jsonl.gz").stat().st_mtime_ns, results["verifiers"]
    (folder / "searches" / "1_beam_120.jsonl.gz").write_bytes(b"")  # stopped there, as process 1 has it
    (folder / "results.json").unlink()
    printed(evaluate.main, monkeypatch, f"resume={folder}", cwd=tmp_path)
    again = json.loads((folder / "results.json").read_text())["verifiers"]
    assert (folder / "searches" / "0_beam_120.jsonl.gz").stat().st_mtime_ns == kept
    assert again == tables
