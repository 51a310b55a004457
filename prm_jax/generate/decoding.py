"""Decodes many samples together: a place whose sample has ended takes the next one that waits.

A sample writes the slots of its own row of the cache, so that its numbers depend on neither the batch nor
when it came. Shapes are few: of the prompts, of the places (fewer at the end) and of the cache's slots.

Dimension key: P prompts, B places, k new samples, L tokens of a prompt, S slots, t new tokens, D model, V
vocabulary."""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.generate import policies
from prm_jax.generate.policies import Sampling
from prm_jax.kernels.draw import inverse_cdf, most_likely
from prm_jax.launch import mesh
from prm_jax.launch.sharding import ROWS, pin
from prm_jax.model import PRM, Cache, for_decoding, make_cache, write
from prm_jax.visibility import ALWAYS


def draw_ids(logit_BV, uniform_B, sampling: Sampling):
    """A token a row, id_B, from one random number of 23 bits: probabilities have an error of 1e-7."""
    if sampling.temperature < 1e-30:  # nearly 0 in float32
        return logit_BV.argmax(-1).astype(jnp.int32)
    p_BV = jnp.exp((logit_BV - logit_BV.max(-1, keepdims=True)) / sampling.temperature)
    if sampling.top_k is not None and sampling.top_k < p_BV.shape[1]:
        p_BV = most_likely(p_BV, 1, jnp.full(len(p_BV), sampling.top_k))
    if sampling.top_p < 1:
        p_BV = most_likely(p_BV, p_BV, sampling.top_p * p_BV.sum(-1))
    return inverse_cdf(p_BV, uniform_B)


def uniforms(key_B, t_B, n: int):
    """Random numbers of n tokens from position t_B on, uniform_tB, at once: the loop would wait for each."""
    t_tB = t_B + jnp.arange(n)[:, None]
    key_tB = jax.vmap(jax.vmap(jax.random.fold_in), (None, 0))(key_B, t_tB)
    return jax.vmap(jax.vmap(jax.random.uniform))(key_tB)


def sample_token(model: PRM, x_BD, uniform_B, sampling: Sampling):
    """The next tokens and their log-probabilities, (id_B, logp_B), from the last tokens' hidden states."""
    logit_BV = model.vocab_logits(x_BD)
    id_B = draw_ids(logit_BV, uniform_B, sampling)
    logp_B = jnp.take_along_axis(logit_BV, id_B[:, None], 1)[:, 0] - jax.nn.logsumexp(logit_BV, -1)
    return id_B, logp_B


def pin_cache(cache: Cache, rows=ROWS) -> Cache:
    """The cache with its heads, and its rows unless None, split over the mesh."""
    layers = jax.tree.map(lambda x_BGxx: pin(x_BGxx, rows, "tensor"), cache.layers)
    return cache._replace(layers=layers)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def empty_cache(cfg, rows: int, slots: int) -> Cache:
    return pin_cache(make_cache(cfg, rows, slots))


@functools.partial(jax.jit, static_argnames="slots")
def resize(cache: Cache, row_b, slots: int) -> Cache:
    """Rows row_b of the cache with `slots` more empty slots."""
    return pin_cache(cache.take(row_b).grow(slots))


prepare = jax.jit(for_decoding)


@jax.jit
def _prefill(model: PRM, ids_PL, first_P):
    """Computes left-padded prompts, which start in slot first_P: the hidden states of their last tokens,
    x_PD, their cache and first_P. Each device has all of these rows, since its places may take any."""
    slot_L = jnp.arange(ids_PL.shape[1])
    cache = make_cache(model.cfg, *ids_PL.shape)
    is_real_PL = slot_L >= first_P[:, None]
    pos_PL = jnp.maximum(slot_L - first_P[:, None], 0)
    x_PLD, cache = model(ids_PL, pos_PL, jnp.where(is_real_PL, ALWAYS, slot_L), cache=cache)
    return pin(x_PLD[:, -1]), pin_cache(cache, None), first_P


class Stops(NamedTuple):
    """The tokens that end a continuation."""

    stop_V: np.ndarray
    blank_V: np.ndarray  # those that end it only behind a text: a step is not a blank line


def empty_rows(places: int, max_tokens: int) -> dict[str, np.ndarray]:
    """What is known of each place's sample beside its cache."""
    zeros_B, zeros_Bt = np.zeros(places, np.int32), np.zeros((places, max_tokens), np.int32)
    return {
        "prefix": zeros_B,  # the place of its prefix in the call
        "sample": zeros_B,  # its number among those of the prefix
        "id": zeros_B,  # its last token
        "t": zeros_B,  # number of its tokens
        "first": zeros_B,  # the slot where its prompt begins
        "done": zeros_B == 0,  # it has ended, or there is none
        "wrote": zeros_B > 0,  # it has a text
        "key": np.zeros((places, *jax.random.key_data(jax.random.key(0)).shape), np.uint32),
        "ids": zeros_Bt,
        "logp": zeros_Bt.astype(np.float32),
    }


def append(rows: dict, id_B, logp_B, stops: Stops, sampling: Sampling) -> dict:
    """The rows with one token more; what is done takes none."""
    done_B, t_B = rows["done"], rows["t"]
    wrote_B = rows["wrote"] | ~stops.blank_V[id_B]
    at_B1 = jnp.where(done_B, sampling.max_tokens, t_B)[:, None]  # beyond the last: nothing is written
    return rows | {
        "id": id_B,
        "t": t_B + ~done_B,
        "done": done_B | (stops.stop_V[id_B] & wrote_B) | (t_B + 1 >= sampling.max_tokens),
        "wrote": wrote_B,
        "ids": write(rows["ids"], at_B1, id_B[:, None]),
        "logp": write(rows["logp"], at_B1, logp_B[:, None]),
    }


@functools.partial(jax.jit, donate_argnames="cache")
def _put(cache: Cache, prompts, prompt_k, place_k):
    """The cache with prompts prompt_k of `_prefill` in places place_k, of which one beyond the last is left
    out; x_kD and first_k of these prompts."""
    x_PD, prompt_cache, first_P = prompts
    cache = cache.put(place_k, prompt_cache.take(prompt_k))
    return pin_cache(cache), *mesh.replicate((x_PD[prompt_k], first_P[prompt_k]))


@functools.partial(jax.jit, static_argnames="sampling")
def _first(model: PRM, x_kD, first_k, new: dict, key, stops: Stops, sampling: Sampling) -> dict:
    """The rows of k new samples with their first tokens. `new` has each one's prefix and sample, and the
    number by which the prefix draws."""
    key_k = policies.sample_keys(key, new["number"], new["sample"])
    start = jax.tree.map(jnp.asarray, empty_rows(len(key_k), sampling.max_tokens))
    start |= {"prefix": new["prefix"], "sample": new["sample"], "first": first_k}
    start["done"] = jnp.zeros_like(start["done"])
    start["key"] = jax.random.key_data(key_k)
    token = sample_token(model, x_kD, uniforms(key_k, start["t"], 1)[0], sampling)
    return mesh.replicate(append(start, *token, stops, sampling))


@functools.partial(jax.jit, static_argnames=("steps", "sampling"), donate_argnames="cache")
def _decode(model: PRM, cache: Cache, rows, enough, stops: Stops, steps: int, sampling: Sampling):
    """The cache and rows after up to `steps` more tokens, and the number of steps: until `enough` rows are
    done, or one has no slots left."""
    B, S = cache.visible_until_BS.shape
    until_B1 = jnp.full((B, 1), ALWAYS)
    uniform_tB = uniforms(jax.random.wrap_key_data(rows["key"]), rows["t"], steps)
    pos_tB = cache.length_B - rows["first"] + jnp.arange(steps)[:, None]
    ropes_tB1k = model.ropes(pos_tB)  # the loop would compute the angles again for each layer and head

    def is_unfinished(carry):
        i, cache, rows = carry
        has_slots_B = rows["done"] | (cache.length_B < S)
        return (i < steps) & (rows["done"].sum() < enough) & has_slots_B.all()

    def step(carry):
        i, cache, rows = carry
        ropes_B11k = jax.tree.map(lambda x_tB1k: x_tB1k[i][:, None], ropes_tB1k)
        id_B1 = rows["id"][:, None]
        length_B = cache.length_B
        x_B1D, cache = model(id_B1, pos_tB[i][:, None], until_B1, cache=cache, ropes=ropes_B11k)
        token = sample_token(model, x_B1D[:, 0], uniform_tB[i], sampling)
        cache = cache._replace(length_B=jnp.where(rows["done"], length_B, cache.length_B))
        return i + 1, cache, append(rows, *token, stops, sampling)

    i, cache, rows = jax.lax.while_loop(is_unfinished, step, (0, cache, dict(rows)))
    return pin_cache(cache), mesh.replicate((rows, i))


def padded_slots(n: int) -> int:
    """At least n slots: 2^k or 3/4 of it. Attention reads all of them; each number is programs of its own."""
    power = 1 << (n - 1).bit_length()
    return power * 3 // 4 if n <= power * 3 // 4 else power


STEPS = 16  # tokens of one call: their random numbers and rotations are computed at once


class Places:
    """B places, which one cache serves, and the samples in them. It begins with slots for the shortest
    prompts, of L tokens, and grows by at least `room`."""

    def __init__(self, model: PRM, places: int, L: int, stops: Stops, sampling: Sampling, room: int):
        self.model = prepare(model)
        self.stops = stops
        self.sampling = sampling
        self.room = room
        self.longest = L  # slots of the longest prompt
        self.cache = empty_cache(model.cfg, places, padded_slots(L + min(room, sampling.max_tokens)))
        self.rows = empty_rows(places, sampling.max_tokens)
        self.taken_B = np.ones(places, bool)  # places whose sample was yielded, or that had none
        self.used = 0  # places times steps

    def grow(self, filled: int):
        """Gives the cache more than `filled` slots, at least half as many again at once."""
        B, S = self.cache.visible_until_BS.shape
        if S <= filled:
            needed = self.longest + self.sampling.max_tokens
            slots = padded_slots(min(needed, filled + max(self.room, S // 2)))
            self.cache = resize(self.cache, np.arange(B), slots - S)

    def prefill(self, prompts: Sequence[tuple], P: int, L: int) -> tuple:
        """Computes prompts of at most L ids, padded to P of L."""
        ids_PL, first_P = np.zeros((P, L), np.int32), np.full(P, L, np.int32)
        for p, ids in enumerate(prompts):
            first_P[p] = L - len(ids)
            ids_PL[p, first_P[p] :] = ids
        self.longest = max(self.longest, L)
        self.grow(L)
        return _prefill(self.model, ids_PL, first_P)

    def insert(self, new: dict, prompts: tuple, size: int, key):
        """Puts samples (`_first`) behind prompts in free places; padded to `size`: few programs serve."""
        n = len(new["sample"])
        place_n = np.flatnonzero(self.rows["done"])[:n]
        place_k = np.pad(place_n, (0, size - n), constant_values=len(self.taken_B))
        new = {name: np.pad(x_n, (0, size - n)) for name, x_n in new.items()}
        self.cache, *last = _put(self.cache, prompts, new.pop("prompt"), place_k)
        first = _first(self.model, *last, new, key, self.stops, self.sampling)
        for name, x_k in jax.device_get(first).items():
            self.rows[name] = self.rows[name].copy()
            self.rows[name][place_n] = x_k[:n]
        self.taken_B[place_n] = False

    def decode(self, free: int) -> Iterator[tuple]:
        """Decodes until `free` places are; yields (prefix, sample, ids, log-probabilities) of what
        has ended."""
        while self.rows["done"].sum() < free:
            state = self.model, self.cache, self.rows
            self.cache, out = _decode(*state, free, self.stops, STEPS, self.sampling)
            self.rows, steps = jax.device_get(out)
            self.used += int(steps) * len(self.taken_B)
            if steps < STEPS and self.rows["done"].sum() < free:  # a row has no slots
                self.grow(self.cache.visible_until_BS.shape[1])
        for b in np.flatnonzero(self.rows["done"] & ~self.taken_B):
            row = {name: x_B[b] for name, x_B in self.rows.items()}
            t = row["t"]
            yield row["prefix"], row["sample"], row["ids"][:t].copy(), row["logp"][:t].copy()
        self.taken_B = self.rows["done"].copy()

    def shrink(self, places: int):
        """Keeps the living rows alone, in this number of places."""
        living = np.flatnonzero(~self.rows["done"])
        place_b = np.pad(living, (0, places - len(living)))
        self.cache = resize(self.cache, place_b, 0)
        self.rows = {name: x_B[place_b] for name, x_B in self.rows.items()}
        self.rows["done"][len(living) :] = True
        self.taken_B = self.rows["done"].copy()
