"""Bytes and collectives of compiled programs: of one written by hand, and of a real small step."""

import dataclasses
import json
import re

import jax
import pytest
from conftest import ROOT, TINY
from flax import nnx
from test_losses import OPT
from test_train import run

from prm_jax.bench.memory import AotConfig, abstract_state, collectives, memory_choices
from prm_jax.lora import LoraConfig
from prm_jax.model import PRM
from prm_jax.training import make_optimizer

HLO = """HloModule jit_step, is_scheduled=true, num_partitions=8

%sum (a: f32[], b: f32[]) -> f32[] {
  ROOT %add = f32[] add(%a, %b)
}

%inner_cond (p: (s32[], f32[4])) -> pred[] {
  %n = s32[] constant(3)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%inner_body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %cp = (bf16[10]{0}, bf16[10]{0}, u32[], u32[]) collective-permute-start(%x), source_target_pairs={{0,1},{1,0}}
  %cpd = bf16[10]{0} collective-permute-done(%cp)
}

%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %ag = bf16[16,8]{1,0} all-gather(%w), replica_groups=[2,4]<=[8], dimensions={0}
  %loop = (s32[], f32[4]) while(%t), condition=%inner_cond, body=%inner_body
}

%cond (p: (s32[], f32[4])) -> pred[] {
  %n = s32[] constant(99)
}

%fused (p: f32[8]) -> f32[2] {
  ROOT %rs = f32[2]{0} reduce-scatter(%p), replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}, to_apply=%sum
}

ENTRY %main (p: f32[8]) -> f32[2] {
  %loop = (s32[], f32[4]) while(%t), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %ar = (f32[4]{0}, s32[]) all-reduce(%x, %y), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%sum
  %all = f32[] all-reduce(%z), replica_groups={}, to_apply=%sum
  %f = f32[2]{0} fusion(%p), kind=kLoop, calls=%fused
}
"""


def test_collectives_of_a_program_written_by_hand():
    assert collectives(HLO) == {
        "all-gather": {"count": 5, "sent_bytes": 5 * 16 * 8 * 2 * 3 / 4},  # once a turn of the loop
        "all-reduce": {"count": 2, "sent_bytes": 2 * (4 * 4 + 4) / 2 + 2 * 4 * 7 / 8},
        "reduce-scatter": {"count": 1, "sent_bytes": 2 * 4 * 3},  # three parts of its result's size
        "collective-permute": {"count": 15, "sent_bytes": 15 * 10 * 2},  # a loop in a loop, once a pair
    }
    with pytest.raises(ValueError, match="unknown way"):
        collectives(HLO.replace("replica_groups={}", "replica_groups=new"))


SHAPE = {"vocab": 64, "dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "ffn": 48}


def test_memory_of_each_choice_is_that_of_the_real_arrays():
    lora = LoraConfig(2, 4.0, ["w_q"])
    cfg = AotConfig("cpu", {"m": SHAPE}, [], [], 8, 1, 1, "full", OPT, lora, {})
    rows = {row["choice"]: row for row in memory_choices(cfg, "m")}
    model = PRM(dataclasses.replace(TINY, tied=False), rngs=nnx.Rngs(0))
    opt = make_optimizer(model, OPT, 10)
    real = [sum(x.nbytes for x in jax.tree.leaves(tree)) for tree in (model, opt)]
    full = rows["all mu float32, nu float32"]
    assert [full["parameters"], full["moments"]] == real and full["gradients"] == real[0]
    n_lora = 2 * (32 * 2 + 2 * 32)  # layers x (A + B)
    n_head = 32 + 1
    assert rows["lora rank 2"]["gradients"] == 4 * (n_lora + n_head)
    assert rows["head"]["parameters"] < 0.6 * full["parameters"]  # frozen matrices are bfloat16
    assert abstract_state(TINY, OPT, lora)[0].embed.shape == (64, 32)


@pytest.mark.slow
def test_the_command_compiles_a_small_model_for_eight_devices(tmp_path):
    small = json.dumps(SHAPE).replace('"', "")
    out, _ = run(
        "prm_jax/bench/memory.py",
        f"+models.small={small}",
        "cases=[{model: small, devices: 8, fsdp: 4, tensor: 2}]",
        "tokens=16",
        "marks=2",
        "hydra.run.dir=a",
        cwd=tmp_path,
        PYTHONPATH=str(ROOT),
    )
    assert re.search(r"small train +8 cpu devices \(fsdp 4 x tensor 2\), 64 tokens", out)
    train, score = json.loads((tmp_path / "a/results.json").read_text())["compiled"]
    whole = 4 * (64 * 32 + 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48))  # matrices, float32
    assert whole / 8 < train["parameter_bytes"] < whole / 8 * 1.2  # and small arrays, not split
    assert train["optimizer_bytes"] == pytest.approx(2 * train["parameter_bytes"], rel=0.01)
    assert score["parameter_bytes"] < 0.6 * train["parameter_bytes"]
    # Each of 2 layers gathers its 7 matrices over fsdp forward, and again for recomputing and for the gradient.
    assert score["collectives"]["all-gather"]["count"] >= 14
    assert train["collectives"]["all-gather"]["count"] >= 28
    assert train["sent_bytes"] > score["sent_bytes"] > whole / 4  # at least what a device lacks of its bfloat16 weights
