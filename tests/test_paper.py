"""A paper's figure from nothing: stages are made once, a kill loses little, an override passes down, every figure composes."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import yaml
from conftest import ROOT, call, printed, without_torch

from prm_jax import InputError
from prm_jax.figures import __main__ as figures
from prm_jax.figures import paper, pipeline, running
from prm_jax.figures.gallery import drawing
from prm_jax.launch import run_folder
from prm_jax.launch.config import CONF

NAMES = pipeline.names()
# A command in 20 ms: writes its arguments as results; of training seed 7 waits for a signal, 13 fails.
FAKE = """
import json, pathlib, sys, time
given = dict(x.split("=", 1) for x in sys.argv if "=" in x)
folder = pathlib.Path(given.get("resume", given["hydra.run.dir"]))
(folder / ".hydra").mkdir(exist_ok=True)
if "seed=13" in sys.argv: print("error: seed: an unlucky number\\na warning of others, after it", file=sys.stderr), sys.exit(1)
(folder / "summary.json").write_text(json.dumps(sys.argv[1:]))
if "seed=7" in sys.argv and sys.argv[1].endswith("train.py"): time.sleep(60)
"""


def write_figure(folder, **figure):
    folder.mkdir(exist_ok=True)
    (folder / "tiny.yaml").write_text(yaml.dump({"draw": "best_of_n", "sweep": {}} | figure, sort_keys=False))


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Writes the figure `tiny`, whose commands only write what they were told; returns the folder of its stages."""
    real = running.argv

    def argv(*args):
        return [sys.executable, "-c", FAKE, *real(*args)[1:]]

    monkeypatch.setattr(running, "argv", argv)
    monkeypatch.setattr(pipeline, "FIGURES", tmp_path / "conf")
    monkeypatch.setattr(paper, "draw", lambda *args: [])
    monkeypatch.chdir(tmp_path)
    write_figure(
        tmp_path / "conf",
        sweep={"seed": [0, 1]},
        stages={
            "prm": "train.py seed={seed}",
            "all": "evaluate.py task=best_of_n checkpoint=[{prm}] seed=0",
            "pool": "evaluate.py task=best_of_n checkpoint={prm} seed={seed}",
        },
    )
    return tmp_path / "runs/figures/stages"


def made(stages):
    """{name: folder} of the stages that are done."""
    return {path.parent.name.rsplit("-", 1)[0]: path.parent for path in stages.glob("*/DONE")}


def told(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_composes_and_says_what_to_expect(name, tmp_path):
    figure = pipeline.read_definition(name)
    stages, unused = pipeline.make_stages(figure, {"seed": "3"}, tmp_path, {})
    assert callable(drawing(figure.draw))
    assert all(line for line in stages.values()) and not unused
    header = re.match(r"(?:#.*\n)*", (pipeline.FIGURES / f"{name}.yaml").read_text())[0]
    assert re.match(rf"# python -m prm_jax.figures name={name}( jobs=2)?( cpu_devices=1)?\n", header)
    places = [
        re.search(rf"(?m)^# {word}\b", header)
        for word in ("Question", "Expected", "Primary", "Seen", "Seeds")
    ]
    assert all(places) and sorted(places, key=re.Match.start) == places or name == "rl"  # which was run twice
    assert "Cost: " in header and "Commit: " in header
    if (
        figure.data
    ):  # of stored scores: nothing that a seed would change but the bootstrap, and the header says so
        assert "seed" not in figure.sweep and "# Seeds: none, nothing is trained or sampled" in header
    else:
        assert len(set(figure.sweep["seed"])) >= 3


LABEL = r"# [A-Z][a-z]+[ ,:(]"  # of a part of a header: `# Seen: `


@pytest.mark.parametrize("name", NAMES)
def test_what_was_expected_is_never_edited(name):
    """`Expected (COMMIT): ...` is the text of the file at that commit, when the figure was first run."""
    header = re.match(r"(?:#.*\n)*", (pipeline.FIGURES / f"{name}.yaml").read_text())[0]
    expected = re.findall(rf"(?m)^# Expected \((\w{{7}})\): ((?:.*\n)(?:(?!{LABEL})# .*\n)*)", header)
    assert expected
    words = lambda text: " ".join(text.replace("\n# ", " ").split())
    for commit, text in expected:
        command = ["git", "-C", ROOT, "show", f"{commit}:conf/figure/{name}.yaml"]
        then = subprocess.run(command, capture_output=True, text=True, check=False)
        if then.returncode:
            pytest.skip(f"no history here: git show {commit} failed")
        assert words(text) in words(then.stdout)


def in_words(x: str) -> str:
    """.358 for 0.3581, -.344 for -0.3442, as the pages write numbers."""
    return f"{float(x):.3f}".replace("0.", ".", 1)


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "docs/gallery").glob("*.csv")))
def test_the_gallery_says_what_the_tables_say(name):
    """The primary difference of a figure's table, with its interval, stands in docs/gallery.md and in the figure's file."""
    with (ROOT / f"docs/gallery/{name}.csv").open() as table:
        row = next(row for row in csv.DictReader(table) if row["panel"].startswith("difference of"))
    numbers = f"{in_words(row['y'])} [{in_words(row['low'])}, {in_words(row['high'])}]"
    for path in (ROOT / "docs/gallery.md", pipeline.FIGURES / f"{name}.yaml"):
        assert numbers in path.read_text(), f"{path}: {numbers}"


def test_every_picture_of_the_gallery_has_a_verdict():
    text = (ROOT / "docs/gallery.md").read_text()
    rows = re.findall(r"(?m)^\| \[.*?name=(\w+).*?\| (?:[^|]*) \| ([a-z ]+?)[:,(|].*$", text)
    assert sorted(name for name, _ in rows) == sorted(re.findall(r"]\(gallery/(\w+).png\)", text))
    assert {verdict.strip().split(" for ")[0] for _, verdict in rows} <= {
        "seen",
        "not as expected",
        "undecided",
        "not answered",
    }


def test_stages_are_made_once_in_order_and_know_each_others_folders(tiny, capsys):
    figures.run(["name=tiny", "jobs=3"])
    done = made(tiny)
    assert set(done) == {"prm_0", "prm_1", "pool_0", "pool_1", "all"}
    assert f"checkpoint=runs/figures/stages/{done['prm_1'].name}" in told(done["pool_1"])
    both = ",".join(f"runs/figures/stages/{done[name].name}" for name in ("prm_0", "prm_1"))
    assert f"checkpoint=[{both}]" in told(done["all"])
    out = capsys.readouterr().out
    assert [out.index(f"made        {name}") for name in ("prm_0", "pool_0")] == sorted(
        out.index(f"made        {name}") for name in ("prm_0", "pool_0")
    )
    before = {path: path.stat().st_mtime_ns for path in tiny.glob("*/*")}
    figures.run(["name=tiny"])
    assert {path: path.stat().st_mtime_ns for path in tiny.glob("*/*")} == before
    assert capsys.readouterr().out.count("read        ") == 5


def test_devices_decide_a_stage_and_jobs_do_not(tiny):
    """jobs=2 set cpu_devices=1, which ends elsewhere (best of 64 .753 and .820), in the folder that jobs=1 reads."""
    figures.run(["name=tiny", "seed=0", "jobs=2"])
    first = made(tiny)
    assert not any("cpu_devices" in x for folder in first.values() for x in told(folder))
    config = json.loads((first["prm_0"] / "stage.json").read_text())["config"]
    assert (config["cpu_devices"], config["mesh.fsdp"]) == (2, 1)
    figures.run(["name=tiny", "seed=0"])
    assert made(tiny) == first
    figures.run(["name=tiny", "seed=0", "cpu_devices=1"])
    own = {path.parent for path in tiny.glob("*/DONE")} - set(first.values())
    assert len(own) == 3 and all("cpu_devices=1" in told(folder) for folder in own)


def test_a_stage_that_other_code_has_made_is_read_and_said(tiny, monkeypatch, capsys):
    """After any edit of the code finished stages were read as if they were of it."""
    figures.run(["name=tiny", "seed=0"])
    figures.run(["name=tiny", "seed=0"])
    assert "other code" not in capsys.readouterr().out
    commit = run_folder.short_commit(json.loads((made(tiny)["prm_0"] / "DONE").read_text())["commit"])
    monkeypatch.setattr(pipeline, "code_fingerprint", lambda: "that of an edited file")
    for more in ([], ["explain=true"]):
        figures.run(["name=tiny", "seed=0", *more])
        assert capsys.readouterr().out.count(f", made by other code: commit {commit}\n") == 3


def test_a_stage_that_was_gone_on_with_is_of_the_code_before_too(tmp_path, monkeypatch):
    made = {"needs": (), "config": {}, "keys": frozenset({"resume"}), "digest": "0", "folder": tmp_path}
    stage = pipeline.Stage("x", {}, "export", (), **made)
    (tmp_path / ".hydra").mkdir()
    (tmp_path / "stage.json").write_text('{"code": "before"}')
    monkeypatch.setattr(running.subprocess, "Popen", lambda *args, **kwargs: None)
    running.start(stage, None)
    assert stage.read("stage.json")["code"] == f"before {pipeline.code_fingerprint()}"


def test_an_override_goes_to_the_stages_that_know_it_and_changes_what_rests_on_them(tiny, capsys):
    figures.run(["name=tiny", "seed=0"])
    first = made(tiny)
    assert set(first) == {"prm_0", "pool_0", "all"}
    figures.run(["name=tiny", "seed=0", "steps=24", "log_every=5", "explain=true"])
    out = capsys.readouterr().out
    assert f"against {first['prm_0'].name}: steps: 700 -> 24\n" in out
    new = re.search(r"to make     prm_0 +\S+/(prm_0-\w+)", out)[1]
    assert f"against {first['pool_0'].name}: checkpoint: {first['prm_0'].name} -> {new}\n" in out
    assert set(made(tiny)) == set(first)  # explain=true runs nothing
    figures.run(["name=tiny", "seed=0", "steps=24"])
    done = {path.parent for path in tiny.glob("*/DONE")} - set(first.values())
    assert {folder.name.split("-")[0] for folder in done} == {"prm_0", "pool_0", "all"}
    assert "steps=24" in told(tiny / new)  # log_every changes no number, so no folder
    assert not any("steps=24" in told(folder) for folder in done - {tiny / new})


def test_keys_and_named_texts_make_a_product(tiny, tmp_path):
    write_figure(
        tmp_path / "conf",
        sweep={
            "seed": [0, 1],
            "kind": {"process": "objective=prm", "outcome": "objective=orm outcome_at=tokens"},
        },
        stages={
            "verifier": "train.py {kind} seed={seed}",
            "pool": {"run": "evaluate.py task=best_of_n checkpoint=[{verifier}]", "sweep": ["seed"]},
        },
    )
    stages, _ = pipeline.make_stages(pipeline.read_definition("tiny"), {}, tiny, {})
    at = [(stage.sweep["seed"], stage.sweep["kind"]) for stage in stages["verifier"]]
    assert at == [(0, "process"), (0, "outcome"), (1, "process"), (1, "outcome")]
    assert stages["verifier"][3].overrides == ("objective=orm", "outcome_at=tokens", "seed=1")
    assert [stage.needs for stage in stages["pool"]] == [
        tuple(stages["verifier"][:2]),
        tuple(stages["verifier"][2:]),
    ]
    few, _ = pipeline.make_stages(
        pipeline.read_definition("tiny"), {"kind": "[outcome]", "seed": "5"}, tiny, {}
    )
    assert [stage.name for stage in few["verifier"]] == ["verifier_5_outcome"]
    for override in ("kind=best", "objective=lm"):  # what the figure compares is chosen, not replaced
        with pytest.raises(InputError, match="^(kind: got 'best'|objective: no stage takes this key)"):
            figures.run(["name=tiny", override])


def test_an_arm_may_name_the_stage_that_it_rests_on(tiny, tmp_path):
    kinds = {"plain": "checkpoint={prm}", "other": "checkpoint={orm}"}
    lines = {"prm": "train.py seed={seed}", "orm": "train.py objective=orm outcome_at=tokens seed={seed}"}
    lines["pool"] = "evaluate.py task=best_of_n {kind} seed={seed}"
    write_figure(tmp_path / "conf", sweep={"kind": kinds, "seed": [0, 1]}, stages=lines)
    stages, _ = pipeline.make_stages(pipeline.read_definition("tiny"), {}, tiny, {})
    needs = {stage.name: [x.name for x in stage.needs] for stage in stages["pool"]}
    assert needs == {
        f"pool_{kind}_{s}": [f"{'prm' if kind == 'plain' else 'orm'}_{s}"] for kind in kinds for s in (0, 1)
    }
    assert f"checkpoint={stages['orm'][1].folder}" in stages["pool"][3].overrides


def test_what_two_lines_or_figures_have_in_common_is_made_once(tiny, tmp_path, capsys):
    """seed=0 is the default, so both lines are one command; the folder has the first one's name, and others find it there."""
    stages = {
        "first": "train.py seed={seed}",
        "second": "train.py",
        "pool": "evaluate.py checkpoint={second}",
    }
    write_figure(tmp_path / "conf", sweep={"seed": [0]}, stages=stages)
    figures.run(["name=tiny"])
    first, pool = made(tiny)["first_0"], made(tiny)["pool"]
    assert len(made(tiny)) == 2 and f"checkpoint=runs/figures/stages/{first.name}" in told(pool)
    write_figure(tmp_path / "conf", stages={name: stages[name] for name in ("second", "pool")})
    capsys.readouterr()
    figures.run(["name=tiny"])  # alone, the second has the same folder, and so has what rests on it
    assert len(made(tiny)) == 2 and capsys.readouterr().out.count("read        ") == 2


def test_a_killed_figure_goes_on_with_what_is_missing(tiny, tmp_path):
    """seed=7 waits: SIGTERM stops it and us, leaves no DONE, and the next call resumes it and runs what waited for it."""
    script = f"import sys, pathlib; sys.path.insert(0, {str(ROOT)!r}); FAKE = {FAKE!r}\n"
    script += "from prm_jax.figures import __main__ as figures, paper, pipeline, running\n"
    script += "real = running.argv; running.argv = lambda *a: [sys.executable, '-c', FAKE, *real(*a)[1:]]\n"
    script += (
        f"pipeline.FIGURES = pathlib.Path({str(tmp_path / 'conf')!r})\nfigures.run(['name=tiny', 'seed=0,7'])"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, env=os.environ)
    started = time.time()
    while not list(tiny.glob("prm_7-*/summary.json")):
        assert time.time() - started < 60 and process.poll() is None
        time.sleep(0.02)
    (folder,) = tiny.glob("prm_7-*")
    with pytest.raises(InputError, match="^stage prm_7: another process is making "):
        figures.run(["name=tiny", "seed=7"])
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    assert not (folder / "DONE").exists() and "prm_0" in made(tiny)
    before = (made(tiny)["prm_0"] / "DONE").read_text()
    figures.run(["name=tiny", "seed=0,7"])
    assert set(made(tiny)) == {"prm_0", "prm_7", "pool_0", "pool_7", "all"}
    assert told(folder)[1].endswith(f"resume=runs/figures/stages/{folder.name}")
    assert json.loads((folder / "DONE").read_text())["resumed"]
    assert (made(tiny)["prm_0"] / "DONE").read_text() == before


@pytest.mark.slow
def test_a_real_figure_is_killed_and_goes_on(tmp_path, monkeypatch, capsys):
    """A command as it is: training is stopped at a step and goes on from its checkpoint."""
    small = "data=chain_plain data.solutions=64 data.test_solutions=16 batch.rows=2 batch.tokens=64 eval.every=100 log_every=1"
    shape = (
        "init=random model.dim=16 model.layers=1 model.heads=2 model.kv_heads=1 model.head_dim=8 model.ffn=16"
    )
    stages = {"prm": f"train.py {small} {shape} steps=100 seed={{seed}}"}
    write_figure(tmp_path / "conf", sweep={"seed": [0]}, stages=stages)
    monkeypatch.setattr(pipeline, "FIGURES", tmp_path / "conf")
    monkeypatch.setattr(paper, "draw", lambda *args: [])
    monkeypatch.setenv("PYTHONPATH", without_torch(os.environ)["PYTHONPATH"])
    monkeypatch.chdir(tmp_path)

    def sleep(seconds):
        """Some steps are done: a training that only begins does not hear the signal yet."""
        time.sleep(seconds)
        if any(
            path.read_text().count("\n") > 3
            for path in tmp_path.glob("runs/figures/stages/prm_0-*/metrics.jsonl")
        ):
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(running, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        assert call(figures.main, patch, "figures", "name=tiny", "cpu_devices=1") == str(128 + signal.SIGTERM)
    (folder,) = (tmp_path / "runs/figures/stages").iterdir()
    log = (folder / "log.txt").read_text()
    stopped = int(re.search(r"stopped     by SIGTERM after step (\d+)", log)[1])
    assert 0 < stopped < 100 and not (folder / "DONE").exists()
    figures.run(["name=tiny", "cpu_devices=1"])
    out = capsys.readouterr().out
    assert re.search(r"^resumed     prm_0 ", out, re.MULTILINE)
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 101))


def test_a_figure_of_data_that_is_not_shipped(tiny, tmp_path, monkeypatch, capsys):
    """Without the file: one line that says where it is looked for; of all figures it is the one that is skipped, with that line."""
    conf, stage = tmp_path / "conf", "evaluate.py task=best_of_n seed=0"
    write_figure(conf, stages={"stored": stage}, data={"input": "set/pool.jsonl"})
    write_figure(conf / "other", stages={"drawn": stage})
    (conf / "other/tiny.yaml").rename(conf / "other.yaml")
    monkeypatch.setenv("PRM_JAX_DATA", "data")
    absent = "input: data/set/pool.jsonl: no such file; expected input=FILE, or in PRM_JAX_DATA a folder with set/pool.jsonl"
    assert call(figures.main, monkeypatch, "figures", "name=tiny") == f"error: {absent}"
    assert call(figures.main, monkeypatch, "figures", "name=tiny", "input=x").startswith(
        "error: input: x: no such file"
    )
    figures.run(["name=all"])
    assert f"skipped     tiny: {absent}\n" in capsys.readouterr().out and set(made(tiny)) == {"drawn"}
    (tmp_path / "data/set").mkdir(parents=True)
    (tmp_path / "data/set/pool.jsonl").write_text("")
    figures.run(["name=tiny"])
    assert "input=data/set/pool.jsonl" in told(made(tiny)["stored"])
    (tmp_path / "mine.jsonl").write_text("")
    figures.run(["name=tiny", "input=mine.jsonl"])
    assert sorted("input=mine.jsonl" in told(folder) for folder in tiny.glob("stored-*")) == [False, True]
    (tmp_path / "mine.jsonl").write_text("other rows")  # the numbers of the old ones were drawn again
    figures.run(["name=tiny", "input=mine.jsonl", "explain=true"])
    out = capsys.readouterr().out
    assert "to make     stored" in out and re.search(
        r"against stored-\w+: input \(content\): \['\w+\.\.\. -> \['\w+", out
    )


def test_files_that_a_stage_rests_on_are_those_of_their_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("{}\n")
    (tmp_path / "mine.py").write_text("def f(rollouts): ...\n")
    named = {
        "data.path": ["rows.jsonl", "absent.jsonl"],
        "reward.own_function": "mine.py:f",
        "init": "embedded",
        "steps": 3,
    }
    first = pipeline.contents(named)
    rows = "ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356"
    assert first["data.path (content)"] == [rows] and set(first) == {
        "data.path (content)",
        "reward.own_function (content)",
    }
    (tmp_path / "mine.py").write_text("def f(rollouts): return 1\n")
    assert [x == first[key] for key, x in pipeline.contents(named).items()] == [True, False]


def test_a_caption_claims_no_t_interval_of_few_runs():
    bands = "thin lines: runs, bands: 95 % t intervals of their mean"
    assert (
        paper.spread_text(bands, 8) == bands and paper.spread_text("bars: intervals", 2) == "bars: intervals"
    )
    assert paper.spread_text(bands, 7) == "thin lines: runs, bands: from the lowest to the highest"
    assert paper.spread_text("their mean, 95 % t interval", 1) == "their mean, none, of one run"


def test_a_stage_that_fails_ends_the_figure_with_one_line(tiny):
    with pytest.raises(InputError) as caught:
        figures.run(["name=tiny", "seed=0,13"])
    (folder,) = tiny.glob("prm_13-*")
    told = rf"stage prm_13: failed after [\d.]+ s \(exit 1\): error: seed: an unlucky number; see \S+{folder.name}/log.txt"
    assert re.fullmatch(told, str(caught.value))
    assert set(made(tiny)) == {"prm_0"} or set(made(tiny)) == {"prm_0", "pool_0"}


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({"a": "train.py seed={b}"}, r"stages\.a: got '\{b\}', expected a stage above it \(none\) or a key"),
        (
            {"a": "evaluate.py checkpoint={b}", "b": "evaluate.py checkpoint={a}"},
            r"stages\.a: got '\{b\}', expected a stage above it",
        ),
        ({"a": "paint.py"}, "stages: got 'paint.py', expected a command: bench, evaluate"),
        ({"a": "train.py stepz=3"}, "^train.py stepz=3: stepz: no such key .*did you mean steps"),
        ({"a": {"ran": "train.py"}}, "stages.a.ran: unknown key; did you mean stages.a.run"),
    ],
)
def test_a_definition_that_is_wrong_is_one_line(stages, message, tiny, tmp_path):
    write_figure(tmp_path / "conf", stages=stages)
    with pytest.raises(InputError, match=message) as caught:
        figures.run(["name=tiny"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["name=tinny"], "error: name: got 'tinny', expected all, tiny"),
        (["name=tiny", "stepps=3"], "error: stepps: no stage takes this key; of the figure itself: seed"),
        (["name=tiny", "steps"], "error: steps: expected key=value"),
        (["name=tiny", "seed=[0"], "error: seed: got '[0', expected a value or a list of them"),
        (["name=tiny", "seed="], "error: seed: got '', expected one value at least"),
        (["name=tiny", "jobs=0"], "error: jobs: got 0, expected at least 1"),
        (["name=tiny", "resume=x"], "error: resume: the same command continues a stopped figure"),
        (["jobs=1"], "error: name: missing, expected all, tiny"),
    ],
)
def test_a_command_that_is_wrong_is_one_line(args, message, tiny, monkeypatch):
    assert call(figures.main, monkeypatch, "figures", *args) == message


def test_help_shows_every_key_and_every_figure(monkeypatch, tmp_path):
    out = printed(figures.main, monkeypatch, "--help", cwd=tmp_path)
    keys = yaml.safe_load((CONF / "figures.yaml").read_text())
    assert all(f"\n{key}: " in out for key in keys) and all(
        f"# ----- name={name} -----\n#" in out for name in NAMES
    )
    out = printed(figures.main, monkeypatch, "--help", "shift", cwd=tmp_path)
    assert out.count("# ----- name=") == 1 and out.startswith("# ----- name=shift -----\n#")
    error = call(figures.main, monkeypatch, "figures", "--help", "shft")
    assert error == f"error: --help shft: no such figure, expected {', '.join(NAMES)}"
