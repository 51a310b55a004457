"""One device or eight, one process or four: the same numbers; nothing lies whole where it should be split."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT
from devices import CFG, MESHES, leaves
from flax import nnx
from jax.sharding import PartitionSpec as P
from safetensors.numpy import load_file, save_file

from prm_jax import InputError, hf
from prm_jax.formats import train_tokenizer
from prm_jax.model import PRM
from prm_jax.sharding import MeshConfig, check_divides, make_mesh, spec


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """What devices.py found with eight devices."""
    folder = tmp_path_factory.mktemp("eight")
    hf.save(folder / "f32", PRM(CFG, rngs=nnx.Rngs(5)), train_tokenizer(["7 + 5 = 2"], 280))
    tensors = load_file(folder / "f32" / "model.safetensors")
    (folder / "bf16").mkdir()
    (folder / "bf16" / "config.json").write_text((folder / "f32" / "config.json").read_text())
    save_file({k: x.astype(jnp.bfloat16) for k, x in tensors.items()}, folder / "bf16" / "model.safetensors")
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    environment["PYTHONPATH"] = f"{ROOT}:{ROOT / 'tests'}"
    command = [sys.executable, str(ROOT / "tests" / "devices.py"), str(folder)]
    process = subprocess.run(
        command, check=False, env=environment, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_eight_devices_train_as_one(eight, mesh):
    one, many = eight["one"], eight[mesh]
    np.testing.assert_allclose(
        many["losses"][0], one["losses"][0], rtol=2e-6
    )  # before Adam enlarges rounding
    np.testing.assert_allclose(many["losses"], one["losses"], rtol=1e-4)
    assert many["sums"].keys() == one["sums"].keys()
    np.testing.assert_allclose(list(many["sums"].values()), list(one["sums"].values()), rtol=1e-4)
    assert (
        many["compiled"] == one["compiled"] == 1
    )  # outputs lie as inputs do, so the second step compiles nothing


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_model_and_optimiser_lie_by_the_rule(eight, mesh):
    _, fsdp, tensor = MESHES[mesh]
    assert eight[mesh]["on_rule"]
    assert eight[mesh]["shards"] == [[2, 32 // fsdp, 32 // tensor], [2, 48 // tensor, 32 // fsdp]]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_weights_are_read_in_parts_and_are_the_whole_ones(eight, mesh):
    saved = PRM(CFG, rngs=nnx.Rngs(5))
    assert eight[mesh]["f32"] == eight["one"]["f32"] == leaves(saved)
    assert eight[mesh]["bf16"] == leaves(
        jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype("float32"), saved)
    )


@pytest.mark.slow
def test_a_checkpoint_of_eight_devices_restores_on_fewer_bit_for_bit(eight):
    assert len(eight["restored"]) == 4 and all(eight["restored"].values())


def test_the_layout_rule():
    sizes = {"data": 2, "fsdp": 4, "tensor": 2}
    key = jax.tree_util.DictKey
    of = lambda shape, *names: spec([key(name) for name in names], shape, sizes)
    assert of((3, 8, 6), "blocks", "w_q") == P(None, "fsdp", "tensor")
    assert of((3, 8, 6), "mu", "blocks", "w_o") == P(None, "tensor")  # 6 is no multiple of 4
    assert of((64, 8), "embed") == P("tensor", "fsdp")
    assert of((3, 8, 16), "blocks", "w_q", "a") == P(None, "fsdp")
    assert of((3, 16, 8), "blocks", "w_o", "b") == P(None, None, "fsdp")
    assert of((8, 1), "w_head") == of((3, 8), "blocks", "norm_attn") == of((), "count") == P()


def test_meshes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"mesh: data None x fsdp 3 x tensor 1 does not make the 1 devices"):
        make_mesh(MeshConfig(None, 3, 1))
    with pytest.raises(InputError, match="mesh.fsdp: got 0"):
        MeshConfig(None, 0, 1)
    assert make_mesh(MeshConfig(None, 1, 1)).shape == {"data": 1, "fsdp": 1, "tensor": 1}
    check_divides(CFG, 7, "batch.rows")  # no mesh: nothing to divide
