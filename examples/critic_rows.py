"""Writes right critiques of labelled steps, on which a language model learns to judge in words.

python evaluate.py task=solutions data=chain hydra.run.dir=runs/solutions
python -m examples.critic_rows runs/solutions/solutions.jsonl critiques.jsonl hops          # or verdict
python train.py objective=lm data=jsonl data.path=critiques.jsonl data.duplicates=keep batch.tokens=128

A critique is the step's operations done one by one and the verdict (hops), or the verdict alone."""

import sys
from collections.abc import Iterator, Sequence

from prm_jax.critics.prompts import prompt_text, with_critic
from prm_jax.data import sources
from prm_jax.data.writing import write_rows
from prm_jax.formats import read_format
from prm_jax.solutions import Solution
from prm_jax.tasks import chain

FORMAT = with_critic(read_format("lab_critic"))


def written_out(problem: str, steps: Sequence[str]) -> list[list[str]]:
    """For each line the right lines of its operations, which show what a merged line hides. A step that is
    not a line counts as the problem's next operation; one after no line has none."""
    value, operations, modulus = chain.parse_problem(problem)
    done, written = 0, []
    for step, (_, now) in zip(steps, chain.follow(problem, steps), strict=True):
        _, line, _ = chain.parse_line(step) or (0, operations[:1], 0)
        lines = []
        if value is not None:
            for name, operand in operations[done : done + len(line)]:
                result = chain.compute(value, ((name, operand),), modulus)
                lines.append(f"{value}{name}{operand}={result}")
                value = result
        written.append(lines)
        value, done = now
    return written


def critiques(s: Solution, kind: str) -> Iterator[dict]:
    """Native rows of a language model, one a labelled step: its prompt and the right critique."""
    operations = written_out(s.problem, s.steps)
    for t, label in enumerate(s.labels or ()):
        if label is not None:
            prompt = prompt_text(FORMAT, None, s.problem, s.steps[: t + 1])
            hops = operations[t] if kind == "hops" else []
            verdict = "Yes" if label >= 0.5 else "No"
            yield {"id": f"{s.id}/{t}", "prompt": prompt, "completions": [*hops, verdict]}


if __name__ == "__main__":
    if sys.argv[3:] not in (["hops"], ["verdict"]):
        sys.exit(__doc__)
    source, target, kind = sys.argv[1:]
    solutions, _ = sources.load(source, "native")
    write_rows(target, (row for s in solutions for row in critiques(s, kind)))
