"""Marks: one a step, at the separator's last token, whatever the text."""

import dataclasses
import json

import hydra
import numpy as np
import pytest
from conftest import real_data
from omegaconf import OmegaConf
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import evaluate
import train  # noqa: F401 (its keys)
from prm_jax import InputError
from prm_jax.checkpoints.tokenizer import load_tokenizer, train_tokenizer
from prm_jax.critics.prompts import with_critic
from prm_jax.encoding import Encoded, check_marks, encode
from prm_jax.examples import make_examples
from prm_jax.formats import Format, read_format
from prm_jax.launch.config import CONF, parse

PLAIN = Format("plain", "\n")
AWKWARD = ("A full stop.", "two\nlines\n\nhere", "", "a separator \n inside", "naïve 数学 → ∑ ки", " ")


@pytest.fixture(scope="module")
def small():
    return train_tokenizer(["7 + 5 = 2", "Modulo 10: start with 7, add 5."] * 20, 300)


@pytest.fixture(scope="module")
def qwen():
    return load_tokenizer(real_data("tokenizers/qwen2.5"))


@pytest.mark.parametrize("name", ["small", "qwen"])
@pytest.mark.parametrize("separator", ["\n", "\n\n", " \n\n\n\n\n"])
def test_one_mark_a_step_at_the_separators_last_token(name, separator, request):
    tokenizer = request.getfixturevalue(name)
    (row,) = encode(Format("plain", separator), tokenizer, [("What is 1 + 1?", AWKWARD)])
    ids = tokenizer.encode(separator, add_special_tokens=False)
    assert len(row.step_end_T) == len(AWKWARD)
    assert (row.ids_L[row.step_end_T] == ids[-1]).all()
    begin = [row.start, *(row.step_end_T[:-1] + 1)]
    for step, a, b in zip(AWKWARD, begin, row.step_end_T + 1, strict=True):
        assert tokenizer.decode(row.ids_L[a:b], clean_up_tokenization_spaces=False) == step + separator
    assert tokenizer.decode(row.ids_L[: row.start]) == "What is 1 + 1?"


def test_line_ends_of_windows_change_no_id(small):
    ours, theirs = encode(PLAIN, small, [("1\n2", ("3\n4", "5")), ("1\r\n2", ("3\r\n4", "5"))])
    assert ours.ids_L.tolist() == theirs.ids_L.tolist()


def test_beginning_and_end_tokens(small):
    (row,) = encode(PLAIN, small, [("7", ("1",))], end=True)
    assert row.ids_L[-1] == small.eos_token_id and row.step_end_T.tolist() == [len(row.ids_L) - 2]
    small.bos_token = "<|endoftext|>"
    try:
        (row,) = encode(PLAIN, small, [("7", ("1",))])
        assert row.ids_L[0] == small.bos_token_id and row.start == 2
    finally:
        small.bos_token = None


@pytest.mark.parametrize("name", ["Qwen2Tokenizer", "GPT2Tokenizer", "LlamaTokenizerFast"])
def test_ids_are_those_of_tokenizer_json_whatever_class_it_names(tmp_path, capsys, name):
    """Runs of signs are words of their own, and three digits are one; a length is baked into the file."""
    own = Tokenizer(models.BPE())
    parts = pre_tokenizers.Split(Regex(r"\d{1,3}|[+*/=-]+|\s"), "isolated")
    own.pre_tokenizer = pre_tokenizers.Sequence([parts, pre_tokenizers.ByteLevel(False, use_regex=False)])
    own.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "<e>"], initial_alphabet=alphabet)
    own.train_from_iterator(["125 apples, so 125--7 == 118 apples"] * 9, trainer)
    own.enable_truncation(3)
    own.save(str(tmp_path / "tokenizer.json"))
    own.no_truncation()
    settings = {"tokenizer_class": name, "bos_token": "<s>", "eos_token": "<e>", "padding_side": "left"}
    settings |= {"chat_template": "{{ messages[0].content }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    loaded = load_tokenizer(tmp_path)
    text = "125 apples\n\n125--7 == 118<e>"
    assert loaded(text, add_special_tokens=False)["input_ids"] == own.encode(text).ids
    kept = loaded.bos_token, loaded.eos_token, loaded.padding_side, loaded.chat_template
    assert kept == ("<s>", "<e>", "left", settings["chat_template"])
    assert "tokenizer.json, which is used" in capsys.readouterr().out or name != "Qwen2Tokenizer"


def test_every_key_of_a_format_is_a_key_of_the_configuration():
    keys = {field.name for field in dataclasses.fields(Format)} - {"changes", "critic"}
    assert OmegaConf.load(CONF / "format/auto.yaml").keys() == keys
    evaluate.cli.store_defaults("task_defaults", evaluate.EvaluateConfig)
    changes = ["format=rlhflow", "format.number=A", "format.bos=false"]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        found = parse(hydra.compose("train", changes).format, Format)
        critic = parse(hydra.compose("evaluate", ["format=judge", "format.critic.opening=-"]).format, Format)
    assert found == dataclasses.replace(read_format("rlhflow"), number="A", bos=False)
    assert with_critic(critic) == with_critic(read_format("judge", critic={"opening": "-"}))


def test_wrong_marks_raise():
    ids = np.arange(5)
    for marks, steps in (([1, 3], 3), ([3, 1], 2), ([1, 5], 2)):
        with pytest.raises(InputError, match=f"row 7: {len(marks)} step marks"):
            check_marks(Encoded(ids, np.array(marks), 0), steps, "row 7")


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"chat": "none.jinja"}, "chat"),
        ({"shift": 1}, "tokenized"),
        ({"head": "vocabulary", "good": "Y", "bad": "N"}, "good"),
    ],
)
def test_keys_that_do_not_fit_name_themselves(keys, key):
    with pytest.raises(InputError, match=f"^format.{key}: "):
        parse({"name": "plain", "separator": "\n"} | keys, Format, "format")


def test_a_format_of_outcome_models_trains_nothing():
    with pytest.raises(InputError, match="^format: "):
        make_examples([], read_format("orm"), None, "prm")
