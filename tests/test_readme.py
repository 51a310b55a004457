"""README and docs are true: files, links, choices and tables that they name exist, and the Python example
runs."""

import json
import re
import shutil
import subprocess
import sys

import hydra
import pytest
from conftest import ROOT

import evaluate
from prm_jax.launch.cli import store_defaults
from prm_jax.launch.config import CONF
from prm_jax.launch.files import read_yaml

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in [ROOT / "README.md", ROOT / "AGENTS.md", *ROOT.glob("docs/*.md")]
}
README = PAGES["README.md"]
ADDED = re.findall(r"^--- conf/(\w+)/(\w+)\.yaml$", PAGES["docs/house.md"], flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_exist(page):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", PAGES[page]) + re.findall(r'src="([^"]+)"', PAGES[page])
    files = [x for x in targets if not x.startswith("http")]
    assert [x for x in files if not (ROOT / page).parent.joinpath(x).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_headings_that_links_name_exist(page):
    """#anchor of this page or of another one: a heading in lower case, its marks left out, with hyphens for
    blanks."""
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", PAGES[page]):
        path = (ROOT / page).parent.joinpath(target).resolve() if target else ROOT / page
        prose = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        headings = re.findall(r"^#+ (.*)$", prose, flags=re.MULTILINE)
        assert anchor in [re.sub(r"[^\w -]", "", x).lower().replace(" ", "-") for x in headings], (
            f"{target}#{anchor}"
        )


@pytest.mark.parametrize("page", PAGES)
def test_choices_that_are_named_exist(page):
    """data=NAME and the like, each a file of conf/; NAME, FILE and other words in capitals stand for the
    reader's own."""
    found = re.findall(r"(?<![.\w])(data|task|format|experiment|algorithm)=([a-z]\w*)", PAGES[page])
    assert [x for x in found if not (CONF / x[0] / f"{x[1]}.yaml").exists() and x not in ADDED] == []
    figures = re.findall(r"examples[./]papers[./]run(?:\.py)? ([a-z]\w*)", PAGES[page])
    assert [x for x in figures if not (ROOT / f"examples/papers/{x}.py").exists()] == []


COMMAND = re.compile(
    r"python (?:-m prm_jax\.)?(train|evaluate|sampling|labeling|rl|export|sweeps)(?:\.py)? ([^`|\n#]+)"
)


def printed_commands(page) -> str:
    """A page's commands, their shell variables filled in."""
    script = "".join(re.findall(r"```bash\n(.*?)```", page.read_text(), flags=re.DOTALL))
    script = re.sub(r"^(git|cp|pip) .*\n", "", script, flags=re.MULTILINE).replace("python ", "echo python ")
    return subprocess.run(["bash", "-ec", script], check=True, capture_output=True, text=True).stdout


TEXTS = [*PAGES.values(), *map(printed_commands, sorted(ROOT.glob("examples/real/*.md")))]
COMMANDS = sorted({found for text in TEXTS for found in COMMAND.findall(text)})


@pytest.mark.parametrize("name, words", COMMANDS)
def test_commands_of_the_pages_compose(name, words):
    """Each key of a command is one of its configuration, each group's choice a file."""
    words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", words.split(" && ")[0])]
    task = [word.partition("=")[2] for word in words if word.startswith("task=")] or ["report"]
    modules = {"rl": "prm_jax.rl.__main__", "train": "train", "evaluate": "evaluate"}
    __import__(modules.get(name, f"prm_jax.{name}"))
    if name == "evaluate" and ("task", task[0]) not in ADDED:
        chosen = read_yaml(CONF / "task" / f"{task[0]}.yaml").task
        store_defaults("task_defaults", evaluate.task_class(chosen).Config)
    overrides = [x for x in words if "=" in x and not x.startswith(("-", "hydra.", "hydra/"))]
    overrides = [x.split(",")[0] if "-m" in words else x for x in overrides if "(" not in x]
    with hydra.initialize_config_dir(str(CONF), version_base=None):
        hydra.compose(name, [x for x in overrides if tuple(x.split("=")) not in ADDED])


def test_the_python_example_runs(capsys):
    exec(re.search(r"```python\n(import prm_jax\n.*?)```", README, flags=re.DOTALL)[1], {})  # noqa: S102 (our own page)
    scores, ranking = capsys.readouterr().out.splitlines()
    assert len(re.findall(r"\d\.\d+", scores)) == 2 and ranking == "[1, 0]"  # the right solution first


def test_the_edits_of_the_house_apply_and_work(tmp_path):
    """Each diff is applied to a copy of the package; a process then uses what they add."""
    for name in ("prm_jax", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "evaluate.py", tmp_path)
    page = PAGES["docs/house.md"]
    for name, lines in re.findall(r"```diff\n--- (\S+)\n(.*?)```", page, flags=re.DOTALL):
        lines = lines.splitlines(keepends=True)
        before = "".join(x[1:] or x for x in lines if x[0] in " -\n")
        after = "".join(x[1:] or x for x in lines if x[0] in " +\n")
        code = (tmp_path / name).read_text() if before else ""
        assert code.count(before) == 1, f"{name}: {before}"
        (tmp_path / name).write_text(code.replace(before, after))
    (tmp_path / "thumbs.py").write_text(re.search(r"```python\n# thumbs.py\n(.*?)```", page, re.DOTALL)[1])
    row = {"question": "3+5?", "steps": [{"text": "3+5=8", "up": True}, {"text": "8", "up": False}]}
    (tmp_path / "thumbs.jsonl").write_text(json.dumps(row))
    data = ["data=files", "data.name=thumbs.py:thumbs", "data.path=thumbs.jsonl"]
    command = [sys.executable, "-c", USES, "task=length", *data, "hydra.run.dir=out"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert json.loads((tmp_path / "out/results.json").read_text())["mean_steps"] == 2


USES = """
import types
import jax.numpy as jnp, numpy as np
from prm_jax.checkpoints.hf_config import export_config
from prm_jax import heads, losses, model, rerank
from prm_jax.generate import search
from prm_jax.rl import advantages
batch = {"label": jnp.array([[1.0, jnp.nan]])}
assert np.allclose(losses.STEP_LOSSES["smoothed"].f(jnp.zeros((1, 2)), batch, None), np.log(2))
assert heads.HEADS["two_faults"].log_odds(jnp.array([[[1.0, 3.0, 2.0]]])).tolist() == [[-1.0]]
logp_PNT = jnp.log(jnp.array([[[0.5, 0.2, 0.9]]]))
score_PN = rerank.aggregate(logp_PNT, jnp.ones((1, 1, 3), bool), "lowest_two", unit="logp")
assert np.allclose(score_PN, np.log(0.1))
assert "far" in search.METHODS and model.gated(jnp.array([2.0]), jnp.array([3.0]), "relu2").tolist() == [12.0]
reward_NT, step_NL, mask_NL = np.array([[1.0, 0], [0, 0]]), np.zeros((2, 3), int), np.ones((2, 3), bool)
rloo_mean = advantages.ESTIMATORS["rloo_mean"].f
a_NL = rloo_mean(advantages.Responses(reward_NT, np.zeros(2), step_NL, mask_NL, np.zeros(2, int)))
assert a_NL[:, 0].tolist() == [1.0, -1.0]  # of one step each
shape = {"vocab": 64, "dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "ffn": 48}
shape |= {"rope_theta": 1e4, "norm_eps": 1e-6, "qkv_bias": True, "tied": True}
cfg = model.ModelConfig(**shape, activation="relu2")
tokenizer = types.SimpleNamespace(bos_token_id=None, eos_token_id=0, pad_token_id=0)
assert export_config(cfg, tokenizer)["hidden_act"] == "relu2"  # and it is read back
import evaluate
evaluate.main()
"""
