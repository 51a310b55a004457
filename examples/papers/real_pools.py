"""Seven released reward models on one real pool, by their stored step scores (StrictPRMBench).

python -m examples.papers.run real_pools --redraw       # README.md: its question, what was expected
"""

import os
from functools import partial

from examples.papers.run import Figure, Table, draw_panels

# {name of the scores: (its model, the rule that StrictPRMBench takes from its authors)}
MODELS = {
    "qwen_prm": ("Qwen2.5-Math-PRM-7B", "prod"),
    "skywork_prm": ("Skywork-o1-Open-PRM-7B", "mean"),
    "skywork_prm_1_5b": ("Skywork-o1-Open-PRM-1.5B", "mean"),
    "rlhflow_prm": ("RLHFlow Llama3.1-8B-PRM-Deepseek", "mean"),
    "math_shepherd": ("Math-Shepherd-Mistral-7B-PRM", "min"),
    "internlm2_7b_reward": ("InternLM2-7B-Reward (outcome)", "last"),
    "internlm2_1_8b_reward": ("InternLM2-1.8B-Reward (outcome)", "last"),
}
LEAD = "best of 32 minus majority"
ECE = "ECE of solution scores"


def gather(stages: dict) -> Table:
    """One run: intervals are bootstraps over problems, of differences paired by problem."""
    table = Table()
    for stage in stages["pool"]:
        results, how = stage.results(), stage.sweep["aggregator"]
        for scorer, (model, rule) in MODELS.items():
            series = f"{model}, {how}" + (" (authors')" if rule == how else "")
            for item in results["differences"]:
                if (item["a"], item["b"]) == (f"{scorer}.{how}.best_of_n", "majority"):
                    table.number(LEAD, series, [item["difference"]])
                    table[-1]["low"], table[-1]["high"] = item["interval"]
                    table.number(f"{LEAD}: p", series, [item["p"]])
            if how in results["calibration"][scorer]["solutions"]:
                table.number(ECE, series, [results["calibration"][scorer]["solutions"][how]["ece"]])
    return table


draw = partial(draw_panels, names=[LEAD, ECE])
DATA = os.environ.get("PRM_JAX_DATA", "../shared/data")
FILE = f"{DATA}/bon_strictprmbench/gsm8k_qwen2.5-7b-instruct_n32.jsonl.gz"
STAGES = {"pool": "evaluate.py task=best_of_n aggregator={aggregator} input=" + FILE}
SWEEP = {"aggregator": ["min", "prod", "mean", "last"]}
FIGURES = {"real_pools": Figure(STAGES, gather, draw, sweep=SWEEP)}
