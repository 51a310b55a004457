"""Scores, ranks, trains and evaluates from Python: what `import prm_jax` offers, for notebooks and programs."""

import contextlib
import dataclasses
import re
import runpy
import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import hydra
import numpy as np
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from prm_jax import InputError
from prm_jax.checkpoints.verifiers import OpenOptions, open_verifier
from prm_jax.data.units import UNITS, probability
from prm_jax.evals.verifiers import check_there
from prm_jax.formats import read_format
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import CONF, ROOT, expect, parse
from prm_jax.model import choose_dtype
from prm_jax.protocols import Scorer
from prm_jax.rerank import AGGREGATORS, default_aggregator, solution_scores

Steps = Sequence[str]  # a solution


def load(
    checkpoint: str | Path | None = None,
    format: str | dict = "auto",
    aggregator: str | None = None,
    **options,
) -> "Verifier":
    """Opens a verifier by the name that every command takes as `checkpoint`: a run's folder, a Hugging Face folder or hub
    name, ...; None: the newest finished run under runs/. `format` (a name, or {"name": NAME, KEY: VALUE}) and the fields of
    OpenOptions (`which`, `dtype`, `rows`, `reference`, ...) are the keys of conf/evaluate.yaml; `aggregator`, a name of
    rerank.AGGREGATORS, makes one score of a solution's, by default `last` for an outcome model and else `min`."""
    expect(aggregator in (None, *AGGREGATORS), "aggregator", aggregator, ", ".join(AGGREGATORS))
    changes = format if isinstance(format, dict) else {"name": format}
    options = parse(options, OpenOptions, format=read_format(**{"name": "auto"} | changes))
    cli.use_compilation_cache()
    name = str(run_folder.newest_run()) if checkpoint is None else str(checkpoint)
    check_there(name, options.which)
    options = dataclasses.replace(options, dtype=choose_dtype(options.dtype))
    return Verifier(open_verifier(name, options), aggregator)


class Verifier:
    """A verifier that `load` has opened. Its `scorer` (protocols.Scorer) says what "good" means (`label_kind`: correctness,
    value, advantage or unknown) and what it is called (`name`). Each method takes one problem, or a list of problems with
    a list of what belongs to each, which are scored together and give a list."""

    def __init__(self, scorer: Scorer, aggregator: str | None = None):
        self.scorer, self.aggregator = scorer, aggregator or default_aggregator(scorer)

    def __repr__(self):
        return f"Verifier({self.scorer.name!r}, {self.scorer.label_kind} labels, ranks by {self.aggregator})"

    def score(
        self, problem: str | Sequence[str], steps: Steps | Sequence[Steps]
    ) -> np.ndarray | list[np.ndarray]:
        """The probability that each step is good, float64 p_T; of an outcome model that the answer will be right, read at
        each step. `log_odds` keeps apart what rounds to 1."""
        if isinstance(problem, str):
            return self.score([problem], [steps])[0]
        return [probability(logit_T) for logit_T in self.log_odds(problem, steps)]

    def log_odds(
        self, problem: str | Sequence[str], steps: Steps | Sequence[Steps]
    ) -> np.ndarray | list[np.ndarray]:
        """log p / (1 - p) of each step's probability, logit_T, as the model gives it."""
        if isinstance(problem, str):
            return self.log_odds([problem], [steps])[0]
        problem, steps = as_texts("problem", problem, "problems"), as_list("steps", steps, "solutions")
        expect(
            len(problem) == len(steps),
            "steps",
            f"{len(steps)} solutions",
            f"{len(problem)}, one for each problem",
        )
        steps = [tuple(as_texts("steps", solution, "steps")) for solution in steps]
        rows = list(zip(problem, steps, strict=True))
        return [UNITS[self.scorer.unit].log_odds(score_T) for score_T in self.scorer.score(rows)]

    def rank(
        self, problem: str | Sequence[str], solutions: Sequence[Steps] | Sequence[Sequence[Steps]]
    ) -> list[int] | list[list[int]]:
        """Indices of a problem's solutions, each a list of steps, by their aggregated scores, best first; equal ones keep
        their order."""
        if isinstance(problem, str):
            return self.rank([problem], [solutions])[0]
        problem, lists = (
            as_list("problem", problem, "problems"),
            as_list("solutions", solutions, "lists of solutions"),
        )
        solutions = [as_list("solutions", some, "solutions") for some in lists]
        expect(
            len(problem) == len(solutions),
            "solutions",
            f"{len(solutions)} lists",
            f"{len(problem)}, one a problem",
        )
        rows = [
            (text, steps) for text, candidates in zip(problem, solutions, strict=True) for steps in candidates
        ]
        logits = self.log_odds([text for text, _ in rows], [steps for _, steps in rows])
        scores = iter(-solution_scores(logits, self.aggregator, rounded=True))
        return [np.argsort([next(scores) for _ in some], kind="stable").tolist() for some in solutions]


def as_texts(key: str, texts: Collection[str], what: str) -> list[str]:
    texts = as_list(key, texts, what)
    is_right = all(isinstance(text, str) and not re.search("[\ud800-\udfff]", text) for text in texts)
    expect(is_right, key, texts, f"a list of {what}, each a text in Unicode")
    return texts


def as_list(key: str, values: Collection, what: str) -> list:
    # No iterator, which can be read only once, and no table; a column of one (pandas) is a list.
    is_list = isinstance(values, Collection) and getattr(values, "ndim", 1) == 1
    expect(is_list and not isinstance(values, str | bytes | Mapping | set), key, values, f"a list of {what}")
    return list(values)


def train(*overrides: str, **keys) -> Path:
    """Trains as `python train.py` does, in this process, and returns the run's folder. Overrides are those of the command
    line, as texts ("optimizer.lr=1e-3") or keywords (steps=100, data="jsonl", optimizer={"lr": 1e-3}, hydra={"run":
    {"dir": "runs/mine"}}); conf/train.yaml lists them. One that cannot be read, like all bad input, raises InputError, and what
    the system refuses OSError."""
    return run_command("train", overrides, keys)


def evaluate(*overrides: str, **keys) -> dict:
    """Evaluates as `python evaluate.py` does, in this process, and returns what results.json holds, with the `folder`
    of it and the figures. Overrides are given as to `train`; conf/evaluate.yaml and conf/task list them."""
    folder = run_command("evaluate", overrides, keys)
    return run_folder.read_json(folder / "results.json") | {"folder": str(folder)}


def run_command(name: str, overrides: Sequence[str], keys: dict) -> Path:
    """Runs the `main` of train.py or evaluate.py with a configuration of its own and returns its folder. Neither the
    working folder nor sys.argv change, and the Hydra of a calling program is as it was."""
    words = [*overrides, *(word for key, value in keys.items() for word in as_overrides(key, value))]
    for word in words:
        expect(isinstance(word, str), "overrides", word, "texts, KEY=VALUE")
    main = runpy.run_path(str(ROOT / f"{name}.py"))["main"].__wrapped__  # these files lie outside the package
    cli.use_compilation_cache()
    before = HydraConfig.instance().cfg
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = hydra.compose(name, words, return_hydra_config=True)
        folder = Path(cfg.hydra.run.dir).resolve()
        cfg.hydra.runtime.output_dir = str(folder)
    except (hydra.errors.HydraException, OmegaConfBaseException) as error:
        raise InputError(cli.one_line(error, name, words).removeprefix("error: ")) from None
    except ValueError as error:  # Hydra's own, such as for data=3
        raise InputError(f"{' '.join(words)}: Hydra cannot read it: {error}") from None
    job = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
    try:
        HydraConfig.instance().set_config(cfg)
        folder.mkdir(parents=True, exist_ok=True)
        main(job)
    except SystemExit as stop:  # by a signal, once a checkpoint is written
        if stop.code == 128 + signal.SIGINT:
            raise KeyboardInterrupt from None
        raise
    finally:
        HydraConfig.instance().cfg = before
        with contextlib.suppress(OSError):  # the folder is not empty, as that of a refused run is
            folder.rmdir()
    return folder if cfg.resume is None else Path(str(cfg.resume)).resolve()


def as_overrides(key: str, value) -> list[str]:
    """The overrides on Hydra's command line that a keyword stands for: one, or of a section one for each entry."""
    if isinstance(value, dict):
        return [word for name, entry in value.items() for word in as_overrides(f"{key}.{name}", entry)]
    return [f"{key}={written(key, value)}"]


def written(key: str, value) -> str:
    """The value of a keyword as Hydra's command line has it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(written(key, entry) for entry in value)}]"
    if isinstance(value, str | Path):
        is_plain = re.fullmatch(r"(?!(?i:null|true|false|nan|inf)$)[A-Za-z_/][\w./-]*", str(value))
        return str(value) if is_plain else QuotedString(str(value), Quote.single).with_quotes()
    value = value.item() if isinstance(value, np.generic) else value
    expect(value is None or isinstance(value, int | float), key, value, "a text, a number, or a list of them")
    return "null" if value is None else str(value)
