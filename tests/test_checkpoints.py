"""Orbax checkpoints of a run: what was trained is what is loaded, damage is noticed, the step before is still there."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from conftest import TINY
from flax import nnx
from omegaconf import OmegaConf
from test_losses import OPT

from prm_jax import InputError
from prm_jax.checkpoints import export, hf, orbax
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.checkpoints.orbax import Checkpoints, load_run
from prm_jax.formats import Format, read_format, train_tokenizer
from prm_jax.model import PRM, ModelConfig
from prm_jax.training import make_optimizer

ROWS = [("7 + 5", ("12", "so 12"))]


def make(seed, **changes):
    model = PRM(dataclasses.replace(TINY, vocab=320, **changes), rngs=nnx.Rngs(seed))
    return model, make_optimizer(model, OPT, 10)


def run_folder(folder, *steps, **changes):
    """A run folder as train.py leaves it, with a checkpoint of other weights for each step; returns the last model."""
    settings = {
        "objective": "prm", "format": {"name": "plain", "separator": "\n"}, "data": {"label_kind": "value"},
        "optimizer": {"trainable": "all"},
    }  # fmt: skip
    (folder / ".hydra").mkdir(parents=True)
    OmegaConf.save(settings, folder / ".hydra" / "config.yaml")
    checkpoints = Checkpoints(folder)
    for step in steps:
        model, opt = make(step, **changes)
        orbax.save_description(folder / "model", model.cfg, train_tokenizer(["7 + 5 = 2"], 280))
        checkpoints.save(step, model, opt, {"eval_loss": step / 10}, model)
    checkpoints.close()
    return model


def leaves(module):
    return [np.asarray(x) for x in jax.tree.leaves(nnx.state(module))]


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))


def weights(folder, kind="latest"):
    """The largest file of the newest checkpoint."""
    step = max((p for p in (folder / "checkpoints" / kind).iterdir()), key=lambda p: int(p.name))
    return max((p for p in step.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :][:64] = bytes(64)
    for i in range(64):
        content[len(content) // 2 + i] ^= 255
    path.write_bytes(content)


DAMAGE = {
    "flipped": (flip, "is not as it was written"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "is not as it was written"),
    "deleted": (lambda path: path.unlink(), "is missing"),
    "no marker": (
        lambda path: next(p for p in path.parents if p.name.isdigit()).joinpath(orbax.CHECKSUMS).unlink(),
        "has no whole checksums.json, the last file of a checkpoint",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_falls_back_to_the_one_before_or_is_one_line(tmp_path, capsys, name):
    harm, why = DAMAGE[name]
    run_folder(tmp_path / "run", 2, 4, 6)
    assert sorted(p.name for p in (tmp_path / "run/checkpoints/latest").iterdir()) == ["4", "6"]
    harm(weights(tmp_path / "run"))
    model, opt = make(0)
    checkpoints = Checkpoints(tmp_path / "run")
    assert checkpoints.restore(model, opt) == (4, {"eval_loss": 0.4})
    assert same(model, make(4)[0]) and same(opt, make(4)[1])
    out = capsys.readouterr().out
    assert "latest/6: " in out and why in out and "falls back to step 4" in out and out.count("\n") == 1
    checkpoints.save(6, *make(6), {"eval_loss": 0.6}, make(6)[0])  # the run makes it again
    checkpoints.close()
    assert sorted(p.name for p in (tmp_path / "run/checkpoints/latest").iterdir()) == ["4", "6"]
    model, _, _, step = load_run(tmp_path / "run", "latest", "float32")
    assert step == 6 and same(model, make(6)[0])

    run_folder(tmp_path / "one", 2)
    for kind in ("latest", "best"):
        harm(weights(tmp_path / "one", kind))
        with pytest.raises(InputError, match=f"{kind}/2: .*{why}.*no other step is whole") as caught:
            load_run(tmp_path / "one", kind, "float32")
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="no other step is whole"):
        Checkpoints(tmp_path / "one").restore(*make(0))


def test_a_kill_leaves_no_step_without_its_checksums(tmp_path):
    """The folder of a step gets its name with the checksums in it."""
    run_folder(tmp_path, 2, 4)
    for kind in ("latest", "best"):
        for step in (tmp_path / "checkpoints" / kind).iterdir():
            sums = json.loads((step / "checksums.json").read_text())
            assert sums.keys() >= {"model/_METADATA", "notes/metadata"} and orbax.find_damage(step) is None


def test_a_stopped_run_without_a_checkpoint_starts_again(tmp_path):
    assert Checkpoints(tmp_path).restore(*make(0)) is None


@pytest.mark.parametrize("whole", [0, 2])
def test_a_best_model_of_later_than_the_state_is_not_kept(tmp_path, whole):
    """A kill between the two left best/4 beside latest/2; the run that went on elsewhere had another model at step 4."""
    run_folder(tmp_path, *range(2, whole + 1, 2), 4)
    shutil.rmtree(tmp_path / "checkpoints/latest/4")
    checkpoints = Checkpoints(tmp_path)
    restored = checkpoints.restore(*make(0))
    assert restored is None if whole == 0 else restored[0] == 2
    checkpoints.save(4, *make(8), {"eval_loss": 0.4}, make(8)[0])
    checkpoints.close()
    model, _, _, step = load_run(tmp_path, "best", "float32")
    assert step == 4 and same(model, make(8)[0])


# Fields that a config.json of this family cannot say: the run was evaluated as another model.
@pytest.mark.parametrize(
    "changes", [{"qk_norm": True}, {"qkv_bias": False}, {"o_bias": True, "norm_eps": 1e-3}]
)
def test_the_model_that_was_trained_is_the_one_that_is_loaded(tmp_path, changes):
    model = run_folder(tmp_path, 2, head="binary", remat="full", head_dropout=0.1, **changes)
    loaded = open_checkpoint(tmp_path, "best", read_format("auto"), "float32")
    assert loaded.model.cfg == dataclasses.replace(model.cfg, remat="none") and same(loaded.model, model)
    assert (loaded.label_kind, loaded.objective, loaded.format) == ("value", "prm", Format("plain", "\n"))
    assert loaded.name == f"{tmp_path} step 2" and loaded.config.data.label_kind == "value"
    scorer = dataclasses.replace(loaded.scorer(1, 64), model=model)
    np.testing.assert_array_equal(scorer.score(ROWS), loaded.scorer(1, 64).score(ROWS))
    with pytest.raises(InputError, match="this model cannot be exported"):
        hf.save(tmp_path / "out", loaded.model, loaded.tokenizer)


def test_a_structure_has_the_hash_that_earlier_versions_gave_it():
    """Literal hashes of 369834c: fields renamed since, and fields at their defaults, change none."""
    gemma = {
        "window": 4,
        "sliding": (True, False),
        "local_rope_theta": 5e3,
        "post_norms": True,
        "max_positions": 99,
    }
    gemma |= {"attn_logit_softcap": 50.0, "final_logit_softcap": 30.0}
    for fields, expected in (({}, "e6bd2743374d0515"), (gemma, "b60c3e7ebf4cdc0d")):
        model = PRM(dataclasses.replace(TINY, **fields), rngs=nnx.Rngs(0))
        assert orbax.structure_hash(model).startswith(expected)


def test_a_new_field_of_the_model_leaves_earlier_runs_readable(tmp_path, monkeypatch):
    run_folder(tmp_path, 2)
    fields = [("norm", str, "rms")]
    wider = dataclasses.make_dataclass("ModelConfig", fields, bases=(ModelConfig,), frozen=True)
    monkeypatch.setattr(orbax, "ModelConfig", wider)
    assert load_run(tmp_path, "latest", "float32")[0].cfg.norm == "rms"


def test_another_structure_is_refused(tmp_path):
    run_folder(tmp_path, 2)
    path = tmp_path / "model" / "model_config.json"
    config = json.loads(path.read_text())
    del config["checksum"]
    old_names = {orbax.RENAMED.get(name, name): x for name, x in config.items()}
    for earlier in (
        old_names,
        {k: v for k, v in config.items() if k not in orbax.RENAMED},
    ):  # of earlier versions
        path.write_text(json.dumps(earlier))
        assert load_run(tmp_path, "latest", "float32")[-1] == 2
    for changed, pattern in (
        (config | {"norm_eps": 1e-5}, "latest/2: its parameters are not those .* written by another version"),
        (config | {"rope_theta": 5e5}, "its parameters are not those"),
        (config | {"dim": 64}, "its parameters are not those"),
        (
            config | {"parallel": True},
            "model_config.json: parallel: unknown key.*: written by another version",
        ),
        (
            {k: v for k, v in config.items() if k != "vocab"},
            "model_config.json: vocab: missing key.*: written by",
        ),
        (config | {"layers": "two"}, "model_config.json: layers: got 'two', expected an integer"),
        (config | {"heads": 3}, "model_config.json: heads: 3 is no multiple"),
    ):
        path.write_text(json.dumps(changed))
        with pytest.raises(InputError, match=pattern) as caught:
            load_run(tmp_path, "latest", "float32")
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="its parameters are not those"):
        Checkpoints(tmp_path).restore(*make(0, rope_theta=5e5))
    path.unlink()
    with pytest.raises(
        InputError, match="model_config.json: no such file: the run stopped before its first step, or"
    ):
        load_run(tmp_path, "latest", "float32")


def test_a_run_is_read_with_its_own_format_and_says_so(tmp_path, capsys):
    run_folder(tmp_path, 2)
    open_checkpoint(tmp_path, "best", read_format("auto"), "float32")
    assert "format" not in capsys.readouterr().out
    open_checkpoint(tmp_path, "best", read_format("qwen_prm"), "float32")
    assert (
        f"format      {tmp_path}: is read with its own, plain, not with format=qwen_prm"
        in capsys.readouterr().out
    )
    open_checkpoint(
        tmp_path, "best", read_format("auto", separator="\n\n", label_kind="correctness"), "float32"
    )
    said = "is read with its own, plain, not with format.separator=\n\n, format.label_kind=correctness"
    assert said in capsys.readouterr().out


def test_an_export_takes_no_folder_of_others(tmp_path):
    export.require_free(tmp_path / "new")
    export.require_free(tmp_path)
    model, _ = make(0)
    hf.save(tmp_path / "earlier", model, train_tokenizer(["7 + 5 = 2"], 280))
    export.require_free(tmp_path / "earlier")
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(
        InputError, match=f"to: {tmp_path} holds README.md and is no earlier export; expected a new or"
    ):
        export.require_free(tmp_path)
    for text in ('{"model_type": "gpt2"}', "{"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(InputError, match=f"to: {tmp_path} holds README.md"):
            export.require_free(tmp_path)
