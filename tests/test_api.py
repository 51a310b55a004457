"""`import prm_jax` from a notebook or another folder: verifiers, training, evaluation, an installed copy, `python -m prm_jax`."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import hydra
import numpy as np
import pandas
import pytest
from conftest import LAST_DECIDES, ROOT, call, without_torch
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser

import prm_jax
from prm_jax import InputError, __main__, api, training
from prm_jax.launch import run_folder
from prm_jax.launch.cli import command_name
from prm_jax.launch.config import CONF, PACKAGE, script

PROBLEM, RIGHT, WRONG = "4 +5 *3 mod7?", ["4+5=2", "2*3=6"], ["4+5=3", "3*3=2"]
SMALL = {"steps": 2, "init": "random", "log_every": 1, "eval": {"every": 2, "solutions": 20}}
SMALL |= {"model": {"dim": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "ffn": 16}}
SMALL |= {"data": {"samples": "solver", "solutions": 200, "test_solutions": 40}}


@pytest.fixture(scope="module")
def verifier():
    return prm_jax.load("embedded_orm")


def test_a_verifier_scores_steps_of_one_problem_and_of_many(verifier):
    ((right_T, wrong_T),) = [verifier.scorer.score([(PROBLEM, tuple(RIGHT)), (PROBLEM, tuple(WRONG))])]
    p_T = verifier.score(PROBLEM, RIGHT)
    np.testing.assert_allclose(p_T, 1 / (1 + np.exp(-right_T.astype(float))), rtol=1e-12)
    np.testing.assert_array_equal(verifier.log_odds(PROBLEM, RIGHT), right_T)
    several = verifier.score([PROBLEM, PROBLEM, "1+1?"], [RIGHT, WRONG, []])
    assert [len(x) for x in several] == [2, 2, 0] and verifier.score([], []) == []
    np.testing.assert_allclose(several[0], p_T, atol=1e-6)
    np.testing.assert_allclose(several[1], 1 / (1 + np.exp(-wrong_T.astype(float))), atol=1e-6)


def test_a_format_is_a_name_or_a_name_with_changes(tmp_path, capsys):
    assert repr(prm_jax.load("random")) == "Verifier('random', unknown labels, ranks by min)"
    folder = prm_jax.checkpoints.hf.SHIPPED["embedded_orm"]
    for file in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({key: x for key, x in config.items() if key != "prm_jax"})
    )
    apart = prm_jax.load(tmp_path, format={"name": "plain", "separator": "\n\n"})
    assert (apart.scorer.format.name, apart.scorer.format.separator) == ("plain", "\n\n")
    named = prm_jax.load(f"plain:{tmp_path}")
    assert (
        named.scorer.format.separator == "\n" and (named.score("1?", ["a"]) != apart.score("1?", ["a"])).all()
    )
    for name, format, message in (
        (
            tmp_path,
            {"name": "plain", "separatr": " "},
            "format.separatr: unknown key; did you mean format.separator",
        ),
        (tmp_path, "plane", "format: got 'plane', expected acemath_rm, .*, plain"),
        (tmp_path / "config.json", "plain", "config.json: is a file, expected its folder"),
        ("plain:nowhere", "auto", "nowhere: no such folder"),
    ):
        with pytest.raises(InputError, match=message):
            prm_jax.load(name, format=format)


def test_a_verifier_ranks_by_the_aggregator_that_suits_it(verifier):
    problem, right, wrong = LAST_DECIDES
    solutions = [[], wrong, right, wrong]
    assert verifier.aggregator == "last" and verifier.rank(problem, solutions) == [2, 1, 3, 0]
    lowest = prm_jax.load("embedded_orm", aggregator="min")
    assert lowest.rank([problem, "1+1?", problem], [solutions, [], [right]]) == [[1, 3, 2, 0], [], [0]]
    assert lowest.rank([], []) == [] and prm_jax.load("random").aggregator == "min"
    table = pandas.DataFrame(
        {"problem": [problem, problem], "solutions": [solutions, [right]]}, index=["a", "b"]
    )
    assert verifier.rank(table["problem"], table["solutions"]) == [[2, 1, 3, 0], [0]]


@pytest.mark.parametrize(
    "ask, message",
    [
        (lambda v: v.score(PROBLEM, "4+5=2"), "steps: got '4\\+5=2', expected a list of steps"),
        (lambda v: v.score(PROBLEM, [RIGHT]), "steps: got .* expected a list of steps"),
        (lambda v: v.score([PROBLEM, None], [RIGHT, RIGHT]), "problem: got .* expected a list of problems"),
        (
            lambda v: v.score(PROBLEM, iter(RIGHT)),
            "steps: got <list_iterator .* expected a list of steps",
        ),  # none was scored
        (lambda v: v.score(PROBLEM, None), "steps: got None, expected a list of steps"),
        (lambda v: v.score(None, RIGHT), "problem: got None, expected a list of problems"),
        (
            lambda v: v.score(pandas.DataFrame({PROBLEM: [1]}), [RIGHT]),
            "problem: got .* expected a list of problems",
        ),
        (lambda v: v.score({PROBLEM: 1}, [RIGHT]), "problem: got .* expected a list of problems"),
        (lambda v: v.score([PROBLEM], 3), "steps: got 3, expected a list of solutions"),
        (
            lambda v: v.score(PROBLEM, ["4+5=2", "\ud800"]),
            "steps: got .*ud800.*, expected a list of steps, each a text in",
        ),
        (
            lambda v: v.rank(PROBLEM, iter([RIGHT])),
            "solutions: got <list_iterator .* expected a list of solutions",
        ),
        (lambda v: v.rank(PROBLEM, "ab"), "solutions: got 'ab', expected a list of solutions"),
        (lambda v: v.rank(None, [RIGHT]), "problem: got None, expected a list of problems"),
        (lambda v: v.rank([PROBLEM], None), "solutions: got None, expected a list of lists"),
        (lambda v: prm_jax.load("embedded_orm", rows=0), "rows: got 0, expected at least 1"),
        (lambda v: prm_jax.load("embedded_orm", rows="8"), "rows: got '8', expected an integer"),
        (lambda v: prm_jax.load("embedded_orm", tokens=1.5), "tokens: got 1.5, expected an integer or null"),
        (lambda v: prm_jax.load("random", seed=-1), "seed: got -1, expected at least 0"),
        (lambda v: prm_jax.load("random", which="newest"), "which: got 'newest', expected best or latest"),
        (lambda v: prm_jax.load("random", row=3), "row: unknown key; did you mean rows"),
        (lambda v: prm_jax.load("values", data="chain"), "data: got 'chain', expected DictConfig or null"),
        (
            lambda v: prm_jax.load("random", aggregator=["min"]),
            r"aggregator: got \['min'\], expected min, prod",
        ),
        (
            lambda v: v.score([PROBLEM], [RIGHT, WRONG]),
            "steps: got '2 solutions', expected 1, one for each problem",
        ),
        (lambda v: v.rank([PROBLEM], [[RIGHT], [WRONG]]), "solutions: got '2 lists', expected 1"),
        (lambda v: prm_jax.load("embedded_orm", aggregator="mx"), "aggregator: got 'mx', expected min, prod"),
        (lambda v: prm_jax.load("embedded_orm", format="qwen"), "format: got 'qwen', expected .*qwen_prm"),
        (lambda v: prm_jax.load("nowhere"), "nowhere: no such folder"),
        (lambda v: prm_jax.train(stps=3), "stps: no such key in the configuration; did you mean steps"),
        (
            lambda v: prm_jax.train(optimizer={"lrr": 3}),
            "optimizer.lrr: no such key .* did you mean optimizer.lr",
        ),
        (
            lambda v: prm_jax.train(data=3),
            "data=3: Hydra cannot read it: Config group override must be a string or a list",
        ),
        (lambda v: prm_jax.train(3), "overrides: got 3, expected texts, KEY=VALUE"),
        (lambda v: prm_jax.train(data="chian"), "data: got 'chian', expected .*chain"),
        (lambda v: prm_jax.train(seed={1}), r"seed: got \{1\}, expected a text, a number"),
        (lambda v: prm_jax.evaluate(task="stps"), "task: got 'stps', expected steps"),
    ],
)
def test_bad_input_raises_one_line(verifier, ask, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        ask(verifier)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "value",
    [
        "runs/a_b-1.jsonl",
        "1e-3",
        "null",
        "TRUE",
        "nan",
        "",
        " a b ",
        "a,b=c:{d}[e]",
        "it's \"\\",
        "\\'",
        "\\\\",
        "über",
    ],
)
def test_a_text_comes_through_the_command_line_as_it_is(value):
    (word,) = api.as_overrides("a", value)
    assert OverridesParser.create().parse_override(word).value() == value


def test_other_keywords_are_written_as_hydra_reads_them():
    keys = {"a": {"b": np.float32(0.5), "c": {"d": True, "e": None}}, "f": [1, "x y", (2e-5, False)]}
    words = [word for key, value in keys.items() for word in api.as_overrides(key, value)]
    parsed = OverridesParser.create().parse_overrides(words)
    values = {"a.b": 0.5, "a.c.d": True, "a.c.e": None, "f": [1, "x y", [2e-5, False]]}
    assert {one.key_or_group: one.value() for one in parsed} == values


def test_training_and_evaluation_return_what_the_commands_write(tmp_path, monkeypatch, capsys):
    """Folders lie where the commands put them, and nothing of the calling program changes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", before := ["kernel", "-f", str(tmp_path)])
    run = prm_jax.train("optimizer.lr=2e-3", **SMALL, seed=1)
    assert run.parent == tmp_path / "runs/train" and f"run folder  {run}" in capsys.readouterr().out
    stored, overrides = run_folder.run_config(run), run_folder.overrides_of(run)
    assert (stored.optimizer.lr, stored.seed, stored.data.solutions) == (
        2e-3,
        1,
        200,
    ) and "hydra" not in stored
    assert (
        overrides[0] == "optimizer.lr=2e-3"
        and overrides[-1] == "seed=1"
        and "data.samples=solver" in overrides
    )
    summary = json.loads((run / "summary.json").read_text())
    assert summary["finished"] and summary["versions"]["prm_jax"] == prm_jax.__version__

    rows = tmp_path / "it's.jsonl"
    rows.write_text(json.dumps({"prompt": PROBLEM, "completions": RIGHT, "labels": [1, 1]}))
    results = prm_jax.evaluate(
        task="score", input=rows, checkpoint=run, hydra={"run": {"dir": "runs/my scores"}}
    )
    assert results["folder"] == str(tmp_path / "runs/my scores") and results["verifier"] == f"{run} step 2"
    stored = json.loads((tmp_path / "runs/my scores/results.json").read_text())
    assert stored.pop("checksum") and results == stored | {"folder": results["folder"]}
    lowest = prm_jax.load(run).score(PROBLEM, RIGHT).min()
    assert [row["score"] for row in results["ranking"]] == [pytest.approx(lowest, abs=1e-6)]
    assert sys.argv == before and os.getcwd() == str(tmp_path)
    assert HydraConfig.instance().cfg is None and not GlobalHydra().is_initialized()


def test_a_refused_run_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(prm_jax.InputError, match="steps: got 0"):
        prm_jax.train(steps=0)
    assert not list(tmp_path.glob("runs/train/*"))


def test_an_interrupt_saves_and_raises_and_resume_returns_the_same_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step = training.train_step

    def interrupted(*args):
        monkeypatch.setattr(training, "train_step", step)
        signal.raise_signal(signal.SIGINT)
        return step(*args)

    monkeypatch.setattr(training, "train_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prm_jax.train(**SMALL | {"steps": 4})
    (run,) = (tmp_path / "runs/train").iterdir()
    assert any((run / "checkpoints/latest").iterdir()) and not (run / "summary.json").exists()
    assert prm_jax.train(resume=run) == run and json.loads((run / "summary.json").read_text())["steps"] == 4


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch):
    (code,) = re.findall(
        r"```python\n(run = prm_jax.train.*?)```", (ROOT / "docs/commands.md").read_text(), flags=re.DOTALL
    )
    composed = []

    def run_command(name, overrides, keys):
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            words = [word for key, value in keys.items() for word in api.as_overrides(key, value)]
            composed.append(hydra.compose(name, [*overrides, *words]))
        run_folder.write_json(tmp_path / "results.json", {"task": "steps"})
        return tmp_path

    monkeypatch.setattr(api, "run_command", run_command)
    exec(code, names := {"prm_jax": prm_jax})  # noqa: S102 (our own page)
    assert names["results"]["task"] == "steps"
    assert composed[0].model.head == "binary" and composed[1].checkpoint == str(tmp_path)


def test_the_list_of_commands_has_every_module_that_is_one():
    is_command = [path for path in PACKAGE.glob("*/**/*.py") if '__name__ == "__main__"' in path.read_text()]
    is_command += [path for path in PACKAGE.glob("[!_]*.py") if '__name__ == "__main__"' in path.read_text()]
    names = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__main__")
        for path in is_command
    }
    names -= {"bench.peers"}  # runs in the interpreter of a peer
    assert __main__.COMMANDS.keys() == names | {"train", "evaluate"}


@pytest.mark.parametrize(
    "words, message",
    [
        (["train", "stps=3"], "error: stps: no such key in the configuration; did you mean steps?"),
        (["export", "too=3"], "error: too: no such key in the configuration; did you mean to?"),
        (["--help", "trian"], f"error: trian: no such command, expected {', '.join(__main__.COMMANDS)}"),
        (["trian"], f"error: trian: no such command, expected {', '.join(__main__.COMMANDS)}"),
    ],
)
def test_a_command_is_run_by_its_name(words, message, monkeypatch):
    assert call(__main__.main, monkeypatch, "prm_jax", *words) == message


@pytest.mark.parametrize(
    "running, command",
    [
        ("train.py", "python evaluate.py"),
        ("../a clone/train.py", "python '../a clone/evaluate.py'"),
        ("/site/prm_jax/__main__.py", "python -m prm_jax evaluate"),
        ("/lib/ipykernel_launcher.py", "python -m prm_jax evaluate"),
    ],
)
def test_messages_name_a_command_that_works_in_this_folder(running, command, monkeypatch):
    monkeypatch.setattr(sys, "argv", [running])
    assert script("evaluate") == command and command_name("rl") == "python -m prm_jax.rl"


@pytest.mark.slow
def test_an_installed_copy_works_in_any_folder(tmp_path):
    """It has every file, and the commands beside the package; `import prm_jax` alone loads no jax."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed: pip install -r tests/requirements.txt")
    source, site, folder = tmp_path / "source", tmp_path / "site", tmp_path / "folder"
    folder.mkdir()
    for name in ("prm_jax", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("train.py", "evaluate.py", "pyproject.toml", "requirements.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--no-compile",
    ]
    subprocess.run([*pip, "--target", site, source], check=True)
    moved = {"train.py", "evaluate.py", "conf"}
    files = [
        path.relative_to(source) for path in source.rglob("*") if path.is_file() and "build" not in path.parts
    ]
    files = {"prm_jax/root" / path if path.parts[0] in moved else path for path in files}
    files = {str(path) for path in files if path.parts[0] == "prm_jax"}
    assert {str(path.relative_to(site)) for path in (site / "prm_jax").rglob("*") if path.is_file()} == files

    def python(*args):
        env = without_torch(os.environ | {"PYTHONPATH": str(site)})
        return subprocess.run(
            [sys.executable, *args], cwd=folder, env=env, capture_output=True, text=True, check=False
        )

    code = "import sys, prm_jax; print('jax' in sys.modules, prm_jax.__file__)\nv = prm_jax.load('embedded_prm')\n"
    code += f"print(v.rank({PROBLEM!r}, [{WRONG}, {RIGHT}]))\ntry: prm_jax.train(stps=3)\nexcept ValueError as e: print(e)"
    out = f"False {site}/prm_jax/__init__.py\n[1, 0]\nstps: no such key in the configuration; did you mean steps?\n"
    assert (done := python("-c", code)).stdout == out, done.stderr
    last = python("-m", "prm_jax", "evaluate", "task=steps").stderr.splitlines()[-1]
    assert last.endswith("; run `python -m prm_jax train` first, or name one"), (
        last
    )  # there is no train.py to run
    listed = python("-m", "prm_jax").stdout
    assert re.findall(r"^  (\S+)  +\S", listed, flags=re.MULTILINE) == list(__main__.COMMANDS)
