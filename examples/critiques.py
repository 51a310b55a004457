"""A script that writes the training rows of a critic of data=chain (format=lab_critic): right critiques of
labelled steps.

    python evaluate.py task=solutions data=chain hydra.run.dir=runs/solutions
    python -m examples.critiques runs/solutions/solutions.jsonl critiques.jsonl hops      # or verdict
    python train.py objective=lm data=jsonl data.path=critiques.jsonl data.duplicates=keep batch.tokens=128

hops: the step's operations done one by one, then the verdict; verdict: that alone.
"""

import sys
from collections.abc import Iterator

from prm_jax import tasks
from prm_jax.data import sources
from prm_jax.data.critiques import prompt_text
from prm_jax.data.rows import write_rows
from prm_jax.formats import read_format
from prm_jax.solutions import Solution


def critiques(s: Solution, kind: str) -> Iterator[dict]:
    """Native rows of a language model, one a labelled step: the prompt of format=lab_critic and the right
    critique."""
    labels, fmt = s.labels or (None,) * len(s.steps), read_format("lab_critic")
    operations = tasks.find_task(s.task).written_out(s.problem, s.steps)
    for t, (label, hops) in enumerate(zip(labels, operations, strict=True)):
        if label is not None:
            verdict = "Yes" if label >= 0.5 else "No"
            prompt = prompt_text(fmt, None, s.problem, s.steps[: t + 1])
            completions = [*hops, verdict] if kind == "hops" else [verdict]
            yield {"id": f"{s.id}/{t}", "prompt": prompt, "completions": completions}


def main():
    source, target, kind = sys.argv[1:]
    solutions, _ = sources.load(source, kind="native")
    write_rows(target, (row for s in solutions for row in critiques(s, kind)))


if __name__ == "__main__":
    main()
