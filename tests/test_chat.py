"""Policies speak their own language: the prompts, stops and samples of models with a chat template."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from conftest import printed, real_model
from test_hf import torch_model

from prm_jax import InputError
from prm_jax.checkpoints.names import OpenOptions, open_verifier
from prm_jax.checkpoints.tokenizer import train_tokenizer
from prm_jax.data.questions import make_candidate
from prm_jax.data.steps import format_steps
from prm_jax.data.writing import write_rows
from prm_jax.formats import read_format
from prm_jax.generate import pools
from prm_jax.generate.policies import Sampling
from prm_jax.generate.sampling import Policy, open_policy
from prm_jax.rl.rollouts import roll_out

PLAIN, GREEDY = read_format("plain"), Sampling(0.0, None, 1.0, 24)
SPECIAL = ["<bos>", "<|im_start|>", "<|im_end|>", "<think>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SYSTEM = "<|im_start|>system\nBe brief.<|im_end|>\n"
ALTERNATES = "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}"
TEMPLATES = {
    "system_by_default": "{% if messages[0].role != 'system' %}" + SYSTEM + "{% endif %}" + CHATML,
    "thinks": CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif"),
    "begins_and_trims": "<bos>" + CHATML.replace("m.content", "m.content | trim"),
    "no_system_no_odd_roles": "{% for m in messages %}" + ALTERNATES + "[{{ m.role }}] {{ m.content }}"
    "{% if m.role == 'assistant' %}<|im_end|>{% endif %}{% endfor %}",
}
PROBLEMS = ["1 + 2?", " 7 + 5 = 2 + 3 + {problem}? ", "4?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of transformers with two layers and the first template, saved."""
    folder = tmp_path_factory.mktemp("chat")
    tokenizer = train_tokenizer(["7 + 5 = 2\n3 + 4\nassistant user"], 280)
    tokenizer.add_special_tokens({"bos_token": "<bos>", "additional_special_tokens": SPECIAL[1:]})
    tokenizer.chat_template = TEMPLATES["system_by_default"]
    tokenizer.save_pretrained(folder)
    torch_model(vocab_size=len(tokenizer), num_hidden_layers=2).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def policy(folder):
    return open_policy(folder, "best", PLAIN, "float32", GREEDY, 4)


def with_template(policy: Policy, template: str, **changes) -> Policy:
    policy.tokenizer.chat_template = template
    return dataclasses.replace(policy, format=read_format("plain", **changes), eos_ids=())


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_template_writes_what_stands_before_a_step(policy, name):
    own = with_template(policy, TEMPLATES[name])
    tokenizer = own.tokenizer
    for problem in PROBLEMS:
        turns = [{"role": "user", "content": problem}]
        asked = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        none, one = own.prefix_ids([(problem, ()), (problem, ("3+4=7",))])
        step = tokenizer.encode("3+4=7", add_special_tokens=False) + tokenizer.encode("\n")
        assert none.tolist() == asked and one.tolist() == asked + step
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") in own.eos_ids
    assert own.prompt("4?").endswith("<think>\n") == (name == "thinks")


def test_a_thought_that_the_template_opens_stands_in_the_solution(policy):
    """So an answer inside an unfinished thought is none, and the steps are continued behind it."""
    own = with_template(policy, TEMPLATES["thinks"])
    ((sample,),) = own.extend([("4?", ())], 1, "end", jax.random.key(0))
    assert sample.text.startswith("<think>\n") and len(sample.logp_T) == len(format_steps(PLAIN, sample.text))
    assert sample.logp_T[0] == 0 and sum(sample.logp_T) == pytest.approx(sample.logp_L.sum(), rel=1e-5)
    bare, first, second = own.prefix_ids([("4?", ()), ("4?", ("<think>",)), ("4?", ("<think>", "3+4=7"))])
    assert bare.tolist() == first.tolist() == second[: len(bare)].tolist()
    cut = make_candidate(own.format, dataclasses.replace(sample, text="<think>\n3+4=7. The answer is 7."))
    assert cut.answer is None
    (response,) = roll_out(own, ["4?"], 1, jax.random.key(0))
    assert response.thought == "<think>" and response.ids_L.tolist() == sample.ids_L.tolist()
    spoken = with_template(policy, TEMPLATES["thinks"].replace("<think>\n", "<think>\n\n</think>\n\n"))
    ((sample,),) = spoken.extend([("4?", ())], 1, "end", jax.random.key(0))
    assert not sample.text.startswith("<think>")


def test_the_key_turns_it_off_names_another_and_gives_a_system_message(policy, tmp_path):
    template = TEMPLATES["system_by_default"]
    assert with_template(policy, template, chat=False).prompt("4?") == "4?"
    by_hand = with_template(policy, template, prefix="<|im_start|>user\n{problem}<|im_end|>\n")
    assert by_hand.prompt("4?") == "<|im_start|>user\n4?<|im_end|>\n" and not by_hand.format.chat
    asked = with_template(policy, template, system="Count.", prefix="{problem}\n\nStep by step.")
    assert asked.prompt("4?").startswith("<|im_start|>system\nCount.<|im_end|>\n<|im_start|>user\n4?\n\nStep")
    (tmp_path / "own.jinja").write_text("Q: {{ messages[0].content }}\nA:")
    own = with_template(policy, None, chat=str(tmp_path / "own.jinja"))
    assert own.prompt("4?") == "Q: 4?\nA:" and own.eos_ids == (own.tokenizer.eos_token_id,)
    assert with_template(policy, None).prompt("4?") == "4?"
    with pytest.raises(InputError, match="^format.chat: "):
        read_format("plain", chat="auto")
    refusing = with_template(policy, TEMPLATES["no_system_no_odd_roles"], system="Count.")
    with pytest.raises(InputError, match="^format=plain: .*format.chat=false"):
        refusing.prompt("4?")


def assert_greedy_is_theirs(folder, policy: Policy, problems: list[str]) -> int:
    """Token for token, up to where two logits of theirs tie to 1e-4; returns the number of such problems."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    turns = [[{"role": "user", "content": problem}] for problem in problems]
    more = {"add_generation_prompt": True, "padding": True, "return_dict": True, "return_tensors": "pt"}
    asked = tokenizer.apply_chat_template(turns, **more)
    how = {"do_sample": False, "max_new_tokens": policy.sampling.max_tokens, "pad_token_id": 0}
    how |= {"eos_token_id": list(policy.eos_ids), "output_logits": True, "return_dict_in_generate": True}
    with torch.no_grad():
        out = theirs.generate(**asked, **how)
    ours = policy.extend([(problem, ()) for problem in problems], 1, "end", jax.random.key(0))
    n_ties = 0
    for i, (sample,) in enumerate(ours):
        expected = out.sequences[i, asked["input_ids"].shape[1] :].tolist()
        found = sample.ids_L.tolist()
        assert sample.finish_reason == "eos" or len(found) == policy.sampling.max_tokens
        different = [t for t, token in enumerate(found) if token != expected[t]]
        if different:
            best, second = out.logits[different[0]][i].topk(2).values.tolist()
            assert best - second < 1e-4, problems[i]
            n_ties += 1
    return n_ties


def test_greedy_samples_of_a_template_are_those_of_transformers(policy, folder):
    own = with_template(policy, TEMPLATES["system_by_default"])
    assert assert_greedy_is_theirs(folder, own, PROBLEMS) == 0


@pytest.mark.slow
def test_greedy_samples_of_a_real_model_are_those_of_transformers():
    folder = real_model("smollm2")
    law = Sampling(0.0, None, 1.0, 32)
    policy = open_policy(folder, "best", PLAIN, "float32", law, 32)
    what = ("pens", "books", "eggs", "stamps", "coins")
    problems = [
        f"Tom has {7 + 5 * n} {what[n % 5]} and gives {n} of them away. How many are left?" for n in range(20)
    ]
    assert assert_greedy_is_theirs(folder, policy, problems) <= 2


def test_the_pool_says_how_it_was_asked_and_a_likelihood_reads_the_same(folder, monkeypatch, tmp_path):
    write_rows(tmp_path / "problems.jsonl", [{"problem": "3 + 4?", "answer": "7"}])
    asked = f"checkpoint={folder} input=problems.jsonl n=2 sampling.max_tokens=5 hydra.run.dir=a".split()
    out = printed(pools.main, monkeypatch, *asked, cwd=tmp_path)
    about = json.loads((tmp_path / "a/about.json").read_text())
    prompt = SYSTEM + "<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n"
    assert about["prompt"] == prompt and about["format"]["chat"] is True
    assert repr(prompt.replace("{problem}", "3 + 4?")) in out
    scorer = open_verifier(f"policy:{folder}", OpenOptions(format=PLAIN))
    policy = open_policy(folder, "best", PLAIN, "float32", GREEDY, 4)
    ((sample,),) = policy.extend([("3 + 4?", ())], 1, "step", jax.random.key(0))
    logit_T = scorer.score([("3 + 4?", ("1",))])[0]
    assert scorer.format == policy.format and np.isfinite(logit_T).all() and len(sample.ids_L)
    of_verifier = open_verifier(f"policy:{folder}", OpenOptions(format=read_format("qwen_prm")))
    assert of_verifier.format == policy.format
