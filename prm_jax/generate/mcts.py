"""Monte-Carlo tree search by mctx, whose loop is split so that each new node can call the policy and the
verifier.

Dimension key: P problems, K children of a node."""

import collections
import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import mctx
import numpy as np

from prm_jax.generate.search_state import Node, SearchState

MAX_IDLE = 2  # descents in a row that end at a finished child, after which the tree has settled


def mcts(state: SearchState, problems: Iterable[int], simulations: int, branch: int):
    """Grows a tree a problem without roll-outs, as AlphaZero does, with the verifier's values (mctx, PUCT). A
    simulation descends to an unvisited child and samples `branch` steps there. Equal steps are one child,
    whose prior is proportional to its number of samples times its probability. Each node has one extra
    action, "sample this node again". Its value is the mean of the node's and its children's; its prior is how
    far that mean exceeds the best child. So the tree widens only where every sampled child is poor. A
    finished child ends the descent. A tree ends after `simulations`, after MAX_IDLE descents in a row that
    grew nothing, or where the problem's budget ends."""
    P = len(state.problems)
    K = branch + 1
    problems = sorted(problems)

    def prior_K(children: Sequence[Child]) -> np.ndarray:
        """Prior logits; places without a child have almost no probability."""
        weights = [child.weight for child in children] + [0.0] * (K - len(children))
        return np.log(np.maximum(weights, 1e-9), dtype=np.float32)

    roots = [Child(Node(p), 1.0, 1.0) for p in problems]
    first = dict(zip(problems, expand(state, roots, branch), strict=True))
    trees = [[first.get(p, [])] for p in range(P)]  # the children of each problem's nodes, in mctx's order
    value_P = np.array([nodes[0][-1].probability if nodes[0] else 0.0 for nodes in trees], np.float32)
    prior_PK = np.stack([prior_K(nodes[0]) for nodes in trees])
    root = mctx.RootFnOutput(prior_logits=prior_PK, value=value_P, embedding=np.zeros(P, np.int32))
    grow = functools.partial(mctx_step, root, key=state.key, simulations=simulations)
    tree = None
    idle_P = np.zeros(P, int)  # simulations in a row that grew nothing
    for i in range(simulations):
        prior_PK = np.zeros((P, K), np.float32)
        reward_P, discount_P, value_P = np.zeros((3, P), np.float32)
        new_node = prior_PK, reward_P, discount_P, value_P
        tree = grow(None, i, new_node) if tree is None else tree
        descent = grow(tree, i, new_node)
        parent_P = np.asarray(descent.parents[:, i + 1])
        action_P = np.asarray(descent.action_from_parent[:, i + 1])
        actions = enumerate(zip(parent_P, action_P, strict=True))
        leaves = {p: trees[p][n][k] for p, (n, k) in actions if k < len(trees[p][n])}
        active = {p for p, n in enumerate(idle_P) if n < MAX_IDLE and state.continues(p, branch)}
        growing = [p for p, leaf in leaves.items() if leaf.node.is_open and p in active]
        idle_P += 1
        idle_P[growing] = 0
        grown = dict(zip(growing, expand(state, [leaves[p] for p in growing], branch), strict=True))
        for p in range(P):
            trees[p].append(grown.get(p, []))
        for p, leaf in leaves.items():
            prior_PK[p] = prior_K(trees[p][-1])
            if leaf.node.is_open:
                discount_P[p], value_P[p] = 1.0, leaf.probability
            elif leaf.node.finish_reason == "eos":
                reward_P[p] = leaf.probability
        tree = grow(tree, i, new_node)
        if not any(idle_P[p] < MAX_IDLE and state.continues(p, branch) for p in problems):
            break


class Child(NamedTuple):
    node: Node
    probability: float  # P(good), by the verifier or, of a node sampled again, by the tree
    weight: float  # prior, not normalised


def expand(state: SearchState, leaves: Sequence[Child], n: int) -> list[list[Child]]:
    """The children of each leaf: the distinct of n samples, and last its own node, to be sampled again."""
    expanded = []
    for leaf, siblings in zip(leaves, state.grow([leaf.node for leaf in leaves], n), strict=True):
        probabilities = [state.probability(node) for node in siblings]
        count, distinct = collections.Counter(), {}
        for node, p_good in zip(siblings, probabilities, strict=True):
            key = node.steps, node.finish_reason
            count[key] += 1
            distinct[key] = Child(node, p_good, p_good * count[key])
        again = float(np.mean([leaf.probability, *probabilities]))
        expanded.append([*distinct.values(), Child(leaf.node, again, again - max(probabilities))])
    return expanded


@functools.partial(jax.jit, static_argnames="simulations")
def mctx_step(root, tree, i, new_node, key, *, simulations: int):
    """The tree after simulation i, which adds `new_node`: prior_PK, reward_P, discount_P, value_P; of None
    the root alone. mctx runs all simulations in one loop under jit, where the policy cannot be called for the
    new node's numbers. So each is two calls: one with zeros shows which child the descent reaches, the second
    has its numbers."""
    prior_PK, reward_P, discount_P, value_P = new_node
    output = mctx.RecurrentFnOutput(
        reward=reward_P, discount=discount_P, prior_logits=prior_PK, value=value_P
    )

    def recurrent(params, key, action, embedding):
        return output, embedding

    def one_simulation(low, high, body, start):
        return start if tree is None else body(i, (jax.random.fold_in(key, i), tree))

    options = {"dirichlet_fraction": 0.0, "loop_fn": one_simulation}
    return mctx.muzero_policy((), key, root, recurrent, simulations, **options).search_tree
