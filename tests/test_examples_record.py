"""A record's costs are read from what runs left; one that breaks a rule is refused."""

import json

import hydra
import pytest
from omegaconf import OmegaConf

from examples.record import BUDGETS, costs_of, statement
from prm_jax import InputError
from prm_jax.launch.config import CONF
from train import main  # noqa: F401 (stores the defaults of its keys)

SUMMARY = {
    "objective": "orm",
    "cpu_seconds": 50.0,
    "examples": {"train": 900, "validation": 100},
    "counts": {"policy_tokens": 7},
    "machine": {"device": "cpu"},
}


def put_runs(folder, *overrides, **summary):
    """Five runs as train.py leaves them, by name; the seed of the last one may be another."""
    last = summary.pop("last", 4)
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = hydra.compose("train", ["objective=orm", *overrides])
    for seed in (0, 1, 2, 3, 4):
        run = folder / str(seed)
        (run / ".hydra").mkdir(parents=True)
        OmegaConf.save(cfg, run / ".hydra/config.yaml")
        own = {"seed": last if seed == 4 else seed}
        (run / "summary.json").write_text(json.dumps(SUMMARY | own | summary))
    return [str(folder / str(seed)) for seed in range(5)]


def test_costs_are_read_and_stated(tmp_path):
    costs = costs_of(put_runs(tmp_path), BUDGETS["outcomes"])
    assert costs[3] == {"seed": 3, "cpu_seconds": 50.0, "labelled": 1000, "policy_tokens": 7}
    names = [f"prm_{i}" for i in range(5)]
    scorers = {name: {"last": {"best_of_n": {"64": 0.1 * i}}} for i, name in enumerate(names, 5)}
    results = {
        "verifiers": dict.fromkeys(names),
        "headline": dict.fromkeys(names, "last"),
        "scorers": scorers,
    }
    results |= {"n_problems": 300, "n_candidates": 64, "seed": 0, "versions": {"commit": "c" * 40}}
    assert "outcomes: 0.7000 [0.5000, 0.9000], best of 64 (last) of 300 " in statement(
        results, costs, "outcomes"
    )


@pytest.mark.parametrize(
    "budget, overrides, summary, key",
    [
        ("seconds", [], {"cpu_seconds": 61.0}, "cpu_seconds"),
        ("solutions", [], {"examples": {"train": 901, "validation": 100}}, "labelled"),
        ("outcomes", [], {"objective": "prm"}, "labels"),
        ("outcomes", ["data.outcome=steps"], {}, "labels"),
        ("seconds", [], {"last": 3}, "seeds"),
        ("seconds", ["data.policy=FOLDER"], {}, "data"),
    ],
)
def test_what_breaks_a_rule_is_refused(budget, overrides, summary, key, tmp_path):
    with pytest.raises(InputError, match=rf"(^|: ){key}: got "):
        costs_of(put_runs(tmp_path, *overrides, **summary), BUDGETS[budget])
