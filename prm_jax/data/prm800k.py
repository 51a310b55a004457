"""Reads PRM800K (Lightman et al. 2023, 2305.20050): human ratings of steps and of alternatives to them."""

import dataclasses
import re

from prm_jax.data.rows import field, optional, texts
from prm_jax.data.sources import relabel
from prm_jax.launch.config import expect
from prm_jax.solutions import Solution


def prm800k(row: dict, row_id: str, counts, *, neutral, after_first_error) -> list[Solution]:
    """Raw PRM800K rows of both phases without those of screening, or flat rows problem, steps, ratings. Steps
    keep their tail "# Answer", whose content also becomes `answer`. Each alternative step ends a solution of
    its own; the steps before it have labels in the row's main solution and none in its own."""
    if "ratings" in row:
        problem = field(row, "problem", str)
        branches = [(row_id, texts(row, "steps"), field(row, "ratings", list))]
    elif unusable := unusable_kind(row):
        counts[f"{unusable}_rows_dropped"] += 1
        return []
    else:
        problem = field(field(row, "question", dict), "problem", str, "question.")
        branches = read_branches(row, row_id, counts)
    label_of = {1: 1.0, 0: float(neutral == "good"), -1: 0.0, None: None}
    solutions = []
    for rank, (branch_id, steps, ratings) in enumerate(branches):
        tail = re.search(r"(?:^|\n\n)# Answer\n\n(.*)\Z", steps[-1], re.DOTALL)
        labels = tuple(map(label_of.get, ratings))  # a Solution refuses other ratings
        if neutral == "bad":  # a ternary head learns ratings, and reads 0 as good
            ratings = [-1 if rating == 0 else rating for rating in ratings]
        answer = tail and tail[1].strip()
        whole = Solution(problem, steps, labels, tuple(ratings), answer=answer, id=branch_id)
        start = len(steps) - 1 if rank else 0  # the first step that this solution supervises
        new = relabel(whole, after_first_error, counts, start)
        labels, ratings = ((None,) * start + values[start:] for values in (new.labels, new.ratings))
        if any(label is not None for label in labels):
            solutions.append(dataclasses.replace(new, labels=labels, ratings=ratings))
        else:
            counts["solutions_without_label_dropped"] += 1
    return solutions


def unusable_kind(row: dict) -> str | None:
    if field(row, "is_quality_control_question", bool):
        return "quality_control"
    if field(row, "is_initial_screening_question", bool):
        return "screening"
    reason = field(field(row, "label", dict), "finish_reason", str, "label.")
    return reason if reason in ("give_up", "bad_problem") else None


def read_branches(row: dict, row_id: str, counts) -> list[tuple]:
    """(id, steps, ratings) of a raw row's trajectory, then of each alternative to one of its steps."""
    path, others = (), []  # path and each of others: (text, rating) of every step
    for t, turn in enumerate(field(field(row, "label", dict), "steps", list, "label.")):
        inside = f"label.steps[{t}]."
        completions = field(turn, "completions", list, inside, null=True) or []
        chosen = field(turn, "chosen_completion", int, inside, null=True)
        human = optional(turn, "human_completion", dict, inside)
        read = [read_completion(value, f"{inside}completions[{c}].") for c, value in enumerate(completions)]
        is_index = chosen is None or 0 <= chosen < len(read)
        expect(is_index, f"{inside}chosen_completion", chosen, f"an index into {len(read)} completions")
        # Without a choice phase 1 continues with the labeller's own step. Without that too the row ends here,
        # and the step under review comes first (in phase 2 it equals question.pre_generated_steps[t]).
        is_over = chosen is None and human is None
        if chosen is None and human is not None:
            chosen = len(read)
            read.append(read_completion(human, f"{inside}human_completion."))
            counts["human_steps_without_rating"] += read[-1][1] is None
        others += [(f"{row_id}/{t}.{c}", (*path, step)) for c, step in enumerate(read) if c != (chosen or 0)]
        path = (*path, read[chosen or 0]) if read else path
        if is_over:
            break
    if not path:
        counts["rows_without_steps_dropped"] += 1
        return []
    return [(branch_id, *zip(*branch)) for branch_id, branch in [(row_id, path), *others]]


def read_completion(completion, inside: str) -> tuple[str, int | None]:
    """(text, rating) of a completion."""
    return field(completion, "text", str, inside), optional(completion, "rating", int, inside)
