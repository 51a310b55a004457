"""Makes a paper's figure: runs its commands, gathers their numbers, states its differences, draws it.

NAME is a file beside this one; README.md says what each asks and what was expected.

    python -m examples.papers.run NAME --redraw      draws the tables of docs/gallery; runs nothing
    python -m examples.papers.run NAME --explain     says which commands are done
    python -m examples.papers.run NAME --jobs 2      runs the others, two at a time; makes table and picture
    python -m examples.papers.run NAME --seeds 0 1   the same with these seeds alone

A line of `stages` is a command without `python`, run for each combination of the sweep keys. In it {seed} is
a value of the sweep key `seed`; {prm} is the folder of the line `prm` at the same combination; in brackets,
[{prm}], all of its folders that agree in the keys that the line names; {data} is PRM_JAX_DATA. A Hydra
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
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from examples.papers.table import Figure, differences, read_table, statements
from prm_jax.figures.style import GREY, save
from prm_jax.launch import run_folder

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "docs/gallery"
DATA = Path(os.environ.get("PRM_JAX_DATA", ROOT.parent / "shared" / "data"))
NAMES = sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - {"run", "table"})
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
    agree_in, needs = named if "[" in text else sweep, {}
    for name in [name for name in made if f"{{{name}}}" in text]:
        used = {x.folder: x for x in made[name] if agree_in.items() <= x.sweep.items()}
        text = text.replace(f"{{{name}}}", ",".join(map(str, used)))
        needs |= used
    digest = hashlib.sha256(text.replace(f"{root}{os.sep}", "").encode()).hexdigest()[:8]
    command = Path(text.removeprefix("-m ").split()[0].removesuffix(".py")).name.split(".")[-1]
    folder = root / f"{command}-{digest}"
    words = shlex.split(text.replace("{out}", str(folder)).replace("{data}", str(DATA)))
    return Stage(sweep, words, list(needs.values()), folder)


def run_all(lines: dict[str, list[Stage]], jobs: int):
    """Runs what is not done, one line of the figure after the other; the first failure ends it."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for stages in lines.values():
            list(pool.map(run_stage, stages))


def run_stage(stage: Stage):
    if stage.done:
        return
    shutil.rmtree(stage.folder, ignore_errors=True)
    stage.folder.mkdir(parents=True)
    log, begun = stage.folder / "log.txt", time.monotonic()
    command = [sys.executable, *stage.words]
    with open(log, "w") as out:
        code = subprocess.run(command, cwd=ROOT, stdout=out, stderr=out, check=False).returncode
    if code:
        last = log.read_text(errors="replace").strip().rsplit("\n", 1)[-1]
        sys.exit(f"error: {stage.folder.name}: exit {code}: {last[:300]}; see {log}")
    about = {"words": stage.words, "commit": run_folder.versions()["commit"]}
    run_folder.write_json(stage.folder / "DONE", about | {"seconds": time.monotonic() - begun})
    print(f"made        {time.monotonic() - begun:>7.1f} s  {stage.folder}", flush=True)


def write_table(figure: Figure, lines: dict[str, list[Stage]], path: Path):
    """Writes the numbers of finished stages, the declared differences among them."""
    table = figure.gather(lines)
    table.write(path)
    for item, difference_S in differences(read_table(path), figure.compare).items():
        table.number(f"difference of {item.panel}", f"{item.a} - {item.b}", difference_S, item.x)
    table.write(path)


def main(words: list[str] | None = None):
    parser = argparse.ArgumentParser(description="Makes a paper's figure.")
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
        lines = make_stages(figure, args.folder.resolve() / "stages")
        if args.explain:
            for stage in itertools.chain(*lines.values()):
                print(f"{'done' if stage.done else 'to make':<12}{' '.join(stage.words)}")
            continue
        path = args.folder / name / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not args.redraw:
            run_all(lines, args.jobs)
            write_table(figure, lines, path)
        table = read_table(STORED / path.name if args.redraw else path)
        for line in statements(table, figure.compare):
            print(f"says        {line}")
        drawn = figure.draw(table)
        drawn.text(0, -0.02, SPREAD, fontsize=7, color=GREY, va="top")
        print(f"figure      {save(drawn, path.with_suffix('.png'))}")


if __name__ == "__main__":
    main()
