"""Makes a paper's figure: runs its commands, gathers their numbers, states its differences, draws it.

NAME is a file beside this one; README.md says what each asks and what was expected.

    python -m examples.papers.run NAME --redraw      draws the tables of docs/gallery; runs nothing
    python -m examples.papers.run NAME --explain     prints the commands
    python -m examples.papers.run NAME --jobs 2      runs them, two at a time; makes table and picture
    python -m examples.papers.run NAME --seeds 0 1   the same with these seeds alone

A line of `stages` is a command without `python`, run for each combination of the sweep keys. In it {seed} is
a value of the sweep key `seed`; {prm} is the folder of the line `prm` at the same combination; in brackets,
[{prm}], all of its folders that agree in the keys that the line names; {data} is PRM_JAX_DATA. A Hydra
command gets its folder as hydra.run.dir, another one where it says {out}.

A folder has the name of a hash of its command, so that figures share what they have in common, and what is
done is not run again: after a change of code or conf/ take another --folder.
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
from pathlib import Path

from examples.papers.table import Figure, differences, read_table, statements
from prm_jax.figures.style import GREY, save

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "docs/gallery"
DATA = Path(os.environ.get("PRM_JAX_DATA", ROOT.parent / "shared" / "data"))
NAMES = sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - {"run", "table"})
SPREAD = "Thin, small: runs; bold, large: their mean; intervals: 95 % t of eight runs, else the range."


@dataclasses.dataclass(frozen=True)
class Stage:
    """A line of a figure at one combination of its sweep keys."""

    sweep: dict[str, object]  # the values that its command depends on
    words: list[str]  # its command
    folder: Path

    def results(self) -> dict:
        path = self.folder / "results.json"
        return json.loads((path if path.exists() else self.folder / "summary.json").read_text())

    def made(self, verifier: str) -> bool:
        """Whether a verifier of a results.json is this stage's: FOLDER step 700."""
        return Path(verifier.rsplit(" step ", 1)[0]).name == self.folder.name


def make_stages(figure: Figure, root: Path) -> dict[str, list[Stage]]:
    """{line: its stages}, each folder once."""
    made = {}
    for line, text in figure.stages.items():
        stages = {}
        for values in itertools.product(*figure.sweep.values()):
            sweep = dict(zip(figure.sweep, values, strict=True))
            stage = make_stage(figure, text, sweep, made, root)
            stages.setdefault(stage.folder, stage)
        made[line] = list(stages.values())
    return made


def make_stage(figure: Figure, text: str, sweep: dict, made: dict[str, list[Stage]], root: Path) -> Stage:
    """The stage of a line at one combination, from those of the lines before it."""
    if "{out}" not in text:
        text += " cpu_devices=1 hydra.run.dir={out}"
    own = {key: value for key, value in sweep.items() if f"{{{key}}}" in text}
    for key, value in own.items():
        options = figure.sweep[key]
        text = text.replace(f"{{{key}}}", options[value] if isinstance(options, dict) else str(value))
    gathers = "[" in text
    agreed = own if gathers else sweep
    for line in [line for line in made if f"{{{line}}}" in text]:
        used = [x for x in made[line] if all(agreed.get(key, y) == y for key, y in x.sweep.items())]
        text = text.replace(f"{{{line}}}", ",".join(str(x.folder) for x in used))
        own |= {} if gathers else used[0].sweep
    digest = hashlib.sha256(text.replace(f"{root}{os.sep}", "").encode()).hexdigest()[:8]
    command = Path(text.removeprefix("-m ").split()[0].removesuffix(".py")).name.split(".")[-1]
    folder = root / f"{command}-{digest}"
    return Stage(own, shlex.split(text.replace("{out}", str(folder)).replace("{data}", str(DATA))), folder)


def run_stage(stage: Stage):
    """Runs its command where that is not done; a failure ends it all."""
    if (stage.folder / "DONE").exists():
        return
    shutil.rmtree(stage.folder, ignore_errors=True)
    stage.folder.mkdir(parents=True)
    log = stage.folder / "log.txt"
    command = [sys.executable, *stage.words]
    with open(log, "w") as out:
        code = subprocess.run(command, cwd=ROOT, stdout=out, stderr=out, check=False).returncode
    if code:
        sys.exit(f"error: {stage.folder.name}: exit {code}; see {log}")
    (stage.folder / "DONE").touch()
    print(f"made        {stage.folder}", flush=True)


def main(words: list[str] | None = None):
    parser = argparse.ArgumentParser(description="Makes a paper's figure.")
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--redraw", action="store_true", help="draw the stored table, run nothing")
    parser.add_argument("--explain", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--jobs", type=int, default=1, help="commands at a time")
    parser.add_argument("--seeds", type=int, nargs="+", help="in place of the figure's own")
    parser.add_argument("--folder", type=Path, default=Path("runs/papers"))
    args = parser.parse_args(words)
    for name, figure in importlib.import_module(f"examples.papers.{args.name}").FIGURES.items():
        if args.seeds and "seed" in figure.sweep:
            figure = dataclasses.replace(figure, sweep=figure.sweep | {"seed": args.seeds})
        lines = make_stages(figure, args.folder.resolve() / "stages")
        if args.explain:
            print(*(shlex.join(stage.words) for stage in itertools.chain(*lines.values())), sep="\n")
            continue
        path = args.folder / name / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not args.redraw:
            with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
                for stages in lines.values():  # the next line may need this one's folders
                    list(pool.map(run_stage, stages))
            figure.gather(lines).write(path, figure.compare)
        table = read_table(STORED / path.name if args.redraw else path)
        for line in statements(differences(table, figure.compare)):
            print(f"says        {line}")
        drawn = figure.draw(table)
        drawn.text(0, -0.02, SPREAD, fontsize=7, color=GREY, va="top")
        print(f"figure      {save(drawn, path.with_suffix('.png'))}")


if __name__ == "__main__":
    main()
