"""Orbax checkpoints of a run: what was trained is what is loaded, damage is noticed, the step before is
still there."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY, refuses
from flax import nnx
from omegaconf import OmegaConf
from safetensors.numpy import save_file
from test_losses import OPT

from prm_jax import InputError, export
from prm_jax.checkpoints import folders, hf, hf_config, orbax
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.checkpoints.orbax import Checkpoints, restore_run
from prm_jax.checkpoints.tokenizer import train_tokenizer
from prm_jax.formats import Format, read_format
from prm_jax.model import PRM, ModelConfig
from prm_jax.training import make_optimizer

ROWS = [("7 + 5", ("12", "so 12"))]


def make(seed, **changes):
    model = PRM(dataclasses.replace(TINY, vocab=320, **changes), rngs=nnx.Rngs(seed))
    return model, make_optimizer(model, OPT, 10)


def run_folder(folder, *steps, objective="prm", **changes):
    """The last model of a run's folder as train.py leaves it; each checkpoint has other weights."""
    settings = {
        "objective": objective, "init": "embedded", "format": {"name": "plain", "separator": "\n"}, "data": {"label_kind": "value"},
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


def newest(folder, kind="latest"):
    """The model's folder of the newest checkpoint."""
    return max((p for p in (folder / "checkpoints" / kind).iterdir()), key=lambda p: int(p.name)) / "model"


def truncate(model):
    path = model / "_METADATA"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def delete(model):
    (model / "_METADATA").unlink()


def test_the_sum_of_all_bits_is_of_the_arrays_as_integers(rng):
    state = {"a": rng.normal(size=(7, 300)), "b": rng.normal(size=(5, 200))}
    state = {name: jnp.asarray(x, dtype) for (name, x), dtype in zip(state.items(), ("float32", "bfloat16"))}
    bits = np.asarray(state["a"]).view(np.uint32), np.asarray(state["b"]).view(np.uint16)
    assert orbax.bit_sum(state) == sum(int(x.sum(dtype=np.uint64)) for x in bits) % 2**32


def flip(model):
    """Another number in the largest file of arrays, which nothing but the sum of bits tells."""
    path = max(model.rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [truncate, delete, flip])
def test_a_damaged_checkpoint_falls_back_to_the_one_before_or_is_one_line(tmp_path, capfd, harm):
    run_folder(tmp_path / "run", 2, 4, 6)
    assert sorted(p.name for p in (tmp_path / "run/checkpoints/latest").iterdir()) == ["4", "6"]
    harm(newest(tmp_path / "run"))
    model, opt = make(0)
    checkpoints = Checkpoints(tmp_path / "run")
    assert checkpoints.restore(model, opt) == (4, {"eval_loss": 0.4})
    assert same(model, make(4)[0]) and same(opt, make(4)[1])
    said = "".join(capfd.readouterr())
    assert "latest/6: " in said and said.count("\n") == 1
    checkpoints.save(6, *make(6), {"eval_loss": 0.6}, make(6)[0])  # the run makes it again
    checkpoints.close()
    model, _, _, step = restore_run(tmp_path / "run", "latest", "float32")
    assert step == 6 and same(model, make(6)[0])

    run_folder(tmp_path / "one", 2)
    for kind in ("latest", "best"):
        harm(newest(tmp_path / "one", kind))
        refuses(f"{kind}/2: ", restore_run, tmp_path / "one", kind, "float32")
    with pytest.raises(InputError, match="latest/2: "):
        Checkpoints(tmp_path / "one").restore(*make(0))


@pytest.mark.parametrize("whole", [0, 2])
def test_a_best_model_of_later_than_the_state_is_not_kept(tmp_path, whole):
    """A kill between the two left best/4 beside latest/2; the run that went on elsewhere had another model
    at step 4."""
    run_folder(tmp_path, *range(2, whole + 1, 2), 4)
    shutil.rmtree(tmp_path / "checkpoints/latest/4")
    checkpoints = Checkpoints(tmp_path)
    restored = checkpoints.restore(*make(0))
    assert restored is None if whole == 0 else restored[0] == 2
    checkpoints.save(4, *make(8), {"best_step": 4}, make(8)[0])
    checkpoints.close()
    for _ in range(2):
        model, _, _, step = restore_run(tmp_path, "best", "float32")
        assert step == 4 and same(model, make(8)[0])
        shutil.rmtree(tmp_path / "checkpoints/best/4")  # its save was cut: the state is that model
        checkpoints = Checkpoints(tmp_path)
        checkpoints.restore(*make(0))
        checkpoints.close()


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
    with pytest.raises(InputError, match="export: model."):
        hf.save(tmp_path / "out", loaded.model, loaded.tokenizer)


def test_a_new_field_of_the_model_leaves_earlier_runs_readable(tmp_path, monkeypatch):
    run_folder(tmp_path, 2)
    fields = [("norm", str, "rms")]
    wider = dataclasses.make_dataclass("ModelConfig", fields, bases=(ModelConfig,), frozen=True)
    monkeypatch.setattr(orbax, "ModelConfig", wider)
    assert restore_run(tmp_path, "latest", "float32")[0].cfg.norm == "rms"


@pytest.mark.parametrize(
    "changes, named",
    [({"dim": 64}, "latest/2: .*shapes"), ({"qk_norm": True}, "latest/2"), ({"layers": "two"}, "layers")],
)
def test_another_structure_is_refused(tmp_path, changes, named):
    run_folder(tmp_path, 2)
    path = tmp_path / "model" / "model_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    refuses(named, restore_run, tmp_path, "latest", "float32")


def test_a_run_is_read_with_its_own_format_and_says_so(tmp_path, capsys):
    run_folder(tmp_path, 2)
    open_checkpoint(tmp_path, "best", read_format("auto"), "float32")
    assert "format" not in capsys.readouterr().out
    for asked in (read_format("qwen_prm"), read_format("auto", separator="\n\n")):
        open_checkpoint(tmp_path, "best", asked, "float32")
        said = f"format      {tmp_path}: is read with plain, not with {asked.name}"
        assert said in capsys.readouterr().out


@pytest.mark.parametrize("objective", ["prm", "orm", "lm"])
def test_an_export_is_read_back_and_scores_as_its_run_does(tmp_path, objective):
    head = "none" if objective == "lm" else "binary"
    run_folder(tmp_path / "run", 2, objective=objective, tied=False, head=head, lm_head=True)
    loaded = open_checkpoint(tmp_path / "run", "best", None, "float32")
    export.export(loaded, tmp_path / "out")
    again = open_checkpoint(tmp_path / "out", "best", None, "float32")
    assert (again.objective, again.format) == (objective, loaded.format)
    assert again.model.unembed is not None  # an implicit PRM that began from it has it as reference
    np.testing.assert_allclose(*(x.scorer(1).score([export.ROW])[0] for x in (again, loaded)), atol=1e-6)
    names = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert names <= {path.name for path in (tmp_path / "out").iterdir()}
    with pytest.raises(InputError, match="^to: "):  # nothing is written over
        export.export(loaded, tmp_path / "out")


def test_an_export_holds_its_chat_template(tmp_path):
    run_folder(tmp_path / "run", 2, head="binary")
    loaded = open_checkpoint(tmp_path / "run", "best", None, "float32")
    template = tmp_path / "own.jinja"
    template.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    loaded.config.format.chat = str(template)
    loaded = dataclasses.replace(loaded, format=dataclasses.replace(loaded.format, chat=str(template)))
    export.export(loaded, tmp_path / "out")  # whose scores are compared
    again = open_checkpoint(tmp_path / "out", "best", None, "float32")
    assert again.format.chat is True and again.tokenizer.chat_template == template.read_text()


def wrong_numbers(arrays, path, **settings):
    save_file({name: 1.5 * x for name, x in arrays.items()}, path, **settings)


def too_few(arrays, path, **settings):
    save_file(dict([*arrays.items()][:-1]), path, **settings)


@pytest.mark.parametrize("write, named", [(wrong_numbers, "scores"), (too_few, "tensor")])
def test_a_broken_write_is_no_export(tmp_path, monkeypatch, write, named):
    run_folder(tmp_path / "run", 2, head="binary")
    loaded = open_checkpoint(tmp_path / "run", "best", None, "float32")
    monkeypatch.setattr(folders, "save_file", write)
    with pytest.raises(InputError, match=named):
        export.export(loaded, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_an_export_cannot_carry_is_refused_and_not_dropped(tmp_path, monkeypatch):
    """A field that somebody has added to ModelConfig, and a parameter without a tensor name."""
    model = run_folder(tmp_path / "run", 2)
    fields = [("norm", str, "rms")]
    wider = dataclasses.make_dataclass("ModelConfig", fields, bases=(ModelConfig,), frozen=True)
    monkeypatch.setattr(hf_config, "ModelConfig", wider)
    model.cfg = wider(**dataclasses.asdict(model.cfg) | {"norm": "layer"})
    with pytest.raises(InputError, match="model.norm"):
        hf.save(tmp_path / "out", model, train_tokenizer(["7"], 280))
    model, _ = make(0)
    model.w_second_head = nnx.Param(model.w_head[...])
    with pytest.raises(InputError, match="w_second_head"):
        hf.save(tmp_path / "out", model, train_tokenizer(["7"], 280))
    assert not (tmp_path / "out").exists()
