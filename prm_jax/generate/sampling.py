"""Continue a text: samples of a language model, to the end of a step or of the text, and pools of them, graded.

python -m prm_jax.sampling checkpoint=POLICY problems=FILE n=64    writes pool.jsonl (data/pools.py) and about.json

Sample j of the prefix numbered i draws the token at position t with the key fold_in(fold_in(fold_in(key, i), j), t), so it depends on
neither the batch nor the devices. What is left is rounding: other shapes may sum a logit in another order, and a draw within
about 1e-6 of the border between two tokens may then take the other one.

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
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax import InputError, tasks
from prm_jax.checkpoints import hf
from prm_jax.checkpoints.open import Loaded, open_checkpoint
from prm_jax.data.formats import Format, encode
from prm_jax.data.grading import RULES, Checker, grader
from prm_jax.data.pools import Problem
from prm_jax.data.questions import COUNTS, as_candidate, counts_of, read_questions
from prm_jax.data.rows import append_rows
from prm_jax.generate.policies import Sampling, SamplingStats, check_format, sample_keys
from prm_jax.generate.remote import AS_USUAL, RemotePolicy, Served, Server
from prm_jax.kernels.draw import inverse_cdf, most_likely
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import Count, Seed, expect, one_of, parse
from prm_jax.launch.hosts import share_file, start_command, writable_folder
from prm_jax.launch.mesh import MeshConfig, check_divides, make_mesh, path_names, replicate, row_shards, shard_batch
from prm_jax.model import ALWAYS, PRM, choose_dtype, for_decoding, make_cache
from prm_jax.protocols import Continuation, Prefix

SHORTEST = 16  # tokens that prompts are padded to at least, else to a power of two: a few shapes serve all
# Tokens after which the loop first stops for more slots; then twice as many, and so on: attention reads all slots there are,
# and a step seldom has many tokens.
CACHE_GROWTH = {"end": 64, "step": 16}


def draw(logit_BV, uniform_B, sampling: Sampling):
    """A token for each row, id_B, by one random number of 23 bits: probabilities are right to 1e-7, not relative to themselves."""
    if sampling.temperature == 0:
        return logit_BV.argmax(-1).astype(jnp.int32)
    p_BV = jnp.exp((logit_BV - logit_BV.max(-1, keepdims=True)) / sampling.temperature)
    if sampling.top_k is not None and sampling.top_k < p_BV.shape[1]:
        p_BV = most_likely(p_BV, 1, jnp.full(len(p_BV), sampling.top_k))
    if sampling.top_p < 1:
        p_BV = most_likely(p_BV, p_BV, sampling.top_p * p_BV.sum(-1))
    return inverse_cdf(p_BV, uniform_B)


def uniforms(key_B, t, n: int):
    """What n tokens from position t on are drawn with, uniform_tB; all at once, since the loop would wait for each."""
    one = lambda t, key: jax.random.uniform(jax.random.fold_in(key, t))
    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(t + jnp.arange(n), key_B)


def sample_token(model: PRM, x_BD, uniform_B, sampling: Sampling):
    """The next tokens and their log-probabilities, (id_B, logp_B), from the hidden states of those before."""
    logit_BV = model.vocab_logits(x_BD)
    id_B = draw(logit_BV, uniform_B, sampling)
    logp_B = jnp.take_along_axis(logit_BV, id_B[:, None], 1)[:, 0] - jax.nn.logsumexp(logit_BV, -1)
    return id_B, logp_B


@jax.jit
def prefill(model: PRM, ids_PL, first_P):
    """Hidden states of the last tokens, x_PD, and the cache of left-padded prompts whose first token is in place first_P."""
    slot_L, cache = jnp.arange(ids_PL.shape[1]), make_cache(model.cfg, *ids_PL.shape)
    is_real_PL = slot_L >= first_P[:, None]
    pos_PL = jnp.maximum(slot_L - first_P[:, None], 0)
    x_PLD, cache = for_decoding(model)(ids_PL, pos_PL, jnp.where(is_real_PL, ALWAYS, slot_L), cache=cache)
    return x_PLD[:, -1], cache


@functools.partial(jax.jit, static_argnames="sampling")
def first_token(model: PRM, x_PD, cache, rows, stop_V, sampling: Sampling):
    """The first tokens of rows that go on with their prompts: (cache, id_B, done_B), (id_B, logp_B)."""
    id_B, logp_B = sample_token(model, x_PD[rows["prompt"]], uniforms(rows["key"], 0, 1)[0], sampling)
    state = cache.take(rows["prompt"]), id_B, ~rows["is_real"] | stop_V[id_B]
    return state, replicate((id_B, logp_B))


@functools.partial(jax.jit, static_argnames=("slots", "sampling"))
def decode_loop(model: PRM, state, rows, t, stop_V, slots: int, sampling: Sampling):
    """Up to `slots` more tokens of each row, from position t on: the state, (id_tB, logp_tB), whether all are done."""
    model, (cache, id_B, done_B) = for_decoding(model), state
    cache, place_B = cache.grow(slots), jnp.full_like(id_B[:, None], ALWAYS)
    uniform_tB = uniforms(rows["key"], t, slots)
    empty = jnp.zeros_like(uniform_tB, jnp.int32), jnp.zeros_like(uniform_tB)

    def step(carry):
        at, cache, id_B, done_B, out = carry
        pos_B1 = cache.length - rows["first"][:, None]
        x_B1D, cache = model(id_B[:, None], pos_B1, place_B, cache=cache)
        new = sample_token(model, x_B1D[:, 0], uniform_tB[at], sampling)
        out = tuple(x_tB.at[at].set(x_B) for x_tB, x_B in zip(out, new, strict=True))
        return at + 1, cache, new[0], done_B | stop_V[new[0]], out

    goes_on = lambda carry: (carry[0] < slots) & ~carry[3].all()
    _, cache, id_B, done_B, out = jax.lax.while_loop(goes_on, step, (0, cache, id_B, done_B, empty))
    return (cache, id_B, done_B), replicate((*out, done_B.all()))


@dataclasses.dataclass
class Policy:
    """A language model that continues solutions.

    A step ends with any token whose text contains the format's separator (in many tokenizers `.` and a line end are one); a
    separator that is in no one token is refused.
    """

    model: PRM
    tokenizer: object
    format: Format
    name: str  # folder and step
    sampling: Sampling
    batch_rows: int = 64
    eos_ids: tuple[int, ...] = ()  # ids that end a text; empty: the tokenizer's
    stats: SamplingStats = dataclasses.field(default_factory=SamplingStats)

    def __post_init__(self):
        self.eos_ids = self.eos_ids or tuple({self.tokenizer.eos_token_id} - {None})
        expect(self.eos_ids, f"{self.name}: tokenizer", None, "an end-of-sequence token")
        check_format(self.format)

    @property
    def dtype(self) -> str:
        return self.model.cfg.dtype

    @functools.cached_property
    def stop_masks(self) -> dict[str, np.ndarray]:
        """{stop: the ids that stop a continuation, a boolean each}."""
        end_V = np.isin(np.arange(self.model.cfg.vocab), self.eos_ids)
        texts = self.tokenizer.batch_decode([[i] for i in range(min(len(self.tokenizer), len(end_V)))])
        step_V = np.array([self.format.separator in text for text in texts] + [False] * (len(end_V) - len(texts)))
        return {"end": end_V, "step": end_V | step_V if step_V.any() else None}

    def prefix_ids(self, prefixes: Sequence[Prefix]) -> list[np.ndarray]:
        """Ids of the texts to go on with: what stands before the first step's tokens in training, or the next one's."""
        encoded = encode(self.format, self.tokenizer, prefixes)
        cut = lambda e: e.ids_L[: e.step_end_T[-1] + 1 if len(e.step_end_T) else e.start]
        found = list(map(cut, encoded))
        for ids_L, (problem, _) in zip(found, prefixes, strict=True):
            expect(len(ids_L), f"prefix {problem[:60]!r}", "", "a text of at least one token")
        return found

    def extend(
        self, prefixes: Sequence[Prefix], n: int, stop: Literal["step", "end"], key, first: int | Sequence[int] = 0
    ) -> list[list[Continuation]]:
        """n continuations of each (problem, steps so far); prefix i draws with fold_in(key, its number): first + i, or first[i]."""
        stop_V, start = self.stop_masks[stop], time.perf_counter()
        number = first + np.arange(len(prefixes)) if np.ndim(first) == 0 else np.asarray(first)
        expect(stop_V is not None, "format.separator", self.format.separator, f"a text within one token of {self.name}")
        check_divides(self.model.cfg, self.batch_rows, "batch_rows")
        requests = collections.defaultdict(list)  # distinct ids -> the prefixes that have them, computed once
        for i, ids_L in enumerate(self.prefix_ids(prefixes)):
            requests[tuple(ids_L.tolist())].append(i)
        width = lambda ids: max(SHORTEST, 1 << (len(ids) - 1).bit_length())
        found = [[None] * n for _ in prefixes]
        for L, prompts in itertools.groupby(sorted(requests, key=width), width):  # sorted keeps the order
            for group in self.groups(prompts, lambda ids: n * len(requests[ids])):
                rows = [(p, i, j) for p, ids in enumerate(group) for i in requests[ids] for j in range(n)]
                samples = self.decode(group, rows, L, stop_V, key, number, CACHE_GROWTH[stop])
                for (_, i, j), sample in zip(rows, samples, strict=True):
                    found[i][j] = self.continuation(*sample, stop_V)
        self.stats.seconds += time.perf_counter() - start
        self.stats.prompts += len(requests)
        return found

    def groups(self, prompts: Iterable, size: Callable) -> Iterator[list]:
        """The prompts in groups whose rows fit a batch; one that has more stands alone, its rows in several."""
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
        """At least n rows of so many tokens each, of a few sizes, so that a few shapes serve all; none is beyond a batch.

        Few rows of few tokens take as long as 512 tokens; a single token of a row is padded to 32 rows, four times as many, ...
        """
        rows, more = max(1, min(32, 512 // tokens)), 4 if tokens <= 64 else 2
        while rows < n:
            rows *= more
        return min(self.batch_rows, -(-rows // row_shards()) * row_shards())

    def decode(
        self, group: list[tuple], rows: list[tuple], L: int, stop_V, key, number, stage: int = CACHE_GROWTH["end"]
    ):
        """(ids, log-probabilities) of each of the rows (prompt, prefix, sample), cut where it stopped."""
        P = self.bucket_rows(len(group), L)
        ids_PL, first_P = np.zeros((P, L), np.int32), np.full(P, L, np.int32)
        for p, ids in enumerate(group):
            first_P[p] = L - len(ids)
            ids_PL[p, first_P[p] :] = ids
        prompts = shard_batch({"ids": ids_PL, "first": first_P}, P)
        x_PD, cache = prefill(self.model, prompts["ids"], prompts["first"])
        self.stats.shapes.add(("prompts", P, L))
        for at in range(0, len(rows), self.batch_rows):
            here = np.array(rows[at : at + self.batch_rows])
            B = self.bucket_rows(len(here), 1)
            filled = np.pad(here, ((0, B - len(here)), (0, 0)), mode="edge")
            batch = {"prompt": filled[:, 0], "first": first_P[filled[:, 0]], "is_real": np.arange(B) < len(here)}
            batch["key"] = np.asarray(jax.random.key_data(sample_keys(key, number[filled[:, 1]], filled[:, 2])))
            batch = shard_batch(batch, B)
            batch["key"] = jax.random.wrap_key_data(batch["key"])
            yield from self.decode_rows(x_PD, cache, batch, len(here), L, stop_V, stage)

    def decode_rows(self, x_PD, cache, batch, n_rows: int, L: int, stop_V, stage: int):
        s, B = self.sampling, len(batch["first"])
        state, (id_B, logp_B) = first_token(self.model, x_PD, cache, batch, stop_V, s)
        ids, logps, t, all_done = [id_B[None]], [logp_B[None]], 1, False
        self.stats.shapes.add(("first", len(x_PD), B, L))
        while t < s.max_tokens and not all_done:
            slots = min(max(t, stage - 1), s.max_tokens - t)
            self.stats.shapes.add(("next", B, L + t, slots))
            state, (id_tB, logp_tB, all_done) = decode_loop(self.model, state, batch, t, stop_V, slots, s)
            ids.append(id_tB), logps.append(logp_tB)
            t += slots
        id_Bt, logp_Bt = (np.concatenate(x).T[:n_rows] for x in (ids, logps))
        stops_Bt = stop_V[id_Bt]
        n_B = np.where(stops_Bt.any(1), stops_Bt.argmax(1) + 1, id_Bt.shape[1])
        if np.isnan(logp_Bt[np.arange(len(logp_Bt[0])) < n_B[:, None]]).any():
            raise InputError(f"{self.name}: gives nan as the log-probability of a token, expected numbers")
        self.stats.continuations += n_rows
        self.stats.tokens += int(n_B.sum())
        self.stats.places += int(n_B.max()) * B
        return [(id_t[:n], logp_t[:n]) for id_t, logp_t, n in zip(id_Bt, logp_Bt, n_B, strict=True)]

    def continuation(self, ids_L, logp_L, stop_V) -> Continuation:
        is_end = ids_L[-1] in self.eos_ids
        text = self.tokenizer.decode(ids_L[: len(ids_L) - is_end], clean_up_tokenization_spaces=False)
        return Continuation(ids_L, logp_L, text, "eos" if is_end else "stop" if stop_V[ids_L[-1]] else "length")


def open_policy(
    path: str | Path, which: str, fmt: Format, dtype: str, sampling: Sampling, batch_rows: int, server=AS_USUAL
) -> Policy | RemotePolicy:
    """A run of ours or an export with its own format, another language model with `fmt`; InputError for a verifier.

    http://HOST:PORT is a server's, with `fmt`.
    """
    if str(path).startswith(("http://", "https://")):
        return RemotePolicy(str(path), fmt, sampling, batch_rows, server)
    return as_policy(open_checkpoint(path, which, None, choose_dtype(dtype)), path, fmt, sampling, batch_rows)


def as_policy(loaded: Loaded, path: str | Path, fmt: Format, sampling: Sampling, batch_rows: int) -> Policy:
    if loaded.objective != "lm":
        raise InputError(f"{path}: is a verifier (objective={loaded.objective}), expected a language model")
    ends = {loaded.tokenizer.eos_token_id}
    folder = None if loaded.config is not None else hf.locate(str(path))
    for name in ("generation_config.json", "config.json") if folder else ():
        if (folder / name).exists() and (found := run_folder.read_json(folder / name).get("eos_token_id")) is not None:
            ends |= set(found if isinstance(found, list) else [found])
            break
    ends = tuple(sorted(ends - {None}))
    return Policy(loaded.model, loaded.tokenizer, loaded.format or fmt, loaded.name, sampling, batch_rows, ends)


def fingerprint(model: PRM | Served) -> str:
    """sha256 over names, shapes and values of the weights: another policy under the same name does not pass for it.

    Of a server's model what the server says of it.
    """
    if isinstance(model, Served):
        return f"not known: served as {model.name} by {model.server}"
    digest = hashlib.sha256()
    for path, x in jax.tree.leaves_with_path(model):
        digest.update(f"{'.'.join(path_names(path))} {x.shape} {x.dtype} ".encode())
        digest.update(np.asarray(jax.jit(replicate)(x)).tobytes())
    return digest.hexdigest()


def draw_pool(
    path: str | Path, policy: Policy, problems: Iterable, n: int, seed: int, grade: Callable, total: int | None = None
) -> dict:
    """Appends one graded problem a line to `path`, n solutions each, and writes about.json beside it; returns its counts.

    `problems`: with id, problem, answer, such as Question. `grade`: pools.Problem -> pools.Problem. What an earlier call
    wrote stays, and the file becomes that of an undisturbed call byte for byte: problems are drawn in fixed chunks, so no
    batch depends on where it was interrupted. InputError where the lines there are of other problems or settings.
    """
    path, start, counts = Path(path), time.perf_counter(), collections.Counter(dict.fromkeys(COUNTS, 0))
    about = {"policy": policy.name, "weights": fingerprint(policy.model), "format": dataclasses.asdict(policy.format)}
    about |= {"dtype": policy.dtype, "sampling": dataclasses.asdict(policy.sampling), "n": n, "seed": seed}
    about |= {"batch_rows": policy.batch_rows}
    share_file(path), share_file(path.with_name("about.json"))
    run_folder.check_about(path, about)
    key, policy.stats = jax.random.key(seed), SamplingStats()

    def draw_rows(asked, first: int) -> list[dict]:
        samples = policy.extend([(q.problem, ()) for q in asked], n, "end", key, first)
        pools = [tuple(as_candidate(policy.format, c.text, c.finish_reason == "eos") for c in own) for own in samples]
        graded = [grade(Problem(q.id, q.problem, q.answer, pool)) for q, pool in zip(asked, pools, strict=True)]
        tokens = [{"policy_tokens": sum(len(c.ids_L) for c in own)} for own in samples]
        return [dataclasses.asdict(p) | spent for p, spent in zip(graded, tokens, strict=True)]

    fields = lambda asked: {"id": asked.id, "problem": asked.problem}
    with cli.progress("sampling", total, "problem") as bar:
        for rows, old in append_rows(path, problems, max(1, 4 * policy.batch_rows // n), fields, draw_rows):
            counts["resumed"] += old
            for row in rows:
                counts.update(counts_of(row))
            bar.update(len(rows))
    about |= {"finished": True, "counts": dict(counts), "seconds": time.perf_counter() - start}
    run_folder.write_json(path.with_name("about.json"), about | {"versions": run_folder.versions()})
    return counts


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """What commands share that ask a policy and check its answers; conf/sampling.yaml says what each key means."""

    checkpoint: str
    which: Literal["best", "latest"]
    format: Format
    dtype: str
    checker: Annotated[str, one_of(tasks.CHECKERS)]
    sampling: Sampling
    batch_rows: Count
    server: Server = AS_USUAL
    seed: Seed
    mesh: MeshConfig
    cpu_devices: Count
    distributed: str | dict | None
    resume: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingConfig(PolicyConfig):
    """conf/sampling.yaml says what each key means."""

    problems: str
    n: Count


@cli.command("sampling")
def main(cfg):
    """Draw a graded pool: n solutions of every problem of a file, by a language model."""
    folder, given, resumes = start_command(cfg)
    folder, cfg = writable_folder(folder), parse(given, SamplingConfig)
    total = sum(1 for _ in read_questions(cfg.problems))  # reads every row once, before anything is drawn
    if by_task := cfg.checker not in RULES:
        task = tasks.of_files([cfg.problems], cfg.checker)
    with (
        run_folder.claimed(folder, given, resumes),
        jax.set_mesh(make_mesh(cfg.mesh, cfg.batch_rows)),
        contextlib.closing(Checker("string" if by_task else cfg.checker)) as checker,
    ):
        policy = open_policy(cfg.checkpoint, cfg.which, cfg.format, cfg.dtype, cfg.sampling, cfg.batch_rows, cfg.server)
        path, questions = folder / "pool.jsonl", read_questions(cfg.problems)
        grade = functools.partial(tasks.grade, task) if by_task else grader(checker)
        counts = draw_pool(path, policy, questions, cfg.n, cfg.seed, grade, total)
    if policy.stats.tokens:
        print(policy.stats.summary())
    cli.print_counts(counts, totals=())
    graded = counts["candidates"] - counts["ungraded"]  # what was cut off fills a place, and is not right
    by = "the task's checker" if by_task else checker.name
    rate = f"{counts['right'] / graded:.3f} of {graded:,} right by {by}" if graded else "no answer to grade by"
    if graded and counts["unanswered"] == counts["candidates"]:
        rate += " (an answer was found in none; checker=chain reads those of the embedded task)"
    print(f"pool        {rate}; {path}")
