"""What the worst edit of a solution gains, by how the PRM was trained (Reward Under Attack, 2603.06621).

python -m examples.papers.run attack --redraw       # README.md: its question, what was expected
"""

import numpy as np

from examples.papers.run import Difference, Figure, Table, by_value, draw_panels

QUANTITIES = {
    "auroc": "AUROC, sound against unsound",
    "unsound_accepted": "unsound solutions above .5",
    "sound_refused": "sound solutions below .5",
}
SHOWN = {"worst": "worst edit", "worst_wrong_line": "worst, error left"}  # of all edits
WORST, LEFT = "fall of AUROC, worst edit", "fall of AUROC, a wrong line left"


def gather(stages: dict) -> Table:
    table, arms = Table(), by_value(stages["attack"], "training") | {"the exact checker": stages["checker"]}
    for arm, members in arms.items():
        results = [stage.results() for stage in members]
        runs = [{"no edit": one["before"]} | one["edits"] for one in results]
        for key, panel in QUANTITIES.items():
            for edit in runs[0]:
                table.number(panel, f"{arm}: {SHOWN.get(edit, edit)}", [run[edit][key] for run in runs])
        before_S = np.array([run["no edit"]["auroc"] for run in runs])
        table.number("AUROC without edits", arm, before_S)
        for edit, panel in (("worst", WORST), ("worst_wrong_line", LEFT)):
            table.number(panel, arm, before_S - [run[edit]["auroc"] for run in runs])
    return table


def draw(table):
    shown = table.series.str.endswith((": no edit", ": drop", ": blank", ": worst edit"))
    return draw_panels(table[shown], list(QUANTITIES.values()))


ALL, LONG = "all edited", "all edited (1400 updates)"
ROWS = "data=jsonl data.path={rows}/train.jsonl data.validation_path={rows}/validation.jsonl"
ROWS += " data.test_path={rows}/test.jsonl"
ARMS = {
    "default": "data=chain",
    "hardened": ROWS.replace("rows", "half"),
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
PAIRS = [("default", "hardened"), ("hardened", ALL), (ALL, LONG), ("default", LONG)]
COMPARE = [Difference(panel, *pair) for panel in (WORST, LEFT) for pair in PAIRS]
SWEEP = {"training": ARMS, "seed": range(8)}
FIGURES = {"attack": Figure(STAGES, gather, draw, COMPARE, SWEEP)}
