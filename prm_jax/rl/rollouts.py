"""Roll-outs: a policy's responses, their ids cut into steps, and the packed batches that it learns from.

The policy learns from the ids that it sampled; no text is tokenised again.

Dimension key: A micro-batches, B rows, R rows of all micro-batches, L tokens, N responses."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from prm_jax.data.steps import format_steps, token_steps
from prm_jax.encoding import Encoded
from prm_jax.generate.policies import thought_before
from prm_jax.generate.sampling import Policy
from prm_jax.packing import layout_tokens, plan_rows


@dataclasses.dataclass(frozen=True)
class Rollout:
    """One response to a problem."""

    problem: str
    group: int  # the problem's place in the batch: responses to one problem are compared
    steps: tuple[str, ...]  # at least one, perhaps blank
    finished: bool  # it was not cut and has a step
    prompt_L: np.ndarray  # ids before the response
    ids_L: np.ndarray  # ids of the response
    logp_L: np.ndarray  # log p of each under the policy that sampled it
    step_L: np.ndarray  # the number of steps that ended before each: the step that it belongs to, or begins
    thought: str = ""  # its opening, where the prompt ends with one: what is never closed states no answer


def roll_out(policy: Policy, problems: Sequence[str], n: int, key) -> list[Rollout]:
    """n responses to each problem, problem by problem; `Policy.extend` says how they are drawn."""
    prefixes = [(problem, ()) for problem in problems]
    prompts = policy.prefix_ids(prefixes)
    responses = policy.extend(prefixes, n, "end", key)
    rollouts = []
    for group, (problem, prompt_L, samples) in enumerate(zip(problems, prompts, responses, strict=True)):
        thought = thought_before(policy, problem).strip()
        for c in samples:
            steps, step_L = split_steps(policy, c.ids_L)
            finished = c.finish_reason == "eos" and bool(steps[0].strip())
            response = Rollout(problem, group, steps, finished, prompt_L, c.ids_L, c.logp_L, step_L, thought)
            rollouts.append(response)
    return rollouts


def split_steps(policy: Policy, ids_L: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """(steps, step_L), the step of each token."""
    fmt = policy.format
    step_L = np.array(token_steps(fmt, [policy.token_texts[i] for i in ids_L]), int)
    is_text_L = ~np.isin(ids_L, policy.eos_ids)
    steps = []
    for t in range(step_L.max(initial=0) + 1):
        ids = ids_L[is_text_L & (step_L == t)]
        text = policy.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        steps.append(fmt.separator.join(format_steps(fmt, text)))
    places = np.cumsum([0, *map(bool, steps)])  # a step of white space is none
    return tuple(filter(None, steps)) or ("",), places[step_L]


def arrays(rollouts: Sequence[Rollout]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(step_of_token_NL, mask_NL, group_N) of an estimator; what follows the last step has none."""
    step_NL = padded([np.where(r.step_L < len(r.steps), r.step_L, ~r.step_L) for r in rollouts])
    mask_NL = padded([np.ones(len(r.ids_L)) for r in rollouts])
    return step_NL.astype(int), mask_NL > 0, np.array([r.group for r in rollouts])


def padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of different lengths as one array of the longest one's width, with 0 behind the others."""
    x_NL = np.zeros((len(rows), max(map(len, rows))))
    for i, row_n in enumerate(rows):
        x_NL[i, : len(row_n)] = row_n
    return x_NL


@dataclasses.dataclass(frozen=True)
class RolloutLayout:
    """The places of roll-outs' tokens in packed rows, A micro-batches of B. A row is a prefix tree: the first
    tokens of responses may be shared, so `scatter` adds the numbers of a place up."""

    # [A, B, L]: ids, pos, visible_until; places of the token before and of the response's `start`
    batch: dict[str, np.ndarray]
    used: int  # micro-batches with tokens; empty ones follow, so that one compiled program serves all batches
    places: list[tuple[int, np.ndarray]]  # each roll-out's row (of A x B), and its tokens' places in that

    def scatter(self, x_NL: np.ndarray) -> np.ndarray:
        """x_ABL: the numbers of each response's tokens, summed at their places; 0 elsewhere."""
        A, B, L = self.batch["ids"].shape
        x_RL = np.zeros((A * B, L), np.float32)
        for x_L, (row, place_L) in zip(x_NL, self.places, strict=True):
            x_RL[row, place_L] += x_L[: len(place_L)]
        return x_RL.reshape(A, B, L)

    def gather(self, x_ABL: np.ndarray) -> np.ndarray:
        """x_NL: the numbers at each response's places, 0 behind them."""
        x_RL = x_ABL.reshape(-1, x_ABL.shape[-1])
        return padded([x_RL[row, place_L] for row, place_L in self.places])


def lay_out(rollouts: Sequence[Rollout], rows: int, row_tokens: int, most: int, share=True) -> RolloutLayout:
    """The layout in micro-batches of `rows` rows, as many as `most` roll-outs need at worst."""
    sequences = [np.concatenate([r.prompt_L, r.ids_L]) for r in rollouts]
    packs = plan_rows(sequences, row_tokens, share)
    used = -(-len(packs) // rows)
    packs += [[]] * (-(-most // rows) * rows - len(packs))
    starts = [len(r.prompt_L) for r in rollouts]
    none = np.zeros(0, np.int32)  # no step ends
    encoded = [[Encoded(sequences[i], none, starts[i]) for i in pack] for pack in packs]
    batch, places = layout_tokens(encoded, row_tokens, share)
    batch |= {name: np.zeros_like(batch["ids"]) for name in ("before", "start")}
    place_of = {}
    for row, (pack, places_of_pack) in enumerate(zip(packs, places, strict=True)):
        for i, place_L in zip(pack, places_of_pack, strict=True):
            place_of[i] = row, place_L[starts[i] :]
            batch["before"][row, place_L[starts[i] :]] = place_L[starts[i] - 1 : -1]
            batch["start"][row, place_L[starts[i] :]] = place_L[starts[i]]
    batch = {name: x.reshape(-1, rows, row_tokens) for name, x in batch.items()}
    return RolloutLayout(batch, used, [place_of[i] for i in range(len(rollouts))])
