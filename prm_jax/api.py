"""Scores and ranks from Python: `prm_jax.load` opens a verifier, for notebooks and programs."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from prm_jax.checkpoints.names import OpenOptions, open_verifier
from prm_jax.data.units import UNITS, probability
from prm_jax.formats import read_format
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import expect, parse
from prm_jax.protocols import Scorer
from prm_jax.rerank import AGGREGATORS, default_aggregator, solution_scores

Steps = Sequence[str]  # a solution


def load(
    checkpoint: str | Path | None = None,
    format: str | dict = "auto",
    aggregator: str | None = None,
    **options,
) -> "Verifier":
    """Opens a verifier by the name that every command takes as `checkpoint`: a run's folder, a Hugging Face
    folder or hub name, ...; None: the newest finished run under runs/. `format` (a name, or {"name": NAME,
    KEY: VALUE}) and the fields of OpenOptions (`which`, `dtype`, ...) are keys of conf/evaluate.yaml.
    `aggregator`: a name of rerank.AGGREGATORS, by default `last` for an outcome model, else `min`."""
    expect(aggregator in (None, *AGGREGATORS), "aggregator", aggregator, ", ".join(AGGREGATORS))
    changes = format if isinstance(format, dict) else {"name": format}
    options = parse(options, OpenOptions, format=read_format(**{"name": "auto"} | changes))
    cli.use_compilation_cache()
    name = run_folder.newest_run() if checkpoint is None else checkpoint
    return Verifier(open_verifier(str(name), options), aggregator)


class Verifier:
    """A verifier that `load` has opened. Its `scorer` (protocols.Scorer) says what "good" means
    (`label_kind`) and what it is called (`name`). Each method takes one problem, or a list of problems with a
    list of what belongs to each, which are scored together and give a list."""

    def __init__(self, scorer: Scorer, aggregator: str | None = None):
        self.scorer = scorer
        self.aggregator = aggregator or default_aggregator(scorer, "rank")

    def __repr__(self):
        return f"Verifier({self.scorer.name!r}, {self.scorer.label_kind} labels, ranks by {self.aggregator})"

    def score(self, problem: str | Sequence[str], steps: Steps | Sequence[Steps]):
        """P(step good) of each step, float64 p_T; of an outcome model P(right answer), read at each step."""
        logits = self.log_odds(problem, steps)
        return probability(logits) if isinstance(problem, str) else [probability(x_T) for x_T in logits]

    def log_odds(self, problem: str | Sequence[str], steps: Steps | Sequence[Steps]):
        """log p / (1 - p) of each step's probability, logit_T, which keeps apart what rounds to 1."""
        if isinstance(problem, str):
            return self.log_odds([problem], [steps])[0]
        expected = "a list of steps, each a text"
        solutions = pairs(problem, steps)
        # The letters of a text would be its steps.
        is_right = all(hasattr(x, "__len__") and not isinstance(x, str) for _, x in solutions)
        expect(is_right, "steps", steps, expected)
        rows = [(text, tuple(solution)) for text, solution in solutions]
        for text, solution in rows:
            is_right = solution and all(isinstance(x, str) for x in (text, *solution))
            expect(is_right, "steps", solution, expected)
        return [UNITS[self.scorer.unit].log_odds(score_T) for score_T in self.scorer.score(rows)]

    def rank(self, problem: str | Sequence[str], solutions: Sequence) -> list:
        """Indices of a problem's solutions, each a list of steps, by their aggregated scores, best first;
        equal ones keep their order."""
        if isinstance(problem, str):
            return self.rank([problem], [solutions])[0]
        rows = [(text, steps) for text, some in pairs(problem, solutions) for steps in some]
        logits = self.log_odds([text for text, _ in rows], [steps for _, steps in rows])
        scores = iter(-solution_scores(logits, self.aggregator, rounded=True))
        return [np.argsort([next(scores) for _ in some], kind="stable").tolist() for some in solutions]


def pairs(problems: Sequence[str], solutions: Sequence) -> list[tuple]:
    """Each problem with its solution, or its solutions; InputError where they are not as many."""
    is_right = all(hasattr(x, "__len__") for x in (problems, solutions)) and len(problems) == len(solutions)
    expect(is_right, "problem", problems, "a text, or a list of texts with as many lists of steps")
    return list(zip(problems, solutions, strict=True))
