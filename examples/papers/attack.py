"""What the worst edit of a solution gains, by how the PRM was trained (Reward Under Attack, 2603.06621).
`python -m examples.papers.run attack --redraw`; README.md: its question, what was expected."""

from examples.papers.panels import draw_rows
from examples.papers.run import Difference, Figure, Table, by_value

AUROC, FALL = "AUROC, sound against unsound", "fall of AUROC, worst edit"


def gather(stages: dict) -> Table:
    table = Table()
    arms = by_value(stages["attack"], "training") | {"exact checker (oracle)": stages["checker"]}
    for arm, members in arms.items():
        runs = [stage.results()["auroc"] for stage in members]
        for edit in runs[0]:
            table.number(AUROC, f"{arm}: {edit}", [run[edit] for run in runs])
        table.number(FALL, arm, [run["no edit"] - run["worst edit"] for run in runs])
    return table


def draw(table):
    arms = table[table.panel == AUROC].series.str.split(": ", expand=True)
    table = table.assign(panel="AUROC, " + arms[1].replace("drop", "step dropped"), series=arms[0])
    return draw_rows(table, ["AUROC, no edit", "AUROC, step dropped", "AUROC, worst edit"])


ALL, LONG = "all edited", "all edited, 1400 updates"
ROWS = "data=jsonl data.path={rows}/train.jsonl data.validation_path={rows}/validation.jsonl"
ROWS += " data.test_path={rows}/test.jsonl"
ARMS = {
    "default": "data=chain",
    "half edited": ROWS.replace("rows", "half"),
    ALL: ROWS.replace("rows", "every"),
    LONG: ROWS.replace("rows", "every") + " steps=1400",
}
STAGES = {
    "half": "-m examples.attack --harden {out} --share 0.5 --seed {seed}",
    "every": "-m examples.attack --harden {out} --share 1 --seed {seed}",
    "prm": "train.py {training} seed={seed}",
    "attack": "-m examples.attack --checkpoint {prm} --output {out}/results.json",
    "checker": "-m examples.attack --checkpoint checker --output {out}/results.json",
}
COMPARE = [
    Difference(FALL, "default", "half edited"),
    Difference(FALL, "half edited", ALL),
    Difference(FALL, "default", LONG),
]
SWEEP = {"training": ARMS, "seed": range(8)}
FIGURES = {"attack": Figure(STAGES, gather, draw, COMPARE, SWEEP)}
