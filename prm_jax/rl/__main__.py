"""Trains a policy by rewards of its steps and answers: roll out, reward, estimate advantages, update.

Read `Trainer` from top to bottom; conf/rl.yaml says what each key means. The roll-outs of a step depend only
on the weights, fold_in(seed, step) and, where select=mixed draws again, `steps`: a resumed run is bit for bit
the undisturbed one.

Dimension key: N roll-outs of a step, T steps, L tokens."""

import contextlib
import dataclasses
import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx

from prm_jax import InputError, rerank, tasks
from prm_jax.checkpoints.folders import training_tokens
from prm_jax.checkpoints.orbax import Checkpoints, save_description
from prm_jax.checkpoints.verifiers import OpenOptions, open_verifier
from prm_jax.data.splits import TaskData, data_config
from prm_jax.formats import policy_format
from prm_jax.generate.policies import SamplingStats, show_prompt
from prm_jax.generate.sampling import open_policy
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import expect, parse
from prm_jax.launch.files import keep_steps
from prm_jax.launch.hosts import max_over_processes, writable_folder
from prm_jax.launch.mesh import check_divides, make_mesh, make_sharded, shard_batch
from prm_jax.launch.progress import progress
from prm_jax.launch.run_folder import start_command
from prm_jax.launch.run_log import MetricsLog, StopSignal, leave, require_finite
from prm_jax.lora import attach
from prm_jax.model import choose_dtype
from prm_jax.packing import may_share, shuffled
from prm_jax.rl import advantages
from prm_jax.rl.config import RLConfig
from prm_jax.rl.measures import diagnose, show_summary, write_samples
from prm_jax.rl.problems import Problems, load_problems
from prm_jax.rl.rewards import Rewards, RolloutScores
from prm_jax.rl.rollouts import Layout, Rollout, arrays, lay_out, padded, roll_out
from prm_jax.rl.update import kl, loss_inputs, token_weights, update, written_logps
from prm_jax.training import make_optimizer


@cli.command("rl", RLConfig)
def main(cfg):
    """Train a policy by rewards of its steps and answers."""
    return train_policy(cfg)


def train_policy(raw_cfg, make_problems: Callable | None = None, trainer: type | None = None) -> float:
    """Runs the command and returns the held-out share of right answers at the end. A file of examples/ may
    give its own f(cfg, data_cfg) -> Problems, and its own subclass of Trainer."""
    run, raw_cfg, resumes = start_command(raw_cfg)
    data_cfg = data_config(raw_cfg.data)
    is_task = isinstance(data_cfg, TaskData)
    expect(is_task, "data", raw_cfg.data.name, f"an embedded task: {', '.join(tasks.TASKS)}")
    cfg = parse(raw_cfg, RLConfig, elsewhere=("data",))
    texts = writable_folder(run)
    mesh = make_mesh(cfg.mesh, cfg.batch.rows)
    run_folder.claim_folder(texts, raw_cfg, resumes)
    with jax.set_mesh(mesh):
        problems = (make_problems or load_problems)(cfg, data_cfg)
        training = (trainer or Trainer)(cfg, problems)
        print(f"run folder  {run}")
        save_description(texts / "model", training.policy.model.cfg, training.policy.tokenizer)
        final = training.fit(run, texts)
        verifiers = filter(None, (cfg.reward.prm_checkpoint, cfg.reward.orm_checkpoint))
        summary = {"finished": True, "objective": "lm", "label_kind": "unknown", "seed": cfg.seed, **final}
        summary["metric"] = final["eval_pass_at_1"]
        summary["verifier_tokens"] = {name: training_tokens(name) for name in verifiers}  # None: not known
        summary |= run_folder.made_by(run)
        run_folder.write_json(texts / "summary.json", summary)
    show_summary(run, summary)
    return final["eval_pass_at_1"]


class Trainer:
    """A policy in training, the verifiers that reward it, and the policy that it began as."""

    def __init__(self, cfg: RLConfig, problems: Problems):
        self.cfg = cfg
        self.problems = problems
        self.key = jax.random.key(cfg.seed)
        self.tokens = 0  # rolled out to learn from
        self.policy = self.open_policy()
        self.reference = self.open_policy().model  # the policy that the run began with
        self.check_rows()
        show_prompt(self.policy, problems.train[0])
        if cfg.optimizer.trainable == "lora":
            attached = functools.partial(attach, cfg=cfg.lora, seed=cfg.seed)
            self.policy.model = make_sharded(attached, self.policy.model, donate=0)
        self.opt = make_optimizer(self.policy.model, cfg.optimizer, cfg.steps * cfg.update.passes)
        self.rewards = Rewards(
            cfg.reward,
            self.policy,
            problems.is_right,
            problems.task,
            prm=self.open_verifier(cfg.reward.prm_checkpoint),
            orm=self.open_verifier(cfg.reward.orm_checkpoint),
        )

    def open_policy(self):
        cfg = self.cfg
        dtype = choose_dtype(cfg.dtype)
        policy = open_policy(cfg.policy, cfg.which, cfg.format, dtype, cfg.sampling, cfg.batch_rows)
        own = dataclasses.asdict(policy.format)
        for key, value in dataclasses.asdict(policy_format(cfg.format, policy.tokenizer)).items():
            expect(value == own[key], f"format.{key}", value, f"{own[key]!r}, as {cfg.policy} has")
        return policy

    def open_verifier(self, name: str | None):
        """The Scorer `name`, in rows of a fixed width, so that a resumed run has the same; None of None."""
        if name is None:
            return None
        task = self.problems.task and self.problems.task.name
        options = {"rows": 32, "tokens": self.cfg.batch.tokens, "seed": self.cfg.seed, "task": task}
        return open_verifier(name, OpenOptions(dtype=choose_dtype(self.cfg.dtype), **options))

    def check_rows(self):
        """InputError where a verifier cannot read steps, or a response is longer than a row."""
        cfg = self.cfg
        judges_steps = cfg.reward.prm_checkpoint or cfg.reward.orm_checkpoint
        if judges_steps and self.policy.stop_masks["step"] is None:
            raise InputError(f"format.separator: a verifier reads steps: expected one token of {cfg.policy}")
        problems = (*self.problems.train, *self.problems.held_out)
        prompts = self.policy.prefix_ids([(problem, ()) for problem in problems])
        # A verifier reads a cut step with its mark.
        needed = max(map(len, prompts)) + cfg.sampling.max_tokens + 1
        fits = needed <= cfg.batch.tokens
        expect(fits, "batch.tokens", cfg.batch.tokens, f"at least {needed}, the longest row")
        check_divides(self.policy.model.cfg, cfg.batch.rows, "batch.rows")

    def fit(self, run: Path, texts: Path) -> dict:
        """Trains from step 1 or the newest checkpoint; returns the last evaluation and the run's times."""
        cfg = self.cfg
        checkpoints = Checkpoints(run)
        restored = checkpoints.restore(self.policy.model, self.learners()) if cfg.resume is not None else None
        first, kept = restored or (0, {"tokens": 0, "seconds": 0.0})
        self.tokens = kept["tokens"]
        started = time.perf_counter() - kept["seconds"]
        newest = -1 if restored is None else first  # of the lines to keep
        samples = texts / "samples.jsonl"
        keep_steps(samples, newest)
        log = MetricsLog(texts, newest, cfg.wandb if jax.process_index() == 0 else None)
        if restored is None:
            scores = require_finite(0, self.evaluate(samples, 0))
            log.write({"step": 0, **scores, "seconds": time.perf_counter() - started})
            before = {name.removeprefix("eval_"): x for name, x in scores.items() if "pass_at" in name}
            best = {"best_step": 0, "best_pass_at_1": -1.0}  # of the steps to come
        else:
            before, best, scores = kept["before"], kept["best"], kept["last"]
        bar = progress("training", cfg.steps, "step", first)
        with contextlib.closing(checkpoints), contextlib.closing(log), StopSignal() as stop, bar:
            for step in range(first + 1, cfg.steps + 1):
                is_last = step == cfg.steps
                record = require_finite(step, self.learn(step))
                received = int(max_over_processes(stop.received or 0))
                is_stopping = received and not is_last
                evaluates = step % cfg.eval.every == 0 or is_last
                is_best = False
                if evaluates:
                    scores = require_finite(step, self.evaluate(samples, step))
                    record |= scores
                    pass_at_1 = scores["eval_pass_at_1"]
                    bar.write(f"step {step:>6}  pass@1 {pass_at_1:.3f}", file=sys.stderr)
                    is_best = pass_at_1 > best["best_pass_at_1"]
                    if is_best:
                        best = {"best_step": step, "best_pass_at_1": pass_at_1}
                if evaluates or is_stopping or step % cfg.checkpoint_every == 0:
                    norm = float(optax.tree.norm(nnx.state(self.policy.model)))
                    require_finite(step, {"parameter_norm": norm})  # no checkpoint of a broken update
                    state = {"before": before, "best": best, "last": scores, "tokens": self.tokens}
                    state["seconds"] = time.perf_counter() - started
                    model = self.policy.model
                    checkpoints.save(step, model, self.learners(), state, model if is_best else None)
                if evaluates or step % cfg.log_every == 0:
                    log.write({"step": step, **record, "seconds": time.perf_counter() - started})
                shown = {name: f"{record[name]:.3f}" for name in ("right", "reward")}
                bar.set_postfix(shown, refresh=False)
                bar.update()
                if is_stopping:
                    leave(received, step, run)
        seconds = time.perf_counter() - started
        final = {**before, **best, **scores, "steps": cfg.steps}
        return final | {"seconds": seconds, "policy_tokens": self.tokens}

    def learners(self):
        """What a checkpoint holds beside the policy."""
        return self.opt

    def learn(self, step: int) -> dict[str, float]:
        """One step: roll out, reward, select, update; returns the numbers to log."""
        self.policy.stats = SamplingStats()
        rollouts = self.roll_out(step)
        tokens = self.policy.stats.tokens
        self.tokens += tokens
        reward = self.rewards(rollouts)
        keep_N = self.keep(rollouts, reward.scores.right_N)
        learned = self.learn_beside(step, rollouts, reward.scores)
        kept = [rollouts[i] for i in np.flatnonzero(keep_N)]
        updated = self.update(kept, reward.step_NT[keep_N], reward.outcome_N[keep_N]) if kept else {}
        numbers = {
            **reward.means,
            **self.diagnose(rollouts, reward.scores),
            "reward": reward.total_N.mean(),
            "kept": keep_N.mean(),
            "policy_tokens": tokens,
            "total_policy_tokens": self.tokens,  # of all steps: a log may leave lines out
            **learned,
            **updated,
        }
        return {name: float(x) for name, x in numbers.items()}

    def learn_beside(self, step: int, rollouts: list[Rollout], scores: RolloutScores) -> dict[str, float]:
        """What else learns from a step's roll-outs, such as a verifier (examples/online.py); its numbers."""
        return {}

    def roll_out(self, step: int) -> list[Rollout]:
        """The roll-outs of a step; up to `resample` batches more until enough groups are kept (DAPO)."""
        cfg, train = self.cfg, self.problems.train
        rollouts = []
        for more in range(cfg.resample + 1):
            number = step + more * cfg.steps
            places = shuffled(len(train), (number - 1) * cfg.problems, number * cfg.problems, cfg.seed)
            key = jax.random.fold_in(self.key, number)
            drawn = roll_out(self.policy, [train[i] for i in places], cfg.n, key)
            first = len(rollouts) // cfg.n
            rollouts += [dataclasses.replace(r, group=r.group + first) for r in drawn]
            if more == cfg.resample or self.keep(rollouts, self.rewards.right(rollouts)).sum() == len(drawn):
                break
        return rollouts

    def keep(self, rollouts: list[Rollout], right_N: np.ndarray) -> np.ndarray:
        """Which roll-outs are learned from: all, or of select=mixed the first `problems` mixed groups."""
        cfg = self.cfg
        if cfg.select == "all":
            return np.ones(len(rollouts), bool)
        group_N = np.array([r.group for r in rollouts])
        keep_N = advantages.keep_mixed(right_N, group_N, cfg.accuracy_low, cfg.accuracy_high)
        return keep_N & (np.cumsum(keep_N) <= cfg.problems * cfg.n)

    def update(self, rollouts: list[Rollout], step_reward_NT, outcome_N) -> dict:
        """Makes `passes` updates on the roll-outs with a nonzero advantage; with a KL loss, on all."""
        cfg = self.cfg.update
        most = self.cfg.problems * self.cfg.n
        step_NL, mask_NL, group_N = arrays(rollouts)
        old_NL = padded([r.logp_L for r in rollouts])
        reference_NL = self.reference_logps(rollouts, most) if cfg.kl else np.zeros_like(old_NL)
        kl_reward_NL = None
        if cfg.kl and cfg.kl_as == "reward":
            kl_reward_NL = -cfg.kl * np.asarray(kl(old_NL - reference_NL, cfg.kl_estimator))
        advantage_NL = self.cfg.estimate(step_reward_NT, outcome_N, step_NL, mask_NL, group_N, kl_reward_NL)
        weight_NL = token_weights(mask_NL, cfg.loss_norm, self.cfg.sampling.max_tokens)
        if self.cfg.share_counts:
            shared_NL = padded(advantages.shared_by([r.ids_L for r in rollouts], group_N))
            weight_NL /= np.maximum(shared_NL, 1)
        teaches_N = (advantage_NL != 0).any(1) | cfg.has_kl_loss
        metrics = {}
        if teaches_N.any():
            taught = np.flatnonzero(teaches_N)
            layout = self.lay_out([rollouts[i] for i in taught], most)
            given = weight_NL, advantage_NL, old_NL, reference_NL, mask_NL
            inputs = loss_inputs(layout, *(x_NL[taught] for x_NL in given))
            batch = shard_batch(layout.batch | inputs, self.cfg.batch.rows, axis=1)
            for _ in range(cfg.passes):
                new = update(self.policy.model, self.opt, batch, layout.used, cfg)
                self.policy.model, self.opt, metrics = new
        return metrics

    def lay_out(self, rollouts: list[Rollout], most: int) -> Layout:
        batch = self.cfg.batch
        share = may_share(self.policy.model.cfg, batch.tokens) and self.cfg.update.surrogate != "gspo"
        return lay_out(rollouts, batch.rows, batch.tokens, most, share)

    def reference_logps(self, rollouts: list[Rollout], most: int) -> np.ndarray:
        """log p of the sampled tokens under the policy that the run began with, reference_NL."""
        layout = self.lay_out(rollouts, most)
        batch = shard_batch(layout.batch, self.cfg.batch.rows, axis=1)
        return layout.gather(np.asarray(written_logps(self.reference, batch, layout.used)))

    def evaluate(self, samples: Path, step: int) -> dict[str, float]:
        """Diagnoses held-out problems with fixed draws, kept in `samples`; adds pass@k and the KL."""
        n = self.cfg.eval.n
        key = jax.random.fold_in(self.key, 0)
        rollouts = roll_out(self.policy, self.problems.held_out, n, key)
        reward = self.rewards(rollouts)
        _, mask_NL, _ = arrays(rollouts)
        change_NL = padded([r.logp_L for r in rollouts]) - self.reference_logps(rollouts, len(rollouts))
        numbers = self.diagnose(rollouts, reward.scores)
        numbers["reward"] = reward.total_N.mean()
        numbers["kl"] = kl(change_NL[mask_NL], "k3").mean()
        numbers["pass_at_1"] = numbers.pop("right")
        right_PN = reward.scores.right_N.reshape(-1, n)
        pass_n = np.asarray(rerank.pass_at_n(right_PN)).mean(0)
        numbers |= {f"pass_at_{k}": pass_n[k - 1] for k in self.cfg.eval.k if 1 < k <= n}
        write_samples(samples, step, rollouts, reward)
        return {f"eval_{name}": float(x) for name, x in numbers.items()}

    def diagnose(self, rollouts: list[Rollout], scores: RolloutScores) -> dict[str, float]:
        return diagnose(rollouts, scores)


if __name__ == "__main__":
    main()
