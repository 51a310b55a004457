"""Every fault in every stage: `python tests/faults.py` (all cells, about 15 minutes of one core), `python tests/faults.py kill score`.

A cell makes a small stage in a folder of its own, breaks it, and lets the user's next command follow: the same one, with resume=
where the stage takes it. What it ends with must be what an undisturbed one ends with, to the byte where no time stands in it, or
one line that says what to do. Stages run in forks of this process, so that imports are paid once. A full and a read-only disk
are a tmpfs, which needs root: without it those cells say so. Prints a table; exits with 1 where a cell fails.
"""

import contextlib
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
warnings.filterwarnings("ignore", message=r"os.fork\(\) was called")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import evaluate
import train
from prm_jax.checkpoints import export
from prm_jax.checkpoints.hf import SHIPPED
from prm_jax.figures import __main__ as figures
from prm_jax.generate import labeling, sampling

COMMANDS = {"train": train, "evaluate": evaluate, "sampling": sampling, "labeling": labeling, "export": export}
COMMANDS |= {"figures": figures}
TINY = "cpu_devices=1 steps=12 log_every=1 checkpoint_every=3 eval.every=6 data.folds=4 data=jsonl data.path=rows.jsonl"
TINY += " batch.rows=4 batch.tokens=128"
LAB = "data=chain data.samples=solver"
# stage: (command, its words, whether resume= goes on with it, the file that shows its progress, what it ends with)
CACHE_GROWTH = {
    "train": ("train", TINY, True, "metrics.jsonl", "metrics.jsonl"),
    "resume": ("train", TINY, True, "metrics.jsonl", "metrics.jsonl"),  # of a run that was stopped at half its length
    "score": ("evaluate", "task=score input=many.jsonl checkpoint=prm figures=0", True, "scores.jsonl", "scores.jsonl"),
    "sample": ("sampling", "problems=questions.jsonl n=4 batch_rows=8", True, "pool.jsonl", "pool.jsonl"),
    "label": ("labeling", "input=rows.jsonl checker=chain k=2 batch_rows=8", True, "labels.jsonl", "labels.jsonl"),
    "search": ("evaluate", f"task=search {LAB} checkpoint=prm problems=4 samples=2 methods=[best_of_n,beam] budgets=[30,60]",
               True, "searches/*.json", "searches/*.jsonl.gz"),
    "best_of_n": ("evaluate", "task=best_of_n pool=pool.jsonl checkpoint=prm", True, "pool_scores_prm.jsonl", "results.json"),
    "sweep": ("train", f"-m seed=0,1 {TINY}", False, "0/metrics.jsonl", "*/metrics.jsonl"),
    "figure": ("figures", ("name=best_of_n seed=0 steps=6 data.samples=solver data.solutions=60 data.test_solutions=30 "
               "fresh.problems=3 fresh.candidates=3"), False, "stages/*/metrics.jsonl", "best_of_n/*.csv"),
    "export": ("export", "checkpoint=prm to=exported", False, "", "exported/*.safetensors"),
}  # fmt: skip
READS = {"score": "many.jsonl", "sample": "questions.jsonl", "best_of_n": "pool.jsonl", "train": "rows.jsonl"}
READS |= {"resume": "rows.jsonl", "label": "rows.jsonl", "sweep": "rows.jsonl"}
TIMES = ("seconds", "tokens_per_second", "train_seconds", "versions", "overrides", "trained", "verifiers", "checksum")


class Cell:
    """One stage in a folder of its own, beside the inputs that all share."""

    def __init__(self, stage: str, inputs: Path, folder: Path):
        self.stage, self.at, self.out, self.said = stage, folder, folder / "out", folder.with_suffix(".log")
        self.name, self.words, self.resumes, self.progress, self.ends_with = CACHE_GROWTH[stage]
        shutil.copytree(inputs, folder)
        if stage == "resume":
            self.at.joinpath("stopped").rename(self.out)

    def start(self, resume: bool = False, *more: str) -> int:
        """The process of the stage, or of its resumption."""
        words = ["resume=out"] if resume and self.resumes else self.words.split()
        place = (
            "hydra.sweep.dir=out"
            if self.stage == "sweep"
            else "folder=out"
            if self.stage == "figure"
            else "hydra.run.dir=out"
        )
        words += [place] if not (resume and self.resumes) else []
        self.said.unlink(missing_ok=True)  # one that still works writes on where nobody reads
        if (pid := os.fork()) == 0:
            code = 1
            with open(self.said, "w") as log:
                os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
                os.chdir(self.at)
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
        return any(p.stat().st_size for p in self.out.glob(self.progress)) if self.progress else self.out.exists()

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
        os.waitpid(pid, 0)
        return True

    def ended(self) -> dict:
        """What the stage ended with, without what times stand in it."""
        root = self.at if self.stage == "export" else self.out
        return {str(p.relative_to(root)): content(p) for p in sorted(root.glob(self.ends_with))}

    def one_line(self) -> str:
        """The error of a command that failed; AssertionError where it is no one line."""
        lines = [line for line in self.log.splitlines() if line.strip()]
        assert "Traceback" not in self.log, f"traceback: {lines[-1][:160]}"
        errors = [line for line in lines if line.startswith(("error: ", "job "))]
        assert errors, f"no line says why: {lines[-1][:160]}"
        return errors[-1]


def content(path: Path):
    drop = lambda x: {k: drop(y) for k, y in x.items() if k not in TIMES} if isinstance(x, dict) else x
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


def goes_on(cell: Cell, whole: dict) -> str:
    """The user's next command after a fault; what a killed figure was making lives on, and is waited for."""
    while (code := cell.run(resume=(cell.out / ".hydra").exists())) and "another process is making" in cell.log:
        time.sleep(1)
    if code and not cell.resumes:
        why = cell.one_line()
        return f"refused: {why}"
    assert code == 0, f"exit {code}: {cell.one_line()}"
    assert same(cell.ended(), whole), "ends with something else"
    return "the next command ends with the undisturbed result"


def kill(cell, whole, number=signal.SIGKILL):
    if not cell.interrupted(number):
        return "ended before the signal"
    if number == signal.SIGTERM:
        assert "Traceback" not in cell.log, "traceback"
    return goes_on(cell, whole)


def terminate(cell, whole):
    return kill(cell, whole, signal.SIGTERM)


@contextlib.contextmanager
def tmpfs(cell, size: str):
    made = cell.at.parent / f"{cell.at.name}_tmpfs"
    made.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", made], capture_output=True, check=False
    ).returncode:
        raise NotRun("needs root, to mount a tmpfs")
    try:
        yield made
    finally:
        subprocess.run(["umount", "-l", made], check=True)


class NotRun(Exception):
    pass


def in_full_disk(cell, whole):
    with tmpfs(cell, "100m") as disk:
        shutil.copytree(cell.at, disk, dirs_exist_ok=True)
        small = Cell.__new__(Cell)
        vars(small).update(vars(cell) | {"at": disk, "out": disk / "out"})
        used = sum(p.stat().st_blocks * 512 for p in disk.rglob("*"))
        why = "had room in 40 kB"
        for kilobytes in (40, 400, 2000, 100_000):  # at the start, in the middle, in a checkpoint; at last enough
            subprocess.run(["mount", "-o", f"remount,size={used // 1024 + kilobytes}k", disk], check=True)
            if small.run(resume=(small.out / ".hydra").exists()) == 0:
                break
            why = small.one_line()
            assert "space" in why or "cannot be written" in why or "RESOURCE" in why, why
            if cell.stage == "sweep":  # is not gone on with as a whole
                return why
        assert same(small.ended(), whole), "ends with something else"
        return f"{why[:70]}; with {kilobytes} kB more the next command ends with the undisturbed result"


def in_read_only_folder(cell, whole):
    with tmpfs(cell, "100m") as disk:
        shutil.copytree(cell.at, disk, dirs_exist_ok=True)
        small = Cell.__new__(Cell)
        vars(small).update(vars(cell) | {"at": disk, "out": disk / "out"})
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        assert small.run(resume=cell.stage == "resume") == 1, "did not fail"
        return cell.one_line()


def damaged_checkpoint(cell, whole):
    """Flips 64 bytes in the newest checkpoint that the stage reads."""
    run = cell.out if cell.stage == "resume" else cell.at / "prm"
    if cell.stage in ("train", "sample", "label", "sweep", "figure"):
        return "reads no checkpoint of a run"
    for kind in ("latest", "best"):
        newest = max((run / "checkpoints" / kind).glob("[0-9]*"), key=lambda p: int(p.name))
        path = max((p for p in (newest / "model").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
        data = bytearray(path.read_bytes())
        data[len(data) // 2 : len(data) // 2 + 64] = os.urandom(64)
        path.write_bytes(data)
    code = cell.run(resume=cell.stage == "resume")
    if code == 0:
        assert "falls back to step" in cell.log, "taken without a word"
        return "falls back to the step before, and says so" + "; equal" * (
            cell.stage == "resume" and cell.ended() == whole
        )
    return cell.one_line()


def cut_log(cell, whole):
    """The last line of what a stopped stage has written is cut off in its middle."""
    if cell.progress.rsplit(".")[-1] != "jsonl" or not cell.resumes:
        return "appends to no file that it goes on with"
    if not cell.interrupted(signal.SIGKILL):
        return "ended before it could be stopped"
    for path in cell.out.glob(cell.progress):
        path.write_bytes(path.read_bytes()[:-9])
    return goes_on(cell, whole)


def changed_data(cell, whole):
    if not cell.resumes or cell.stage not in READS:
        return "cannot be gone on with, or reads no file"
    if cell.stage != "resume" and not cell.interrupted(signal.SIGKILL):
        return "ended before it could be stopped"
    path = cell.at / READS[cell.stage]
    path.write_text(path.read_text().replace("2", "3"))
    assert cell.run(resume=True) == 1, "taken without a word"
    return cell.one_line()


def two_processes(cell, whole):
    """A second one while the first works: of resumed ones a second resumption, of others the same command."""
    pid = cell.start(cell.stage == "resume")
    while not (cell.out / (".hydra/lock" if cell.resumes else "")).exists():
        if os.waitpid(pid, os.WNOHANG)[0]:
            return "ended before a second could begin"
        time.sleep(0.002)
    time.sleep(0.2)
    first = cell.log
    code = cell.run(resume=cell.resumes)
    second, cell_log = cell.log, first
    done = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert done == 0, f"the first one failed: {cell_log[-100:]}"
    assert same(cell.ended(), whole), "the first one ends with something else"
    return f"the first one is undisturbed; the second: {second.strip().splitlines()[-1][:110]}" + f" (exit {code})"


def not_a_number(cell, whole):
    """Training that diverges, a model whose weights are not numbers, scores of a file that are none."""
    if cell.stage in ("resume", "figure"):
        return "as train"
    words = ["optimizer.lr=1e30", "optimizer.clip=1e30", "optimizer.warmup=0"]
    if cell.stage == "best_of_n":
        path, words = cell.at / "pool.jsonl", []
        path.write_text(path.read_text().replace('"step_scores": {}', '"step_scores": {"s": [NaN, NaN]}'))
    elif cell.name != "train":
        from safetensors.numpy import load_file, save_file

        shutil.copytree(
            SHIPPED["embedded" if cell.stage in ("sample", "label") else "embedded_orm"], cell.at / "broken"
        )
        tensors = load_file(cell.at / "broken/model.safetensors")
        save_file({name: x * float("nan") for name, x in tensors.items()}, cell.at / "broken/model.safetensors")
        words = ["checkpoint=broken"]
    assert cell.run(False, *words) == 1, "taken without a word"
    return cell.one_line()


FAULTS = {
    "kill": kill, "terminate": terminate, "disk_full": in_full_disk, "read_only": in_read_only_folder,
    "damaged_checkpoint": damaged_checkpoint, "cut_log": cut_log, "changed_data": changed_data,
    "two_processes": two_processes, "nan": not_a_number,
}  # fmt: skip


def make_inputs(folder: Path, with_runs: bool):
    """Rows, questions, a pool; a finished run `prm` and a stopped one where a stage reads them."""
    rows, problems = [], [f"{a} +{b} *3 mod7?" for a in range(7) for b in range(7)]
    for problem in problems:
        a, b = int(problem[0]), int(problem[3])
        for wrong in (0, 1):
            c = (a + b + wrong) % 7
            rows.append(
                {
                    "prompt": problem,
                    "completions": [f"{a}+{b}={c}", f"{c}*3={c * 3 % 7}"],
                    "labels": [not wrong, not wrong],
                }
            )
    write = lambda name, lines: (folder / name).write_text("".join(json.dumps(row) + "\n" for row in lines))
    (
        write("rows.jsonl", rows),
        write("many.jsonl", [row | {"prompt": f"{i} {row['prompt']}"} for i in range(60) for row in rows]),
    )
    write("questions.jsonl", [{"problem": problem, "answer": "2"} for problem in problems])
    candidates = lambda own: [{"steps": row["completions"], "answer": row["completions"][1][-1], "correct": all(row["labels"]),
                               "step_scores": {}} for row in own]  # fmt: skip
    pool = [(f"p{i}", problem, [row for row in rows if row["prompt"] == problem]) for i, problem in enumerate(problems)]
    write(
        "pool.jsonl",
        [
            {"id": i, "problem": p, "answer": own[0]["completions"][1][-1], "candidates": candidates(own)}
            for i, p, own in pool
        ],
    )
    if not with_runs:
        return
    cell = Cell.__new__(Cell)
    vars(cell).update(
        stage="train",
        at=folder,
        said=folder.with_suffix(".log"),
        out=folder / "out",
        resumes=True,
        progress="checkpoints/latest/6",
    )
    cell.name, cell.words, *_ = CACHE_GROWTH["train"]
    assert cell.run() == 0, cell.log
    (folder / "out").rename(folder / "prm")
    cell.interrupted(signal.SIGTERM)
    (folder / "out").rename(folder / "stopped")


def main(words: list[str]) -> bool:
    """Runs the cells whose fault and stage are named (all: none is named); whether all are well."""
    faults, stages = (
        [x for x in FAULTS if x in words] or list(FAULTS),
        [x for x in CACHE_GROWTH if x in words] or list(CACHE_GROWTH),
    )
    failed = 0
    with tempfile.TemporaryDirectory() as root:
        root = Path(root)
        (root / "inputs").mkdir()
        make_inputs(root / "inputs", any("prm" in CACHE_GROWTH[stage][1] or stage == "resume" for stage in stages))
        for stage in stages:
            undisturbed = Cell(stage, root / "inputs", root / stage)
            assert undisturbed.run(resume=stage == "resume") == 0, undisturbed.log
            whole = undisturbed.ended()
            assert whole, f"{stage} ended with nothing: {undisturbed.log}"
            for fault in faults:
                cell = Cell(stage, root / "inputs", root / f"{stage}_{fault}")
                try:
                    outcome = FAULTS[fault](cell, whole)
                except NotRun as why:
                    outcome = f"not run: {why}"
                except (AssertionError, OSError) as why:
                    failed += 1
                    outcome = f"FAILED: {why}"
                print(f"| {fault} | {stage} | {outcome[:240]} |", flush=True)
                shutil.rmtree(cell.at, ignore_errors=True)
    print(f"{failed} cells failed")
    return not failed


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
