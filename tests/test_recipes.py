"""docs/recipes.md as it stands: own checkers in commands that take one, our server as others' reward."""

import json
import re
import runpy
import sys

import numpy as np
import pytest
from conftest import ROOT, call, printed, refuses
from test_examples_serve import served

import evaluate
from examples import relabel
from prm_jax import tasks
from prm_jax.api import Verifier
from prm_jax.data.pools import Candidate, Problem, read_pool, write_pool
from prm_jax.generate import pools
from prm_jax.launch import cli
from prm_jax.rl.problems import file_problems
from prm_jax.rl.rollouts import Rollout
from prm_jax.scorers import CheckerScorer
from prm_jax.tasks.checkers import open_grader

PROBLEM, RIGHT, WRONG = "4 +5 *3 mod7?", ("4+5=2", "2*3=6"), ("4+5=3", "3*3=2")
ADD_TESTS = "assert add(2, 3) == 5\nassert add(-1, 1) == 0  # the answer is 0"
TABLES = "create table t (x integer, y text); insert into t values (1, 'a'), (2, 'b'), (2, 'c');"


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    """A folder with the files of the page, each named by its first line."""
    folder = tmp_path_factory.mktemp("recipes")
    for text in re.findall(r"```python\n(.*?)```\n", (ROOT / "docs/recipes.md").read_text(), flags=re.DOTALL):
        (folder / re.match(r"# (\w+\.py)", text)[1]).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("Here it is:\n```python\ndef add(a, b):\n    print('x')\n    return a + b\n```\nDone.", True),
        ("def add(a, b):\n    return a - b", False),
        ("raise SystemExit(0)", False),
        ("def add(a, b:", False),
    ],
)
def test_unit_tests_of_code(recipes, text, passes):
    grader = open_grader(f"{recipes}/unit_tests.py:passes")
    assert grader.right("add", tuple(text.split("\n")), ADD_TESTS) is passes


@pytest.mark.parametrize(
    ("query", "is_right"),
    [
        ("select y from t where x > 1\norder by y desc", True),
        ("select y from t", False),
        ("with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n", False),
    ],
)
def test_rows_of_a_query(recipes, query, is_right):
    grader = open_grader(f"{recipes}/same_rows.py:same_rows")
    answer = json.dumps({"tables": TABLES, "query": "select y from t where x = 2"})
    assert grader.right("p", tuple(query.split("\n")), answer) is is_right


FUNCTIONS = {
    "whole": r"answer == 'so\n#### 6' and steps[-1].endswith('=6')",  # read as a solution it would be 6
    "labels": "CHAIN.step_labels(problem, steps)",
    "none": "None",
    "fails": "1 / 0",
    "short": "[1.0]",
}


@pytest.fixture
def mine(tmp_path):
    """A file with checkers: of the answer as it is written, of the exact task, and wrong ones."""
    lines = ["from prm_jax.tasks.chain import CHAIN"]
    lines += [f"def {name}(problem, steps, answer): return {text}" for name, text in FUNCTIONS.items()]
    (tmp_path / "mine.py").write_text("\n".join(lines))
    return tmp_path / "mine.py"


@pytest.mark.parametrize("name", ["none", "absent", "short"])
def test_what_is_no_verdict_is_one_line_with_the_functions_name(mine, name):
    judge = lambda: open_grader(f"{mine}:{name}").right(PROBLEM, RIGHT, None)
    refuses(f"^checker: .*mine.py:{name}", judge)


def test_equal_solutions_are_asked_once(tmp_path):
    (tmp_path / "mine.py").write_text("n = []\ndef f(*row):\n    n.append(row)\n    return len(n) == 1\n")
    grade, c = open_grader(f"{tmp_path}/mine.py:f").grade, Candidate(("a", "b"), None)
    graded = grade(Problem("0", "p", None, (c, Candidate(("a",), "A"), c)))
    assert [x.correct for x in graded.candidates] == [True, False, True]
    assert [x.answer for x in graded.candidates] == ["a\nb", "A", "a\nb"]  # without one it would never win


@pytest.fixture
def pool(tmp_path):
    """A pool whose gold answer is no number but a text for a checker."""
    candidates = tuple(Candidate(steps, steps[-1][-1], correct=False) for steps in (RIGHT, WRONG))
    write_pool(tmp_path / "pool.jsonl", [Problem("0", PROBLEM, "so\n#### 6", candidates)])
    return tmp_path / "pool.jsonl"


def test_sampling_and_best_of_n_grade_by_a_function(mine, monkeypatch, tmp_path):
    (tmp_path / "q.jsonl").write_text(json.dumps({"problem": PROBLEM, "answer": "so\n#### 6"}) + "\n")
    asked = ["input=q.jsonl", "n=8", "sampling.max_tokens=60", "batch_rows=16"]
    printed(pools.main, monkeypatch, *asked, f"checker={mine}:whole", "hydra.run.dir=a", cwd=tmp_path)
    (problem,) = read_pool(tmp_path / "a/pool.jsonl", as_written=True)
    right = [c.correct for c in problem.candidates]
    assert right == [tasks.CHAIN.solved(PROBLEM, c.steps) for c in problem.candidates] and any(right)
    assert problem.answer == "so\n#### 6"
    chosen = ["task=best_of_n", "input=a/pool.jsonl", "checkpoint=random", f"checker={mine}:whole"]
    out = printed(evaluate.main, monkeypatch, *chosen, "hydra.run.dir=c", cwd=tmp_path)
    assert f"graded: {mine}:whole" in out and f"8 candidates, {sum(right)} right, " in out
    told = call(pools.main, monkeypatch, "sampling", *asked, f"checker={mine}:fails", "hydra.run.dir=b")
    assert told.startswith(f"error: checker: {mine}:fails: ZeroDivisionError") and "\n" not in told


def test_relabelling_takes_a_functions_labels(mine, pool, monkeypatch, tmp_path):
    given = ["checker", str(pool), "--checker", f"{mine}:labels", "--output", f"{tmp_path}/labels.jsonl"]
    monkeypatch.setattr(sys, "argv", ["relabel", *given])
    relabel.main()
    rows = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert [row["labels"] for row in rows] == [[1, 1], [0, 0]] and rows[0]["label_kind"] == "correctness"
    sys.argv[4] = f"{mine}:whole"  # one verdict, not one a step
    refuses("whole: got ", relabel.main)
    with pytest.raises(SystemExit, match="^error: checker: .*whole: got "):
        cli.script(relabel.main)


def test_rl_rewards_what_a_function_calls_right(mine, tmp_path):
    for name, problem in (("train", PROBLEM), ("test", "1 +1 mod7?")):
        row = json.dumps({"problem": problem, "answer": "so\n#### 6"})
        (tmp_path / f"{name}.jsonl").write_text(row + "\n")
    files = f"{tmp_path}/train.jsonl", f"{tmp_path}/test.jsonl"
    problems, none = file_problems(*files, open_grader(f"{mine}:whole"), 5), np.zeros(0)
    rollouts = [Rollout(PROBLEM, 0, steps, True, none, none, none, none) for steps in (RIGHT, WRONG)]
    assert [problems.is_right(r) for r in rollouts] == [True, False] and problems.task is None


@pytest.fixture(scope="module")
def url():
    with served(Verifier(CheckerScorer(tasks.CHAIN.step_labels))) as port:
        yield f"http://127.0.0.1:{port}"


def load_reward(recipes, name, url, monkeypatch):
    monkeypatch.setenv("PRM_JAX_URL", url)
    module = runpy.run_path(recipes / f"{name}_reward.py")
    return module.get("process_reward") or module["compute_score"]


def test_trl_calls_with_texts_or_conversations(recipes, url, monkeypatch):
    reward = load_reward(recipes, "trl", url, monkeypatch)
    texts = ["\n".join(RIGHT) + "\n", "\n\n".join(WRONG)]
    rewards = reward(prompts=[PROBLEM] * 2, completions=texts, completion_ids=[[1], [2]], trainer_state=None)
    assert rewards == pytest.approx([1, 0], abs=1e-6)
    prompts = [[{"role": "user", "content": PROBLEM}]] * 2
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    assert reward(prompts=prompts, completions=completions) == pytest.approx([1, 0], abs=1e-6)


def test_verl_and_tunix_call_with_their_columns(recipes, url, monkeypatch):
    texts = ["\n".join(RIGHT), "\n".join(WRONG)]
    score = load_reward(recipes, "verl", url, monkeypatch)
    row = {"data_source": "chain", "ground_truth": "6", "extra_info": {"question": PROBLEM, "index": 0}}
    assert [score(**row, solution_str=text) for text in texts] == pytest.approx([1, 0], abs=1e-6)
    reward = load_reward(recipes, "tunix", url, monkeypatch)
    columns = {"prompts": ["<start_of_turn>user"] * 2, "question": np.array([PROBLEM] * 2)}
    assert reward(completions=texts, mode="train", **columns) == pytest.approx([1, 0], abs=1e-6)
