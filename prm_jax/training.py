"""The optimiser, the jitted train step and the jitted evaluation step.

Dimension key: A accumulated micro-batches, B rows, L tokens, T step ends, C head outputs, V vocabulary."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from prm_jax.examples import Example
from prm_jax.heads import HEADS
from prm_jax.launch.config import BelowOne, NotNegative, Positive, Share, expect, one_of
from prm_jax.launch.devices import held_memory, return_large_blocks
from prm_jax.launch.mesh import constrain, make_sharded, replicate, shardings
from prm_jax.launch.progress import progress
from prm_jax.launch.sharding import platform
from prm_jax.losses import ACROSS_SOLUTIONS, STEP_LOSSES, implicit_logit, next_tokens
from prm_jax.model import PRM, at_step_ends, read_logits
from prm_jax.vocabulary import vocabulary_sums


@dataclasses.dataclass(frozen=True)
class LossConfig:
    objective: Literal["prm", "orm", "implicit", "lm"]
    step: Annotated[str, one_of(STEP_LOSSES)]
    pos_weight: Positive  # weight of the good class in the step loss
    # of the next-token loss beside it (Cobbe et al. 2021: joint); null: train.py
    lm_weight: NotNegative | None
    gamma: NotNegative = 2.0  # of focal
    zeta: NotNegative = 4.0  # of pqm: by how much a bad step's Q must be below the others
    beta: Positive = 0.05  # of objective=implicit: log-odds a nat of log policy / reference

    def __post_init__(self):
        if STEP_LOSSES[self.step].ranks:
            expect(self.pos_weight == 1, "loss.pos_weight", self.pos_weight, f"1 with loss.step={self.step}")


def in_head(_, x):
    return x.get_metadata("in_head", False)


LARGE_WORK = 1  # GB, from which on a step keeps no freed memory
# NNX filters of the parameters that train, named once: they are part of the optimiser's type.
TRAINABLE = {"all": nnx.Param, "head": in_head, "lora": nnx.Any(nnx.LoRAParam, in_head)}


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    lr: Positive  # peak learning rate of AdamW
    warmup: Share  # of the steps with a linear warm-up, from the peak divided by their number
    final_lr: Share  # of the peak, at which the cosine ends
    weight_decay: NotNegative
    b1: BelowOne
    b2: BelowOne
    clip: Positive  # largest global gradient norm
    trainable: Annotated[str, one_of(TRAINABLE)]
    # how the first moment is stored; both moments are computed in float32
    mu_dtype: Literal["float32", "bfloat16"]


def make_schedule(cfg: OptimizerConfig, steps: int):
    """Learning rate of step i, counted from 0: lr (i + 1) / warm-up steps, then a cosine; never 0."""
    warmup = max(round(cfg.warmup * steps), 1)
    end = cfg.lr * cfg.final_lr
    return optax.warmup_cosine_decay_schedule(cfg.lr / warmup, cfg.lr, warmup - 1, max(steps, warmup), end)


def in_float32(model: PRM) -> PRM:
    """The model with parameters in float32, in which alone small updates add up."""
    return make_sharded(functools.partial(jax.tree.map, lambda x: x.astype(jnp.float32)), model)


def make_optimizer(model: PRM, cfg: OptimizerConfig, steps: int) -> nnx.Optimizer:
    """The optimiser of the parameters that `cfg.trainable` names, on the mesh as they are."""
    return make_sharded(starter(make_transform(model, cfg, steps), cfg.trainable), model)


@functools.lru_cache
def starter(tx: optax.GradientTransformation, trainable: str):
    """What makes the optimiser of a model; one object for equal arguments, so that JAX compiles it once."""
    return lambda model: nnx.Optimizer(model, tx, wrt=TRAINABLE[trainable])


def make_transform(model: PRM, cfg: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """AdamW with clipping, warm-up and cosine; weight decay on the parameters that declare it, the matrices.
    The usual `ndim > 1` would decay norm gains and biases too, which are stacked over layers."""
    trained = nnx.state(model, TRAINABLE[cfg.trainable])
    decays = jax.tree.map(
        lambda x: x.get_metadata("decays", False), trained, is_leaf=lambda x: isinstance(x, nnx.Variable)
    )
    leaves, structure = jax.tree.flatten(decays)
    return transform_of(cfg, steps, tuple(leaves), structure)


@functools.lru_cache
def transform_of(cfg: OptimizerConfig, steps: int, leaves: tuple, structure) -> optax.GradientTransformation:
    """The transform by the leaves and the structure of its weight-decay mask. It is a part of the train
    step's type, and one object for equal arguments: jobs that differ in their seed compile one step."""
    options = {"mu_dtype": cfg.mu_dtype, "weight_decay": cfg.weight_decay}
    options["mask"] = jax.tree.unflatten(structure, leaves)
    adamw = optax.adamw(make_schedule(cfg, steps), cfg.b1, cfg.b2, **options)
    return optax.chain(optax.clip_by_global_norm(cfg.clip), adamw)


def device_bytes(tree) -> int:
    """Bytes of a device of the mesh in use that the arrays of a model or optimiser take, real or abstract."""
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(shardings(tree)), strict=True)
    return sum(math.prod(layout.shard_shape(x.shape)) * x.dtype.itemsize for x, layout in pairs)


def count_targets(batch):
    """(labelled steps, next-token targets) of a batch; losses are means over the whole global batch."""
    return (batch["weight"] > 0).sum(), (batch["token_weight"] != 0).sum()


def loss_terms(model: PRM, batch, cfg: LossConfig, k_dropout=None, logits: bool = False):
    """Sums over one micro-batch of step loss, next-token loss and right predictions, to be divided by
    `count_targets` of the global batch; with `logits` also logit_BT of its steps. n: L, or T."""
    has_lm = cfg.objective == "lm" or cfg.lm_weight > 0
    all_tokens = has_lm or cfg.objective == "implicit"
    read_BT = None if all_tokens else batch["step_end"]
    x_BnD = model(batch["ids"], batch["pos"], batch["visible_until"], read_BT)
    step_sum = lm_sum = right = jnp.zeros(())
    step_logits = {}
    if cfg.objective != "lm":
        if cfg.objective == "implicit":
            head = "scalar"  # one logit a step
            next_logp_BL = model.next_logprobs(x_BnD, batch["ids"])
            logit_BTC = implicit_logit(next_logp_BL, batch, cfg.beta)[..., None]
        else:
            head = model.cfg.head
            x_BTD = at_step_ends(x_BnD, batch["step_end"]) if all_tokens else x_BnD
            logit_BTC = model.step_logits(x_BTD, k_dropout)
        loss_BT, logit_BT = step_losses(logit_BTC, batch, head, cfg)
        is_labelled_BT = batch["weight"] > 0
        step_sum = jnp.where(is_labelled_BT, loss_BT * batch["weight"], 0.0).sum()
        agrees_BT = (logit_BT > 0) == (batch["label"] >= 0.5)
        right = (agrees_BT & is_labelled_BT).sum()
        step_logits = {"logit": logit_BT} if logits else {}
    if has_lm:
        read = functools.partial(read_logits, model.cfg)
        lm_sum, right_tokens = vocabulary_sums(read, model.vocab_matrix(), x_BnD, *next_tokens(batch))
        right = right_tokens if cfg.objective == "lm" else right
    return {"step": step_sum, "lm": lm_sum, "right": right.astype(jnp.float32), **step_logits}


def step_losses(logit_BTC, batch, head: str, cfg: LossConfig):
    """(loss_BT, logit_BT): the step loss of a head's outputs, and the log-odds that each step is good."""
    loss = STEP_LOSSES[cfg.step]
    logit_BT = HEADS[head].log_odds(logit_BTC)
    arrays = {name: x for name, x in batch.items() if loss.together or name not in ACROSS_SOLUTIONS}
    loss_BT = loss.f(logit_BT, arrays, cfg)
    if loss.ratings and HEADS[head].rates:  # a human rating replaces the label
        is_rated_BT = ~jnp.isnan(batch["rating"])
        rating_BT = jnp.where(is_rated_BT, batch["rating"], -1.0)
        loss_BT = jnp.where(is_rated_BT, loss.ratings(logit_BTC, rating_BT, cfg.pos_weight), loss_BT)
    return loss_BT, logit_BT


def combine(terms, batch, cfg: LossConfig):
    """(loss, the numbers to log) from summed terms and the global batch."""
    n_steps, n_next = (jnp.maximum(n, 1) for n in count_targets(batch))
    step, lm = terms["step"] / n_steps, terms["lm"] / n_next
    loss = lm if cfg.objective == "lm" else step + cfg.lm_weight * lm
    accuracy = terms["right"] / (n_next if cfg.objective == "lm" else n_steps)
    return loss, {"loss": loss, "step_loss": step, "lm_loss": lm, "accuracy": accuracy}


@functools.partial(jax.jit, static_argnames="cfg", donate_argnames=("model", "opt"))
def train_step(model: PRM, opt: nnx.Optimizer, batch, cfg: LossConfig, key):
    """One update from a global batch of A micro-batches, arrays [A, B, ...]; returns (model, opt, metrics).
    Modules are pytrees: under jax.jit an in-place update is lost unless it is returned."""
    A = batch["ids"].shape[0]
    graph, trained, frozen = nnx.split(model, opt.wrt, ...)

    def micro_loss(trained, micro, k_dropout):
        terms = loss_terms(nnx.merge(graph, trained, frozen), micro, cfg, k_dropout)
        return combine(terms, batch, cfg)[0], terms  # each micro-batch's share of the global mean

    def accumulate(total, xs):
        micro, k_dropout = xs
        (_, terms), grads = jax.value_and_grad(micro_loss, has_aux=True)(trained, micro, k_dropout)
        return jax.tree.map(jnp.add, total, (constrain(grads), terms)), None

    keys = jax.random.split(jax.random.fold_in(key, opt.step[...]), A)
    zeros = (jax.tree.map(jnp.zeros_like, trained), dict.fromkeys(("step", "lm", "right"), jnp.zeros(())))
    (grads, terms), _ = jax.lax.scan(accumulate, zeros, (batch, keys))
    opt.update(model, grads)
    model, opt = constrain((model, opt))
    _, metrics = combine(terms, batch, cfg)
    n_tokens = (batch["visible_until"] < batch["ids"].shape[-1]).sum()
    counts = {"n_steps": count_targets(batch)[0], "n_tokens": n_tokens}
    return model, opt, {**metrics, "grad_norm": optax.tree.norm(grads), **counts}


def plan_memory(model: PRM, opt: nnx.Optimizer, batch, cfg: LossConfig) -> dict[str, float]:
    """GB of a device in a train step on such a batch, by what takes them, as XLA plans it: `work` is
    gradients and what the backward pass keeps. Arrays may be abstract. The first step does not compile
    again."""
    compiled = train_step.lower(model, opt, batch, cfg, jax.random.key(0)).compile()
    used = {"weights": device_bytes(model), "moments": device_bytes(opt.opt_state)}
    used["work"] = compiled.memory_analysis().temp_size_in_bytes
    return {name: x / 1e9 for name, x in used.items()}


def prepare_memory(model: PRM, opt: nnx.Optimizer, batch, cfg: LossConfig) -> dict[str, float]:
    """`plan_memory`; on CPU, whose devices share its memory, of this process, with what it holds beside the
    arrays (`program`: Python, data, the compiler). Large steps shall leave no holes behind."""
    used = plan_memory(model, opt, batch, cfg)
    if platform() != "cpu":
        return used
    used = {name: jax.sharding.get_mesh().local_mesh.size * gb for name, gb in used.items()}
    if used["work"] > LARGE_WORK:
        return_large_blocks()
    return used | {"program": held_memory() - used["weights"] - used["moments"]}


def add_reference(examples: Sequence[Example], model: PRM, row_tokens: int, rows: int) -> list[Example]:
    """The examples with `reference_L`, their tokens' log p under this model before it trains."""
    from prm_jax.scoring import LikelihoodScorer  # not above: only implicit PRMs read themselves

    # It scores ids, so what turns text into ids and names results stays open.
    about = {"tokenizer": None, "format": None, "label_kind": "unknown", "name": "reference"}
    scorer = LikelihoodScorer(model=model, batch_rows=rows, **about)
    results = []
    with progress("reference", len(examples), "solution", delay=5, leave=False) as bar:
        for start in range(0, len(examples), 64 * rows):
            some = examples[start : start + 64 * rows]
            for e, next_L in zip(some, scorer.read(some, row_tokens), strict=True):
                # of each token itself; the first has none
                results.append(dataclasses.replace(e, reference_L=np.roll(next_L, 1)))
            bar.update(len(some))
    return results


@functools.partial(jax.jit, static_argnames="cfg")
def eval_step(model: PRM, batch, cfg: LossConfig):
    """`loss_terms` of one batch [B, ...] without dropout, and the counts to divide them by."""
    n_steps, n_next = count_targets(batch)
    terms = loss_terms(model, batch, cfg, logits=True)
    return jax.tree.map(replicate, terms) | {"n_steps": n_steps, "n_next": n_next}
