"""Trains a policy by rewards of its steps and answers: roll out, reward, estimate advantages, update.

python -m prm_jax.rl    GRPO of the embedded policy by the answer checker; conf/rl.yaml says what each key means.

Read `Trainer` from top to bottom. The roll-outs of a step depend only on the weights and on fold_in(seed, step), so a
resumed run repeats the undisturbed one bit for bit.

Dimension key: N roll-outs of a step, T steps, L tokens.
"""

import collections
import contextlib
import dataclasses
import signal
import sys
import time
from pathlib import Path
from typing import Literal

import jax
import numpy as np
import optax
from flax import nnx
from tqdm import tqdm

from prm_jax import InputError, rerank, tasks
from prm_jax.checkpoints.folders import training_tokens
from prm_jax.checkpoints.orbax import Checkpoints, save_description
from prm_jax.checkpoints.verifiers import OpenOptions, open_verifier
from prm_jax.data.splits import TaskData, data_config
from prm_jax.data.units import probability
from prm_jax.generate.policies import Sampling, SamplingStats
from prm_jax.generate.sampling import CommandConfig, open_policy
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import Count, Natural, Seed, Share, expect, parse, script
from prm_jax.launch.hosts import max_over_processes, start_command, writable_folder
from prm_jax.launch.mesh import check_divides, make_mesh, make_sharded, shard_batch
from prm_jax.launch.run_log import MetricsLog, StopSignal, require_finite, require_packages
from prm_jax.lora import LoraConfig, attach
from prm_jax.metrics import step_metrics
from prm_jax.model import choose_dtype
from prm_jax.packing import fits_window, shuffled
from prm_jax.rl import advantages
from prm_jax.rl.online import Online, OnlineConfig, open_prm
from prm_jax.rl.problems import Problems, QuestionsConfig, of_critic, of_files, of_task
from prm_jax.rl.rewards import RewardConfig, Rewards, RolloutScores
from prm_jax.rl.rollouts import Layout, Rollout, arrays, lay_out, padded, roll_out
from prm_jax.rl.update import UpdateConfig, kl, loss_inputs, token_weights, update, written_logps
from prm_jax.rl.watching import as_rows, cut_samples, write_samples
from prm_jax.tasks.checkers import choose_checker, open_grader
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
    k: tuple[Count, ...] = (1,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RLConfig(advantages.EstimatorConfig, CommandConfig):  # conf/rl.yaml says what each key means
    input: str | None = None
    checker: str | None = None
    policy: str
    seed: Seed
    steps: Count
    problems: Count
    n: Count
    sampling: Sampling
    share_counts: bool
    select: Literal["all", "mixed", "prof"]
    accuracy_low: Share = 0.0
    accuracy_high: Share = 1.0
    resample: Natural = 0
    questions: QuestionsConfig
    reward: RewardConfig
    online: OnlineConfig
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
        s, has_prm = self.sampling, self.reward.prm_checkpoint is not None
        exact = s.temperature == 1 and s.top_k is None and s.top_p == 1
        expect(
            exact,
            "sampling",
            f"{s}",
            "temperature 1 and all tokens, the distribution that the gradient is of",
        )
        alone = self.n == 1 and self.estimator.needs_group
        expect(not alone, "n", self.n, "at least 2: the other responses to a problem are the baseline")
        drops = self.select == "mixed"
        expect(drops or not self.resample, "resample", self.resample, "0, or select=mixed, which drops")
        expect(
            self.select != "prof" or has_prm,
            "reward.prm_checkpoint",
            None,
            "a verifier, which select=prof asks",
        )
        expect(
            not self.online.every or has_prm,
            "reward.prm_checkpoint",
            None,
            "a verifier, which online.every trains",
        )


@cli.command("rl")
def main(cfg):
    """Train a policy by rewards of its steps and answers."""
    run, raw_cfg, resumes = start_command(cfg)
    data_cfg = data_config(raw_cfg.data)
    expect(
        isinstance(data_cfg, TaskData),
        "data",
        raw_cfg.data.name,
        f"an embedded task: {', '.join(tasks.TASKS)}",
    )
    cfg = parse(raw_cfg, RLConfig, elsewhere=("data",))
    require_packages(cfg.tensorboard, cfg.wandb)
    mesh, texts, questions = make_mesh(cfg.mesh, cfg.batch.rows), writable_folder(run), cfg.questions
    files = [questions.input, questions.held_out] if questions.input else []
    grader = open_grader(choose_checker(questions.checker, files), files) if files else None
    claim = run_folder.locked_run_folder(texts, raw_cfg, resumes, "checkpoints/*/*")
    with contextlib.closing(grader) if grader else contextlib.nullcontext(), claim, jax.set_mesh(mesh):
        if questions.critic:
            problems = of_critic(data_cfg, questions.critic, cfg.eval.problems, cfg.seed)
        elif questions.input:
            problems = of_files(questions, grader, cfg.eval.problems)
        else:
            known = questions.apart_from([cfg.reward.prm_checkpoint, cfg.reward.orm_checkpoint])
            problems = of_task(data_cfg, cfg.eval.problems, cfg.seed, known)
        trainer = Trainer(cfg, problems)
        print(f"run folder  {run}")
        save_description(texts / "model", trainer.policy.model.cfg, trainer.policy.tokenizer)
        final = trainer.fit(run, texts)
        kind = {"finished": True, "objective": "lm", "label_kind": "unknown", "seed": cfg.seed}
        verifiers = filter(None, (cfg.reward.prm_checkpoint, cfg.reward.orm_checkpoint))
        cost = {name: training_tokens(name) for name in verifiers}  # None where nothing says it
        summary = {**kind, **final, "verifier_tokens": cost, **run_folder.made_by(run)}
        run_folder.write_json(texts / "summary.json", summary)
    score = "agreement" if questions.critic else "pass@1"
    best = "(the best of these evaluations {best_pass_at_1:.3f}, at step {best_step})".format(**final)
    print("finished    {} {pass_at_1:.3f} before, {eval_pass_at_1:.3f} now {}".format(score, best, **final))
    for k in [k for k in cfg.eval.k if 1 < k <= cfg.eval.n]:
        print(
            f"            pass@{k} {final[f'pass_at_{k}']:.3f} before, {final[f'eval_pass_at_{k}']:.3f} now"
        )
    times = "{share_roll_out:.0%} roll-outs ({tokens_per_second:,.0f} tokens a second), {share_reward:.0%} rewards, "
    print(("time        " + times + "{share_update:.0%} updates").format(**final))
    if jax.process_index() == 0:
        from prm_jax.figures.learning import learning_figure  # imports matplotlib

        print(f"figures     {learning_figure(run, sum(filter(None, cost.values())), summary)}")
    checked = tasks.name_of(problems.task) if problems.task else grader and grader.checker
    following = f"python -m prm_jax.sampling checkpoint={run} input=FILE checker={checked}"
    if questions.critic:
        following = (
            f"{script('evaluate')} task=steps data={data_cfg.name} checkpoint={run} format={questions.critic}"
        )
    print(f"next        {following}")


class Trainer:
    """A policy in training, the verifiers that reward it, and the policy that it began as."""

    def __init__(self, cfg: RLConfig, problems: Problems):
        self.cfg, self.problems, self.key = cfg, problems, jax.random.key(cfg.seed)
        self.spent = collections.Counter()  # seconds of PARTS and of evaluations; tokens rolled out
        self.has_warned = False  # that the estimator sums step rewards
        dtype, width = choose_dtype(cfg.dtype), cfg.batch.tokens
        options = cfg.policy, cfg.which, cfg.format, dtype, cfg.sampling, cfg.batch_rows
        self.policy, self.reference = open_policy(*options), open_policy(*options).model
        expect(self.policy.format == cfg.format, "format", cfg.format.name, f"that of {cfg.policy}")
        if cfg.reward.prm_checkpoint and self.policy.stop_masks["step"] is None:
            raise InputError(
                f"format.separator: steps are rewarded: expected a text within one token of {cfg.policy}"
            )
        if cfg.optimizer.trainable == "lora":
            self.policy.model = make_sharded(
                lambda m: attach(m, cfg.lora, cfg.seed), self.policy.model, donate=0
            )
        self.opt = make_optimizer(self.policy.model, cfg.optimizer, cfg.steps * cfg.update.passes)

        prompts = self.policy.prefix_ids([(p, ()) for p in (*problems.train, *problems.held_out)])
        needed = (
            max(map(len, prompts)) + cfg.sampling.max_tokens + 1
        )  # a verifier reads a cut step with its mark
        expect(needed <= width, "batch.tokens", width, f"at least {needed}, the longest row")
        check_divides(self.policy.model.cfg, cfg.batch.rows, "batch.rows")

        # A fixed width, so that a resumed run has the same one.
        task = problems.task and tasks.name_of(problems.task)
        opening = OpenOptions(dtype=dtype, rows=32, tokens=width, seed=cfg.seed, task=task)
        prm, orm = cfg.reward.prm_checkpoint, cfg.reward.orm_checkpoint
        prm, orm = prm and open_prm(prm, opening, cfg.online), orm and open_verifier(orm, opening)
        self.rewards = Rewards(cfg.reward, self.policy, problems.is_right, problems.task, prm, orm)
        self.online = Online(cfg.online, prm, self.policy, width, cfg.steps) if cfg.online.every else None

    def fit(self, run, texts) -> dict:
        """Trains from step 1 or from the newest checkpoint; returns the last evaluation and the run's times."""
        cfg, checkpoints, first, best, record = self.cfg, Checkpoints(run), 0, {}, None
        if cfg.resume is not None:
            first, best = checkpoints.restore(self.policy.model, self.learners()) or (first, best)
        seconds_before = best.pop("seconds", 0.0)
        self.spent.update(best.pop("spent", {}))
        scores = best.pop("last", {})
        cut_samples(samples := texts / "samples.jsonl", first if best else -1)
        if not best:
            record = require_finite(0, self.evaluate(samples, 0))
            best = {name.removeprefix("eval_"): x for name, x in record.items() if "pass_at" in name}
        started, bar = (
            time.perf_counter() - seconds_before,
            cli.progress("training", cfg.steps, "step", first),
        )
        boards = (cfg.tensorboard, cfg.wandb) if jax.process_index() == 0 else (False, None)
        log = MetricsLog(texts, -1 if record else first, *boards)
        if record:
            log.write({"step": 0, **record, "seconds": time.perf_counter() - started})
        with contextlib.closing(checkpoints), contextlib.closing(log), StopSignal() as stop, bar:
            for step in range(first + 1, cfg.steps + 1):
                record, last = require_finite(step, self.learn(step)), step == cfg.steps
                received = int(max_over_processes(stop.received or 0))
                is_stopping = received and not last
                evaluates = step % cfg.eval.every == 0 or last
                is_due = evaluates or step % cfg.checkpoint_every == 0
                if is_due or is_stopping:
                    norm = float(optax.tree.norm(nnx.state(self.policy.model)))
                    require_finite(step, {"parameter_norm": norm})  # no checkpoint of a broken update
                    scores = require_finite(step, self.evaluate(samples if is_due else None, step))
                    is_best = False
                    if is_due:  # a run that was not stopped has no other evaluation
                        record |= scores
                        is_best = scores["eval_pass_at_1"] > best.get("eval_pass_at_1", -1)
                        best = {**best, **scores, "best_step": step} if is_best else best
                        bar.write(f"step {step:>6}  pass@1 {scores['eval_pass_at_1']:.3f}", file=sys.stderr)
                    kept = {
                        "seconds": time.perf_counter() - started,
                        "spent": dict(self.spent),
                        "last": scores,
                    }
                    newest = self.policy.model
                    checkpoints.save(step, newest, self.learners(), best | kept, newest if is_best else None)
                if evaluates or step % cfg.log_every == 0:
                    log.write({"step": step, **record, "seconds": time.perf_counter() - started})
                bar.set_postfix(
                    {"right": f"{record['right']:.3f}", "reward": f"{record['reward']:.3f}"}, refresh=False
                )
                bar.update()
                if is_stopping:
                    name = signal.Signals(received).name
                    print(
                        f"stopped     by {name} after step {step}; continue with: python -m prm_jax.rl resume={run}"
                    )
                    sys.exit(128 + received)
        spent, whole = self.spent, max(sum(self.spent[name] for name in PARTS), 1e-9)
        final = {**best, "best_pass_at_1": best["eval_pass_at_1"], **scores}
        final |= {"steps": cfg.steps, "seconds": time.perf_counter() - started}
        final |= {f"share_{name}": spent[name] / whole for name in PARTS}
        final |= {"seconds_evaluate": spent["evaluate"], "policy_tokens": spent["tokens"]}
        final["tokens_per_second"] = spent["tokens"] / max(spent["roll_out"], 1e-9)
        return final | getattr(
            self.rewards.prm, "about", {}
        )  # a critic's: what its critiques since this start became

    def learners(self):
        """What a checkpoint holds beside the policy."""
        if self.online is None:
            return self.opt
        return nnx.Dict(opt=self.opt, verifier=self.online.scorer.model, verifier_opt=self.online.opt)

    def learn(self, step: int) -> dict[str, float]:
        """One step: roll out, reward, select, update; returns the numbers to log."""
        cfg, policy, clock = self.cfg, self.policy, [time.perf_counter()]
        policy.stats = SamplingStats()
        rollouts = self.roll_out(step)
        tokens = policy.stats.tokens
        self.spent["tokens"] += tokens
        clock.append(time.perf_counter())
        step_reward_NT, outcome_N, scores, means = self.rewards(rollouts)
        if cfg.estimator.sums_steps and step_reward_NT.any() and not self.has_warned:
            self.has_warned = True
            sums = "sums a response's step rewards into one number; grpo_process, pure, .. do not"
            tqdm.write(f"advantage   {cfg.advantage} {sums}")
        keep_N = select(cfg, rollouts, scores)
        learns_online = self.online is not None and step % cfg.online.every == 0
        online = self.online.learn(rollouts, scores) if learns_online else {}
        clock.append(time.perf_counter())
        updated = {}
        if keep_N.any():
            kept = [r for r, keep in zip(rollouts, keep_N, strict=True) if keep]
            updated = self.update(kept, step_reward_NT[keep_N], outcome_N[keep_N])
        clock.append(time.perf_counter())
        seconds = dict(zip(PARTS, np.diff(clock).tolist(), strict=True))
        self.spent.update(seconds)
        numbers = (
            means | self.diagnose(rollouts, scores) | {"reward": (step_reward_NT.sum(1) + outcome_N).mean()}
        )
        numbers |= {"kept": keep_N.mean(), "policy_tokens": tokens, **online, **updated}
        numbers["total_policy_tokens"] = self.spent["tokens"]  # of all steps: a log may leave lines out
        numbers |= {f"seconds_{name}": x for name, x in seconds.items()}
        return {name: float(x) for name, x in numbers.items()}

    def roll_out(self, step: int) -> list[Rollout]:
        """The roll-outs of a step. Where select=mixed drops groups, up to `resample` further batches of problems follow,
        until it keeps as many groups as it had problems (DAPO)."""
        cfg, train, rollouts = self.cfg, self.problems.train, []
        for more in range(cfg.resample + 1):
            number = step + more * cfg.steps
            places = shuffled(len(train), (number - 1) * cfg.problems, number * cfg.problems, cfg.seed)
            key = jax.random.fold_in(self.key, number)
            first, drawn = (
                len(rollouts) // cfg.n,
                roll_out(self.policy, [train[i] for i in places], cfg.n, key),
            )
            rollouts += [dataclasses.replace(r, group=r.group + first) for r in drawn]
            if more == cfg.resample or keep_mixed(cfg, self.rewards.right(rollouts), rollouts).sum() == len(
                drawn
            ):
                break
        return rollouts

    def update(self, rollouts: list[Rollout], step_reward_NT, outcome_N) -> dict:
        """Makes `passes` updates on the roll-outs with a nonzero advantage; with a KL loss, on all."""
        cfg, most, (step_NL, mask_NL, group_N) = (
            self.cfg.update,
            self.cfg.problems * self.cfg.n,
            arrays(rollouts),
        )
        old_NL = padded([r.logp_L for r in rollouts])
        reference_NL = self.reference_logps(rollouts, most) if cfg.kl else np.zeros_like(old_NL)
        token_reward_NL = None
        if cfg.kl_as == "reward" and cfg.kl:
            token_reward_NL = -cfg.kl * np.asarray(kl(old_NL - reference_NL, cfg.kl_estimator))
        advantage_NL = self.cfg.estimate(
            step_reward_NT, outcome_N, step_NL, mask_NL, group_N, token_reward_NL
        )
        weight_NL = token_weights(mask_NL, cfg.loss_norm, self.cfg.sampling.max_tokens)
        if self.cfg.share_counts:
            weight_NL /= np.maximum(padded(advantages.shared_by([r.ids_L for r in rollouts], group_N)), 1)
        teaches_N = (advantage_NL != 0).any(1) | cfg.has_kl_loss
        metrics = {}
        if teaches_N.any():
            layout = self.lay_out(
                [r for r, teaches in zip(rollouts, teaches_N, strict=True) if teaches], most
            )
            inputs = (x_NL[teaches_N] for x_NL in (weight_NL, advantage_NL, old_NL, reference_NL, mask_NL))
            batch = shard_batch(layout.batch | loss_inputs(layout, *inputs), self.cfg.batch.rows, axis=1)
            for _ in range(cfg.passes):
                self.policy.model, self.opt, metrics = update(
                    self.policy.model, self.opt, batch, layout.used, cfg
                )
        return {"teach": teaches_N.mean(), **metrics}

    def lay_out(self, rollouts: list[Rollout], most: int) -> Layout:
        batch = self.cfg.batch
        share = fits_window(self.policy.model.cfg, batch.tokens) and self.cfg.update.surrogate != "gspo"
        return lay_out(rollouts, batch.rows, batch.tokens, most, share)

    def reference_logps(self, rollouts: list[Rollout], most: int) -> np.ndarray:
        """log p of the sampled tokens under the policy that the run began with, reference_NL."""
        layout = self.lay_out(rollouts, most)
        batch = shard_batch(layout.batch, self.cfg.batch.rows, axis=1)
        return layout.gather(np.asarray(written_logps(self.reference, batch, layout.used)))

    def evaluate(self, samples: Path | None, step: int) -> dict[str, float]:
        """Diagnoses held-out problems with fixed draws; adds pass@k and the KL from the first policy. The roll-outs are
        appended to the file `samples`."""
        start, key = time.perf_counter(), jax.random.fold_in(self.key, 0)
        rollouts = roll_out(self.policy, self.problems.held_out, self.cfg.eval.n, key)
        step_reward_NT, outcome_N, scores, _ = self.rewards(rollouts)
        _, mask_NL, _ = arrays(rollouts)
        ratio_NL = padded([r.logp_L for r in rollouts]) - self.reference_logps(rollouts, len(rollouts))
        reward, divergence = (step_reward_NT.sum(1) + outcome_N).mean(), kl(ratio_NL[mask_NL], "k3").mean()
        numbers = self.diagnose(rollouts, scores) | {"reward": reward, "kl": divergence}
        pass_at_n = np.asarray(rerank.pass_at_n(scores.right_N.reshape(-1, self.cfg.eval.n))).mean(
            0
        )  # in groups of n
        numbers["pass_at_1"] = numbers.pop("right")
        numbers |= {f"pass_at_{k}": pass_at_n[k - 1] for k in self.cfg.eval.k if 1 < k <= len(pass_at_n)}
        if samples:
            write_samples(
                samples, step, as_rows(rollouts, step_reward_NT, outcome_N, scores), self.cfg.eval.n
            )
        self.spent["evaluate"] += time.perf_counter() - start
        return {f"eval_{name}": float(x) for name, x in numbers.items()}

    def diagnose(self, rollouts: list[Rollout], scores: RolloutScores) -> dict[str, float]:
        """Numbers that show hacking: gold beside proxy, lengths, restated steps, the PRM's quality on new roll-outs."""
        steps, verdicts, restated = [len(r.steps) for r in rollouts], scores.verdicts, []
        for r, judged in zip(rollouts, verdicts or [[""] * n for n in steps], strict=True):
            restated += [
                x == "neutral" or step == before for x, step, before in zip(judged, r.steps, ("", *r.steps))
            ]
        entropy = -np.concatenate(
            [r.logp_L for r in rollouts]
        ).mean()  # of the distribution that was sampled from
        cut, tokens = np.mean([not r.finished for r in rollouts]), np.mean([len(r.ids_L) for r in rollouts])
        numbers = {
            "entropy": entropy,
            "right": scores.right_N.mean(),
            "cut": cut,
            "steps_a_solution": np.mean(steps),
        }
        # restated: lines that do nothing, or repeat the one before.
        numbers |= {"tokens_a_solution": tokens, "restated": np.mean(restated)}
        if verdicts is not None:
            labels = [tasks.correctness(judged) for judged in verdicts]
            sound = [right and label_T[-1] > 0 for right, label_T in zip(scores.right_N, labels, strict=True)]
            numbers["sound"] = np.mean(sound)
            if scores.prm is not None:
                metrics = step_metrics(
                    [probability(x) for x in scores.prm], labels, [r.group for r in rollouts]
                )
                names = [name for name in ("step_auroc", "ece") if np.isfinite(metrics[name])]
                numbers |= {f"prm_{name}": metrics[name] for name in names}
        return numbers | self.problems.watch(rollouts)


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
        mean_N = np.array([probability(logit_T).mean() for logit_T in scores.prm])
        return advantages.keep_prof(mean_N, scores.right_N, np.array([r.group for r in rollouts]))
    return np.ones(len(rollouts), bool)


if __name__ == "__main__":
    main()
