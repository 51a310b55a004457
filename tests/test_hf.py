"""Checkpoints in and out: float32 parity with transformers' PyTorch Qwen2, shards, heads, clear errors."""

import copy
import dataclasses
import json
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY, refuses
from flax import nnx
from safetensors.numpy import load_file, save_file

from prm_jax import InputError, heads
from prm_jax.checkpoints import folders, hf, hf_config, init
from prm_jax.checkpoints.folders import open_tensors
from prm_jax.checkpoints.open import VerdictHead, open_checkpoint
from prm_jax.checkpoints.tokenizer import load_tokenizer, train_tokenizer
from prm_jax.export import step_tag
from prm_jax.formats import Format
from prm_jax.launch.config import parse
from prm_jax.model import PRM, RopeScaling, make_cache
from prm_jax.visibility import ALWAYS


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["7 + 5 = 2"], 280)


def torch_model(head=0, family="qwen2", **changes):
    """A tiny random model of transformers; every weight is random, biases and norms too."""
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification

    shape = {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 50_000.0, "rms_norm_eps": 1e-5,
        "num_labels": head or 2, "tie_word_embeddings": False, "attn_implementation": "eager",
    }  # fmt: skip
    config = AutoConfig.for_model(family, **copy.deepcopy(shape | changes))  # which writes into them
    torch.manual_seed(0)
    model = (AutoModelForTokenClassification if head else AutoModelForCausalLM).from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.2)
    return model.eval()


def run(model, ids):
    L = ids.shape[1]
    return model(jnp.asarray(ids), jnp.tile(jnp.arange(L), (len(ids), 1)), jnp.full(ids.shape, L - 1))


# Old length 64 puts the frequencies of 8 pairs on both sides of, and between, the two bounds of Llama 3.1's
# rule.
LLAMA31 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA31 |= {"original_max_position_embeddings": 64}
# Of 4 pairs the first keeps its frequency, two are blended, and the last is divided.
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
TIED = {"tie_word_embeddings": True}
MOE = {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 16, "norm_topk_prob": True}
SCALES = {"embedding_multiplier": 3.0, "residual_multiplier": 0.22, "attention_multiplier": 0.7}
MIXED = {"layer_types": ["full_attention", "sliding_attention", "full_attention"], "use_sliding_window": True}
# Windows shorter than two of the three rows, longer than the third.
GEMMA_KEYS = TIED | {"sliding_window": 8, "head_dim": 16, "query_pre_attn_scalar": 24}
CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}
TILTED = YARN | {"attention_factor": 1.3, "beta_fast": 5.0, "truncate": False}
FOURTH = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
BACKBONES = {
    "qwen2": {},
    "qwen2 tied, one group": TIED | {"num_key_value_heads": 1},
    "qwen2 yarn": {"rope_scaling": YARN},
    "qwen2 upper layers slide": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
    "qwen3": {"head_dim": 16},
    "qwen3 tied, biases": TIED | {"attention_bias": True, "head_dim": 8},
    "qwen3 linear": FOURTH | {"head_dim": 8},
    "qwen3 one layer slides": MIXED | {"sliding_window": 3, "head_dim": 8},
    "qwen3_moe": TIED | MOE | {"head_dim": 8},
    "llama 3.1": {"rope_scaling": LLAMA31, "num_attention_heads": 2},
    "llama biases": {"attention_bias": True, "mlp_bias": True, "head_dim": 12, "num_key_value_heads": 4},
    "llama yarn": {"rope_scaling": TILTED, "head_dim": 32},
    "mistral window": {"sliding_window": 4, "head_dim": 16},
    "mistral full": TIED | {"sliding_window": None},
    "granite": TIED | SCALES | {"logits_scaling": 8.0, "attention_bias": True},
    "gemma2": GEMMA_KEYS | CAPS | {"attention_bias": True},
    "gemma3_text": GEMMA_KEYS | FOURTH | {"sliding_window_pattern": 2, "rope_local_base_freq": 500.0},
}
WITH_HEADS = "qwen2", "qwen3_moe", "gemma2"  # a head knows nothing of the family below it
HEADS = {
    "scalar": {"v_head.summary.weight": (1, 32), "v_head.summary.bias": (1,)},
    "binary": {"score.weight": (2, 32), "score.bias": (2,)},
    "mlp": {"score.0.weight": (32, 32), "score.0.bias": (32,), "score.2.weight": (2, 32), "score.2.bias": (2,)},
    "ternary": {"score_head.weight": (3, 32)},
    "tokens": {},
}  # fmt: skip


def read_padded(model, rows, side):
    """(x_nD, logit_nV) of all tokens of the rows, padded on one side, by transformers."""
    import torch

    ids, mask = np.zeros((3, 12), int), np.zeros((3, 12), int)
    for b, row in enumerate(rows):
        at = 12 - len(row) if side == "left" else 0
        ids[b, at : at + len(row)], mask[b, at : at + len(row)] = row, 1
    inputs = {"attention_mask": mask, "position_ids": np.maximum(mask.cumsum(1) - 1, 0)}
    inputs = {name: torch.tensor(x) for name, x in inputs.items()}
    with torch.no_grad():
        out = model(torch.tensor(ids), output_hidden_states=True, **inputs)
    return [x.numpy()[mask == 1] for x in (out.hidden_states[-1], out.logits)]


def apply_head(tensors, x_nD):
    """Logits of a step head, Linear or Linear, ReLU, Linear."""
    weights = [name for name in tensors if name.endswith("weight")]
    for name in weights:
        x_nD = np.maximum(x_nD, 0) if name != weights[0] else x_nD
        x_nD = x_nD @ tensors[name].T + tensors.get(name.replace("weight", "bias"), 0)
    return x_nD


def test_a_matrix_beside_a_tied_embedding_is_read_where_it_differs(tmp_path):
    """As transformers 5 does; so PEFT stores an LM head of its own."""
    torch_model(**TIED).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for scale in (1, 2):
        lm_head = scale * tensors["model.embed_tokens.weight"]
        save_file(tensors | {"lm_head.weight": lm_head}, tmp_path / "model.safetensors")
        ours = hf.load(tmp_path, hf_config.model_config(hf_config.read_config(tmp_path), lm_head=True))
        assert ours.cfg.tied == (scale == 1)
    np.testing.assert_array_equal(ours.unembed[...], lm_head.T)


def test_the_length_before_scaling_at_the_top_counts():
    long = {"model_type": "llama", "max_position_embeddings": 8192}
    other = YARN | {"original_max_position_embeddings": 64}
    found = hf_config.model_config(long | {"rope_scaling": other, "original_max_position_embeddings": 2048})
    assert found == hf_config.model_config(long | {"rope_scaling": YARN})


@pytest.mark.parametrize("name", BACKBONES)
def test_a_family_equals_pytorch_padded_and_packed_and_so_do_heads(tmp_path, rng, name):
    theirs = torch_model(family=name.split()[0], **BACKBONES[name])
    theirs.save_pretrained(tmp_path)
    config, lengths = hf_config.read_config(tmp_path), (11, 6, 9)
    ours = hf.load(tmp_path, hf_config.model_config(config, lm_head=True))
    rows = [rng.integers(1, 96, n) for n in lengths]
    ids, pos, until = np.zeros((4, 32), int), np.zeros((4, 32), int), np.full((4, 32), 32)
    places = [(0, 0), (1, 0), (2, 0), (3, 0), (3, 11), (3, 17)]  # alone in rows 0 to 2, packed in row 3
    for (b, at), row in zip(places, rows * 2, strict=True):
        here = np.s_[b, at : at + len(row)]
        ids[here], pos[here], until[here] = row, np.arange(len(row)), at + len(row) - 1
    x_BLD = ours(*map(jnp.asarray, (ids, pos, until)))

    def compare(found_BLC, expected_nC):
        for chosen in (places[:3], places[3:]):
            parts = [found_BLC[b, at : at + n] for (b, at), n in zip(chosen, lengths, strict=True)]
            atol = 1e-4 * np.abs(expected_nC).max()
            np.testing.assert_allclose(np.concatenate(parts), expected_nC, atol=atol, rtol=0)

    for side in ("left", "right"):
        x_nD, logit_nV = read_padded(theirs, rows, side)
        compare(x_BLD, x_nD)
        compare(ours.vocab_logits(x_BLD), logit_nV)
    path = tmp_path / "model.safetensors"
    backbone = load_file(path)
    for head, shapes in HEADS.items() if name in WITH_HEADS else ():
        tensors = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
        save_file(backbone | tensors, path)
        kind, _ = hf.find_head(open_tensors(tmp_path), "x")
        assert kind == ("none" if head == "tokens" else head)
        if tensors:
            ours = hf.load(tmp_path, hf_config.model_config(config, head=kind))
            expected_nC = apply_head(tensors, x_nD)
        else:
            cfg, expected_nC = hf_config.model_config(config, lm_head=True), logit_nV[:, (7, 5)]
            ours = VerdictHead(hf.load(tmp_path, cfg), 7, 5)
        compare(ours.step_logits(x_BLD), expected_nC)


@pytest.mark.parametrize("name", ["gemma2", "gemma3_text", "qwen3_moe"])
def test_the_gradient_of_every_weight_is_pytorchs_and_so_is_what_goes_on_with_a_cache(tmp_path, rng, name):
    import torch

    theirs = torch_model(
        family=name,
        **BACKBONES[name] | {"num_hidden_layers": 2, "sliding_window": 4, "norm_topk_prob": False},
    )
    theirs.save_pretrained(tmp_path)
    cfg = hf_config.model_config(hf_config.read_config(tmp_path), lm_head=True)
    ids, weight_BLV = rng.integers(1, 96, (2, 9)), rng.standard_normal((2, 9, 96)).astype(np.float32)
    logit_BLV, ours = theirs(torch.tensor(ids)).logits, hf.load(tmp_path, cfg)
    (logit_BLV * torch.tensor(weight_BLV)).sum().backward()
    logit_BLV = logit_BLV.detach().numpy()

    @jax.jit
    def calls(model):
        cache, found = make_cache(cfg, 2, 9), []
        for some in (np.arange(6), np.arange(6, 9)):
            pos = jnp.tile(jnp.asarray(some), (2, 1))
            x_BLD, cache = model(jnp.asarray(ids[:, some]), pos, jnp.full(pos.shape, ALWAYS), cache=cache)
            found.append(model.vocab_logits(x_BLD))
        return jnp.concatenate(found, axis=1)

    np.testing.assert_allclose(calls(ours), logit_BLV, atol=1e-4 * np.abs(logit_BLV).max(), rtol=0)
    loss = lambda model: (model.vocab_logits(run(model, ids)) * weight_BLV).sum()
    found = nnx.state(jax.jit(jax.grad(loss))(ours)).to_pure_dict()
    expected = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    for where in [name.removesuffix("gate_up_proj") for name in expected if name.endswith("gate_up_proj")]:
        gate, up = np.split(expected.pop(f"{where}gate_up_proj"), 2, axis=1)  # of all experts at once
        for part, grad_E in (("gate", gate), ("up", up), ("down", expected.pop(f"{where}down_proj"))):
            expected |= {f"{where}{e}.{part}_proj.weight": grad for e, grad in enumerate(grad_E)}
    pairs = []
    for key, grad in (found | found.pop("blocks")).items():
        names, transposed = hf.tensor_names(key, cfg, ""), hf.is_transposed(key)
        each = [(grad[i], expected[f"model.{names[i]}"]) for i in np.ndindex(names.shape)]
        pairs += [(mine.T, theirs) if transposed else (mine, theirs) for mine, theirs in each]
    assert len(pairs) == len(expected)
    for mine, theirs in pairs:
        np.testing.assert_allclose(mine, theirs, atol=1e-4 * np.abs(theirs).max(), rtol=0)


OLD = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 4, "intermediate_size": 8, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
}  # fmt: skip


def test_both_layouts_of_the_rotary_settings_read_alike():
    old = OLD | {"rope_scaling": LLAMA31}
    new = {key: x for key, x in OLD.items() if key != "rope_theta"}
    new["rope_parameters"] = LLAMA31 | {"rope_theta": 5e5}
    assert hf_config.model_config(old) == hf_config.model_config(new)
    assert hf_config.model_config(old).rope_scaling == RopeScaling("llama3", 8.0, 64, 1.0, 4.0)
    gemma = OLD | {"model_type": "gemma3_text"}
    layers = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5}}
    layers["sliding_attention"] = {"rope_type": "default", "rope_theta": 7.0}
    expected = hf_config.model_config(gemma | {"rope_parameters": layers})
    assert (expected.rope_scaling, expected.local_rope_theta) == (RopeScaling("linear", 8.0), 7.0)
    old = gemma | {"rope_local_base_freq": 7.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert hf_config.model_config(old) == expected


def test_what_a_config_leaves_out_is_the_familys_default():
    """gemma-3-4b's config says no more than this; a mixture of experts has two names for a key."""
    sparse = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240}
    sparse |= {"num_hidden_layers": 34, "sliding_window": 1024}
    sparse["rope_scaling"] = {"factor": 8.0, "rope_type": "linear"}
    cfg = hf_config.model_config(sparse)
    assert (cfg.vocab, cfg.heads, cfg.kv_heads, cfg.head_dim, cfg.window) == (262_208, 8, 4, 256, 1024)
    assert (cfg.rope_theta, cfg.local_rope_theta, cfg.tied) == (1e6, 1e4, True)
    assert cfg.sliding == tuple(i % 6 != 5 for i in range(34))
    moe = {"model_type": "qwen3_moe", "num_local_experts": 4, "num_experts_per_tok": 2}
    assert hf_config.model_config(OLD | moe | {"num_key_value_heads": 2}).experts == 4
    code = {"auto_map": {"AutoModel": "modeling.Model"}, "architectures": ["Model"]}  # never run
    assert hf_config.model_config(OLD | code) == hf_config.model_config(OLD)


REFUSED = [
    ({"model_type": "gemma2", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_type"),
    ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"hidden_act": "gelu"}, "hidden_act"),
    ({"vocab_size": "many"}, "vocab_size"),
    ({"num_key_value_heads": 3}, "kv_heads"),
]


@pytest.mark.parametrize("changes, key", REFUSED)
def test_a_config_that_cannot_be_computed_is_one_line(changes, key):
    refuses(key, hf_config.model_config, OLD | changes)


LABELS = {"scalar": ["good"], "binary": ["bad", "good"], "ternary": ["bad", "neutral", "good"]}
EXPORT_KEYS = {"llama": {"rope_scaling": LLAMA31}, "mistral": {"sliding_window": 4}}
EXPORT_KEYS["qwen3_moe"] = BACKBONES["qwen3_moe"]


@pytest.mark.parametrize(
    "head, family",
    [("scalar", "qwen2"), ("ternary", "qwen2")]
    + [("binary", f) for f in ("qwen2", "qwen3", "llama", "mistral", "gemma2", "qwen3_moe")],
)
def test_an_export_is_read_back_by_pytorch(tmp_path, rng, head, family, tokenizer):
    import torch
    from transformers import AutoModelForTokenClassification

    size = {"scalar": 1, "binary": 2, "ternary": 3}[head]
    theirs = torch_model(size, family, **EXPORT_KEYS.get(family, {}))
    theirs.save_pretrained(tmp_path)
    assert hf.find_head(open_tensors(tmp_path), "x") == (head, "score")
    ours = hf.load(tmp_path, hf_config.model_config(hf_config.read_config(tmp_path), head=head))
    hf.save(tmp_path / "out", ours, tokenizer)
    again = AutoModelForTokenClassification.from_pretrained(tmp_path / "out").eval()
    assert type(again) is type(theirs) and again.config.id2label == dict(enumerate(LABELS[head]))
    ids = torch.tensor(rng.integers(0, 96, (2, 9)))
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, theirs(ids).logits, rtol=0, atol=1e-4)


def test_export_of_the_mlp_head_has_the_layout_of_the_qwen_prms(tmp_path, rng, tokenizer):
    """Qwen's own class: Qwen2Model and score = Linear, ReLU, Linear; every tensor has its place."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, Qwen2Model

    ours = PRM(dataclasses.replace(TINY, head="mlp", tied=False), rngs=nnx.Rngs(0))
    ours.w_mlp_head[...] = ours.w_mlp_head[...] * 20
    hf.save(tmp_path, ours, tokenizer)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.architectures == ["Qwen2ForProcessRewardModel"]

    class QwenPRM(torch.nn.Module):
        def __init__(self):
            super().__init__()
            D = config.hidden_size
            self.model = Qwen2Model(config)
            self.score = torch.nn.Sequential(torch.nn.Linear(D, D), torch.nn.ReLU(), torch.nn.Linear(D, 2))

    theirs = QwenPRM().eval()
    theirs.load_state_dict(load_file(tmp_path / "model.safetensors"))
    ids = rng.integers(0, 64, (2, 9))
    with torch.no_grad():
        expected = theirs.score(theirs.model(torch.tensor(ids)).last_hidden_state).softmax(-1)[..., 1]
    logit_BTC = ours.step_logits(run(ours, ids))
    found = jax.nn.sigmoid(heads.HEADS["mlp"].log_odds(logit_BTC))
    assert np.ptp(found) > 0.02
    np.testing.assert_allclose(found, expected, atol=1e-5)


GEMMA = {"qkv_bias": False, "post_norms": True, "activation": "gelu", "embed_scale": 32**0.5}
GEMMA |= {"query_scale": (8 / 24) ** 0.5, "window": 5, "sliding": (True, False)}
GEMMA2 = GEMMA | {"family": "gemma2"}
GEMMA3 = GEMMA | {"family": "gemma3_text", "qk_norm": True, "local_rope_theta": 500.0}
LM = {"tied": False, "lm_head": True, "head": "none"}
NO_BIAS = {"qkv_bias": False, "tied": False}
MISTRAL = NO_BIAS | {"family": "mistral"}
QWEN3_MOE = NO_BIAS | {"family": "qwen3_moe", "qk_norm": True, "norm_topk_prob": True}
GRANITE = NO_BIAS | {"family": "granite", "embed_scale": 12.0, "residual_scale": 0.22, "logit_scale": 0.125}
LINEAR, LLAMA = RopeScaling("linear", 8.0), RopeScaling("llama3", 8.0, 64, 1.0, 4.0)
EXPORTED = [
    {},
    LM,
    NO_BIAS | {"family": "qwen3", "qk_norm": True, "head": "mlp"},
    QWEN3_MOE | {"experts": 3, "experts_per_token": 2},
    {"family": "llama", "o_bias": True, "mlp_bias": True, "rope_scaling": LLAMA},
    {"rope_scaling": RopeScaling("yarn", 4.0, 64, attention_factor=1.2, truncate=False)},
    {"rope_scaling": LINEAR, "window": 3},
    {"window": 5, "sliding": (False, True), "max_positions": 131_072},
    MISTRAL | {"window": 7, "head": "ternary"},
    MISTRAL | {"window": None, "head": "binary"},
    GRANITE | {"query_scale": 0.5, "head_dim": 16},
    GEMMA2 | {"attn_logit_softcap": 50.0, "final_logit_softcap": 30.0, "max_positions": 8192},
    GEMMA3,
    GEMMA3 | LM | {"rope_scaling": LINEAR, "final_logit_softcap": 20.0, "sliding": None},
]


@pytest.mark.parametrize("changes", EXPORTED)
def test_round_trip_is_exact(tmp_path, tokenizer, changes):
    cfg = dataclasses.replace(TINY, **changes)
    model = PRM(cfg, rngs=nnx.Rngs(0))
    hf.save(tmp_path, model, tokenizer)
    read = hf_config.model_config(hf_config.read_config(tmp_path), head=cfg.head, lm_head=cfg.lm_head)
    assert read == cfg
    assert_equal(model, hf.load(tmp_path, read))


def assert_equal(a, b):
    for x, y in zip(*(jax.tree.leaves(nnx.state(model)) for model in (a, b)), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_large_export_is_sharded_as_transformers_reads_it(tmp_path, rng, tokenizer, monkeypatch):
    """At most 20,000 bytes a file but for a larger tensor; the one file of before goes and comes back."""
    import torch
    from transformers import AutoModelForTokenClassification

    model = PRM(TINY, rngs=nnx.Rngs(0))
    hf.save(tmp_path, model, tokenizer)
    whole = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    largest = max(4 * math.prod(x.get_shape()) for x in open_tensors(tmp_path).values())
    monkeypatch.setattr(folders, "SHARD", 20_000)
    hf.save(tmp_path, model, tokenizer)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2 and files[0].name == f"model-00001-of-{len(files):05}.safetensors"
    assert all(path.stat().st_size < max(20_000, largest) + 4_000 for path in files)
    parts = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    ids = torch.tensor(rng.integers(0, 64, (2, 9)))
    with torch.no_grad():
        torch.testing.assert_close(whole(ids).logits, parts(ids).logits)
    again = hf.load(tmp_path, TINY)
    assert_equal(model, again)
    monkeypatch.undo()
    hf.save(tmp_path, model, tokenizer)
    assert [path.name for path in tmp_path.glob("*.safetensors*")] == ["model.safetensors"]


def test_missing_head_raises_unless_a_new_one_is_asked_for(tmp_path, tokenizer):
    hf.save(tmp_path, PRM(dataclasses.replace(TINY, head="none"), rngs=nnx.Rngs(0)), tokenizer)
    with pytest.raises(InputError, match="no step head.*model.new_head=true"):
        hf.load(tmp_path, TINY)
    model = hf.load(tmp_path, TINY, new_head=True, seed=1)
    assert 0 < np.abs(model.w_head[...]).max() < 0.2 and (model.b_head[...] == 0).all()
    other = hf.load(tmp_path, dataclasses.replace(TINY, head="mlp"), new_head=True, seed=2)
    first, last = (np.asarray(x[...]).ravel() for x in (other.w_mlp_head, other.w_head))
    assert not np.array_equal(model.w_head[...], last[: TINY.dim, None])
    assert abs(np.corrcoef(first[: last.size], last)[0, 1]) < 0.5  # two draws


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"hidden_size": 40}, "shape"),
        ({"num_hidden_layers": 1, "layer_types": None}, "layers.1"),
        ({"model_type": "reward", "auto_map": {"AutoModel": "modeling.Reward"}}, "auto_map, is never run"),
        ("{", "config.json"),
    ],
)
def test_a_bad_config_is_one_line(tmp_path, tokenizer, changes, named):
    hf.save(tmp_path, PRM(TINY, rngs=nnx.Rngs(0)), tokenizer)
    path = tmp_path / "config.json"
    text = changes if isinstance(changes, str) else json.dumps(json.loads(path.read_text()) | changes)
    path.write_text(text)
    read = lambda: hf.load(tmp_path, hf_config.model_config(hf_config.read_config(tmp_path), head="scalar"))
    refuses(named, read)


@pytest.mark.parametrize(
    "file, said",
    [
        ("m/tiny-prm.Q8_0.gguf", "m/tiny-prm.Q8_0.gguf: .*safetensors"),
        ("m/consolidated.pth", "consolidated.pth: .*safetensors"),
        ("m/onnx/model.onnx", "model.onnx: .*safetensors"),
        ("m/notes.md", "m: has no config.json"),
        ("m.tar.gz", "m.tar.gz: .*safetensors"),
        (None, "m: has no config.json"),
    ],
)
def test_what_is_no_checkpoint_is_named_for_what_it_is(tmp_path, file, said):
    (tmp_path / "m" / "onnx").mkdir(parents=True)
    if file:
        (tmp_path / file).write_text("x")
    if file != "m/onnx/model.onnx":
        (tmp_path / "m" / "onnx").rmdir()
    where = tmp_path / (file if file and "/" not in file else "m")
    refuses(said, open_checkpoint, where, "best", None, "float32")


@pytest.mark.parametrize("key", ["quantization_config", "quantization"])
def test_a_quantised_model_is_refused(tmp_path, tokenizer, key):
    hf.save(tmp_path, PRM(dataclasses.replace(TINY, vocab=320), rngs=nnx.Rngs(0)), tokenizer)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: {"bits": 4, "quant_method": "gptq"}}))
    refuses(f"config.json: {key}: got 'gptq'", open_checkpoint, tmp_path, "best", None, "float32")


def test_files_that_are_missing_or_bad_are_one_line(tmp_path, tokenizer):
    refuses("config.json", hf_config.read_config, tmp_path)
    refuses("./nowhere", folders.locate, "./nowhere")
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    for name, text in (("tokenizer.model", ""), ("tokenizer.json", "{}")):
        (tmp_path / name).write_text(text)
        refuses(f"{tmp_path}: ", load_tokenizer, tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["x.T", null]}}')
    refuses("auto_map", load_tokenizer, tmp_path)


def test_bad_safetensors_are_one_line(tmp_path, tokenizer):
    cfg = dataclasses.replace(TINY, head="none")
    hf.save(tmp_path, PRM(cfg, rngs=nnx.Rngs(0)), tokenizer)
    weights, index = tmp_path / "model.safetensors", tmp_path / "model.safetensors.index.json"
    whole, arrays = weights.read_bytes(), load_file(weights)
    norm = arrays["model.norm.weight"]
    for changes, named in (
        ({"model.norm.weight": norm[:31]}, "norm.weight"),
        ({"model.norm.weight": norm.astype(np.int32)}, "norm.weight"),
        ({"surprise": norm}, "surprise"),
    ):
        save_file(arrays | changes, weights)
        refuses(named, hf.load, tmp_path, cfg)
    weights.write_bytes(whole[:-1])
    refuses("model.safetensors", hf.load, tmp_path, cfg)
    weights.unlink()  # it comes before an index, as in transformers
    for file, named in (("absent.safetensors", "absent"), ("../other/model.safetensors", "weight_map")):
        index.write_text(json.dumps({"weight_map": {"a": file}}))
        refuses(named, hf.load, tmp_path, cfg)
    weights.write_bytes(whole)
    hf.load(tmp_path, cfg)


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"qk_norm": True}, "qk_norm"),
        ({"activation": "relu2"}, "hidden_act"),
        ({"family": "llama", "o_bias": True, "window": 4}, "window"),
        ({"experts": 2, "experts_per_token": 1}, "experts"),
    ],
)
def test_an_export_refuses_what_a_config_json_cannot_say(tmp_path, tokenizer, changes, field):
    model = PRM(dataclasses.replace(TINY, **changes), rngs=nnx.Rngs(0))
    refuses(f"export: .*{field}", hf.save, tmp_path, model, tokenizer)
    assert not list(tmp_path.iterdir())


def test_own_exports_name_their_head(tmp_path, tokenizer, monkeypatch):
    """A second head of two outputs differs by its name alone; an entry of HEADS makes it known."""
    from prm_jax import model as model_file

    margin = dataclasses.replace(model_file.HEADS["binary"], labels=("worse", "better"))
    monkeypatch.setitem(model_file.HEADS, "margin", margin)
    hf.save(tmp_path, PRM(dataclasses.replace(TINY, head="margin", vocab=320), rngs=nnx.Rngs(0)), tokenizer)
    config = hf_config.read_config(tmp_path)
    assert config["id2label"] == {"0": "worse", "1": "better"} and config["prm_jax"]["head"] == "margin"
    assert hf.find_head(open_tensors(tmp_path), "x") == ("binary", "score")
    assert hf.find_head(open_tensors(tmp_path), "x", "margin") == ("margin", "score")
    with pytest.raises(InputError, match="x: score.weight"):
        hf.find_head(open_tensors(tmp_path), "x", "lost")
    loaded = open_checkpoint(tmp_path, "best", Format("plain", "\n"), "float32")
    assert loaded.model.cfg.head == "margin"


def test_the_model_section_overrides_any_field_of_a_random_model(tmp_path, tokenizer):
    small = dataclasses.replace(TINY, vocab=320, head="binary", lm_head=True)
    hf.save(tmp_path, PRM(small, rngs=nnx.Rngs(0)), tokenizer)

    def choose(name=str(tmp_path), **changes):
        choice = parse({"head": "binary", "dtype": "float32"} | changes, init.ModelChoice, "model")
        loss = types.SimpleNamespace(lm_weight=0.5)
        cfg = types.SimpleNamespace(init=name, objective="prm", model=choice, loss=loss)
        return init.read_model_config(cfg, tokenizer)

    assert choose() == choose(dim=32) == small
    for changes in ({"dim": 48}, {"o_bias": True}):
        refuses("model." + "".join(changes), choose, **changes)
    changes = {"sliding": [False, True, False, False], "rope_scaling": {"rope_type": "linear", "factor": 2}}
    cfg = choose("random", **changes, window=3, norm_eps=1)
    assert (cfg.window, cfg.sliding[:2], cfg.norm_eps) == (3, (False, True), 1.0)
    assert cfg.rope_scaling == RopeScaling("linear", 2.0)


def test_a_stored_dtype_is_kept_and_means_the_same(tmp_path, rng, tokenizer):
    """bfloat16 weights stay bfloat16 and compute in float32 exactly as their float32 copies do."""
    import torch
    from safetensors.torch import load_file, save_file

    hf.save(tmp_path, PRM(TINY, rngs=nnx.Rngs(0)), tokenizer)
    low = {k: v.to(torch.bfloat16) for k, v in load_file(tmp_path / "model.safetensors").items()}
    save_file(low, tmp_path / "model.safetensors")
    kept, wide = (hf.load(tmp_path, TINY, stored=stored) for stored in ("file", "float32"))
    assert {x.dtype for x in jax.tree.leaves(nnx.state(kept))} == {jnp.dtype("bfloat16")}
    ids = rng.integers(0, 64, (1, 6))
    np.testing.assert_array_equal(run(kept, ids), run(wide, ids))
    np.testing.assert_array_equal(
        wide.blocks.w_q[...][0], low["model.layers.0.self_attn.q_proj.weight"].float().T
    )


def test_a_step_tag_is_the_token_that_pads():
    encode = lambda text, add_special_tokens: [7, len(text)]
    tokenizer = types.SimpleNamespace(pad_token="<pad>", encode=encode)
    assert step_tag(Format("padded", separator="{pad}"), tokenizer) == len("<pad>")
