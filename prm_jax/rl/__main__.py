"""Trains a policy by rewards of its steps and answers: roll out, reward, estimate advantages, update.

Read `Trainer` from top to bottom; conf/rl.yaml says what each key means. The roll-outs of a step depend only
on the weights, fold_in(seed, step) and, where select=mixed draws again, `steps`: a resumed run is bit for bit
the undisturbed one, with a critic's rewards up to their rounding.

Dimension key: A micro-batches, B rows, L tokens, N roll-outs of a step (or n of P problems), T steps."""

import contextlib
import dataclasses
import functools
import sys
import time
from pathlib import Path
from typing import Literal

import jax
import numpy as np
import optax
from flax import nnx

from prm_jax import tasks
from prm_jax.checkpoints.hf_config import is_wide
from prm_jax.checkpoints.init import fill_optimizer
from prm_jax.checkpoints.names import OpenOptions, open_verifier
from prm_jax.checkpoints.orbax import Checkpoints, save_description
from prm_jax.data.splits import TaskData, data_config
from prm_jax.generate.policies import SamplingStats, show_prompt
from prm_jax.generate.pools import CommandConfig, configured_policy
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import Count, Natural, Share, expect, parse
from prm_jax.launch.devices import choose_dtype, make_mesh
from prm_jax.launch.files import write_json
from prm_jax.launch.hosts import max_over_processes
from prm_jax.launch.mesh import check_divides, make_sharded, shard_batch
from prm_jax.launch.progress import progress
from prm_jax.launch.run_log import MetricsLog, StopSignal, leave, require_finite
from prm_jax.lora import LoraConfig, attach
from prm_jax.packing import may_share, shuffled
from prm_jax.rl.advantages import EstimatorConfig, Responses, keep_mixed
from prm_jax.rl.problems import Problems, load_problems
from prm_jax.rl.rewards import Reward, RewardConfig, Rewards, diagnose
from prm_jax.rl.rollouts import Rollout, RolloutLayout, arrays, lay_out, padded, roll_out
from prm_jax.rl.update import UpdateConfig, kl, loss_inputs, token_weights, update, written_logps
from prm_jax.training import OptimizerConfig, in_float32, make_optimizer


@dataclasses.dataclass(frozen=True)
class RLBatch:
    rows: Count
    tokens: Count


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    every: Count
    problems: Count
    n: Count


@dataclasses.dataclass(frozen=True, kw_only=True)
class RLConfig(EstimatorConfig, CommandConfig):  # conf/rl.yaml says what each key means
    input: str | None
    held_out: str | None
    columns: dict[str, str] | None
    apart: str | None
    policy: str
    steps: Count
    problems: Count
    n: Count
    select: Literal["all", "mixed"]
    accuracy: tuple[Share, ...]
    resample: Natural
    reward: RewardConfig
    update: UpdateConfig
    optimizer: OptimizerConfig
    lora: LoraConfig
    batch: RLBatch
    eval: EvalConfig
    objective: Literal["lm"]  # what other commands read of the run
    checkpoint_every: Count
    wandb: Literal["offline", "online"] | None

    def __post_init__(self):
        is_whole = self.sampling.temperature == 1 and self.sampling.top_k is None and self.sampling.top_p == 1
        expect(is_whole, "sampling", str(self.sampling), "temperature 1 and all tokens")
        compares = self.estimator.needs_group or self.select == "mixed"
        expected = f"at least 2, which advantage={self.advantage} or select=mixed compares"
        expect(self.n > 1 or not compares, "n", self.n, expected)
        is_pair = (self.input is None) == (self.held_out is None)
        expect(is_pair, "held_out", self.held_out, "a file beside input, and only beside it")
        expect(None in (self.apart, self.input), "apart", self.apart, "null beside input, which is all taken")
        for key in ("checker", "columns"):
            value = getattr(self, key)
            is_read = self.input is not None or value is None
            expect(is_read, key, value, "null without input: the task checks its problems itself")
        trainable = self.optimizer.trainable
        expect(trainable != "head", "optimizer.trainable", trainable, "all or lora: a policy has no head")
        is_range = len(self.accuracy) == 2 and self.accuracy[0] <= self.accuracy[1]
        expect(is_range, "accuracy", self.accuracy, "the least and the greatest share")


class Trainer:
    """A policy in training, the verifiers that reward it, and the policy that it began as."""

    def __init__(self, cfg: RLConfig, problems: Problems):
        self.cfg = cfg
        self.problems = problems
        self.key = jax.random.key(cfg.seed)
        self.tokens = 0  # rolled out to learn from
        dtype = choose_dtype(cfg.dtype)
        self.policy = configured_policy(cfg, cfg.policy, dtype)
        self.reference = configured_policy(cfg, cfg.policy, dtype).model  # that which the run began with
        prompts = self.policy.prefix_ids([(text, ()) for text in (*problems.train, *problems.held_out)])
        # A verifier reads a cut step with its mark.
        needed = max(map(len, prompts)) + cfg.sampling.max_tokens + 1
        fits = needed <= cfg.batch.tokens
        expect(fits, "batch.tokens", cfg.batch.tokens, f"at least {needed}, the longest row")
        check_divides(self.policy.model.cfg, cfg.batch.rows, "batch.rows")
        show_prompt(self.policy, problems.train[0])
        if cfg.optimizer.trainable == "all":
            self.policy.model = in_float32(self.policy.model)
        if cfg.optimizer.trainable == "lora":
            attached = functools.partial(attach, cfg=cfg.lora, seed=cfg.seed)
            self.policy.model = make_sharded(attached, self.policy.model, donate=0)
        self.opt = make_optimizer(self.policy.model, cfg.optimizer, cfg.steps * cfg.update.passes)
        prm = cfg.reward.prm_checkpoint and self.open_verifier(cfg.reward.prm_checkpoint)
        self.rewards = Rewards(cfg.reward, problems.is_right, problems.task, prm)

    def open_verifier(self, name: str):
        """The Scorer `name`, in rows of a fixed width, so that a resumed run has the same."""
        task = self.problems.task and self.problems.task.name
        options = {"rows": 32, "tokens": self.cfg.batch.tokens, "seed": self.cfg.seed, "task": task}
        options |= {"data": self.problems.data, "dtype": choose_dtype(self.cfg.dtype)}
        return open_verifier(name, OpenOptions(**options))

    def fit(self, run: Path, texts: Path) -> dict:
        """Trains from the newest checkpoint, or measures at step 0 and trains from step 1; returns the last
        evaluation and the run's times."""
        cfg = self.cfg
        checkpoints = Checkpoints(run)
        fresh = -1, {"tokens": 0, "seconds": 0.0, "best_step": 0, "best_pass_at_1": -1.0}
        stored = checkpoints.restore(self.policy.model, self.learners()) if cfg.resume is not None else None
        newest, state = stored or fresh
        self.tokens = state["tokens"]
        started = time.perf_counter() - state["seconds"]
        log = MetricsLog(texts, newest, cfg.wandb if jax.process_index() == 0 else None)
        bar = progress("training", cfg.steps + 1, "step", newest + 1)
        with contextlib.closing(checkpoints), contextlib.closing(log), StopSignal() as stop, bar:
            for step in range(newest + 1, cfg.steps + 1):
                is_last = step == cfg.steps
                record = require_finite(step, self.learn(step)) if step else {}
                received = int(max_over_processes(stop.received or 0))
                is_stopping = received and not is_last
                evaluates = step % cfg.eval.every == 0 or is_last
                if evaluates:
                    state["last"] = require_finite(step, self.evaluate())
                    record |= state["last"]
                    pass_at_1 = record["eval_pass_at_1"]
                    bar.write(f"step {step:>6}  pass@1 {pass_at_1:.3f}", file=sys.stderr)
                is_best = evaluates and step > 0 and pass_at_1 > state["best_pass_at_1"]
                if step == 0:
                    state["before"] = record
                if is_best:
                    state |= {"best_step": step, "best_pass_at_1": pass_at_1}
                state |= {"tokens": self.tokens, "seconds": time.perf_counter() - started}
                if is_stopping or step and (evaluates or step % cfg.checkpoint_every == 0):
                    model = self.policy.model
                    norm = float(optax.tree.norm(nnx.state(model)))
                    require_finite(step, {"parameter_norm": norm})  # no checkpoint of a broken update
                    checkpoints.save(step, model, self.learners(), state, model if is_best else None)
                log.write({"step": step, **record, "seconds": state["seconds"]})
                bar.update()
                if is_stopping:
                    leave(received, step, run)
        before = {name.removeprefix("eval_"): x for name, x in state["before"].items() if "pass_at" in name}
        best = {name: state[name] for name in ("best_step", "best_pass_at_1")}
        times = {"steps": cfg.steps, "seconds": state["seconds"], "policy_tokens": self.tokens}
        return before | best | state["last"] | times

    def learners(self):
        """What a checkpoint holds beside the policy."""
        return self.opt

    def learn(self, step: int) -> dict[str, float]:
        """One step: roll out, reward, select, update; returns the numbers to log."""
        self.policy.stats = SamplingStats()
        rollouts, right_N = self.roll_out(step)
        tokens = self.policy.stats.tokens
        self.tokens += tokens
        reward = self.rewards(rollouts, right_N)
        keep_N = self.keep(rollouts, right_N)
        learned = self.learn_beside(step, rollouts, reward)
        kept = [rollouts[i] for i in np.flatnonzero(keep_N)]
        updated = self.update(kept, reward.step_NT[keep_N], reward.outcome_N[keep_N]) if kept else {}
        numbers = {
            **reward.means,
            **diagnose(rollouts, reward),
            "reward": reward.total_N.mean(),
            "kept": keep_N.mean(),
            "policy_tokens": tokens,
            "total_policy_tokens": self.tokens,
            **learned,
            **updated,
        }
        return {name: float(x) for name, x in numbers.items()}

    def learn_beside(self, step: int, rollouts: list[Rollout], reward: Reward) -> dict[str, float]:
        """What else learns from a step's roll-outs, such as a verifier (examples/online.py); its numbers."""
        return {}

    def roll_out(self, step: int) -> tuple[list[Rollout], np.ndarray]:
        """(roll-outs of a step, right_N); up to `resample` batches more until enough groups stay (DAPO)."""
        cfg = self.cfg
        train = self.problems.train
        rollouts = []
        right_N = np.zeros(0)
        for more in range(cfg.resample + 1):
            number = step + more * cfg.steps
            places = shuffled(len(train), (number - 1) * cfg.problems, number * cfg.problems, cfg.seed)
            key = jax.random.fold_in(self.key, number)
            drawn = roll_out(self.policy, [train[i] for i in places], cfg.n, key)
            first = len(rollouts) // cfg.n
            rollouts += [dataclasses.replace(r, group=r.group + first) for r in drawn]
            right_N = np.append(right_N, self.rewards.right(drawn))
            if self.keep(rollouts, right_N).sum() == len(drawn):
                break
        return rollouts, right_N

    def keep(self, rollouts: list[Rollout], right_N: np.ndarray) -> np.ndarray:
        """Which roll-outs are learned from: all, or of select=mixed the first `problems` mixed groups."""
        cfg = self.cfg
        if cfg.select == "all":
            return np.ones(len(rollouts), bool)
        keep_N = keep_mixed(right_N, np.array([r.group for r in rollouts]), *cfg.accuracy)
        return keep_N & (np.cumsum(keep_N) <= cfg.problems * cfg.n)

    def update(self, rollouts: list[Rollout], step_reward_NT, outcome_N) -> dict:
        """Makes `passes` updates on the roll-outs with a nonzero advantage; with a KL loss, on all."""
        cfg = self.cfg.update
        step_NL, mask_NL, group_N = arrays(rollouts)
        advantage_NL = self.cfg.estimate(Responses(step_reward_NT, outcome_N, step_NL, mask_NL, group_N))
        weight_NL = token_weights(mask_NL, cfg.loss_norm, self.cfg.sampling.max_tokens)
        taught = np.flatnonzero((advantage_NL != 0).any(1) | (cfg.kl > 0))
        if len(taught) == 0:
            return {}
        layout = self.lay_out([rollouts[i] for i in taught], self.cfg.problems * self.cfg.n)
        given = weight_NL, advantage_NL, padded([r.logp_L for r in rollouts]), mask_NL
        inputs = loss_inputs(layout, *(x_NL[taught] for x_NL in given))
        if cfg.kl:
            inputs["reference"] = self.logps(self.reference, layout)
        if cfg.surrogate == "gspo":  # whose clip is narrower than what sampling rounds off in bfloat16
            inputs["old"] = self.logps(self.policy.model, layout)
        batch = shard_batch(layout.batch | inputs, self.cfg.batch.rows, axis=1)
        for _ in range(cfg.passes):
            new = update(self.policy.model, self.opt, batch, layout.used, cfg)
            self.policy.model, self.opt, metrics = new
        return metrics

    def lay_out(self, rollouts: list[Rollout], most: int) -> RolloutLayout:
        batch = self.cfg.batch
        share = may_share(self.policy.model.cfg, batch.tokens) and self.cfg.update.surrogate != "gspo"
        return lay_out(rollouts, batch.rows, batch.tokens, most, share)

    def logps(self, model, layout: RolloutLayout) -> np.ndarray:
        """log p of the sampled tokens under a model, logp_ABL."""
        batch = shard_batch(layout.batch, self.cfg.batch.rows, axis=1)
        return np.asarray(written_logps(model, batch, layout.used))

    def evaluate(self) -> dict[str, float]:
        """Diagnoses held-out problems with fixed draws; adds pass@n and the KL."""
        n = self.cfg.eval.n
        key = jax.random.fold_in(self.key, 0)
        rollouts = roll_out(self.policy, self.problems.held_out, n, key)
        reward = self.rewards(rollouts)
        _, mask_NL, _ = arrays(rollouts)
        layout = self.lay_out(rollouts, len(rollouts))
        reference_NL = layout.gather(self.logps(self.reference, layout))
        change_NL = padded([r.logp_L for r in rollouts]) - reference_NL
        numbers = diagnose(rollouts, reward)
        numbers["reward"] = reward.total_N.mean()
        numbers["kl"] = kl(change_NL[mask_NL]).mean()
        right_PN = reward.right_N.reshape(-1, n)
        numbers[f"pass_at_{n}"] = right_PN.any(1).mean()
        numbers["pass_at_1"] = numbers.pop("right")
        return {f"eval_{name}": float(x) for name, x in numbers.items()}


def train_policy(raw_cfg, trainer: type = Trainer) -> float:
    """Runs the command and returns the held-out share of right answers at the end. A file of examples/ may
    give its own subclass of Trainer."""
    run, texts, raw_cfg = run_folder.start_command(raw_cfg)
    is_task = isinstance(data_config(raw_cfg.data), TaskData)
    expect(is_task, "data", raw_cfg.data.name, f"an embedded task: {', '.join(tasks.TASKS)}")
    fill_optimizer(raw_cfg, raw_cfg.policy)
    cfg = parse(raw_cfg, RLConfig, elsewhere=("data",))
    mesh = make_mesh(cfg.mesh, cfg.batch.rows, is_wide=is_wide(cfg.policy))
    with jax.set_mesh(mesh):
        training = trainer(cfg, load_problems(cfg, raw_cfg.data))
        fmt = training.policy.format  # which a run or an export brings
        raw_cfg.format = {key: getattr(fmt, key) for key in vars(cfg.format)}
        run_folder.claim_folder(texts, raw_cfg)
        print(f"run folder  {run}")
        save_description(texts / "model", training.policy.model.cfg, training.policy.tokenizer)
        ends = {"eos_token_id": list(training.policy.eos_ids)}
        write_json(texts / "model/generation_config.json", ends)
        final = training.fit(run, texts)
    summary = {"finished": True, "objective": "lm", "label_kind": "unknown", "seed": cfg.seed, **final}
    summary["metric"] = final["eval_pass_at_1"]
    write_json(texts / "summary.json", summary | run_folder.made_by(run))
    best = f"best {final['best_pass_at_1']:.3f} at step {final['best_step']}"
    print(f"finished    pass@1 {final['pass_at_1']:.3f} before, {final['eval_pass_at_1']:.3f} now ({best})")
    print(f"time        {final['seconds']:,.0f} seconds, {final['policy_tokens']:,} tokens rolled out")
    print(f"curves      python -m prm_jax.sweeps runs={run} x=step 'y=[eval_pass_at_1,eval_reward,eval_kl]'")
    print(f"next        python -m prm_jax.sampling checkpoint={run} input=FILE")
    return summary["metric"]


@cli.command("rl", RLConfig)
def main(cfg):
    """Train a policy by rewards of its steps and answers."""
    return train_policy(cfg)


if __name__ == "__main__":
    main()
