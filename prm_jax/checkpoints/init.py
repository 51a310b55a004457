"""Opens what `init` of train.py names: its optimiser, its format, its tokenizer and its weights.

`cfg` is the TrainConfig of train.py, `raw_cfg` the configuration that it is parsed from."""

import dataclasses
import functools
import typing
from pathlib import Path
from typing import Annotated

from flax import nnx
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from prm_jax import InputError
from prm_jax.checkpoints import hf, hf_config
from prm_jax.checkpoints.folders import SHIPPED, is_run, locate
from prm_jax.checkpoints.orbax import read_model, restore_run
from prm_jax.checkpoints.tokenizer import load_tokenizer, train_tokenizer
from prm_jax.formats import Format, policy_format
from prm_jax.heads import HEADS
from prm_jax.launch.config import CONF, Count, expect, one_of, parse
from prm_jax.launch.devices import choose_dtype, choose_remat
from prm_jax.launch.mesh import make_sharded
from prm_jax.launch.run_folder import run_config, section
from prm_jax.lora import attach
from prm_jax.model import PRM, REMAT, ModelConfig, cast_backbone

HINTS = typing.get_type_hints(ModelConfig)
FIELDS = {name: Count if hint in (int, int | None) else hint for name, hint in HINTS.items()}
FIELDS["head"] = Annotated[str, one_of(HEADS)]
FIELDS["remat"] = Annotated[str, one_of(("auto", "none", *REMAT))]
del FIELDS["lm_head"]  # which the objective decides
# The section `model` of a run: any field of ModelConfig, where null or absent means as in config.json.
# new_head: whether a checkpoint without a step head gets a random one.
choices = [(name, hint | None, None) for name, hint in FIELDS.items()]
ModelChoice = dataclasses.make_dataclass("ModelChoice", [*choices, ("new_head", bool, True)], frozen=True)
ModelChoice.is_open = True  # conf/train.yaml lists those that are often set


def fill_optimizer(raw_cfg, name: str):
    """Fills the keys of `optimizer` that are null by what trains, a run by what it began as, and says so of a
    Hugging Face model: at the small models' 1e-3 it would forget all that it knows."""
    origin = name
    while is_run(origin):
        stored = run_config(Path(origin))
        origin = stored.get("init") or stored.policy  # the latter of a run of prm_jax.rl
    group = "small" if origin in ("random", *SHIPPED) else "finetune"
    chosen = OmegaConf.load(CONF / f"optimizer/{group}.yaml")
    filled = {key: x for key, x in chosen.items() if raw_cfg.optimizer[key] is None}
    raw_cfg.optimizer.update(filled)
    if filled and group == "finetune":
        numbers = ", ".join(f"{key} {x:g}" for key, x in filled.items())
        print(f"optimizer   {group}, since {origin} is a Hugging Face model: {numbers}")


def fill_format(raw_cfg):
    """Takes the format of the run that `init` names, whose model knows that text, unless one is chosen."""
    is_chosen = any(section(word) == "format" for word in HydraConfig.get().overrides.task)
    if is_chosen or not is_run(raw_cfg.init):
        return
    run, tokenizer = run_config(Path(raw_cfg.init)), load_tokenizer(locate(raw_cfg.init))
    fmt = parse(run.format, Format, "format")
    if run.objective == "lm":
        fmt = policy_format(fmt, tokenizer)
    raw_cfg.format = dataclasses.asdict(fmt)
    print(f"format      as {raw_cfg.init} has it: {fmt.name}, chat {fmt.chat}")


def make_tokenizer(cfg, solutions):
    if cfg.tokenizer == "new":
        why = f"another, or init=random: the embeddings of {cfg.init} are of its own tokens"
        expect(cfg.init == "random", "tokenizer", "new", why)
        texts = (text for s in solutions for text in (s.problem, *s.steps))
        return train_tokenizer(texts, cfg.tokenizer_vocab)
    name = cfg.tokenizer or ("embedded" if cfg.init == "random" else cfg.init)
    return load_tokenizer(locate(name))


def read_model_config(cfg, tokenizer) -> ModelConfig:
    """The configuration of the checkpoint that `init` names with the fields that `model` sets."""
    is_random = cfg.init == "random"
    is_lm = cfg.objective in ("lm", "implicit")
    if is_run(cfg.init):
        original = read_model(Path(cfg.init))
    else:
        folder = locate("embedded" if is_random else cfg.init)
        original = hf_config.model_config(hf_config.read_config(folder), str(folder / "config.json"))
    if is_random:
        original = dataclasses.replace(original, vocab=-(-len(tokenizer) // 64) * 64)
    chosen = {name: x for name in FIELDS if (x := getattr(cfg.model, name)) is not None}
    for name, x in chosen.items():
        has = getattr(original, name)
        is_free = is_random or x == has or name in hf_config.ELSEWHERE
        expect(is_free, f"model.{name}", x, f"{has}, as {cfg.init} has, or init=random")
    chosen["dtype"] = choose_dtype(chosen.get("dtype", "auto"))
    chosen["remat"] = choose_remat(chosen.get("remat", "none"))
    chosen |= {"lm_head": is_lm or cfg.loss.lm_weight > 0} | ({"head": "none"} if is_lm else {})
    try:
        model_cfg = dataclasses.replace(original, **chosen)
    except AssertionError as error:
        raise InputError(f"model.{error}") from error
    vocab = model_cfg.vocab
    n = len(tokenizer)
    expect(n <= vocab, "model.vocab", vocab, f"an embedding for each of the tokenizer's {n} tokens")
    return model_cfg


def make_model(cfg, model_cfg: ModelConfig) -> PRM:
    """The model of the checkpoint that `init` names, or one with random weights."""
    is_frozen = cfg.optimizer.trainable != "all"
    if cfg.init == "random":
        model = make_sharded(initialiser(model_cfg, cfg.seed))
        model = make_sharded(cast_backbone, model, donate=0) if is_frozen else model
    elif is_run(cfg.init):
        dtype = model_cfg.dtype if is_frozen else "float32"
        model = start_from_run(Path(cfg.init), model_cfg, cfg.model.new_head, cfg.seed, dtype)
    else:
        dtype = "compute" if is_frozen else "float32"
        model = hf.load(locate(cfg.init), model_cfg, cfg.model.new_head, cfg.seed, dtype)
    if cfg.optimizer.trainable == "lora":
        model = make_sharded(lambda model: attach(model, cfg.lora, cfg.seed), model, donate=0)
    return model


@functools.lru_cache
def initialiser(cfg: ModelConfig, seed: int):
    """What makes a random model; one object for equal arguments, so that JAX compiles it once."""
    return lambda: PRM(cfg, rngs=nnx.Rngs(seed))


def start_from_run(folder: Path, cfg: ModelConfig, new_head: bool, seed: int, dtype: str) -> PRM:
    """A model of shape `cfg` with the weights of a run's best checkpoint, its backbone stored in `dtype`. A
    step head that the run lacks starts at random."""
    trained = restore_run(folder, "best", dtype)[0]
    has = trained.cfg.head
    is_new = has == "none" and new_head
    expect(cfg.head in ("none", has) or is_new, "model.head", cfg.head, f"{has}, as {folder} has")
    model = make_sharded(initialiser(cfg, seed))
    known, wanted = nnx.state(trained), nnx.state(model)
    has_logits = "unembed" in known or "unembed" not in wanted
    expect(has_logits, "init", str(folder), "a run with a vocabulary projection, such as one of objective=lm")
    nnx.update(model, {key: known[key] for key in wanted if key in known})
    return model
