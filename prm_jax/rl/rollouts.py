"""Roll-outs: what a policy wrote, its ids cut into steps, and the packed batches that it learns from.

The ids that were sampled are the ids that are learned from; no text is tokenised again.

Dimension key: A micro-batches, B rows, L tokens, N responses, T steps.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from prm_jax.data.formats import Encoded
from prm_jax.data.packing import layout_batch, plan_rows
from prm_jax.generate.sampling import Policy


@dataclasses.dataclass(frozen=True)
class Rollout:
    """One response to a problem."""

    problem: str
    group: int  # the problem's place in the batch: responses to one problem are compared
    steps: tuple[str, ...]  # at least one, perhaps blank
    finished: bool  # it ended by itself and has a step
    prompt_L: np.ndarray  # ids before the response
    ids_L: np.ndarray  # ids of the response
    logp_L: np.ndarray  # log p of each, by the policy that wrote it
    step_L: np.ndarray  # which step each belongs to


def roll_out(policy: Policy, problems: Sequence[str], n: int, key, first: int = 0) -> list[Rollout]:
    """n responses to each problem, drawn as by `Policy.extend`; problem by problem."""
    prefixes = [(problem, ()) for problem in problems]
    prompts, found = policy.prefix_ids(prefixes), policy.extend(prefixes, n, "end", key, first)
    rollouts = []
    for group, (problem, prompt_L, samples) in enumerate(zip(problems, prompts, found, strict=True)):
        for sample in samples:
            steps, step_L = cut(policy, sample.ids_L)
            finished = sample.finish_reason == "eos" and bool(steps[0].strip())
            rollouts.append(Rollout(problem, group, steps, finished, prompt_L, sample.ids_L, sample.logp_L, step_L))
    return rollouts


def cut(policy: Policy, ids_L: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """(steps, step_L): a step ends with the token whose text holds the separator; blank pieces belong to the step before."""
    separator, steps, step_L = policy.format.separator, [], np.zeros(len(ids_L), int)
    ends = np.flatnonzero(policy.stop_masks["step"][ids_L]) + 1
    starts = [0, *ends.tolist()]
    for start, end in zip(starts, [*ends.tolist(), len(ids_L)], strict=True):
        own = [i for i in ids_L[start:end].tolist() if i not in policy.eos_ids]
        text = policy.tokenizer.decode(own, clean_up_tokenization_spaces=False).removesuffix(separator)
        if text.strip():
            steps.append(text.strip() if policy.format.strip else text)
        step_L[start:end] = max(len(steps) - 1, 0)
    return tuple(steps) or ("",), step_L


def arrays(rollouts: Sequence[Rollout]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(step_of_token_NL, mask_NL, group_N), as rl/advantages.py has them."""
    N, L = len(rollouts), max(len(r.ids_L) for r in rollouts)
    step_NL, mask_NL = np.zeros((N, L), int), np.zeros((N, L), bool)
    for i, r in enumerate(rollouts):
        step_NL[i, : len(r.ids_L)], mask_NL[i, : len(r.ids_L)] = r.step_L, True
    return step_NL, mask_NL, np.array([r.group for r in rollouts])


def padded(rows: Sequence[np.ndarray], width: int) -> np.ndarray:
    """Rows of several lengths as one array, 0 behind each."""
    found = np.zeros((len(rows), width))
    for own_n, row_n in zip(found, rows, strict=True):
        own_n[: len(row_n)] = row_n
    return found


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the tokens of roll-outs stand in packed rows: prefix trees, in which what responses share stands once.

    Rows are in A micro-batches of B. A shared token is one token of several responses: their numbers are summed there.
    """

    batch: dict[str, np.ndarray]  # ids, pos, visible_until and `before`, the place of the token before, [A, B, L]
    used: int  # micro-batches that hold something: the rest are there so that one program serves all batches
    places: list[tuple[int, np.ndarray]]  # of each roll-out its row of A x B, and the places of its own tokens in that

    def put(self, x_NL: np.ndarray) -> np.ndarray:
        """A number for each token of a response, summed at its place, x_ABL; 0 elsewhere."""
        A, B, L = self.batch["ids"].shape
        found = np.zeros((A * B, L), np.float32)
        for own_L, (row, place_L) in zip(x_NL, self.places, strict=True):
            found[row, place_L] += own_L[: len(place_L)]
        return found.reshape(A, B, L)

    def take(self, x_ABL: np.ndarray, width: int) -> np.ndarray:
        """What stands at the places of each response, x_NL of so many columns; 0 behind it."""
        rows = x_ABL.reshape(-1, x_ABL.shape[-1])
        return padded([rows[row, place_L] for row, place_L in self.places], width)


def lay_out(rollouts: Sequence[Rollout], rows: int, row_tokens: int, most: int, share: bool = True) -> Layout:
    """A is what `most` roll-outs need at worst."""
    sequences = [np.concatenate([r.prompt_L, r.ids_L]) for r in rollouts]
    packs, _ = plan_rows(sequences, row_tokens, share)
    used = -(-len(packs) // rows)
    packs += [[]] * (-(-most // rows) * rows - len(packs))
    none, place_of = np.zeros(0, np.int32), {}
    as_read = lambda i: Encoded(sequences[i], none, len(rollouts[i].prompt_L))
    batch, places, _ = layout_batch([[as_read(i) for i in pack] for pack in packs], row_tokens, share=share)
    del batch["step_end"]
    batch["before"] = np.zeros_like(batch["ids"])
    for row, (pack, own) in enumerate(zip(packs, places, strict=True)):
        for i, place_L in zip(pack, own, strict=True):
            start = len(rollouts[i].prompt_L)
            place_of[i] = row, place_L[start:]
            batch["before"][row, place_L[start:]] = place_L[start - 1 : -1]
    batch = {name: x.reshape(-1, rows, row_tokens) for name, x in batch.items()}
    return Layout(batch, used, [place_of[i] for i in range(len(rollouts))])
