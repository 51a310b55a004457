"""What the worst single edit of a solution gains, by how the PRM was trained (Reward Under Attack, arXiv
2603.06621).
    python examples/papers/run.py attack --redraw

Question: does training on edited solutions, labelled by the exact checker, protect a PRM against the worst
single edit of a solution (Reward Under Attack, arXiv 2603.06621), and do more edited rows, or more updates,
protect it better? An arm differs from the one before it in one thing: half of the training solutions are
added again with one random edit (hardened), all of them (all edited), and with as many updates more as there
are rows (1400 updates). All PRMs are attacked on the same 1,000 solutions, and so is the exact checker, which
shows what no verifier of lines can keep: a wrong last line that is dropped leaves right lines alone.
Expected (a109492): hardened as over five seeds of an earlier commit (of a fall of .34 a quarter gone, at .013
of AUROC without edits). All edited: at least .03 less fall than hardened, since each edit has twice as many
rows, at no less cost, since the plain rows have half of the updates. 1400 updates: the cost without edits at
most .01, and the fall at most half of the default's above the checker's own (.148). Sound solutions are
refused less with each arm.
Primary: the fall of AUROC under the worst edit, default - hardened, paired over 8 seeds, exact sign-flip
test.
"""

import numpy as np

from examples.papers.table import Difference, Figure, Table, by_value, dots, results_of

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
        runs = [{"no edit": results["before"]} | results["edits"] for results in results_of(members)]
        for key, panel in QUANTITIES.items():
            for edit in runs[0]:
                table.number(panel, f"{arm}: {SHOWN.get(edit, edit)}", [run[edit][key] for run in runs])
        before_S = np.array([run["no edit"]["auroc"] for run in runs])
        table.number("AUROC without edits", arm, before_S)
        for edit, panel in (("worst", WORST), ("worst_wrong_line", LEFT)):
            table.number(panel, arm, before_S - [run[edit]["auroc"] for run in runs])
    return table


columns = [[panel] for panel in QUANTITIES.values()]
draw = dots(columns, ends=(": no edit", ": drop", ": blank", ": worst edit"))
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
FIGURES = {"attack": Figure(STAGES, gather, draw, COMPARE, SWEEP, "cpu_devices=1")}
