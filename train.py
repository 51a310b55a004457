"""Train a process reward model (or an outcome model, or a language model) into a run folder.

It holds .hydra/ (configuration), metrics.jsonl, checkpoints/, model/ (config, tokenizer) and, at the end, summary.json.
"""

import collections
import contextlib
import dataclasses
import itertools
import math
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import jax
import numpy as np
from flax import nnx

from prm_jax import InputError, packing, training
from prm_jax.checkpoints import hf, hf_config
from prm_jax.checkpoints.orbax import Checkpoints, save_description
from prm_jax.data.splits import Data, Mixture, TaskData, data_config, load_splits, problem_hashes
from prm_jax.data.units import probability
from prm_jax.examples import Example, make_examples
from prm_jax.formats import Format, train_tokenizer
from prm_jax.heads import HEADS
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import Count, Seed, expect, parse, script
from prm_jax.launch.hosts import max_over_processes, writable_folder
from prm_jax.launch.mesh import MeshConfig, check_divides, local_rows, make_mesh, make_sharded, shard_batch
from prm_jax.launch.progress import print_counts, progress
from prm_jax.launch.run_folder import start_command
from prm_jax.launch.run_log import (
    MetricsLog,
    StepReader,
    StopSignal,
    clocks,
    require_finite,
    require_packages,
)
from prm_jax.launch.sharding import platform
from prm_jax.lora import LoraConfig, attach
from prm_jax.losses import STEP_LOSSES
from prm_jax.metrics import step_metrics
from prm_jax.model import PRM, cast_backbone
from prm_jax.tasks import find_task


@dataclasses.dataclass(frozen=True)
class TrainBatch:
    rows: Count
    tokens: Count | None
    accumulate: Count
    too_long: str
    step_weights: str
    share_prefixes: bool


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    every: Count
    solutions: Count
    best_by: Literal["loss", "accuracy", "step_auroc", "first_error_f1"] = "loss"  # older runs lack this key


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """conf/train.yaml explains each key; data/splits.py parses `data`, launch/ `distributed` and `cpu_devices`."""

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
    tensorboard: bool
    model: hf_config.ModelChoice
    format: Format
    loss: training.LossConfig
    lora: LoraConfig
    optimizer: training.OptimizerConfig
    batch: TrainBatch
    mesh: MeshConfig
    eval: EvalConfig
    wandb: Literal["offline", "online"] | None = None

    def __post_init__(self):
        is_implicit, fmt, head = self.objective == "implicit", self.format, self.model.head
        is_lm = is_implicit or self.objective == "lm"
        if is_lm and self.optimizer.trainable == "head":
            raise InputError(
                f"optimizer.trainable: got 'head', but objective={self.objective} has no step head"
            )
        expected = "a language model with objective=implicit, which measures what trains against it"
        expect(not is_implicit or self.init != "random", "init", self.init, expected)
        needs_last = (
            is_implicit or STEP_LOSSES[self.loss.step].ranks
        )  # these compare steps or solutions, not tokens
        expected = f"last with objective={self.objective}, loss.step={self.loss.step}"
        expect(self.outcome_at == "last" or not needs_last, "outcome_at", self.outcome_at, expected)
        measured = {"lm": ("loss", "accuracy"), "prm": (self.eval.best_by,)}
        measured = measured.get(self.objective, ("loss", "accuracy", "step_auroc"))
        expected = f"what objective={self.objective} measures: {', '.join(measured)}"
        expect(self.eval.best_by in measured, "eval.best_by", self.eval.best_by, expected)
        if self.batch.share_prefixes and (is_lm or (self.loss.lm_weight or 0) > 0):
            raise InputError(
                "batch.share_prefixes: a shared token has several next tokens; a language model needs one"
            )
        if fmt.score == "log_ratio" and not is_implicit:
            raise InputError(
                f"format: {fmt.name!r} has no step head to train; it scores by two language models"
            )
        if fmt.head not in (None, head) and not is_lm:
            raise InputError(f"model.head: got {head!r}, but format={fmt.name} has its own head: {fmt.head}")


@cli.command("train", TrainConfig)
def main(cfg) -> float:
    """Trains a process reward model into a run folder; returns the best validation value of `eval.best_by`."""
    run, raw_cfg, resumes = start_command(cfg)
    data_cfg = data_config(raw_cfg.data)
    cfg = parse(raw_cfg, TrainConfig, elsewhere=("data", "distributed", "cpu_devices"))
    is_defined = cfg.eval.best_by != "first_error_f1" or data_cfg.label_kind == "correctness"
    expect(
        is_defined,
        "eval.best_by",
        cfg.eval.best_by,
        f"another: {data_cfg.label_kind} labels have no first error",
    )
    if (
        cfg.loss.lm_weight is None
    ):  # the embedded model knows its task, which labels alone would make it forget
        knows = cfg.objective == "prm" and cfg.init == "embedded" and isinstance(data_cfg, TaskData)
        lm_weight = 0.5 if knows and not cfg.batch.share_prefixes else 0.0
        cfg = dataclasses.replace(cfg, loss=dataclasses.replace(cfg.loss, lm_weight=lm_weight))
    if isinstance(data_cfg, Mixture) and (cfg.batch.share_prefixes or STEP_LOSSES[cfg.loss.step].together):
        key = "batch.share_prefixes" if cfg.batch.share_prefixes else f"loss.step={cfg.loss.step}"
        raise InputError(f"{key}: solutions of data=mixture are drawn one by one, so that its weights hold")
    sources = data_cfg.sources.values() if isinstance(data_cfg, Mixture) else [data_cfg]
    if HEADS[cfg.model.head].rates and "bad" in [getattr(source, "neutral", None) for source in sources]:
        raise InputError(
            f"data.neutral: got 'bad', but the {cfg.model.head} head learns the rating, neutral as good"
        )
    require_packages(cfg.tensorboard, cfg.wandb)
    for name in {cfg.init, cfg.tokenizer} - {"random", "new", None}:
        hf.locate(name)  # refused before samples are drawn
    mesh, texts = make_mesh(cfg.mesh, cfg.batch.rows), writable_folder(run)
    with run_folder.locked_run_folder(texts, raw_cfg, resumes), jax.set_mesh(mesh):
        print(f"run folder  {run}")
        return train(cfg, data_cfg, run, texts)


def train(cfg: TrainConfig, data_cfg, run: Path, texts: Path) -> float:
    """Makes data, model and optimiser, runs the loop, and writes the run's texts into the folder `texts`. Returns the
    best validation value of `eval.best_by`: a loss, which is minimised, or one of the others, which are maximised."""
    data = load_splits(data_cfg, cfg.seed, draw_samples, labels_required=cfg.objective == "prm")
    record_data(texts / "data.json", data)
    splits, counts = data.splits, data.counts
    tokenizer = make_tokenizer(cfg, splits["train"])
    splits["validation"] = splits["validation"][: cfg.eval.solutions]
    targets = {"train": (cfg.batch.step_weights, cfg.outcome_at), "validation": ("uniform", "last")}
    rows, examples, parts = iter(splits["train"]), {}, {}
    sizes = data.parts or {"": len(splits["train"])}
    sources = [("train", name, itertools.islice(rows, n)) for name, n in sizes.items()]
    for split, source, solutions in (*sources, ("validation", "", splits["validation"])):
        limits = cfg.batch.tokens, cfg.batch.too_long
        made, dropped = make_examples(
            solutions, cfg.format, tokenizer, cfg.objective, *limits, *targets[split]
        )
        counts |= {f"{split}_{name}": n + counts.get(f"{split}_{name}", 0) for name, n in dropped.items()}
        if not made:
            where = f"the {split} split" + f" of {source}" * bool(source)
            raise InputError(f"data: {where} has no solution with a target for objective={cfg.objective}")
        examples[split] = examples[split] + made if split in examples else made
        if source:
            parts[source] = len(made), (data_cfg.weights or {}).get(source, len(made))
    errors = []  # of all validation solutions, whole, or of none
    is_exact = (
        cfg.objective == "prm" and data_cfg.label_kind == "correctness" and isinstance(data_cfg, TaskData)
    )
    if is_exact and not any(dropped.values()):
        task = find_task(data_cfg.name)
        errors = [task.first_wrong(s.problem, s.steps) for s in splits["validation"]]
    del data, splits, rows, sources, solutions  # the texts
    print(
        f"data        {len(examples['train'])} training, {len(examples['validation'])} validation solutions"
    )
    print_counts(counts)
    if cfg.batch.tokens is None:
        width = packing.training_width(examples["train"] + examples["validation"], cfg.batch.share_prefixes)
        cfg = dataclasses.replace(cfg, batch=dataclasses.replace(cfg.batch, tokens=width))
    of_step = cfg.batch.rows * cfg.batch.accumulate * cfg.batch.tokens
    expect(
        of_step <= 10**8,
        "batch.rows x batch.accumulate x batch.tokens",
        of_step,
        "at most 10^8 tokens of a step",
    )

    model = make_model(cfg, tokenizer)
    if cfg.batch.share_prefixes and not packing.may_share(model.cfg, cfg.batch.tokens):
        window = f"{model.cfg.window}, the model's sliding window, which counts tokens of other branches too"
        raise InputError(
            f"batch.tokens: got {cfg.batch.tokens} with share_prefixes, expected at most {window}"
        )
    for note in oddities(examples["train"], model.cfg.max_positions):
        print(f"note        {note}")
    if cfg.objective == "implicit":
        size = cfg.batch.tokens, cfg.batch.rows
        examples = {split: training.with_reference(rows, model, *size) for split, rows in examples.items()}
    opt = training.make_optimizer(model, cfg.optimizer, cfg.steps)
    n_all, n_trained = (
        sum(x.size for x in jax.tree.leaves(nnx.state(model, which))) for which in (..., opt.wrt)
    )
    print(f"model       {n_all:,} parameters, {n_trained:,} of them train, computed in {model.cfg.dtype}")
    n = jax.process_count()
    print(f"devices     {jax.sharding.get_mesh().size} of {platform()} in {n} process{'es' * (n > 1)}")
    save_description(texts / "model", model.cfg, tokenizer)

    together = STEP_LOSSES[cfg.loss.step].together
    plan = packing.make_plan(examples["train"], cfg.batch.tokens, cfg.batch.share_prefixes, together)
    source = packing.TrainingRows(examples["train"], plan, cfg.seed, parts)
    print(source.summary())
    final = fit(cfg, run, texts, model, opt, source, examples["validation"], data_cfg.label_kind, errors)
    drawn = {"drawn": source.drawn(cfg.steps * cfg.batch.rows * cfg.batch.accumulate)} if parts else {}
    summary = {
        "finished": True,
        "objective": cfg.objective,
        "label_kind": data_cfg.label_kind,
        "seed": cfg.seed,
    }
    metric = final[f"eval_{cfg.eval.best_by}"]
    summary |= {
        **final,
        "metric": metric,
        "parameters": n_all,
        "trained_parameters": n_trained,
        "counts": counts,
        **drawn,
    }
    summary["examples"] = {split: len(rows) for split, rows in examples.items()}
    run_folder.write_json(texts / "summary.json", summary | run_folder.made_by(run))
    print(
        "finished    eval loss {eval_loss:.4f}, accuracy {eval_accuracy:.4f} at step {best_step}".format(
            **final
        )
    )
    lm = f"python -m prm_jax.sampling checkpoint={run} input=FILE"
    print(f"next        {lm if cfg.objective == 'lm' else script('evaluate') + f' checkpoint={run}'}")
    return metric


def oddities(examples: list[Example], positions: int) -> Iterator[str]:
    """Says what is legal and seldom meant: more tokens than the model was made for, labels that are all alike."""
    if n_long := sum(len(e.ids_L) > positions for e in examples):
        yield f"{n_long} of {len(examples)} training solutions have more tokens than the {positions} of the model"
    labels = {label for e in examples for label in e.targets["label"].tolist() if not math.isnan(label)}
    if len(labels) == 1:
        yield f"all training labels are {labels.pop():g}, so there is nothing to tell apart"


def draw_samples(*args):
    """Samples of an embedded task's policy; imported here, because training on files needs no policy code."""
    from prm_jax.generate.samples import policy_pool

    return policy_pool(*args)


def record_data(path: Path, data: Data):
    """Writes hashes of the files, which a resumed run must have again, and of the problems, which evaluations read and
    RL keeps apart from."""
    if path.exists() and (old := run_folder.read_json(path, files=dict)["files"]) != data.fingerprints:
        changed = [name for name, x in data.fingerprints.items() if old.get(name) != x]
        raise InputError(
            f"resume: {', '.join(changed)}: is not what the run began with; start a new run instead"
        )
    problems = {"problems": data.splits["train"], "validation": data.splits["validation"]}
    hashes = {name: problem_hashes(solutions) for name, solutions in problems.items()}
    run_folder.write_json(path, {"files": data.fingerprints, **hashes})


def fit(
    cfg: TrainConfig, run: Path, texts: Path, model: PRM, opt, source, validation, label_kind, errors
) -> dict:
    """Trains from step 1, or from the newest checkpoint, to cfg.steps; returns the numbers of the best evaluation."""
    b, checkpoints, first, best = cfg.batch, Checkpoints(run), 0, {}
    if cfg.resume is not None:
        first, best = checkpoints.restore(model, opt) or (first, best)
    before = {name: best.pop(name, 0.0) for name in clocks()}
    check_divides(model.cfg, b.rows, "batch.rows")
    validation_batches = list(
        packing.eval_batches(validation, b.tokens, b.rows, STEP_LOSSES[cfg.loss.step].together)
    )
    batches = micro_batches(source, b, first, cfg.steps)
    schedule, k_dropout = training.make_schedule(cfg.optimizer, cfg.steps), jax.random.key(cfg.seed)

    def position(step):
        return {"lr": float(schedule(step - 1)), "epoch": source.epoch(step * b.rows * b.accumulate)}

    logs = (cfg.tensorboard, cfg.wandb) if jax.process_index() == 0 else (False, None)
    log = MetricsLog(texts, first, *logs)

    bar = progress("training", cfg.steps, "step", first)
    with contextlib.closing(checkpoints), contextlib.closing(log), StopSignal() as stop, bar:
        reader = StepReader(log, bar, cfg.log_every, before, position)
        for step in range(first + 1, cfg.steps + 1):
            model, opt, metrics = training.train_step(model, opt, next(batches), cfg.loss, k_dropout)
            # The stop signal is read with the numbers, so that all processes stop at the same step.
            reader.add(step, metrics | {"stop": max_over_processes(stop.received or 0)})
            last = step == cfg.steps
            evaluates = step % cfg.eval.every == 0 or last
            saves = step % cfg.checkpoint_every == 0 or last or reader.stop
            if not (evaluates or saves):
                continue
            record, is_best = reader.read(), False
            # Checked before every save too: the step's loss was finite before its update, not necessarily after.
            held_out = validation_batches if evaluates else validation_batches[:1]
            scores, kinds = evaluate(model, held_out, cfg.loss, label_kind, errors)
            require_finite(step, scores)
            if evaluates:
                is_best = is_better(scores, best, cfg.eval.best_by)
                best = {**scores, "best_step": step} if is_best else best
                record |= scores | {"eval_errors": kinds} if kinds else scores
                if jax.process_index() == 0:
                    shown = "  ".join(f"{name} {x:.4f}" for name, x in scores.items())
                    bar.write(f"step {step:>6}  {shown}", file=sys.stderr)
            if evaluates or step % cfg.log_every == 0:
                log.write(record)
            stopping = reader.stop and not last
            if saves or is_best or stopping:
                checkpoints.save(step, model, opt, best | reader.spent, model if is_best else None)
            if stopping:
                name = signal.Signals(reader.stop).name
                print(
                    f"stopped     by {name} after step {step}; continue with: {script('train')} resume={run}"
                )
                sys.exit(128 + reader.stop)
    return best | {"steps": cfg.steps, **reader.spent}


def micro_batches(source: packing.TrainingRows, cfg: TrainBatch, first: int, steps: int):
    """The batches after step `first`, arrays [A, B, ...] on the mesh; this process reads only its own rows."""
    n_rows = cfg.rows * cfg.accumulate
    local_AB = np.arange(n_rows).reshape(cfg.accumulate, -1)[:, local_rows(cfg.rows)]
    for batch in packing.train_batches(source, steps, n_rows, local_AB.ravel(), first):
        batch = {name: x.reshape(*local_AB.shape, *x.shape[1:]) for name, x in batch.items()}
        yield shard_batch(batch, cfg.rows, axis=1)


def is_better(scores: dict, best: dict, by: str) -> bool:
    """Whether this evaluation beats the best so far, or is the first; a lower loss is better."""
    name, sign = f"eval_{by}", -1 if by == "loss" else 1
    if name not in scores:
        raise InputError(
            f"eval.best_by: {by} is undefined on the validation split: it needs right and wrong ones"
        )
    return "best_step" not in best or sign * (scores[name] - best[name]) > 0


def evaluate(model: PRM, batches, cfg: training.LossConfig, label_kind: str, errors) -> tuple[dict, dict]:
    """(mean loss and accuracy over the held-out batches, with step AUROC and first-error F1 where they are defined;
    {kind of error: how many first errors, share missed at .5}). errors: `first_wrong` of each solution, if known."""
    totals, scored, order = collections.Counter(), [], []
    for indices, batch in batches:
        sums = training.eval_step(
            model, shard_batch(batch, len(batch["ids"])), cfg, logits=cfg.objective != "lm"
        )
        if "logit" in sums:
            scored += packing.unpack_steps(batch, np.asarray(sums.pop("logit")))
            order += indices
        totals.update({name: float(x) for name, x in sums.items()})
    n_steps, n_next = max(totals["n_steps"], 1), max(totals["n_next"], 1)
    if cfg.objective == "lm":
        return {"eval_loss": totals["lm"] / n_next, "eval_accuracy": totals["right"] / n_next}, {}
    loss = totals["step"] / n_steps + cfg.lm_weight * totals["lm"] / n_next
    if not math.isfinite(loss):
        return {"eval_loss": loss}, {}  # NaN scores have no metrics
    labels = [[None if np.isnan(y) else float(y) for y in label_T] for _, label_T in scored]
    p = [probability(logit_T) for logit_T, _ in scored]
    metrics = step_metrics(p, labels, range(len(scored)), label_kind=label_kind)
    names = ("step_auroc", "first_error_f1") if cfg.objective == "prm" else ("step_auroc",)
    defined = {f"eval_{name}": metrics[name] for name in names if math.isfinite(metrics[name])}
    missed = {}
    for i, p_T in zip(order, p, strict=True) if errors else ():
        if errors[i]:
            t, kind = errors[i]
            missed.setdefault(kind, []).append(p_T[t] >= 0.5)
    kinds = {kind: {"n": len(x), "missed": float(np.mean(x))} for kind, x in sorted(missed.items())}
    return {"eval_loss": loss, "eval_accuracy": totals["right"] / n_steps, **defined}, kinds


def make_tokenizer(cfg: TrainConfig, solutions):
    if cfg.tokenizer == "new":
        why = f"another, or init=random: the embeddings of {cfg.init} are of its own tokens"
        expect(cfg.init == "random", "tokenizer", "new", why)
        return train_tokenizer(
            (text for s in solutions for text in (s.problem, *s.steps)), cfg.tokenizer_vocab
        )
    name = cfg.tokenizer or ("embedded" if cfg.init == "random" else cfg.init)
    return hf.load_tokenizer(hf.locate(name))


def make_model(cfg: TrainConfig, tokenizer) -> PRM:
    """The model of the checkpoint that `init` names, or one with random weights."""
    folder = hf.locate("embedded" if cfg.init == "random" else cfg.init)
    config, where = hf_config.read_config(folder), str(folder / "config.json")
    is_lm = cfg.objective in ("lm", "implicit")
    head = "none" if is_lm else cfg.model.head
    uses, is_random = {"head": head, "lm_head": is_lm or cfg.loss.lm_weight > 0}, cfg.init == "random"
    if is_random and cfg.model.vocab is None:
        config["vocab_size"] = -(-len(tokenizer) // 64) * 64
    model_cfg, changed = hf_config.resolve_model(cfg.model, config, "model" if is_random else where, **uses)
    for key, (wanted, has) in () if is_random else changed.items():
        raise InputError(
            f"model.{key}: got {wanted}, but {cfg.init} has {has}; init=random starts fresh weights"
        )
    vocab, n = model_cfg.vocab, len(tokenizer)
    expect(n <= vocab, "model.vocab", vocab, f"an embedding for each of the tokenizer's {n} tokens")
    frozen = cfg.optimizer.trainable != "all"
    if is_random:
        model = make_sharded(lambda: PRM(model_cfg, rngs=nnx.Rngs(cfg.seed)))
        model = make_sharded(cast_backbone, model, donate=0) if frozen else model
    else:
        stored = "compute" if frozen else "float32"
        model = hf.load(folder, model_cfg, cfg.model.new_head, cfg.seed, stored)
    if cfg.optimizer.trainable == "lora":
        model = make_sharded(lambda model: attach(model, cfg.lora, cfg.seed), model, donate=0)
    return model


if __name__ == "__main__":
    main()
