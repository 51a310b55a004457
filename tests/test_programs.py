"""What authors' programs do, on random rewards: each formula is written out here in loops, token by token."""

from types import SimpleNamespace

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_advantages import laid_out

from prm_jax.checkpoints.init import fill_optimizer
from prm_jax.launch.config import CONF, parse
from prm_jax.rl import __main__ as rl
from prm_jax.rl import advantages
from prm_jax.rl.advantages import EstimatorConfig
from prm_jax.rl.update import UpdateConfig, of_sequence, surrogate


@pytest.fixture(params=range(3))
def given(request):
    """(rewards of steps, tokens of steps, outcomes, groups) of three groups of four responses, as lists."""
    rng = np.random.default_rng(request.param)
    rewards = [rng.normal(size=rng.integers(1, 5)).round(3).tolist() for _ in range(12)]
    tokens = [rng.integers(1, 4, size=len(own)).tolist() for own in rewards]
    return rewards, tokens, rng.integers(0, 2, size=12).tolist(), [0, 2, 1] * 4


def arrays(given):
    rewards, tokens, outcome, group = given
    return laid_out(*rewards, tokens=tokens, outcome=outcome, group=group)


def estimate(name, arguments, form="min"):
    return EstimatorConfig(name, normalise=True, form=form).estimate(arguments)


def to_go(x):
    return [sum(x[t:]) for t in range(len(x))]


def others(i, group):
    return [j for j in range(len(group)) if group[j] == group[i] and j != i]


def at_ends(given, i, rewards):
    """The rewards of response i, each at the last token of its step."""
    return [r if k == n - 1 else 0.0 for r, n in zip(rewards, given[1][i], strict=True) for k in range(n)]


def softmin(r):
    weights = [np.exp(-x / 0.1) for x in r]
    return [w / sum(weights) * x for w, x in zip(weights, r, strict=True)]


def whiten(rows):
    tokens = np.concatenate(rows)
    return [(np.array(row) - tokens.mean()) / tokens.std() for row in rows]


def assert_rows(advantage_NL, rows):
    for own_L, row in zip(advantage_NL, rows, strict=True):
        assert own_L[: len(row)] == pytest.approx(np.array(row), abs=1e-9) and not own_L[len(row) :].any()


@pytest.mark.parametrize("form", ["min", "sum"])
def test_pure_on_main(given, form):
    """process_experiences with reward_baseline=token."""
    rewards, tokens, outcome, group = given
    weighted = list(map(softmin, rewards)) if form == "min" else rewards
    rows = []
    for i, own in enumerate(weighted):
        rest = others(i, group)
        per_token = sum(sum(weighted[j]) for j in rest) / sum(sum(tokens[j]) for j in rest)
        row = at_ends(given, i, [r - per_token * n for r, n in zip(own, tokens[i], strict=True)])
        row[-1] += outcome[i] - np.mean([outcome[j] for j in rest])
        rows.append(to_go(row))
    assert_rows(estimate("pure", arrays(given), form=form), rows)


def test_reinforce_plus_plus(given):
    rewards, _, outcome, _ = given
    rows = []
    for i, own in enumerate(rewards):
        row = at_ends(given, i, own)
        row[-1] += outcome[i]
        rows.append(to_go(row))
    assert_rows(estimate("reinforce", arrays(given)), whiten(rows))


@pytest.mark.parametrize("name", ["dapo", "dr_grpo", "gspo", "cispo", "prime"])
def test_a_published_algorithm_is_a_configuration(name):
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        raw = hydra.compose("rl", overrides=[f"algorithm={name}"])
    fill_optimizer(raw, raw.policy)
    cfg = parse(raw, rl.RLConfig, elsewhere=("data",))
    assert cfg.normalise == (name != "dr_grpo") and cfg.optimizer.lr == 1e-3
    assert (cfg.update.surrogate == name) == (name in ("gspo", "cispo"))


def test_primes_filter_keeps_middling_groups():
    right_N, group_N = np.array([1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1]), np.repeat([0, 1, 2], 5)
    assert advantages.keep_mixed(right_N, group_N, 0.2, 0.8).tolist() == [True] * 10 + [False] * 5
    cfg = SimpleNamespace(select="mixed", problems=3, n=5, accuracy=(0.3, 1.0))
    rollouts = [SimpleNamespace(group=group) for group in group_N]
    keep_N = rl.Trainer.keep(SimpleNamespace(cfg=cfg), rollouts, right_N)
    assert keep_N.tolist() == [False] * 5 + [True] * 5 + [False] * 5


UPDATE = UpdateConfig(1, 0.1, 0.1, "response", 0.0, "gspo")


def test_gspo_clips_the_ratio_of_a_response():
    """exp(mean log ratio) of each response; of one advantage its gradient is the sequence ratio's."""
    rng = np.random.default_rng(0)
    lengths, advantage = [3, 2, 4], jnp.array([1.0, -2.0, 0.5])
    log_ratio = jnp.array(rng.normal(scale=0.3, size=9))
    response = np.repeat(np.arange(3), lengths)
    start = np.repeat([0, 3, 5], lengths)
    weight = 1 / (3 * np.repeat(lengths, lengths))
    gain = weight * advantage[response]

    def ours(log_ratio):
        ratio = of_sequence(log_ratio[None], jnp.array(start)[None], jnp.ones((1, 9)))[0]
        return surrogate(ratio, jnp.maximum(gain, 0), jnp.minimum(gain, 0), UPDATE)[0].sum()

    loss, slope = jax.jit(jax.value_and_grad(ours))(log_ratio)
    s = np.exp([np.asarray(log_ratio)[response == i].mean() for i in range(3)])
    gains = s * advantage, np.clip(s, 0.9, 1.1) * advantage
    assert float(loss) == pytest.approx(-np.minimum(*gains).mean(), abs=1e-6)
    slopes = np.where(gains[0] <= gains[1], -gains[0] / 3 / np.array(lengths), 0)
    assert np.asarray(slope) == pytest.approx(slopes[response], abs=1e-6)
    assert (slopes == 0).any() and (slopes != 0).any()  # a clipped response and another


def test_cispo_weighs_every_token_by_its_clipped_ratio():
    cfg = UpdateConfig(1, 10.0, 0.2, "token", 0.0, "cispo")
    gain, log_ratio = jnp.array([1.0, -0.5, 2.0, -1.0]), jnp.log(jnp.array([1.5, 1.5, 0.1, 1.1]))
    loss = lambda x: surrogate(x, jnp.maximum(gain, 0), jnp.minimum(gain, 0), cfg)
    assert np.asarray(jax.grad(lambda x: loss(x)[0].sum())(log_ratio)) == pytest.approx(
        [-1.2, 0.6, -0.2, 1.1]
    )
    assert loss(log_ratio)[1].tolist() == [1, 0.5, 0, 0]
