"""Train a process reward model (or an outcome model, or a language model) into a run folder.

It holds .hydra/ (configuration), metrics.jsonl, checkpoints/, model/ (config, tokenizer) and, at the end,
summary.json."""

import collections
import contextlib
import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import numpy as np
from flax import nnx
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from prm_jax import packing, training
from prm_jax.checkpoints import hf, hf_config
from prm_jax.checkpoints.folders import SHIPPED, is_run, locate
from prm_jax.checkpoints.orbax import Checkpoints, read_model, save_description, start_from_run
from prm_jax.checkpoints.tokenizer import load_tokenizer
from prm_jax.data.splits import Data, TaskData, data_config, load_splits
from prm_jax.data.units import probability
from prm_jax.examples import Example, make_examples, row_limit
from prm_jax.formats import Format, policy_format, train_tokenizer
from prm_jax.launch import cli, run_folder, run_log
from prm_jax.launch.config import CONF, Count, Seed, expect, parse
from prm_jax.launch.hosts import max_over_processes, writable_folder
from prm_jax.launch.mesh import MeshConfig, check_divides, local_rows, make_mesh, make_sharded, shard_batch
from prm_jax.launch.progress import print_counts, progress
from prm_jax.launch.sharding import platform
from prm_jax.lora import LoraConfig, attach
from prm_jax.losses import STEP_LOSSES
from prm_jax.metrics import step_metrics
from prm_jax.model import PRM, ModelConfig, cast_backbone
from prm_jax.visibility import is_causal


@dataclasses.dataclass(frozen=True)
class TrainBatch:
    rows: Count
    tokens: Count | None
    accumulate: Count
    too_long: Literal["error", "drop", "cut"] | None
    step_weights: Literal["uniform", "later"]
    share_prefixes: bool


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
    model: hf_config.ModelChoice
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
        if self.objective != "orm":
            expect(self.outcome_at == "last", "outcome_at", self.outcome_at, "last unless objective=orm")
        if is_lm or self.loss.lm_weight:  # a shared token has several next ones
            is_shared = self.batch.share_prefixes
            expect(not is_shared, "batch.share_prefixes", is_shared, "false with a next-token loss")


def with_lm_weight(cfg: TrainConfig, data_cfg) -> TrainConfig:
    """The configuration with a number for lm_weight=null: .5 where the embedded model knows the task, which
    labels alone would make it forget, and where next tokens can be learned at all; else 0."""
    if cfg.loss.lm_weight is not None:
        return cfg
    knows_task = cfg.objective == "prm" and cfg.init == "embedded" and isinstance(data_cfg, TaskData)
    lm_weight = 0.5 if knows_task and is_causal() and not cfg.batch.share_prefixes else 0.0
    return dataclasses.replace(cfg, loss=dataclasses.replace(cfg.loss, lm_weight=lm_weight))


def fill_optimizer(raw_cfg):
    """Fills the keys of `optimizer` that are null by what `init` opens, a run by what it began as, and says
    so of a Hugging Face model: at 1e-3 it would forget all that it knows."""
    origin = raw_cfg.init
    while is_run(origin):
        stored = run_folder.run_config(Path(origin))
        origin = stored.get("init") or stored.policy  # the latter of a run of prm_jax.rl
    is_own = origin in ("random", *SHIPPED)
    name = "small" if is_own else "finetune"
    chosen = OmegaConf.load(CONF / f"optimizer/{name}.yaml")
    filled = {key: x for key, x in chosen.items() if raw_cfg.optimizer[key] is None}
    raw_cfg.optimizer.update(filled)
    if filled and not is_own:
        numbers = ", ".join(f"{key} {x:g}" for key, x in filled.items())
        print(f"optimizer   {name}, since {origin} is a Hugging Face model: {numbers}")


def fill_format(raw_cfg):
    """Takes the format of the run that `init` names, whose model knows that text, unless one is chosen."""
    is_chosen = any(run_folder.section(word) == "format" for word in HydraConfig.get().overrides.task)
    if is_chosen or not is_run(raw_cfg.init):
        return
    run, tokenizer = run_folder.run_config(Path(raw_cfg.init)), load_tokenizer(locate(raw_cfg.init))
    fmt = parse(run.format, Format, "format")
    if run.objective == "lm":
        fmt = policy_format(fmt, tokenizer)
    raw_cfg.format = dataclasses.asdict(fmt)
    print(f"format      as {raw_cfg.init} has it: {fmt.name}, chat {fmt.chat}")


@cli.command("train", TrainConfig)
def main(cfg) -> float:
    """Trains a model into a run folder; returns the best validation value of `eval.best_by`."""
    run, raw_cfg, resumes = run_folder.start_command(cfg)
    data_cfg = data_config(raw_cfg.data)
    fill_optimizer(raw_cfg)
    if not resumes:
        fill_format(raw_cfg)
    cfg = parse(raw_cfg, TrainConfig, elsewhere=("data", "distributed", "cpu_devices"))
    cfg = with_lm_weight(cfg, data_cfg)
    for name in {cfg.init, cfg.tokenizer} - {"random", "new", None}:
        locate(name)  # refused before samples are drawn
    mesh, texts = make_mesh(cfg.mesh, cfg.batch.rows), writable_folder(run)
    run_folder.claim_folder(texts, raw_cfg, resumes)
    with jax.set_mesh(mesh):
        print(f"run folder  {run}")
        return train(cfg, data_cfg, run, texts)


def train(cfg: TrainConfig, data_cfg, run: Path, texts: Path) -> float:
    """Makes data, model and optimiser, runs the loop, and writes the run's texts into the folder `texts`.
    Returns the best validation value of `eval.best_by`."""
    data = load_splits(data_cfg, cfg.seed, draw_samples, labels_required=cfg.objective == "prm")
    data.record(texts / "data.json")
    tokenizer = make_tokenizer(cfg, data.splits["train"])
    model_cfg = read_model_config(cfg, tokenizer)
    examples = tokenise(cfg, data_cfg, data, tokenizer, model_cfg.max_positions)
    del data  # the texts
    print(f"data        {len(examples.train)} training, {len(examples.validation)} validation solutions")
    print_counts(examples.counts)

    note_positions(examples.train, model_cfg.max_positions)
    share = cfg.batch.share_prefixes
    width = cfg.batch.tokens or packing.training_width(examples.train + examples.validation, share)
    cfg = dataclasses.replace(cfg, batch=dataclasses.replace(cfg.batch, tokens=width))
    expected = f"at most the model's window of {model_cfg.window} with prefix trees"
    expect(not share or packing.may_share(model_cfg, width), "batch.tokens", width, expected)
    model = make_model(cfg, model_cfg)
    if cfg.objective == "implicit":
        train_set = training.with_reference(examples.train, model, width, cfg.batch.rows)
        validation_set = training.with_reference(examples.validation, model, width, cfg.batch.rows)
        examples = examples._replace(train=train_set, validation=validation_set)
    opt = training.make_optimizer(model, cfg.optimizer, cfg.steps)
    n_all, n_trained = count_parameters(model, ...), count_parameters(model, opt.wrt)
    expect(n_trained > 0, "optimizer.trainable", cfg.optimizer.trainable, "all or lora: no step head trains")
    print(f"model       {n_all:,} parameters, {n_trained:,} of them train, computed in {model.cfg.dtype}")
    processes = "1 process" if jax.process_count() == 1 else f"{jax.process_count()} processes"
    print(f"devices     {jax.sharding.get_mesh().size} of {platform()} in {processes}")
    print(memory_line(cfg, model, opt))
    save_description(texts / "model", model.cfg, tokenizer)

    plan = packing.make_plan(examples.train, width, share, STEP_LOSSES[cfg.loss.step].together)
    source = packing.TrainingRows(examples.train, plan, cfg.seed, examples.parts)
    print(source.summary())
    best = fit(cfg, run, texts, model, opt, source, examples.validation, data_cfg.label_kind)

    metric = best[f"eval_{cfg.eval.best_by}"]
    summary = {"finished": True, "objective": cfg.objective, "label_kind": data_cfg.label_kind}
    summary |= {"seed": cfg.seed, **best, "metric": metric}
    summary |= {"parameters": n_all, "trained_parameters": n_trained, "counts": examples.counts}
    summary["examples"] = {"train": len(examples.train), "validation": len(examples.validation)}
    run_folder.write_json(texts / "summary.json", summary | run_folder.made_by(run))
    numbers = f"eval loss {best['eval_loss']:.4f}, accuracy {best['eval_accuracy']:.4f}"
    print(f"finished    {numbers} at step {best['best_step']}")
    is_policy = cfg.objective == "lm"
    command = "prm_jax.sampling input=FILE" if is_policy else "prm_jax evaluate"
    print(f"next        python -m {command} checkpoint={run}")
    return metric


def memory_line(cfg: TrainConfig, model: PRM, opt) -> str:
    """What a train step takes of each device: the first one may fail for want of it."""
    all_logits = cfg.objective in ("lm", "implicit") or cfg.loss.lm_weight > 0
    used = training.memory_estimate(model, opt, cfg.batch.rows * cfg.batch.tokens, all_logits)
    parts = ", ".join(f"{name} {gb:.2g}" for name, gb in used.items())
    return f"memory      about {sum(used.values()):.2g} GB of each device: {parts}"


def count_parameters(model: PRM, which) -> int:
    return sum(x.size for x in jax.tree.leaves(nnx.state(model, which)))


class Examples(NamedTuple):
    """What is trained and measured on."""

    train: Sequence[Example]
    validation: Sequence[Example]
    parts: dict[str, tuple[int, float]]  # of a mixture: {source: (number of training examples, weight)}
    counts: dict[str, int]


def draw_samples(*args):
    """The samples of an embedded task's policy, as `policy_pool` draws them."""
    from prm_jax.generate.samples import policy_pool  # not above: training on files needs no policy

    return policy_pool(*args)


def tokenise(cfg: TrainConfig, data_cfg, data: Data, tokenizer, positions: int) -> Examples:
    """The examples of both splits, with counts. A few very long solutions do not make all rows wide."""
    solutions, held_out = data.splits["train"], data.splits["validation"][: cfg.eval.solutions]
    fmt = policy_format(cfg.format, tokenizer) if cfg.objective == "lm" else cfg.format
    limit = cfg.batch.tokens
    too_long = cfg.batch.too_long or ("cut" if limit is None else "error")
    if limit is None and too_long != "error":
        limit = row_limit(solutions, fmt, tokenizer, positions)
    about = {"fmt": fmt, "tokenizer": tokenizer, "objective": cfg.objective}
    about |= {"limit": limit, "too_long": too_long}
    teaching = {"weights": cfg.batch.step_weights, "outcome_at": cfg.outcome_at}
    train, parts, counts, start = None, {}, collections.Counter(), 0
    for source, n in (data.parts or {"": len(solutions)}).items():
        made, lost = make_examples(solutions[start : start + n], **about, **teaching)
        train = made if train is None else train + made
        counts.update({f"train_{name}": n_lost for name, n_lost in lost.items()})
        start += n
        if source:
            parts[source] = len(made), (data_cfg.weights or {}).get(source, len(made))
    validation, lost = make_examples(held_out, **about)
    counts.update({f"validation_{name}": n_lost for name, n_lost in lost.items()})
    n_cut, n_dropped = counts["train_too_long_cut"], counts["train_too_long_dropped"]
    if n_cut or n_dropped:
        lost = f"{n_cut:,} lose their last steps, {n_dropped:,} are left out"
        print(f"note        of the training solutions of more than {limit:,} tokens {lost} (batch.tokens)")
    return Examples(train, validation, parts, data.counts | counts)


def note_positions(examples: Sequence[Example], positions: int):
    """Says which training solutions are longer than the model was made for."""
    lengths = np.array([len(e.ids_L) for e in examples])
    if n_long := (lengths > positions).sum():
        which = f"{n_long:,} training solutions, up to {lengths.max():,} tokens long"
        print(f"note        {which}, pass the {positions:,} tokens that the model was made for")


def fit(cfg: TrainConfig, run: Path, texts: Path, model: PRM, opt, source, held_out, label_kind) -> dict:
    """Trains from the newest checkpoint, or from step 1; returns the numbers of the best evaluation."""
    checkpoints, first, best = Checkpoints(run), 0, {}
    if cfg.resume is not None:
        first, best = checkpoints.restore(model, opt) or (first, best)
    before = best.pop("seconds", 0.0)
    b, together = cfg.batch, STEP_LOSSES[cfg.loss.step].together
    check_divides(model.cfg, b.rows, "batch.rows")
    validation = list(packing.eval_batches(held_out, b.tokens, b.rows, together))
    batches = micro_batches(source, b, first, cfg.steps)
    schedule, k_dropout = training.make_schedule(cfg.optimizer, cfg.steps), jax.random.key(cfg.seed)

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
            record, is_best = reader.read(), False
            scores = evaluate(model, validation if evaluates else validation[:1], cfg.loss, label_kind)
            run_log.require_finite(step, scores)
            if evaluates:
                is_best = is_better(scores, best, cfg.eval.best_by)
                best = {**scores, "best_step": step} if is_best else best
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
    name, sign = f"eval_{by}", -1 if by == "loss" else 1
    expect(name in scores, "eval.best_by", by, "a number that the validation split defines")
    return "best_step" not in best or sign * (scores[name] - best[name]) > 0


def evaluate(model: PRM, batches, cfg: training.LossConfig, label_kind: str) -> dict[str, float]:
    """Mean loss and accuracy over held-out batches; step AUROC and first-error F1 where defined."""
    totals, scored = collections.Counter(), []
    for batch in batches:
        on_mesh = shard_batch(batch, len(batch["ids"]))
        sums = training.eval_step(model, on_mesh, cfg, logits=cfg.objective != "lm")
        if "logit" in sums:
            scored += packing.unpack_steps(batch, np.asarray(sums.pop("logit")))
        totals.update({name: float(x) for name, x in sums.items()})
    n_steps, n_next = max(totals["n_steps"], 1), max(totals["n_next"], 1)
    if cfg.objective == "lm":
        return {"eval_loss": totals["lm"] / n_next, "eval_accuracy": totals["right"] / n_next}
    loss = totals["step"] / n_steps + cfg.lm_weight * totals["lm"] / n_next
    if not math.isfinite(loss):
        return {"eval_loss": loss}  # NaN scores have no metrics
    p = [probability(logit_T) for logit_T, _ in scored]
    labels = [[None if np.isnan(y) else float(y) for y in label_T] for _, label_T in scored]
    metrics = step_metrics(p, labels, range(len(scored)), label_kind=label_kind)
    names = ("step_auroc", "first_error_f1") if cfg.objective == "prm" else ("step_auroc",)
    defined = {f"eval_{name}": metrics[name] for name in names if math.isfinite(metrics[name])}
    return {"eval_loss": loss, "eval_accuracy": totals["right"] / n_steps, **defined}


def make_tokenizer(cfg: TrainConfig, solutions):
    if cfg.tokenizer == "new":
        why = f"another, or init=random: the embeddings of {cfg.init} are of its own tokens"
        expect(cfg.init == "random", "tokenizer", "new", why)
        texts = (text for s in solutions for text in (s.problem, *s.steps))
        return train_tokenizer(texts, cfg.tokenizer_vocab)
    name = cfg.tokenizer or ("embedded" if cfg.init == "random" else cfg.init)
    return load_tokenizer(locate(name))


def read_model_config(cfg: TrainConfig, tokenizer) -> ModelConfig:
    """The configuration of the checkpoint that `init` names with the fields that `model` sets."""
    is_random, is_lm = cfg.init == "random", cfg.objective in ("lm", "implicit")
    if is_run(cfg.init):
        original = read_model(Path(cfg.init))
    else:
        folder = locate("embedded" if is_random else cfg.init)
        original = hf_config.model_config(hf_config.read_config(folder), str(folder / "config.json"))
    if is_random:
        original = dataclasses.replace(original, vocab=-(-len(tokenizer) // 64) * 64)
    head, lm_head = "none" if is_lm else cfg.model.head, is_lm or cfg.loss.lm_weight > 0
    model_cfg, changed = hf_config.resolve_model(cfg.model, original, head=head, lm_head=lm_head)
    for key, (wanted, has) in changed.items():
        expect(is_random, f"model.{key}", wanted, f"{has}, as {cfg.init} has, or init=random")
    vocab, n = model_cfg.vocab, len(tokenizer)
    expect(n <= vocab, "model.vocab", vocab, f"an embedding for each of the tokenizer's {n} tokens")
    return model_cfg


def make_model(cfg: TrainConfig, model_cfg: ModelConfig) -> PRM:
    """The model of the checkpoint that `init` names, or one with random weights."""
    is_frozen = cfg.optimizer.trainable != "all"
    if cfg.init == "random":
        model = make_sharded(lambda: PRM(model_cfg, rngs=nnx.Rngs(cfg.seed)))
        model = make_sharded(cast_backbone, model, donate=0) if is_frozen else model
    elif is_run(cfg.init):
        dtype = model_cfg.dtype if is_frozen else "float32"
        model = start_from_run(Path(cfg.init), model_cfg, cfg.model.new_head, cfg.seed, dtype)
    else:
        dtype = "compute" if is_frozen else "float32"
        model = hf.load(locate(cfg.init), model_cfg, cfg.model.new_head, cfg.seed, dtype)
    if cfg.optimizer.trainable == "lora":
        model = make_sharded(lambda model: attach(model, cfg.lora, cfg.seed), model, donate=0)
    return model


if __name__ == "__main__":
    main()
