"""Samples continuations from a language model, to the end of a step or of the text.

Sample j of prefix i draws the token at position t with fold_in(fold_in(fold_in(key, i), j), t), so it depends
on neither the batch nor the devices, up to rounding: other shapes may sum a logit in another order, and a
draw within about 1e-6 of the border between two tokens may then take the other one.

Dimension key: P prompts, B places of samples that are decoded together, L tokens of a prompt, T steps, V
vocabulary."""

import collections
import dataclasses
import functools
import hashlib
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from prm_jax import InputError
from prm_jax.checkpoints.folders import end_ids, locate
from prm_jax.checkpoints.open import Loaded, open_checkpoint
from prm_jax.data.steps import step_sums
from prm_jax.encoding import encode
from prm_jax.formats import Format, opening, policy_format, turn_end
from prm_jax.generate import policies
from prm_jax.generate.decoding import Places, Stops
from prm_jax.generate.policies import Sampling, SamplingStats, Served, Server, with_thought
from prm_jax.launch import mesh
from prm_jax.launch.config import expect
from prm_jax.launch.progress import progress
from prm_jax.launch.sharding import platform
from prm_jax.model import PRM
from prm_jax.protocols import Continuation, Prefix, Rows

SHORTEST = 16  # prompts are padded to this many tokens, longer ones to a power of two: a few shapes serve all
# What fills a CPU's products: the places times the model's width. With fewer than LEAST a program of their
# own does not pay, and XLA sums products in another order; more than FULL are no faster.
LEAST, FULL = 1 << 13, 1 << 15
# Slots by which the cache grows: attention reads all of it, and a step is seldom long. 48 hold a solution of
# the embedded policy, of 44 tokens at most in 16,000.
ROOM = {"end": 48, "step": 16}


@dataclasses.dataclass
class Policy:
    """A language model that continues solutions. A step ends with any token whose text contains the format's
    separator (many tokenizers fuse `.` and a line end)."""

    model: PRM
    tokenizer: object
    format: Format
    name: str  # folder and step
    sampling: Sampling
    batch_rows: int = 64
    # Ids that end a text; empty: that of the tokenizer. The end of a turn of the chat template joins them
    eos_ids: tuple[int, ...] = ()
    stats: SamplingStats = dataclasses.field(default_factory=SamplingStats)

    def __post_init__(self):
        self.format = policy_format(self.format, self.tokenizer)
        ends = set(self.eos_ids) or {self.tokenizer.eos_token_id} - {None}
        self.eos_ids = tuple(sorted(ends | turn_end(self.format, self.tokenizer)))
        expect(self.eos_ids, f"{self.name}: tokenizer", None, "an end-of-sequence token")
        policies.check_format(self.format)

    @property
    def dtype(self) -> str:
        return self.model.cfg.dtype

    @functools.cached_property
    def stops(self) -> dict[str, Stops | None]:
        """What ends a continuation, by the `stop` of `extend`; None: no token of ours ends a step."""
        end_V = np.isin(np.arange(self.model.cfg.vocab), self.eos_ids)
        blank_V = ~end_V & np.array([not text.strip() for text in self.token_texts])
        step_V = np.array([self.format.separator in text for text in self.token_texts])
        step = Stops(end_V | step_V, blank_V) if step_V.any() else None
        return {"end": Stops(end_V, blank_V), "step": step}

    @functools.cached_property
    def token_texts(self) -> list[str]:
        """The text of each id; none of one that ends a text, or that the tokenizer does not know."""
        known = min(max(self.tokenizer.get_vocab().values()) + 1, self.model.cfg.vocab)
        texts = self.tokenizer.batch_decode([[i] for i in range(known)])
        texts = ["" if i in self.eos_ids else text for i, text in enumerate(texts)]
        return texts + [""] * (self.model.cfg.vocab - known)

    def prompt(self, problem: str) -> str:
        """The text before the first step."""
        return opening(self.format, self.tokenizer, problem)

    def prefix_ids(self, prefixes: Sequence[Prefix]) -> list[np.ndarray]:
        """Ids of the texts to continue: all that precedes the next step's tokens in training. Blank lines that
        the policy wrote between steps are not among them, unless format.separator has them."""
        ids = []
        for e, (problem, _) in zip(encode(self.format, self.tokenizer, prefixes), prefixes, strict=True):
            ids.append(e.ids_L[: e.step_end_T[-1] + 1 if len(e.step_end_T) else e.start])
            expect(len(ids[-1]), f"prefix {problem[:60]!r}", "", "a text of at least one token")
        return ids

    def extend(self, prefixes: Rows, n: int, stop: str, key, numbers=None) -> list[list[Continuation]]:
        """n continuations of each (problem, steps so far), drawn as protocols.Policy says."""
        start = time.perf_counter()
        stops = self.stops[stop]
        expect(stops, "format.separator", self.format.separator, f"a text within one token of {self.name}")
        mesh.check_divides(self.model.cfg, self.batch_rows, "batch_rows")
        requests = collections.defaultdict(list)  # distinct ids, which are computed once -> their prefixes
        for i, ids_L in enumerate(self.prefix_ids(prefixes)):
            requests[tuple(ids_L.tolist())].append(i)
        number_P = np.arange(len(prefixes)) if numbers is None else np.asarray(numbers)
        total = n * len(prefixes)
        B = self.count_places(total)
        shortest = min(map(padded_length, requests), default=SHORTEST)
        places = Places(self.model, B, shortest, stops, self.sampling, ROOM[stop])
        samples = [[None] * n for _ in prefixes]
        drawn = self.draw(places, requests, n, key, number_P)
        bar = progress("samples", total, "sample", iterable=drawn, delay=5, leave=False)
        for prefix, j, ids_L, logp_L in bar:
            expect(not np.isnan(logp_L).any(), self.name, "nan as a log-probability", "numbers")
            c = self.continuation(ids_L, logp_L, stops.stop_V)
            samples[prefix][j] = with_thought(self, prefixes[prefix], c)
            self.stats.tokens += len(ids_L)
        self.stats.continuations += total
        self.stats.places += places.used
        self.stats.prompts += len(requests)
        self.stats.seconds += time.perf_counter() - start
        return samples

    def draw(self, places: Places, requests: dict, n: int, key, number_P) -> Iterator[tuple]:
        """Yields (prefix's place in the call, sample's number, ids, log-probabilities) of n samples of each
        request, as they end. The places are filled whenever an eighth of them is free, and halved when none
        waits."""
        B = len(places.taken_B)
        few = max(1, B // 8)
        by_length = sorted(requests, key=padded_length)  # among equals the order stays
        at_once = max(1, self.batch_rows // n)
        for L, alike in itertools.groupby(by_length, padded_length):
            prompts = list(alike)
            for i in range(0, len(prompts), at_once):
                group = prompts[i : i + at_once]
                P = mesh.pad_rows(max(len(group), min(32, 512 // L), 1), self.batch_rows)
                computed = places.prefill(group, P, L)
                waiting = []
                for p, ids in enumerate(group):
                    waiting += [(p, prefix, j) for prefix in requests[ids] for j in range(n)]
                while waiting:
                    free = int(places.rows["done"].sum())
                    size, most = (B, free) if 2 * free > B else (few, few)
                    chosen, waiting = waiting[:most], waiting[most:]
                    yield from places.decode(len(chosen))
                    prompt_n, prefix_n, sample_n = np.array(chosen).T
                    new = {"prompt": prompt_n, "prefix": prefix_n, "sample": sample_n}
                    new["number"] = number_P[prefix_n]
                    places.insert(new, computed, size, key)
        least = max(16, LEAST // self.model.cfg.dim)
        while (fewer := mesh.pad_rows(max(least, B // 2), self.batch_rows)) < B:
            yield from places.decode(B - fewer)
            places.shrink(fewer)
            B = fewer
        yield from places.decode(B)

    def count_places(self, samples: int) -> int:
        """How many samples are decoded together. On CPU they are a quarter of all, as far as they fill its
        products: the more there are, the more are idle at the end. Fewer than LEAST are padded."""
        if platform() == "cpu":
            fewest, enough = LEAST // self.model.cfg.dim, FULL // self.model.cfg.dim
            samples = max(fewest, min(samples, max(samples // 4, enough)))
        return mesh.pad_rows(max(32, samples), self.batch_rows)

    def continuation(self, ids_L, logp_L, stop_V) -> Continuation:
        is_end = ids_L[-1] in self.eos_ids
        text = self.tokenizer.decode(ids_L[: len(ids_L) - is_end], clean_up_tokenization_spaces=False)
        reason = "length"
        if stop_V[ids_L[-1]] and (is_end or text.strip()):
            reason = "eos" if is_end else "stop"
        tokens = [self.token_texts[i] for i in ids_L.tolist()]
        logp_T = step_sums(self.format, tokens, logp_L.tolist(), text)
        return Continuation(ids_L, logp_L, text, reason, logp_T)


def padded_length(ids: Sequence[int]) -> int:
    return max(SHORTEST, 1 << (len(ids) - 1).bit_length())


def open_policy(
    path: str | Path, which: str, fmt: Format, dtype: str, sampling: Sampling, batch_rows: int, server=None
):
    """The language model at `path`, a folder, hub name or http://HOST:PORT, with its own format or `fmt`."""
    if str(path).startswith(("http://", "https://")):
        from prm_jax.generate.remote import RemotePolicy  # not above: its client takes a second to load

        return RemotePolicy(str(path), fmt, sampling, batch_rows, server or Server())
    return as_policy(open_checkpoint(path, which, None, dtype), path, fmt, sampling, batch_rows)


def as_policy(loaded: Loaded, path: str | Path, fmt: Format, sampling: Sampling, batch_rows: int) -> Policy:
    """A language model, opened from `path`, that samples with its own format or `fmt`. Texts end where its
    tokenizer or its folder says."""
    if loaded.objective != "lm":
        raise InputError(f"{path}: is a verifier (objective={loaded.objective}), expected a language model")
    ends = ({loaded.tokenizer.eos_token_id} - {None}) | end_ids(locate(str(path)))
    fmt = loaded.format or fmt
    return Policy(loaded.model, loaded.tokenizer, fmt, loaded.name, sampling, batch_rows, tuple(ends))


def fingerprint(model: PRM | Served) -> str:
    """sha256 over names, shapes and values of the weights; for a server's model only its name there."""
    if isinstance(model, Served):
        return f"not known: served as {model.name} by {model.server}"
    digest = hashlib.sha256()
    for path, x in jax.tree.leaves_with_path(model):
        name = jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value")
        digest.update(f"{name} {x.shape} {x.dtype} ".encode())
        digest.update(np.asarray(jax.jit(mesh.replicate)(x)).tobytes())
    return digest.hexdigest()


def describe(policy) -> dict:
    """What about.json says of a policy beside its name."""
    about = {"weights": fingerprint(policy.model), "format": dataclasses.asdict(policy.format)}
    about |= {"prompt": policy.prompt("{problem}"), "sampling": dataclasses.asdict(policy.sampling)}
    return about | {"batch_rows": policy.batch_rows}
