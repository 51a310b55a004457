r"""What a text states: its final answer.

`extract` is the one place that decides; sampling, pools, labels, search and RL ask it. grading.py compares.
"""

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from prm_jax.data.numbers import DECIMAL, DIGITS, UNIT, as_number, normal
from prm_jax.data.thoughts import THOUGHT, THOUGHT_END, THOUGHT_START


def extract(text: str, numbers: bool = False) -> str | None:
    r"""The final answer that a solution states, without `$`, bold marks and final periods, or None.

    Nothing inside a thought is stated: only what stands behind the last `</think>` is read, and a thought
    that never ends states nothing (TRL's reasoning_accuracy_reward). Of that the first kind that is not
    empty, and the last of that kind:
      1. `<answer>x</answer>` (the prompt of DeepSeek-R1-Zero); inside, the kinds below are read first;
      2. `\boxed{x}`, closed (MATH); boxes that "and", "or" or a comma joins are one answer (Math-Verify);
      3. `#### x` (GSM8K), x the last line or a number alone on its line, not a Markdown heading;
      4. "answer is x", "Answer: x" (Minerva) or "# Answer" above x (PRM800K), up to the end of x's
         sentence, formula or line;
      5. with `numbers`, for a checker of numbers: the last number (flexible-extract of GSM8K in
         lm-evaluation-harness).
    Takes linear time."""
    if ends := list(THOUGHT_END.finditer(text)):
        text = text[ends[-1].end() :]
    if THOUGHT_START.search(text):
        return None
    kinds = [tagged_answers, boxed_answers, hashed_answers, stated_answers]
    if numbers:
        kinds.append(mentioned_numbers)
    for kind in kinds:
        for answer in kind(text):
            if bare := bare_answer(answer):
                return bare
    return None


SOLUTION = re.compile(rf"\n|####|\\boxed|</{THOUGHT}>|<answer>")  # marks of a whole solution


def read_gold(text: str | None) -> str | None:
    """The gold answer in a file's field, also if that is a whole solution: GSM8K's lines and `#### 72`; None
    if the field is blank."""
    if text is None or not text.strip():
        return None
    return SOLUTION.search(text) and extract(text) or text


ANSWER_TAG = re.compile(r"<(?P<closing>/?)answer>", re.IGNORECASE)


def tagged_answers(text: str) -> Iterator[str]:
    """Yields the contents of `<answer>` tags, or what these state in turn, the last first."""
    tags = list(ANSWER_TAG.finditer(text))
    for start, end in reversed(list(itertools.pairwise(tags))):
        if end["closing"] and not start["closing"]:
            inside = text[start.end() : end.start()]
            yield extract(inside) or inside


class Box(NamedTuple):
    start: int  # of \boxed
    end: int  # of its content
    content: str  # empty if it is not closed


BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?P<bare>[^\s{}$\\]+))")  # MATH also writes \boxed 5
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # `\{` is text, no brace


def find_boxes(text: str) -> list[Box]:
    """All boxes in the order in which they open."""
    closing, open_braces = {}, []
    for brace in BRACE.finditer(text):
        if brace[0] == "{":
            open_braces.append(brace.end())
        elif brace[0] == "}" and open_braces:
            closing[open_braces.pop()] = brace.start()
    boxes = []
    for match in BOX.finditer(text):
        end = closing.get(match.end(), match.end())
        boxes.append(Box(match.start(), end, match["bare"] or text[match.end() : end]))
    return boxes


def boxed_answers(text: str) -> Iterator[str]:
    """Yields the contents of the boxes, the last to open first; those that form one answer as `x, y`."""
    boxes = find_boxes(text)
    while boxes:
        box = boxes.pop()
        parts = [bare_answer(box.content)]
        while boxes and are_joined(text, boxes[-1], box):
            box = boxes.pop()
            parts.insert(0, bare_answer(box.content))
        # \boxed{1/2} or \boxed{0.5} is one answer twice, as which the last counts.
        values = ((as_number(part), part) for part in parts if part)
        distinct = {normal(part) if value is None else value: part for value, part in values}
        yield ", ".join(distinct.values())


LONGEST_JOINT = 41  # characters between two boxes of one answer, such as `}\), and \(x = `
# Between them, without these marks of formulas, stands `,` or `and` or `,or` and maybe `x=`.
MARKS = re.compile(r"\\text|\\q?quad|\\[,;:!]|[\s$\\()\[\]{}]")
JOINT = re.compile(r"(?:[,;]|,?and|,?(?P<alternative>or))(?:[a-zA-Z]=)?")


def are_joined(text: str, box: Box, following: Box) -> bool:
    """Whether two boxes are parts of one answer; `180 km or 180,000 m` is one answer twice."""
    if not 0 <= following.start - box.end <= LONGEST_JOINT:
        return False
    joint = JOINT.fullmatch(MARKS.sub("", text[box.end : following.start]))
    return joint is not None and not (joint["alternative"] and UNIT.search(box.content))


# GSM8K's line `#### 1,234`: a number alone behind the marks.
HASHED_NUMBER = re.compile(r"####([-+$\\ \t]*+[\d.,/]+\\?%?[ \t]*)$", re.MULTILINE)


def hashed_answers(text: str) -> Iterator[str]:
    """Yields what stands behind `####` in the last line, or the answer that this states, then such numbers of
    other lines, the last first."""
    before, hashes, answer = text.rstrip().rpartition("\n")[2].rpartition("####")
    if hashes and not before.endswith("#") and "#" not in answer:
        yield next(stated_answers(answer), answer)
    yield from (match[1] for match in reversed(list(HASHED_NUMBER.finditer(text))))


WORDS = r"\banswer(?:\s+is\b|\**\s*:)"  # "the answer is", "**Answer**:"
# What follows these words or the heading "# Answer", maybe in a formula of its own, up to the line end.
STATED = re.compile(
    rf"(?:{WORDS}|^#+\s*answer\b)[\s:*]*(?:\$\$\s*|\\\[\s*)?(.+)", re.IGNORECASE | re.MULTILINE
)
STATED_END = re.compile(r"\.\s|\\[)\]]|(?<=\S)\*\*(?!\w)")  # the sentence, the formula or the bold type ends
FORMULA_AND_UNIT = re.compile(r"\s*\$([^$]+)\$[a-zA-Z\s]*\.?")  # `$\frac{\pi}{2}$ radians`; not `$5 or $6`


def stated_answers(text: str) -> Iterator[str]:
    """Yields the answers that are stated in words, the last first."""
    for match in reversed(list(STATED.finditer(text))):
        answer = STATED_END.split(match[1], 1)[0]
        # Final Answer: The final answer is $5$. I hope it is correct.
        answer = re.split(WORDS, answer, flags=re.IGNORECASE)[-1] or answer
        formula = FORMULA_AND_UNIT.fullmatch(answer)
        yield formula[1] if formula else answer


# A number, mixed number or fraction, maybe with a sign and a $, that is no part of a word or another number.
MENTIONED = re.compile(
    rf"(?<![\w.,])(?:-\\?\$?)?(?:(?:\d+ ?)?\\[dt]?frac\{{-?{DECIMAL}\}}\{{-?{DECIMAL}\}}"
    rf"|(?:\d+ (?=\d+/\d))?{DECIMAL}(?:/{DECIMAL})?)(?!\w|[.,/]\d)"
)


def mentioned_numbers(text: str) -> Iterator[str]:
    """Yields the numbers of a text, the last first."""
    for pattern, new in DIGITS:
        text = re.sub(pattern, new, text)
    return reversed(MENTIONED.findall(text))


# White space, `$`, bold marks, `\[ \]` and `\( \)` around an answer, and the period behind it.
BEFORE = re.compile(r"(?:\s|\$|\*\*|\\[(\[])*+")
AFTER = re.compile(r"(?:\s|(?<!\\)\$|\*\*|\\[)\]]|(?<!\\right)\.)\Z")


def bare_answer(answer: str) -> str:
    """The answer without what stands around it, by BEFORE and AFTER."""
    start = BEFORE.match(answer).end()
    end = len(answer)
    while match := AFTER.search(answer[max(start, end - 7) : end]):  # 7: `\right.`
        end -= len(match[0])
    return answer[start:end]
