"""Losses against plain PyTorch and hand-worked numbers."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY
from flax import nnx

from prm_jax import training, vocabulary
from prm_jax.examples import Example
from prm_jax.launch.sharding import AXES
from prm_jax.losses import STEP_LOSSES, bce, implicit_logit, next_token_sums, next_tokens
from prm_jax.model import PRM, matrix
from prm_jax.packing import pack_batch
from prm_jax.scoring import log_ratio, step_ratios
from prm_jax.training import (
    TRAINABLE,
    LossConfig,
    OptimizerConfig,
    add_reference,
    eval_step,
    loss_terms,
    make_optimizer,
    make_schedule,
    plan_memory,
    step_losses,
    train_step,
)

nan = math.nan


def batch_of(rows, row_tokens, step_slots):
    return {name: jnp.asarray(x) for name, x in pack_batch(rows, row_tokens, step_slots).items()}


def example(rng, n_tokens, marks, labels, start=2):
    ids = rng.integers(1, 64, n_tokens).astype(np.int32)
    return Example(ids, np.array(marks, np.int32), start, np.array(labels, np.float32))


def test_binary_head_equals_trl_loss(rng):
    """TRL: 2-class cross-entropy, ignore_index -100 at unlabelled tokens, mean over the labelled ones."""
    torch = pytest.importorskip("torch")
    model = PRM(dataclasses.replace(TINY, head="binary"), rngs=nnx.Rngs(1))
    rows = [
        [example(rng, 9, [4, 6, 8], [1, 0, nan]), example(rng, 5, [3, 4], [1, 1])],
        [example(rng, 12, [5, 11], [0, 1])],
    ]
    batch = batch_of(rows, 16, 8)
    cfg = LossConfig("prm", "bce", 1.0, 0.0)
    sums = eval_step(model, batch, cfg)
    ours = float(sums["step"] / sums["n_steps"])
    x_BTD = model(batch["ids"], batch["pos"], batch["visible_until"], batch["step_end"])
    logit_nC = torch.tensor(np.asarray(model.step_logits(x_BTD))).reshape(-1, 2)
    labels = np.where(batch["weight"] > 0, np.nan_to_num(batch["label"]), -100).astype(int)
    label_n = torch.tensor(labels).reshape(-1)
    theirs = torch.nn.functional.cross_entropy(logit_nC, label_n, ignore_index=-100)
    assert int(sums["n_steps"]) == 6
    np.testing.assert_allclose(ours, float(theirs), atol=1e-5)


def test_ternary_head_learns_ratings_and_falls_back_to_labels():
    logit_BTC = jnp.array([[[0.2, -1.0, 1.5], [0.2, -1.0, 1.5], [0.2, -1.0, 1.5]]])
    log_p = np.asarray(jax.nn.log_softmax(logit_BTC))[0, 0]
    batch = {"label": jnp.array([[1.0, 0.0, 1.0]]), "rating": jnp.array([[0.0, -1.0, nan]])}
    loss_BT, _ = step_losses(logit_BTC, batch, "ternary", LossConfig("prm", "bce", 1.0, 0.0))
    good = np.logaddexp(log_p[1], log_p[2])
    np.testing.assert_allclose(loss_BT[0], [-log_p[1], -log_p[0], -good], rtol=1e-5)


def steps_batch(label_BT, solution_BT, problem_BT=None, depth_BT=None):
    """The arrays that a step loss reads; nan: no label; solution -1: no step."""
    label_BT, solution_BT = np.array(label_BT, np.float32), np.array(solution_BT)
    batch = {"label": label_BT, "solution": solution_BT, "rating": np.full_like(label_BT, nan)}
    batch["weight"] = ~np.isnan(label_BT) * np.float32(1)
    batch["problem"] = solution_BT if problem_BT is None else problem_BT
    batch["depth"] = np.zeros_like(label_BT) if depth_BT is None else np.array(depth_BT, np.float32)
    return {name: jnp.asarray(x) for name, x in batch.items()}


def step_loss(name, z_BT, batch, **keys):
    cfg = LossConfig("prm", name, **{"pos_weight": 1.0, "lm_weight": 0.0, **keys})
    return jax.jit(STEP_LOSSES[name].f, static_argnums=2)(jnp.asarray(z_BT, jnp.float32), batch, cfg)


def test_bce_focal_and_mse_equal_pytorch_and_soft_labels_by_hand(rng):
    torch = pytest.importorskip("torch")
    z, y = rng.standard_normal((1, 40)) * 4, rng.random((1, 40))
    theirs = torch.nn.functional.binary_cross_entropy_with_logits(
        torch.tensor(z), torch.tensor(y), pos_weight=torch.tensor(2.5), reduction="none"
    )
    np.testing.assert_allclose(bce(jnp.asarray(z), jnp.asarray(y), 2.5), theirs, rtol=1e-5)
    y = np.round(y)
    batch, zt, yt = steps_batch(y, np.zeros((1, 40))), torch.tensor(z), torch.tensor(y)
    p = torch.sigmoid(zt)
    chance = torch.where(yt == 1, p, 1 - p)  # of what the label says
    bce_n = torch.nn.functional.binary_cross_entropy_with_logits(
        zt, yt, torch.where(yt == 1, 2.5, 1.0), reduction="none"
    )
    focal = (1 - chance) ** 1.5 * bce_n
    np.testing.assert_allclose(step_loss("focal", z, batch, gamma=1.5, pos_weight=2.5), focal, rtol=2e-5)
    mse = torch.nn.functional.mse_loss(p, yt, reduction="none")
    np.testing.assert_allclose(step_loss("mse", z, batch), mse, rtol=2e-5, atol=1e-9)
    # p = 3/4, y = .5: the errors are 1/4 and the halves of both classes.
    half, log3 = steps_batch([[0.5]], [[0]]), [[math.log(3)]]
    np.testing.assert_allclose(step_loss("mse", log3, half, pos_weight=3.0), [[2 / 16]], rtol=1e-6)
    expected = -0.5 * (0.25**2 * math.log(0.75) + 0.75**2 * math.log(0.25))
    np.testing.assert_allclose(step_loss("focal", log3, half), [[expected]], rtol=1e-6)


def test_pairwise_by_hand():
    """Problem 0 has solutions 0 and 1, problem 1 solution 2: pairs are of one problem and one depth."""
    solution, problem = [[0, 0, 1, 1, 1, 2, 2, -1]], np.array([[0, 0, 0, 0, 0, 1, 1, -1]])
    batch = steps_batch([[1, 0, 1, 1, 0, 1, 0, nan]], solution, problem, [[0, 1, 0, 1, 2, 0, 1, 0]])
    z = [[5.0, 2.0, 7.0, 3.0, -4.0, 1.0, 9.0, 9.0]]
    pair = math.log1p(math.exp(-1.0))  # step 3 (z = 3) above step 1 (z = 2), the one pair
    np.testing.assert_allclose(step_loss("pairwise", z, batch), [[0, pair, 0, pair, 0, 0, 0, 0]], rtol=1e-6)
    # Outcomes have no depth: each right solution with each wrong one, the mean over partners.
    batch = steps_batch([[1, 0, 0]], [[0, 1, 2]], np.zeros((1, 3), int))
    a, b = math.log1p(math.exp(-1.0)), math.log1p(math.exp(1.0))
    loss_BT = step_loss("pairwise", [[0.0, -1.0, 1.0]], batch)
    np.testing.assert_allclose(loss_BT, [[(a + b) / 2, a, b]], rtol=1e-6)


def authors_pqm(z, label, zeta):
    """PQM's published loss of one solution, term by term in float64: (mean, number of terms)."""
    bad = sum(math.exp(q + zeta) for q, y in zip(z, label, strict=True) if y == 0)
    terms, before = [-math.log(1 / (1 + bad))] if 0 in label else [], 1.0
    for q, y in zip(z, label, strict=True):
        if y == 1:
            terms.append(-math.log(math.exp(q) / (math.exp(q) + before + bad)))
            before += math.exp(q)
    return np.mean(terms), len(terms)


def test_pqm_equals_the_published_loss_solution_by_solution(rng):
    labels = [[1, 1, 0], [1, 1, 1, 1], [0], [1, 0, 1, 0, 0]]
    z = [list(rng.standard_normal(len(y)) * 3) for y in labels]
    owner = [k for k, y in enumerate(labels) for _ in y]
    # The row holds an unlabelled step inside solution 1 and an empty slot besides.
    z_T, label_T = [*itertools.chain(*z), 50.0, 50.0], [*itertools.chain(*labels), nan, nan]
    loss_T = np.asarray(step_loss("pqm", [z_T], steps_batch([label_T], [[*owner, 1, -1]]), zeta=4.0))[0]
    for k, (own, y) in enumerate(zip(z, labels, strict=True)):
        mean, n = authors_pqm(own, y, 4.0)
        assert loss_T[:-2][np.array(owner) == k].sum() == pytest.approx(mean * n, rel=1e-5)
    # By hand: good z = 0, then bad z = 0 with zeta = log 2: (1 + 1 + 2) / 1 and (1 + 2) / 1.
    by_hand = step_loss("pqm", [[0.0, 0.0]], steps_batch([[1, 0]], [[0, 0]]), zeta=math.log(2))
    np.testing.assert_allclose(by_hand, [[math.log(4), math.log(3)]], rtol=1e-6)


@pytest.mark.parametrize("name", STEP_LOSSES)
def test_step_losses_are_finite_at_extremes_and_blind_to_what_has_no_label(name):
    label, solution = [[1, 0, 1, nan, 0, 1, nan]], [[0, 0, 1, 1, 1, 2, -1]]
    batch = steps_batch(label, solution, np.where(np.array(solution) < 0, -1, 0))
    total = lambda z_BT, batch: jnp.where(batch["weight"] > 0, step_loss(name, z_BT, batch), 0.0).sum()
    for z in ([1e4, 1e4, -1e4, 1e4, -1e4, 0, 0], [-1e4, 1e4, -1e4, 0, 1e4, 1e4, -1e4], [0] * 7):
        loss, gradient = jax.value_and_grad(total)(jnp.array([z], jnp.float32), batch)
        assert np.isfinite(loss) and np.isfinite(gradient).all() and loss >= 0
        assert gradient[0, 3] == gradient[0, 6] == 0
    empty = steps_batch([[nan] * 4], [[-1] * 4])
    assert np.isfinite(jax.grad(total)(jnp.zeros((1, 4)), empty)).all()


def test_the_next_token_loss_by_hand():
    logit_BLV = jnp.log(jnp.array([[[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [1 / 3, 1 / 3, 1 / 3]]]))
    batch = {"ids": jnp.array([[0, 1, 2]]), "token_weight": jnp.array([[0.0, 2.0, 1.0]])}
    sums = next_token_sums(logit_BLV, *next_tokens(batch))
    np.testing.assert_allclose(sums, [-2 * math.log(0.25) - math.log(0.7), 1], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_of_a_vocabulary_have_its_sums_and_gradients(rng, monkeypatch, dtype):
    """Blocks of 3 of 10 places; a row has no target, and the last block begins in the one before it."""
    model = PRM(dataclasses.replace(TINY, lm_head=True, dtype=dtype), rngs=nnx.Rngs(0))
    batch = {name: x[0] for name, x in make_batch(rng, 4).items()}
    batch["token_weight"] = rng.random((4, 10)) * (rng.random((4, 10)) < [[0.9], [0.5], [0.5], [0]])
    cfg = LossConfig("lm", "bce", 1.0, 0.0)

    def computed():
        def sums(model):
            terms = loss_terms(model, batch, cfg)
            return terms["lm"], terms["right"]

        return jax.jit(jax.value_and_grad(sums, has_aux=True))(model)

    whole = computed()
    monkeypatch.setattr(vocabulary, "LOGITS", 4 * 3 * TINY.vocab)
    blocks = computed()
    assert blocks[0][1] == whole[0][1]
    for x, y in zip(jax.tree.leaves(blocks), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5 if dtype == "float32" else 2e-2 * np.abs(y).max())


def test_the_implicit_logit_equals_the_scorer_s_sum_of_step_scores(rng):
    """Two solutions in a row and one in another: training reads at the last mark what scoring sums."""
    policy, reference = (PRM(TINY, rngs=nnx.Rngs(seed)) for seed in (0, 1))
    examples = [example(rng, n, marks, [nan, 1]) for n, marks in ((9, [4, 8]), (6, [3, 5]), (12, [5, 9]))]
    examples = add_reference(examples, reference, 16, 2)
    batch = batch_of([examples[:2], examples[2:]], 16, 8)
    x_BLD = policy(batch["ids"], batch["pos"], batch["visible_until"])
    logit_BT = implicit_logit(policy.next_logprobs(x_BLD, batch["ids"]), batch, 0.3)
    for e, logit_T in zip(examples, (logit_BT[0, :2], logit_BT[0, 2:4], logit_BT[1, :2]), strict=True):
        n = len(e.ids_L)
        alone = {"ids": e.ids_L[None], "pos": np.arange(n)[None], "visible_until": np.full((1, n), n - 1)}
        score_T = step_ratios(0.3, np.asarray(log_ratio(policy, reference, alone))[0], e)
        np.testing.assert_allclose(logit_T, np.cumsum(score_T), atol=1e-5)
    # CE by hand: only the last marks, which have the outcome, count.
    sums = eval_step(policy, batch, LossConfig("implicit", "bce", 1.0, 0.0, beta=0.3))
    last = np.array([logit_BT[0, 1], logit_BT[0, 3], logit_BT[1, 1]])
    assert float(sums["step"]) == pytest.approx(np.log1p(np.exp(-last)).sum(), rel=1e-5)
    assert float(sums["n_steps"]) == 3


def make_batch(rng, rows, A=1):
    examples = [example(rng, 10, [4, 7, 9], [1, 0.25, 0]) for _ in range(rows)]
    examples[0] = example(rng, 10, [4, 7, 9], [1, nan, nan])  # micro-batches with unequal numbers of labels
    batch = batch_of([[e] for e in examples], 10, 3)
    return {k: v.reshape(A, rows // A, -1) for k, v in batch.items()}


OPT = OptimizerConfig(1e-2, 0.1, 0.1, 0.1, 0.9, 0.95, 1.0, "all", "float32")


def test_accumulation_equals_one_large_batch():
    """Means are over the labelled steps and next tokens of the whole batch, so 4 x 2 rows and 1 x 8 rows take the same
    step."""
    cfg = LossConfig("prm", "bce", 1.0, 0.5)
    after = []
    for A in (1, 4):
        model = PRM(TINY, rngs=nnx.Rngs(0))
        opt = make_optimizer(model, OPT, 10)
        batch = make_batch(np.random.default_rng(3), 8, A)
        for _ in range(3):
            model, opt, metrics = train_step(model, opt, batch, cfg, jax.random.key(0))
        numbers = [float(metrics[name]) for name in ("loss", "grad_norm", "accuracy")]
        after.append((numbers, jax.tree.leaves(nnx.state(model))))
    np.testing.assert_allclose(after[1][0], after[0][0], rtol=1e-3)
    for a, b in zip(after[1][1], after[0][1], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)  # Adam enlarges rounding where a gradient is nearly 0


@pytest.mark.parametrize("trains", ["all", "head"])
def test_train_step_moves_every_parameter_and_frozen_backbone_only_the_head(rng, trains):
    model, batch, cfg = PRM(TINY, rngs=nnx.Rngs(0)), make_batch(rng, 4), LossConfig("prm", "bce", 1.0, 0.0)
    before = jax.tree.map(np.asarray, nnx.state(model).to_pure_dict())
    opt = make_optimizer(model, dataclasses.replace(OPT, trainable=trains), 10)
    model, opt, _ = train_step(model, opt, batch, cfg, jax.random.key(0))
    moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), before, nnx.state(model).to_pure_dict())
    assert moved.pop("w_head") and moved.pop("b_head")
    assert set(jax.tree.leaves(moved)) == {trains == "all"}


def test_what_a_parameter_declares_decides_whether_it_decays_and_trains():
    """Whatever it is called: `gain` is a matrix, `w_bias` is none."""

    class Named(nnx.Module):
        def __init__(self, rngs):
            self.gain, self.w_bias = matrix(rngs, (2, 3), 1.0), nnx.Param(jnp.ones((2, 3)))
            self.classifier = nnx.Param(jnp.ones(3), in_head=True)

    model = Named(nnx.Rngs(0))
    opt = make_optimizer(model, dataclasses.replace(OPT, weight_decay=0.5, warmup=0.01), 10)
    updates = opt.update(model, jax.tree.map(jnp.zeros_like, nnx.state(model)))
    moved = {name: bool((x != 0).any()) for name, x in updates.items()}
    assert moved == {"gain": True, "w_bias": False, "classifier": False}
    assert nnx.state(model, TRAINABLE["head"]).keys() == {"classifier"}


@pytest.mark.parametrize(
    ("warmup", "steps", "expected"),
    [
        (0.5, 4, [0.5, 1.0, 0.775, 0.325]),  # then a cosine from 1 to 0.1 in three steps
        (0.0, 2, [1.0, 0.55]),
        (0.05, 1, [1.0]),
        (1.0, 4, [0.25, 0.5, 0.75, 1.0]),
    ],
)
def test_the_learning_rate_of_every_step_by_hand(warmup, steps, expected):
    schedule = make_schedule(dataclasses.replace(OPT, lr=1.0, warmup=warmup), steps)
    np.testing.assert_allclose([schedule(i) for i in range(steps)], expected, rtol=1e-6)


def test_the_plan_of_a_step_has_its_gradients_grows_with_its_tokens_and_compiles_for_it(rng, caplog):
    model, cfg = PRM(TINY, rngs=nnx.Rngs(0)), LossConfig("prm", "bce", 1.0, 0.0)
    opt, batch = make_optimizer(model, OPT, 10), make_batch(rng, 8)
    size = sum(x.nbytes for x in jax.tree.leaves(nnx.state(model))) / 1e9
    with jax.log_compiles():
        used = plan_memory(model, opt, batch, cfg)
        train_step(model, opt, batch, cfg, jax.random.key(0))
    assert caplog.text.count("Finished XLA compilation of jit(train_step)") == 1
    assert (used["weights"], used["moments"]) == pytest.approx((size, 2 * size), abs=1e-7)
    model = PRM(TINY, rngs=nnx.Rngs(0))
    more = plan_memory(model, make_optimizer(model, OPT, 10), make_batch(rng, 64), cfg)
    assert size < used["work"] < more["work"]


@pytest.mark.parametrize("work, returns", [(0.9, []), (1.1, [True])])
def test_on_cpu_a_plan_is_of_the_process_which_returns_what_large_steps_free(work, returns, monkeypatch):
    told = []
    monkeypatch.setattr(training, "return_large_blocks", lambda: told.append(True))
    monkeypatch.setattr(training, "held_memory", lambda: 2.0)
    monkeypatch.setattr(training, "plan_memory", lambda *_: {"weights": 0.2, "moments": 0.4, "work": work})
    with jax.set_mesh(jax.make_mesh((1, 1, 1), AXES, devices=jax.devices()[:1])):
        used = training.prepare_memory(None, None, None, None)
    assert used == pytest.approx({"weights": 0.2, "moments": 0.4, "work": work, "program": 1.4})
    assert told == returns


def test_no_implicit_transfers_in_the_train_step(tiny_model, rng):
    opt = make_optimizer(tiny_model, OPT, 10)
    batch, key, cfg = make_batch(rng, 4), jax.random.key(0), LossConfig("prm", "bce", 1.0, 0.0)
    model, opt, _ = train_step(tiny_model, opt, batch, cfg, key)
    with jax.transfer_guard("disallow"):
        train_step(model, opt, batch, cfg, key)
