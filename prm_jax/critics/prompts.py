"""Prompts of models that write before they judge a step, and the place of the verdict in what they wrote.

Their formats have a section `critic` (such as conf/format/genprm.yaml). The verdict is one token, `good` or
`bad`. It follows the text `verdict` if the critic writes it, else the text `force`, which is appended to the
critique.
"""

import dataclasses
import re
from collections.abc import Sequence

from prm_jax.formats import Format, conversation
from prm_jax.launch.config import Count, Natural, NotNegative, Share, expect, parse

PLACE = re.compile(r"\{(problem|steps|before|step|n|next)\}")


@dataclasses.dataclass(frozen=True)
class CriticFormat:
    """A critic's templates, and how its verdict is read. {step} is the step to judge, {before} those
    before it, {steps} all up to it, {n} its number from 1, {next} n + 1."""

    prompt: str  # the user's message; without the format's `chat` the whole text
    next: str | None = None  # that of later steps of a conversation; null: each step has its own prompt
    step: str = "{step}"  # a step in {before} and {steps}, {n} its number; each is a line
    drop: str = ""  # removed from steps with the white space at their ends: numbers that they bring
    opening: str = ""  # the critique's first words, written for the critic
    verdict: str | None = ""  # text right before the verdict; null: it writes none and is always asked
    force: str | None = None  # asks a critique without a verdict for it, which is read at {verdict} or after
    cut: tuple[str, ...] = ()  # `force` replaces the first of these texts and all after it
    max_tokens: Natural = 1024  # of a critique; 0: it writes nothing and is asked at once
    temperature: NotNegative = 1.0
    top_k: Count | None = None
    top_p: Share = 1.0
    votes: Count = 1  # critiques of a step, whose mean P(good) counts
    unscored: Share | None = None  # without `force`: P(good) of a step without any verdict
    rows: Count = 64  # critiques decoded at a time
    model: str | None = None  # behind a server: its name there, as server.model of conf/sampling.yaml
    tokenizer: str | None = None  # behind a server with chat: the folder of that which writes the turns

    def __post_init__(self):
        writes = self.max_tokens and self.verdict is not None
        decides = self.force is not None or writes and self.unscored is not None
        expect(decides, "format.critic.force", None, "a text, or format.critic.unscored=P")


def with_critic(fmt: Format) -> Format:
    """The format with the keys of its critic as a CriticFormat."""
    return dataclasses.replace(fmt, critic=parse(fmt.critic, CriticFormat, "format.critic"))


def fill(template: str, **values) -> str:
    """The template with its places filled; braces in the values stay."""
    return PLACE.sub(lambda m: str(values.get(m[1], m[0])), template)


def messages(fmt, problem: str, steps: Sequence[str], critiques: Sequence[str] = ()) -> list[dict]:
    """The turns up to the question about the last step; a conversation holds the earlier `critiques`."""
    c, n = fmt.critic, len(steps)
    if c.drop:
        drop = re.escape(c.drop).replace(r"\{n\}", r"\d+")
        steps = [re.sub(drop, "", step).strip() for step in steps]
    turns = [{"role": "system", "content": fmt.system}] if fmt.system is not None else []
    written = [fill(c.step, step=step, n=i) for i, step in enumerate(steps, 1)]
    for t in [n] if c.next is None else range(1, n + 1):
        template = c.prompt if c.next is None or t == 1 else c.next
        before, up_to = "\n".join(written[: t - 1]), "\n".join(written[:t])
        asked = fill(template, problem=problem, step=steps[t - 1], n=t, before=before, steps=up_to)
        turns.append({"role": "user", "content": asked})
        if t < n:
            turns.append({"role": "assistant", "content": critiques[t - 1]})
    return turns


def prompt_text(fmt, tokenizer, problem: str, steps: Sequence[str], critiques: Sequence[str] = ()) -> str:
    """The text before the critique of the last step, with its opening."""
    turns = messages(fmt, problem, steps, critiques)
    opening = fill(fmt.critic.opening, n=len(steps))
    if not fmt.chat:
        return "".join(turn["content"] for turn in turns) + opening
    expected = "the folder of the tokenizer whose chat template writes the turns"
    expect(tokenizer is not None, "format.critic.tokenizer", None, expected)
    return conversation(fmt, tokenizer, turns, asks=True) + opening


def verdict_at(fmt, text: str) -> int | None:
    """The start of a critique's last verdict, None if there is none."""
    either = "|".join(map(re.escape, (fmt.good, fmt.bad)))
    starts = [m.end() for m in re.finditer(re.escape(fmt.critic.verdict) + f"(?={either})", text)]
    return starts[-1] if starts else None


def cut_at(fmt, text: str, n: int) -> int | None:
    """The start of the first of the texts `cut` in a critique of step n, None if there is none."""
    starts = [text.find(fill(cut, n=n, next=n + 1)) for cut in fmt.critic.cut]
    return min((start for start in starts if start >= 0), default=None)
