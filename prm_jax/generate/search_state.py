"""The state of a search: nodes, each the first steps of a solution with a verifier's scores, and their cost.

Dimension key: P problems, T steps."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from prm_jax import rerank
from prm_jax.data.answers import extract
from prm_jax.data.pools import Candidate, Problem
from prm_jax.data.steps import format_steps
from prm_jax.data.units import UNITS, probability
from prm_jax.protocols import Policy, Prefix, Scorer

NO_STEPS = np.zeros(0, np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """The first steps of a solution, and the verifier's scores of them."""

    problem: int  # number of the problem
    steps: tuple[str, ...] = ()
    logit_T: np.ndarray = dataclasses.field(default_factory=lambda: NO_STEPS)  # log-odds of each step
    value: float = 0.0  # their aggregate; 0, the log of 1, for a bare problem
    finish_reason: str = "stop"  # a Continuation's: stop (is open), eos (finished), length (cut: dead)
    tokens: int = 0  # the policy's tokens of all its steps

    @property
    def is_open(self) -> bool:
        return self.finish_reason == "stop"


@dataclasses.dataclass(eq=False)
class SearchState:
    """The problems, all nodes so far, and their cost. Draws of a problem do not depend on the others."""

    policy: Policy
    scorer: Scorer
    problems: Sequence[str]
    aggregator: str
    max_steps: int
    key: object
    budget: float = np.inf  # this and the next: see `search`
    per_solution: float = 0.0

    def __post_init__(self):
        greedy = dataclasses.replace(self.policy.sampling, temperature=0)
        self.greedy = dataclasses.replace(self.policy, sampling=greedy)
        self.nodes: list[list[Node]] = [[] for _ in self.problems]  # the scored nodes of each problem
        self.tokens_P = np.zeros(len(self.problems), int)  # policy tokens, lookahead included
        self.prefixes_P = np.zeros_like(self.tokens_P)  # number of continued prefixes
        self.steps = 0  # continuations to the end of a step, and their tokens
        self.step_tokens = 0
        self.scores: dict[Prefix, np.ndarray] = {}  # log-odds: no text is scored twice

    def row(self, node: Node) -> Prefix:
        return self.problems[node.problem], node.steps

    def write(self, nodes: Sequence[Node], n: int, stop="step", policy=None) -> list[list[Node]]:
        """n continuations of each node, without scores; `policy`: another one than the state's."""
        policy = policy or self.policy
        numbers, written = [], []
        for node in nodes:
            numbers.append(node.problem << 16 | self.prefixes_P[node.problem])
            self.prefixes_P[node.problem] += 1
        continuations = policy.extend([self.row(node) for node in nodes], n, stop, self.key, numbers)
        for node, samples in zip(nodes, continuations, strict=True):
            children = []
            for c in samples:
                steps = (*node.steps, *format_steps(policy.format, c.text))
                tokens = node.tokens + len(c.ids_L)
                children.append(Node(node.problem, steps, NO_STEPS, 0.0, c.finish_reason, tokens))
            spent = sum(len(c.ids_L) for c in samples)
            self.tokens_P[node.problem] += spent
            if stop == "step":
                self.steps += n
                self.step_tokens += spent
            written.append(children)
        return written

    def score(self, nodes: Sequence[Node]) -> list[Node]:
        """The same nodes with the verifier's log-odds and value."""
        rows = list(map(self.row, nodes))
        unknown = [row for row in dict.fromkeys(rows) if row[1] and row not in self.scores]
        to_log_odds = UNITS[self.scorer.unit].log_odds
        for row, score_T in zip(unknown, self.scorer.score(unknown), strict=True):
            self.scores[row] = np.asarray(to_log_odds(score_T), np.float32)
        logits = [self.scores.get(row, NO_STEPS) for row in rows]
        values = rerank.solution_scores(logits, self.aggregator).tolist()
        scored = zip(nodes, logits, values, strict=True)
        return [dataclasses.replace(node, logit_T=logit_T, value=value) for node, logit_T, value in scored]

    def grow(self, nodes: Sequence[Node], n: int, stop: str = "step", block: int = 1) -> list[list[Node]]:
        """n scored children of each node, each at least `block` tokens longer, up to the end of a step."""
        if not nodes:
            return []
        children = [child for siblings in self.write(nodes, n, stop) for child in siblings]
        enough = [node.tokens + block for node in nodes for _ in range(n)]
        while short := [i for i, child in enumerate(children) if child.is_open and child.tokens < enough[i]]:
            for i, (child,) in zip(short, self.write([children[i] for i in short], 1), strict=True):
                children[i] = child
        children = self.score(children)
        for child in children:
            self.nodes[child.problem].append(child)
        return [children[i : i + n] for i in range(0, len(children), n)]

    def look_ahead(self, nodes: Sequence[Node], steps: int) -> list[float]:
        """The value of what `steps` more greedy steps reach from each node; equal nodes go on once."""
        reached = {self.row(node): node for node in nodes}
        for _ in range(steps):
            rows = [row for row, node in reached.items() if node.is_open]
            written = self.write([reached[row] for row in rows], 1, policy=self.greedy)
            reached |= {row: node for row, (node,) in zip(rows, written, strict=True)}
        scored = dict(zip(reached, self.score(list(reached.values())), strict=True))
        return [scored[self.row(node)].value for node in nodes]

    def finished(self, p: int) -> list[Node]:
        return [node for node in self.nodes[p] if node.finish_reason == "eos" and node.steps]

    def continues(self, p: int, samples: int = 0) -> bool:
        """Whether the budget pays for `samples` next steps and, where no solution is finished, the end of
        one."""
        cost = samples * self.step_tokens / max(self.steps, 1)
        if not self.finished(p):
            cost += max(0.0, self.per_solution - self.deepest(p).tokens)
        return self.tokens_P[p] + cost <= self.budget

    def deepest(self, p: int) -> Node:
        """The open node with the most steps, among equals the best; the bare problem where there is none. The
        node of the highest value would be short: a product of scores falls with each step."""
        open_nodes = (node for node in self.nodes[p] if node.is_open)
        return max(open_nodes, key=lambda node: (len(node.steps), node.value), default=Node(p))

    def finish_unsolved(self, problems: Iterable[int]):
        """Continues the deepest node of each problem without a finished solution to its end."""
        self.grow([self.deepest(p) for p in problems if not self.finished(p)], 1, "end")

    def probability(self, node: Node) -> float:
        """The value as a probability."""
        is_log = rerank.AGGREGATORS[self.aggregator].is_log_probability
        return float(np.exp(node.value) if is_log else probability(node.value))

    def pool(self, questions: Sequence[Problem], name: str) -> list[Problem]:
        """The finished solutions of each problem; without one, a cut or empty one marked unfinished."""
        problems = []
        empty = Node(0, ("",), np.zeros(1), finish_reason="length")
        for p, q in enumerate(questions):
            cut = [node for node in self.nodes[p] if node.finish_reason == "length" and node.steps]
            candidates = []
            for node in self.finished(p) or cut[-1:] or [empty]:
                scores = {name: tuple(map(float, node.logit_T))}
                stated = extract("\n".join(node.steps))
                candidates.append(Candidate(node.steps, stated, None, node.finish_reason == "eos", scores))
            more = {"scores_unit": {name: "logit"}, "policy_tokens": int(self.tokens_P[p])}
            problems.append(dataclasses.replace(q, candidates=tuple(candidates), **more))
        return problems
