"""Train a process reward model (or an outcome model, or a language model) into a run folder.

The run folder holds .hydra/ (its configuration), metrics.jsonl (one line a logged step), checkpoints/, model/ (config and
tokenizer) and, once finished, summary.json.
"""

import dataclasses
import math
import signal
import sys
import time
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from prm_jax import InputError
from prm_jax.checkpoints import hf, hf_config
from prm_jax.checkpoints.orbax import Checkpoints, save_description
from prm_jax.data.examples import make_examples
from prm_jax.data.formats import Format, train_tokenizer
from prm_jax.data.packing import TrainingRows, eval_batches, fits_window, make_plan, train_batches, training_width
from prm_jax.data.splits import data_config, load_splits
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import parse
from prm_jax.launch.hosts import init_distributed, max_over_processes, same_folder, set_cpu_devices, text_folder
from prm_jax.launch.mesh import MeshConfig, check_divides, local_rows, make_mesh, make_sharded, platform, shard_batch
from prm_jax.launch.run_folder import MetricsLog, StopSignal
from prm_jax.lora import LoraConfig, attach
from prm_jax.model import PRM, cast_backbone
from prm_jax.training import LossConfig, OptimizerConfig, eval_step, make_optimizer, make_schedule, train_step


@dataclasses.dataclass(frozen=True)
class BatchConfig:
    rows: int
    tokens: int | None
    accumulate: int
    too_long: str
    step_weights: str
    share_prefixes: bool


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    every: int
    solutions: int


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """conf/train.yaml says what each key means; `data` has its own dataclasses in data.py, `distributed` and `cpu_devices` go to sharding.py."""

    seed: int
    objective: str
    init: str
    tokenizer: str | None
    tokenizer_vocab: int
    steps: int
    resume: str | None
    log_every: int
    checkpoint_every: int
    tensorboard: bool
    model: hf_config.ModelChoice
    format: Format
    loss: LossConfig
    lora: LoraConfig
    optimizer: OptimizerConfig
    batch: BatchConfig
    mesh: MeshConfig
    eval: EvalConfig

    def __post_init__(self):
        if self.seed < 0:
            raise InputError(f"seed: got {self.seed}, expected at least 0")
        if self.objective == "lm" and self.optimizer.trainable == "head":
            raise InputError("optimizer.trainable: got head, but objective=lm has no step head to train")
        counts = {name: getattr(self, name) for name in ("steps", "log_every", "checkpoint_every", "tokenizer_vocab")}
        counts |= {f"batch.{name}": getattr(self.batch, name) for name in ("rows", "tokens", "accumulate")}
        counts |= {"eval.every": self.eval.every, "eval.solutions": self.eval.solutions}
        for name, n in counts.items():
            if n is not None and n < 1:
                raise InputError(f"{name}: got {n}, expected at least 1")


@cli.command("train")
def main(cfg):
    """Train a process reward model into a run folder."""
    set_cpu_devices(run_folder.of_resumed(cfg, "cpu_devices"))
    init_distributed(cfg)
    run, given = same_folder(run_folder.output_dir()), cfg
    if cfg.resume is not None:
        if jax.process_index() == 0 and not any(run.iterdir()):
            run.rmdir()  # Hydra's new folder; the run goes on in its own
        harmless = ("resume", "log_every", "checkpoint_every", "tensorboard")
        run, cfg = run_folder.resumed(cfg, harmless=(*harmless, "cpu_devices", "mesh.data", "mesh.fsdp", "mesh.tensor"))
    data_cfg = data_config(cfg.data)
    cfg = parse(cfg, TrainConfig, elsewhere=("data", "distributed", "cpu_devices"))
    if cfg.model.head == "ternary" and getattr(data_cfg, "neutral", None) == "bad":
        raise InputError("data.neutral: got 'bad', but the ternary head learns the rating and counts neutral as good")
    if cfg.batch.share_prefixes and (cfg.objective == "lm" or cfg.loss.lm_weight > 0):
        raise InputError(
            "batch.share_prefixes: needs objective prm or orm and loss.lm_weight=0: a shared token has no one next token"
        )
    if cfg.format.head not in (None, "implicit", cfg.model.head) and cfg.objective != "lm":
        raise InputError(
            f"model.head: got {cfg.model.head!r}, but format={cfg.format.name} belongs to a head of its own: {cfg.format.head}"
        )
    if cfg.format.score == "log_ratio":
        raise InputError(f"format: {cfg.format.name!r} has no step head to train; it scores by two language models")
    texts = text_folder(run)
    if cfg.resume is None:
        run_folder.create_run_folder(texts, given)
    print(f"run folder  {run}")
    with jax.set_mesh(make_mesh(cfg.mesh, cfg.batch.rows)):
        train(cfg, data_cfg, run, texts)


def train(cfg: TrainConfig, data_cfg, run: Path, texts: Path):
    """Data, model and optimiser from the configuration, the loop, and what the run folder says of them in `texts`."""
    data = load_splits(data_cfg, cfg.seed, labels_required=cfg.objective == "prm")
    splits, counts = data.splits, data.counts
    tokenizer = make_tokenizer(cfg, splits["train"])
    splits["validation"] = splits["validation"][: cfg.eval.solutions]
    examples = {}
    for split in ("train", "validation"):
        weights = cfg.batch.step_weights if split == "train" else "uniform"
        examples[split], dropped = make_examples(
            splits[split], cfg.format, tokenizer, cfg.objective, cfg.batch.tokens, cfg.batch.too_long, weights
        )
        counts |= {f"{split}_{name}": n for name, n in dropped.items()}
        if not examples[split]:
            raise InputError(f"data: the {split} split has no solution with a target for objective={cfg.objective}")
    print(f"data        {len(examples['train'])} training, {len(examples['validation'])} validation solutions")
    cli.print_counts(counts)
    if cfg.batch.tokens is None:
        width = training_width(examples["train"] + examples["validation"], cfg.batch.share_prefixes)
        cfg = dataclasses.replace(cfg, batch=dataclasses.replace(cfg.batch, tokens=width))

    model = make_model(cfg, tokenizer)
    if cfg.batch.share_prefixes and not fits_window(model.cfg, cfg.batch.tokens):
        raise InputError(
            f"batch.share_prefixes: the model's sliding window of {model.cfg.window} tokens counts those of other branches too; "
            f"expected batch.tokens of at most that, got {cfg.batch.tokens}"
        )
    opt = make_optimizer(model, cfg.optimizer, cfg.steps)
    n_parameters = sum(x.size for x in jax.tree.leaves(nnx.state(model)))
    n_trained = sum(x.size for x in jax.tree.leaves(nnx.state(model, opt.wrt)))
    print(
        f"model       {n_parameters:,} parameters, {n_trained:,} of them train, {model.cfg.dtype} on "
        f"{jax.sharding.get_mesh().size} {platform()} devices of {jax.process_count()} processes"
    )
    save_description(texts / "model", model.cfg, tokenizer)

    final = fit(cfg, run, texts, model, opt, examples)
    summary = {
        "finished": True,
        "objective": cfg.objective,
        "label_kind": data_cfg.label_kind,
        **final,
        "seed": cfg.seed,
        "parameters": n_parameters,
        "trained_parameters": n_trained,
        "counts": counts,
        "versions": run_folder.versions(),
    }
    run_folder.write_json(texts / "summary.json", summary)
    print("finished    eval loss {eval_loss:.4f}, accuracy {eval_accuracy:.4f} at step {best_step}".format(**final))
    print(f"next        python evaluate.py checkpoint={run}")


def fit(cfg: TrainConfig, run: Path, texts: Path, model: PRM, opt: nnx.Optimizer, examples) -> dict:
    """The loop: from step 1, or the newest checkpoint, to cfg.steps. Returns the numbers of the best evaluation."""
    b = cfg.batch
    batch_rows = b.rows * b.accumulate
    source = TrainingRows(examples["train"], make_plan(examples["train"], b.tokens, b.share_prefixes), cfg.seed)
    print(source.summary())
    held_out = list(eval_batches(examples["validation"], b.tokens, b.rows))
    check_divides(model.cfg, cfg.batch.rows, "batch.rows")
    schedule = make_schedule(cfg.optimizer, cfg.steps)
    k_dropout = jax.random.key(cfg.seed)

    checkpoints = Checkpoints(run)
    first, best = 0, {"eval_loss": math.inf}
    if cfg.resume is not None:
        first, best = checkpoints.restore(model, opt) or (first, best)
    before = best.pop("seconds", 0.0)  # that the run had taken when it was interrupted
    own_AB = np.arange(batch_rows).reshape(cfg.batch.accumulate, -1)[:, local_rows(cfg.batch.rows)]
    rows = train_batches(source, cfg.steps, batch_rows, own_AB.ravel(), first)
    log = MetricsLog(texts, first, cfg.tensorboard and jax.process_index() == 0)
    started, tokens = time.perf_counter(), 0
    asked = 0  # the signal that asks every process to stop

    def read(step, metrics):
        """The numbers of a step once the device has them; stops the run where they are not finite."""
        nonlocal tokens, asked
        asked = max(asked, int(metrics.pop("stop")))
        metrics = {name: float(x) for name, x in metrics.items()}
        require_finite(step, metrics, checkpoints)
        tokens += metrics["n_tokens"]
        seconds = time.perf_counter() - started
        shown = {"loss": f"{metrics['loss']:.4f}", "accuracy": f"{metrics['accuracy']:.3f}"}
        bar.set_postfix(shown | {"tok/s": f"{tokens / seconds:,.0f}"}, refresh=False)
        bar.update()
        position = {"lr": float(schedule(step - 1)), "epoch": source.epoch(step * batch_rows)}
        return {"step": step, **metrics, **position, "tokens_per_second": tokens / seconds, "seconds": before + seconds}

    pending = None  # (step, metrics) still being computed: read one step late, so that the device never waits
    with StopSignal() as stop, cli.progress("training", cfg.steps, "step", first) as bar:
        for step in range(first + 1, cfg.steps + 1):
            batch = {name: x.reshape(*own_AB.shape, -1) for name, x in next(rows).items()}
            batch = shard_batch(batch, cfg.batch.rows, axis=1)
            model, opt, metrics = train_step(model, opt, batch, cfg.loss, k_dropout)
            metrics["stop"] = max_over_processes(
                stop.received or 0
            )  # read with the rest, so that all stop at the same step
            if pending is not None:
                record = read(*pending)
                if record["step"] % cfg.log_every == 0:
                    log.write(record)
            pending = (step, metrics)
            last = step == cfg.steps
            evaluates = step % cfg.eval.every == 0 or last
            saves = step % cfg.checkpoint_every == 0 or last or asked
            if not (evaluates or saves):
                continue
            record, pending = read(*pending), None
            is_best = False
            # Before every save too: the step's own loss was finite before its update, not necessarily after.
            scores = evaluate(model, held_out if evaluates else held_out[:1], cfg.loss)
            require_finite(step, scores, checkpoints)
            if evaluates:
                is_best = scores["eval_loss"] < best["eval_loss"]
                best = {**scores, "best_step": step} if is_best else best
                record |= scores
                shown = "  ".join(f"{name} {x:.4f}" for name, x in scores.items())
                if jax.process_index() == 0:
                    bar.write(f"step {step:>6}  {shown}", file=sys.stderr)
            if evaluates or step % cfg.log_every == 0:
                log.write(record)
            stopping = asked and not last
            if saves or is_best or stopping:
                notes = best | {"seconds": before + time.perf_counter() - started}
                checkpoints.save(step, model, opt, notes, is_best)
            if stopping:
                checkpoints.close()
                name = signal.Signals(asked).name
                print(f"stopped     by {name} after step {step}; go on with: python train.py resume={run}")
                sys.exit(128 + asked)
    checkpoints.close()
    return best | {"steps": cfg.steps, "seconds": before + time.perf_counter() - started}


def require_finite(step: int, numbers: dict[str, float], checkpoints: Checkpoints):
    """Stops the run where a loss or a gradient norm is NaN or infinite; what was saved before stays as it is."""
    broken = {name: x for name, x in numbers.items() if not math.isfinite(x)}
    if broken:
        checkpoints.close()
        kept = checkpoints.latest.latest_step()
        raise InputError(
            f"step {step}: {', '.join(f'{name} is {x}' for name, x in broken.items())}; stopped. "
            + (f"The checkpoint of step {kept} is good" if kept else "No checkpoint was written yet")
            + "; a lower optimizer.lr or a longer optimizer.warmup may help"
        )


def evaluate(model: PRM, batches, cfg: LossConfig) -> dict[str, float]:
    """Mean loss and accuracy over the held-out batches."""
    totals = {}
    for batch in batches:
        for name, x in eval_step(model, shard_batch(batch, len(batch["ids"])), cfg).items():
            totals[name] = totals.get(name, 0.0) + float(x)
    n_steps, n_next = max(totals["n_steps"], 1), max(totals["n_next"], 1)
    if cfg.objective == "lm":
        return {"eval_loss": totals["lm"] / n_next, "eval_accuracy": totals["right"] / n_next}
    loss = totals["step"] / n_steps + cfg.lm_weight * totals["lm"] / n_next
    return {"eval_loss": loss, "eval_accuracy": totals["right"] / n_steps}


def make_tokenizer(cfg: TrainConfig, solutions):
    if cfg.tokenizer == "new":
        return train_tokenizer((text for s in solutions for text in (s.problem, *s.steps)), cfg.tokenizer_vocab)
    name = cfg.tokenizer or ("embedded" if cfg.init == "random" else cfg.init)
    return hf.load_tokenizer(hf.locate(name))


def make_model(cfg: TrainConfig, tokenizer) -> PRM:
    """The checkpoint named by `init`, or random weights of the asked shape."""
    folder = hf.locate("embedded" if cfg.init == "random" else cfg.init)
    config, where = hf_config.read_config(folder), str(folder / "config.json")
    head = "none" if cfg.objective == "lm" else cfg.model.head
    uses = {"head": head, "lm_head": cfg.objective == "lm" or cfg.loss.lm_weight > 0}
    if cfg.init == "random":
        if cfg.model.vocab is None:
            config["vocab_size"] = -(-len(tokenizer) // 64) * 64
        model_cfg, _ = hf_config.resolve_model(cfg.model, config, "model", **uses)
    else:
        model_cfg, changed = hf_config.resolve_model(cfg.model, config, where, **uses)
        for key, (asked, found) in changed.items():
            raise InputError(f"model.{key}: got {asked}, but {cfg.init} has {found}; init=random starts fresh weights")
    if len(tokenizer) > model_cfg.vocab:
        raise InputError(
            f"model.vocab: {model_cfg.vocab} embeddings are too few for a tokenizer of {len(tokenizer)} tokens"
        )
    frozen = cfg.optimizer.trainable != "all"
    if cfg.init == "random":
        store = cast_backbone if frozen else lambda model: model
        model = make_sharded(lambda: store(PRM(model_cfg, rngs=nnx.Rngs(cfg.seed))))
    else:
        model = hf.load(folder, model_cfg, cfg.model.new_head, cfg.seed, "thin" if frozen else np.float32)
    if cfg.optimizer.trainable == "lora":
        model = make_sharded(lambda model: attach(model, cfg.lora, cfg.seed), model, donate=0)
    return model


if __name__ == "__main__":
    main()
