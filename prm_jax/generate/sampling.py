"""Samples continuations from a language model, to the end of a step or of the text, and pools of solutions.

python -m prm_jax.sampling checkpoint=POLICY input=FILE n=64     writes pool.jsonl and about.json

Sample j of prefix i draws the token at position t with fold_in(fold_in(fold_in(key, i), j), t), so it depends
on neither the batch nor the devices, up to rounding: other shapes may sum a logit in another order, and a
draw within about 1e-6 of the border between two tokens may then take the other one.

Dimension key: P prompts, B rows decoded together, L tokens of a prompt, t new tokens, D model, V vocabulary.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax import InputError
from prm_jax.checkpoints.folders import locate
from prm_jax.checkpoints.open import Loaded, open_checkpoint, resolve_dtype
from prm_jax.data.pools import Problem
from prm_jax.data.questions import COUNTS, count_line, make_candidate, read_questions
from prm_jax.data.rows import append_rows, require_same
from prm_jax.data.steps import step_sums
from prm_jax.formats import Format, PolicyFormat, encode, opening, policy_format, turn_end
from prm_jax.generate import policies
from prm_jax.generate.policies import Sampling, SamplingStats, Served, Server, with_thought
from prm_jax.kernels.draw import inverse_cdf, most_likely
from prm_jax.launch import cli, mesh, run_folder
from prm_jax.launch.config import Count, Seed, expect, parse
from prm_jax.launch.hosts import writable_folder
from prm_jax.launch.progress import print_counts, progress
from prm_jax.launch.run_folder import described_file, start_command
from prm_jax.model import PRM, for_decoding, make_cache
from prm_jax.protocols import Continuation, Prefix
from prm_jax.tasks.checkers import CHECKERS, checker_rule, choose_checker, is_own, open_grader
from prm_jax.visibility import ALWAYS

SHORTEST = 16  # prompts are padded to this many tokens, longer ones to a power of two: a few shapes serve all
# Tokens after which the loop first doubles its cache: attention reads all of it, and a step is seldom long.
CACHE_GROWTH = {"end": 64, "step": 16}


def draw_ids(logit_BV, uniform_B, sampling: Sampling):
    """A token a row, id_B, from one random number of 23 bits: probabilities have an error of 1e-7."""
    if sampling.temperature == 0:
        return logit_BV.argmax(-1).astype(jnp.int32)
    p_BV = jnp.exp((logit_BV - logit_BV.max(-1, keepdims=True)) / sampling.temperature)
    if sampling.top_k is not None and sampling.top_k < p_BV.shape[1]:
        p_BV = most_likely(p_BV, 1, jnp.full(len(p_BV), sampling.top_k))
    if sampling.top_p < 1:
        p_BV = most_likely(p_BV, p_BV, sampling.top_p * p_BV.sum(-1))
    return inverse_cdf(p_BV, uniform_B)


def uniforms(key_B, t, n: int):
    """Random numbers of n tokens from position t on, uniform_tB, at once: the loop would wait for each."""
    key_tB = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (None, 0))(key_B, t + jnp.arange(n))
    return jax.vmap(jax.vmap(jax.random.uniform))(key_tB)


def sample_token(model: PRM, x_BD, uniform_B, sampling: Sampling):
    """The next tokens and their log-probabilities, (id_B, logp_B), from the last tokens' hidden states."""
    logit_BV = model.vocab_logits(x_BD)
    id_B = draw_ids(logit_BV, uniform_B, sampling)
    logp_B = jnp.take_along_axis(logit_BV, id_B[:, None], 1)[:, 0] - jax.nn.logsumexp(logit_BV, -1)
    return id_B, logp_B


@jax.jit
def prefill(model: PRM, ids_PL, first_P):
    """Last tokens' hidden states, x_PD, and the cache of left-padded prompts, which start at first_P."""
    slot_L = jnp.arange(ids_PL.shape[1])
    cache = make_cache(model.cfg, *ids_PL.shape)
    is_real_PL = slot_L >= first_P[:, None]
    pos_PL = jnp.maximum(slot_L - first_P[:, None], 0)
    x_PLD, cache = for_decoding(model)(ids_PL, pos_PL, jnp.where(is_real_PL, ALWAYS, slot_L), cache=cache)
    return x_PLD[:, -1], cache


class Stops(NamedTuple):
    """The tokens that end a continuation."""

    stop_V: np.ndarray
    blank_V: np.ndarray  # those that end it only behind a text: a step is not a blank line

    def end(self, id_B, wrote_B):
        """Which rows a token ends, given which have a text before it."""
        return self.stop_V[id_B] & (wrote_B | ~self.blank_V[id_B])


@functools.partial(jax.jit, static_argnames="sampling")
def first_token(model: PRM, x_PD, cache, rows, stops: Stops, sampling: Sampling):
    """The first tokens after the rows' prompts: (cache, id_B, done_B, wrote_B), (id_B, logp_B)."""
    id_B, logp_B = sample_token(model, x_PD[rows["prompt"]], uniforms(rows["key"], 0, 1)[0], sampling)
    done_B = ~rows["is_real"] | stops.end(id_B, False)
    state = cache.take(rows["prompt"]), id_B, done_B, ~stops.blank_V[id_B]
    return state, mesh.replicate((id_B, logp_B))


@functools.partial(jax.jit, static_argnames=("slots", "sampling"))
def decode_loop(model: PRM, state, rows, t, stops: Stops, slots: int, sampling: Sampling):
    """Up to `slots` more tokens of each row from position t on: state, (id_tB, logp_tB, are all done)."""
    model, (cache, id_B, done_B, wrote_B) = for_decoding(model), state
    cache, place_B = cache.grow(slots), jnp.full_like(id_B[:, None], ALWAYS)
    uniform_tB = uniforms(rows["key"], t, slots)
    pos_tB = cache.length + jnp.arange(slots)[:, None] - rows["first"]
    ropes_tB1k = model.ropes(pos_tB)  # the loop would compute the angles again for each layer and head
    empty = jnp.zeros_like(uniform_tB, jnp.int32), jnp.zeros_like(uniform_tB)

    def is_unfinished(carry):
        i, _, _, done_B, _, _ = carry
        return (i < slots) & ~done_B.all()

    def step(carry):
        i, cache, id_B, done_B, wrote_B, out = carry
        ropes_B11k = jax.tree.map(lambda x_tB1k: x_tB1k[i][:, None], ropes_tB1k)
        x_B1D, cache = model(id_B[:, None], pos_tB[i][:, None], place_B, cache=cache, ropes=ropes_B11k)
        new = sample_token(model, x_B1D[:, 0], uniform_tB[i], sampling)
        out = tuple(x_tB.at[i].set(x_B) for x_tB, x_B in zip(out, new, strict=True))
        done_B |= stops.end(new[0], wrote_B)
        return i + 1, cache, new[0], done_B, wrote_B | ~stops.blank_V[new[0]], out

    start = 0, cache, id_B, done_B, wrote_B, empty
    _, *state, out = jax.lax.while_loop(is_unfinished, step, start)
    return tuple(state), mesh.replicate((*out, state[2].all()))


class Row(NamedTuple):
    """A sample to draw: the numbers of its prompt in a group, of its prefix in a call, and its own."""

    prompt: int
    prefix: int
    sample: int


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
    def stop_masks(self) -> dict[str, np.ndarray]:
        """{stop: stop_V, whether a token ends a continuation}."""
        end_V = np.isin(np.arange(self.model.cfg.vocab), self.eos_ids)
        step_V = np.array([self.format.separator in text for text in self.token_texts])
        return {"end": end_V, "step": end_V | step_V if step_V.any() else None}

    @functools.cached_property
    def blank_V(self) -> np.ndarray:
        """Whether a token is white space alone."""
        is_end_V = np.isin(np.arange(self.model.cfg.vocab), self.eos_ids)
        return ~is_end_V & np.array([not text.strip() for text in self.token_texts])

    @functools.cached_property
    def token_texts(self) -> list[str]:
        """The text of each id; none of one that ends a text, or that the tokenizer does not know."""
        known = min(len(self.tokenizer), self.model.cfg.vocab)
        texts = self.tokenizer.batch_decode([[i] for i in range(known)])
        texts = ["" if i in self.eos_ids else text for i, text in enumerate(texts)]
        return texts + [""] * (self.model.cfg.vocab - known)

    def prompt(self, problem: str) -> str:
        """The text before the first step."""
        return opening(self.format, self.tokenizer, problem)

    def prefix_ids(self, prefixes: Sequence[Prefix]) -> list[np.ndarray]:
        """Ids of the texts to continue: all that precedes the next step's tokens in training."""
        ids = []
        for e, (problem, _) in zip(encode(self.format, self.tokenizer, prefixes), prefixes, strict=True):
            ids.append(e.ids_L[: e.step_end_T[-1] + 1 if len(e.step_end_T) else e.start])
            expect(len(ids[-1]), f"prefix {problem[:60]!r}", "", "a text of at least one token")
        return ids

    def extend(self, prefixes: Sequence[Prefix], n: int, stop: str, key, first=0) -> list[list[Continuation]]:
        """n continuations of each (problem, steps so far), drawn as protocols.Policy says."""
        start = time.perf_counter()
        stop_V = self.stop_masks[stop]
        expected = f"a text within one token of {self.name}"
        expect(stop_V is not None, "format.separator", self.format.separator, expected)
        stops = Stops(stop_V, self.blank_V)
        mesh.check_divides(self.model.cfg, self.batch_rows, "batch_rows")
        number_P = policies.prefix_numbers(first, len(prefixes))
        requests = collections.defaultdict(list)  # distinct ids, which are computed once -> their prefixes
        for i, ids_L in enumerate(self.prefix_ids(prefixes)):
            requests[tuple(ids_L.tolist())].append(i)
        samples = [[None] * n for _ in prefixes]
        by_length = sorted(requests, key=padded_length)  # among equals the order stays
        for L, prompts in itertools.groupby(by_length, padded_length):
            for group in self.groups(prompts, lambda ids: n * len(requests[ids])):
                rows = []
                for p, ids in enumerate(group):
                    rows += [Row(p, i, j) for i in requests[ids] for j in range(n)]
                decoded = self.decode(group, rows, L, stops, key, number_P, CACHE_GROWTH[stop])
                for row, (ids_L, logp_L) in zip(rows, decoded, strict=True):
                    c = self.continuation(ids_L, logp_L, stop_V)
                    samples[row.prefix][row.sample] = with_thought(self, prefixes[row.prefix], c)
        self.stats.seconds += time.perf_counter() - start
        self.stats.prompts += len(requests)
        return samples

    def groups(self, prompts: Iterable, size: Callable) -> Iterator[list]:
        """The prompts in groups whose rows fit a batch; a prompt with more rows is a group by itself."""
        group, taken = [], 0
        for prompt in prompts:
            if group and taken + size(prompt) > self.batch_rows:
                yield group
                group, taken = [], 0
            group.append(prompt)
            taken += size(prompt)
        if group:
            yield group

    def bucket_rows(self, n: int, tokens: int) -> int:
        """The power of two, at most batch_rows, to which n rows of `tokens` tokens are padded: few shapes."""
        rows = max(1, min(32, 512 // tokens), 1 << (n - 1).bit_length())
        return min(self.batch_rows, -(-rows // mesh.row_shards()) * mesh.row_shards())

    def decode(self, group: list[tuple], rows: list[Row], L: int, stops: Stops, key, number_P, stage: int):
        """Yields (ids, log-probabilities) of each row, cut where it stopped."""
        P = self.bucket_rows(len(group), L)
        ids_PL, first_P = np.zeros((P, L), np.int32), np.full(P, L, np.int32)
        for p, ids in enumerate(group):
            first_P[p] = L - len(ids)
            ids_PL[p, first_P[p] :] = ids
        prompts = mesh.shard_batch({"ids": ids_PL, "first": first_P}, P)
        x_PD, cache = prefill(self.model, prompts["ids"], prompts["first"])
        for i in range(0, len(rows), self.batch_rows):
            part = np.array(rows[i : i + self.batch_rows])
            B = self.bucket_rows(len(part), 1)
            prompt_B, prefix_B, sample_B = np.pad(part, ((0, B - len(part)), (0, 0)), mode="edge").T
            batch = {"prompt": prompt_B, "first": first_P[prompt_B], "is_real": np.arange(B) < len(part)}
            key_B = policies.sample_keys(key, number_P[prefix_B], sample_B)
            batch["key"] = np.asarray(jax.random.key_data(key_B))
            batch = mesh.shard_batch(batch, B)
            batch["key"] = jax.random.wrap_key_data(batch["key"])
            yield from self.decode_rows(x_PD, cache, batch, len(part), L, stops, stage)

    def decode_rows(self, x_PD, cache, batch, n_rows: int, L: int, stops: Stops, stage: int):
        """The first n_rows of a batch as in `decode`; the others are padding."""
        s = self.sampling
        state, (id_B, logp_B) = first_token(self.model, x_PD, cache, batch, stops, s)
        ids = [id_B[None]]
        logps = [logp_B[None]]
        t, all_done = 1, False
        while t < s.max_tokens and not all_done:
            slots = min(max(t, stage - 1), s.max_tokens - t)
            state, (id_tB, logp_tB, all_done) = decode_loop(self.model, state, batch, t, stops, slots, s)
            ids.append(id_tB)
            logps.append(logp_tB)
            t += slots
        id_Bt, logp_Bt = (np.concatenate(x).T[:n_rows] for x in (ids, logps))
        wrote_Bt = np.maximum.accumulate(~stops.blank_V[id_Bt], axis=1)
        stops_Bt = stops.end(id_Bt, np.pad(wrote_Bt, ((0, 0), (1, 0)))[:, :-1])
        n_B = np.where(stops_Bt.any(1), stops_Bt.argmax(1) + 1, id_Bt.shape[1])
        expect(not np.isnan(logp_Bt).any(), self.name, "nan as a log-probability", "numbers")
        self.stats.continuations += n_rows
        self.stats.tokens += int(n_B.sum())
        return [(id_t[:n], logp_t[:n]) for id_t, logp_t, n in zip(id_Bt, logp_Bt, n_B, strict=True)]

    def continuation(self, ids_L, logp_L, stop_V) -> Continuation:
        is_end = ids_L[-1] in self.eos_ids
        text = self.tokenizer.decode(ids_L[: len(ids_L) - is_end], clean_up_tokenization_spaces=False)
        reason = "length"
        if stop_V[ids_L[-1]] and (is_end or text.strip()):
            reason = "eos" if is_end else "stop"
        logp_T = step_sums(self.format, [self.token_texts[i] for i in ids_L], logp_L, text)
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
    if loaded.objective != "lm":
        raise InputError(f"{path}: is a verifier (objective={loaded.objective}), expected a language model")
    ends = {loaded.tokenizer.eos_token_id} - {None}
    if loaded.config is None:
        ends |= end_ids(locate(str(path)))
    fmt, ends = loaded.format or fmt, tuple(ends)
    return Policy(loaded.model, loaded.tokenizer, fmt, loaded.name, sampling, batch_rows, ends)


def end_ids(folder: Path) -> set[int]:
    """The ids that end a text, by generation_config.json or else config.json of a Hugging Face folder."""
    for name in ("generation_config.json", "config.json"):
        ids = run_folder.read_json(folder / name).get("eos_token_id") if (folder / name).exists() else None
        if ids is not None:
            return set(ids if isinstance(ids, list) else [ids])
    return set()


def fingerprint(model: PRM | Served) -> str:
    """sha256 over names, shapes and values of the weights; for a server's model only its name there."""
    if isinstance(model, Served):
        return f"not known: served as {model.name} by {model.server}"
    digest = hashlib.sha256()
    for path, x in jax.tree.leaves_with_path(model):
        digest.update(f"{'.'.join(mesh.path_names(path))} {x.shape} {x.dtype} ".encode())
        digest.update(np.asarray(jax.jit(mesh.replicate)(x)).tobytes())
    return digest.hexdigest()


def describe(policy) -> dict:
    """What about.json says of a policy beside its name."""
    about = {"weights": fingerprint(policy.model), "format": dataclasses.asdict(policy.format)}
    about |= {"prompt": policy.prompt("{problem}"), "sampling": dataclasses.asdict(policy.sampling)}
    return about | {"batch_rows": policy.batch_rows}


def keep_rows(path: Path, about: dict, appended: Iterable, count: Callable, counts: dict, bar) -> dict:
    """Runs `append_rows` (`appended`) with about.json beside; returns `counts` and sums of count(row)."""
    with described_file(path, about) as kept:
        kept.update(counts)
        for rows, old in appended:
            kept["resumed"] += old
            for row in rows:
                kept.update(count(row))
            bar.update(len(rows))
    return kept


def draw_pool(
    path: Path, policy, problems: Iterable, n: int, seed: int, grade: Callable, total: int | None = None
) -> dict:
    """Appends one graded problem a line to `path`, n solutions each, with about.json beside it; returns the
    counts. A stopped call is resumed byte for byte, since problems are drawn in fixed chunks."""
    about = {"policy": policy.name, "dtype": policy.dtype, "n": n, "seed": seed} | describe(policy)

    def check(row: dict, q):
        require_same(row, id=q.id, problem=q.problem)
        count_line(row)

    def draw_rows(questions, first: int, old: int) -> list[dict]:
        prefixes = [(q.problem, ()) for q in questions]
        drawn = policy.extend(prefixes, n, "end", jax.random.key(seed), first)
        rows = []
        for q, samples in zip(questions, drawn, strict=True):
            candidates = tuple(make_candidate(policy.format, c) for c in samples)
            graded = grade(Problem(q.id, q.problem, q.answer, candidates))
            rows.append({**dataclasses.asdict(graded), "policy_tokens": sum(len(c.ids_L) for c in samples)})
        return rows[old:]

    policy.stats = SamplingStats()
    size = max(1, 4 * policy.batch_rows // n)
    appended = append_rows(path, problems, size, check, draw_rows)
    with progress("sampling", total, "problem") as bar:
        counts = keep_rows(path, about, appended, count_line, dict.fromkeys(COUNTS, 0), bar)
    policies.note_empty(policy, counts["empty"], counts["candidates"])
    return counts


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandConfig:
    """The keys of commands that run a model; their conf files say what each means."""

    which: Literal["best", "latest"]
    format: PolicyFormat
    dtype: str
    batch_rows: Count
    mesh: mesh.MeshConfig
    cpu_devices: Count
    distributed: str | dict | None
    resume: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyConfig(CommandConfig):
    """The keys of commands that sample from a policy and check answers."""

    checkpoint: str
    checker: Annotated[str, checker_rule(CHECKERS)] | None
    sampling: Sampling
    server: Server = dataclasses.field(default_factory=Server)
    seed: Seed


def fix_dtype(cfg: PolicyConfig, raw_cfg) -> PolicyConfig:
    """Replaces dtype=auto by what this processor computes faster, in raw_cfg too: a resumed run keeps it."""
    if cfg.checkpoint.startswith(("http://", "https://")):
        return cfg
    raw_cfg.dtype = resolve_dtype(cfg.dtype, cfg.checkpoint)
    return dataclasses.replace(cfg, dtype=raw_cfg.dtype)


@contextlib.contextmanager
def policy_at_work(cfg: PolicyConfig, problem: str):
    """The policy, on the mesh; prints how it reads the first problem, and at the end its cost."""
    with jax.set_mesh(mesh.make_mesh(cfg.mesh, cfg.batch_rows)):
        how = cfg.format.whole(), cfg.dtype, cfg.sampling, cfg.batch_rows, cfg.server
        policy = open_policy(cfg.checkpoint, cfg.which, *how)
        policies.show_prompt(policy, problem)
        yield policy
    if policy.stats.tokens:
        print(policy.stats.summary())


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingConfig(PolicyConfig):  # conf/sampling.yaml says what each key means
    input: str
    columns: dict[str, str] | None
    n: Count


@cli.command("sampling", SamplingConfig)
def main(cfg):
    """Draw a graded pool: n solutions of every problem of a file, by a language model."""
    folder, raw_cfg, resumes = start_command(cfg)
    folder, cfg = writable_folder(folder), fix_dtype(parse(raw_cfg, SamplingConfig), raw_cfg)
    cfg = dataclasses.replace(cfg, checker=choose_checker(cfg.checker, [cfg.input]))
    questions = list(read_questions(cfg.input, is_own(cfg.checker), cfg.columns))
    path, grader = folder / "pool.jsonl", open_grader(cfg.checker, [cfg.input])
    run_folder.claim_folder(folder, raw_cfg, resumes)
    with policy_at_work(cfg, questions[0].problem) as policy:
        counts = draw_pool(path, policy, questions, cfg.n, cfg.seed, grader.grade, len(questions))
    print_counts(counts, totals=())
    graded = counts["candidates"] - counts["ungraded"]  # a cut candidate fills a place, and is not right
    rate = "no answer to grade by"
    if graded:
        rate = f"{counts['right'] / graded:.3f} of {graded:,} right by {grader.name}"
    print(f"pool        {rate}; {path}")
