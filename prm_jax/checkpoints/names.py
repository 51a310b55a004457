"""Opens a verifier by its name.

FOLDER, owner/model, embedded_prm       a run of ours, a Hugging Face folder, a hub name, a shipped model
math_shepherd:FOLDER, judge:http://...  one of these or a server, read with its own format
checker, values, checker-0.05-3         the embedded task's exact checker and values, with faults: missed, d'
policy, policy:FOLDER                   the likelihood under the embedded task's policy, or a language model
progress:RUN                            a policy of prm_jax.rl over the one it began as: a PRM without labels
random                                  noise
mean:[A,B,C]                            an entry of ENSEMBLES, of members with names like these
"""

import dataclasses
import functools
import os
import re
from pathlib import Path
from typing import Literal

from omegaconf import DictConfig

from prm_jax import tasks
from prm_jax.checkpoints.open import note_ignored, open_checkpoint
from prm_jax.critics.critic import LocalCritic, RemoteCritic
from prm_jax.critics.prompts import with_critic
from prm_jax.data.splits import data_config
from prm_jax.formats import Format, policy_format, read_format
from prm_jax.launch.config import CONF, Count, Seed, expect, parse
from prm_jax.launch.run_folder import run_config
from prm_jax.scorers import ENSEMBLES, CheckerScorer, EnsembleScorer, NoisyChecker, RandomScorer
from prm_jax.scoring import LikelihoodScorer, RatioScorer

SERVER = ("http://", "https://")
BUILT_IN = re.compile(
    r"random|policy(?::.+)?|progress:.+|(checker|values)(?:-(0|1|0?\.\d+)-(\d+(?:\.\d+)?))?"
)
ENSEMBLE = re.compile(rf"({'|'.join(ENSEMBLES)}):\[(.*)\]")


@dataclasses.dataclass(frozen=True)
class OpenOptions:
    """How to open a verifier; conf/evaluate.yaml explains the keys of the same names."""

    which: Literal["best", "latest"] = "best"
    format: Format | None = None
    dtype: str = "float32"
    rows: Count = 8
    tokens: Count | None = None
    reference: str | None = None
    seed: Seed = 0  # of noise, and of the errors that a checker with faults misses
    data: DictConfig | None = None  # of an embedded task, for exact values and for its policy's likelihood
    task: str | None = None  # embedded task, for the checker; None: the one that `files` name
    files: tuple[str, ...] = ()


def with_format(name: str) -> tuple[Format | None, str]:
    """(format or None, checkpoint) of a name, which may begin with its format."""
    match = re.fullmatch(r"(\w+):(?!//)(.+)", name)
    is_format = match and (CONF / "format" / f"{match[1]}.yaml").exists()
    return (read_format(match[1]), match[2]) if is_format else (None, name)


def members_of(name: str, bare: bool = True) -> list[str]:
    """The members of an ensemble; another verifier itself. `bare`: without their formats."""
    members = [name]
    if ensemble := ENSEMBLE.fullmatch(name):
        members = [member.strip() for member in ensemble[2].split(",")]
        is_full = len(members) > 1 and all(members)
        expect(is_full, "checkpoint", name, f"at least two verifiers, {ensemble[1]}:[A,B]")
    return [with_format(member)[1] for member in members] if bare else members


def folders_of(name: str) -> list[str]:
    """The models of a verifier: those of its members, also behind `policy:` and `progress:`."""
    return [re.sub("^(policy|progress):", "", member) for member in members_of(name)]


def needs_folder(name: str) -> bool:
    """Whether a verifier is one that needs a folder."""
    is_other = BUILT_IN.fullmatch(name) or ENSEMBLE.fullmatch(name) or name.startswith(SERVER)
    return not (is_other or with_format(name)[0])


def open_verifier(name: str, options: OpenOptions):
    """The Scorer of one checkpoint argument."""
    if ensemble := ENSEMBLE.fullmatch(name):
        names = enumerate(members_of(name, bare=False))  # noise of its own for each
        members = [open_verifier(x, dataclasses.replace(options, seed=options.seed + i)) for i, x in names]
        shown = f"{ensemble[1]}:[{','.join(member.name for member in members)}]"
        return EnsembleScorer(shown, ensemble[1], members)
    if name == "random":
        return RandomScorer(options.seed)
    if name == "policy" or name.startswith("policy:"):
        return likelihood_scorer(name, options)
    if name.startswith("progress:"):
        return progress_scorer(name, options)
    if built_in := BUILT_IN.fullmatch(name):
        kind, *faults = built_in.groups()
        return exact_scorer(name, kind, [float(x) for x in faults if x], options)
    fmt, name = with_format(name)
    fmt = fmt or options.format
    is_server = name.startswith(SERVER)
    if fmt is None or fmt.critic is None:
        expected = "format=judge, genprm or thinkprm: a server is asked as a critic"
        expect(not is_server, f"{name}: format", fmt and fmt.name, expected)
        loaded = open_checkpoint(name, options.which, fmt, options.dtype, options.reference)
        hint = f"a step head; policy:{name} is its likelihood, format= and reference= an implicit PRM"
        expect(loaded.objective != "lm", loaded.name, "a language model (objective=lm)", hint)
        return loaded.scorer(options.rows, options.tokens)
    fmt = with_critic(fmt)
    if is_server:
        return RemoteCritic(name, fmt, options.seed)
    loaded = open_checkpoint(name, options.which, None, options.dtype)
    if loaded.objective != "lm":  # a PRM among critics keeps its own format
        print(f"format      {name}: has a step head, so it is no critic; it is read with its own format")
        return loaded.scorer(options.rows, options.tokens)
    return LocalCritic(loaded, name, fmt, options.rows, options.tokens, options.seed)


def likelihood_scorer(name: str, options: OpenOptions) -> LikelihoodScorer:
    """The log-odds of each step's own probability under a language model."""
    path = name.partition(":")[2] or (options.data or {}).get("policy")
    expect(path, "checkpoint", name, "policy:NAME, where the data have no policy of their own")
    loaded = open_checkpoint(path, options.which, None, options.dtype)
    expect(loaded.objective == "lm", "checkpoint", name, "a language model, not a verifier")
    requested = options.format
    # None that a language model could be read with: it may be that of a verifier beside this one.
    is_other = requested is None or requested.critic or requested.head or requested.name == "auto"
    plain = read_format("plain", **(requested and requested.changes or {}))
    fmt = loaded.format or (plain if is_other else requested)
    if requested and not requested.changes:
        note_ignored(fmt, requested, name)
    fmt = policy_format(fmt, loaded.tokenizer)
    loaded = dataclasses.replace(loaded, format=fmt, name=name)
    return loaded.scorer(options.rows, options.tokens)


def progress_scorer(name: str, options: OpenOptions) -> RatioScorer:
    """log pi / pi_ref of each step's tokens, of a policy of RL and the one that it began as (2606.26080)."""
    path = os.path.expanduser(name.partition(":")[2])
    run = run_config(Path(path), f"{name}: ")
    expect("policy" in run, "checkpoint", name, "progress:RUN of python -m prm_jax.rl")
    form = {"head": "implicit", "score": "log_ratio", "label_kind": "advantage"}
    fmt = dataclasses.replace(parse(run.format, Format, f"{path}: format"), **form)
    loaded = open_checkpoint(path, options.which, None, options.dtype)
    first = open_checkpoint(run.policy, run.which, None, options.dtype)
    about = {"objective": "prm", "label_kind": fmt.label_kind, "reference": first.model, "name": name}
    loaded = dataclasses.replace(loaded, format=policy_format(fmt, loaded.tokenizer), **about)
    return loaded.scorer(options.rows, options.tokens)


def exact_scorer(name: str, kind: str, faults: list[float], options: OpenOptions):
    """The exact checker or values of the embedded task, with `faults` (missed, d') if there are two."""
    if kind == "checker":
        task = tasks.read_task(options.files, options.task)
        judge = task.are_right if faults else task.step_labels
    else:
        is_task = options.data is not None and "task" in options.data
        expected = " or ".join(f"data={task}" for task in tasks.TASKS)
        expect(is_task, f"checkpoint={name}: data", options.data and options.data.name, expected)
        data = data_config(options.data)
        judge = functools.partial(tasks.find_task(data.name).values, data.task)
    label_kind = "correctness" if kind == "checker" else "value"
    if faults:
        return NoisyChecker(judge, *faults, options.seed, name=name, label_kind=label_kind)
    return CheckerScorer(judge, name, label_kind)
