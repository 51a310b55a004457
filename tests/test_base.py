"""The embedded models: small, and the policy writes results as often as the solver that it learned from, fact
by fact."""

import collections

import jax
import numpy as np
from omegaconf import OmegaConf

from prm_jax import tasks
from prm_jax.checkpoints import hf
from prm_jax.checkpoints.folders import EMBEDDED, SHIPPED, open_tensors
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.checkpoints.tokenizer import load_tokenizer
from prm_jax.encoding import encode
from prm_jax.launch.config import CONF, parse
from prm_jax.packing import layout_tokens
from prm_jax.tasks import chain
from prm_jax.tasks.chain import CHAIN

CFG = parse(OmegaConf.load(CONF / "data/chain.yaml").task, chain.Config, "data.task")


def test_small_and_what_they_claim_to_be():
    size = sum(path.stat().st_size for folder in SHIPPED.values() for path in folder.iterdir())
    assert size < 3 * 2**20
    assert hf.find_head(open_tensors(EMBEDDED), "base") == ("none", "lm_head")
    outcome = open_checkpoint("embedded_orm", "best", None, "float32")
    assert (outcome.objective, outcome.label_kind) == ("orm", "correctness")
    prm = open_checkpoint("embedded_prm", "best", None, "float32")
    assert (prm.objective, prm.label_kind) == ("prm", "correctness")


def measure_laws():
    """{kind of line: [(the policy's law of its result, the solver's, the right result)]} of new problems."""
    loaded = open_checkpoint("embedded", "best", None, "float32")
    digits = [loaded.tokenizer.encode(str(d))[0] for d in range(7)]
    problems, rng = tasks.make_problems(CHAIN, CFG, 300, "test", 5), np.random.default_rng(0)
    rows = [(problem, CHAIN.solve(CFG, problem, rng)) for problem in problems]
    encoded = encode(loaded.format, loaded.tokenizer, rows)
    batch, _ = layout_tokens([[e] for e in encoded], max(len(e.ids_L) for e in encoded))
    hidden = lambda m, b: m.vocab_logits(m(b["ids"], b["pos"], b["visible_until"]))
    p_BLV = np.asarray(jax.nn.softmax(jax.jit(hidden)(loaded.model, batch)))
    of_fact, found = chain.fact_distributions(CFG), collections.defaultdict(list)
    for p_LV, e, (_, steps) in zip(p_BLV, encoded, rows, strict=True):
        for end, step in zip(e.step_end_T, steps, strict=True):
            value, own, _ = chain.parse_line(step)
            law_w = np.eye(7)[value]
            for operation in own:
                law_w = law_w @ of_fact[operation]
            kind = "merged" if len(own) > 1 else "hard" if law_w.max() < 0.9 else own[0][0]
            policy_w = p_LV[end - 2][digits]  # after the `=`: result and line end follow
            found[kind].append((policy_w, law_w, chain.compute(value, own, 7)))
    return found


def test_the_policy_knows_facts_and_has_the_beliefs_of_its_corpus():
    """By kind of line, since one mean would hide a plateau: total variation from the solver's law, P(right).
    Merged lines hide a value: two facts in one step of four layers."""
    laws = measure_laws()
    assert {"+", "-", "*", "max", "min", "hard", "merged"} == laws.keys()
    for kind, rows in laws.items():
        policy, solver, right = map(np.array, zip(*rows, strict=True))
        distance = 0.5 * np.abs(policy - solver).sum(1).mean()
        assert distance < {"hard": 0.1, "merged": 0.3}.get(kind, 0.02), (kind, distance)
        if kind not in ("hard", "merged"):
            assert policy[np.arange(len(right)), right].mean() > 0.96, kind


def test_tokenizer_reads_the_task_compactly_and_any_text():
    tokenizer = load_tokenizer(EMBEDDED)
    assert len(tokenizer.encode("4+5max3=2")) == 7 and len(tokenizer.encode("4 +5 *3 max2 -2 mod7?")) == 12
    text = "naïve 数学\n\n∑"
    assert tokenizer.decode(tokenizer.encode(text), clean_up_tokenization_spaces=False) == text
    assert np.max(tokenizer.encode(text)) < len(tokenizer)
