"""The stages that tests/faults.py breaks: their commands, what shows their progress and what they end with, their inputs."""

import copy
import gzip
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# As conftest.py has it: most of a cell's time would be XLA's compiler at work on speed that no cell needs.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")

import evaluate
import train
from prm_jax.checkpoints import export
from prm_jax.figures import __main__ as figures
from prm_jax.generate import labeling, relabeling, sampling
from prm_jax.rl import __main__ as rl

COMMANDS = {
    "train": train,
    "evaluate": evaluate,
    "sampling": sampling,
    "labeling": labeling,
    "export": export,
}
COMMANDS |= {"figures": figures, "relabeling": relabeling, "rl": rl}
TINY = "cpu_devices=1 steps=18 log_every=1 checkpoint_every=3 eval.every=6 data.folds=4 data=jsonl data.path=rows.jsonl"
TINY += " batch.rows=4 batch.tokens=128"
LAB = "data=chain data.samples=solver"
KEPT = "cpu_devices=1 steps=12 log_every=1 checkpoint_every=3 eval.every=6 data=chain data.solutions=64 data.test_solutions=24"
RL = "cpu_devices=1 steps=6 problems=4 n=4 eval.problems=8 eval.n=2 eval.every=2 batch.rows=8 batch_rows=32 reward.prm=0.5"
RL += " reward.prm_checkpoint=embedded_orm advantage=pure checkpoint_every=2"
SEARCH = f"task=search {LAB} checkpoint=prm problems=4 samples=2 methods=[best_of_n,beam] budgets=[30,60]"
FIGURE = "name=best_of_n seed=0 steps=6 data.samples=solver data.solutions=60 data.test_solutions=30"
FIGURE += " fresh.problems=3 fresh.candidates=3"
LABELS = "input=rows.jsonl checker=chain k=2 batch_rows=8"
WRONG = "input=pool.jsonl checker=chain k=2 batch_rows=8"  # solutions whose answers are known to be wrong
# stage: (command, its words, whether resume= goes on with it, the file that shows its progress, what it ends with)
STAGES = {
    "train": ("train", TINY, True, "metrics.jsonl", "metrics.jsonl"),
    "resume": ("train", TINY, True, "metrics.jsonl", "metrics.jsonl"),  # of a run that was stopped at half its length
    "samples": ("train", f"{KEPT} batch.rows=4 batch.tokens=128", True, "metrics.jsonl", "metrics.jsonl"),  # of the policy
    "rl": ("rl", RL, True, "metrics.jsonl", "metrics.jsonl"),
    "score": ("evaluate", "task=score input=many.jsonl checkpoint=prm figures=0", True, "scores.jsonl", "scores.jsonl"),
    "score_pool": ("evaluate", "task=score input=pool.jsonl checkpoint=prm figures=0", True, "scores.jsonl",
                   "scores.jsonl pool.jsonl.gz"),
    "sample": ("sampling", "input=questions.jsonl n=4 batch_rows=8", True, "pool.jsonl", "pool.jsonl"),
    "label": ("labeling", LABELS, True, "labels.jsonl", "labels.jsonl"),
    "ratio": ("labeling", f"{LABELS} label=ratio threshold=0.8", True, "labels.jsonl", "labels.jsonl"),
    "first_error": ("labeling", f"{WRONG} label=first_error", True, "labels.jsonl", "labels.jsonl"),
    "tree": ("labeling", f"{WRONG} label=tree tree.searches=3", True, "trees.jsonl", "trees.jsonl labels.jsonl"),
    "relabel": ("relabeling", "input=many.jsonl by=scorer checkpoint=prm", True, "labels.jsonl", "labels.jsonl"),
    "search": ("evaluate", SEARCH, True, "searches/*.json", "searches/*.jsonl.gz"),
    "best_of_n": ("evaluate", "task=best_of_n input=pool.jsonl checkpoint=prm", True, "pool_scores_prm.jsonl", "results.json"),
    "sweep": ("train", f"-m seed=0,1 {TINY}", False, "0/metrics.jsonl", "*/metrics.jsonl"),
    "figure": ("figures", FIGURE, False, "stages/*/metrics.jsonl", "best_of_n/*.csv"),
    "export": ("export", "checkpoint=prm to=exported", False, "", "exported/*.safetensors"),
}  # fmt: skip
READS = {
    "score": "many.jsonl",
    "sample": "questions.jsonl",
    "best_of_n": "pool.jsonl",
    "score_pool": "pool.jsonl",
}
READS |= dict.fromkeys(("train", "resume", "label", "ratio", "sweep"), "rows.jsonl")
READS |= {"relabel": "many.jsonl", "first_error": "pool.jsonl", "tree": "pool.jsonl"}
# Stages that read no checkpoint of a run.
FROM_NOTHING = (
    "train",
    "samples",
    "rl",
    "sample",
    "label",
    "ratio",
    "first_error",
    "tree",
    "sweep",
    "figure",
)


TIMES = ("tokens_per_second", "versions", "overrides", "trained", "verifiers", "checksum")


class Cell:
    """One stage in a folder of its own, beside the inputs that all share."""

    def __init__(self, stage: str, inputs: Path, folder: Path):
        self.stage, self.at, self.out, self.said = stage, folder, folder / "out", folder.with_suffix(".log")
        self.name, self.words, self.resumes, self.progress, self.ends_with = STAGES[stage]
        self.before: Callable[[], None] = lambda: (
            None
        )  # what the process does to its own world before it begins
        self.code = 0  # of the process that was interrupted
        shutil.copytree(inputs, folder)
        if stage == "resume":
            self.at.joinpath("stopped").rename(self.out)

    def start(self, resume: bool = False, *more: str) -> int:
        """The process of the stage, or of its resumption."""
        words = ["resume=out"] if resume and self.resumes else self.words.split()
        place = {"sweep": "hydra.sweep.dir=out", "figure": "folder=out"}.get(self.stage, "hydra.run.dir=out")
        words += [place] if not (resume and self.resumes) else []
        self.said.unlink(missing_ok=True)  # one that still works writes on where nobody reads
        if (pid := os.fork()) == 0:
            code = 1
            with open(self.said, "w") as log:
                os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
                os.chdir(self.at)
                signal.signal(
                    signal.SIGINT, signal.default_int_handler
                )  # a shell's background job ignores it
                self.before()
                sys.argv = [f"{self.name}.py", *words, *more]
                try:
                    COMMANDS[self.name].main()
                    code = 0
                except SystemExit as end:
                    code = end.code if isinstance(end.code, int) else print(end.code, file=sys.stderr) or 1
                except BaseException:  # noqa: BLE001 (what it is stands in the log)
                    __import__("traceback").print_exc()
                sys.stdout.flush(), sys.stderr.flush()
                os._exit(code or 0)
        return pid

    def run(self, resume: bool = False, *more: str) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.start(resume, *more), 0)[1])

    @property
    def log(self) -> str:
        return self.said.read_text(errors="replace")

    def begun(self) -> bool:
        return (
            any(p.stat().st_size for p in self.out.glob(self.progress))
            if self.progress
            else self.out.exists()
        )

    def interrupted(self, number: int) -> bool:
        """Sends a signal as soon as there is progress; False where the stage ended first."""
        pid = self.start(self.stage == "resume")
        length = lambda: sum(p.stat().st_size for p in self.out.glob("metrics.jsonl"))
        before = length()
        while not self.begun() or (self.stage == "resume" and length() == before):
            if os.waitpid(pid, os.WNOHANG)[0]:
                return False
            time.sleep(0.002)
        os.kill(pid, number)
        self.code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return True

    def ended(self) -> dict:
        """What the stage ended with, without what times stand in it."""
        root = self.at if self.stage == "export" else self.out
        paths = [p for pattern in self.ends_with.split() for p in sorted(root.glob(pattern))]
        return {str(p.relative_to(root)): content(p) for p in paths}

    def on(self, disk: Path) -> "Cell":
        """The same cell with its folder on another disk."""
        shutil.copytree(self.at, disk, dirs_exist_ok=True)
        other = copy.copy(self)
        other.at, other.out = disk, disk / "out"
        return other

    def one_line(self) -> str:
        """The error of a command that failed; AssertionError where it is no one line."""
        lines = [line for line in self.log.splitlines() if line.strip()]
        assert "Traceback" not in self.log, f"traceback: {lines[-1][:160]}"
        errors = [line for line in lines if line.startswith(("error: ", "job "))]
        assert errors, f"no line says why: {lines[-1][:160]}"
        return errors[-1]


def content(path: Path):
    def drop(x):
        is_time = lambda name: name in TIMES or "seconds" in name
        return {k: drop(y) for k, y in x.items() if not is_time(k)} if isinstance(x, dict) else x

    if ".jsonl" in path.suffixes:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as rows:
            return [drop(json.loads(row)) for row in rows]
    if path.suffix == ".json":
        found = json.loads(path.read_text())
        return {k: found[k] for k in ("mean", "oracle", "majority") if k in found} or drop(found)
    return hash(path.read_bytes())


def same(a, b) -> bool:
    """Equal but for the last digits of numbers: what is scored in another batch is rounded otherwise."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return abs(a - b) < 1e-4 if isinstance(a, float) and isinstance(b, float) else a == b


def write_inputs(folder: Path):
    """Rows, questions, a pool."""
    rows, problems = [], [f"{a} +{b} *3 mod7?" for a in range(7) for b in range(7)]
    for problem in problems:
        a, b = int(problem[0]), int(problem[3])
        for wrong in (0, 1):
            c = (a + b + wrong) % 7
            row = {
                "prompt": problem,
                "completions": [f"{a}+{b}={c}", f"{c}*3={c * 3 % 7}"],
                "labels": [not wrong] * 2,
            }
            rows.append(row)
    pool = []
    for i, problem in enumerate(problems):
        solutions = [row["completions"] for row in rows if row["prompt"] == problem]
        candidates = [
            {"steps": steps, "answer": steps[1][-1], "correct": n == 0, "step_scores": {}}
            for n, steps in enumerate(solutions)
        ]
        pool.append(
            {"id": f"p{i}", "problem": problem, "answer": solutions[0][1][-1], "candidates": candidates}
        )
    files = {
        "rows.jsonl": rows,
        "many.jsonl": [row | {"prompt": f"{i} {row['prompt']}"} for i in range(60) for row in rows],
        "questions.jsonl": [{"problem": problem, "answer": "2"} for problem in problems],
        "pool.jsonl": pool,
    }
    for name, lines in files.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in lines))
