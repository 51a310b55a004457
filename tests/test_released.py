"""Released PRMs, the whole path: text -> ids -> score, against references written from the authors' own code.

Each reference below says what it follows. The weights are random and tiny; the tokenizers are the real
ones where the data folder has them. The literal ids were worked out from the authors' rules, piece by
piece, and not by running prm_jax; a second time from the authors' repositories and the tokenizers alone,
with the same result.
"""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import real_data, refuses

from prm_jax import InputError
from prm_jax.checkpoints import hf
from prm_jax.checkpoints.folders import SHIPPED, open_weights
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.checkpoints.tokenizer import load_tokenizer
from prm_jax.data.units import UNITS
from prm_jax.encoding import encode
from prm_jax.formats import Format, all_formats, read_format
from prm_jax.generate.policies import show_prompt
from prm_jax.launch.config import parse

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """Of folders with equal tokenizers the first's: one of 150,000 entries takes seconds to read."""
    from transformers import AutoTokenizer

    known, read = {}, AutoTokenizer.from_pretrained

    def cached(folder, **settings):
        files = sorted(
            path for path in Path(folder).glob("*.*") if path.suffix in (".json", ".txt", ".jinja")
        )
        key = tuple((path.name, hash(path.read_bytes())) for path in files if "index" not in path.name)
        if key not in known:
            known[key] = read(folder, **settings)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AutoTokenizer, "from_pretrained", cached)
        yield


SHAPE = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "tie_word_embeddings": False, "attn_implementation": "eager",
}  # fmt: skip
MANY = tuple(f"Take {n} and add {n * n}: {n + n * n}." for n in range(16))
CONVERSATIONS = [
    ("What is 1 + 1?", ("It is 2.",)),
    ("Janet has 3 boxes of 4 pens.\nHow many pens?", ("3 * 4 = 12.", "The answer is: \\boxed{12}")),
    ("Count.", MANY),
    ("naïve 数学 → ∑?", ("two\nlines\n\nhere", "$x^2$ ∑ 数", "end")),
]
WITH_EMPTY = ("Go on.", ("", "then", "", ""))


def as_published(fmt, score_T):
    """Log-odds in the unit in which the format's authors state scores."""
    return UNITS[fmt.score].from_log_odds(score_T.astype(np.float64))


# ---------------------------------------------------------------- tokenizers


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """Qwen2.5's tokenizer, with id 151651 under the name that the Qwen PRMs give it."""
    source, folder = real_data("tokenizers/qwen2.5"), tmp_path_factory.mktemp("qwen")
    for path in source.glob("*.*"):
        if path.suffix in (".json", ".txt") and path.name != "SOURCE.txt":
            folder.joinpath(path.name).write_text(path.read_text().replace("<|quad_end|>", "<extra_0>"))
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def small():
    """For what no text is read by: the shipped model's, of 320 entries."""
    return load_tokenizer(SHIPPED["embedded_orm"])


@pytest.fixture(scope="module")
def mistral(tmp_path_factory):
    """As in Math-Shepherd's checkpoint: Mistral's SentencePiece model and no tokenizer.json."""
    pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("mistral")
    shutil.copy(real_data("tokenizers/mistral/tokenizer.model.v1"), folder / "tokenizer.model")
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings = tokens | {"tokenizer_class": "LlamaTokenizer", "legacy": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text('{"model_type": "mistral"}')
    loaded = load_tokenizer(folder)
    assert plain_ids(loaded, "+ -") + plain_ids(loaded, "ки") == [648, 387, 12902]  # the card's own check
    return loaded


@pytest.fixture(scope="module")
def marked_qwen(tmp_path_factory):
    """Qwen2.5's tokenizer with Granite's turns, PQM's mark, and a first token that is never written."""
    tokenizer = load_tokenizer(real_data("tokenizers/qwen2.5"))
    marks = ["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "[PRM]"]
    tokenizer.add_special_tokens({"additional_special_tokens": marks, "bos_token": "<|end_of_text|>"})
    folder = tmp_path_factory.mktemp("marked")
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    return load_tokenizer(folder)


def test_a_policy_whose_tokenizer_adds_blanks_says_so(mistral, small, capsys):
    plain = {"prompt": str, "format": Format("plain", separator="\n"), "prefix_ids": None}
    for tokenizer in (mistral, small):
        show_prompt(SimpleNamespace(tokenizer=tokenizer, **plain), "?")
    assert capsys.readouterr().out.count("a blank before each step") == 1


@pytest.fixture
def reasoneval_tokenizer(mistral):
    mistral.pad_token = "<s>"  # which the authors' indices for the 7B model imply
    yield mistral
    mistral.pad_token = None


@pytest.fixture
def skywork_tokenizer(qwen):
    """With a beginning-of-sequence token, which the authors' code needs; theirs was not to be seen."""
    qwen.bos_token = "<|endoftext|>"
    yield qwen
    qwen.bos_token = None


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def llama_words(tmp_path_factory):
    """With the marks and verdicts that Llama 3 has as tokens."""
    return make_llama(tmp_path_factory.mktemp("words"), " ки", "correct", "incorrect")


def make_llama(folder, *words):
    """Bytes in Llama 3's order, two line breaks as 271, and Llama 3.1's special tokens at their ids."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    characters = sorted(
        ByteLevel.alphabet(), key=ord
    )  # ! is 0, + is 10, - is 12; blanks and the like come last
    vocab = {c: i for i, c in enumerate(characters)} | {"ĊĊ": 271}
    vocab |= {f"unused {i}": i for i in range(256, 128_000) if i != 271}
    tokenizer = Tokenizer(models.BPE(vocab, [("Ċ", "Ċ")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    names = {128000: "begin_of_text", 128006: "start_header_id", 128007: "end_header_id", 128009: "eot_id"}
    tokens = [f"<|{names.get(i, f'reserved_{i}')}|>" for i in range(128_000, 128_010)]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in tokens])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=tokens[0], eos_token=tokens[9])
    fast.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return load_tokenizer(folder)


# ---------------------------------------------------------------- references, in PyTorch


def plain_ids(tok, text):
    return tok(text, add_special_tokens=False)["input_ids"]


def trl(tok, problem, steps, separator="\n"):
    """trl.experimental.prm PRMTrainer.tokenize_row: prompt, completions + separators, labels at their ends."""
    sep, ids, marks = plain_ids(tok, separator), plain_ids(tok, problem), []
    for step in steps:
        ids = ids + plain_ids(tok, step) + sep
        marks.append(len(ids) - 1)
    return ([tok.bos_token_id] if tok.bos_token_id is not None else []) + ids, marks


def skywork(tok, problem, steps):
    """SkyworkAI/skywork-o1-prm-inference model_utils/io_utils.py prepare_input.

    Of its flags, one a line, those of the last line of each step.
    """
    ids, flags = tok.encode((tok.bos_token or "") + problem + "\n"), []
    newline = tok.encode("\n")[-1]
    for step in steps:
        for line in step.split("\n"):
            ids = ids + (tok.encode(line) if line != "" else []) + [newline]
        flags.append(len(ids) - 1)
    return ids, flags


def qwen_prm(tok, problem, steps):
    """Model card: chat template with the system prompt, steps joined and ended by <extra_0>."""
    system = "Please reason step by step, and put your final answer within \\boxed{}."
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": problem},
        {"role": "assistant", "content": "<extra_0>".join(steps) + "<extra_0>"},
    ]
    ids = tok.encode(tok.apply_chat_template(messages, tokenize=False, add_generation_prompt=False))
    return ids, [i for i, token in enumerate(ids) if token == tok.encode("<extra_0>")[0]]


def math_shepherd(tok, problem, steps):
    """Model card: f"{question} {output}", every step ended by " ки"; marks where the id is 12902."""
    lines = [f"Step {n}: {step}".strip() + " ки" for n, step in enumerate(steps, 1)]
    ids = [1, *plain_ids(tok, f"{problem} " + "\n".join(lines))]
    return ids, [i for i, token in enumerate(ids) if token == 12902]


def openr_psa(tok, problem, steps):
    """openr reason/inference/rm_call.py replace_step_tag, with prm_step_tag of
    reason/evaluation/evaluate.py, which ends in a blank, and prm/infer_fns.py: marks where the id is
    76325."""
    tag = "\n\n\n\n\n "
    ids = tok.encode(f"{problem} " + f" {tag}".join(step.strip() for step in steps) + f" {tag}")
    return ids, [i for i, token in enumerate(ids) if token == 76325]


def llama31(messages):
    """Llama 3.1's chat template without a system message: its dated system block, contents trimmed."""
    text = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
    text += "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|>"
    for role, content in messages:
        text += f"<|start_header_id|>{role}<|end_header_id|>\n\n{content.strip()}<|eot_id|>"
    return text


def rlhflow(tok, problem, steps):
    """math-rm/prm_evaluate.py: a dialogue for each step, read at its third last token; (the last one's
    ids, those marks)."""
    messages, marks = [], []
    for t, step in enumerate(steps):
        messages += [("user", f"{problem} {step.strip()}" if t == 0 else step.strip()), ("assistant", "+")]
        ids = plain_ids(tok, llama31(messages))
        marks.append(len(ids) - 3)
    return ids, marks


def versaprm(tok, problem, steps):
    """VersaPRM evaluation/get_rewards_reasoning_step.py, prm_models/prm_qwen.py: marks at id 22701."""
    ids = tok.encode(f"{problem.strip()} \n\n" + "".join(f"{step.strip()} \n\n\n\n" for step in steps))
    return ids, [i for i, token in enumerate(ids) if token == 22701]


def spare(tok, problem, steps):
    """The README's sample: system, user, assistant; Llama 3's template trims turns, Qwen's does not. Marks
    at the last id of " ки"."""
    is_llama = "<|eot_id|>" in tok.get_vocab()
    (instruction,) = re.findall(
        r"system<\|end_header_id\|>\n\n(.*?)<", read_format("spare").prefix, re.DOTALL
    )
    assert instruction.startswith("You are an expert at solving") and instruction.endswith(
        "previous reasoning steps."
    )
    answer = "Let's think step by step.\n" + "".join(f"{step.strip()} ки\n" for step in steps)
    text, turns = (
        "<|begin_of_text|>" * is_llama,
        (("system", instruction), ("user", problem), ("assistant", answer)),
    )
    for role, content in turns:
        of_llama = f"<|start_header_id|>{role}<|end_header_id|>\n\n{content.strip()}<|eot_id|>"
        text += of_llama if is_llama else f"<|im_start|>{role}\n{content}<|im_end|>\n"
    ids = plain_ids(tok, text)
    return ids, [i for i, token in enumerate(ids) if token == tok.encode(" ки")[-1]]


def fover(tok, problem, steps):
    """src/prm/preprocessing.py and get_step_token_position of postprocessing.py: the line break of an
    assistant's header."""
    task = "Your task is to evaluate the accuracy of each step in the provided solution to the above question. For each step, "
    task += 'respond with "correct" if the reasoning is logically valid and mathematically sound, or if the step is a general '
    task += 'statement or transition that does not contain reasoning. Respond with "incorrect" if the step includes any errors '
    task += "or flawed logic."
    first = f"** Problem **\n{problem}\n\n** Task **\n{task}\n\n** Sotluion **\n{steps[0]}"
    messages = [m for step in (first, *steps[1:]) for m in (("user", step), ("assistant", "correct"))]
    if "<|eot_id|>" in tok.get_vocab():
        ids = np.array(plain_ids(tok, llama31(messages)))
        header, mark = tok.convert_tokens_to_ids("<|end_header_id|>"), 271
        return ids.tolist(), [
            i for i in np.flatnonzero(ids == mark) if ids[i - 1] == header and ids[i - 2] == ord("t") - 33
        ]
    text = tok.apply_chat_template([{"role": r, "content": c} for r, c in messages], tokenize=False)
    ids = np.array(tok.encode(text))
    is_end = (ids[2:] == 198) & (ids[1:-1] == 77091) & (ids[:-2] == 151644)
    return ids.tolist(), (np.flatnonzero(is_end) + 2).tolist()


def granite(tok, problem, steps):
    """The model card: prepare_input and get_step_ids, in Granite 3.3's chat template on one day."""
    ask = "Is this response correct so far (Y/N)?"
    system = "Knowledge Cutoff Date: April 2024.\nToday's Date: June 24, 2025.\nYou are Granite, developed by IBM. "
    messages = [("system", system + "You are a helpful AI assistant.")]
    for t, step in enumerate(steps):
        messages += [("user", f"{problem} {step} {ask}" if t == 0 else f"{step} {ask}"), ("assistant", "Y")]
    text = "".join(
        f"<|start_of_role|>{role}<|end_of_role|>{content}<|end_of_text|>\n" for role, content in messages
    )
    ids, turn = tok.encode(text), tok.encode("<|start_of_role|>assistant<|end_of_role|>Y")
    n = len(turn)
    return ids, [i + n - 2 for i in range(len(ids)) if ids[i : i + n] == turn]


def pqm(tok, problem, steps):
    """bon_eval_hf.py: instruction_format, template {query}\\n{answer}, marks where the id is that of
    [PRM]."""
    query = "Below is an instruction that describes a task.\nWrite a response that appropriately completes the request."
    query += f"\n\n### Instruction:\n{problem}\n\n### Response: Let's think step by step"
    answer = (
        " [PRM]\n".join(f"Step {n}: {step.strip()}".strip() for n, step in enumerate(steps, 1)) + " [PRM]"
    )
    ids = plain_ids(tok, f"{query}\n{answer}")
    return ids, [i for i, token in enumerate(ids) if token == tok.convert_tokens_to_ids("[PRM]")]


def reasonflux(tok, problem, steps):
    """ReasonFlux_PRM/README.md: user and assistant in a template, steps joined and ended by <extra_0>."""
    answer = "<extra_0>".join(steps) + "<extra_0>"
    messages = [{"role": "user", "content": problem}, {"role": "assistant", "content": answer}]
    ids = tok.encode(tok.apply_chat_template(messages, tokenize=False, add_generation_prompt=False))
    return ids, [i for i, token in enumerate(ids) if token == 151651]


def value_head(tok, problem, steps):
    """prm_eval_utils.py prm_data_collator: query, then each answer's own ids and the mark's id."""
    ids = [1, *plain_ids(tok, problem)]
    for step in steps:
        ids += plain_ids(tok, step) + plain_ids(tok, "ки")
    mark = plain_ids(tok, "ки")[-1]
    return ids, [i for i, token in enumerate(ids) if token == mark]


def reasoneval(tok, problem, steps):
    """ReasonEval codes/examples.py, the 7B branch, index arithmetic as it stands there."""
    sep = tok.pad_token
    text = f"Question:\n{problem}\nAnswer:\nLet's think step by step.\n" + sep
    raw = [1, *plain_ids(tok, text + "".join(step + sep for step in steps))]
    labelled, ids, seen = [], [], 0
    for i, token in enumerate(raw):
        if token == plain_ids(tok, sep)[-1]:
            labelled.append(i - 1 - seen)
            seen += 1
        else:
            ids.append(token)
    return [1] + ids, labelled[2:]


def eurus_implicit(tok, problem, steps):
    """ImplicitPRM eval/processbench.py build_item_tensors: ends of steps index shifted log-probabilities."""
    system = "Please reason step by step, and put your final answer within \\boxed{}."
    answers = [f"Step {n}: {step}" for n, step in enumerate(steps, 1)]

    def conversation(n):
        answer = "\n\n".join(answers[:n])
        messages = [("system", system), ("user", problem), ("assistant", answer)]
        return "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)

    ends = []
    for n in range(len(answers) + 1):
        text = conversation(n).strip() + ("\n\n" if 0 < n < len(answers) else "")
        ends.append(len(plain_ids(tok, text)) - 2)
    return plain_ids(tok, conversation(len(answers))), ends


def ternary_score(logit_TC):
    return logit_TC.softmax(-1)[:, 1:].sum(-1)


def second_class(logit_TC):
    return logit_TC.softmax(-1)[:, 1]


def difference(logit_TC):
    return logit_TC.softmax(-1)[:, 1] - logit_TC.softmax(-1)[:, 0]


# format -> (tokenizer fixture, model_type, tensors of the head as {name: shape}, ids and marks, logits at
# marks -> score)
D = SHAPE["hidden_size"]
LINEAR2 = {"score.weight": (2, D), "score.bias": (2,)}
MLP = {"score.0.weight": (D, D), "score.0.bias": (D,), "score.2.weight": (2, D), "score.2.bias": (2,)}
SYSTEMS = {
    "trl": ("qwen", "qwen2", LINEAR2, trl, second_class),
    "pure": ("qwen", "qwen2", LINEAR2, trl, difference),
    "qwen_prm": ("qwen", "qwen2", MLP, qwen_prm, second_class),
    "skywork": ("skywork_tokenizer", "qwen2", {"v_head.summary.weight": (1, D), "v_head.summary.bias": (1,)}, skywork,
                lambda logit_TC: logit_TC.sigmoid()[:, 0]),
    "reasoneval": ("reasoneval_tokenizer", "mistral", {"score_head.weight": (3, D), "score_head.bias": (3,)}, reasoneval,
                   ternary_score),
    "math_shepherd": ("mistral", "mistral", {}, math_shepherd, lambda v: v[:, [648, 387]].softmax(-1)[:, 0]),
    "rlhflow": ("llama", "llama", {}, rlhflow, lambda v: v[:, [10, 12]].softmax(-1)[:, 0]),
    "openr_psa": ("qwen", "qwen2", {}, openr_psa, lambda v: v[:, [488, 481]].softmax(-1)[:, 0]),
    "versaprm": ("qwen", "qwen2", {}, versaprm, lambda v: v[:, [12, 10]].softmax(-1)[:, 1]),
    "spare": ("llama_words", "llama", {}, spare, lambda v: v[:, [12, 10]].softmax(-1)[:, 1]),
    "spare_qwen": ("qwen", "qwen2", {}, spare, lambda v: v[:, [12, 10]].softmax(-1)[:, 1]),
    "fover_qwen": ("qwen", "qwen2", {}, fover, lambda v: v[:, [61954, 19928]].softmax(-1)[:, 1]),
    "fover_llama": ("llama_words", "llama", {}, fover, lambda v: v[:, [128012, 128011]].softmax(-1)[:, 1]),
    "reasonflux": ("qwen", "qwen2", MLP, reasonflux, lambda z: z[:, 1] - z[:, 0]),
    "granite": ("marked_qwen", "granite", {}, granite, lambda v: v.softmax(-1)[:, 56].logit()),
    "pqm": ("marked_qwen", "qwen2", {"v_head.summary.weight": (1, D), "v_head.summary.bias": (1,)}, pqm, lambda z: z[:, 0]),
    "value_head": ("mistral", "mistral", {"value_head.weight": (1, D)}, value_head, lambda z: z[:, 0]),
}  # fmt: skip
FORMATS = {fmt.name for fmt in all_formats()}
ORIGINAL = ("trl", "pure", "qwen_prm", "skywork", "reasoneval", "math_shepherd", "rlhflow", "openr_psa")
# Whose authors drop blank steps, have no token to read them at, or whose template trims the text before them.
NO_EMPTY = ("openr_psa", "reasoneval", "versaprm", "spare", "fover_llama")


# ---------------------------------------------------------------- literal ids

ONE, TWO, ODD = ("1+1?", ("2.",)), ("1+1?", ("One.", "Two.")), ("A\nB", ("x\ny", "", "z "))
ODD_W = ("A\nB", ("x\ny", "w", "z "))
# <|im_start|>system \n Please reason step by step , and put your final answer within \ boxed {}. <|im_end|>
# \n <|im_start|>user \n
SYSTEM = [151644, 8948, 198, 5501, 2874, 3019, 553, 3019, 11, 323, 2182, 697, 1590, 4226, 2878, 1124, 79075, 46391,
          151645, 198, 151644, 872, 198]  # fmt: skip
STOP = [151645, 198]  # <|im_end|> \n
REPLY = [*STOP, 151644, 77091, 198]  # and <|im_start|>assistant \n
# <s> ▁Question : \n ... \n An swer : \n Let ' s ▁think ▁step ▁by ▁step . \n
QUESTION = [1, 22478, 28747, 13]
ANSWER = [13, 2820, 16981, 28747, 13, 8779, 28742, 28713, 1073, 3707, 486, 3707, 28723, 13]


def in_bytes(text):
    """Ids of Llama 3's byte tokens: ! to ~ are 0 to 93, a blank is 220, a line break 198."""
    return [{" ": 220, "\n": 198}.get(c, ord(c) - 33) for c in text]


# header = <|start_header_id|> role <|end_header_id|> \n\n
USER, ASSISTANT = ([128006, *in_bytes(role), 128007, 271] for role in ("user", "assistant"))
DATED = [
    128000, 128006, *in_bytes("system"), 128007, 271,
    *in_bytes("Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024"), 271, 128009,
]  # fmt: skip
PLUS = [128009, *ASSISTANT, 10, 128009]
LITERALS = {
    # 1 + 1 ?, then 2 . \n: the separator's id comes after the full stop and is not fused with it (that would
    # be 624)
    "trl": [
        (ONE, [16, 10, 16, 30, 17, 13, 198], [6]),
        (TWO, [16, 10, 16, 30, 3966, 13, 198, 11613, 13, 198], [6, 9]),
        (ODD, [32, 198, 33, 87, 198, 88, 198, 198, 89, 220, 198], [6, 7, 10]),
    ],
    # the problem's line break is tokenised with it: ?\n is 5267
    "skywork": [
        (ONE, [151643, 16, 10, 16, 5267, 17, 13, 198], [7]),
        (TWO, [151643, 16, 10, 16, 5267, 3966, 13, 198, 11613, 13, 198], [7, 10]),
        (ODD, [151643, 32, 198, 33, 198, 87, 198, 88, 198, 198, 89, 220, 198], [8, 9, 12]),
    ],
    "qwen_prm": [
        (ONE, [*SYSTEM, 16, 10, 16, 30, *REPLY, 17, 13, 151651, *STOP], [34]),
        (TWO, [*SYSTEM, 16, 10, 16, 30, *REPLY, 3966, 13, 151651, 11613, 13, 151651, *STOP], [34, 37]),
        (ODD, [*SYSTEM, 32, 198, 33, *REPLY, 87, 198, 88, 151651, 151651, 89, 220, 151651, *STOP], [34, 35, 38]),
    ],
    # a blank belongs to the word after it: ▁One is 3776
    "openr_psa": [
        (ONE, [16, 10, 16, 30, 220, 17, 13, 76325, 220], [7]),
        (TWO, [16, 10, 16, 30, 3776, 13, 76325, 9043, 13, 76325, 220], [6, 9]),
        (ODD_W, [32, 198, 33, 856, 198, 88, 76325, 289, 76325, 1147, 76325, 220], [6, 8, 10]),
    ],
    # Step ▁ 1 : ...; .\n\n fuses to 382. A step that is not the last ends two tokens after its line breaks
    # where they fused, one where they did not: <|im_end|> and \n\n stand at its end when it is counted. The
    # last ends at <|im_end|>.
    "eurus_implicit": [
        (ONE, [*SYSTEM, 16, 10, 16, 30, *REPLY, 8304, 220, 16, 25, 220, 17, 13, *STOP], [39]),
        (TWO, [*SYSTEM, 16, 10, 16, 30, *REPLY, 8304, 220, 16, 25, 3776, 382, 8304, 220, 17, 25, 9043, 13, *STOP],
         [39, 44]),
        (("A\nB", ("x\ny", "z")), [*SYSTEM, 32, 198, 33, *REPLY, 8304, 220, 16, 25, 856, 198, 88, 271, 8304, 220, 17, 25,
                                   1147, *STOP], [39, 44]),
    ],
    # ▁ 1 + 1 ? ▁Step ▁ 1 : ... ▁ки \n Step ▁ 2 : ...
    "math_shepherd": [
        (ONE, [1, 28705, 28740, 28806, 28740, 28804, 7268, 28705, 28740, 28747, 28705, 28750, 28723, 12902], [13]),
        (TWO, [1, 28705, 28740, 28806, 28740, 28804, 7268, 28705, 28740, 28747, 2387, 28723, 12902, 13,
               9977, 28705, 28750, 28747, 6005, 28723, 12902], [12, 20]),
        (ODD, [1, 330, 13, 28760, 7268, 28705, 28740, 28747, 1318, 13, 28724, 12902, 13,
               9977, 28705, 28750, 28747, 12902, 13, 9977, 28705, 28770, 28747, 686, 12902], [11, 17, 24]),
    ],
    # read one token before the step's last, as the authors' indices for the 7B model do
    "reasoneval": [
        (ONE, [*QUESTION, 28740, 28806, 28740, 28804, *ANSWER, 28705, 28750, 28723], [23]),
        (TWO, [*QUESTION, 28740, 28806, 28740, 28804, *ANSWER, 2387, 28723, 6005, 28723], [22, 24]),
        (ODD_W, [*QUESTION, 28741, 13, 28760, *ANSWER, 1318, 13, 28724, 275, 686, 28705], [22, 23, 25]),
    ],
    # read at the 271 that closes the assistant's header, two before the end of its turn
    "rlhflow": [
        (ONE, [*DATED, *USER, *in_bytes("1+1? 2."), *PLUS], [99]),
        (TWO, [*DATED, *USER, *in_bytes("1+1? One."), *PLUS, *USER, *in_bytes("Two."), *PLUS], [101, 127]),
        (ODD, [*DATED, *USER, *in_bytes("A\nB x\ny"), *PLUS, *USER, *PLUS, *USER, *in_bytes("z"), *PLUS],
         [99, 121, 144]),
    ],
}  # fmt: skip
TOKENIZERS = {name: system[0] for name, system in SYSTEMS.items()} | {"eurus_implicit": "qwen"}


@pytest.mark.parametrize("name", LITERALS)
def test_literal_ids(request, name):
    tokenizer = request.getfixturevalue(TOKENIZERS[name])
    rows, ids, marks = zip(*LITERALS[name], strict=True)
    for e, ids_L, step_end_T in zip(encode(read_format(name), tokenizer, rows), ids, marks, strict=True):
        assert e.ids_L.tolist() == ids_L
        assert e.step_end_T.tolist() == step_end_T


def make_checkpoint(folder, family, tokenizer, head, seed=0, wrapper=""):
    """A random checkpoint as released ones are laid out; returns a function from ids to the head's logits,
    logit_LC. `wrapper` begins the names of all tensors but the head's."""
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **SHAPE, vocab_size=-(-len(tokenizer) // 64) * 64)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    tensors = {name: torch.randn(shape) for name, shape in head.items()}
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(1.0 if "norm" in name else 0.0, 0.3 if "embed" in name or "norm" in name else 0.8)
    state = model.state_dict()
    if head and "v_head.summary.weight" not in head:  # only Skywork keeps the unused lm_head
        state.pop("lm_head.weight")
    folder.mkdir(exist_ok=True)
    state = {wrapper + name: x.contiguous() for name, x in state.items()}
    save_file(state | tensors, folder / "model.safetensors")
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config.to_dict(), default=str))

    @torch.no_grad()
    def logits(ids, at=slice(None)):
        """Of the tokens `at` these places alone, logit_nC: all of a large vocabulary take gigabytes."""
        at = torch.arange(len(ids))[at]
        out = model(torch.tensor([ids]), output_hidden_states=True, logits_to_keep=at)
        x_LD = out.hidden_states[-1][0][at]
        if not head:
            return out.logits[0]
        if "score.0.weight" in head:
            x_LD = torch.relu(x_LD @ tensors["score.0.weight"].T + tensors["score.0.bias"])
        last = next(name for name in list(head)[::-1] if name.endswith("weight"))
        return x_LD @ tensors[last].T + tensors.get(last.replace("weight", "bias"), 0)

    logits.model = model
    return logits


@pytest.mark.parametrize("name", SYSTEMS)
def test_ids_and_scores_equal_the_authors(tmp_path, request, name):
    fixture, family, head, reference, score = SYSTEMS[name]
    tokenizer = request.getfixturevalue(fixture)
    wrapper = "pretrained_model." if name == "pqm" else ""  # of TRL's value-head class, as released
    logits = make_checkpoint(tmp_path, family, tokenizer, head, wrapper=wrapper)
    verifier = open_checkpoint(tmp_path, "best", read_format(name), "float32")
    assert (verifier.objective, verifier.label_kind) == ("prm", read_format(name).label_kind)
    # Those of other systems' layouts are read shorter texts: one of many steps takes most of a test's time.
    rows = [row for row in CONVERSATIONS if row[1] is not MANY or name in ORIGINAL]
    rows += [] if name in NO_EMPTY else [WITH_EMPTY]
    encoded = encode(verifier.format, verifier.tokenizer, rows)
    scorer = verifier.scorer(2, 1024 if name in ORIGINAL else None)
    assert scorer.unit == "logit"
    found, unit = scorer.score(rows), UNITS[verifier.format.score]
    low, high = unit.low, unit.high
    if name in ("granite", "reasonflux"):  # random weights give P(good) near 0: log-odds are compared
        low, high = -np.inf, np.inf
    else:
        found = [as_published(verifier.format, score_T) for score_T in found]
    for row, e, score_T in zip(rows, encoded, found, strict=True):
        ids, marks = reference(tokenizer, *row)
        assert e.ids_L.tolist() == ids
        assert e.step_end_T.tolist() == marks and len(marks) == len(row[1])
        # 40 roundings of a log-odds of 42, of which another processor makes more than 1e-4
        np.testing.assert_allclose(score_T, score(logits(ids, marks)), atol=1e-4, rtol=5e-6)
        assert (low <= score_T).all() and (score_T <= high).all()
    assert np.ptp(np.concatenate(found)) > 0.2


def test_implicit_scores_equal_the_authors(tmp_path, qwen):
    """ImplicitPRM eval/processbench.py: running sum of coef * (log pi - log pi_ref) over the response."""
    models = [
        make_checkpoint(tmp_path / n, "qwen2", qwen, {}, seed) for seed, n in enumerate(("policy", "ref"))
    ]
    fmt = read_format("eurus_implicit")
    loaded = open_checkpoint(tmp_path / "policy", "best", fmt, "float32", str(tmp_path / "ref"))
    verifier = loaded.scorer(2, 512)
    rows = [*CONVERSATIONS, WITH_EMPTY]
    found = verifier.score(rows)
    for row, e, score_T in zip(rows, encode(fmt, qwen, rows), found, strict=True):
        ids, ends = eurus_implicit(qwen, *row)
        assert e.ids_L.tolist() == ids and e.step_end_T.tolist() == [end + 1 for end in ends[1:]]
        assert e.start == ends[0] + 1
        logp = [m(ids)[:-1].log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0] for m in models]
        ratio = fmt.beta * (logp[0] - logp[1])
        ratio[: ends[0]] = 0
        running = ratio.cumsum(0)[ends[1:]].numpy()
        scale = np.abs(running).max()
        assert scale > 0.001
        np.testing.assert_allclose(np.cumsum(score_T), running, atol=1e-4 * scale)
    assert (verifier.unit, verifier.objective, verifier.label_kind) == ("log_ratio", "prm", "value")
    for name, reference in (("eurus_implicit", None), ("openr_psa", "x")):
        with pytest.raises(InputError, match="reference: got"):
            open_checkpoint(tmp_path / "policy", "best", read_format(name), "float32", reference)


@pytest.mark.parametrize(
    "name, fixture, text",
    [
        ("qwen_prm", "qwen", "so <extra_0> it is"),
        ("math_shepherd", "mistral", "мои ки тут"),
        ("reasoneval", "reasoneval_tokenizer", "a<s>b"),
    ],
)
def test_the_mark_inside_a_text_is_refused_where_all_is_tokenised_together(request, name, fixture, text):
    tokenizer, fmt = request.getfixturevalue(fixture), read_format(name)
    for row in (("Q", ("one", text)), (text, ("one",))):
        with pytest.raises(InputError, match=f"contains .*format={name}"):
            encode(fmt, tokenizer, [row])


def test_a_mark_that_is_no_token_of_its_own_is_refused(mistral):
    """A glued one, and stock Qwen2.5, which splits <extra_0>: scores would be read at its last bracket."""
    glued = dataclasses.replace(read_format("math_shepherd"), separator="ки", strip=False)
    with pytest.raises(InputError, match="the mark 'ки'"):
        encode(glued, mistral, [("Q?", ("Рук", "2"))])
    stock = load_tokenizer(real_data("tokenizers/qwen2.5"))
    with pytest.raises(InputError, match="the mark '<extra_0>'"):
        encode(read_format("qwen_prm"), stock, CONVERSATIONS[:1])


def test_steps_with_a_number_keep_it(mistral):
    fmt = read_format("math_shepherd")
    (bare, numbered) = encode(fmt, mistral, [("Q", ("a", "b")), ("Q", ("Step 1: a", " step 2: b "))])
    assert mistral.decode(bare.ids_L) == "<s> Q Step 1: a ки\nStep 2: b ки"
    assert mistral.decode(numbered.ids_L) == "<s> Q Step 1: a ки\nstep 2: b ки"


def test_empty_steps_that_the_authors_do_not_score(qwen, reasoneval_tokenizer):
    (e,) = encode(read_format("openr_psa"), qwen, [WITH_EMPTY])
    assert (e.ids_L[e.step_end_T] == 76325).all() and len(e.step_end_T) == 4
    with pytest.raises(InputError, match="4 step marks .* for 4 steps"):
        encode(read_format("reasoneval"), reasoneval_tokenizer, [WITH_EMPTY])


SCALAR = {"score.weight": (1, D), "score.bias": (1,)}
REWARD = {k: (1, *v[1:]) if "2" in k else v for k, v in MLP.items()}
FOUND = {  # head -> the one format that it fits, or keys of what is said
    "mlp": (MLP, "qwen_prm"),
    "v_head": (SYSTEMS["skywork"][2], "skywork"),
    "score_head": ({"score_head.weight": (3, D)}, "reasoneval"),
    "value_head": (SYSTEMS["value_head"][2], "value_head"),
    "one output of two layers": (REWARD, "qwen_rm"),
    "two outputs": (LINEAR2, "format=pure or format=trl or format=plain"),
    "one output": (SCALAR, "format=acemath_rm or format=orm or format=plain"),
    "no head": ({}, "format=fover_llama.*format=math_shepherd.*format=judge"),
    "two heads": (MLP | LINEAR2, "step heads"),
    "an unknown head": ({"critic_head.weight": (1, D)}, "critic_head.weight"),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_format_is_found_by_the_head_or_asked_for(tmp_path, small, name):
    head, expected = FOUND[name]
    make_checkpoint(tmp_path, "qwen2", small, head)
    if expected in FORMATS:
        assert open_checkpoint(tmp_path, "best", read_format("auto"), "float32").format.name == expected
    else:
        refuses(expected, open_checkpoint, tmp_path, "best", read_format("auto"), "float32")


@pytest.mark.parametrize(
    "head, kind, name, listed",
    [
        (MLP, None, "reasonflux", None),
        (SYSTEMS["skywork"][2], None, "pqm", None),
        (MLP, None, "trl", "qwen_prm or format=reasonflux"),
        # An outcome model scores a whole text: with format=plain it would be read at TRL's separators.
        (SCALAR, "Qwen2ForSequenceClassification", "plain", "acemath_rm or format=orm"),
    ],
)
def test_a_format_that_the_checkpoint_does_not_fit_is_refused(tmp_path, small, head, kind, name, listed):
    make_checkpoint(tmp_path, "qwen2", small, head)
    if kind:
        set_class(tmp_path, kind)
    if listed is None:
        assert open_checkpoint(tmp_path, "best", read_format(name), "float32").format.name == name
        return
    said = f"format=?.*{name}.*{listed}"
    refuses(said, open_checkpoint, tmp_path, "best", read_format(name), "float32")


def test_keys_beside_format_auto_change_the_format_that_is_found(tmp_path, small):
    make_checkpoint(tmp_path, "qwen2", small, {"score_head.weight": (3, D)})
    keys = {"shift": 0, "separator": None, "label_kind": "unknown", "bos": False}
    auto = parse({"name": "auto"} | keys, Format, "format")
    found = open_checkpoint(tmp_path, "best", auto, "float32").format
    assert found == dataclasses.replace(read_format("reasoneval"), shift=0, label_kind="unknown", bos=False)
    for changes, key in (({"shift": "x"}, "format.shift"), ({"shfit": 1}, "format.shfit")):
        with pytest.raises(InputError, match=f"^{key}: "):
            open_checkpoint(tmp_path, "best", parse({"name": "auto"} | changes, Format, "format"), "float32")


def set_class(folder, kind):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [kind]}))


MATH = "Please reason step by step, and {} your final answer within \\boxed{{}}."
OUTCOME_MODELS = {  # format -> (head, class, system message)
    "orm": (SCALAR, "Qwen2ForSequenceClassification", None),
    "acemath_rm": (SCALAR, "Qwen2ForSequenceClassification", MATH.format("check")),
    "qwen_rm": (REWARD, "Qwen2ForRewardModel", MATH.format("put")),
}


@pytest.mark.parametrize("name", OUTCOME_MODELS)
def test_outcome_models_score_the_last_token_of_a_conversation(tmp_path, qwen, name):
    """The model cards: apply_chat_template without a generation prompt, the logit at the last token."""
    head, kind, system = OUTCOME_MODELS[name]
    logits = make_checkpoint(tmp_path, "qwen2", qwen, head)
    set_class(tmp_path, kind)
    fmt = read_format("auto" if name == "qwen_rm" else name)
    verifier = open_checkpoint(tmp_path, "best", fmt, "float32")
    assert (verifier.objective, verifier.format.name) == ("orm", name)
    rows = [CONVERSATIONS[i] for i in (0, 1, 3)]
    for (problem, steps), score_T in zip(rows, verifier.scorer(2, 128).score(rows), strict=True):
        messages = [{"role": "system", "content": system}] * (system is not None)
        turns = {"user": problem, "assistant": "\n\n".join(steps)}
        messages += [{"role": role, "content": text} for role, text in turns.items()]
        ids = qwen.encode(qwen.apply_chat_template(messages, tokenize=False), add_special_tokens=False)
        (e,) = encode(verifier.format, qwen, [(problem, steps)])
        assert e.ids_L.tolist() == ids and e.step_end_T.tolist() == [len(ids) - 1]
        assert qwen.decode(ids[: e.start]).endswith("assistant\n")
        np.testing.assert_allclose(score_T, [logits(ids, [-1])[0, 0]] * len(steps), atol=1e-4)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"pad_token_id": ids[-1]}))
    padded = open_checkpoint(tmp_path, "best", fmt, "float32").tokenizer  # its class reads before padding
    assert encode(verifier.format, padded, [(problem, steps)])[0].ids_L.tolist() == ids[:-1]


def make_adapter(folder, base, tokenizer, updates, whole=None, **settings):
    """A PEFT adapter's folder; updates: {module: (rank, out, in)}; `whole` tensors stand beside them."""
    from safetensors.torch import save_file

    folder.mkdir()
    tensors = dict(whole or {})
    for module, (rank, rows, columns) in updates.items():
        tensors[f"{module}.lora_A.weight"] = torch.randn(rank, columns)
        tensors[f"{module}.lora_B.weight"] = torch.randn(rank, rows).T.contiguous()
    save_file({f"base_model.model.{k}": x for k, x in tensors.items()}, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 4, "lora_alpha": 8}
    (folder / "adapter_config.json").write_text(json.dumps(about | settings))
    tokenizer.save_pretrained(folder)
    return tensors


@pytest.mark.parametrize("rs", [False, True])
def test_math_psa_as_it_is_released_an_adapter(tmp_path, qwen, rs):
    """OpenR's release is q and v of every layer by PEFT: W + alpha / r B A, or / root r, its base model
    found beside it; another rank for one module."""
    logits = make_checkpoint(tmp_path / "base", "qwen2", qwen, {})
    layers = [f"model.layers.{i}.self_attn.{x}_proj" for i in (0, 1) for x in "qv"]
    sizes = {"q": (D, D), "v": (D // 2, D)}
    updates = {module: (4, *sizes[module[-6]]) for module in layers}
    updates["model.layers.0.mlp.down_proj"] = (2, D, 24)
    tensors = make_adapter(tmp_path / "psa", "../base", qwen, updates, use_rslora=rs)
    with torch.no_grad():
        for module, (rank, *_) in updates.items():
            update = tensors[f"{module}.lora_B.weight"] @ tensors[f"{module}.lora_A.weight"]
            logits.model.get_submodule(module).weight += 8 / (rank**0.5 if rs else rank) * update
    verifier = open_checkpoint(tmp_path / "psa", "best", read_format("openr_psa"), "float32")
    (found,) = verifier.scorer(2, 128).score(CONVERSATIONS[1:2])
    ids, marks = openr_psa(qwen, *CONVERSATIONS[1])
    expected = logits(ids, marks)[:, [488, 481]].softmax(-1)[:, 0]
    np.testing.assert_allclose(as_published(verifier.format, found), expected, atol=1e-4)


def test_an_adapter_brings_a_head(tmp_path, small):
    make_checkpoint(tmp_path / "base", "qwen2", small, {})
    for name in ("score.weight", "score.modules_to_save.weight"):
        folder = tmp_path / name
        make_adapter(folder, tmp_path / "base", small, {}, {name: torch.randn(2, D)})
        assert hf.find_head(open_weights(folder), "x") == ("binary", "score")


@pytest.mark.parametrize(
    "settings, updates, named",
    [
        ({"use_dora": True}, {}, "use_dora"),
        ({"init_lora_weights": "pissa"}, {}, "init_lora_weights"),
        ({}, {"model.layers.0.self_attn.q_proj": (4, D, D + 1)}, "layers.0.self_attn.q_proj"),
    ],
)
def test_an_adapter_that_cannot_be_merged_is_one_line(tmp_path, small, settings, updates, named):
    make_checkpoint(tmp_path / "base", "qwen2", small, {})
    make_adapter(tmp_path / "a", tmp_path / "base", small, updates, **settings)
    refuses(named, open_weights, tmp_path / "a")


@pytest.mark.parametrize("family", ["mistral", "llama"])
def test_a_sentencepiece_file_alone_encodes_as_its_own_library_or_is_refused(tmp_path, family):
    spm = pytest.importorskip("sentencepiece")
    path = tmp_path / "tokenizer.model"
    shutil.copy(real_data("tokenizers/mistral/tokenizer.model.v1"), path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    if family == "llama":
        with pytest.raises(InputError, match="tokenizer.model"):
            load_tokenizer(tmp_path)
        return
    texts = [step for problem, steps in CONVERSATIONS for step in (problem, *steps)]
    texts += [" two  blanks ", "\n\n a\tb", "ки ки"]
    expected, tokenizer = spm.SentencePieceProcessor(str(path)).encode(texts), load_tokenizer(tmp_path)
    assert [plain_ids(tokenizer, text) for text in texts] == expected
