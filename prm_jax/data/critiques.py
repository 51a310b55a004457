"""A step as a question to a model that writes before it judges: the prompt, and where the verdict stands in what it wrote.

A format with a section `critic` is read so (conf/format: genprm, thinkprm, r_prm, judge, lab_critic). The verdict is one token,
`good` or `bad` of the format: after the text `verdict` where the critic itself writes it, or right after a text that is
put behind the critique: `ask`, or `force` where the critic came to no verdict.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Literal

from prm_jax import InputError
from prm_jax.launch.config import Count, Natural, NotNegative, Positive, Share, expect

PLACE = re.compile(r"\{(problem|steps|before|step|n|next|output)\}")
CODE = re.compile(r"```python\n(.*?)```\n?", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class CriticFormat:
    """What a critic is asked and how its verdict is read; the texts are templates.

    {problem}, {step}: the step that is judged, {before}: those before it, {steps}: all up to it, {n}: its number from
    1, {next}: the number after it.
    """

    prompt: str  # what the user says; without `chat` of the format the whole text
    # What the user says of the second step and later ones of a conversation; null: each step is asked anew.
    next: str | None = None
    step: str = "{step}"  # a step in {before} and {steps}, {n} its number
    between: str = "\n"  # between two of them
    no_before: str = ""  # {before} of the first step
    drop: str = ""  # taken out of steps, {n} any number, with blanks at their ends: the numbers that they bring
    opening: str = ""  # the first words of the critique, written for the critic
    verdict: str = ""  # text right before the verdict
    ask: str | None = None  # asks for the verdict of a critique that has ended; null: the critic writes it
    # Asks for that of a critique that came to none; it is read at {verdict} of this text, or behind it. Null: it has none.
    force: str | None = None
    # What is put behind a critique stands in place of the first of these and all after it; with `ask`, it has ended there.
    cut: tuple[str, ...] = ()
    output: str = ""  # how {output} of a code block is shown to the critic
    max_tokens: Natural = 1024  # of a critique, of all rounds together; 0: it writes nothing and is asked at once
    temperature: NotNegative = 1.0
    top_k: Count | None = None
    top_p: Share = 1.0
    votes: Count = 1  # critiques of a step
    vote: Literal["mean", "majority"] = "mean"  # of P(good), or the share of votes with P(good) >= .5
    decision_temperature: Positive = 1.0  # log-odds of a vote are divided by it
    unscored: Share | None = None  # without `force`: P(good) of a step none of whose votes came to a verdict
    execute: bool = False  # run code blocks (critics/execution.py)
    rounds: Count = 3  # code blocks that are run in one critique at most
    rows: Count = 64  # critiques decoded at a time
    model: str | None = None  # of a critic behind a server: its name there, as server.model of conf/sampling.yaml
    # Of a critic behind a server, with chat: folder or hub name of the tokenizer that writes the turns.
    tokenizer: str | None = None

    def __post_init__(self):
        expect(self.max_tokens or self.ask is not None, "format.critic.max_tokens", 0, "above 0 where `ask` is null")
        decides = not self.max_tokens or self.force is not None or self.unscored is not None
        why = (
            "a text that asks a critique without a verdict for it, or format.critic.unscored=0.5, P(good) of such steps"
        )
        expect(decides, "format.critic.force", None, why)
        expect(not self.execute or self.output, "format.critic.output", self.output, "a text with {output} to execute")


def fill(template: str, **values) -> str:
    """The template with its places filled, once each: a problem's own braces stay as they are."""
    return PLACE.sub(lambda m: str(values.get(m[1], m[0])), template)


def messages(fmt, problem: str, steps: Sequence[str], critiques: Sequence[str] = ()) -> list[dict]:
    """The turns up to the question for the last step; of a conversation with the `critiques` of the steps before it."""
    c, n = fmt.critic, len(steps)
    if c.drop:
        own = re.escape(c.drop).replace(r"\{n\}", r"\d+")
        steps = [re.sub(own, "", step).strip() for step in steps]
    shown = [fill(c.step, step=step, n=i) for i, step in enumerate(steps, 1)]
    texts = lambda t: {"problem": problem, "step": steps[t], "n": t + 1}
    turns = [{"role": "system", "content": fmt.system}] if fmt.system is not None else []
    if c.next is None:
        both = {"before": c.between.join(shown[:-1]) if n > 1 else c.no_before, "steps": c.between.join(shown)}
        return [*turns, {"role": "user", "content": fill(c.prompt, **texts(n - 1), **both)}]
    for t in range(n):
        turns.append({"role": "user", "content": fill(c.next if t else c.prompt, **texts(t))})
        turns += [{"role": "assistant", "content": critiques[t]}] if t + 1 < n else []
    return turns


def opening(fmt, n: int) -> str:
    return fill(fmt.critic.opening, n=n)


def prompt_text(fmt, tokenizer, problem: str, steps: Sequence[str], critiques: Sequence[str] = ()) -> str:
    """All that stands before the critique of the last step, its opening included."""
    turns = messages(fmt, problem, steps, critiques)
    if not fmt.chat:
        return "".join(turn["content"] for turn in turns) + opening(fmt, len(steps))
    expect(tokenizer is not None, "format.critic.tokenizer", None, "the tokenizer whose chat template writes the turns")
    return conversation(fmt, tokenizer, turns, asks=True) + opening(fmt, len(steps))


def conversation(fmt, tokenizer, turns: list[dict], asks: bool) -> str:
    """Turns as the tokenizer's own chat template writes them; `asks`: the next turn, of the assistant, begins."""
    try:
        return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=asks)
    except Exception as error:  # no template, one that cannot be read, or one that raises at a role
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"format={fmt.name}: needs the tokenizer's chat template, which fails ({reason})") from error


def verdict_at(fmt, text: str) -> int | None:
    """Where the last verdict of a critique begins; None if there is none."""
    either = "|".join(map(re.escape, (fmt.good, fmt.bad)))
    found = [m.end() for m in re.finditer(re.escape(fmt.critic.verdict) + f"(?={either})", text)]
    return found[-1] if found else None


def cut_at(fmt, text: str, n: int) -> int | None:
    """Where the first of the texts `cut` begins in a critique of step n; None if there is none."""
    ends = [fill(end, n=n, next=n + 1) for end in fmt.critic.cut]
    return min((at for end in ends if (at := text.find(end)) >= 0), default=None)
