"""Monte-Carlo tree search by mctx, whose loop is taken apart so that each new node can ask the policy and the verifier.

Dimension key: P problems, K children of a node.
"""

import collections
import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import mctx
import numpy as np

from prm_jax.generate.search_state import Node, SearchState

MAX_IDLE = 2  # descents in a row that end at a finished child: the tree has settled


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
            elif leaf.node.finish_reason == "eos":
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
            count[node.steps, node.finish_reason] += 1
            distinct[node.steps, node.finish_reason] = Child(
                node, p_good, p_good * count[node.steps, node.finish_reason]
            )
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
