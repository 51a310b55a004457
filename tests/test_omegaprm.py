"""OmegaPRM: bisection against a scan, the tree against one that is computed anew, problem by problem, from its definition."""

import json
from math import ceil, log2, sqrt

import pytest
from test_labeling import CFG, EXACT, GRADE, TREE, Oracle, Solver, solutions, write  # noqa: F401

from prm_jax.data import sources
from prm_jax.generate.labeling import roll_outs
from prm_jax.generate.omegaprm import MC, RollOut, TreeConfig, bisect, build_tree, run_batched


def test_bisection_finds_the_first_error_of_a_scan_in_log2_rounds():
    """E19: ceil(log2 M) prefixes with an exact oracle, all chains at once."""
    lengths, errors = zip(*[(T, e) for T in range(1, 18) for e in range(T)], strict=True)
    asked = []

    def complete(prefixes):
        asked.append(prefixes)
        return [kept <= errors[n] for n, kept in prefixes]

    def search(n):
        def is_alive(kept):
            return (yield n, kept)

        return bisect(lengths[n], is_alive)

    assert run_batched([search(n) for n in range(len(lengths))], complete) == list(errors)
    assert len(asked) == 5  # ceil(log2 17)
    times = [sum(n == m for prefixes in asked for m, _ in prefixes) for n in range(len(lengths))]
    assert all(t <= ceil(log2(T)) for t, T in zip(times, lengths, strict=True))
    assert run_batched([], complete) == [] and len(asked) == 5


class ByHand:
    """The tree of one problem from the definition, all of it computed anew in each search."""

    def __init__(self, problem, given, k, cfg):
        self.problem, self.k, self.cfg, self.rollouts, self.visits, self.paths = problem, k, cfg, {}, {}, []
        self.rollouts[()] = given + (self.complete(()) if len(given) < k else [])
        while len(self.paths) < cfg.searches and (pairs := self.pool()):
            q, u, start, r = max(pairs, key=lambda x: x[0] + x[1])
            self.visits[start] = self.visits.get(start, 0) + 1
            low, high = 0, len(r.steps)
            while high - low > 1:
                middle = (low + high) // 2
                state = start + r.steps[:middle]
                self.rollouts[state] = self.rollouts.get(state) or self.complete(state)
                low, high = (middle, high) if self.mc(state) > 0 else (low, middle)
            self.paths.append((start + r.steps, len(start), q, u, len(start) + high - 1))

    def complete(self, steps):
        return roll_outs(Solver(), [(self.problem, steps)], {self.problem: None}, self.k, 0, EXACT, GRADE)[0]

    def mc(self, state):
        return sum(r.right for r in self.rollouts[state]) / len(self.rollouts[state])

    def pool(self):
        """Every wrong roll-out of a state with 0 < MC < 1 whose text was neither searched nor drawn in an older such state."""
        found, texts = [], set()
        total = sum(self.visits.values())
        for state, own in self.rollouts.items():
            for r in own if 0 < self.mc(state) < 1 else ():
                text = state + r.steps
                if not r.right and r.steps and text not in texts:
                    texts.add(text)
                    q = self.cfg.alpha ** (1 - self.mc(state)) * self.cfg.beta ** (
                        len(r.steps) / self.cfg.length
                    )
                    u = self.cfg.c_puct * sqrt(total) / (1 + self.visits.get(state, 0))
                    found.append((q, u, state, r))
        searched = {path[0] for path in self.paths}
        return [pair for pair in found if pair[2] + pair[3].steps not in searched]


@pytest.mark.parametrize("cfg", [TREE, TreeConfig(searches=7, alpha=0.3, beta=0.5, length=4.0, c_puct=2.0)])
def test_the_tree_is_that_of_its_definition(tmp_path, solutions, cfg):  # noqa: F811
    policy = Solver()
    rows, _ = write(tmp_path / "labels.jsonl", solutions, policy, label="tree", tree=cfg, k=6)
    lines = [json.loads(line) for line in (tmp_path / "trees.jsonl").read_text().splitlines()]
    assert [row for line in lines for row in line["paths"]] == rows and len(lines) == 10
    assert len(policy.asked) == len(set(policy.asked)) == sum(line["states"] for line in lines)
    n_states = 0
    for i, line in enumerate(lines):
        own = solutions[3 * i : 3 * i + 3]
        given = [RollOut(s.steps, s.answer, s.outcome == 1, True, 0) for s in own]
        tree = ByHand(line["prompt"], given, 6, cfg)
        assert (line["right"], line["k"], line["states"]) == (
            sum(r.right for r in tree.rollouts[()]),
            9,
            len(tree.rollouts),
        )
        found = [
            (tuple(x["completions"]), x["start"], x["q"], x["u"], x["first_error"]) for x in line["paths"]
        ]
        assert found == [
            (*path[:2], pytest.approx(path[2]), pytest.approx(path[3]), path[4]) for path in tree.paths
        ]
        labelled = set()
        for row in line["paths"]:
            states = [tuple(row["completions"][: t + 1]) for t in range(len(row["completions"]))]
            asked = [state in tree.rollouts for state in states]
            assert row["visits"] == [
                tree.visits.get(s, 0) if x else None for s, x in zip(states, asked, strict=True)
            ]
            share = [tree.mc(s) if x else None for s, x in zip(states, asked, strict=True)]
            assert [x if x is None else x / 6 for x in row["right"]] == share
            new = [x if s not in labelled else None for x, s in zip(share, states, strict=True)]
            assert row["labels"] == [*new[:-1], 0.0] and row["outcome"] == 0
            labelled.update(states)
        n_states += len(tree.rollouts)
        assert len(line["paths"]) <= cfg.searches
    assert len(rows) > 20 and n_states > 40
    assert (
        sum(row["policy_tokens"] for row in rows)
        <= sum(line["policy_tokens"] for line in lines)
        == policy.tokens
    )
    assert len(policy.calls) < n_states / 3  # a round asks for the next state of every problem
    assert len(sources.load(str(tmp_path / "labels.jsonl"), "native")[0]) == len(rows)


def test_searches_in_the_tree_find_the_first_errors_of_the_checker(tmp_path, solutions):  # noqa: F811
    mixed = [s for s in solutions if {x.outcome for x in solutions if x.problem == s.problem} == {0, 1}]
    rows, policy = write(tmp_path / "labels.jsonl", mixed, Oracle(), label="tree", k=2)
    of = {(s.problem, s.steps): s.labels.index(0) for s in mixed if s.outcome == 0}
    assert len(of) > 3 and {(x["prompt"], tuple(x["completions"])): x["first_error"] for x in rows} == of
    calls = sum(ceil(log2(len(steps))) for _, steps in of)
    assert len(policy.asked) <= calls + len({s.problem for s in mixed})


def test_what_was_cut_and_what_is_searched_already_is_left_out():
    right, wrong = RollOut(("c",), "1", True, True, 1), RollOut(("a", "b"), "2", False, True, 2)
    cut, nothing = wrong._replace(steps=("a", "x"), finished=False), wrong._replace(steps=())
    answers = {("a",): [wrong._replace(steps=("b",)), right]}
    complete = lambda prefixes: [answers[steps] for _, steps in prefixes]
    ((states, paths),) = run_batched(
        [build_tree("p", [right, wrong, wrong, cut, nothing], 4, TREE)], complete
    )
    assert {steps: state.mc for steps, state in states.items()} == {(): MC(1, 5), ("a",): MC(1, 2)}
    ((steps, answer, search),) = paths
    assert (steps, answer, search["start"], search["first_error"]) == (("a", "b"), "2", 0, 1)
    assert search["q"] == pytest.approx(0.5**0.8 * 0.9 ** (2 / 500)) and search["u"] == 0
