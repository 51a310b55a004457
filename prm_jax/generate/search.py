"""Search at test time: policy tokens go where a verifier's scores of the steps so far are high.

Every method is written against two functions, `policy.extend` and `scorer.score` (protocols.py), and goes through all problems at
once: one call of each a round. `budget` is the mean number of policy tokens a problem. An entry of METHODS says how it searches and
what it makes of a budget; `search` spends what a first search leaves, so that methods compare at equal cost. The finished
solutions are a pool, from which the final choice is made: the best score, or a weighted vote (rerank.py, votes.py).

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
from prm_jax.launch.config import Count, Positive, Share
from prm_jax.protocols import Policy, Prefix, Scorer

NO_STEPS = np.zeros(0, np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """The first steps of a solution, and the verifier's scores of them."""

    problem: int  # its number
    steps: tuple[str, ...] = ()
    logit_T: np.ndarray = dataclasses.field(default_factory=lambda: NO_STEPS)  # log-odds of each step
    value: float = 0.0  # their aggregate; of a bare problem the log of 1
    ended: str = "step"  # step: can go on | end: finished | length: cut in a step, a dead end
    tokens: int = 0  # of all its steps, as the policy wrote them

    @property
    def is_open(self) -> bool:
        return self.ended == "step"


class SearchState:
    """The problems, all nodes so far, and their cost. Methods grow nodes here.

    Each prefix that is continued draws with a number of its own problem, so that a problem's draws do not depend on the others.
    """

    def __init__(self, policy: Policy, scorer: Scorer, problems: Sequence[str], aggregator: str, max_steps: int, key):
        self.policy, self.scorer, self.problems, self.aggregator, self.key = policy, scorer, problems, aggregator, key
        self.greedy = dataclasses.replace(policy, sampling=dataclasses.replace(policy.sampling, temperature=0))
        self.max_steps, self.budget, self.per_solution, self.stop_at = max_steps, np.inf, 0.0, None  # see `search`
        self.nodes: list[list[Node]] = [[] for _ in problems]  # all that were scored
        self.tokens_P = np.zeros(len(problems), int)  # of the policy, lookahead included
        self.prefixes_P = np.zeros(len(problems), int)  # how many were continued
        self.steps, self.step_tokens = 0, 0  # continuations to the end of a step, and their tokens
        self.has_finished_P = np.zeros(len(problems), bool)
        self.best_P = np.zeros(len(problems))  # P(good) of the best finished solution
        self.known: dict[Prefix, np.ndarray] = {}  # log-odds: no text is scored twice

    def row(self, node: Node) -> Prefix:
        return self.problems[node.problem], node.steps

    def write(
        self, nodes: Sequence[Node], n: int, stop: str = "step", policy: Policy | None = None
    ) -> list[list[Node]]:
        """n continuations of each node, not scored."""
        policy, numbers, written = policy or self.policy, [], []
        for node in nodes:
            numbers.append(node.problem << 16 | self.prefixes_P[node.problem])
            self.prefixes_P[node.problem] += 1
        continuations = policy.extend([self.row(node) for node in nodes], n, stop, self.key, numbers)
        for node, samples in zip(nodes, continuations, strict=True):
            children = []
            for sample in samples:
                steps = *node.steps, *steps_of(policy.format, sample.text)
                tokens = node.tokens + len(sample.ids_L)
                children.append(Node(node.problem, steps, ended=sample.ended, tokens=tokens))
            tokens = sum(child.tokens - node.tokens for child in children)
            self.tokens_P[node.problem] += tokens
            if stop == "step":
                self.steps, self.step_tokens = self.steps + n, self.step_tokens + tokens
            written.append(children)
        return written

    def score(self, nodes: Sequence[Node]) -> list[Node]:
        """The same nodes with the verifier's log-odds and value."""
        unknown = [i for i, node in enumerate(nodes) if node.steps and self.row(node) not in self.known]
        scores = self.scorer.score([self.row(nodes[i]) for i in unknown])
        to_log_odds = UNITS[self.scorer.unit].log_odds
        new = {i: np.asarray(to_log_odds(score_T), np.float32) for i, score_T in zip(unknown, scores, strict=True)}
        self.known |= {self.row(nodes[i]): logit_T for i, logit_T in new.items()}
        logits = [new.get(i, self.known.get(self.row(node), NO_STEPS)) for i, node in enumerate(nodes)]
        values = rerank.solution_scores(logits, self.aggregator).tolist()
        scored = zip(nodes, logits, values, strict=True)
        return [dataclasses.replace(node, logit_T=logit_T, value=value) for node, logit_T, value in scored]

    def grow(self, nodes: Sequence[Node], n: int, stop: str = "step", block: int = 1) -> list[list[Node]]:
        """n scored children of each node, each at least `block` tokens longer, rounded up to the end of a step."""
        if not nodes:
            return []
        children = [child for siblings in self.write(nodes, n, stop) for child in siblings]
        enough = [node.tokens + block for node in nodes for _ in range(n)]
        while short := [i for i, child in enumerate(children) if child.is_open and child.tokens < enough[i]]:
            for i, (child,) in zip(short, self.write([children[i] for i in short], 1), strict=True):
                children[i] = child
        children = self.score(children)
        for child in children:
            p = child.problem
            self.nodes[p].append(child)
            if child.ended == "end" and child.steps:
                self.has_finished_P[p] = True
                self.best_P[p] = max(self.best_P[p], self.probability(child))
        return [children[i : i + n] for i in range(0, len(children), n)]

    def look_ahead(self, nodes: Sequence[Node], steps: int) -> list[Node]:
        """The nodes with the value of the node that `steps` more greedy steps reach; equal nodes are played once."""
        reached = {self.row(node): node for node in nodes}
        for _ in range(steps):
            rows = [row for row, node in reached.items() if node.is_open]
            played = self.write([reached[row] for row in rows], 1, policy=self.greedy)
            reached |= {row: node for row, (node,) in zip(rows, played, strict=True)}
        values = {row: node.value for row, node in zip(reached, self.score(list(reached.values())), strict=True)}
        return [dataclasses.replace(node, value=values[self.row(node)]) for node in nodes]

    def finished(self, p: int) -> list[Node]:
        return [node for node in self.nodes[p] if node.ended == "end" and node.steps]

    def goes_on(self, p: int, samples: int = 0) -> bool:
        """Whether to search the problem further: no solution has the probability `stop_at`, and the budget is not spent.

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
        """The open node of the most steps, of equals the best; the bare problem where there is none.

        Not the one of the highest value, which is a short one: a product of step scores falls with every step.
        """
        open_nodes = (node for node in self.nodes[p] if node.is_open)
        return max(open_nodes, key=lambda node: (len(node.steps), node.value), default=Node(p))

    def finish_unsolved(self, problems: Iterable[int]):
        """Continues the deepest node of each given problem that has no finished solution to its end."""
        self.grow([self.deepest(p) for p in problems if not self.has_finished_P[p]], 1, "end")

    def probability(self, node: Node) -> float:
        """The value as a probability."""
        is_log = rerank.AGGREGATORS[self.aggregator].is_log_probability
        return float(np.exp(node.value) if is_log else probability(node.value))

    def pool(self, ids: Sequence[str], answers: Sequence[str | None], name: str) -> list[Problem]:
        """The finished solutions of each problem; where there is none a cut or an empty one, as unfinished."""
        empty = Candidate(("",), finished=False, step_scores={name: (0.0,)})

        def candidate(node: Node) -> Candidate:
            scores = {name: tuple(map(float, node.logit_T))}
            return Candidate(node.steps, extract("\n".join(node.steps)), None, node.ended == "end", scores)

        problems = []
        for p, (id_, answer) in enumerate(zip(ids, answers, strict=True)):
            nodes = self.finished(p) or [node for node in self.nodes[p] if node.ended == "length"][-1:]
            candidates = tuple(candidate(node) for node in nodes if node.steps) or (empty,)
            problems.append(Problem(id_, self.problems[p], answer, candidates, {name: "logit"}))
        return problems


# The methods. Each searches the given problems (their numbers) once, at a cost that its plan fixes.


def best_of_n(state: SearchState, problems: Iterable[int], width: int):
    """Samples `width` whole solutions."""
    state.grow([Node(p) for p in problems], width, "end")


def beam(state: SearchState, problems: Iterable[int], width: int, branch: int, groups=1, block=1, ahead=0):
    """Searches step by step with a beam (Snell et al. 2024) in `groups` apart: 1 is plain, width / branch is DVTS (Beeching
    et al. 2024).

    Each group starts with width / groups samples, keeps its best width / (groups branch), samples `branch` of each, and so on;
    what ends leaves the beam. A step's worth is its value, or that of the node that `ahead` more greedy steps reach
    (lookahead). `block`: tokens between two choices at least, rounded up to a step; 1: every step. Long blocks with a value or
    outcome model are value-guided search (2505.17373).
    """
    keep = max(1, width // (groups * branch))
    beams, n = [(Node(p), group) for p in problems for group in range(groups)], width // groups
    for _ in range(state.max_steps):
        children, n = state.grow([node for node, _ in beams], n, block=block), branch
        nodes, groups_of = [], []
        for (_, group), siblings in zip(beams, children, strict=True):
            nodes += (still_open := [node for node in siblings if node.is_open])
            groups_of += [group] * len(still_open)
        if ahead:
            nodes = state.look_ahead(nodes, ahead)
        rivals = collections.defaultdict(list)
        for node, group in zip(nodes, groups_of, strict=True):
            rivals[node.problem, group].append(node)
        by_value = {key: sorted(nodes, key=lambda node: node.value) for key, nodes in rivals.items()}
        beams = [(node, group) for (_, group), nodes in by_value.items() for node in nodes[-keep:]]
        if not beams:
            break


MAX_IDLE = 2


def mcts(state: SearchState, problems: Iterable[int], simulations: int, branch: int, rule: str = "puct"):
    """Grows a tree a problem without roll-outs, as AlphaZero does: a node's value is the verifier's (mctx; PUCT or Gumbel).

    A simulation descends to a child that was not visited before and samples `branch` steps there. Equal steps are one child;
    its prior is proportional to how often the policy wrote it times its probability. Each node has one extra action, "sample
    this node again": its value is the mean of the node's and its children's, its prior how far that mean exceeds the best
    child. So a tree widens only where every sampled child is poor. A finished child ends the descent. A tree ends after so
    many simulations, after MAX_IDLE descents in a row that grew nothing, or where the problem's budget ends.
    """
    P, K, problems = len(state.problems), branch + 1, sorted(problems)

    def prior_K(children: Sequence[Child]) -> np.ndarray:
        """Logits; places without a child have next to no probability."""
        weights = [child.weight for child in children] + [0.0] * (K - len(children))
        return np.log(np.maximum(weights, 1e-9), dtype=np.float32)

    roots = expand(state, [Child(Node(p), 1.0, 1.0) for p in problems], branch)
    trees = [[[]] for _ in range(P)]  # of each problem, of each node in the order of mctx: its children
    for p, children in zip(problems, roots, strict=True):
        trees[p] = [children]
    value_P = np.array([nodes[0][-1].probability if nodes[0] else 0.0 for nodes in trees], np.float32)
    prior_PK = np.stack([prior_K(nodes[0]) for nodes in trees])
    root, tree = mctx.RootFnOutput(prior_logits=prior_PK, value=value_P, embedding=np.zeros(P, np.int32)), None
    idle_P = np.zeros(P, int)  # simulations in a row that grew nothing
    for i in range(simulations):
        prior_PK, (reward_P, discount_P, value_P) = np.zeros((P, K), np.float32), np.zeros((3, P), np.float32)
        new_node = prior_PK, reward_P, discount_P, value_P
        descent = mctx_step(root, tree, i, new_node, state.key, rule=rule, simulations=simulations)
        parent_P, action_P = np.asarray(descent.parents[:, i + 1]), np.asarray(descent.action_from_parent[:, i + 1])
        leaves = {
            p: trees[p][n][k] for p, (n, k) in enumerate(zip(parent_P, action_P, strict=True)) if k < len(trees[p][n])
        }
        growing = [
            p for p, leaf in leaves.items() if leaf.node.is_open and idle_P[p] < MAX_IDLE and state.goes_on(p, branch)
        ]
        idle_P += 1
        idle_P[growing] = 0
        grown = dict(zip(growing, expand(state, [leaves[p] for p in growing], branch), strict=True))
        for p in range(P):
            trees[p].append(grown.get(p, []))
        for p, leaf in leaves.items():
            prior_PK[p] = prior_K(trees[p][-1])
            if leaf.node.is_open:
                discount_P[p], value_P[p] = 1.0, leaf.probability
            elif leaf.node.ended == "end":
                reward_P[p] = leaf.probability
        tree = mctx_step(root, tree, i, new_node, state.key, rule=rule, simulations=simulations)
        if not any(idle_P[p] < MAX_IDLE and state.goes_on(p, branch) for p in problems):
            break


class Child(NamedTuple):
    node: Node
    probability: float  # as far as the tree knows
    weight: float  # its prior, not normalised


def expand(state: SearchState, leaves: Sequence[Child], n: int) -> list[list[Child]]:
    """The children of each leaf: the distinct ones of n samples, and last the leaf's node once more."""
    expanded = []
    for leaf, siblings in zip(leaves, state.grow([leaf.node for leaf in leaves], n), strict=True):
        probabilities = [state.probability(node) for node in siblings]
        count, distinct = collections.Counter(), {}
        for node, p_good in zip(siblings, probabilities, strict=True):
            count[node.steps, node.ended] += 1
            distinct[node.steps, node.ended] = Child(node, p_good, p_good * count[node.steps, node.ended])
        again = float(np.mean([leaf.probability, *probabilities]))
        expanded.append([*distinct.values(), Child(leaf.node, again, again - max(probabilities))])
    return expanded


@functools.partial(jax.jit, static_argnames=("rule", "simulations"))
def mctx_step(root, tree, i, new_node, key, *, rule: str, simulations: int):
    """The tree after simulation i, which adds `new_node`: prior_PK, reward_P, discount_P, value_P.

    mctx runs all simulations in one loop under jit. The new node's numbers need the policy, which cannot be called there, so
    the loop is taken apart: one call with zeros shows which child the descent reaches, a second one has its numbers.
    """
    prior_PK, reward_P, discount_P, value_P = new_node
    output = mctx.RecurrentFnOutput(reward=reward_P, discount=discount_P, prior_logits=prior_PK, value=value_P)

    def recurrent(params, key, action, embedding):
        return output, embedding

    def one_simulation(low, high, body, start):
        return body(i, (jax.random.fold_in(key, i), start[1] if tree is None else tree))

    more = {"puct": {"dirichlet_fraction": 0.0}, "gumbel": {"max_num_considered_actions": prior_PK.shape[1]}}[rule]
    policy = {"puct": mctx.muzero_policy, "gumbel": mctx.gumbel_muzero_policy}[rule]
    return policy((), key, root, recurrent, simulations, loop_fn=one_simulation, **more).search_tree


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


@dataclasses.dataclass(frozen=True)
class Method:
    """A search, and how it spends a budget."""

    run: Callable  # run(state, problems, **arguments)
    plan: Callable  # plan(width, options) -> arguments; `width` whole solutions cost the budget


def plan_beam(width: int, options: Options, apart: bool = False, block: int = 1, ahead: int = 0) -> dict:
    """`width` samples a step cost at most as many whole solutions. They are split into `branch` of each of the nodes kept, as
    near to options.branch as it goes; `apart`: each node kept is a group of its own."""
    keep = max(1, round(width / options.branch))
    groups = keep if apart else 1
    return {"width": width - width % keep, "branch": width // keep, "groups": groups, "ahead": ahead, "block": block}


def plan_lookahead(width: int, options: Options) -> dict:
    return plan_beam(max(1, width // (1 + options.ahead)), options, ahead=options.ahead)


def plan_mcts(width: int, options: Options) -> dict:
    return {"simulations": options.simulations, "branch": min(options.branch, width), "rule": options.rule}


METHODS = {
    "best_of_n": Method(best_of_n, lambda width, options: {"width": width}),
    "beam": Method(beam, plan_beam),
    "dvts": Method(beam, lambda width, options: plan_beam(width, options, apart=True)),
    "lookahead": Method(beam, plan_lookahead),
    "vgs": Method(beam, lambda width, options: plan_beam(width, options, apart=True, block=options.block)),
    "mcts": Method(mcts, plan_mcts),
}


def plan(method: str, budget: float, per_solution: float, options: Options) -> dict:
    """The arguments with which a method spends `budget` policy tokens a problem.

    per_solution: the policy's mean tokens of a whole solution.
    """
    return METHODS[method].plan(max(1, int(budget / per_solution)), options)


def tokens_per_solution(policy: Policy, problems: Sequence[str], key, n: int = 2) -> float:
    """The policy's mean tokens of a whole solution, from n samples of each problem."""
    state = SearchState(policy, None, problems, "prod", 1, key)
    state.write([Node(p) for p in range(len(problems))], n, "end")
    return state.tokens_P.mean() / n


def search(state: SearchState, method: str, budget: float, per_solution: float, options: Options):
    """Spends `budget` policy tokens a problem, in the mean of all problems, by a method of METHODS.

    Without options.stop_at every problem is searched by the `plan` of the whole budget; those that left more than a solution
    costs are searched again by the plan of what they left; the last tokens pay for one whole solution each of the problems
    that took least. With it a first search takes the share options.first; what is left, of all problems together, goes to
    further searches of the problems that have no finished solution of at least that chance, those that took least first.
    """
    P, stop_at = len(state.problems), options.stop_at
    state.budget, state.per_solution, state.stop_at = budget, per_solution, stop_at
    problems, tokens = list(range(P)), budget * (1 if stop_at is None else options.first)
    while problems:
        before = state.tokens_P.sum()
        METHODS[method].run(state, problems, **plan(method, tokens, per_solution, options))
        state.finish_unsolved(problems)
        left, cost = budget * P - state.tokens_P.sum(), (state.tokens_P.sum() - before) / len(problems)
        if not cost:  # a server's empty texts would go on for ever
            break
        least_first = sorted(range(P), key=lambda p: state.tokens_P[p])
        if stop_at is not None:
            problems = list(filter(state.goes_on, least_first))[: max(0, int(left / cost))]
            continue
        problems = [p for p in least_first if state.tokens_P[p] + per_solution <= budget]
        if problems and left >= len(problems) * per_solution:
            tokens = min(left, sum(budget - state.tokens_P[problems])) / len(problems)
        else:
            lengths = [[x.tokens for x in state.finished(p)] or [per_solution] for p in least_first]
            method, tokens = "best_of_n", per_solution
            problems = least_first[: np.searchsorted(np.cumsum([np.mean(x) for x in lengths]), left)]
