"""Shared by all tests: tiny models, and where real data lie."""

import contextlib
import gc
import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

gc.set_threshold(400_000, 20, 100)  # JAX makes few cycles and keeps many objects: a tenth of the time
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "prm_jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")  # a second run hardly compiles
# One thread for the sums of PyTorch and one for XLA's: of arrays this small two mostly wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NPROC", "1")

import absl.logging
import jax
import numpy as np
import pytest
import yaml
from flax import nnx
from omegaconf import OmegaConf

# Most of the time of a test is XLA's compiler, most of that LLVM at work on speed that no test needs.
# XLA_FLAGS= (empty) runs all tests, those in processes of their own too, as XLA compiles by default. XLA ends
# a process, without a word that pytest would show, at a flag that it does not know, so the emitters' one goes
# to a jax that has it.
emitters = " --xla_cpu_use_fusion_emitters=false" if jax.__version_info__ < (0, 11) else ""
XLA_FLAGS = os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1" + emitters
)
# Hydra reads its files with the loader of this name: in C, a command starts in three quarters of the time.
yaml.SafeLoader = yaml.CSafeLoader
# Of another stream, which pytest captures by then, Hydra would close the file when it sets up its own logs.
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__
jax.devices()  # one: commands in this process cannot make several of its CPU any more

from prm_jax import InputError
from prm_jax.figures import style
from prm_jax.model import PRM, ModelConfig

style.plt.rcParams.update({"savefig.dpi": 75, "savefig.bbox": None})  # figures take half of a user's time

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("PRM_JAX_DATA", ROOT.parent / "shared" / "data"))
MODELS = Path(os.environ.get("PRM_JAX_MODELS", ROOT.parent / "shared" / "models"))

# Of commands that are not prm_jax.NAME.
MODULES = {"train": "train", "evaluate": "evaluate", "rl": "prm_jax.rl.__main__"}
# A problem, a right and a wrong solution: under embedded_orm the right one has the higher last score, the
# wrong one the higher first and the higher lowest score.
LAST_DECIDES = (
    "6 *2 *4 +6 -5 min3 mod7?",
    ("6*2*4=6", "6+6-5=0", "0min3=0"),
    ("6*2*4=0", "0+6=6", "6-5=1", "1min3=1"),
)
TINY = ModelConfig(
    vocab=64,
    dim=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    ffn=48,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    qkv_bias=True,
    tied=True,
    head="scalar",
)


def pytest_collection_modifyitems(config, items):
    """Files with slow tests first, so that all processes end at about the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Lets go of compiled programs once a file ends with many: each takes maps of memory, and Linux ends a
    process at its 65,531st. Until then files share small ones, which would take half a second of each to make
    again."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()


@pytest.fixture
def tiny_model():
    return PRM(TINY, rngs=nnx.Rngs(0))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(params=["float32", "float64"])
def precision(request):
    """(dtype, tolerance) in both precisions."""
    with jax.enable_x64(request.param == "float64"):
        yield np.dtype(request.param), {"float32": 1e-6, "float64": 1e-12}[request.param]


def real_data(name: str) -> Path:
    """A file of the real data, or a skip that says what is missing."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"real data absent: {path} (set PRM_JAX_DATA)")
    return path


def real_model(name: str) -> Path:
    """A folder of the real models, or a skip that says what is missing."""
    path = MODELS / name
    if not path.exists():
        pytest.skip(f"real model absent: {path} (set PRM_JAX_MODELS)")
    return path


@pytest.fixture(scope="session")
def best_of_32():
    """{name: rows} of two pools with stored step scores, as they are."""
    rows = {}
    for name in ("gsm8k", "math500"):
        with gzip.open(
            real_data(f"bon_strictprmbench/{name}_qwen2.5-7b-instruct_n32.jsonl.gz"), "rt"
        ) as lines:
            rows[name] = [json.loads(line) for line in lines]
    return rows


def jsonl(folder, *rows, name="rows.jsonl"):
    """A file of these rows."""
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def refuses(pattern, function, *args, **settings):
    """The call ends in an InputError of one line in which the pattern is found."""
    with pytest.raises(InputError, match=pattern) as caught:
        function(*args, **settings)
    assert "\n" not in str(caught.value)


def data_node(name, /, **changes):
    """The keys of conf/data/NAME.yaml, some of them changed."""
    node = OmegaConf.load(ROOT / f"conf/data/{name}.yaml")
    node.pop("defaults", None)  # of Hydra
    return OmegaConf.merge(node, changes)


def with_devices(n):
    """The environment of a process that sees n devices, where it makes none itself (`cpu_devices`)."""
    several = f" --xla_force_host_platform_device_count={n}" if n > 1 else ""
    return os.environ | {"XLA_FLAGS": XLA_FLAGS + several}


def without_torch(environment):
    """This environment as users have it: without PyTorch, which transformers imports where it is."""
    paths = str(ROOT / "tests" / "user"), environment.get("PYTHONPATH")
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def last_of_each(words) -> list[str]:
    """The words without those whose key another one sets behind them: a command line names a key once."""
    last = {word.partition("=")[0]: word for word in words}
    return [word for word in dict.fromkeys(words) if last[word.partition("=")[0]] == word]


def start(script, *args, cwd, **env):
    """A command of this repository in a process of its own, where PyTorch is not to be found."""
    if script in ("train.py", "evaluate.py"):
        args = *args, "cpu_devices=1"
    command = [sys.executable, str(ROOT / script), *last_of_each(args)]
    environment = without_torch(os.environ | env)
    environment.pop("HYDRA_FULL_ERROR", None)
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(script, *args, cwd, code=0, **env):
    """Its output and errors once it has ended with this exit code."""
    process = start(script, *args, cwd=cwd, **env)
    try:
        out, err = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == code, out + err
    return out, err


def printed(main, monkeypatch, *overrides, cwd):
    """What a command prints that runs in this process, without a process's imports and compiling."""
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(sys, "argv", ["", *last_of_each(overrides)])
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main()
    return out.getvalue()


def call(main, monkeypatch, script, *overrides):
    """The message with which an in-process command exits."""
    monkeypatch.setattr(sys, "argv", [script, *last_of_each(overrides)])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with pytest.raises(SystemExit) as caught:
        main()
    return str(caught.value.code)
