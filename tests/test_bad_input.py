"""Bad input from the command line ends in one line that names the key, or the file, its line and field."""

import importlib
import json
import re
import shlex
import shutil

import pytest
from conftest import MODULES, call

from prm_jax.checkpoints.folders import locate

GOOD = {"prompt": "p", "completions": ["a", "b"], "labels": [True, False]}
BENCH = {"id": "x", "problem": "p", "steps": ["a", "b"], "label": 1, "final_answer_correct": False}
CANDIDATE = {"steps": ["a", "b"], "answer": "1", "correct": True, "step_scores": {"s": [0.5, 0.5]}}
POOL = {"id": "p", "problem": "q", "answer": "1", "candidates": [CANDIDATE]}
QUESTION = {"problem": "4 +5 mod7?", "answer": "2"}

# The second row of a file: (command line, changes of a good row, the field that the error names). A text is a
# whole row.
ROWS = [
    ("train data=jsonl data.path={}", GOOD, {"labels": [True]}, "labels"),
    ("train data=jsonl data.path={}", GOOD, '{"prompt": "p", "labels": [tr', "broken JSON"),
    ("evaluate task=processbench data.path={} checkpoint=random", BENCH, {"label": 2}, "label"),
    ("evaluate task=best_of_n input={}", POOL, {"id": "r", "candidates": []}, "candidates"),
    ("sampling input={} n=2", QUESTION, {"problem": ...}, "problem"),
]

# (command line, what the error names): a key, a file, a checkpoint.
LINES = [
    ("train steps=0", "steps"),
    ("train batch.tokens=20", "chain/train/0/0"),
    ("train mesh.data=3", "mesh"),
    ("train loss.objective=implicit", "loss.objective"),
    ("train objective=implicit init=random", "init"),
    ("train objective=orm eval.best_by=first_error_f1", "eval.best_by"),
    ("train objective=orm outcome_at=tokens loss.step=pairwise", "outcome_at"),
    ("train optimizer.trainable=lora lora.targets=[w_x]", "lora.targets"),
    ("train init=null_size", "null_size/config.json"),
    ("train resume=broken", "broken/.hydra/config.yaml"),
    ("train resume=bad_summary", "resume"),
    ("train data=jsonl", "data.path"),
    ("train data=jsonl data.path=good.jsonl data.folds=2", "data.folds"),
    ("train data=jsonl data.fold=1 data.path=a data.test_path=b data.validation_path=c", "data.fold"),
    ("evaluate", "checkpoint"),
    ("evaluate task=steps checkpoint=cut_weights data=jsonl data.path=good.jsonl", "cut_weights"),
    ("evaluate task=best_of_n input=bare_pool.jsonl", "scores"),
    ("evaluate checkpoint=checker data=chain split_by=line", "split_by"),
    ("evaluate task=best_of_n input=pool.jsonl checkpoint=[random,random]", "checkpoint"),
    ("evaluate task=search checkpoint=checker data=chain policy_format.bos=false", "policy_format.bos"),
    ("evaluate task=search checkpoint=checker data=chain methods=[dfs]", "methods"),
    ("evaluate task=search checkpoint=checker data=chain columns={id:x}", "columns"),
    ("evaluate task=search checkpoint=random input=good.jsonl policy=embedded", "good.jsonl: 1: answer"),
    ("""evaluate task=search data=chain policy=x 'checkpoint="mean:[embedded_orm,random]"'""", "checkpoint"),
    ("evaluate task=processbench checkpoint=random data.path=q.jsonl data.fold=1", "data.fold"),
    ("evaluate task=processbench checkpoint=random data.path=[a/x.jsonl,b/x.jsonl]", "data.path"),
    ("sampling input=q.jsonl checkpoint=embedded_orm", "embedded_orm"),
    ("sampling input=q.jsonl checkpoint=null", "checkpoint"),
    (r"""sampling input=q.jsonl 'format.prefix="{problem}\n"'""", "format.prefix"),
    ("sampling input=q.jsonl format.bos=false", "format.bos"),
    ("labeling input=good.jsonl checker=chain label=first_error", "label"),
    ("labeling input=good.jsonl", "input"),
    ("labeling input=good.jsonl k=0", "k"),
    ("rl n=1", "n"),
    ("rl optimizer.trainable=head", "optimizer.trainable"),
    ("rl data=jsonl data.path=good.jsonl", "data"),
    ("rl input=q.jsonl held_out=q.jsonl reward.prm_checkpoint=embedded_prm", "reward.prm"),
    ("export", "to"),
    ("export to=out checkpoint=embedded", "checkpoint"),
    ("bench what=sampling checkpoint=embedded", "input"),
    ("bench what=score checkpoint=embedded input=q.jsonl", "checkpoint"),
    ("sweeps runs=bad_summary", "bad_summary/summary.json"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the lines name: good files, and files and folders that are bad as a whole."""
    at = tmp_path_factory.mktemp("bad")
    unscored = {key: CANDIDATE[key] for key in ("steps", "answer", "correct")}
    rows = {"good": GOOD, "pool": POOL, "q": QUESTION, "bare_pool": POOL | {"candidates": [unscored]}}
    for name, row in rows.items():
        (at / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    files = {
        "broken/.hydra/config.yaml": b"a: [",
        "null_size/config.json": b'{"model_type": "llama", "hidden_size": null}',
        "bad_summary/summary.json": b"{",
        "bad_summary/.hydra/config.yaml": b"seed: 0\n",
    }
    for name, content in files.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_bytes(content)
    shutil.copytree(locate("embedded_orm"), at / "cut_weights")
    data = (at / "cut_weights/model.safetensors").read_bytes()
    (at / "cut_weights/model.safetensors").write_bytes(data[: len(data) // 2])
    return at


def refused(command: str, folder, monkeypatch) -> str:
    """What a command line ends with, on one line; its folder is free for the next one."""
    name, *words = shlex.split(command)
    monkeypatch.chdir(folder)
    own = ["hydra.run.dir=out"]
    if name == "train" and "steps" not in command:  # what is taken in silence should end soon
        own += ["steps=1", "eval.solutions=20"]
    if name == "train" and not any(word.startswith(("data", "resume=")) for word in words):
        own += ["data.samples=solver", "data.solutions=50", "data.test_solutions=20"]
    shutil.rmtree(folder / "out", ignore_errors=True)
    command = importlib.import_module(MODULES.get(name, f"prm_jax.{name}"))
    code = call(command.main, monkeypatch, f"{name}.py", *own, *words)
    assert code.startswith("error: ") and "\n" not in code and len(code) < 700
    return code


@pytest.mark.parametrize("command, key", LINES, ids=[command for command, _ in LINES])
def test_a_bad_command_line_names_what_is_wrong(command, key, folder, monkeypatch):
    error = refused(command, folder, monkeypatch)
    assert re.search(rf"(^|\W){re.escape(key)}\b", error), error


@pytest.mark.parametrize("command, good, change, field", ROWS, ids=[f"{r[0][:12]} {r[3]}" for r in ROWS])
def test_a_bad_row_is_named_by_file_line_and_field(command, good, change, field, folder, monkeypatch):
    if isinstance(change, dict):
        change = json.dumps({key: value for key, value in (good | change).items() if value is not ...})
    (folder / "rows.jsonl").write_text(f"{json.dumps(good)}\n{change}\n")
    error = refused(command.format("rows.jsonl"), folder, monkeypatch)
    assert "rows.jsonl line 2" in error and field in error, error
