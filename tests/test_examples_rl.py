"""examples/online.py: a verifier that learns with the policy."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import printed
from test_hf import torch_model

from examples import online
from prm_jax.checkpoints.tokenizer import train_tokenizer
from prm_jax.generate.policies import PolicyFormat

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


def test_a_model_of_the_hub_becomes_an_implicit_verifier(tmp_path):
    tokenizer = train_tokenizer(["4 +5 mod7?\n4+5=2"], 280)
    tokenizer.save_pretrained(tmp_path)
    torch_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    cfg = SimpleNamespace(dtype="float32", format=PolicyFormat(), batch=SimpleNamespace(tokens=64))
    verifier = online.OnlineTrainer.open_verifier(SimpleNamespace(cfg=cfg), str(tmp_path))
    (log_odds_T,) = verifier.score([("4 +5 mod7?", ("4+5=2",))])
    assert log_odds_T.tolist() == [0]  # it is its own reference
