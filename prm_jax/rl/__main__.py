"""Train a policy by rewards of its steps and answers: roll out, reward, estimate advantages, update.

python -m prm_jax.rl    GRPO of the embedded policy by the answer checker; conf/rl.yaml says what each key means.

A step's roll-outs depend on the weights and on the keys fold_in(seed, step) alone, so a stopped run goes on bit for bit.

Dimension key: N roll-outs of a step, T steps, L tokens.
"""

import collections
import contextlib
import dataclasses
import signal
import sys
import time
from collections.abc import Callable
from typing import Literal

import jax
import numpy as np
import optax
from flax import nnx
from tqdm import tqdm

from prm_jax import tasks
from prm_jax.checkpoints.orbax import Checkpoints, save_description
from prm_jax.checkpoints.verifiers import OpenOptions, open_verifier
from prm_jax.data.formats import Format
from prm_jax.data.grading import Checker
from prm_jax.data.packing import fits_window
from prm_jax.data.splits import TaskData, data_config
from prm_jax.data.units import probability
from prm_jax.generate.policies import Sampling, SamplingStats
from prm_jax.generate.sampling import Policy, open_policy
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import Count, Positive, Seed, expect, parse
from prm_jax.launch.hosts import max_over_processes, start_command, writable_folder
from prm_jax.launch.mesh import MeshConfig, check_divides, make_mesh, make_sharded, shard_batch
from prm_jax.launch.run_log import MetricsLog, StopSignal, require_finite, require_packages
from prm_jax.lora import LoraConfig, attach
from prm_jax.metrics import step_metrics
from prm_jax.model import choose_dtype
from prm_jax.rl import advantages
from prm_jax.rl.online import Online, OnlineConfig, open_prm
from prm_jax.rl.problems import Problems, QuestionsConfig, of_critic, of_files, of_task
from prm_jax.rl.rewards import Known, RewardConfig, Rewards
from prm_jax.rl.rollouts import Layout, Rollout, arrays, lay_out, padded, roll_out
from prm_jax.rl.update import UpdateConfig, kl, learned, token_weights, update, written_logps
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


@dataclasses.dataclass(frozen=True)
class RLConfig:
    """conf/rl.yaml says what each key means."""

    policy: str
    which: Literal["best", "latest"]
    dtype: str
    seed: Seed
    steps: Count
    problems: Count
    n: Count
    format: Format
    sampling: Sampling
    advantage: Literal["grpo", "grpo_process", "rloo", "rloo_sources", "pure", "pav", "reinforce"]
    normalise: bool
    form: Literal["min", "sum"]
    discount: Positive
    share_counts: bool
    select: Literal["all", "mixed", "prof"]
    questions: QuestionsConfig
    reward: RewardConfig
    online: OnlineConfig
    update: UpdateConfig
    optimizer: OptimizerConfig
    lora: LoraConfig
    batch: RLBatch
    batch_rows: Count
    eval: EvalConfig
    objective: Literal["lm"]
    resume: str | None
    log_every: Count
    checkpoint_every: Count
    mesh: MeshConfig
    tensorboard: bool
    wandb: Literal["offline", "online"] | None

    def __post_init__(self):
        s = self.sampling
        exact = s.temperature == 1 and s.top_k is None and s.top_p == 1
        expect(exact, "sampling", f"{s}", "temperature 1 and all tokens: the gradient is that of the policy's own law")
        expect(self.n > 1 or self.advantage == "reinforce", "n", self.n, "at least 2: others are the baseline")
        asks = self.reward.prm_checkpoint is not None
        expect(self.select != "prof" or asks, "reward.prm_checkpoint", None, "a verifier, which select=prof asks")
        expect(not self.online.every or asks, "reward.prm_checkpoint", None, "a verifier, which online.every trains")

    def estimator(self) -> Callable:
        """The advantage estimator with the options that it has."""
        options = {"grpo": {"normalise": self.normalise}, "pure": {"min_form": self.form == "min"}}
        options |= {"grpo_process": options["grpo"], "reinforce": {"discount": self.discount}}
        f, own = advantages.ESTIMATORS[self.advantage], options.get(self.advantage, {})
        return lambda *given: f(*given, **own)


@cli.command("rl")
def main(cfg):
    """Train a policy by rewards of its steps and answers."""
    run, raw_cfg, resumes = start_command(cfg)
    data_cfg = data_config(raw_cfg.data)
    expect(isinstance(data_cfg, TaskData), "data", raw_cfg.data.name, f"an embedded task: {', '.join(tasks.TASKS)}")
    cfg = parse(raw_cfg, RLConfig, elsewhere=("data", "distributed", "cpu_devices"))
    require_packages(cfg.tensorboard, cfg.wandb)
    mesh, texts = make_mesh(cfg.mesh, cfg.batch.rows), writable_folder(run)
    given, n = cfg.questions, cfg.eval.problems
    with (
        run_folder.locked_run_folder(texts, raw_cfg, resumes, "checkpoints/*/*"),
        jax.set_mesh(mesh),
        contextlib.closing(Checker(given.how)) as checker,
    ):
        if given.critic:
            problems = of_critic(data_cfg, given.critic, n, cfg.seed)
        else:
            problems = of_files(given, checker, n) if given.file else of_task(data_cfg, n, cfg.seed)
        trainer = Trainer(cfg, problems)
        print(f"run folder  {run}")
        save_description(texts / "model", trainer.policy.model.cfg, trainer.policy.tokenizer)
        final = trainer.fit(run, texts)
    about = {"finished": True, "objective": "lm", "label_kind": "unknown", "seed": cfg.seed} | final
    made = {"overrides": run_folder.overrides_of(run), "versions": run_folder.versions()}
    run_folder.write_json(texts / "summary.json", about | made)
    what = "agreement" if given.critic else "pass@1"
    print(f"finished    {what} {{pass_at_1:.3f}} before, {{eval_pass_at_1:.3f}} at step {{best_step}}".format(**final))
    told = "time        {share_roll_out:.0%} roll-outs ({tokens_per_second:,.0f} tokens a second), {share_reward:.0%} rewards, "
    print((told + "{share_update:.0%} updates").format(**final))
    judge = f"python evaluate.py task=steps data={data_cfg.name} checkpoint={run} format={given.critic}"
    checked = tasks.name_of(problems.task) if problems.task else given.how
    sample = f"python -m prm_jax.sampling checkpoint={run} problems=FILE checker={checked}"
    print(f"next        {judge if given.critic else sample}")


class Trainer:
    """A policy, what it is rewarded for, and what it began as."""

    def __init__(self, cfg: RLConfig, problems: Problems):
        self.cfg, self.key = cfg, jax.random.key(cfg.seed)
        self.spent = collections.Counter()  # seconds of PARTS and of evaluations, tokens that were rolled out
        self.sums = cfg.advantage in advantages.SUMMING  # what is said once
        self.problems = problems
        dtype = choose_dtype(cfg.dtype)
        open_one = lambda: open_policy(cfg.policy, cfg.which, cfg.format, dtype, cfg.sampling, cfg.batch_rows)
        self.policy: Policy = open_one()
        expect(self.policy.format == cfg.format, "format", cfg.format.name, f"that of {cfg.policy}")
        self.reference = open_one().model
        if cfg.optimizer.trainable == "lora":
            self.policy.model = make_sharded(lambda m: attach(m, cfg.lora, cfg.seed), self.policy.model, donate=0)
        self.opt = make_optimizer(self.policy.model, cfg.optimizer, cfg.steps * cfg.update.passes)
        prompts = self.policy.prefix_ids([(p, ()) for p in (*problems.train, *problems.held_out)])
        longest = max(map(len, prompts))
        needed = longest + cfg.sampling.max_tokens + 1  # a verifier reads a cut step with its mark
        expect(needed <= cfg.batch.tokens, "batch.tokens", cfg.batch.tokens, f"at least {needed}, the longest row")
        check_divides(self.policy.model.cfg, cfg.batch.rows, "batch.rows")
        task = problems.task and tasks.name_of(problems.task)
        # One width: a resumed run has it, too.
        how = OpenOptions(dtype=dtype, rows=32, tokens=cfg.batch.tokens, seed=cfg.seed, task=task)
        prm, orm = cfg.reward.prm_checkpoint, cfg.reward.orm_checkpoint
        prm, orm = prm and open_prm(prm, how, cfg.online), orm and open_verifier(orm, how)
        self.rewards = Rewards(cfg.reward, self.policy, problems.is_right, problems.task, prm, orm)
        of_prm = cfg.online, prm, self.policy, cfg.batch.tokens, cfg.steps
        self.online = Online(*of_prm) if cfg.online.every else None

    def fit(self, run, texts) -> dict:
        """The loop, from step 1 or the newest checkpoint; the numbers of the best evaluation."""
        cfg, checkpoints, first, best, record = self.cfg, Checkpoints(run), 0, {}, None
        if cfg.resume is not None:
            first, best = checkpoints.restore(self.policy.model, self.learners()) or (first, best)
        before = best.pop("seconds", 0.0)
        self.spent.update(best.pop("spent", {}))
        if not best:
            record = require_finite(0, self.evaluate())
            best = {"pass_at_1": record["eval_pass_at_1"]}
        started, bar = time.perf_counter() - before, cli.progress("training", cfg.steps, "step", first)
        logs = (cfg.tensorboard, cfg.wandb) if jax.process_index() == 0 else (False, None)
        log = MetricsLog(texts, -1 if record else first, *logs)
        if record:
            log.write({"step": 0} | record | {"seconds": time.perf_counter() - started})
        with contextlib.closing(checkpoints), contextlib.closing(log), StopSignal() as stop, bar:
            for step in range(first + 1, cfg.steps + 1):
                record, is_best, last = require_finite(step, self.learn(step)), False, step == cfg.steps
                received = int(max_over_processes(stop.received or 0))
                evaluates = step % cfg.eval.every == 0 or last
                stopping, due = received and not last, evaluates or step % cfg.checkpoint_every == 0
                if due or stopping:
                    norm = optax.tree.norm(nnx.state(self.policy.model))
                    require_finite(
                        step, {"parameter_norm": float(norm)}
                    )  # after the update: no checkpoint of a broken one
                    scores = require_finite(step, self.evaluate())
                    scores = scores if due else {}  # as in a run that is not stopped
                    is_best = due and scores["eval_pass_at_1"] > best.get("eval_pass_at_1", -1)
                    best |= (scores | {"best_step": step}) if is_best else {}
                    spent = {"seconds": time.perf_counter() - started, "spent": dict(self.spent)}
                    checkpoints.save(step, self.policy.model, self.learners(), best | spent, is_best)
                    record |= scores
                    if due:
                        bar.write(f"step {step:>6}  pass@1 {scores['eval_pass_at_1']:.3f}", file=sys.stderr)
                if evaluates or step % cfg.log_every == 0:
                    log.write({"step": step} | record | {"seconds": time.perf_counter() - started})
                bar.set_postfix({"right": f"{record['right']:.3f}", "reward": f"{record['reward']:.3f}"}, refresh=False)
                bar.update()
                if stopping:
                    name = signal.Signals(received).name
                    print(f"stopped     by {name} after step {step}; go on with: python -m prm_jax.rl resume={run}")
                    sys.exit(128 + received)
        told = best | {"steps": cfg.steps, "seconds": time.perf_counter() - started} | self.shares()
        return told | getattr(
            self.rewards.prm, "about", {}
        )  # of a critic: what became of its critiques since this start

    def learners(self):
        """What a stopped run goes on with, beside the policy."""
        if self.online is None:
            return self.opt
        return nnx.Dict(opt=self.opt, verifier=self.online.scorer.model, verifier_opt=self.online.opt)

    def shares(self) -> dict[str, float]:
        """Where the time of the steps went, evaluations apart, and how fast the policy wrote."""
        spent, whole = self.spent, max(sum(self.spent[name] for name in PARTS), 1e-9)
        told = {f"share_{name}": spent[name] / whole for name in PARTS} | {"seconds_evaluate": spent["evaluate"]}
        rate = spent["tokens"] / max(spent["roll_out"], 1e-9)
        return told | {"policy_tokens": spent["tokens"], "tokens_per_second": rate}

    def learn(self, step: int) -> dict[str, float]:
        """One batch of roll-outs and what is learned from it; the numbers to watch."""
        cfg, policy, clock = self.cfg, self.policy, [time.perf_counter()]
        policy.stats = SamplingStats()
        rollouts = roll_out(policy, self.draw(step), cfg.n, jax.random.fold_in(self.key, step))
        clock.append(time.perf_counter())
        step_reward_NT, outcome_N, known, told = self.rewards(rollouts)
        if self.sums and step_reward_NT.any():
            self.sums = False
            tqdm.write(
                f"advantage   {cfg.advantage} sums a response's step rewards into one number; grpo_process, pure, .. do not"
            )
        kept = self.select(rollouts, known)
        told |= watch(rollouts, known) | self.problems.watch(rollouts)
        told |= {"reward": float((step_reward_NT.sum(1) + outcome_N).mean())}
        told |= {"kept": kept.mean(), "policy_tokens": policy.stats.tokens}
        if self.online is not None and step % cfg.online.every == 0:
            told |= self.online.learn(rollouts, known)
        clock.append(time.perf_counter())
        if kept.any():
            of_kept = [r for r, keep in zip(rollouts, kept, strict=True) if keep]
            told |= self.update(of_kept, step_reward_NT[kept], outcome_N[kept])
        clock.append(time.perf_counter())
        times = dict(zip(PARTS, np.diff(clock).tolist(), strict=True))
        self.spent.update(times | {"tokens": policy.stats.tokens})
        told["total_policy_tokens"] = self.spent["tokens"]  # of all steps: a log may leave lines out
        return {name: float(x) for name, x in told.items()} | {f"seconds_{name}": x for name, x in times.items()}

    def draw(self, step: int) -> list[str]:
        """The problems of a step: each once before any comes again, in an order of its own each time."""
        at = np.arange((step - 1) * self.cfg.problems, step * self.cfg.problems)
        own, n = self.problems.train, len(self.problems.train)
        orders = {e: np.random.default_rng([self.cfg.seed, e]).permutation(n) for e in set(at // n)}
        return [own[orders[i // n][i % n]] for i in at]

    def select(self, rollouts: list[Rollout], known: Known) -> np.ndarray:
        group_N = np.array([r.group for r in rollouts])
        if self.cfg.select == "mixed":
            return advantages.keep_mixed(known.right_N, group_N)
        if self.cfg.select == "prof":
            mean_N = np.array([probability(own_T).mean() for own_T in known.prm])
            return advantages.keep_prof(mean_N, known.right_N, group_N)
        return np.ones(len(rollouts), bool)

    def update(self, rollouts: list[Rollout], step_reward_NT, outcome_N) -> dict:
        """Advantages of the roll-outs, and `passes` updates on them. One without an advantage has no gradient and is left out."""
        cfg, rows, model = self.cfg.update, self.cfg.batch.rows, self.policy.model
        step_NL, mask_NL, group_N = arrays(rollouts)
        most, width = self.cfg.problems * self.cfg.n, mask_NL.shape[1]
        old_NL = padded([r.logp_L for r in rollouts], width)
        reference_NL = self.by_reference(rollouts, width, most) if cfg.kl else np.zeros_like(old_NL)
        if cfg.kl_as == "reward" and cfg.kl:
            apart_NL = np.asarray(kl(old_NL - reference_NL, cfg.kl_estimator))
            of_steps_NT = advantages.of_steps(apart_NL, step_NL, mask_NL, step_reward_NT.shape[1])
            step_reward_NT = step_reward_NT - cfg.kl * of_steps_NT
        advantage_NL = self.cfg.estimator()(step_reward_NT, outcome_N, step_NL, mask_NL, group_N)
        weight_NL = token_weights(mask_NL, cfg.loss_norm, self.cfg.sampling.max_tokens)
        if self.cfg.share_counts:
            count_NT = advantages.shared_by([r.steps for r in rollouts], group_N, step_reward_NT.shape[1])
            weight_NL /= np.maximum(advantages.at_tokens(count_NT, step_NL, mask_NL), 1)
        teaches_N = (advantage_NL != 0).any(1) | cfg.has_kl_loss
        told = {"teach": teaches_N.mean()}
        if not teaches_N.any():
            return told
        layout = self.lay_out([r for r, teaches in zip(rollouts, teaches_N, strict=True) if teaches], most)
        given = (x_NL[teaches_N] for x_NL in (weight_NL, advantage_NL, old_NL, reference_NL, mask_NL))
        batch = shard_batch(layout.batch | learned(layout, *given), rows, axis=1)
        for _ in range(cfg.passes):
            model, self.opt, metrics = update(model, self.opt, batch, layout.used, cfg)
        self.policy.model = model
        return told | {name: float(x) for name, x in metrics.items()}

    def lay_out(self, rollouts: list[Rollout], most: int) -> Layout:
        batch = self.cfg.batch
        return lay_out(rollouts, batch.rows, batch.tokens, most, fits_window(self.policy.model.cfg, batch.tokens))

    def by_reference(self, rollouts: list[Rollout], width: int, most: int) -> np.ndarray:
        """log p of what was written by the policy that the run began with, reference_NL."""
        layout = self.lay_out(rollouts, most)
        batch = shard_batch(layout.batch, self.cfg.batch.rows, axis=1)
        return layout.take(np.asarray(written_logps(self.reference, batch, layout.used)), width)

    def evaluate(self) -> dict[str, float]:
        """What is watched, on held-out problems by the same draws each time, and how far the policy is from the first one."""
        start, key = time.perf_counter(), jax.random.fold_in(self.key, 0)
        rollouts = roll_out(self.policy, self.problems.held_out, self.cfg.eval.n, key)
        step_reward_NT, outcome_N, known, _ = self.rewards(rollouts)
        told = watch(rollouts, known) | self.problems.watch(rollouts)
        told["reward"] = (step_reward_NT.sum(1) + outcome_N).mean()
        told["pass_at_1"] = told.pop("right")
        _, mask_NL, _ = arrays(rollouts)
        width = mask_NL.shape[1]
        ratio_NL = padded([r.logp_L for r in rollouts], width) - self.by_reference(rollouts, width, len(rollouts))
        told["kl"] = kl(ratio_NL[mask_NL], "k3").mean()
        self.spent["evaluate"] += time.perf_counter() - start
        return {f"eval_{name}": float(x) for name, x in told.items()}


def watch(rollouts: list[Rollout], known: Known) -> dict[str, float]:
    """What shows hacking: gold beside proxy, lengths, restated steps, and the PRM on what the policy writes now."""
    steps = [len(r.steps) for r in rollouts]
    told = {"entropy": -np.concatenate([r.logp_L for r in rollouts]).mean()}  # of the law that was drawn from
    told |= {"right": known.right_N.mean(), "cut": np.mean([not r.finished for r in rollouts])}
    told |= {"steps_a_solution": np.mean(steps), "tokens_a_solution": np.mean([len(r.ids_L) for r in rollouts])}
    verdicts = known.verdicts or [[""] * n for n in steps]
    again = [
        verdict == "neutral" or step == before
        for r, own in zip(rollouts, verdicts, strict=True)
        for verdict, step, before in zip(own, r.steps, ("", *r.steps))
    ]
    told["restated"] = np.mean(again)  # lines that do nothing, or repeat the one before
    if known.verdicts is not None:
        labels = [tasks.correctness(own) for own in known.verdicts]
        told["sound"] = np.mean([right and own[-1] > 0 for right, own in zip(known.right_N, labels, strict=True)])
        if known.prm is not None:
            p = [probability(own_T) for own_T in known.prm]
            metrics = step_metrics(p, labels, [r.group for r in rollouts])
            told |= {f"prm_{name}": metrics[name] for name in ("step_auroc", "ece") if np.isfinite(metrics[name])}
    return {name: float(x) for name, x in told.items()}


if __name__ == "__main__":
    main()
