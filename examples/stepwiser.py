"""Trains a critic that writes: first on right critiques of labelled steps, then by agreement with labels.

python evaluate.py task=solutions data=chain hydra.run.dir=runs/solutions
python -m examples.stepwiser rows runs/solutions/solutions.jsonl critiques.jsonl hops          # or verdict
python train.py objective=lm data=jsonl data.path=critiques.jsonl data.duplicates=keep batch.tokens=128
python -m examples.stepwiser policy=CRITIC_RUN sampling.max_tokens=24 update.clip_high=0.28

rows: a critique is the step's operations done one by one and the verdict (hops), or the verdict alone. The
last command has the keys of `python -m prm_jax.rl`: StepWiser (arXiv 2508.19229, 3.3). A problem is a step of
a labelled solution of `data`, and a critique is right where its verdict is the label. Right and wrong steps
are equally many; surplus ones are left out.
"""

import sys
from collections.abc import Iterator, Sequence

import numpy as np

from prm_jax.data import sources
from prm_jax.data.critiques import prompt_text, verdict_at
from prm_jax.data.rows import write_rows
from prm_jax.data.splits import load_splits
from prm_jax.formats import read_format
from prm_jax.generate.samples import policy_pool
from prm_jax.launch import cli
from prm_jax.launch.config import expect
from prm_jax.rl.__main__ import Trainer, train_policy
from prm_jax.rl.problems import Problems
from prm_jax.solutions import Solution
from prm_jax.tasks import chain

FORMAT = read_format("lab_critic")  # a critic that writes its verdict and is asked each step anew


def labelled_prompts(s: Solution) -> Iterator[tuple[int, str, bool]]:
    """(place of a labelled step, the prompt that asks for its critique, whether it is right)."""
    for t, label in enumerate(s.labels or ()):
        if label is not None:
            yield t, prompt_text(FORMAT, None, s.problem, s.steps[: t + 1]), label >= 0.5


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
    for t, prompt, is_right in labelled_prompts(s):
        hops = operations[t] if kind == "hops" else []
        yield {"id": f"{s.id}/{t}", "prompt": prompt, "completions": [*hops, "Yes" if is_right else "No"]}


def label_by_prompt(solutions: list[Solution]) -> dict[str, bool]:
    return {prompt: is_right for s in solutions for _, prompt, is_right in labelled_prompts(s)}


def balanced(labels: dict[str, bool], seed: int) -> list[str]:
    """As many prompts of right steps as of wrong ones, in turn."""
    rng = np.random.default_rng(seed)
    right = [text for text, is_right in labels.items() if is_right]
    wrong = [text for text, is_right in labels.items() if not is_right]
    n = min(len(right), len(wrong))
    print(f"steps       {len(right):,} right and {len(wrong):,} wrong ones to judge, {n:,} of each kept")
    expect(n, "data.solutions", f"{len(right)} right, {len(wrong)} wrong steps", "some of each")
    pairs = zip(rng.permutation(right)[:n].tolist(), rng.permutation(wrong)[:n].tolist(), strict=True)
    return [text for pair in pairs for text in pair]


def verdict(r) -> bool | None:
    """Whether a critique says good; None where it comes to no verdict."""
    text = "\n".join(r.steps)
    start = verdict_at(FORMAT, text)
    return None if start is None else text.startswith(FORMAT.good, start)


def critic_problems(cfg, data_cfg) -> Problems:
    splits = load_splits(data_cfg, cfg.seed, policy_pool).splits
    train, held_out = label_by_prompt(splits["train"]), label_by_prompt(splits["validation"])
    labels = train | held_out
    held_out = balanced(held_out, cfg.seed)[: cfg.eval.problems]
    return Problems(balanced(train, cfg.seed), held_out, lambda r: verdict(r) is labels[r.problem])


class CriticTrainer(Trainer):
    def diagnose(self, rollouts, reward):
        """Adds the shares of critiques that say good (half of them should) and that come to no verdict."""
        verdicts = [verdict(r) for r in rollouts]
        says_good = verdicts.count(True) / len(verdicts)
        no_verdict = verdicts.count(None) / len(verdicts)
        return super().diagnose(rollouts, reward) | {"says_good": says_good, "no_verdict": no_verdict}


@cli.command("rl")
def main(cfg):
    return train_policy(cfg, make_problems=critic_problems, trainer=CriticTrainer)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rows"]:
        source, target, kind = sys.argv[2:]
        solutions, _ = sources.load(source, "native")
        write_rows(target, (row for s in solutions for row in critiques(s, kind)))
    else:
        main()
