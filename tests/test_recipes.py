"""docs/recipes.md as it stands: own checkers in every command that takes one, and our server as others' reward."""

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, call, printed
from test_examples_serve import served

from prm_jax import InputError, tasks
from prm_jax.api import Verifier
from prm_jax.data.pools import Candidate, Problem, read_pool, write_pool
from prm_jax.generate import labeling, relabeling, sampling
from prm_jax.rl.problems import file_problems
from prm_jax.rl.rollouts import Rollout
from prm_jax.scorers import CheckerScorer
from prm_jax.tasks.checkers import CHECKERS, checker_rule, open_grader, own_function, own_labels

PROBLEM, RIGHT, WRONG = "4 +5 *3 mod7?", ("4+5=2", "2*3=6"), ("4+5=3", "3*3=2")
TESTS = "assert add(2, 3) == 5\nassert add(-1, 1) == 0  # the answer is 0"


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    """A folder with the files of the page, each named by its first line."""
    folder = tmp_path_factory.mktemp("recipes")
    for text in re.findall(r"```python\n(.*?)```\n", (ROOT / "docs/recipes.md").read_text(), flags=re.DOTALL):
        (folder / re.match(r"# (\w+\.py)", text)[1]).write_text(text)
    names = ["same_rows.py", "trl_reward.py", "tunix_reward.py", "unit_tests.py", "verl_reward.py"]
    assert sorted(path.name for path in folder.iterdir()) == names
    return folder


SOLUTIONS = {
    "def add(a, b):\n    return a + b": True,
    "Here it is:\n```python\ndef add(a, b):\n    print('x')\n    return a + b\n```\nDone.": True,
    "def add(a, b):\n    return a - b": False,
    "print('passed')\nraise SystemExit(0)": False,  # ends before the tests
    "import os\nos._exit(0)": False,
    "def add(a, b:": False,
    "": False,
}


@pytest.mark.parametrize("text", SOLUTIONS)
def test_unit_tests_of_code(recipes, text):
    grader = open_grader(f"{recipes}/unit_tests.py:passes")
    assert grader.right("add", tuple(text.split("\n")), TESTS) is SOLUTIONS[text]


def test_labels_of_the_steps_of_code(recipes):
    ask = own_function(f"{recipes}/unit_tests.py:runs", own_labels)
    steps = "a = 1", "def f():\n    return a", "f() / 0", "b = 2"
    assert ask("p", steps, None) == [1, 1, 0, 0]


TABLES = "create table t (x integer, y text); insert into t values (1, 'a'), (2, 'b'), (2, 'c');"
QUERIES = {
    "select y from t where x = 2": True,
    "select y from t where x > 1\norder by y desc": True,
    "with recursive n(i) as (select 1 union all select i + 1 from n where i < 9) select y from t where x = 2": True,
    "select y from t": False,
    "selec y": False,
    "": False,
    "select y from t where x = 2; select 1": False,
    "drop table t": False,
    "attach database '/tmp/never.db' as other": False,
    "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n": False,  # without an end
}


@pytest.mark.parametrize("query", QUERIES)
def test_rows_of_a_query(recipes, query):
    grader = open_grader(f"{recipes}/same_rows.py:same_rows")
    answer = json.dumps({"tables": TABLES, "query": "select y from t where x = 2"})
    assert grader.right("p", tuple(query.split("\n")), answer) is QUERIES[query]


def test_a_broken_answer_of_the_data_is_no_verdict(recipes):
    grader = open_grader(f"{recipes}/same_rows.py:same_rows")
    answer = json.dumps({"tables": TABLES, "query": "select z from t"})
    with pytest.raises(
        InputError, match=r"^checker: .*same_rows.py:same_rows: OperationalError: no such column: z"
    ):
        grader.right("p", ("select 1",), answer)


@pytest.fixture
def mine(tmp_path):
    """A file with checkers: of the answer as it is written, of the exact task, and wrong ones."""
    lines = "import numpy, sys\nfrom prm_jax.tasks.chain import CHAIN\n"
    functions = {
        "whole": r"answer == 'so\n#### 6' and steps[-1].endswith('=6')",  # read as a solution it would be 6
        "solved": "CHAIN.solved(problem, steps)",
        "labels": "CHAIN.step_labels(problem, steps)",
        "numpys": "numpy.bool_(True)",
        "none": "None",
        "share": "0.5",
        "one": "1",
        "text": "'yes'",
        "fails": "1 / 0",
        "leaves": "sys.exit(3)",
        "short": "[1.0]",
        "large": "[1.0, 1.5]",
        "nans": "[1.0, float('nan')]",
        "texts": "['1', '0']",
    }
    lines += "".join(
        f"def {name}(problem, steps, answer): return {text}\n" for name, text in functions.items()
    )
    (tmp_path / "mine.py").write_text(lines + "def two(problem, steps): return True\n")
    return tmp_path / "mine.py"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none", r"got None, expected True or False: whether the solution is right"),
        ("share", r"got 0.5, expected True or False"),
        ("one", r"got 1, expected True or False"),
        ("text", r"got 'yes', expected True or False"),
        ("fails", r"ZeroDivisionError: division by zero"),
        ("leaves", r"SystemExit: 3"),
        ("two", r"TypeError: .*positional arguments"),
    ],
)
def test_what_is_no_verdict_is_one_line_with_the_functions_name(mine, name, why):
    with pytest.raises(InputError, match=f"^checker: .*mine.py:{name}: {why}") as caught:
        open_grader(f"{mine}:{name}").right(PROBLEM, RIGHT, None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["none", "share", "one", "text", "short", "large", "nans", "texts"])
def test_what_are_no_labels_is_one_line_with_the_functions_name(mine, name):
    expected = f"^checker: .*mine.py:{name}: (got .*, expected a list of 2: a label from 0 to 1, or None, of each step|TypeError)"
    with pytest.raises(InputError, match=expected) as caught:
        own_function(f"{mine}:{name}", own_labels)(PROBLEM, RIGHT, None)
    assert "\n" not in str(caught.value)


def test_names_of_checkers(mine):
    rule = checker_rule(CHECKERS)
    assert (
        rule.allows("task")
        and rule.allows("a b/x.py:f_1")
        and not rule.allows("x.py")
        and not rule.allows("x:f")
    )
    assert rule.expected == "task, chain, string, number or math, or FILE.py:FUNCTION"
    with pytest.raises(
        InputError, match="^checker: got 'none.py:f', expected FILE.py:FUNCTION of a file that exists$"
    ):
        open_grader("none.py:f")
    with pytest.raises(InputError, match="^checker: got '.*mine.py:g', expected a function of .*mine.py$"):
        open_grader(f"{mine}:g")
    assert open_grader(f"{mine}:numpys").right(PROBLEM, RIGHT, None) is True


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


def test_sampling_grades_by_a_function(mine, monkeypatch, tmp_path):
    (tmp_path / "q.jsonl").write_text(json.dumps({"problem": PROBLEM, "answer": "so\n#### 6"}) + "\n")
    asked = ["input=q.jsonl", "n=8", "sampling.max_tokens=60", "batch_rows=16", f"checker={mine}:whole"]
    out = printed(sampling.main, monkeypatch, *asked, "hydra.run.dir=a", cwd=tmp_path)
    (problem,) = read_pool(tmp_path / "a/pool.jsonl", as_written=True)
    right = [c.correct for c in problem.candidates]
    assert right == [tasks.CHAIN.solved(PROBLEM, c.steps) for c in problem.candidates] and any(right)
    assert problem.answer == "so\n#### 6" and f"of 8 right by {mine}:whole" in out
    told = call(
        sampling.main, monkeypatch, "sampling", *asked[:-1], f"checker={mine}:fails", "hydra.run.dir=b"
    )
    assert told.startswith(f"error: checker: {mine}:fails: ZeroDivisionError") and "\n" not in told
    told = call(sampling.main, monkeypatch, "sampling", *asked[:-1], "checker=no.py:f", "hydra.run.dir=c")
    assert told == "error: checker: got 'no.py:f', expected FILE.py:FUNCTION of a file that exists"


def test_labelling_reads_answers_for_a_function(mine, pool, tmp_path):
    solutions, golds = labeling.read_input(pool, f"{mine}:whole")
    assert len(solutions) == 2 and golds == {PROBLEM: "so\n#### 6"}
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": PROBLEM, "completions": RIGHT}) + "\n")
    assert labeling.read_input(tmp_path / "rows.jsonl", f"{mine}:solved")[1] == {PROBLEM: None}


def test_relabelling_takes_a_functions_labels(mine, pool, monkeypatch, tmp_path):
    asked = [f"input={pool}", "by=checker", "hydra.run.dir=a"]
    printed(relabeling.main, monkeypatch, *asked, f"checker={mine}:labels", cwd=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "a/labels.jsonl").read_text().splitlines()]
    assert [row["labels"] for row in rows] == [[1, 1], [0, 0]] and rows[0]["checker"] == f"{mine}:labels"
    about = json.loads((tmp_path / "a/about.json").read_text())
    assert str(mine) in about["files"] and about["label_kind"] == "correctness"
    told = call(
        relabeling.main,
        monkeypatch,
        "r",
        asked[0],
        "by=scorer",
        "checkpoint=random",
        f"checker={mine}:labels",
    )
    assert told.startswith(f"error: checker: got '{mine}:labels', expected an embedded task, or by=checker")


def test_best_of_n_grades_by_a_function(mine, pool, monkeypatch, tmp_path):
    import evaluate

    given = [
        "task=best_of_n",
        f"input={pool}",
        "checkpoint=random",
        f"checker={mine}:whole",
        "hydra.run.dir=a",
    ]
    out = printed(evaluate.main, monkeypatch, *given, cwd=tmp_path)
    assert f"graded      {mine}:whole: 1 of 2 right" in out
    results = json.loads((tmp_path / "a/results.json").read_text())
    assert results["grading"] == {"checker": f"{mine}:whole", "candidates": 2, "right": 1}


def test_rl_rewards_what_a_function_calls_right(mine, tmp_path):
    for name, problem in (("train", PROBLEM), ("test", "1 +1 mod7?")):
        (tmp_path / f"{name}.jsonl").write_text(
            json.dumps({"problem": problem, "answer": "so\n#### 6"}) + "\n"
        )
    files = f"{tmp_path}/train.jsonl", f"{tmp_path}/test.jsonl"
    problems, none = file_problems(*files, open_grader(f"{mine}:whole"), 5), np.zeros(0)
    rollouts = [Rollout(PROBLEM, 0, steps, True, none, none, none, none) for steps in (RIGHT, WRONG)]
    assert [problems.is_right(r) for r in rollouts] == [True, False] and problems.task is None


# our server as others' reward


@pytest.fixture(scope="module")
def url():
    scorer = CheckerScorer(lambda problem, steps: tasks.CHAIN.step_labels(problem, steps))
    with served(Verifier(scorer)) as (port, _):
        yield f"http://127.0.0.1:{port}"


def reward_of(recipes, name, url, monkeypatch):
    monkeypatch.setenv("PRM_JAX_URL", url)
    module = runpy.run_path(recipes / f"{name}_reward.py")
    return module.get("process_reward") or module["compute_score"]


def test_trl_calls_with_texts_or_conversations(recipes, url, monkeypatch):
    reward, texts = reward_of(recipes, "trl", url, monkeypatch), ["\n".join(RIGHT) + "\n", "\n\n".join(WRONG)]
    as_text = {
        "prompts": [PROBLEM] * 2,
        "completions": texts,
        "completion_ids": [[1], [2]],
        "trainer_state": None,
    }
    assert reward(**as_text) == pytest.approx([1, 0], abs=1e-6)
    said = lambda role, text: [{"role": role, "content": text}]
    prompts, completions = [said("user", PROBLEM)] * 2, [said("assistant", text) for text in texts]
    assert reward(prompts=prompts, completions=completions) == pytest.approx([1, 0], abs=1e-6)


def test_verl_calls_with_one_response(recipes, url, monkeypatch):
    score = reward_of(recipes, "verl", url, monkeypatch)
    row = {"data_source": "chain", "ground_truth": "6", "extra_info": {"question": PROBLEM, "index": 0}}
    rewards = [score(**row, solution_str="\n".join(steps)) for steps in (RIGHT, WRONG)]
    assert rewards == pytest.approx([1, 0], abs=1e-6) and {type(x) for x in rewards} == {float}


def test_tunix_calls_with_columns_as_arrays(recipes, url, monkeypatch):
    reward, texts = reward_of(recipes, "tunix", url, monkeypatch), ["\n".join(RIGHT), "\n".join(WRONG)]
    prompts = [f"<start_of_turn>user\n{PROBLEM}<end_of_turn>"] * 2
    rewards = reward(prompts=prompts, completions=texts, mode="train", question=np.array([PROBLEM] * 2))
    assert rewards == pytest.approx([1, 0], abs=1e-6) and isinstance(rewards, list)
    assert reward(prompts=[PROBLEM] * 2, completions=texts, mode="train") == rewards


TRL = """
import sys
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl_reward import process_reward
seen = []
def kept(prompts, completions, **columns):
    seen.append(process_reward(prompts, completions, **columns))
    return seen[-1]
rows = Dataset.from_list([{"prompt": "4 +5 *3 mod7?"}, {"prompt": "1 +1 mod7?"}])
args = GRPOConfig("out", per_device_train_batch_size=8, num_generations=4, max_completion_length=24, max_steps=2,
                  learning_rate=1e-4, report_to="none", use_cpu=True, logging_steps=1, save_strategy="no")
trainer = GRPOTrainer(sys.argv[1], reward_funcs=kept, args=args, train_dataset=rows)
trainer.train()
assert [len(x) for x in seen] == [8, 8] and all(0 <= x <= 1 for batch in seen for x in batch), seen
print("rewards", [x["reward"] for x in trainer.state.log_history if "reward" in x])
"""


@pytest.mark.slow
def test_trls_grpo_trains_a_tiny_policy_by_the_server(recipes, url):
    """TRL needs another PyTorch than our tests may have: TRL_PYTHON names the interpreter that has it."""
    python = os.environ.get("TRL_PYTHON", sys.executable)
    if python == sys.executable and not importlib.util.find_spec("trl"):
        pytest.skip("trl is not installed; TRL_PYTHON=INTERPRETER names one that has it")
    given = [python, "-c", TRL, str(ROOT / "prm_jax/assets/base")]
    environment = os.environ | {"PRM_JAX_URL": url, "PYTHONPATH": str(recipes), "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(
        given, cwd=recipes, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(re.findall(r"\d\.\d+", ran.stdout.splitlines()[-1])) == 2
