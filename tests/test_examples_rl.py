"""examples/online.py and examples/stepwiser.py: a verifier that learns with the policy, a critic that learns
to judge."""

import json

import numpy as np
import pytest
from conftest import printed

from examples import online, stepwiser

SMALL = ["problems=4", "n=4", "eval.problems=8", "eval.n=2", "eval.every=9", "batch_rows=32", "cpu_devices=1"]


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_an_implicit_verifier_begins_as_the_policy_and_learns_from_outcomes(monkeypatch, tmp_path):
    prime = ["reward.prm=1", "reward.prm_checkpoint=embedded", "reward.prm_form=log_odds"]
    keys = [*SMALL, *prime, "advantage=rloo_sources", "steps=2", f"hydra.run.dir={tmp_path}"]
    printed(online.main, monkeypatch, *keys, cwd=tmp_path)
    _, first, last = metrics(tmp_path)
    assert first["reward_prm"] == 0 != last["reward_prm"]
    assert first["online_loss"] == pytest.approx(np.log(2)) and last["online_loss"] != first["online_loss"]


@pytest.mark.slow
def test_a_critic_learns_from_as_many_right_as_wrong_steps(monkeypatch, tmp_path):
    data = ["data.samples=solver", "data.solutions=40", "data.test_solutions=40"]
    keys = [*SMALL, *data, "sampling.max_tokens=16", "steps=1", f"hydra.run.dir={tmp_path}"]
    out = printed(stepwiser.main, monkeypatch, *keys, cwd=tmp_path)
    assert "of each kept" in out
    assert {"eval_says_good", "eval_no_verdict", "eval_pass_at_1"} <= metrics(tmp_path)[-1].keys()


def test_right_and_wrong_steps_come_in_turn():
    labels = {f"step {i}": i % 3 == 0 for i in range(9)}
    prompts = stepwiser.balanced(labels, 0)
    assert [labels[prompt] for prompt in prompts] == [True, False] * 3
