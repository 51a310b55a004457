"""A Hydra command with the keys of `python -m prm_jax.rl`: trains a critic that writes by agreement with
step labels.

python -m examples.stepwiser policy=CRITIC_RUN sampling.max_tokens=24 update.clip_high=0.28

StepWiser (arXiv 2508.19229, 3.3): a problem is a step of a labelled solution, a response is a critique,
and it is right where its verdict is the label. Right and wrong steps are equally many; surplus ones are
left out. The solutions are those of `data`, the critic's format is FORMAT, and policy names a language
model that writes critiques already.
"""

import numpy as np

from prm_jax.data.critiques import prompt_text, verdict_at
from prm_jax.data.splits import load_splits
from prm_jax.formats import read_format
from prm_jax.generate.samples import policy_pool
from prm_jax.launch import cli
from prm_jax.launch.config import expect
from prm_jax.rl.__main__ import Trainer, train_policy
from prm_jax.rl.problems import Problems

FORMAT = read_format("lab_critic")  # a critic that writes its verdict and is asked each step anew


def label_by_prompt(solutions) -> dict[str, bool]:
    """{the prompt that asks for a step's critique: whether the step is right}."""
    labels = {}
    for s in solutions:
        for t, label in enumerate(s.labels):
            if label is not None:
                labels[prompt_text(FORMAT, None, s.problem, s.steps[: t + 1])] = label >= 0.5
    return labels


def balanced(labels: dict[str, bool], seed: int) -> list[str]:
    """As many prompts of right steps as of wrong ones, in turn."""
    rng = np.random.default_rng(seed)
    right = [text for text, is_right in labels.items() if is_right]
    wrong = [text for text, is_right in labels.items() if not is_right]
    n = min(len(right), len(wrong))
    print(f"steps       {len(right):,} right and {len(wrong):,} wrong ones to judge, {n:,} of each kept")
    expect(n, "data.solutions", f"{len(right)} right, {len(wrong)} wrong steps", "some of each")
    right = [right[i] for i in rng.permutation(len(right))[:n]]
    wrong = [wrong[i] for i in rng.permutation(len(wrong))[:n]]
    return [text for pair in zip(right, wrong, strict=True) for text in pair]


def verdict(r) -> bool | None:
    """Whether a critique says good; None where it comes to no verdict."""
    text = "\n".join(r.steps)
    start = verdict_at(FORMAT, text)
    return None if start is None else text.startswith(FORMAT.good, start)


def critic_problems(cfg, data_cfg) -> Problems:
    splits = load_splits(data_cfg, cfg.seed, policy_pool).splits
    train = label_by_prompt(splits["train"])
    held_out = label_by_prompt(splits["validation"])
    labels = train | held_out
    return Problems(
        balanced(train, cfg.seed),
        balanced(held_out, cfg.seed)[: cfg.eval.problems],
        lambda r: verdict(r) is labels[r.problem],
    )


class CriticTrainer(Trainer):
    def diagnose(self, rollouts, scores):
        """Adds the shares of critiques that say good (half of them should) and that come to no verdict."""
        verdicts = [verdict(r) for r in rollouts]
        says_good = verdicts.count(True) / len(verdicts)
        no_verdict = verdicts.count(None) / len(verdicts)
        return super().diagnose(rollouts, scores) | {"says_good": says_good, "no_verdict": no_verdict}


@cli.command("rl")
def main(cfg):
    """Train a critic by agreement with step labels."""
    return train_policy(cfg, make_problems=critic_problems, trainer=CriticTrainer)


if __name__ == "__main__":
    main()
