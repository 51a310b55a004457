"""Every fault in every stage: `python tests/faults.py` (all cells, about an hour of one core), `python tests/faults.py kill score`.

A cell makes a small stage in a folder of its own, breaks it, and lets the user's next command follow: the same one, with resume=
where the stage takes it. What it ends with must be what an undisturbed one ends with, to the byte where no time stands in it, or
one line that says what to do. Stages run in forks of this process, so that imports are paid once. A full and a read-only disk
are a tmpfs, which needs root: without it those cells say so. Prints a table; exits with 1 where a cell fails.
"""

import contextlib
import functools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
warnings.filterwarnings("ignore", message=r"os.fork\(\) was called")

from fault_stages import FROM_NOTHING, READS, STAGES, Cell, same, write_inputs

from prm_jax.checkpoints.hf import SHIPPED, load_tokenizer

NOTHING_KEPT = "; nothing is kept for later commands"


def goes_on(cell: Cell, whole: dict) -> str:
    """The user's next command after a fault; what a killed figure was making lives on, and is waited for."""
    while (
        code := cell.run(resume=(cell.out / ".hydra").exists())
    ) and "another process is making" in cell.log:
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
    if number != signal.SIGKILL:
        assert "Traceback" not in cell.log, "traceback"
    if cell.code == 0:
        return "ended before the signal took effect"
    if number == signal.SIGINT:
        assert cell.code == 128 + number, f"exit {cell.code}"
        assert "interrupted" in cell.log or "stopped     by SIGINT" in cell.log, (
            f"says nothing: {cell.log[-160:]}"
        )
    return goes_on(cell, whole)


def in_mid_draw(cell, whole):
    """A figure is killed when its first drawing appears, and an evaluation when its first figure does."""
    if cell.stage not in ("figure", "best_of_n"):
        return "draws nothing"
    cell.progress = "best_of_n/*" if cell.stage == "figure" else "figures/*"
    if not cell.interrupted(signal.SIGKILL):
        return "ended before the signal"
    return goes_on(cell, whole)


@contextlib.contextmanager
def tmpfs(cell, size: str):
    made = cell.at.parent / f"{cell.at.name}_tmpfs"
    made.mkdir(exist_ok=True)
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
        small = cell.on(disk)
        used = sum(p.stat().st_blocks * 512 for p in disk.rglob("*"))
        why = "had room in 40 kB"
        for kilobytes in (
            40,
            400,
            2000,
            100_000,
        ):  # at the start, in the middle, in a checkpoint; at last enough
            subprocess.run(["mount", "-o", f"remount,size={used // 1024 + kilobytes}k", disk], check=True)
            if small.run(resume=(small.out / ".hydra").exists()) == 0:
                break
            why = small.one_line()
            assert "space" in why or "cannot be written" in why or "RESOURCE" in why, why
        assert same(small.ended(), whole), "ends with something else"
        return f"{why[:70]}; with {kilobytes} kB more the next command ends with the undisturbed result"


def in_read_only_folder(cell, whole):
    with tmpfs(cell, "100m") as disk:
        small = cell.on(disk)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        assert small.run(resume=cell.stage == "resume") == 1, "did not fail"
        return cell.one_line()


def damaged_checkpoint(cell, whole):
    """Flips 64 bytes in the newest checkpoint that the stage reads."""
    run = cell.out if cell.stage == "resume" else cell.at / "prm"
    if cell.stage in FROM_NOTHING:
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
    return (
        f"the first one is undisturbed; the second: {second.strip().splitlines()[-1][:110]}"
        + f" (exit {code})"
    )


def not_a_number(cell, whole):
    """Training that diverges, a model whose weights are not numbers, scores of a file that are none."""
    if cell.stage in ("resume", "figure", "samples"):
        return "as train"
    words = ["optimizer.lr=1e30", "optimizer.clip=1e30", "optimizer.warmup=0"]
    if cell.stage == "rl":
        words = words[:1] + ["optimizer.clip=1e30"]
    elif cell.stage == "best_of_n":
        path, words = cell.at / "pool.jsonl", []
        path.write_text(path.read_text().replace('"step_scores": {}', '"step_scores": {"s": [NaN, NaN]}'))
    elif cell.name != "train":
        from safetensors.numpy import load_file, save_file

        shutil.copytree(
            SHIPPED["embedded" if cell.stage in FROM_NOTHING else "embedded_orm"], cell.at / "broken"
        )
        tensors = load_file(cell.at / "broken/model.safetensors")
        save_file(
            {name: x * float("nan") for name, x in tensors.items()}, cell.at / "broken/model.safetensors"
        )
        words = ["checkpoint=broken"]
    assert cell.run(False, *words) == 1, "taken without a word"
    return cell.one_line()


def without_home(cell, whole):
    """HOME is unset, and nobody knows the user: what a container does to a user id of its own. The stages of a figure, processes
    of their own that know the user, are given an empty HOME, which is none."""

    def nobody(uid):
        raise KeyError(uid)

    def forget():
        os.environ["HOME"] = ""
        if cell.stage != "figure":
            os.environ.pop("HOME")
        pwd.getpwuid = nobody

    return with_home(cell, whole, forget, says=True)


def with_home(cell, whole, change, says):
    cell.before = change
    assert cell.run(resume=cell.stage == "resume") == 0, f"fails: {cell.one_line()}"
    said = cell.log + "".join(
        log.read_text() for log in cell.out.glob("stages/*/log.txt")
    )  # of a figure's stages
    assert says is None or (NOTHING_KEPT in said) == says, "says nothing" if says else "keeps nothing"
    assert "Traceback" not in cell.log, "traceback"
    assert same(cell.ended(), whole), "ends with something else"
    return "runs; one line says that nothing is kept" if says else "runs"


def with_full_home(cell, whole):
    """The cache's disk has no room; or room for the first things only, which the compiler's cache finds out alone, and the
    later stages of a figure when they begin."""
    for kilobytes, says in ((200, True), (1500, None if cell.stage == "figure" else False)):
        with tmpfs(cell, f"{kilobytes}k") as disk:
            outcome = with_home(cell, whole, lambda: os.environ.update(HOME=str(disk)), says)
        shutil.rmtree(cell.out, ignore_errors=True)
        if cell.stage == "resume":
            shutil.copytree(cell.at.parent / "inputs/stopped", cell.out)
        if says:
            first = outcome
    return f"{first}; with little room it {outcome}"


def with_read_only_home(cell, whole):
    with tmpfs(cell, "1m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        return with_home(cell, whole, lambda: os.environ.update(HOME=str(disk)), says=True)


def clock_set_back(cell, whole):
    """A stopped stage goes on, or begins again, a day before it began: all of its files are of the future."""
    if not cell.interrupted(signal.SIGKILL):
        return "ended before the signal"
    now = time.time

    def yesterday():
        time.time = lambda: now() - 86_400

    cell.before = yesterday
    return goes_on(cell, whole)


def one_cache(cell, whole):
    """Two of the same command begin at once, in folders of their own, with one new cache."""
    home = cell.at.parent / f"{cell.at.name}_home"
    home.mkdir()
    cell.before = lambda: os.environ.update(HOME=str(home))
    other = cell.on(cell.at.parent / f"{cell.at.name}_other")
    other.said = other.at.with_suffix(".log")
    pids = [c.start(resume=cell.stage == "resume") for c in (cell, other)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert codes == [0, 0], (
        f"exits {codes}: {[c.one_line() for c, code in zip((cell, other), codes) if code]}"
    )
    for c in (cell, other):
        assert "Traceback" not in c.log, "traceback"
        assert same(c.ended(), whole), "ends with something else"
    shutil.rmtree(other.at), shutil.rmtree(home)
    return "both end with the undisturbed result"


FAULTS = {
    "kill": kill, "terminate": functools.partial(kill, number=signal.SIGTERM),
    "interrupt": functools.partial(kill, number=signal.SIGINT), "mid_draw": in_mid_draw, "disk_full": in_full_disk,
    "read_only": in_read_only_folder, "damaged_checkpoint": damaged_checkpoint, "cut_log": cut_log,
    "changed_data": changed_data, "two_processes": two_processes, "nan": not_a_number, "no_home": without_home,
    "cache_full": with_full_home, "cache_read_only": with_read_only_home, "clock": clock_set_back, "one_cache": one_cache,
}  # fmt: skip


def make_runs(inputs: Path):
    """A finished run `prm` and a stopped one, beside the inputs."""
    cell = Cell("train", inputs, inputs.with_name("runs"))
    cell.progress = "checkpoints/latest/6"
    assert cell.run() == 0, cell.log
    cell.out.rename(inputs / "prm")
    cell.interrupted(signal.SIGTERM)
    cell.out.rename(inputs / "stopped")


def main(words: list[str]) -> bool:
    """Runs the cells whose fault and stage are named (all: none is named); whether all are well."""
    faults, stages = (
        [x for x in FAULTS if x in words] or list(FAULTS),
        [x for x in STAGES if x in words] or list(STAGES),
    )
    failed = 0
    load_tokenizer(SHIPPED["embedded"])  # imports transformers, as stages do late, before they fork
    with tempfile.TemporaryDirectory() as root:
        root = Path(root)
        (root / "inputs").mkdir()
        write_inputs(root / "inputs")
        if any("prm" in STAGES[stage][1] or stage == "resume" for stage in stages):
            make_runs(root / "inputs")
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
