"""Makes a paper's figure: runs its commands, gathers their numbers, states its differences, draws it.

A plain script, no Hydra command. NAME is a file beside this one, whose first lines say what to expect.

    python examples/papers/run.py NAME --redraw      draws the tables of docs/gallery; runs nothing
    python examples/papers/run.py NAME --explain     says which commands are done
    python examples/papers/run.py NAME --jobs 2      runs the others, two at a time; makes table and picture
    python examples/papers/run.py NAME --seeds 0 1   the same with these seeds alone

A line of `stages` is a command without `python`, run for each combination of the sweep keys. In it {seed} is
a value of the sweep key `seed`; {prm} is the folder of the stage `prm` at the same combination; in brackets,
[{prm}], it is all of its folders that agree in the keys that the line names; {data} is PRM_JAX_DATA. A Hydra
command gets its folder as hydra.run.dir, another one where it says {out}.

A finished command is not run again. Its folder has the name of a hash of its text, so that figures share what
they have in common: after a change of code or conf/ take another --folder.
"""

import argparse
import concurrent.futures
import dataclasses
import hashlib
import importlib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from examples.papers.table import Figure, Table, differences, read_table, statements
from prm_jax import InputError
from prm_jax.figures.style import GREY, save
from prm_jax.launch import run_folder

STORED = ROOT / "docs" / "gallery"
DATA = Path(os.environ.get("PRM_JAX_DATA", ROOT.parent / "shared" / "data"))
NAMES = sorted({path.stem for path in HERE.glob("*.py")} - {"run", "table"})
SPREAD = "Thin, small: runs; bold, large: their mean; intervals: 95 % t of eight runs, else the range."


@dataclasses.dataclass(frozen=True)
class Stage:
    """A line of a figure at one combination of its sweep keys."""

    sweep: dict[str, object]
    words: list[str]  # its command
    needs: list["Stage"]
    folder: Path

    @property
    def done(self) -> bool:
        return (self.folder / "DONE").exists()

    def results(self) -> dict:
        paths = [self.folder / name for name in ("results.json", "summary.json")]
        return json.loads(next(path for path in paths if path.exists()).read_text())

    def made(self, verifier: str) -> bool:
        """Whether a verifier of a results.json is this stage's: FOLDER step 700."""
        return Path(verifier.rsplit(" step ", 1)[0]).name == self.folder.name


def make_stages(figure: Figure, root: Path) -> dict[str, list[Stage]]:
    """{line: its stages}, each folder once."""
    sweeps = [dict(zip(figure.sweep, x, strict=True)) for x in itertools.product(*figure.sweep.values())]
    made: dict[str, list[Stage]] = {}  # a stage for each of `sweeps`
    for line in figure.stages:
        made[line] = [make_stage(figure, line, sweep, made, root) for sweep in sweeps]
    return {line: list({stage.folder: stage for stage in stages}.values()) for line, stages in made.items()}


def make_stage(figure: Figure, line: str, sweep: dict, made: dict[str, list[Stage]], root: Path) -> Stage:
    text = figure.stages[line]
    text += "" if "{out}" in text else f" {figure.also} hydra.run.dir={{out}}"
    named = {key: value for key, value in sweep.items() if f"{{{key}}}" in text}
    for key, value in named.items():
        texts = figure.sweep[key]
        text = text.replace(f"{{{key}}}", texts[value] if isinstance(texts, dict) else str(value))
    needs: dict[Path, Stage] = {}

    def fill(match: re.Match) -> str:
        """A reference, or brackets with references."""
        agree_in = named if match[0].startswith("[") else sweep
        text = match[0]
        for name in [name for name in re.findall(r"{(\w+)}", text) if name in made]:
            used = {x.folder: x for x in made[name] if agree_in.items() <= x.sweep.items()}
            needs.update(used)
            text = text.replace(f"{{{name}}}", ",".join(map(str, used)))
        return text

    text = re.sub(r"\[[^]]*\]|{\w+}", fill, text)
    digest = hashlib.sha256(text.replace(f"{root}{os.sep}", "").encode()).hexdigest()[:8]
    command = Path(text.removeprefix("-m ").split()[0].removesuffix(".py")).name.split(".")[-1]
    folder = root / f"{command}-{digest}"
    words = shlex.split(text.replace("{out}", str(folder)).replace("{data}", str(DATA)))
    return Stage(sweep, words, list(needs.values()), folder)


def run_all(stages: list[Stage], jobs: int):
    """Runs the stages that are not done, each after those that it needs; the first failure ends it."""
    pool, futures = concurrent.futures.ThreadPoolExecutor(jobs), {}
    for stage in stages:  # each comes after those that it needs, so that no thread waits for one behind it
        if stage.folder not in futures:
            before = [futures[need.folder] for need in stage.needs]
            futures[stage.folder] = pool.submit(run_stage, stage, before)
    try:
        for future in concurrent.futures.as_completed(futures.values()):
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def run_stage(stage: Stage, before: list[concurrent.futures.Future]):
    for future in before:
        future.result()
    if stage.done:
        return
    shutil.rmtree(stage.folder, ignore_errors=True)
    stage.folder.mkdir(parents=True)
    log, begun = stage.folder / "log.txt", time.monotonic()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with open(log, "w") as out:
        given = {"cwd": ROOT, "env": os.environ | {"PYTHONPATH": path}, "stdout": out, "stderr": out}
        code = subprocess.run([sys.executable, *stage.words], **given, check=False).returncode
    if code:
        last = log.read_text(errors="replace").strip().rsplit("\n", 1)[-1]
        raise InputError(f"{stage.folder.name}: exit {code}: {last[:300]}; see {log}")
    seconds, commit = time.monotonic() - begun, run_folder.versions()["commit"]
    run_folder.write_json(stage.folder / "DONE", {"words": stage.words, "seconds": seconds, "commit": commit})
    print(f"made        {seconds:>7.1f} s  {stage.folder}", flush=True)


def make_table(figure: Figure, path: Path, args: argparse.Namespace):
    """Runs the stages and writes their numbers, the declared differences among them."""
    lines = make_stages(figure, args.folder.resolve() / "stages")
    stages = [stage for line in lines.values() for stage in line]
    if args.explain:
        for stage in stages:
            print(f"{'done' if stage.done else 'to make':<12}{' '.join(stage.words)}")
        return
    run_all(stages, args.jobs)
    path.parent.mkdir(parents=True, exist_ok=True)
    table: Table = figure.gather(lines)
    table.write(path)
    for item, difference_S in differences(read_table(path), figure.compare):
        x = "" if item.x is None else item.x
        table.number(f"difference of {item.panel}", f"{item.a} - {item.b}", difference_S, x)
    table.write(path)


def main(words: list[str] | None = None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--redraw", action="store_true", help="draw the stored table, run nothing")
    parser.add_argument("--explain", action="store_true", help="say which commands are done, run nothing")
    parser.add_argument("--jobs", type=int, default=1, help="commands at a time")
    parser.add_argument("--seeds", type=int, nargs="+", help="in place of the figure's own")
    parser.add_argument("--folder", type=Path, default=Path("runs/papers"))
    args = parser.parse_args(words)
    for name, figure in importlib.import_module(f"examples.papers.{args.name}").FIGURES.items():
        if args.seeds and "seed" in figure.sweep:
            figure = dataclasses.replace(figure, sweep=figure.sweep | {"seed": args.seeds})
        path = args.folder / name / f"{name}.csv"
        try:
            if not args.redraw:
                make_table(figure, path, args)
        except InputError as error:
            sys.exit(f"error: {error}")
        if args.explain:
            continue
        table = read_table(STORED / f"{name}.csv" if args.redraw else path)
        for line in statements(table, figure.compare):
            print(f"says        {line}")
        drawn = figure.draw(table)
        drawn.text(0, -0.02, SPREAD, fontsize=7, color=GREY, va="top")
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(path.with_suffix(".pdf"))
        print(f"figure      {save(drawn, path.with_suffix('.png'))}")


if __name__ == "__main__":
    main()
