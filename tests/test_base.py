"""The embedded base model: small, a language model only, and right on every held-out problem when it answers greedily."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from test_arithmetic import CFG

from prm_jax.checkpoints import hf, hf_config
from prm_jax.checkpoints.hf_tensors import open_tensors
from prm_jax.data.examples import make_examples
from prm_jax.data.formats import Format
from prm_jax.data.packing import eval_batches
from prm_jax.tasks.chain import make_solutions


def test_small_and_without_a_step_head():
    size = sum(path.stat().st_size for path in hf.EMBEDDED.iterdir())
    assert size < 1.5 * 2**20
    assert hf.find_head(open_tensors(hf.EMBEDDED), "base") == ("none", "lm_head")


def test_greedy_answers_are_right_on_problems_it_never_saw():
    """Teacher-forced arg max equals every token of the right solution, so greedy decoding writes exactly it."""
    solutions = make_solutions(dataclasses.replace(CFG, error_rate=0.0, solutions_per_problem=1), 500, "test", 0)
    tokenizer = hf.load_tokenizer(hf.EMBEDDED)
    examples, _ = make_examples(solutions, Format("plain", "\n"), tokenizer, "lm")
    model = hf.load(hf.EMBEDDED, hf_config.model_config(hf_config.read_config(hf.EMBEDDED)))
    logits = jax.jit(lambda m, b: m.vocab_logits(m(b["ids"], b["pos"], b["visible_until"])))
    right = total = 0
    for batch in eval_batches(examples, 128, 32):
        batch = {k: jnp.asarray(v) for k, v in batch.items()}
        hit_BL = jnp.roll(logits(model, batch).argmax(-1), 1, axis=1) == batch["ids"]
        counts_BL = batch["token_weight"] > 0
        right, total = right + int((hit_BL & counts_BL).sum()), total + int(counts_BL.sum())
    assert total > 10_000 and right == total, f"{total - right} of {total} tokens"


def test_tokenizer_reads_the_task_compactly_and_any_text():
    tokenizer = hf.load_tokenizer(hf.EMBEDDED)
    assert len(tokenizer.encode("4+5=2")) == 5
    text = "naïve 数学\n\n∑"
    assert tokenizer.decode(tokenizer.encode(text), clean_up_tokenization_spaces=False) == text
    assert np.max(tokenizer.encode(text)) < len(tokenizer)
