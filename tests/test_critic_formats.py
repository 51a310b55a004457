"""Critics' formats: prompts, token by token, and P(good) at the verdict against PyTorch, with a real
tokenizer and random weights.

The expected prompts are written out here, as the authors' templates fill in Qwen2.5's chat template, and
not made by prm_jax.
"""

import dataclasses

import numpy as np
import pytest
from conftest import real_data

from prm_jax import InputError
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.checkpoints.tokenizer import load_tokenizer
from prm_jax.critics.critic import LocalCritic
from prm_jax.critics.prompts import CriticFormat, cut_at, fill, messages, prompt_text, verdict_at, with_critic
from prm_jax.formats import all_formats, read_format
from prm_jax.protocols import Continuation

PROBLEM, STEPS = (
    "Tom has 3 boxes of {4} pens.\nHow many?",
    ("3 * 4 = 12.", "So 12 pens,\nat $\\pi$.", "The answer is 12."),
)
QWEN = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
REPLY = "<|im_end|>\n<|im_start|>assistant\n"
# What the critics are made to say: of GenPRM of each step, of the others of the last one.
SAID = {
    "genprm": ["All is well: $\\boxed{12}$.</analyze>\n<output>\n**Judgement**: $\\boxed{Yes}$\n</output>",
               "No.</analyze>\n<output>\n**Judgement**: $\\boxed{No}$\n</output>",
               "Yes or No? $\\boxed{No}$, no: </analyze>\n<output>\n**Judgement**: $\\boxed{Yes}$\n</output>"],
    "thinkprm": [" Step 1: \\boxed{correct} ... Step 3: \\boxed{incorrect}</think>\nIs the solution correct? Yes"],
    "judge": ["3 * 4 is 12. Yes!\nVerdict: No"],
}  # fmt: skip
READ = {  # the last of what is said up to the verdict
    "genprm": "Yes or No? $\\boxed{No}$, no: </analyze>\n<output>\n**Judgement**: $\\boxed{",
    "thinkprm": " Step 1: \\boxed{correct} ... Step 3: \\boxed{incorrect}\nIs the solution correct?",
    "judge": "3 * 4 is 12. Yes!\nVerdict:",
}
IDS = {"genprm": (2753, 9454), "thinkprm": (902, 9834), "judge": (2308, 7414)}  # bad, good


def genprm_prompt():
    text = "<|im_start|>system\nYou are a math teacher. Your task is to review and critique the paragraphs in solution step by step."
    text += f"<|im_end|>\n<|im_start|>user\nQuestion: {PROBLEM}\n\n{STEPS[0]}"
    for n, said in enumerate(SAID["genprm"][:2], 1):
        text += f"{REPLY}<analyze>\nLet's analyze the Paragraph {n} step by step: {said}<|im_end|>\n<|im_start|>user\n{STEPS[n]}"
    return text + f"{REPLY}<analyze>\nLet's analyze the Paragraph 3 step by step: "


def thinkprm_prompt():
    text = f"You are given a math problem and a proposed step-by-step solution:\n\n[Math Problem]\n\n{PROBLEM}\n\n[Solution]\n\n"
    text += f"Step 1: {STEPS[0]}\nStep 2: {STEPS[1]}\nStep 3: {STEPS[2]}\n\nReview and critique each step in the proposed solution to "
    text += "determine whether each step is correct. If the solution is incomplete, only verify the provided steps."
    return QWEN + text + REPLY + "\nLet's verify step by step:"


def judge_prompt():
    text = "Here are a problem, the first steps of a solution, and the step that follows them. Check that step: is what it uses given "
    text += f"or derived before, and is what it derives right?\n\nProblem:\n{PROBLEM}\n\nSteps before:\n1. {STEPS[0]}\n2. {STEPS[1]}\n\n"
    text += f"Step to check:\n{STEPS[2]}\n\nThink it through briefly. Then end with one line, which is "
    return QWEN + text + '"Verdict: Yes" if the step is right and "Verdict: No" if it is not.\n' + REPLY


PROMPTS = {"genprm": genprm_prompt, "thinkprm": thinkprm_prompt, "judge": judge_prompt}


@pytest.fixture(scope="module")
def critic_folder(tmp_path_factory):
    """A causal language model of random weights with Qwen2.5's tokenizer."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizer, folder = load_tokenizer(real_data("tokenizers/qwen2.5")), tmp_path_factory.mktemp("critic")
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=False, attn_implementation="eager", initializer_range=0.5,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def loaded(critic_folder):
    return open_checkpoint(critic_folder, "best", None, "float32")


def saying(critic, texts, reason="eos"):
    """The critic made to say the texts one after another, each ended or cut; the prompts it is given."""
    last = [critic.policy.eos_ids[0]] * (reason == "eos")
    ids = lambda text: np.array(critic.tokenizer.encode(text) + last, np.int32)
    said, given = iter([Continuation(ids(text), np.zeros(0), text, reason) for text in texts]), []
    critic.draw = lambda prompts, numbers: given.extend(prompts) or [next(said) for _ in prompts]
    return given


def p_after(folder, name, *texts):
    """P(good) behind the texts, each tokenised by itself, by PyTorch."""
    import torch
    from transformers import Qwen2ForCausalLM

    tokenizer = load_tokenizer(folder)
    ids = [id_ for text in texts for id_ in tokenizer.encode(text)]
    with torch.no_grad():
        logit_V = Qwen2ForCausalLM.from_pretrained(folder)(torch.tensor([ids])).logits[0, -1]
    return torch.softmax(logit_V[list(IDS[name])], 0)[1].item()


@pytest.mark.parametrize("name", PROMPTS)
def test_the_prompt_is_the_authors_and_p_good_is_pytorchs(critic_folder, loaded, name):
    critic = critic_of(loaded, critic_folder, name)
    given = saying(critic, SAID[name] if name == "genprm" else SAID[name] * 3)
    (logit_T,) = critic.score([(PROBLEM, STEPS)])
    assert given[-1] == PROMPTS[name]()
    tokenizer = critic.tokenizer
    assert critic.policy.prefix_ids([(given[-1], ())])[0].tolist() == tokenizer.encode(PROMPTS[name]())
    # Behind what the critic wrote itself its very ids are read; where it is asked all is one text, as the
    # authors tokenise it.
    asks = critic.format.critic.verdict is None
    expected = p_after(
        critic_folder, name, *([PROMPTS[name]() + READ[name]] if asks else [PROMPTS[name](), READ[name]])
    )
    assert abs(1 / (1 + np.exp(-logit_T[2])) - expected) < 1e-4 and 0.01 < expected < 0.99
    assert critic.stats.no_verdict == 0 and critic.pair == IDS[name]


def critic_of(loaded, folder, name, **more):
    fmt = with_critic(read_format(name))
    fmt = dataclasses.replace(fmt, critic=dataclasses.replace(fmt.critic, votes=more.pop("votes", 1), **more))
    return LocalCritic(loaded, str(folder), fmt, 2, None)


# What is said in vain, and all that the verdict is read behind: the authors' own texts.
OPENED = "All is well: $\\boxed{12}$.</analyze>\n<verify>\nLet's use python code to find any potential error:\n```python\n"
IN_VAIN = {
    "genprm": (OPENED, "All is well: $\\boxed{12}$.</analyze>\n<output>\n**Judgement**: $\\boxed{"),
    "thinkprm": (" 3 * 4 is", " 3 * 4 is\nIs the solution correct?"),
    "judge": ("3 * 4 is", "3 * 4 is\nVerdict:"),
}


@pytest.mark.parametrize("name", IN_VAIN)
@pytest.mark.parametrize("reason", ["eos", "length"])
def test_a_critique_without_a_verdict_is_asked_for_it_as_the_authors_do(
    critic_folder, loaded, name, reason, capsys
):
    said, read = IN_VAIN[name]
    critic = critic_of(loaded, critic_folder, name)
    given = saying(critic, [said] * 2, reason)
    (logit_T,) = critic.score([(PROBLEM, STEPS[:2])])
    assert abs(1 / (1 + np.exp(-logit_T[1])) - p_after(critic_folder, name, given[1] + read)) < 1e-4
    assert capsys.readouterr().out.count("no verdict") == 1
    assert "2 without a verdict; 0 steps unscored" in critic.stats.summary()
    if name == "genprm":  # the next step's prompt holds the critique as it was ended
        first = read + ("Yes" if logit_T[0] >= 0 else "No") + "}$\n</output>"
        assert f"Paragraph 1 step by step: {first}<|im_end|>" in given[1] and "<verify>" not in given[1]


def test_what_is_not_forced_is_counted_and_left_out(critic_folder, loaded, capsys):
    critic = critic_of(loaded, critic_folder, "judge", votes=2, max_tokens=9, force=None, unscored=0.5)
    saying(critic, ["Is it 12?", "Yes, it is"], "length")
    assert critic.score([(PROBLEM, STEPS[:1])])[0].tolist() == [0.0]
    assert (critic.stats.no_verdict, critic.stats.unscored) == (2, 1)
    assert "no verdict" in capsys.readouterr().out
    # Nobody learns after hours that a step has no score: a format says before what becomes of it.
    with pytest.raises(InputError, match="format.critic.force"):
        critic_of(loaded, critic_folder, "judge", force=None)


def test_thinkprm_numbers_steps_anew():
    (turn,) = messages(
        with_critic(read_format("thinkprm")), "1+1?", ("Step 1: a  ", "b", " Step 7: c Step 2: d")
    )
    assert "[Solution]\n\nStep 1: a\nStep 2: b\nStep 3: c  d\n\nReview" in turn["content"]


def test_where_the_verdict_stands():
    genprm, judge = map(with_critic, map(read_format, ("genprm", "judge")))
    assert verdict_at(genprm, "\\boxed{Yes} \\boxed{No}") == 19
    assert verdict_at(genprm, "Yes \\boxed{12} boxed{No}") is None
    assert verdict_at(judge, "Verdict: Yes\nVerdict: maybe") == 8 and verdict_at(judge, "Verdict:Yes") is None


def test_a_critique_ends_before_what_it_goes_on_with():
    fmt = with_critic(read_format("thinkprm"))
    assert cut_at(fmt, "all is well\nIs the solution correct? Yes</think>", 2) == 12
    assert cut_at(fmt, "all is well", 2) is None
    assert cut_at(fmt, "Step 2: so Step 12: Step 3: of two", 2) == 20


def test_templates_are_filled_once():
    assert fill("{problem} {n} {x}", problem="{n} {step}", n=2, step="?") == "{n} {step} 2 {x}"
    fmt = with_critic(read_format("judge"))
    (turn,) = messages(fmt, "{step}?", ("{problem}",))
    assert "Problem:\n{step}?\n" in turn["content"] and "check:\n{problem}\n" in turn["content"]
    assert "Steps before:\n\n" in turn["content"]


def test_a_format_that_cannot_be_read_is_said():
    for writes_none in ({"max_tokens": 0}, {"verdict": None}):
        with pytest.raises(InputError, match="format.critic.force"):
            CriticFormat(prompt="", unscored=0.5, **writes_none)
    with pytest.raises(InputError, match="format.critic.tokenizer"):
        prompt_text(with_critic(read_format("genprm")), None, "1?", ("2",))
    assert not any(fmt.critic for fmt in all_formats())  # a step head is never taken for one
