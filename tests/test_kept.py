"""What a command leaves and reads again: after any damage the next one ends as if there had been none, or says in a line what to do."""

import dataclasses
import itertools
import json
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import TINY
from flax import nnx
from omegaconf import OmegaConf
from test_hf import tokenizer  # noqa: F401 (a fixture)
from test_labeling import GRADE, Solver, settings, solutions  # noqa: F401 (a fixture)

from prm_jax import InputError
from prm_jax.checkpoints import export, hf, hf_config, orbax
from prm_jax.data import grading
from prm_jax.data.pools import Candidate, Problem, write_pool
from prm_jax.data.questions import Question
from prm_jax.evals import search, verifiers
from prm_jax.evals.calibration import parameters_of
from prm_jax.figures import pipeline
from prm_jax.figures.records import read_records
from prm_jax.figures.sweep_table import Config, make_table
from prm_jax.generate import sampling
from prm_jax.generate.labeling import label_file
from prm_jax.launch import files, run_folder
from prm_jax.launch.run_folder import described_file
from prm_jax.launch.run_log import MetricsLog
from prm_jax.model import PRM
from prm_jax.scoring import score_into

DEEP, JUNK = (
    b"[" * 100_000,
    (b"", b"{", b"[]", b"null", b'"a"', b"7", b"\xff", b"\x00" * 40, b'{"a": ' * 9999),
)


def damaged(data: bytes, n: int, seed: int = 0):
    """Yields (how, other content): n bytes changed, any line lost, doubled or swapped with the next, and ends."""
    rng, lines = np.random.default_rng(seed), data.splitlines(keepends=True)
    for i in sorted({*np.linspace(0, len(data) - 1, n, dtype=int).tolist(), len(data) - 1}):
        yield f"byte {i}", data[:i] + bytes([data[i] ^ int(rng.integers(1, 256))]) + data[i + 1 :]
    for i in range(len(lines)):
        yield f"line {i} lost", b"".join(lines[:i] + lines[i + 1 :])
        yield f"line {i} doubled", b"".join(lines[: i + 1] + lines[i:])
        yield f"line {i} swapped", b"".join([*lines[:i], *lines[i : i + 2][::-1], *lines[i + 2 :]])
    for end in np.linspace(0, len(data) - 1, 8, dtype=int):
        yield f"cut at {end}", data[:end]
    yield from (
        (f"{more!r} behind", data + more) for more in (b"\n", b"{}\n", b'{"id', b"\x00" * 4096, b"\xff")
    )


def one_line(error, *names):
    text = str(error.value)
    assert "\n" not in text and all(name in text for name in names), text
    return text


class Scorer:
    unit, name = "logit", "by length"

    def score(self, rows):
        return [np.arange(len(steps), dtype=np.float32) + len(problem) for problem, steps in rows]


class Drawn(Solver):
    """A policy for `draw_pool`, two problems at a time."""

    dtype, batch_rows = "float32", 1

    def extend(self, prefixes, n, stop, key, first):
        return super().extend(prefixes, n, stop, key, range(first, first + len(prefixes)))


@pytest.fixture
def kinds(solutions, monkeypatch):  # noqa: F811
    """{file: f(folder) that makes it or goes on with it}."""
    monkeypatch.setattr(run_folder, "versions", lambda: {"commit": "c"})
    few, golds = solutions[:9], {s.problem: None for s in solutions}
    questions = [Question(s.id, s.problem) for s in few[::2]]

    def labels(folder, label):
        label_file(folder / "labels.jsonl", Solver(), few, golds, settings(label, k=2), 0, GRADE)

    return {
        "scores.jsonl": lambda folder: score_into(
            folder / "scores.jsonl", Scorer(), [(s.id, s.problem, s.steps) for s in few], 9
        ),
        "pool.jsonl": lambda folder: sampling.draw_pool(
            folder / "pool.jsonl", Drawn(), questions, 2, 0, GRADE
        ),
        "labels.jsonl": lambda folder: labels(folder, "soft"),
        "trees.jsonl": lambda folder: labels(folder, "tree"),
    }


KEPT = ("scores.jsonl", "pool.jsonl", "labels.jsonl", "trees.jsonl")


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_file_that_is_damaged_anywhere_is_made_whole_or_refused_in_one_line(name, kinds, tmp_path):
    """Of a changed step, flipped `correct`, lost candidates, another score nobody was told; a broken brace was a traceback."""
    (whole := tmp_path / "whole").mkdir()
    kinds[name](whole)
    kept = {path.name: path.read_bytes() for path in whole.iterdir()}
    refused = 0
    for file in {name, f"{name}.sum", "about.json"} & kept.keys():
        for how, content in damaged(kept[file], 16):
            shutil.rmtree(again := tmp_path / "again", ignore_errors=True)
            shutil.copytree(whole, again)
            (again / file).write_bytes(content)
            try:
                kinds[name](again)
            except InputError as error:
                refused += 1
                assert "\n" not in str(error) and str(again) in str(error) and "delete" in str(error), (
                    how,
                    error,
                )
                assert (again / file).read_bytes() == content or file == "about.json", (
                    how
                )  # nothing is lost by it
            else:
                for x in (name, f"{name}.sum"):
                    assert (again / x).read_bytes() == kept[x], (file, how)
    assert refused > 20


WRONG = {  # of an earlier version's file, without checksums: what the second line may not be
    "scores.jsonl": ({"scores": [1.0]}, {"scores": []}, {"scores": None}, {"scores": ["1", "2"]}, {"unit": "probability"}),
    "pool.jsonl": ({"candidates": []}, {"candidates": 3}, {"candidates": [{}]}, {"problem": "1+1"}, {"policy_tokens": None}),
    "labels.jsonl": ({"labels": []}, {"labels": None}, {"labels": "abc"}, {"completions": ["a"]}, {"unanswered": "x"}),
    "trees.jsonl": ({"paths": [1]}, {"paths": [{}]}, {"given": 7}, {"policy_tokens": []}, {"prompt": None}),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_every_line_of_an_earlier_versions_file_is_checked(name, kinds, tmp_path, capsys):
    kinds[name](tmp_path)
    path, sums = tmp_path / name, tmp_path / f"{name}.sum"
    whole, lines = (path.read_bytes(), sums.read_bytes()), path.read_bytes().splitlines(keepends=True)
    row = json.loads(lines[1])
    wrong = [json.dumps(row | changes).encode() for changes in (*WRONG[name], {"id": "other"}, {"id": None})]
    for line in (
        *wrong,
        *(x for x in JUNK if x != b"\x00" * 40),
        b"\x00" * 40,
        DEEP,
        lines[1][:-1] + b" NaN",
        b'{"id": NaN}',
    ):
        sums.unlink(missing_ok=True)
        path.write_bytes(content := b"".join([lines[0], line + b"\n", *lines[2:]]))
        for _ in range(2):  # a refusal changes nothing
            with pytest.raises(InputError) as error:
                kinds[name](tmp_path)
            one_line(error, f"{path} line 2: ")
            assert path.read_bytes() == content
    for cut in (0, 5, len(lines[0]) - 1, len(lines[0]), len(whole[0]) - 9, len(whole[0])):
        sums.unlink(missing_ok=True)
        path.write_bytes(whole[0][:cut])
        capsys.readouterr()
        kinds[name](tmp_path)
        assert (path.read_bytes(), sums.read_bytes()) == whole
        is_said = f"kept        {path}: its last" in capsys.readouterr().out
        assert is_said == (cut not in (0, len(lines[0]), len(whole[0])))


def test_small_state_is_what_was_written_or_one_line(tmp_path):
    path = tmp_path / "state.json"
    value = {
        "seconds": 1.25,
        "commit": "abc",
        "sizes": [1, 2, None],
        "within": {"é": float("nan"), "b": True},
    }
    files.write_json(path, value)
    expected = files.read_json(path, seconds=float, commit=str, other=int | None)
    assert expected == value | {"within": {"é": None, "b": True}}
    whole = path.read_bytes()
    for how, content in damaged(whole, len(whole)):
        path.write_bytes(content)
        try:
            found = files.read_json(path, seconds=float, commit=str)
        except InputError as error:
            assert "\n" not in str(error) and str(path) in str(error) and "; delete it, and" in str(error), (
                how
            )
        else:  # the checksum itself may be lost
            assert {key: found.get(key) for key in expected} == expected, how
    for content in (
        *JUNK,
        DEEP,
        b"{}",
        b'{"seconds": "x", "commit": ""}',
        b'{"seconds": 1e999}',
        b'{"a": ' + b"1" * 5000,
    ):
        path.write_bytes(content)
        with pytest.raises(InputError) as error:
            files.read_json(path, "make it again", seconds=float, commit=str)
        assert one_line(error, f"{path}: ").endswith("; make it again")
    path.write_text(json.dumps({"seconds": 1.0, "commit": ""}))  # an earlier version wrote no checksum
    assert files.read_json(path, seconds=float, commit=str)["seconds"] == 1.0


def test_broken_json_is_named_by_its_line_in_a_file_of_any_name(tmp_path):
    (path := tmp_path / "baseline.json").write_text('{\n"a": 1,\n x}')
    with pytest.raises(InputError, match=r"baseline.json: broken JSON \(.* at line 3 column 2\); delete it"):
        files.read_json(path)


def test_a_stored_configuration_is_what_was_written_or_one_line(tmp_path):
    cfg = OmegaConf.create(
        {"seed": 0, "optimizer": {"lr": 1e-5, "names": ["a", "é: b"]}, "text": "two\nlines"}
    )
    (tmp_path / ".hydra").mkdir()
    path = tmp_path / ".hydra/config.yaml"
    files.write_yaml(path, cfg)
    assert run_folder.run_config(tmp_path) == cfg == OmegaConf.load(path)
    whole = path.read_bytes()
    for how, content in damaged(whole, 90):
        path.write_bytes(content)
        try:
            assert run_folder.run_config(tmp_path) == cfg, how
        except InputError as error:
            assert "\n" not in str(error) and str(path) in str(error), how
    OmegaConf.save(cfg, path)  # as earlier versions did, and as one may edit it
    assert run_folder.run_config(tmp_path) == cfg
    for content in (b"a: [", b"\xff", b"- 1", b"7", b"[" * 3000):
        path.write_bytes(content)
        with pytest.raises(InputError) as error:
            run_folder.run_config(tmp_path)
        one_line(error, f"{path}: ")
    (tmp_path / ".hydra/overrides.yaml").write_text("a: [")
    with pytest.raises(InputError, match="overrides.yaml: cannot be read"):
        run_folder.overrides_of(tmp_path)


@pytest.mark.parametrize("content", [*JUNK, DEEP, b'{"seconds": []}', b'{"name": 1}'])
def test_readers_of_state_refuse_any_other_content_in_one_line(content, tmp_path, monkeypatch):
    """DONE = {}, about.json = [] and a summary of null were tracebacks."""
    monkeypatch.chdir(tmp_path)
    (run := tmp_path / "runs/a").mkdir(parents=True)
    for name in ("about.json", "DONE", "stage.json", "results.json", "summary.json", "data.json"):
        (run / name).write_bytes(content)
    (run / "pool.jsonl").write_text("{}\n")
    stage = pipeline.Stage("a", {}, "train.py", (), (), {}, frozenset(), "x", run)
    (run.parent / "a-y").mkdir()
    (run.parent / "a-y/stage.json").write_bytes(content)
    is_object = content.startswith(b"{") and content.endswith(b"}")
    readers = {
        "DONE": stage.record,
        "a-y/stage.json": lambda: pipeline.changed_keys(stage),
        "data.json": lambda: verifiers.trained_on(str(run), SimpleNamespace(fingerprints={}), []),
    }
    if not is_object:
        readers |= {
            "about.json": lambda: described_file(run / "pool.jsonl", {"n": 1}).__enter__(),
            "stage.json": lambda: stage.by_other_code,
            "results.json": stage.results,
            "summary.json": run_folder.newest_run,
        }
    for name, read in readers.items():
        with pytest.raises(InputError) as error:
            read()
        one_line(error, f"{name}: ", "; delete ")
    with pytest.raises(InputError, match="results.json: "):
        parameters_of(str(run))


@pytest.mark.parametrize(
    "content",
    ["[1]", "null", '{"overrides": [1]}', '{"overrides": 3}', '{"versions": 3}', '{"overrides": null}', '{"a": ' * 9999, "\xff",
     '{"runs": [1]}', '{"runs": {}}', '{"scorers": 3}', '{"scorers": {"a": 1}, "verifiers": 3}', '{"trained": [1]}'],
)  # fmt: skip
def test_sweeps_refuse_what_no_command_has_written_in_one_line(content, tmp_path):
    for name in ("results.json", "summary.json"):
        (folder := tmp_path / name.split(".")[0]).mkdir()
        (folder / name).write_text(content, encoding="latin-1")
        try:
            make_table(Config(str(folder)))
        except InputError as error:
            assert "\n" not in str(error)


def test_a_learning_curve_leaves_out_broken_lines_and_says_so(tmp_path, capsys):
    (tmp_path / "summary.json").write_text(
        '{"objective": "prm", "overrides": [], "seed": 0}'
    )  # without versions
    lines = [json.dumps({"step": step, "loss": 1 / step}) for step in (1, 2, 3)]
    log = tmp_path / "metrics.jsonl"
    log.write_text("\n".join([*lines[:2], lines[1], "[1]", "{}", '{"step": "x"}', "", lines[2], '{"st']))
    table = make_table(Config(str(tmp_path), x="step", y="loss"))
    assert [row["step"] for row in table["rows"]] == [1, 2, 3] and table["commits"] == ["unknown"]
    assert f"metrics     6 broken lines of {log} are left out" in capsys.readouterr().out
    records, _ = read_records([str(tmp_path)])
    assert [r.kind for r in records] == ["summary", "metrics"]
    MetricsLog(tmp_path, 2, False).close()
    assert log.read_text() == "".join(line + "\n" for line in lines[:2])
    log.write_bytes(DEEP + b"\n")
    MetricsLog(tmp_path, 2, False).close()
    assert log.read_text() == ""


def test_a_verdict_of_the_cache_is_the_one_that_was_written(tmp_path, monkeypatch, capsys):
    """One bad byte was a traceback of every command with checker=math; "different" of a right answer was taken."""
    monkeypatch.setattr(
        grading, "_ask", lambda worker, gold, answer: (None, "same" if "x" in answer else "different")
    )
    cache, pairs = tmp_path / "answers.jsonl", [("x+1", "1+x"), ("x+1", "y+1"), ("2x", "x2")]

    def verdicts():
        checker = grading.Checker("math", cache=cache)
        found = [checker.verdict(*pair) for pair in pairs]
        checker.close()
        return found, checker.checked

    assert verdicts() == (["same", "different", "same"], 3) and verdicts()[1] == 0
    whole = cache.read_bytes()
    for how, content in damaged(whole, 60):
        cache.write_bytes(content)
        assert verdicts()[0] == ["same", "different", "same"], how
    rows = [json.loads(line) for line in whole.splitlines()]
    broken = [
        rows[0] | {"verdict": "different"},
        rows[0] | {"verdict": "banana"},
        rows[0] | {"verdict": ["same"]},
    ]
    others = (DEEP, b"\xff", b"[1]", b"null", b'{"checker": ', *(json.dumps(row).encode() for row in broken))
    cache.write_bytes(b"\n".join([*others, *whole.splitlines()]))
    capsys.readouterr()
    assert verdicts() == (["same", "different", "same"], 0)
    said = f"answers     8 broken lines of {cache} are left out, and their answers compared again\n"
    assert capsys.readouterr().out == said
    del rows[0]["sum"]
    cache.write_text(json.dumps(rows[0] | {"verdict": "different"}) + "\n")  # of an earlier version
    assert verdicts()[0][0] == "same"


def test_a_search_that_is_kept_is_read_or_made_again(tmp_path, capsys):
    pool = [Problem("p", "1+1", "2", (Candidate(("1+1=2",), "2", True, step_scores={"search": (0.5,)}),))]
    file, done = tmp_path / "0_beam_60.jsonl.gz", tmp_path / "0_beam_60.json"

    def read():
        return search.search_once(0, None, None, None, "min", "beam", 60, 1.0, file)

    write_pool(file, pool)
    costs = {"policy_tokens": 3.0, "tokens_by_problem": [3]}
    files.write_json(done, costs | {"sha256": search.file_fingerprint(file)})
    assert read() == (costs, pool)
    kept = {path: path.read_bytes() for path in (file, done)}
    for path, content in kept.items():
        for how, other in damaged(content, 20):
            path.write_bytes(other)
            capsys.readouterr()
            try:
                assert read() == (costs, pool), how
            except InputError as error:
                assert "\n" not in str(error) and f"{done}" in str(error), how
            except AttributeError:  # no policy is there to search again
                assert (
                    capsys.readouterr().out == f"search      {file} is not what was written: searched again\n"
                )
        path.write_bytes(content)


@pytest.mark.parametrize("earlier", [False, True])
def test_an_export_that_was_killed_goes_on(tmp_path, tokenizer, monkeypatch, earlier):  # noqa: F811
    """The same command refused what a kill had left; over an earlier export new weights lay under the old config.json."""
    model, old = (PRM(dataclasses.replace(TINY, dim=dim), rngs=nnx.Rngs(0)) for dim in (32, 16))
    hf.save(tmp_path / "whole", model, tokenizer)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    replace = os.replace
    for stop in itertools.count():
        folder = tmp_path / f"{stop}"
        if earlier:
            hf.save(folder, old, tokenizer)
        calls = itertools.count()

        def killed(source, target, calls=calls, stop=stop):
            if next(calls) == stop:
                raise SystemExit
            replace(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", killed)
            patch.setattr(shutil, "rmtree", lambda *a, **k: None)  # as SIGKILL does
            try:
                hf.save(folder, model, tokenizer)
                break
            except SystemExit:
                pass
        try:
            hf.load(folder, hf_config.model_config(hf_config.read_config(folder)))  # the earlier one, or none
            assert earlier and hf_config.read_config(folder)["hidden_size"] == 16
        except InputError as error:
            assert "config.json: no such file" in str(error)
        export.require_free(folder)
        hf.save(folder, model, tokenizer)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
    assert stop > 4


def test_what_gets_its_name_is_on_the_disk_first(tmp_path, monkeypatch):
    events, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: events.append("fsync") or fsync(fd))
    monkeypatch.setattr(os, "replace", lambda *names: events.append("replace") or replace(*names))
    files.write_json(tmp_path / "a.json", {})
    write_pool(tmp_path / "a.jsonl.gz", [Problem("p", "1", None, (Candidate(("a",)),))])
    files.write_yaml(tmp_path / "a.yaml", OmegaConf.create({}))
    assert events == ["fsync", "replace"] * 3
    score_into(tmp_path / "s.jsonl", Scorer(), [("a", "p", ("b",))], 1)
    assert events[6:] == ["fsync", "fsync"]  # the lines, then their checksums


def test_checksums_of_a_checkpoint_that_are_damaged_are_noticed(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    sums = {name: orbax.file_fingerprint(tmp_path / name) for name in ("a", "b")}
    path = tmp_path / orbax.CHECKSUMS
    files.write_json(path, sums)
    assert orbax.find_damage(tmp_path) is None
    whole = path.read_bytes()
    for how, content in [*damaged(whole, 80), *((repr(x[:9]), x) for x in (*JUNK, DEEP, b"{}"))]:
        path.write_bytes(content)
        damage = orbax.find_damage(tmp_path)
        try:  # what is not noticed is space, or the checksum of the checksums
            assert damage or {key: json.loads(content).get(key) for key in sums} == sums, how
        except ValueError:
            pytest.fail(how)
