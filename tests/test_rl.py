"""RL: the objective against finite differences, KL estimators against a law, roll-outs, rewards, resume."""

import copy
import dataclasses
import functools
import itertools
import json
import re
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import ROOT, call, data_node, printed, refuses
from flax import nnx
from omegaconf import OmegaConf

from prm_jax import InputError, tasks
from prm_jax.checkpoints.names import OpenOptions, open_verifier
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.data.splits import data_config, problem_hash
from prm_jax.figures.sweeps import Config, make_table
from prm_jax.formats import read_format
from prm_jax.generate.policies import Sampling
from prm_jax.generate.sampling import open_policy
from prm_jax.rl import __main__ as rl
from prm_jax.rl import advantages
from prm_jax.rl.problems import file_problems, known_problems, task_problems
from prm_jax.rl.rewards import RewardConfig, Rewards
from prm_jax.rl.rollouts import lay_out, padded, roll_out, split_steps
from prm_jax.rl.update import (
    UpdateConfig,
    kl,
    loss_inputs,
    policy_loss,
    surrogate,
    token_weights,
    update,
    written_logps,
)
from prm_jax.tasks.checkers import open_grader

UPDATE = UpdateConfig(1, 0.2, 0.2, "response", 0.0)
REWARD = RewardConfig(
    answer=1.0, prm=0.0, own=0.0, prm_checkpoint=None, own_function=None, prm_form="signed", prm_where="all"
)
PROBLEMS = ["3 +2 *4 mod7?", "1 *3 +5 mod7?"]


@pytest.fixture(scope="module")
def policy():
    return open_policy("embedded", "best", read_format("plain"), "float32", Sampling(1.0, None, 1.0, 80), 32)


@pytest.fixture(scope="module")
def rollouts(policy):
    return roll_out(policy, PROBLEMS, 3, jax.random.key(0))


def test_the_estimate_of_the_divergence_is_unbiased_and_never_negative():
    rng = np.random.default_rng(0)
    q, p = np.array([0.4, 0.3, 0.15, 0.1, 0.05]), np.array([0.2, 0.2, 0.2, 0.2, 0.2])
    exact, x = (q * np.log(q / p)).sum(), rng.choice(5, size=200_000, p=q)
    found = np.asarray(kl(jnp.log(q / p)[x]))
    assert abs(found.mean() - exact) < 3 * found.std() / np.sqrt(len(x)) and found.min() >= 0


def test_the_divergence_as_a_loss_has_the_gradient_of_the_other_one():
    """Expected gradient on a softmax of 5 outcomes, against finite differences of KL(p || q)."""
    p, z = jnp.array([0.2, 0.3, 0.1, 0.25, 0.15]), jnp.array([0.5, -0.3, 0.2, 0.0, -0.4])
    law = jax.nn.softmax
    forward = lambda z: (p * jnp.log(p / law(z))).sum()
    slope = np.array([(forward(z + 1e-2 * e) - forward(z - 1e-2 * e)) / 2e-2 for e in jnp.eye(5)])
    fixed = law(z)
    expected = jax.grad(lambda z: (fixed * kl(jnp.log(law(z) / p))).sum())(z)
    assert expected == pytest.approx(slope, abs=2e-4)


def test_clipping_holds_a_token_back_where_the_ratio_has_gone_far_enough():
    ratio, advantage = jnp.array([1.0, 1.5, 0.5, 1.5, 0.5]), jnp.array([2.0, 1.0, 1.0, -1.0, -1.0])
    up, down = jnp.maximum(advantage, 0), jnp.minimum(advantage, 0)
    loss, clipped_mass = surrogate(jnp.log(ratio), up, down, UPDATE)
    assert np.asarray(loss) == pytest.approx([-2.0, -1.2, -0.5, 1.5, 0.8])
    assert clipped_mass.tolist() == [0, 1, 0, 0, 1]
    slope = jax.grad(lambda x: surrogate(x, up, down, UPDATE)[0].sum())(jnp.log(ratio))
    assert np.asarray(slope) == pytest.approx([-2.0, 0, -0.5, 1.5, 0])


def test_loss_norms_weigh_tokens_as_they_say():
    mask = np.array([[1, 1, 1, 1], [1, 0, 0, 0]], bool)
    assert token_weights(mask, "response", 8).tolist() == [[0.125] * 4, [0.5, 0, 0, 0]]
    assert token_weights(mask, "token", 8).tolist() == [[0.2] * 4, [0.2, 0, 0, 0]]
    assert token_weights(mask, "constant", 8).tolist() == [[0.0625] * 4, [0.0625, 0, 0, 0]]


def batch_of(policy, rollouts, advantage=None, share=True, kept=slice(None)):
    """`kept`: only these are laid out."""
    layout = lay_out([rollouts[i] for i in np.arange(len(rollouts))[kept]], 2, 128, len(rollouts), share)
    old_NL = padded([r.logp_L for r in rollouts])
    mask_NL = padded([np.ones(len(r.ids_L)) for r in rollouts]) > 0
    noise_NL = np.random.default_rng(0).normal(size=mask_NL.shape)
    advantage_NL = (noise_NL if advantage is None else np.array(advantage)) * mask_NL
    weight_NL = token_weights(mask_NL, "token", 80)
    given = weight_NL, advantage_NL, old_NL - 0.05, mask_NL
    inputs = loss_inputs(layout, *(x_NL[kept] for x_NL in given))
    return layout.batch | inputs | {"reference": inputs["old"] - 0.05}


@functools.partial(jax.jit, static_argnums=2)
def loss_and_gradient(model, batch, cfg):
    total = lambda model: jax.lax.map(lambda part: policy_loss(model, part, cfg)[0], batch).sum()
    return jax.value_and_grad(total)(model)


def assert_alike(policy, batch, other, cfg):
    (loss, grads), (loss_other, grads_other) = (
        loss_and_gradient(policy.model, x, cfg) for x in (batch, other)
    )
    assert float(loss) == pytest.approx(float(loss_other), abs=1e-6)
    for a, b in zip(*map(jax.tree.leaves, (grads, grads_other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=2e-5)


def test_layout_puts_numbers_at_the_tokens_that_were_written(rollouts):
    layout = lay_out(rollouts, 2, 128, 6)
    ids_NL = layout.gather(layout.batch["ids"])
    for r, own_L in zip(rollouts, ids_NL, strict=True):
        assert own_L[: len(r.ids_L)].tolist() == r.ids_L.tolist()
    assert layout.scatter(ids_NL).sum() == ids_NL.sum()
    apart = lay_out(rollouts, 2, 128, 6, share=False)
    assert apart.gather(apart.scatter(ids_NL)).tolist() == ids_NL.tolist()
    assert layout.used <= apart.used <= len(apart.batch["ids"]) == len(layout.batch["ids"]) == 3


def test_what_responses_share_is_computed_once_and_learned_as_if_apart(policy, rollouts):
    given = [*rollouts, *rollouts[:2]]  # two responses are the same as two others
    batch, apart = (batch_of(policy, given, share=share) for share in (True, False))
    assert_alike(policy, batch, apart, dataclasses.replace(UPDATE, kl=0.5))


def test_gspo_takes_the_ratio_of_each_response_in_packed_rows(policy, rollouts):
    """Two responses stand in a row; each is clipped by the mean of its own log ratios."""
    cfg = dataclasses.replace(UPDATE, surrogate="gspo", clip_low=0.01, clip_high=0.01)
    layout = lay_out(rollouts, 2, 128, 6, share=False)
    width, n_N = max(len(r.ids_L) for r in rollouts), np.array([len(r.ids_L) for r in rollouts])
    mask_NL = np.arange(width) < n_N[:, None]
    logp_NL = layout.gather(np.asarray(written_logps(policy.model, layout.batch, layout.used)))
    change_N = np.array([0.02, -0.02, 0.005, -0.005, 0.02, -0.02])
    advantage_N = np.array([1, 1, 1, -1, -1, -1.0])
    noise_NL = np.random.default_rng(0).normal(scale=0.5, size=mask_NL.shape)
    noise_NL -= ((noise_NL * mask_NL).sum(1) / n_N)[:, None]
    old_NL = logp_NL - change_N[:, None] - noise_NL
    weight_NL = token_weights(mask_NL, "response", 80)
    batch = layout.batch | loss_inputs(layout, weight_NL, mask_NL * advantage_N[:, None], old_NL, mask_NL)
    ratio_N = np.exp(change_N)
    expected = -np.minimum(ratio_N * advantage_N, np.clip(ratio_N, 0.99, 1.01) * advantage_N).mean()
    of_row = jax.jit(policy_loss, static_argnums=2)
    rows = [{name: x[a] for name, x in batch.items()} for a in range(layout.used)]
    loss = sum(float(of_row(policy.model, row, cfg)[0]) for row in rows)
    assert layout.batch["start"].max() > 0 and loss == pytest.approx(expected, abs=1e-5)


def test_dropped_groups_are_drawn_again(monkeypatch, rollouts):
    """Problems 2, 5 and 6 of the first batches have right and wrong answers; two groups are wanted."""
    mixed, drawn = {2, 5, 6}, []

    def roll_out(policy, problems, n, key):
        drawn.append(problems)
        rows = [(g, p, k) for g, p in enumerate(problems) for k in range(n)]
        return [with_steps(dataclasses.replace(rollouts[0], group=g, problem=p), f"{k}") for g, p, k in rows]

    monkeypatch.setattr(rl, "roll_out", roll_out)
    monkeypatch.setattr(rl, "shuffled", lambda n, first, end, seed: range(first, end))
    is_right = lambda r: r.problem not in mixed or r.steps == ("0",)
    for resample, batches, kept in ((0, 1, []), (1, 2, [2]), (9, 3, [2, 5])):
        cfg = SimpleNamespace(n=2, problems=2, steps=1, seed=0, resample=resample, select="mixed")
        cfg.accuracy = 0.0, 1.0
        rewards = SimpleNamespace(right=lambda rollouts: np.array([is_right(r) for r in rollouts], float))
        trainer = SimpleNamespace(cfg=cfg, key=jax.random.key(0), policy=None, rewards=rewards)
        trainer.problems = SimpleNamespace(train=range(100))
        trainer.keep = functools.partial(rl.Trainer.keep, trainer)
        drawn.clear()
        found, right_N = rl.Trainer.roll_out(trainer, 1)
        assert right_N.tolist() == rewards.right(found).tolist()
        places = np.flatnonzero(trainer.keep(found, right_N))
        assert len(drawn) == batches
        assert [r.group for r in found] == np.repeat(np.arange(2 * batches), 2).tolist()
        assert [found[i].problem for i in places] == np.repeat(kept, 2).tolist()


def test_responses_without_an_advantage_can_be_left_out(policy, rollouts):
    advantage = [[1.0], [-1.0], [0.0]] * 2
    whole, kept = (batch_of(policy, rollouts, advantage, kept=kept) for kept in (slice(None), [0, 1, 3, 4]))
    assert kept["count"].sum() < whole["count"].sum()
    assert_alike(policy, whole, kept, UPDATE)


def test_gradient_of_the_loss_is_its_finite_difference(policy, rollouts):
    cfg = dataclasses.replace(UPDATE, kl=0.5)
    batch = {name: x[:1] for name, x in batch_of(policy, rollouts).items()}
    _, grads = loss_and_gradient(policy.model, batch, cfg)
    norm = optax.tree.norm(grads)
    moved = lambda h: jax.tree.map(lambda x, g: x + h * g / norm, policy.model, grads)
    ends = [loss_and_gradient(moved(h), batch, cfg)[0] for h in (1e-4, -1e-4)]
    assert float(ends[0] - ends[1]) / 2e-4 == pytest.approx(float(norm), rel=0.01)


def test_no_advantage_no_update(policy, rollouts):
    def step(advantage):
        model = jax.tree.map(jnp.copy, policy.model)
        opt = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        return update(model, opt, batch_of(policy, rollouts, advantage), 1, UPDATE)

    still, _, metrics = step(0.0)
    moved, *_ = step(1.0)
    same = lambda model: [bool((a == b).all()) for a, b in zip(*map(jax.tree.leaves, (model, policy.model)))]
    assert all(same(still)) and not any(same(moved)) and float(metrics["grad_norm"]) == 0
    assert float(metrics["kl_change"]) == pytest.approx(np.exp(-0.05) - 1 + 0.05, rel=0.02)


def test_roll_outs_are_cut_into_the_steps_of_their_text(policy, rollouts):
    assert {r.group for r in rollouts} == {0, 1} and len(rollouts) == 6
    for r in rollouts:
        text = policy.tokenizer.decode([i for i in r.ids_L if i not in policy.eos_ids])
        assert r.steps == tuple(line for line in text.split("\n") if line.strip())
        behind = len(r.steps) - (not policy.stops["step"].stop_V[r.ids_L[-2]])  # what comes after a separator
        assert r.step_L[0] == 0 and r.step_L[-1] == behind and set(np.diff(r.step_L)) <= {0, 1}
    encode = lambda text: np.array(policy.tokenizer.encode(text, add_special_tokens=False), np.int32)
    end = np.array(policy.eos_ids, np.int32)
    assert split_steps(policy, end) == (("",), pytest.approx([0]))
    blank = encode("\n\n\u3000\n")  # a line of white space that is three tokens is no step either
    steps, step_L = split_steps(policy, np.concatenate([encode("3+2=5"), blank, encode("5*4=6"), end]))
    assert steps == ("3+2=5", "5*4=6") and step_L.tolist() == [0] * 6 + [1] * 11


def test_a_policy_with_a_chat_template_reads_it(policy):
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.chat_template = "{% for m in messages %}+{{ m.content }}=\n{% endfor %}"
    speaker = dataclasses.replace(policy, tokenizer=tokenizer, format=read_format("plain"), eos_ids=())
    found = roll_out(speaker, PROBLEMS, 2, jax.random.key(0))
    assert tokenizer.decode(found[0].prompt_L) == f"+{PROBLEMS[0]}=\n"


def make_rewards(**changes):
    right = lambda r: tasks.CHAIN.solved(r.problem, r.steps)
    return Rewards(dataclasses.replace(REWARD, **changes), right, tasks.CHAIN)


def test_the_own_reward_of_the_docs_is_one(rollouts, tmp_path):
    page = (ROOT / "docs/commands.md").read_text()
    (tmp_path / "mine.py").write_text(re.search(r"```python\n(# mine.py.*?)```", page, flags=re.DOTALL)[1])
    assert len((tmp_path / "mine.py").read_text().splitlines()) <= 10
    given = [with_steps(rollouts[0], "3+2=5", "3+2=5", "5*4=6"), with_steps(rollouts[0], "3+2=5")]
    reward = make_rewards(own=0.5, own_function=f"{tmp_path}/mine.py:no_repeats")(given)
    assert reward.step_NT.tolist() == [[0, -0.5, 0], [0, 0, 0]]


def with_steps(rollout, *steps, finished=True):
    return dataclasses.replace(rollout, steps=steps, finished=finished)


def test_sources_give_what_they_say(rollouts, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def brevity(rollouts):\n    return [np.full(len(r.steps), -0.5) for r in rollouts]\n"
        "def first(rollouts):\n    return np.array([float(r.steps[0] == '3+2=5') for r in rollouts])\n"
    )
    here = rollouts[0]  # 3 +2 *4 mod7? is 6
    lines = ("3+2=5", "5*4=6"), ("3+2=4", "4*4=6")  # the second is right by luck
    given = [*(with_steps(here, *x) for x in lines), with_steps(here, *lines[0], finished=False)]
    reward = lambda name, **more: make_rewards(own_function=f"{tmp_path}/mine.py:{name}", **more)(given)
    found = reward("brevity", own=1.0)
    assert found.right_N.tolist() == [1, 1, 0]
    assert found.step_NT.tolist() == [[-0.5, -0.5]] * 3
    assert found.outcome_N.tolist() == [1, 1, 0] and found.means["reward_own"] == -1.0
    found = reward("first", own=10.0)
    assert found.outcome_N.tolist() == [11, 1, 10] and not found.step_NT.any()


def test_rewards_of_steps_only_where_the_answer_is_right(rollouts):
    lines = ("3+2=5", "5*4=6"), ("3+2=4", "4*4=6"), ("3+2=5", "5*4=5"), ("3+2=5", "5*4=6", "6=6")
    given = [with_steps(rollouts[0], *own) for own in lines]  # right, right by luck, wrong, right
    scorer = SimpleNamespace(label_kind="correctness")
    scorer.score = lambda rows: [np.array([2.0, 2, -0.5][: len(steps)]) for _, steps in rows]
    reward = lambda **more: dataclasses.replace(make_rewards(prm_checkpoint="x", **more), prm=scorer)(given)
    found = reward(prm=1.0, prm_form="log_odds", prm_where="right")
    assert found.outcome_N.tolist() == [1, 1, 0, 1]
    assert found.step_NT.tolist() == [[2, 2, 0], [2, 2, 0], [0, 0, 0], [2, 2, -0.5]]


def own_reward(text, rollouts, folder):
    (folder / "mine.py").write_text(f"import jax.numpy as jnp, sys\ndef f(rollouts): return {text}\n")
    rewards = make_rewards(answer=0.0, own=1.0, own_function=f"{folder}/mine.py:f")
    return rewards(rollouts)


@pytest.mark.parametrize("text", ["None", "[1.0]", "[float('nan')] * 6"])
def test_a_users_reward_that_is_none_or_fails_is_one_line_with_its_key(text, rollouts, tmp_path):
    refuses(r"^reward.own_function: .*mine.py:f: ", own_reward, text, rollouts, tmp_path)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        (["reward.prm=1"], "reward.prm_checkpoint"),
        (["sampling.temperature=0.7"], "sampling"),
        (["n=1", "select=mixed", "advantage=reinforce"], "n"),
        (["format.chat=true"], "format.chat"),
        (["accuracy=[0.8,0.2]"], "accuracy"),
        (["input=x.jsonl"], "held_out"),
        (["checker=math"], "checker"),
        (["input=x.jsonl", "held_out=y.jsonl", "apart=run"], "apart"),
        (["batch.tokens=64"], "batch.tokens"),
    ],
)
def test_a_wrong_command_is_one_line_with_its_key(changes, key, monkeypatch, tmp_path):
    told = call(rl.main, monkeypatch, "rl", *changes, f"hydra.run.dir={tmp_path}/run")
    assert "\n" not in told and told.startswith(f"error: {key}: ")


SMALL = "problems=4 n=4 eval.problems=8 eval.n=2 eval.every=2 batch.rows=8 batch_rows=32"
SMALL = [*SMALL.split(), "cpu_devices=1"]
KEYS = "reward.prm=0.5 reward.prm_checkpoint=embedded_orm advantage=pure steps=4 checkpoint_every=2"
KEYS = [*KEYS.split(), "update.kl=0.1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as monkeypatch:
        printed(rl.main, monkeypatch, *SMALL, *KEYS, f"hydra.run.dir={folder}", cwd=folder)
    return folder


def lines(folder):
    """metrics.jsonl without its timings."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: x for k, x in row.items() if not k.startswith("seconds")} for row in rows]


def test_a_stopped_run_goes_on_bit_for_bit_and_opens_as_a_policy(whole, monkeypatch, tmp_path):
    learn, told = rl.Trainer.learn, []

    def stopped(self, step):
        told.append(step)
        if step == 3:
            raise InputError("stop here")
        return learn(self, step)

    monkeypatch.setattr(rl.Trainer, "learn", stopped)
    call(rl.main, monkeypatch, "rl", *SMALL, *KEYS, f"hydra.run.dir={tmp_path}/cut")
    monkeypatch.setattr(rl.Trainer, "learn", learn)
    printed(rl.main, monkeypatch, f"resume={tmp_path}/cut", cwd=tmp_path)
    assert told == [1, 2, 3]
    cut_run = tmp_path / "cut"
    assert lines(cut_run) == lines(whole) and [row["step"] for row in lines(whole)] == [0, 1, 2, 3, 4]
    told = [json.loads((folder / "summary.json").read_text()) for folder in (cut_run, whole)]
    tokens = itertools.accumulate(row["policy_tokens"] for row in lines(whole)[1:])
    assert [row["total_policy_tokens"] for row in lines(whole)[1:]] == list(tokens)
    assert told[0]["policy_tokens"] == told[1]["policy_tokens"] == lines(whole)[-1]["total_policy_tokens"]
    evaluations = [row["eval_pass_at_1"] for row in lines(whole)[2::2]]
    for summary in told:  # the last evaluation is quoted, the best beside it
        assert summary["eval_pass_at_1"] == evaluations[-1] and summary["best_pass_at_1"] == max(evaluations)
        assert summary["eval_pass_at_2"] == lines(whole)[4]["eval_pass_at_2"] >= evaluations[-1]
        assert summary["pass_at_2"] == lines(whole)[0]["eval_pass_at_2"] and "pass_at_4" not in summary
    curves = make_table(Config(str(whole), x="step", y=["eval_pass_at_1", "eval_kl"])).frame
    assert curves[curves["y"] == "eval_pass_at_1"]["mean"].tolist()[1:] == evaluations
    watched = {"right", "sound", "restated", "steps_a_solution", "entropy", "clipped", "eval_kl"}
    assert watched | {"prm_step_auroc"} <= lines(whole)[2].keys()
    both = [open_checkpoint(folder, "latest", None, "float32") for folder in (whole, cut_run)]
    assert both[0].objective == "lm"
    for a, b in zip(*(jax.tree.leaves(nnx.state(x.model)) for x in both), strict=True):
        assert (np.asarray(a) == np.asarray(b)).all()


def test_the_progress_of_a_policy_scores_steps(whole, tmp_path):
    """Its log-ratio to the first policy, here by the probabilities of whole steps."""
    rows = [(PROBLEMS[0], ("3+2=5", "5*4=6")), (PROBLEMS[1], ("1*3=4",))]
    names = f"progress:{whole}", f"policy:{whole}", "policy:embedded"
    scorers = [open_verifier(name, OpenOptions(which="latest")) for name in names]
    assert scorers[0].label_kind == "advantage"
    logp = [[-np.logaddexp(0, -x_T) for x_T in scorer.score(rows)] for scorer in scorers[1:]]
    for found_T, new_T, old_T in zip(scorers[0].score(rows), *logp, strict=True):
        np.testing.assert_allclose(found_T, new_T - old_T, atol=1e-4)
        assert (found_T != 0).all()
    again = shutil.copytree(whole, tmp_path / "again")  # as one that began as the latest policy of `whole`
    path = again / ".hydra/config.yaml"
    OmegaConf.save(OmegaConf.merge(OmegaConf.load(path), {"policy": str(whole), "which": "latest"}), path)
    [none_T] = open_verifier(f"progress:{again}", OpenOptions(which="latest")).score(rows[:1])
    assert (none_T == 0).all()
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra/config.yaml").write_text("seed: 0\n")
    with pytest.raises(InputError, match="^checkpoint: .*progress:"):
        open_verifier(f"progress:{tmp_path}", OpenOptions())


@pytest.mark.parametrize("name", ["rloo_steps", "rloo_sources", "pure"])
def test_without_step_rewards_these_estimators_are_rloo(name):
    """So the checker alone is the partner of a PRM beside the checker under any of them."""
    rng, group_N = np.random.default_rng(0), np.repeat([0, 1], 4)
    outcome_N, mask_NL = rng.integers(2, size=8) * 1.0, np.arange(6) < rng.integers(3, 7, (8, 1))
    step_NL = np.minimum(np.arange(6) // 2, 2) * np.ones((8, 1), int)
    given = advantages.Responses(np.zeros((8, 3)), outcome_N, step_NL, mask_NL, group_N)
    f = lambda name: advantages.ESTIMATORS[name].f(given)
    assert (f(name) == f("rloo")).all() and f("rloo").any()


def test_a_nan_stops_with_the_last_good_checkpoint(monkeypatch, tmp_path):
    """The problems come from files here."""
    train, held_out = write_problems(tmp_path)
    files = [f"input={train}", f"held_out={held_out}", "checker=chain"]
    good, given = rl.update, []

    def broken_later(model, *rest):
        given.append(model)
        model, *rest = good(model, *rest)
        return (jax.tree.map(lambda x: x * np.nan, model) if len(given) > 2 else model), *rest

    monkeypatch.setattr(rl, "update", broken_later)
    run = tmp_path / "run"
    told = call(
        rl.main, monkeypatch, "rl", *SMALL, *files, "steps=9", "checkpoint_every=1", f"hydra.run.dir={run}"
    )
    stopped = re.search(r"step (\d): parameter_norm is nan; stopped, with no checkpoint of it", told)
    assert stopped and "\n" not in told, told
    found = open_checkpoint(run, "latest", None, "float32")
    assert found.name.endswith(f"step {int(stopped[1]) - 1}") and found.objective == "lm"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in lines] == list(range(int(stopped[1])))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(nnx.state(found.model)))


def test_problems_are_kept_apart_from_those_of_the_verifier(tmp_path, capsys):
    data = data_config(data_node("chain"))
    train = tasks.make_problems(tasks.CHAIN, data.task, 1000, "train", 0)
    validation = tasks.make_problems(tasks.CHAIN, data.task, 63, "validation", 0)
    record = {"problems": list(map(problem_hash, train)), "validation": list(map(problem_hash, validation))}
    (tmp_path / "data.json").write_text(json.dumps(record))
    known = known_problems(None, f"mean:[{tmp_path},embedded_orm]")
    assert known == {*record["problems"], *record["validation"]} == known_problems(str(tmp_path), None)
    assert known == known_problems(None, f"policy:{tmp_path}")
    assert "embedded_orm" in capsys.readouterr().out
    shared = task_problems(data, 200, 0)
    apart = task_problems(data, 200, 0, known)
    assert shared.train[:1000] == train and shared.held_out[:63] == validation
    assert len(apart.train) == 4096 and len(apart.held_out) == 200
    assert not {*apart.train, *apart.held_out} & {*train, *validation}
    assert apart.train[:3096] == shared.train[1000:]
    with pytest.raises(InputError, match="^apart: "):
        known_problems("nowhere", None)


def test_problems_of_files_are_graded_by_their_answers(rollouts, tmp_path):
    train, held_out = write_problems(tmp_path)
    found = file_problems(str(train), str(held_out), open_grader("number"), 5)
    assert found.train[:2] == PROBLEMS and found.task is None
    assert len(found.train) == 8 and len(found.held_out) == 4
    said = lambda text: found.is_right(with_steps(rollouts[0], "3+2=5", text))
    assert said("The answer is 6.0") and said("5*4=6") and not said("The answer is 5") and not said("so")
    thinking = dataclasses.replace(with_steps(rollouts[0], "The answer is 6."), thought="<think>")
    assert not found.is_right(thinking)
    spoken = dataclasses.replace(
        with_steps(rollouts[0], "So 5.</think>", "The answer is 6."), thought="<think>"
    )
    assert found.is_right(spoken)
    held_out.write_text(train.read_text().replace(" mod7", "  mod7"))  # up to white space the same
    refuses(f"^{held_out}: ", file_problems, str(train), str(held_out), open_grader("number"), 5)
    with train.open("a") as file:
        file.write(json.dumps({"problem": PROBLEMS[0], "answer": "99"}) + "\n")
    refuses(f"^{train}: 9: answer", file_problems, str(train), str(held_out), open_grader("number"), 5)


def write_problems(folder):
    rng, cfg = np.random.default_rng(0), data_config(data_node("chain")).task
    problems = [*PROBLEMS, *(tasks.CHAIN.make_problem(cfg, rng) for _ in range(10))]
    rows = [{"problem": p, "answer": tasks.CHAIN.gold_answer(p)} for p in problems]
    for name, own in (("train", rows[:8]), ("held_out", rows[8:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    return folder / "train.jsonl", folder / "held_out.jsonl"


@pytest.mark.slow
def test_bfloat16_trains_in_float32_with_the_policys_format_and_ends(policy, whole, monkeypatch, tmp_path):
    types, learn = set(), rl.Trainer.learn

    def seen(self, step):
        types.update(x.dtype.name for x in jax.tree.leaves(nnx.state(self.policy.model)))
        return learn(self, step)

    monkeypatch.setattr(rl.Trainer, "learn", seen)
    begun = shutil.copytree(whole, tmp_path / "begun")  # with a prompt and an end of its own
    path = begun / ".hydra/config.yaml"
    OmegaConf.save(OmegaConf.merge(OmegaConf.load(path), {"format": {"prefix": " {problem}"}}), path)
    end = policy.tokenizer.convert_tokens_to_ids("?")
    (begun / "model/generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    asked = f"policy={begun}", "dtype=bfloat16", "steps=1", f"hydra.run.dir={tmp_path}/run"
    asked += "reward.prm=1", "reward.prm_checkpoint=values"  # of the run's own task
    asked += "algorithm=gspo", "update.passes=1"  # whose clip is narrow
    assert "finished" in printed(rl.main, monkeypatch, *SMALL, *asked, cwd=tmp_path)
    assert types == {"float32"}
    first = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[1])
    assert first["clipped"] == first["kl_change"] == 0
    again = open_policy(tmp_path / "run", "latest", policy.format, "float32", policy.sampling, 4)
    assert again.prompt("4?") == " 4?" and end in again.eos_ids
