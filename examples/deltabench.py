r"""A reader of your own: DeltaBench, long traces of o1-like models in sections that people judged one by one.

    python evaluate.py task=steps checkpoint=RUN data=files data.name=examples/deltabench.py:deltabench \
        data.path=FILE

A reader is a function (row, its id, counts) -> solutions; its keyword-only arguments are the options of
conf/data/files.yaml that it takes.
"""

from prm_jax.data.rows import field, optional, require
from prm_jax.solutions import Solution


def deltabench(row: dict, row_id: str, counts) -> list[Solution]:
    """DeltaBench (He et al. 2025, arXiv 2502.19361; OpenStellarTeam/DeltaBench, the nine example rows at
    a560619 and evaluation.py at 6b67c64; no row of the whole file was available): question, sections of a
    long trace (content, or section), reason_error_section_numbers and reason_unuseful_section_numbers
    (from 1; both are errors, as in that script), sections_labeled_info (reasoning_correctness, empty for
    sections that nobody judged), final_correct (0, 1). A section is judged by itself: one that rests on an
    earlier error is no new error. Without labeled info all up to the last error are judged."""
    errors, steps = set(), []
    for index, section in enumerate(field(row, "sections", list)):
        require(isinstance(section, dict), f"sections[{index}]", section, "an object")
        name = "content" if "content" in section else "section"
        steps.append(field(section, name, str, f"sections[{index}]."))
    for name in ("reason_error_section_numbers", "reason_unuseful_section_numbers"):
        for index, number in enumerate(field(row, name, list)):
            is_number = type(number) is int and number >= 1
            require(is_number, f"{name}[{index}]", number, "a section number from 1")
            errors.add(number)
    counts["error_sections_out_of_range"] += sum(number > len(steps) for number in errors)
    numbers = range(1, len(steps) + 1)
    judged = {n for n in numbers if n <= max(errors, default=0)}
    if (labeled := optional(row, "sections_labeled_info", list)) is not None:
        for index, info in enumerate(labeled):
            require(isinstance(info, dict), f"sections_labeled_info[{index}]", info, "an object")
            field(info, "section_number", int, f"sections_labeled_info[{index}].")
        shown = [info for info in labeled if info.get("reasoning_correctness") not in (None, "")]
        judged = {info["section_number"] for info in shown}
    labels = tuple(0.0 if n in errors else 1.0 if n in judged else None for n in numbers)
    outcome = optional(row, "final_correct", int)
    require(outcome in (0, 1, None), "final_correct", outcome, "0, 1 or null")
    outcome = None if outcome is None else float(outcome)
    return [Solution(field(row, "question", str), tuple(steps), labels, outcome=outcome, id=row_id)]
