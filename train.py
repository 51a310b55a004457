"""Train a process reward model (or an outcome model, or a language model) into a run folder.

It holds .hydra/ (configuration), data.json (hashes of files and problems), metrics.jsonl, checkpoints/,
model/ (config, tokenizer) and, at the end, summary.json."""

import collections
import contextlib
import dataclasses
import itertools
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx

from prm_jax import packing, training
from prm_jax.checkpoints import hf_config, init
from prm_jax.checkpoints.folders import locate
from prm_jax.checkpoints.orbax import Checkpoints, save_description
from prm_jax.data.splits import Data, FileData, TaskData, data_config, load_splits
from prm_jax.data.units import probability
from prm_jax.examples import Example, make_examples, row_limit
from prm_jax.formats import Format, policy_format
from prm_jax.launch import cli, run_folder, run_log
from prm_jax.launch.config import Count, Seed, expect, parse
from prm_jax.launch.devices import MeshConfig, make_mesh
from prm_jax.launch.files import write_json
from prm_jax.launch.hosts import max_over_processes
from prm_jax.launch.mesh import check_divides, local_rows, shard_batch
from prm_jax.launch.progress import print_counts, progress
from prm_jax.launch.sharding import platform
from prm_jax.lora import LoraConfig
from prm_jax.losses import STEP_LOSSES
from prm_jax.metrics import step_metrics
from prm_jax.model import PRM
from prm_jax.visibility import is_causal

STEP_METRICS = {  # that an objective's validation has beside loss and accuracy
    "prm": ("step_auroc", "first_error_f1"),
    "orm": ("step_auroc",),
    "implicit": ("step_auroc",),
    "lm": (),
}


@dataclasses.dataclass(frozen=True)
class TrainBatch:
    rows: Count
    tokens: Count | None
    accumulate: Count
    too_long: Literal["error", "drop", "cut"] | None
    share_prefixes: bool | Literal["auto"]


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    every: Count
    solutions: Count
    best_by: Literal["loss", "accuracy", "step_auroc", "first_error_f1"]


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """conf/train.yaml explains each key; data/splits.py parses `data`, launch/ the devices."""

    seed: Seed
    objective: Literal["prm", "orm", "implicit", "lm"]
    outcome_at: Literal["last", "tokens"]
    init: str
    tokenizer: str | None
    tokenizer_vocab: Count
    steps: Count
    resume: str | None
    log_every: Count
    checkpoint_every: Count
    model: init.ModelChoice
    format: Format
    loss: training.LossConfig
    lora: LoraConfig
    optimizer: training.OptimizerConfig
    batch: TrainBatch
    mesh: MeshConfig
    eval: EvalConfig
    wandb: Literal["offline", "online"] | None

    def __post_init__(self):
        is_lm = self.objective in ("implicit", "lm")
        if not is_lm:
            expected = f"{self.format.head}, as format={self.format.name} has"
            expect(self.format.head in (None, self.model.head), "model.head", self.model.head, expected)
        if self.objective != "orm" or STEP_LOSSES[self.loss.step].ranks:
            expected = f"last with objective={self.objective} and loss.step={self.loss.step}"
            expect(self.outcome_at == "last", "outcome_at", self.outcome_at, expected)
        has_reference = self.objective != "implicit" or self.init != "random"
        expect(has_reference, "init", "random", "a language model, which objective=implicit compares with")
        if is_lm or self.loss.lm_weight:  # a shared token has several next ones
            is_shared = self.batch.share_prefixes
            expect(is_shared is not True, "batch.share_prefixes", is_shared, "false with a next-token loss")
        loss = self.loss.objective
        expect(loss == self.objective, "loss.objective", loss, f"{self.objective}, as objective has it")
        defined = "loss", "accuracy", *STEP_METRICS[self.objective]
        expect(self.eval.best_by in defined, "eval.best_by", self.eval.best_by, ", ".join(defined))


def with_lm_weight(cfg: TrainConfig, data_cfg) -> TrainConfig:
    """The configuration with a number for lm_weight=null: .5 where the embedded model knows the task, which
    labels alone would make it forget, and where next tokens can be learned at all; else 0."""
    if cfg.loss.lm_weight is not None:
        return cfg
    knows_task = cfg.objective == "prm" and cfg.init == "embedded" and isinstance(data_cfg, TaskData)
    lm_weight = 0.5 if knows_task and is_causal() and cfg.batch.share_prefixes is not True else 0.0
    return dataclasses.replace(cfg, loss=dataclasses.replace(cfg.loss, lm_weight=lm_weight))


@cli.command("train", TrainConfig)
def main(cfg) -> float:
    """Trains a model into a run folder; returns the best validation value of `eval.best_by`."""
    run, texts, raw_cfg = run_folder.start_command(cfg)
    data_cfg = data_config(raw_cfg.data)
    init.fill_optimizer(raw_cfg, raw_cfg.init)
    if raw_cfg.resume is None:
        init.fill_format(raw_cfg)
    cfg = parse(raw_cfg, TrainConfig, elsewhere=("data", "distributed", "cpu_devices"))
    cfg = with_lm_weight(cfg, data_cfg)
    for name in {cfg.init, cfg.tokenizer} - {"random", "new", None}:
        locate(name)  # refused before samples are drawn
    is_random = cfg.init == "random"
    is_wide = (cfg.model.dim or 0) >= hf_config.WIDE if is_random else hf_config.is_wide(cfg.init)
    mesh = make_mesh(cfg.mesh, cfg.batch.rows, is_wide=is_wide)
    run_folder.claim_folder(texts, raw_cfg)
    with jax.set_mesh(mesh):
        print(f"run folder  {run}")
        return train(cfg, data_cfg, run, texts)


def train(cfg: TrainConfig, data_cfg, run: Path, texts: Path) -> float:
    """Makes data, model and optimiser, runs the loop, and writes the run's texts into the folder `texts`.
    Returns the best validation value of `eval.best_by`."""
    policy_pool = None
    if not isinstance(data_cfg, FileData):  # files need no policy
        from prm_jax.generate.samples import policy_pool
    data = load_splits(data_cfg, cfg.seed, policy_pool, labels_required=cfg.objective == "prm")
    data.record(texts / "data.json")
    tokenizer = init.make_tokenizer(cfg, data.splits["train"])
    model_cfg = init.read_model_config(cfg, tokenizer)
    examples = tokenise(cfg, data_cfg, data, tokenizer, model_cfg.max_positions)
    del data  # the texts
    print(f"data        {len(examples.train)} training, {len(examples.validation)} validation solutions")
    print_counts(examples.counts)

    share = choose_sharing(cfg, data_cfg, model_cfg.window, examples)
    together = STEP_LOSSES[cfg.loss.step].together
    width = cfg.batch.tokens or packing.training_width(examples.train + examples.validation, share, together)
    cfg = dataclasses.replace(cfg, batch=dataclasses.replace(cfg.batch, tokens=width))
    expected = f"at most the window ({model_cfg.window}) of a causal model, with prefix trees"
    expect(not share or packing.may_share(model_cfg, width), "batch.tokens", width, expected)
    check_divides(model_cfg, cfg.batch.rows, "batch.rows")
    model = init.make_model(cfg, model_cfg)
    opt = training.make_optimizer(model, cfg.optimizer, cfg.steps)
    n_all, n_trained = (optax.tree.size(nnx.state(model, which)) for which in (..., opt.wrt))
    expect(n_trained > 0, "optimizer.trainable", cfg.optimizer.trainable, "all or lora: no step head trains")
    print(f"model       {n_all:,} parameters, {n_trained:,} of them train, computed in {model.cfg.dtype}")
    processes = "1 process" if jax.process_count() == 1 else f"{jax.process_count()} processes"
    print(f"devices     {jax.sharding.get_mesh().size} of {platform()} in {processes}")
    save_description(texts / "model", model.cfg, tokenizer)

    plan = packing.make_plan(examples.train, width, share, together)
    print(memory_line(cfg, model, opt, plan))
    source = packing.TrainingRows(examples.train, plan, cfg.seed, examples.parts)
    print(source.summary())
    if together:
        alone = sum(len(group.indices) == 1 for group in plan.groups)
        print(f"partners    none in their row for {alone} of {len(examples.train)} solutions")
    if cfg.objective == "implicit":
        examples = examples._replace(validation=add_reference(cfg, model, source, examples.validation))
    best = fit(cfg, run, texts, model, opt, source, examples.validation, data_cfg.label_kind)

    metric = best[f"eval_{cfg.eval.best_by}"]
    summary = {"finished": True, "objective": cfg.objective, "label_kind": data_cfg.label_kind}
    summary |= {"seed": cfg.seed, **best, "metric": metric}
    summary |= {"parameters": n_all, "trained_parameters": n_trained, "counts": examples.counts}
    summary["examples"] = {"train": len(examples.train), "validation": len(examples.validation)}
    write_json(texts / "summary.json", summary | run_folder.made_by(run))
    numbers = f"eval loss {best['eval_loss']:.4f}, accuracy {best['eval_accuracy']:.4f}"
    print(f"finished    {numbers} at step {best['best_step']}")
    is_policy = cfg.objective == "lm"
    command = "prm_jax.sampling input=FILE" if is_policy else "prm_jax evaluate"
    print(f"next        python -m {command} checkpoint={run}")
    return metric


def memory_line(cfg: TrainConfig, model: PRM, opt, plan: packing.Plan) -> str:
    """What a train step takes of each device, or of this process where the CPU is the device."""
    b = cfg.batch
    empty = packing.pack_batch([[]] * b.rows, b.tokens, plan.step_slots)
    batch = {name: np.stack([x] * b.accumulate) for name, x in empty.items()}
    used = training.prepare_memory(model, opt, shard_batch(batch, b.rows, axis=1), cfg.loss)
    whose = "this process" if platform() == "cpu" else "each device"
    parts = ", ".join(f"{name} {gb:.2g}" for name, gb in used.items())
    return f"memory      about {sum(used.values()):.2g} GB of {whose}: {parts}"


def add_reference(cfg: TrainConfig, model: PRM, source: packing.TrainingRows, validation) -> list[Example]:
    """Gives `training.add_reference` to the examples of `source` that the run will read, and returns the
    validation examples with it."""
    b = cfg.batch
    train_set = list(source.examples)
    used = source.used(cfg.steps * b.rows * b.accumulate)
    both = [train_set[i] for i in used] + list(validation)
    both = training.add_reference(both, model, b.tokens, b.rows)
    for i, example in zip(used, both):
        train_set[i] = example
    source.examples = train_set
    return both[len(used) :]


class Tokenised(NamedTuple):
    """What is trained and measured on."""

    train: Sequence[Example]
    validation: Sequence[Example]
    parts: dict[str, tuple[int, float]]  # of a mixture: {source: (number of training examples, weight)}
    counts: dict[str, int]


def choose_sharing(cfg: TrainConfig, data_cfg, window: int | None, examples: Tokenised) -> bool:
    """Whether rows are prefix trees; with batch.share_prefixes=auto where that saves many tokens of files.
    Not with a window: the rows' width, which it must reach, is chosen later."""
    share = cfg.batch.share_prefixes
    if share != "auto":
        return share
    has_lm = cfg.objective in ("implicit", "lm") or cfg.loss.lm_weight > 0
    if has_lm or isinstance(data_cfg, TaskData) or examples.parts or window or not is_causal():
        return False
    saved = packing.saved_by_sharing(examples.train)
    share = saved >= packing.WORTH_SHARING
    print(f"prefixes    {'shared' if share else 'not shared'}: that saves about {saved:.0%} of the tokens")
    return share


def tokenise(cfg: TrainConfig, data_cfg, data: Data, tokenizer, positions: int) -> Tokenised:
    """The examples of both splits, with counts. A few very long solutions do not make all rows wide."""
    solutions = data.splits["train"]
    fmt = policy_format(cfg.format, tokenizer) if cfg.objective == "lm" else cfg.format
    limit = cfg.batch.tokens
    too_long = cfg.batch.too_long or ("cut" if limit is None else "error")
    if limit is None and too_long != "error":
        limit = row_limit(solutions, fmt, tokenizer, positions, cfg.objective)
    about = {"fmt": fmt, "tokenizer": tokenizer, "objective": cfg.objective}
    about |= {"limit": limit, "too_long": too_long}
    rest = iter(solutions)
    trains = []
    parts = {}
    counts = collections.Counter()
    for source, n in (data.parts or {"": len(solutions)}).items():
        made, lost = make_examples(itertools.islice(rest, n), **about, outcome_at=cfg.outcome_at)
        trains.append(made)
        counts.update({f"train_{name}": n_lost for name, n_lost in lost.items()})
        if source:
            parts[source] = len(made), (data_cfg.weights or {}).get(source, len(made))
    held_out = data.splits["validation"][: cfg.eval.solutions]
    validation, lost = make_examples(held_out, **about)  # measured at the last step, whatever outcome_at
    counts.update({f"validation_{name}": n_lost for name, n_lost in lost.items()})
    return Tokenised(sum(trains[1:], trains[0]), validation, parts, data.counts | counts)


def fit(cfg: TrainConfig, run: Path, texts: Path, model: PRM, opt, source, held_out, label_kind) -> dict:
    """Trains from the newest checkpoint, or from step 1; returns the numbers of the best evaluation, and the
    run's `steps` and `seconds`."""
    checkpoints = Checkpoints(run)
    restored = checkpoints.restore(model, opt) if cfg.resume is not None else None
    first, best = restored or (0, {})
    before = best.pop("seconds", 0.0)
    b = cfg.batch
    together = STEP_LOSSES[cfg.loss.step].together
    validation = list(packing.eval_batches(held_out, b.tokens, b.rows, together))
    batches = micro_batches(source, b, first, cfg.steps)
    schedule = training.make_schedule(cfg.optimizer, cfg.steps)
    k_dropout = jax.random.key(cfg.seed)

    def position(step):
        return {"lr": float(schedule(step - 1)), "epoch": source.epoch(step * b.rows * b.accumulate)}

    speaks = jax.process_index() == 0
    log = run_log.MetricsLog(texts, first, cfg.wandb if speaks else None)
    bar = progress("training", cfg.steps, "step", first)
    with contextlib.closing(checkpoints), contextlib.closing(log), run_log.StopSignal() as signals, bar:
        reader = run_log.StepReader(log, bar, cfg.log_every, before, position)
        for step in range(first + 1, cfg.steps + 1):
            model, opt, metrics = training.train_step(model, opt, next(batches), cfg.loss, k_dropout)
            # The stop signal is read with the numbers, so that all processes stop at the same step.
            reader.add(step, metrics | {"stop": max_over_processes(signals.received or 0)})
            is_last = step == cfg.steps
            evaluates = is_last or step % cfg.eval.every == 0
            saves = is_last or step % cfg.checkpoint_every == 0 or reader.stop
            if not (evaluates or saves):
                continue

            # Before each save too: the loss was finite before the step's update, perhaps not after.
            record = reader.read()
            scores = validate(cfg, model, validation if evaluates else validation[:1], label_kind)
            run_log.require_finite(step, scores)
            is_best = evaluates and is_better(scores, best, cfg.eval.best_by)
            if is_best:
                best = {**scores, "best_step": step}
            if evaluates:
                record |= scores
                shown = "  ".join(f"{name} {x:.4f}" for name, x in scores.items())
                if speaks:
                    bar.write(f"step {step:>6}  {shown}", file=sys.stderr)
            if evaluates or step % cfg.log_every == 0:
                log.write(record)
            stops = reader.stop and not is_last
            if saves or stops or is_best:
                state = best | {"seconds": reader.seconds}
                checkpoints.save(step, model, opt, state, model if is_best else None)
            if stops:
                run_log.leave(reader.stop, step, run)
    return best | {"steps": cfg.steps, "seconds": reader.seconds}


def micro_batches(source: packing.TrainingRows, cfg: TrainBatch, first: int, steps: int):
    """The batches after step `first`, [A, B, ...] on the mesh; a process reads only its own rows."""
    n_rows = cfg.rows * cfg.accumulate
    local_AB = np.arange(n_rows).reshape(cfg.accumulate, -1)[:, local_rows(cfg.rows)]
    for batch in packing.train_batches(source, steps, n_rows, local_AB.ravel(), first):
        batch = {name: x.reshape(*local_AB.shape, *x.shape[1:]) for name, x in batch.items()}
        yield shard_batch(batch, cfg.rows, axis=1)


def is_better(scores: dict, best: dict, by: str) -> bool:
    """Whether this evaluation beats the best so far, or is the first; a lower loss is better."""
    name = f"eval_{by}"
    expect(name in scores, "eval.best_by", by, "a number that the validation split defines")
    sign = -1 if by == "loss" else 1
    return "best_step" not in best or sign * (scores[name] - best[name]) > 0


def validate(cfg: TrainConfig, model: PRM, batches, label_kind: str) -> dict[str, float]:
    """Mean loss and accuracy over held-out batches; step AUROC and first-error F1 where defined."""
    totals = collections.Counter()
    scored = []
    for batch in batches:
        sums = training.eval_step(model, shard_batch(batch, len(batch["ids"])), cfg.loss)
        if "logit" in sums:
            scored += packing.unpack_steps(batch, np.asarray(sums.pop("logit")))
        totals.update({name: float(x) for name, x in sums.items()})
    n_steps, n_next = max(totals["n_steps"], 1), max(totals["n_next"], 1)
    if cfg.objective == "lm":
        return {"eval_loss": totals["lm"] / n_next, "eval_accuracy": totals["right"] / n_next}
    loss = totals["step"] / n_steps + cfg.loss.lm_weight * totals["lm"] / n_next
    if not math.isfinite(loss):
        return {"eval_loss": loss}  # NaN scores have no metrics
    p = [probability(logit_T) for logit_T, _ in scored]
    labels = [[None if np.isnan(y) else float(y) for y in label_T] for _, label_T in scored]
    metrics = step_metrics(p, labels, range(len(scored)), label_kind=label_kind)
    numbers = {f"eval_{name}": metrics[name] for name in STEP_METRICS[cfg.objective]}
    defined = {name: x for name, x in numbers.items() if math.isfinite(x)}
    return {"eval_loss": loss, "eval_accuracy": totals["right"] / n_steps, **defined}


if __name__ == "__main__":
    main()
