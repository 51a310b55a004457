"""examples/real/: a GGUF file becomes the folder that transformers would have written, equations become
solutions, and what is chosen on one pool is measured on another."""

import itertools
import json
import os
import re
import subprocess
import sys

import gguf
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT, jsonl, real_model
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import prm_jax
from examples.real import choose, problems, smollm2, texts
from prm_jax import InputError
from prm_jax.data.pools import Candidate, Problem, write_pool

HEADS = {"attn_q": 4, "attn_k": 2}
TEXT = "Tom has 48 pens, and 12 books.\n\nHow many? √2"


def largest_difference(folder, texts) -> float:
    """Of our logits from those of transformers on the same folder."""
    ours = prm_jax.load(f"policy:{folder}").scorer
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    for text in texts:
        ids = ours.tokenizer(text)["input_ids"]
        L = len(ids)
        x_1LD = ours.model(jnp.array([ids]), jnp.arange(L)[None], jnp.full((1, L), L))
        with torch.no_grad():
            expected_LV = theirs(torch.tensor([ids])).logits[0].numpy()
        found.append(np.abs(np.asarray(ours.model.vocab_logits(x_1LD[0])) - expected_LV).max())
    return max(found)


def write_gguf(path, model, pre="smollm"):
    """A GGUF file of a model, as llama.cpp writes it: the queries and keys of a head in RoPE's pairs."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "an", "Ġan"]
    writer = gguf.GGUFWriter(path, "llama")
    sizes = {"block_count": 2, "embedding_length": 32, "feed_forward_length": 64, "context_length": 64}
    sizes |= {f"attention.{name}": n for name, n in (("head_count", 4), ("head_count_kv", 2))}
    for name, n in sizes.items():
        writer.add_uint32(f"llama.{name}", n)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100.0)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a n", "Ġ an"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}!")
    ours = {their: own for own, their in smollm2.WEIGHTS.items()}
    for name, x in model.state_dict().items():
        layer = re.match(r"model\.layers\.(\d)\.", name)
        part = ours.get(name.removeprefix(layer[0] if layer else "").removesuffix(".weight"))
        if part is None:  # the output is the embedding
            continue
        x = x.numpy()
        if part in HEADS:
            x = x.reshape(HEADS[part], 2, -1, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        kind = gguf.GGMLQuantizationType.Q8_0 if part == "token_embd" else gguf.GGMLQuantizationType.F32
        place = f"blk.{layer[1]}.{part}" if layer else part
        writer.add_tensor(f"{place}.weight", gguf.quants.quantize(x, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    sizes = {"vocab_size": 261, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, initializer_range=0.5))


def test_a_gguf_file_becomes_a_folder_of_the_same_model(tmp_path, tiny):
    write_gguf(tmp_path / "model.gguf", tiny)
    smollm2.convert(tmp_path / "model.gguf", tmp_path / "made")
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "made")
    for name, x in tiny.state_dict().items():
        atol = 0.01 if name in ("model.embed_tokens.weight", "lm_head.weight") else 0  # of 8 bits
        np.testing.assert_allclose(made.state_dict()[name], x, rtol=0, atol=atol, err_msg=name)
    assert (made.config.max_position_embeddings, made.generation_config.eos_token_id) == (64, 2)
    assert largest_difference(tmp_path / "made", [TEXT]) < 1e-3

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "made")
    assert tokenizer.tokenize("an an 48<|im_end|>") == ["an", "Ġan", "Ġ", "4", "8", "<|im_end|>"]
    assert tokenizer.decode(tokenizer(TEXT)["input_ids"]) == TEXT
    special = tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token_id
    assert special == ("<|im_start|>", "<|im_end|>", 2)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False) == "Hi!"


def test_another_file_is_refused(tmp_path, tiny):
    (tmp_path / "other.gguf").write_text("no model, and long enough to have a magic number")
    write_gguf(tmp_path / "llama3.gguf", tiny, pre="llama-bpe")
    for name in ("other.gguf", "llama3.gguf"):
        with pytest.raises(InputError, match=name):
            smollm2.convert(tmp_path / name, tmp_path / "made")
    assert not (tmp_path / "made").exists()


@pytest.mark.slow
def test_smollm2_has_the_logits_of_transformers():
    texts = [TEXT, "<|im_start|>user\nHi<|im_end|>\n", "1 + 1 = "]
    assert largest_difference(real_model("smollm2"), texts) < 1e-3


NAMES = ["Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal", "Ida", "Jon"]
NAMES += ["Kim", "Leo", "Mia", "Ned", "Ola", "Pam", "Quin", "Rob", "Sue", "Tim"]
THINGS = ["pens", "figs", "cups", "dogs", "hats", "keys", "maps", "nuts"]


def write_sets(folder, names=NAMES):
    """Synthetic sets with the real ones' columns: of each eight problems of one operation, eight of two."""
    rows = {source: [] for source in problems.FILES}
    for number, (name, thing) in enumerate(itertools.product(names, THINGS)):
        a, b, c = 50 + number, 10 + number % 7, 3 + number % 5
        text = f"{name} has {a} {thing} and buys {b} {thing} more."
        rows["multiarith"].append(
            {"input": f"{text} {name} loses {c}. How many are left?", "target": a + b - c}
        )
        body = {"Body": f"At home {text}", "Question": "How many are there?", "Answer": float(a + b)}
        rows["svamp"].append(body | {"Equation": f"( {a}.0 + {b}.0 )"})
    rows["singleeq"] = [
        {"input": "He has 8 figs and 2 pens. How many figs?", "target": 8.0},  # without an expression
        {"input": "She gives 4 to each of 2 cats , 2 times. How many?", "target": 16.0},
        {"input": "A ton is 1,000 kg. How many kg are 2.5 tons?", "target": 2500.0},
        {"input": "Tim cuts 7 m into 3 parts. How long is one?", "target": 2.3333333333},
    ]
    for source, own in rows.items():
        jsonl(folder, *(own or rows["singleeq"]), name=f"{source}.jsonl")


def write_problems(folder, monkeypatch, scale) -> dict[str, list[dict]]:
    """The rows of each side."""
    write_sets(folder)
    arguments = ["", str(folder / "data"), "--source", str(folder), "--scale", str(scale)]
    monkeypatch.setattr("sys.argv", arguments)
    problems.main()
    return {
        side: [json.loads(line) for line in open(folder / f"data/{side}.jsonl")]
        for side in ("train", "validation", "test")
    }


def test_solutions_follow_from_equations_and_sides_are_apart(tmp_path, monkeypatch):
    sides = write_problems(tmp_path, monkeypatch, 0.1)
    rows = {row["problem"]: row for rows in sides.values() for row in rows}
    ann = next(row for text, row in rows.items() if text.startswith("Ann has 50 pens"))
    assert ann["steps"] == ["50 + 10 = 60.", "60 - 3 = 57.", "The answer is 57."]
    assert rows["A ton is 1,000 kg. How many kg are 2.5 tons?"]["steps"][0] == "1000 * 2.5 = 2500."
    assert not any(text.startswith(("He", "She", "Tim cuts")) for text in rows)  # none, two meanings, no end
    assert [len(sides[side]) for side in ("validation", "test")] == [12, 24]
    kinds = [(row["id"].split("-")[0], len(row["steps"])) for row in sides["test"]]
    assert sorted(set(kinds)) == [("multiarith", 3), ("singleeq", 2), ("svamp", 2)]
    beginnings = [{tuple(row["problem"].split()[:6]) for row in rows} for rows in sides.values()]
    assert not any(a & b for i, a in enumerate(beginnings) for b in beginnings[:i])


CANDIDATES = {"right": "4 + 2 = 6.", "wrong": "4 - 2 = 2.", "false": "4 * 2 = 7."}


def write_evaluation(folder, knowing):
    """What evaluate.py leaves of four problems, each with one candidate of each kind: the arm `knowing` likes
    the right one, the other arm the wrong one, and the likelihood the one whose equation does not hold."""
    folder.mkdir()
    verifiers, scores = {}, {}
    for name, arm in {"prm": "outcome", "orm": "equations"}.items():
        verifiers[name] = {"verifier": f"runs/{arm}_0 step 5"}
        scores[name] = [2.0, -2.0, -2.0] if arm == knowing else [-2.0, 2.0, -2.0]
    candidates = []
    for i, (kind, step) in enumerate(CANDIDATES.items()):
        own = {name: (x[i],) for name, x in scores.items()}
        candidates.append(Candidate((step,), kind, kind == "right", True, own, (i - 3.0,)))
    units = dict.fromkeys(scores, "logit")
    ids = "multiarith-0", "multiarith-1", "svamp-2", "svamp-3"
    rows = [Problem(i, "4 and 2?", "6", tuple(candidates), units) for i in ids]
    write_pool(folder / "pool.jsonl.gz", rows)
    (folder / "results.json").write_text(json.dumps({"verifiers": verifiers}))


def test_what_is_chosen_on_one_pool_is_measured_on_another(tmp_path, monkeypatch, capsys):
    write_evaluation(tmp_path / "validation", "outcome")
    write_evaluation(tmp_path / "test", "equations")
    words = [str(tmp_path / "validation"), str(tmp_path / "test"), "--csv", str(tmp_path / "real.csv")]
    monkeypatch.setattr("sys.argv", ["", *words])
    choose.main()
    table = pd.read_csv(tmp_path / "real.csv").set_index(["by", "checked"])
    assert table.loc[("outcome", False), "validation"].tolist() == [1, 1]  # without and with log p
    assert table.loc[("outcome", False), "test"].tolist() == [0, 0]
    assert table.loc[("likelihood", False), "test"].item() == 0
    assert table.loc[("a sample", True), "test"].item() == 0.5  # the false one may not win
    primary = table.xs("primary: outcome - a sample").iloc[0]
    assert primary[["test", "low", "high"]].tolist() == [-0.5, -0.5, -0.5]


NAMES_OF_PAGE = {
    "random sample": "a sample",
    "majority vote": "vote",
    "policy's likelihood": "likelihood",
    "PRM, equations checked": "equations",
    "PRM, completions": "completions",
    "outcome model": "outcome",
    "implicit PRM": "implicit",
}


def test_the_page_has_the_numbers_of_its_file():
    page = (ROOT / "docs/real.md").read_text()
    table = pd.read_csv(ROOT / "docs/real.csv").set_index("by")
    rows = re.search(r"\| all samples \| true equations \|\n.*\n((?:\|.*\n)+)", page)[1].splitlines()
    assert len(rows) == 8
    for row in rows:
        name, *cells = row.replace("*", "").strip("| ").split(" | ")
        name = name.partition(":")[0]
        own = table.loc[[NAMES_OF_PAGE.get(name, name)]]
        for cell, is_checked in zip(cells, ("False", "True"), strict=True):
            expected = own[own.checked.astype(str) == is_checked].test
            assert [float(x) for x in cell.split(",")] == pytest.approx([*expected], abs=5.1e-4), row
    for name, found in table[table.p.notna()].iterrows():
        numbers = [f"{x:+.3f}".replace("0.", ".") for x in found[["test", "low", "high"]]]
        shown = f"{numbers[0]} [{numbers[1]}, {numbers[2].lstrip('+')}]"
        assert shown in page, name
    rl = pd.read_csv(ROOT / "docs/real_rl.csv").set_index(["reward", "update"])["pass@1"]
    places = {".425": ("checker", 0), ".428": ("checker", 20), ".422": ("PRM + checker", 20)}
    for shown, where in places.items():
        assert shown in page.partition("**RL ")[2] and float(shown) == pytest.approx(rl[where], abs=5.1e-4)


# Keys of the page's commands at the size of a test.
SMALL = {
    "batch.rows": 1,
    "batch.tokens": 256,
    "batch.accumulate": 1,
    "checkpoint_every": 8,
    "data.folds": 3,
    "eval.every": 8,
    "eval.problems": 2,
    "k": 1,
    "n": 2,
    "problems": 2,
    "sampling.max_tokens": 32,
    "seed": 0,
}
# The policy has to learn how a solution ends: a sample that is cut has no outcome.
STEPS = {216: 8, 60: 1, 20: 1}


@pytest.mark.slow
def test_the_commands_of_the_page_run_one_after_another(tmp_path):
    (tmp_path / "smollm2").symlink_to(real_model("smollm2"))
    (tmp_path / "math_word_problems").mkdir()
    write_sets(tmp_path / "math_word_problems", NAMES[:2])
    page = (ROOT / "examples/real/README.md").read_text()
    script = "".join(re.findall(r"```bash\n(.*?)```", page, flags=re.DOTALL))
    script = re.sub(r"^(git|cp|pip|python -m examples.real.smollm2) .*\n", "", script, flags=re.MULTILINE)
    for key, value in SMALL.items():
        script = re.sub(rf"(?<![\w.]){re.escape(key)}=[\w.,]+", f"{key}={value}", script)
    script = re.sub(r"(?<![\w.])steps=(\d+)", lambda match: f"steps={STEPS[int(match[1])]}", script)
    script = script.replace("--source", "--scale 0.02 --source").replace("examples/eq", f"{ROOT}/examples/eq")
    script = re.sub(r"python (\w+\.py)", rf"python {ROOT}/\1", script).replace(
        "python ", f"{sys.executable} "
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-ec", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = pd.read_csv(tmp_path / "real/real.csv")
    assert {"equations", "completions", "outcome", "implicit", "vote", "likelihood"} <= {*table["by"]}
    assert "primary: " in done.stdout


def test_texts_end_at_the_first_flagged_step_and_leave_known_problems_out(tmp_path, monkeypatch):
    def candidate(scores, correct, **more):
        steps = [f"step {t}" for t in range(len(scores))]
        return {"steps": steps, "prm_step_scores": {"qwen_prm": scores}, "correct": correct} | more

    flagged, sound = candidate([0.9, 0.2, 0.8], True), candidate([0.7, 0.6], False)
    prompted = candidate([0.1], False, first_step_has_prompt=True)
    pool = [
        {"question": "How many?", "candidates": [sound, prompted, flagged, sound]},
        {"question": "known  one", "candidates": [flagged]},
    ]
    answer = "Half: 8/2 = <<8/2=4>>4\nAll: 8+4 = <<8+4=12>>12\n#### 12"
    gsm8k = {"question": "Pens?", "answer": answer}, {"question": "known one", "answer": answer}
    jsonl(tmp_path, *pool, name="pool.jsonl")
    jsonl(tmp_path, *gsm8k, name="gsm8k.jsonl")
    jsonl(tmp_path, {"problem": "known one"}, name="bench.jsonl")
    monkeypatch.chdir(tmp_path)
    texts.main(["out", "--pools", "pool.jsonl", "--gsm8k", "gsm8k.jsonl", "--without", "bench.jsonl"])

    written = {
        name: pd.read_json(f"out/{name}.jsonl", lines=True, precise_float=True)
        for name in ("process", "outcome", "changed")
    }
    assert written["process"].labels.tolist() == [[0.9, 0.2], [0.7, 0.6]]
    assert written["outcome"].labels.tolist() == [[1, 1], [0, 0]]
    assert written["outcome"].completions.tolist() == [["step 0", "step 1"]] * 2
    right, wrong = written["changed"].completions
    assert right == ["Half: 8/2 = 4", "All: 8+4 = 12", "The answer is 12."]
    end = len(wrong) - 1
    assert written["changed"].labels.tolist() == [[1, 1, 1], [1] * end + [0]]
    assert wrong[:end] == right[:end] and wrong[end] != right[end]
    assert wrong[end].split("=")[0] == right[end].split("=")[0]


def test_the_table_of_texts_has_the_numbers_of_its_file():
    page = (ROOT / "examples/real/texts.md").read_text()
    numbers = pd.read_csv(ROOT / "docs/real_texts.csv").pivot(index="checkpoint", columns="y", values="mean")
    rows = re.findall(r"^\| (\w+)[^|]* \| ([.\d, ]+) \| ([.\d, ]+) \|$", page, flags=re.MULTILINE)
    assert len(rows) == 8
    for name, *cells in rows:
        is_rule = name in ("likelihood", "length", "position")
        for cell, number in zip(cells, ("cross_fitted", "step_auroc"), strict=True):
            by_run = numbers[f"judges.{name if is_rule else 'verifier'}.{number}"]
            found = by_run.dropna()[:1] if is_rule else by_run[by_run.index.str.contains(f"/{name}_")]
            assert [float(x) for x in cell.split(",")] == pytest.approx([*found], abs=5.1e-4), name
