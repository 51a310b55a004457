"""Published numbers of ProcessBench and PRMBench, with their sources: tables in per cent, given as shares of 1."""


def shares(names, table: dict) -> dict:
    """{system: {name: value}}."""
    return {system: {name: x / 100 for name, x in zip(names, row, strict=True)} for system, row in table.items()}


# F1. GenPRM: majority of 8 critiques.
PROCESSBENCH_F1 = {
    "Math-Shepherd-7B": (47.9, 29.5, 24.8, 23.8),
    "RLHFlow-Mistral-8B": (50.4, 33.4, 13.8, 15.8),
    "RLHFlow-Deepseek-8B": (38.8, 33.8, 16.9, 16.9),
    "Skywork-1.5B": (59.0, 48.0, 19.3, 19.2),
    "Skywork-7B": (70.8, 53.6, 22.9, 21.0),
    "EurusPRM-Stage1": (44.3, 35.6, 21.7, 23.1),
    "EurusPRM-Stage2": (47.3, 35.7, 21.2, 20.9),
    "Qwen2.5-Math-7B-Math-Shepherd": (62.5, 31.6, 13.7, 7.7),
    "Qwen2.5-Math-7B-PRM800K": (68.2, 62.6, 50.7, 44.3),
    "Qwen2.5-Math-7B-Instruct-PRM-0.2 (TRL)": (70.8, 62.6, 47.1, 48.0),
    "R-PRM-7B-DPO": (80.7, 76.9, 63.8, 60.1),
    "Qwen2.5-Math-PRM-7B": (82.4, 77.6, 67.5, 66.3),
    "Qwen2.5-Math-PRM-72B": (87.3, 80.6, 74.3, 71.1),
    "GenPRM-7B": (81.0, 85.7, 78.4, 76.8),
    "GPT-4o (critic)": (79.2, 63.6, 51.4, 53.5),
    "o1-mini (critic)": (93.2, 88.9, 87.2, 82.4),
}
PROCESSBENCH = {
    "source": "Qwen2.5-Math-PRM paper (arXiv 2501.07301); R-PRM and GenPRM by their own papers, "
    "TRL's PRM-0.2 by its model card, critics by ProcessBench (arXiv 2412.06559)",
    "f1": shares(("gsm8k", "math", "olympiadbench", "omnimath"), PROCESSBENCH_F1),
}

# The paper's three groups (arXiv 2501.03124, section 3); `redundency` is the data's own spelling.
PRMBENCH_GROUPS = {
    "simplicity": ("redundency", "circular"),
    "soundness": ("counterfactual", "step_contradiction", "domain_inconsistency", "confidence"),
    "sensitivity": ("missing_condition", "deception", "multi_solutions"),
}
# Socratic-PRMBench's six patterns of reasoning (arXiv 2505.23474, section 3), by the data's names: `repeat` is the paper's transformation.
SOCRATIC_GROUPS = {
    "transformation": ("repeat_inconsistency", "repeat_counterfactual"),
    "decomposition": ("decomposition_unsoundness", "decomposition_redundancy", "decomposition_incompleteness"),
    "regather": ("regather_imprecision", "regather_redundancy", "regather_incompleteness"),
    "deduction": (
        "premise_unsoundness", "premise_incompleteness", "premise_redundancy",
        "conclusion_invalidity", "conclusion_inconsistency", "conclusion_counterfactual",
    ),
    "verification": ("detection_error", "correction_error"),
    "integration": ("integration_inconsistency", "integration_incompleteness", "integration_redundancy", "integration_unsoundness"),
}  # fmt: skip
PRMBENCH_CLASSES = tuple(name for names in PRMBENCH_GROUPS.values() for name in names)
# PRMScore: overall, then by class. Skywork is left out: its adapter there reads differences of scores behind another
# model's marks.
PRMBENCH_SCORE = {
    "Math-Shepherd-7B": (47.0, 44.0, 50.3, 49.4, 44.5, 41.3, 47.7, 47.2, 48.6, 86.1),
    "RLHFlow-Mistral-8B": (54.4, 46.1, 47.3, 56.6, 55.1, 54.4, 63.8, 51.5, 56.2, 97.9),
    "ReasonEval-7B": (60.1, 61.0, 50.1, 62.1, 65.9, 61.5, 66.0, 55.7, 58.0, 99.5),
    "Qwen2.5-Math-PRM-7B": (65.5, 49.0, 55.1, 71.8, 67.3, 66.3, 78.5, 57.6, 69.1, 99.7),
    "Qwen2.5-Math-PRM-72B": (68.2, 50.4, 58.8, 73.7, 71.1, 72.2, 78.6, 60.3, 71.2, 99.4),
    "GPT-4o (critic)": (66.8, 57.0, 62.4, 72.0, 69.7, 70.7, 71.1, 62.5, 65.7, 99.2),
}
PRMBENCH = {
    "source": "PRMBench's leaderboard, all 6,216 rows (ssmisya/PRMBench, README at f4fee62, February 2025)",
    "prmscore": shares(("overall", *PRMBENCH_CLASSES), PRMBENCH_SCORE),
}
