"""Trains a policy by rewards of its steps and answers: roll out, reward, estimate advantages, update.

python -m prm_jax.rl    GRPO of the embedded policy by the answer checker; conf/rl.yaml says what each key
means.

Read `Trainer` from top to bottom. The roll-outs of a step depend only on the weights and on fold_in(seed,
step), and of `steps` where select=mixed draws again; so a resumed run repeats the undisturbed one bit for
bit.

Dimension key: N roll-outs of a step, T steps, L tokens.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import jax
import numpy as np
import optax
from flax import nnx

from prm_jax import InputError, rerank, tasks
from prm_jax.checkpoints.folders import training_tokens
from prm_jax.checkpoints.orbax import Checkpoints, save_description
from prm_jax.checkpoints.verifiers import OpenOptions, open_verifier
from prm_jax.data.splits import TaskData, data_config
from prm_jax.data.units import probability
from prm_jax.generate.policies import Sampling, SamplingStats
from prm_jax.generate.sampling import CommandConfig, open_policy
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import Count, Natural, Seed, Share, expect, parse
from prm_jax.launch.files import replaced
from prm_jax.launch.hosts import max_over_processes, writable_folder
from prm_jax.launch.mesh import check_divides, make_mesh, make_sharded, shard_batch
from prm_jax.launch.progress import progress
from prm_jax.launch.run_folder import start_command
from prm_jax.launch.run_log import MetricsLog, StopSignal, require_finite
from prm_jax.lora import LoraConfig, attach
from prm_jax.metrics import step_metrics
from prm_jax.model import choose_dtype
from prm_jax.packing import may_share, shuffled
from prm_jax.rl import advantages
from prm_jax.rl.problems import Problems, file_problems, known_problems, task_problems
from prm_jax.rl.rewards import Reward, RewardConfig, Rewards, RolloutScores
from prm_jax.rl.rollouts import Layout, Rollout, arrays, lay_out, padded, roll_out
from prm_jax.rl.update import UpdateConfig, kl, loss_inputs, token_weights, update, written_logps
from prm_jax.tasks.checkers import CHECKERS, checker_rule, choose_checker, open_grader
from prm_jax.training import OptimizerConfig, make_optimizer

PARTS = ("roll_out", "reward", "update")  # of a step


@dataclasses.dataclass(frozen=True)
class RLBatch:
    rows: Count
    tokens: Count


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    every: Count
    problems: Count
    n: Count
    k: tuple[Count, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RLConfig(advantages.EstimatorConfig, CommandConfig):  # conf/rl.yaml says what each key means
    input: str | None
    held_out: str | None
    checker: Annotated[str, checker_rule(CHECKERS)] | None
    apart: str | None
    policy: str
    seed: Seed
    steps: Count
    problems: Count
    n: Count
    sampling: Sampling
    share_counts: bool
    select: Literal["all", "mixed", "prof"]
    accuracy_low: Share
    accuracy_high: Share
    resample: Natural
    reward: RewardConfig
    update: UpdateConfig
    optimizer: OptimizerConfig
    lora: LoraConfig
    batch: RLBatch
    eval: EvalConfig
    objective: Literal["lm"]
    log_every: Count
    checkpoint_every: Count
    tensorboard: bool
    wandb: Literal["offline", "online"] | None

    def __post_init__(self):
        is_whole = self.sampling.temperature == 1 and self.sampling.top_k is None and self.sampling.top_p == 1
        expect(is_whole, "sampling", str(self.sampling), "temperature 1 and all tokens")
        has_group = self.n > 1 or not self.estimator.needs_group
        expect(has_group, "n", self.n, f"at least 2, which advantage={self.advantage} compares")
        expect(self.select == "mixed" or not self.resample, "resample", self.resample, "0, or select=mixed")
        has_prm = self.select != "prof" or self.reward.prm_checkpoint is not None
        expect(has_prm, "reward.prm_checkpoint", None, "a verifier, which select=prof asks")
        is_pair = (self.input is None) == (self.held_out is None)
        expect(is_pair, "held_out", self.held_out, "a file beside input, and only beside it")


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
    with contextlib.ExitStack() as stack:
        stack.enter_context(run_folder.locked_run_folder(texts, raw_cfg, resumes))
        stack.enter_context(jax.set_mesh(mesh))
        problems = make_problems(cfg, data_cfg) if make_problems else load_problems(cfg, data_cfg, stack)
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


def load_problems(cfg: RLConfig, data_cfg: TaskData, stack: contextlib.ExitStack) -> Problems:
    """The problems of the files `input` and `held_out`, else of the embedded task."""
    if cfg.input is None:
        known = known_problems(cfg.apart, [cfg.reward.prm_checkpoint, cfg.reward.orm_checkpoint])
        return task_problems(data_cfg, cfg.eval.problems, cfg.seed, known)
    files = [cfg.input, cfg.held_out]
    grader = stack.enter_context(contextlib.closing(open_grader(choose_checker(cfg.checker, files), files)))
    return file_problems(cfg.input, cfg.held_out, grader, cfg.eval.problems)


def show_summary(run: Path, summary: dict):
    """Prints what a run has learned and where its time went, and draws its learning curves."""
    best = f"best {summary['best_pass_at_1']:.3f} at step {summary['best_step']}"
    change = f"{summary['pass_at_1']:.3f} before, {summary['eval_pass_at_1']:.3f} now"
    print(f"finished    pass@1 {change} ({best})")
    shares = ", ".join(f"{summary[f'share_{part}']:.0%} {part}" for part in PARTS)
    print(f"time        {shares}; {summary['tokens_per_second']:,.0f} tokens rolled out a second")
    if jax.process_index() == 0:
        from prm_jax.figures.learning import learning_figure  # imports matplotlib

        verifier_tokens = sum(filter(None, summary["verifier_tokens"].values()))
        print(f"figures     {learning_figure(run, verifier_tokens, summary)}")
    print(f"next        python -m prm_jax.sampling checkpoint={run} input=FILE")


class Trainer:
    """A policy in training, the verifiers that reward it, and the policy that it began as."""

    def __init__(self, cfg: RLConfig, problems: Problems):
        self.cfg = cfg
        self.problems = problems
        self.key = jax.random.key(cfg.seed)
        self.spent = collections.Counter()  # seconds of PARTS and of evaluations; tokens rolled out
        self.policy = self.open_policy()
        self.reference = self.open_policy().model  # the policy that the run began with
        self.check_rows()
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
        expect(policy.format == cfg.format, "format", cfg.format.name, f"that of {cfg.policy}")
        return policy

    def open_verifier(self, name: str | None):
        """The Scorer `name`, in rows of a fixed width, so that a resumed run has the same; None of None."""
        if name is None:
            return None
        task = self.problems.task and self.problems.task.name
        options = {"rows": 32, "tokens": self.cfg.batch.tokens, "seed": self.cfg.seed, "task": task}
        return open_verifier(name, OpenOptions(dtype=choose_dtype(self.cfg.dtype), **options))

    def check_rows(self):
        """InputError where a verifier cannot read steps, or a row of batch.tokens is shorter than a
        response."""
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
        first, kept = restored or (0, {})
        self.spent.update(kept.get("spent", {}))
        started = time.perf_counter() - kept.get("seconds", 0.0)
        best = kept.get("best", {})
        scores = kept.get("last", {})
        samples = texts / "samples.jsonl"
        cut_samples(samples, first if best else -1)
        boards = (cfg.tensorboard, cfg.wandb) if jax.process_index() == 0 else (False, None)
        log = MetricsLog(texts, first if best else -1, *boards)
        if not best:
            scores = require_finite(0, self.evaluate(samples, 0))
            best = {name.removeprefix("eval_"): x for name, x in scores.items() if "pass_at" in name}
            log.write({"step": 0, **scores, "seconds": time.perf_counter() - started})
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
                    bar.write(f"step {step:>6}  pass@1 {scores['eval_pass_at_1']:.3f}", file=sys.stderr)
                    is_best = scores["eval_pass_at_1"] > best.get("eval_pass_at_1", -1)
                if is_best:
                    best = {**best, **scores, "best_step": step}
                if evaluates or is_stopping or step % cfg.checkpoint_every == 0:
                    norm = float(optax.tree.norm(nnx.state(self.policy.model)))
                    require_finite(step, {"parameter_norm": norm})  # no checkpoint of a broken update
                    state = {"best": best, "last": scores, "spent": dict(self.spent)}
                    state["seconds"] = time.perf_counter() - started
                    model = self.policy.model
                    checkpoints.save(step, model, self.learners(), state, model if is_best else None)
                if evaluates or step % cfg.log_every == 0:
                    log.write({"step": step, **record, "seconds": time.perf_counter() - started})
                shown = {name: f"{record[name]:.3f}" for name in ("right", "reward")}
                bar.set_postfix(shown, refresh=False)
                bar.update()
                if is_stopping:
                    name = signal.Signals(received).name
                    command = f"python -m prm_jax.rl resume={run}"
                    print(f"stopped     by {name} after step {step}; continue with: {command}")
                    sys.exit(128 + received)
        return {**best, "best_pass_at_1": best["eval_pass_at_1"], **scores, **self.cost(started)}

    def cost(self, started: float) -> dict:
        """The seconds and tokens of a run, and the share of each part of its steps."""
        spent = self.spent
        whole = max(sum(spent[name] for name in PARTS), 1e-9)
        return {
            "steps": self.cfg.steps,
            "seconds": time.perf_counter() - started,
            **{f"share_{name}": spent[name] / whole for name in PARTS},
            "seconds_evaluate": spent["evaluate"],
            "policy_tokens": spent["tokens"],
            "tokens_per_second": spent["tokens"] / max(spent["roll_out"], 1e-9),
        }

    def learners(self):
        """What a checkpoint holds beside the policy."""
        return self.opt

    @contextlib.contextmanager
    def timed(self, part: str):
        start = time.perf_counter()
        yield
        self.spent[part] += time.perf_counter() - start

    def learn(self, step: int) -> dict[str, float]:
        """One step: roll out, reward, select, update; returns the numbers to log."""
        cfg, before = self.cfg, collections.Counter(self.spent)
        self.policy.stats = SamplingStats()
        with self.timed("roll_out"):
            rollouts = self.roll_out(step)
        tokens = self.policy.stats.tokens
        self.spent["tokens"] += tokens
        with self.timed("reward"):
            reward = self.rewards(rollouts)
            keep_N = select(cfg, rollouts, reward.scores)
            learned = self.learn_beside(step, rollouts, reward.scores)
        with self.timed("update"):
            kept = [r for r, keep in zip(rollouts, keep_N, strict=True) if keep]
            updated = self.update(kept, reward.step_NT[keep_N], reward.outcome_N[keep_N]) if kept else {}
        numbers = {
            **reward.means,
            **self.diagnose(rollouts, reward.scores),
            "reward": reward.total_N.mean(),
            "kept": keep_N.mean(),
            "policy_tokens": tokens,
            "total_policy_tokens": self.spent["tokens"],  # of all steps: a log may leave lines out
            **learned,
            **updated,
            **{f"seconds_{name}": self.spent[name] - before[name] for name in PARTS},
        }
        return {name: float(x) for name, x in numbers.items()}

    def learn_beside(self, step: int, rollouts: list[Rollout], scores: RolloutScores) -> dict[str, float]:
        """What else learns from a step's roll-outs, such as a verifier (examples/online.py); its numbers."""
        return {}

    def roll_out(self, step: int) -> list[Rollout]:
        """The roll-outs of a step. Where select=mixed drops groups, up to `resample` further batches of
        problems follow, until it keeps as many groups as it had problems (DAPO)."""
        cfg, train = self.cfg, self.problems.train
        rollouts = []
        for more in range(cfg.resample + 1):
            number = step + more * cfg.steps
            places = shuffled(len(train), (number - 1) * cfg.problems, number * cfg.problems, cfg.seed)
            key = jax.random.fold_in(self.key, number)
            drawn = roll_out(self.policy, [train[i] for i in places], cfg.n, key)
            first = len(rollouts) // cfg.n
            rollouts += [dataclasses.replace(r, group=r.group + first) for r in drawn]
            if more == cfg.resample:
                break
            if keep_mixed(cfg, self.rewards.right(rollouts), rollouts).sum() == len(drawn):
                break
        return rollouts

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
            layout = self.lay_out(
                [r for r, teaches in zip(rollouts, teaches_N, strict=True) if teaches], most
            )
            inputs = loss_inputs(
                layout,
                weight_NL[teaches_N],
                advantage_NL[teaches_N],
                old_NL[teaches_N],
                reference_NL[teaches_N],
                mask_NL[teaches_N],
            )
            batch = shard_batch(layout.batch | inputs, self.cfg.batch.rows, axis=1)
            for _ in range(cfg.passes):
                new = update(self.policy.model, self.opt, batch, layout.used, cfg)
                self.policy.model, self.opt, metrics = new
        return {"teach": teaches_N.mean(), **metrics}

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
        """Diagnoses held-out problems with fixed draws; adds pass@k and the KL from the first policy. The
        roll-outs are appended to the file `samples`."""
        with self.timed("evaluate"):
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
        """Numbers that show hacking: gold beside proxy, lengths, restated steps, the PRM's quality."""
        verdicts = scores.verdicts or [[""] * len(r.steps) for r in rollouts]
        restated = []  # whether a step does nothing, or repeats the one before
        for r, verdict_T in zip(rollouts, verdicts, strict=True):
            before_T = ("", *r.steps)
            for verdict, step, before in zip(verdict_T, r.steps, before_T, strict=False):
                restated.append(verdict == "neutral" or step == before)
        numbers = {
            "entropy": -np.concatenate([r.logp_L for r in rollouts]).mean(),  # of the sampled distribution
            "right": scores.right_N.mean(),
            "cut": np.mean([not r.finished for r in rollouts]),
            "steps_a_solution": np.mean([len(r.steps) for r in rollouts]),
            "tokens_a_solution": np.mean([len(r.ids_L) for r in rollouts]),
            "restated": np.mean(restated),
        }
        if scores.verdicts is None:
            return numbers
        labels = [tasks.correctness(verdict_T) for verdict_T in verdicts]
        is_sound_N = [
            right and label_T[-1] > 0 for right, label_T in zip(scores.right_N, labels, strict=True)
        ]
        numbers["sound"] = np.mean(is_sound_N)
        if scores.prm is not None:
            p_good = [probability(log_odds_T) for log_odds_T in scores.prm]
            metrics = step_metrics(p_good, labels, [r.group for r in rollouts])
            for name in ("step_auroc", "ece"):
                if np.isfinite(metrics[name]):
                    numbers[f"prm_{name}"] = metrics[name]
        return numbers


def keep_mixed(cfg: RLConfig, right_N: np.ndarray, rollouts: list[Rollout]) -> np.ndarray:
    """The first `problems` groups with right and wrong answers, keep_N."""
    group_N = np.array([r.group for r in rollouts])
    keep_N = advantages.keep_mixed(right_N, group_N, cfg.accuracy_low, cfg.accuracy_high)
    return keep_N & (np.cumsum(keep_N) <= cfg.problems * cfg.n)


def select(cfg: RLConfig, rollouts: list[Rollout], scores: RolloutScores) -> np.ndarray:
    """Which roll-outs are learned from, keep_N; conf/rl.yaml says what each rule keeps."""
    if cfg.select == "mixed":
        return keep_mixed(cfg, scores.right_N, rollouts)
    if cfg.select == "prof":
        mean_N = np.array([probability(log_odds_T).mean() for log_odds_T in scores.prm])
        return advantages.keep_prof(mean_N, scores.right_N, np.array([r.group for r in rollouts]))
    return np.ones(len(rollouts), bool)


def cut_samples(path: Path, step: int):
    """Leaves the samples of evaluations up to `step`, from which a run resumes."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    with replaced(path) as temporary:
        temporary.write_text("".join(line for line in whole if json.loads(line)["step"] <= step))


def write_samples(path: Path, step: int, rollouts: Sequence[Rollout], reward: Reward):
    """Appends an evaluation's roll-outs to samples.jsonl. A step's reward is the weighted sum of its sources,
    `p_good` the PRM's probability (also of one that is only watched), a verdict the exact checker's."""
    scores = reward.scores
    with path.open("a") as file:
        for i, r in enumerate(rollouts):
            row = {
                "step": step,
                "problem": r.problem,
                "steps": r.steps,
                "step_rewards": reward.step_NT[i, : len(r.steps)].round(4).tolist(),
                "outcome_reward": float(reward.outcome_N[i]),
                "right": bool(scores.right_N[i]),
                "finished": r.finished,
            }
            if scores.prm:
                row["p_good"] = probability(scores.prm[i]).round(4).tolist()
            if scores.verdicts:
                row["verdicts"] = list(scores.verdicts[i])
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
