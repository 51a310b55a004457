"""A verifier by its name: the scorer of a checkpoint, a critic, or one that needs no folder (exact checkers, equations, noise)."""

import functools
import re
from typing import NamedTuple

from prm_jax import InputError, tasks
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.critics.critic import Critic
from prm_jax.critics.writers import LocalWriter, RemoteWriter
from prm_jax.data.formats import Format, read_format
from prm_jax.data.splits import data_config
from prm_jax.launch.config import CONF
from prm_jax.scorers import CheckerScorer, EquationScorer, NoisyChecker, RandomScorer

# Scorers that need no folder: the embedded task's exact checker and exact values, these with faults (their share of missed
# errors and d', as in checker-0.05-3), the equations of a text, and noise.
BUILT_IN = re.compile(r"equations|random|(checker|values)(?:-(0|1|0?\.\d+)-(\d+(?:\.\d+)?))?")


class OpenOptions(NamedTuple):
    """How a verifier is opened; the keys of the same names in conf/evaluate.yaml say more."""

    which: str = "best"
    format: Format | None = None
    dtype: str = "float32"
    rows: int = 8
    tokens: int | None = None
    reference: str | None = None
    seed: int = 0  # of noise, and of which errors a checker with faults misses
    data: object = None  # a data section: the embedded task that values are of
    task: str | None = None  # the embedded task whose checker is asked; None: the one that `files` name
    files: tuple[str, ...] = ()


def open_verifier(name: str, how: OpenOptions):
    """The Scorer of one checkpoint argument."""
    if name == "equations":
        return EquationScorer()
    if name == "random":
        return RandomScorer(how.seed)
    if built_in := BUILT_IN.fullmatch(name):
        kind, *faults = built_in.groups()
        return exact_scorer(name, kind, [float(x) for x in faults if x], how)
    if named := critic_of(name):
        how, name = how._replace(format=named[0]), named[1]
    if how.format is None or how.format.critic is None:
        if is_served(name):
            expected = "format=judge, genprm, r_prm or thinkprm"
            raise InputError(f"checkpoint: {name}: is a server, which is asked as a critic: {expected}")
        return open_checkpoint(name, how.which, how.format, how.dtype, how.reference).scorer(how.rows, how.tokens)
    if is_served(name):
        return Critic(RemoteWriter(name, how.format), how.format, how.seed)
    loaded = open_checkpoint(name, how.which, None, how.dtype)
    if loaded.objective != "lm":  # beside critics a PRM brings its own format
        print(f"format      {name}: has a step head, so it is no critic; it is read with its own format")
        return loaded.scorer(how.rows, how.tokens)
    return Critic(LocalWriter(loaded, name, how.format, how.rows, how.tokens), how.format, how.seed)


def is_served(name: str) -> bool:
    """Whether a verifier is behind a server: a critic, which needs no folder."""
    return name.startswith(("http://", "https://"))


def critic_of(name: str) -> tuple[Format, str] | None:
    """(format, checkpoint) of a name such as lab_critic:RUN or judge:http://HOST: a critic where others are read otherwise."""
    found = re.fullmatch(r"(\w+):(?!//)(.+)", name)
    if not found or not (CONF / "format" / f"{found[1]}.yaml").exists():
        return None
    fmt = read_format(found[1])
    return (fmt, found[2]) if fmt.critic else None


def needs_folder(name: str) -> bool:
    """Whether a name is that of a folder, which can be looked for before another verifier has worked for an hour."""
    return not (BUILT_IN.fullmatch(name) or is_served(name) or critic_of(name))


def exact_scorer(name: str, kind: str, faults: list[float], how: OpenOptions):
    """The exact checker or the exact values of the embedded task, with `faults` (missed, d') where there are two."""
    if kind == "checker":
        task = tasks.of_files(how.files, how.task)
        judge = functools.partial(tasks.are_right if faults else tasks.step_labels, task)
        return NoisyChecker(judge, *faults, how.seed, name) if faults else CheckerScorer(judge)
    if how.data is None or how.data.name not in tasks.TASKS:
        expected = "data=chain or data=countdown"
        raise InputError(f"checkpoint: {name} needs the embedded task that it knows the values of: {expected}")
    data = data_config(how.data)
    values = functools.partial(tasks.TASKS[data.name].values, data.task)
    about = {"name": name, "label_kind": "value"}
    return NoisyChecker(values, *faults, how.seed, **about) if faults else CheckerScorer(values, **about)
