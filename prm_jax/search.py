"""Search at test time: spend policy tokens on a problem where a verifier's scores of what is written so far say so.

Every method is written against two functions, `policy.extend` (sampling.py) and `scorer.score` (scoring.py), and goes through
all problems at once: one call of each a round. `budget` is the policy tokens of a problem; `plan` says what each method makes
of it, so that methods compare at equal cost. What is found is a pool, from which the final choice is made: the best score, or a
weighted vote (rerank.py, votes.py).

Dimension key: P problems, K children of a node, T steps.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import jax
import mctx
import numpy as np

from prm_jax import rerank
from prm_jax.data.answers import extract
from prm_jax.data.pools import Candidate, Problem
from prm_jax.data.questions import steps_of
from prm_jax.data.units import UNITS, probability
from prm_jax.launch.config import Count
from prm_jax.sampling import Policy
from prm_jax.scoring import solution_scores


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """A solution as far as it is written, and what the verifier says of it."""

    problem: int  # its number
    steps: tuple[str, ...] = ()
    logit_T: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.float32))  # log-odds of each step
    value: float = 0.0  # these aggregated; of a bare problem the log of 1
    ended: str = "step"  # step: can go on | end: finished | length: cut in a step, a dead end
    tokens: int = 0  # written since the node that it grew from

    @property
    def goes_on(self) -> bool:
        return self.ended == "step"


class Explorer:
    """The problems, all nodes found so far, and what they cost. Methods grow nodes here.

    Each prefix that is continued draws with a number of its own problem, so a problem is searched alike whatever the others are.
    """

    def __init__(self, policy: Policy, scorer, problems: Sequence[str], how: str, max_steps: int, key):
        self.policy, self.scorer, self.problems, self.how, self.key = policy, scorer, problems, how, key
        self.greedy = dataclasses.replace(policy, sampling=dataclasses.replace(policy.sampling, temperature=0))
        self.max_steps, self.budget, self.stop_at = max_steps, np.inf, None  # see `search`
        self.nodes: list[list[Node]] = [[] for _ in problems]  # all that were scored
        self.tokens_P = np.zeros(len(problems), int)  # of the policy, lookahead included
        self.asked_P = np.zeros(len(problems), int)  # prefixes continued
        self.best_P = np.zeros(len(problems))  # the chance of the best finished solution
        self.known: dict[tuple, np.ndarray] = {}  # (problem, steps) -> log-odds: no text is scored twice

    def write(
        self, nodes: Sequence[Node], n: int, stop: str = "step", policy: Policy | None = None
    ) -> list[list[Node]]:
        """n continuations of each node, not scored."""
        policy, numbers = policy or self.policy, []
        for node in nodes:
            numbers.append(node.problem << 16 | self.asked_P[node.problem])
            self.asked_P[node.problem] += 1
        prefixes = [(self.problems[node.problem], node.steps) for node in nodes]
        found = []
        for node, own in zip(nodes, policy.extend(prefixes, n, stop, self.key, numbers), strict=True):
            self.tokens_P[node.problem] += sum(len(c.ids_L) for c in own)
            new = lambda c, node=node: (*node.steps, *steps_of(policy.format, c.text))
            found.append([Node(node.problem, new(c), ended=c.ended, tokens=node.tokens + len(c.ids_L)) for c in own])
        return found

    def score(self, nodes: Sequence[Node]) -> list[Node]:
        """The same nodes with the verifier's log-odds and value."""
        row = lambda node: (self.problems[node.problem], node.steps)
        asked = [node for node in nodes if node.steps and row(node) not in self.known]
        logits = dict(zip(map(id, asked), self.scorer.score([row(node) for node in asked]), strict=True))
        to_log_odds = UNITS[self.scorer.unit].log_odds
        logits = {node: np.asarray(to_log_odds(logit_T), np.float32) for node, logit_T in logits.items()}
        self.known |= {row(node): logits[id(node)] for node in asked}
        none = np.zeros(0, np.float32)
        own = [logits.get(id(node), self.known.get(row(node), none)) for node in nodes]
        values = solution_scores(own, self.how).tolist()
        return [dataclasses.replace(x, logit_T=l, value=v) for x, l, v in zip(nodes, own, values, strict=True)]

    def grow(self, nodes: Sequence[Node], n: int, stop: str = "step", block: int = 1) -> list[list[Node]]:
        """n scored children of each node, each `block` tokens long, rounded up to the end of a step."""
        if not nodes:
            return []
        children = self.write([dataclasses.replace(node, tokens=0) for node in nodes], n, stop)
        flat = [child for own in children for child in own]
        while short := [i for i, child in enumerate(flat) if child.goes_on and child.tokens < block]:
            for i, (child,) in zip(short, self.write([flat[i] for i in short], 1), strict=True):
                flat[i] = child
        flat = self.score(flat)
        for child in flat:
            self.nodes[child.problem].append(child)
            if child.ended == "end" and child.steps:
                self.best_P[child.problem] = max(self.best_P[child.problem], self.chance(child))
        return [flat[i : i + n] for i in range(0, len(flat), n)]

    def look_ahead(self, nodes: Sequence[Node], steps: int) -> list[Node]:
        """The nodes with the value of what greedy play of so many more steps leads to; equal nodes are played once."""
        row = lambda node: (node.problem, node.steps)
        reached = {row(node): node for node in nodes}
        for _ in range(steps):
            rows = [x for x, node in reached.items() if node.goes_on]
            played = self.write([reached[x] for x in rows], 1, policy=self.greedy)
            reached |= {x: node for x, (node,) in zip(rows, played, strict=True)}
        value = {x: node.value for x, node in zip(reached, self.score(list(reached.values())), strict=True)}
        return [dataclasses.replace(node, value=value[row(node)]) for node in nodes]

    def finished(self, p: int) -> list[Node]:
        return [node for node in self.nodes[p] if node.ended == "end" and node.steps]

    def is_open(self, p: int) -> bool:
        """Whether a tree search goes on: the problem's budget is not spent; with `stop_at` that of all, and it is not solved so well."""
        if self.stop_at is None:
            return self.tokens_P[p] < self.budget
        return self.best_P[p] < self.stop_at and self.tokens_P.sum() < self.budget * len(self.problems)

    def complete(self):
        """Problems without a finished solution get one: the best node that goes on is continued to the end."""
        lacking = [p for p in range(len(self.problems)) if not self.finished(p)]
        best = [max((x for x in self.nodes[p] if x.goes_on), key=lambda x: x.value, default=Node(p)) for p in lacking]
        if best:
            self.grow(best, 1, "end")

    def chance(self, node: Node) -> float:
        """The value as a probability."""
        is_log = rerank.AGGREGATORS[self.how].is_log_probability
        return float(np.exp(node.value) if is_log else probability(node.value))

    def pool(self, ids: Sequence[str], answers: Sequence[str | None], name: str) -> list[Problem]:
        """What was found: the finished solutions of each problem; where there is none a cut or empty one, unfinished."""
        found, empty = [], Candidate(("",), finished=False, step_scores={name: (0.0,)})
        scores = lambda x: {name: tuple(map(float, x.logit_T))}
        candidate = lambda x: Candidate(x.steps, extract("\n".join(x.steps)), None, x.ended == "end", scores(x))
        for p, (id_, answer) in enumerate(zip(ids, answers, strict=True)):
            nodes = self.finished(p) or [x for x in self.nodes[p] if x.ended == "length"][-1:]
            candidates = tuple(candidate(x) for x in nodes if x.steps) or (empty,)
            found.append(Problem(id_, self.problems[p], answer, candidates, {name: "logit"}))
        return found


# The methods: each searches the given problems (their numbers) once, with a cost that its plan fixes


def best_of_n(explorer: Explorer, problems: Iterable[int], width: int):
    """`width` whole solutions."""
    explorer.grow([Node(p) for p in problems], width, "end")


def beam(explorer: Explorer, problems: Iterable[int], width: int, branch: int, groups=1, block=1, ahead=0):
    """Step-level beam search (Snell et al. 2024) in `groups` apart: 1 is plain, width / branch is DVTS (Beeching et al. 2024).

    Each group starts with width / groups samples, keeps its best width / (groups branch), samples `branch` of each, and so on;
    what ends leaves the beam. A step's worth is its value, or that of what greedy play of `ahead` more steps leads to
    (lookahead). `block`: tokens between two choices at least, rounded up to a step; 1: every step. Long blocks with a value or
    outcome model are value-guided search (2505.17373).
    """
    keep = max(1, width // (groups * branch))
    beams, n = [(Node(p), group) for p in problems for group in range(groups)], width // groups
    for _ in range(explorer.max_steps):
        children, n = explorer.grow([node for node, _ in beams], n, block=block), branch
        found = [(x, group) for (_, group), own in zip(beams, children, strict=True) for x in own if x.goes_on]
        if ahead:
            seen = explorer.look_ahead([x for x, _ in found], ahead)
            found = [(x, group) for x, (_, group) in zip(seen, found, strict=True)]
        rivals = collections.defaultdict(list)
        for x, group in found:
            rivals[x.problem, group].append(x)
        beams = [(x, group) for (_, group), own in rivals.items() for x in sorted(own, key=lambda x: x.value)[-keep:]]
        if not beams:
            break


IDLE = 2


def mcts(explorer: Explorer, problems: Iterable[int], simulations: int, branch: int, rule: str = "puct"):
    """Monte-Carlo tree search without roll-outs, as AlphaZero's: a node's value is the verifier's (mctx; PUCT or Gumbel).

    A simulation descends to a child that was not visited before and samples `branch` steps there. Equal steps are one child; its
    prior is proportional to how often the policy wrote it times its chance. One more child is the node itself, sampled again: its
    chance is the mean of the node's and of the children drawn, its prior what that is above the best of them. So a tree widens
    where nothing good was drawn. A finished child ends the descent; a tree in which IDLE descents in a row end so is done.
    """
    P, K, problems = len(explorer.problems), branch + 1, sorted(problems)

    def prior_K(children: Sequence[Child]) -> np.ndarray:
        """Logits; places without a child have next to no probability."""
        weights = [child.weight for child in children] + [0.0] * (K - len(children))
        return np.log(np.maximum(weights, 1e-9), dtype=np.float32)

    roots = expand(explorer, [Child(Node(p), 1.0, 1.0) for p in problems], branch)
    trees = [[[]] for _ in range(P)]  # of each problem, of each node in the order of mctx: its children
    for p, children in zip(problems, roots, strict=True):
        trees[p] = [children]
    value_P = np.array([nodes[0][-1].chance if nodes[0] else 0.0 for nodes in trees], np.float32)
    prior_PK = np.stack([prior_K(nodes[0]) for nodes in trees])
    root, tree = mctx.RootFnOutput(prior_logits=prior_PK, value=value_P, embedding=np.zeros(P, np.int32)), None
    idle_P = np.zeros(P, int)  # simulations in a row that grew nothing
    for at in range(simulations):
        prior_PK, (reward_P, discount_P, value_P) = np.zeros((P, K), np.float32), np.zeros((3, P), np.float32)
        found = prior_PK, reward_P, discount_P, value_P
        seen = visit(root, tree, at, found, explorer.key, rule=rule, simulations=simulations)
        places = zip(np.asarray(seen.parents[:, at + 1]), np.asarray(seen.action_from_parent[:, at + 1]), strict=True)
        leaves = {p: trees[p][i][k] for p, (i, k) in enumerate(places) if k < len(trees[p][i])}
        growing = [p for p, leaf in leaves.items() if leaf.node.goes_on and idle_P[p] < IDLE and explorer.is_open(p)]
        idle_P += 1
        idle_P[growing] = 0
        grown = dict(zip(growing, expand(explorer, [leaves[p] for p in growing], branch), strict=True))
        for p in range(P):
            trees[p].append(grown.get(p, []))
        for p, leaf in leaves.items():
            prior_PK[p] = prior_K(trees[p][-1])
            if leaf.node.goes_on:
                discount_P[p], value_P[p] = 1.0, leaf.chance
            elif leaf.node.ended == "end":
                reward_P[p] = leaf.chance
        tree = visit(root, tree, at, found, explorer.key, rule=rule, simulations=simulations)
        if not any(idle_P[p] < IDLE and explorer.is_open(p) for p in problems):
            break


class Child(NamedTuple):
    node: Node
    chance: float  # as far as the tree knows
    weight: float  # its prior, not normalised


def expand(explorer: Explorer, leaves: Sequence[Child], n: int) -> list[list[Child]]:
    """The children of each leaf: the different ones of n samples, and last the leaf's node once more."""
    found = []
    for leaf, own in zip(leaves, explorer.grow([leaf.node for leaf in leaves], n), strict=True):
        chances = [explorer.chance(x) for x in own]
        count, distinct = collections.Counter(), {}
        for x, chance in zip(own, chances, strict=True):
            count[x.steps, x.ended] += 1
            distinct[x.steps, x.ended] = Child(x, chance, chance * count[x.steps, x.ended])
        again = float(np.mean([leaf.chance, *chances]))
        found.append([*distinct.values(), Child(leaf.node, again, again - max(chances))])
    return found


@functools.partial(jax.jit, static_argnames=("rule", "simulations"))
def visit(root, tree, at, found, key, *, rule: str, simulations: int):
    """The tree after simulation `at`, whose new node has `found`: prior_PK, reward_P, discount_P, value_P.

    mctx runs all simulations in one loop under jit. `found` needs the policy, which cannot be called there, so the loop is
    taken apart: once with nothing found, to see which child is visited, and again with what was found of it.
    """
    prior_PK, reward_P, discount_P, value_P = found
    output = mctx.RecurrentFnOutput(reward=reward_P, discount=discount_P, prior_logits=prior_PK, value=value_P)
    recurrent = lambda params, key, action, embedding: (output, embedding)
    one = lambda low, high, body, start: body(at, (jax.random.fold_in(key, at), start[1] if tree is None else tree))
    more = {"puct": {"dirichlet_fraction": 0.0}, "gumbel": {"max_num_considered_actions": prior_PK.shape[1]}}[rule]
    policy = {"puct": mctx.muzero_policy, "gumbel": mctx.gumbel_muzero_policy}[rule]
    return policy((), key, root, recurrent, simulations, loop_fn=one, **more).search_tree


# The one knob


@dataclasses.dataclass(frozen=True)
class Options:
    """What the methods leave open; conf/task/search.yaml says what each key means."""

    branch: Count
    ahead: Count
    block: Count
    simulations: Count
    rule: Literal["puct", "gumbel"]


def tokens_per_solution(policy: Policy, problems: Sequence[str], key, n: int = 4, most: int = 64) -> float:
    """The policy's mean tokens of a whole solution, from n samples of each of the first problems."""
    explorer = Explorer(policy, None, problems[:most], "prod", 1, key)
    samples = [x for own in explorer.write([Node(p) for p in range(len(explorer.problems))], n, "end") for x in own]
    return sum(x.tokens for x in samples) / len(samples)


METHODS = {"best_of_n": best_of_n, "beam": beam, "dvts": beam, "lookahead": beam, "vgs": beam, "mcts": mcts}


def plan(method: str, budget: float, per_solution: float, options: Options) -> dict:
    """What a method makes of a budget of policy tokens a problem: the arguments of its function.

    per_solution: the policy's mean tokens of a whole solution. `width` samples a step cost as many whole solutions; they are split
    into `branch` of each of the beams kept, as near to options.branch as it goes.
    """
    if method == "mcts":
        return {"simulations": options.simulations, "branch": options.branch, "rule": options.rule}
    ahead = options.ahead if method == "lookahead" else 0
    width = max(1, int(budget / per_solution / (1 + ahead)))
    if method == "best_of_n":
        return {"width": width}
    keep = max(1, round(width / options.branch))
    return {
        "width": width - width % keep,
        "branch": width // keep,
        "groups": keep if method in ("dvts", "vgs") else 1,
        "ahead": ahead,
        "block": options.block if method == "vgs" else 1,
    }


def search(explorer: Explorer, method: str, planned: Callable, budget: float, stop_at: float | None, first: float):
    """Spends a budget of policy tokens a problem by a method of METHODS; `planned(tokens)` is its `plan`.

    stop_at null: a problem is searched, and again while its budget pays for another search like the last. Else a first search
    takes the share `first`; what is left, of all problems together, goes to further searches of the problems that have no
    finished solution of at least that chance, those that took least first.
    """
    P = len(explorer.problems)
    explorer.budget, explorer.stop_at, problems = budget, stop_at, list(range(P))
    arguments = planned(budget if stop_at is None else first * budget)
    while problems:
        before_P = explorer.tokens_P.copy()
        METHODS[method](explorer, problems, **arguments)
        cost_P = explorer.tokens_P - before_P
        if stop_at is None:
            problems = [p for p in problems if explorer.tokens_P[p] + cost_P[p] <= budget]
        else:
            paid = int((budget * P - explorer.tokens_P.sum()) / cost_P[problems].mean())  # so many more searches
            least_first = sorted(filter(explorer.is_open, range(P)), key=lambda p: explorer.tokens_P[p])
            problems = sorted(least_first[: max(paid, 0)])
    explorer.complete()
