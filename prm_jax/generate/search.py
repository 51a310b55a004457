"""Search at test time: spend policy tokens on a problem where a verifier's scores of what is written so far say so.

Every method is written against two functions, `policy.extend` (sampling.py) and `scorer.score` (scoring.py), and goes through
all problems at once: one call of each a round. `budget` is the policy tokens of a problem in the mean; `plan` says what each
method makes of it and `search` spends what is left, so that methods compare at equal cost. What is found is a pool, from which the final choice is made: the best score, or a
weighted vote (rerank.py, votes.py).

Dimension key: P problems, K children of a node, T steps.
"""

import collections
import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import jax
import mctx
import numpy as np

from prm_jax import rerank
from prm_jax.data.answers import extract
from prm_jax.data.pools import Candidate, Problem
from prm_jax.data.questions import steps_of
from prm_jax.data.units import UNITS, probability
from prm_jax.launch.config import Count, Positive, Share
from prm_jax.protocols import Policy
from prm_jax.rerank import solution_scores


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """A solution as far as it is written, and what the verifier says of it."""

    problem: int  # its number
    steps: tuple[str, ...] = ()
    logit_T: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.float32))  # log-odds of each step
    value: float = 0.0  # these aggregated; of a bare problem the log of 1
    ended: str = "step"  # step: can go on | end: finished | length: cut in a step, a dead end
    tokens: int = 0  # of all its steps, as the policy wrote them

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
        self.max_steps, self.budget, self.per_solution, self.stop_at = max_steps, np.inf, 0.0, None  # see `search`
        self.nodes: list[list[Node]] = [[] for _ in problems]  # all that were scored
        self.tokens_P = np.zeros(len(problems), int)  # of the policy, lookahead included
        self.asked_P = np.zeros(len(problems), int)  # prefixes continued
        self.steps, self.step_tokens = 0, 0  # continuations to the end of a step, and their tokens
        self.has_finished_P = np.zeros(len(problems), bool)
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
            tokens = sum(len(c.ids_L) for c in own)
            self.tokens_P[node.problem] += tokens
            if stop == "step":
                self.steps, self.step_tokens = self.steps + n, self.step_tokens + tokens
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
        """n scored children of each node, each `block` tokens longer, rounded up to the end of a step."""
        if not nodes:
            return []
        flat = [child for own in self.write(nodes, n, stop) for child in own]
        enough = [node.tokens + block for node in nodes for _ in range(n)]
        while short := [i for i, child in enumerate(flat) if child.goes_on and child.tokens < enough[i]]:
            for i, (child,) in zip(short, self.write([flat[i] for i in short], 1), strict=True):
                flat[i] = child
        flat = self.score(flat)
        for child in flat:
            self.nodes[child.problem].append(child)
            if child.ended == "end" and child.steps:
                self.has_finished_P[child.problem] = True
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

    def is_open(self, p: int, samples: int = 0) -> bool:
        """Whether the problem is to be searched further: it is not solved with the chance `stop_at`, and its budget is not spent.

        Without `stop_at` a problem has a budget of its own, which must pay for `samples` next steps and, where no solution is
        finished, for the end of one. With it all budgets are one.
        """
        if self.stop_at is not None:
            return self.best_P[p] < self.stop_at and self.tokens_P.sum() < self.budget * len(self.problems)
        cost = samples * self.step_tokens / max(self.steps, 1)
        if not self.has_finished_P[p]:
            cost += max(0.0, self.per_solution - self.deepest(p).tokens)
        return self.tokens_P[p] + cost <= self.budget

    def deepest(self, p: int) -> Node:
        """The node of the most steps that can go on, of equals the best; the bare problem where there is none.

        Not the one of the highest value, which is a short one: a product of step scores falls with every step.
        """
        open_nodes = (x for x in self.nodes[p] if x.goes_on)
        return max(open_nodes, key=lambda x: (len(x.steps), x.value), default=Node(p))

    def complete(self, problems: Iterable[int]):
        """Of the given problems those without a finished solution get one: `deepest` is continued to the end."""
        self.grow([self.deepest(p) for p in problems if not self.has_finished_P[p]], 1, "end")

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

    One tree a problem, of so many simulations at most: it ends where the problem's budget does (`Explorer.is_open`).

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
        growing = [
            p for p, leaf in leaves.items() if leaf.node.goes_on and idle_P[p] < IDLE and explorer.is_open(p, branch)
        ]
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
        if not any(idle_P[p] < IDLE and explorer.is_open(p, branch) for p in problems):
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
    stop_at: Share | None
    first: Positive


def tokens_per_solution(policy: Policy, problems: Sequence[str], key, n: int = 2) -> float:
    """The policy's mean tokens of a whole solution, from n samples of each problem."""
    explorer = Explorer(policy, None, problems, "prod", 1, key)
    explorer.write([Node(p) for p in range(len(problems))], n, "end")
    return explorer.tokens_P.mean() / n


METHODS = {"best_of_n": best_of_n, "beam": beam, "dvts": beam, "lookahead": beam, "vgs": beam, "mcts": mcts}


def plan(method: str, budget: float, per_solution: float, options: Options) -> dict:
    """What a method makes of a budget of policy tokens a problem: the arguments of its function.

    per_solution: the policy's mean tokens of a whole solution. `width` samples a step cost at most as many whole solutions, with
    lookahead 1 + options.ahead times as many; they are split into `branch` of each of the beams kept, as near to options.branch as
    it goes.
    """
    ahead = options.ahead if method == "lookahead" else 0
    width = max(1, int(budget / per_solution / (1 + ahead)))
    if method == "mcts":
        return {"simulations": options.simulations, "branch": min(options.branch, width), "rule": options.rule}
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


def search(explorer: Explorer, method: str, budget: float, per_solution: float, options: Options):
    """Spends `budget` policy tokens a problem, in the mean of all problems, by a method of METHODS.

    Without options.stop_at every problem is searched by the `plan` of the whole budget; those that left more than a solution
    costs are searched again by the plan of what they left; the last tokens pay for one whole solution each of the problems
    that took least. With it a first search takes the share options.first; what is left, of all problems together, goes to
    further searches of the problems that have no finished solution of at least that chance, those that took least first.
    """
    P, stop_at = len(explorer.problems), options.stop_at
    explorer.budget, explorer.per_solution, explorer.stop_at = budget, per_solution, stop_at
    problems, tokens = list(range(P)), budget * (1 if stop_at is None else options.first)
    while problems:
        before = explorer.tokens_P.sum()
        METHODS[method](explorer, problems, **plan(method, tokens, per_solution, options))
        explorer.complete(problems)
        left, cost = budget * P - explorer.tokens_P.sum(), (explorer.tokens_P.sum() - before) / len(problems)
        if not cost:  # a server's empty texts would go on for ever
            break
        least_first = sorted(range(P), key=lambda p: explorer.tokens_P[p])
        if stop_at is not None:
            problems = list(filter(explorer.is_open, least_first))[: max(0, int(left / cost))]
            continue
        problems = [p for p in least_first if explorer.tokens_P[p] + per_solution <= budget]
        if problems and left >= len(problems) * per_solution:
            tokens = min(left, sum(budget - explorer.tokens_P[problems])) / len(problems)
        else:
            lengths = [[x.tokens for x in explorer.finished(p)] or [per_solution] for p in least_first]
            method, tokens = "best_of_n", per_solution
            problems = least_first[: np.searchsorted(np.cumsum([np.mean(x) for x in lengths]), left)]
