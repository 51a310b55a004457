"""The bench's jobs as they are done in PyTorch on CPU: what our speed is measured against.

`python -P prm_jax/bench/peers.py FOLDER` does the job of FOLDER/job.json with the model that hf.save wrote there, and writes
FOLDER/result.json. It is a process of its own and imports nothing of ours, since its interpreter may be another one: TRL
(1.13.0 was the last release with a PRMTrainer) is no dependency. bench_models.py says what a job and a result hold.

Training takes the solutions of a step in one batch, padded to its longest, as PRMTrainer does; `torch` is a plain loop,
`trl` PRMTrainer itself. Scoring sorts by length and pads per batch of 32.
"""

import contextlib
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer, TrainerCallback

SCORING_BATCH = 32


def load(folder: Path):
    """The model of an export of ours, in float32."""
    return AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32)


def autocast(dtype: str):
    on = dtype == "bfloat16"
    return torch.autocast("cpu", torch.bfloat16) if on else contextlib.nullcontext()


def padded(rows: list[list[int]]):
    """(ids_BL, mask_BL), right-padded to the longest."""
    ids_BL = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    mask_BL = torch.zeros_like(ids_BL)
    for b, ids_L in enumerate(rows):
        ids_BL[b, : len(ids_L)], mask_BL[b, : len(ids_L)] = torch.tensor(ids_L), 1
    return ids_BL, mask_BL


def make_adamw(model, job):
    """AdamW that decays matrices only, fused as in TRL's default, and its scheduler of the job's rates."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    adamw = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": job["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
        lr=1.0,
        betas=(job["b1"], job["b2"]),
        fused=True,
    )
    rates = [*job["rates"], 0.0]  # the scheduler asks once more after the last step
    return adamw, torch.optim.lr_scheduler.LambdaLR(adamw, rates.__getitem__)


def train_torch(folder: Path, job):
    """A plain loop: cross-entropy of the 2-way head, its mean over the marks of a step; clipped AdamW."""
    model = load(folder).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):  # before the head, .1 by default; PRMTrainer switches it off too
            module.p = 0.0
    adamw, scheduler = make_adamw(model, job)
    seconds, losses = [], []
    for solutions in job["steps"]:
        start = time.perf_counter()
        ids_BL, mask_BL = padded([s["ids"] for s in solutions])
        row = torch.tensor([b for b, s in enumerate(solutions) for _ in s["marks"]])
        mark = torch.tensor([m for s in solutions for m in s["marks"]])
        label = torch.tensor([y for s in solutions for y in s["labels"]])
        with autocast(job["dtype"]):
            logits = model(ids_BL, attention_mask=mask_BL).logits
        loss = torch.nn.functional.cross_entropy(logits[row, mark].float(), label)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), job["clip"])
        adamw.step()
        scheduler.step()
        adamw.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "losses": losses}


class Clock(TrainerCallback):
    """Wall time at the start and after every step, so that all of a trainer's work between two steps counts."""

    def __init__(self):
        self.ticks = []

    def on_train_begin(self, *args, **kwargs):
        self.ticks.append(time.perf_counter())

    on_step_end = on_train_begin


def train_trl(folder: Path, job):
    """PRMTrainer on ready token ids, in the order given; its loss too is the mean over the marks of a step.

    Gradient checkpointing, PRMTrainer's default, is off: it saves memory and costs time. The rest of what is set here is
    the job's, or switches off what is not training (logs, checkpoints).
    """
    from datasets import Dataset
    from trl.experimental.prm import PRMConfig, PRMTrainer

    def row(solution):  # as PRMTrainer.tokenize_row would give it
        labels = np.full(len(solution["ids"]), -100)
        labels[solution["marks"]] = solution["labels"]
        return {"input_ids": solution["ids"], "labels": labels.tolist()}

    model, clock = load(folder), Clock()
    trainer = PRMTrainer(
        model=model,
        args=PRMConfig(
            output_dir=str(folder / "trl"),
            per_device_train_batch_size=len(job["steps"][0]),
            num_train_epochs=1,
            train_sampling_strategy="sequential",
            max_grad_norm=job["clip"],
            bf16=job["dtype"] == "bfloat16",
            gradient_checkpointing=False,
            use_cpu=True,
            dataloader_pin_memory=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([row(s) for solutions in job["steps"] for s in solutions]),
        processing_class=AutoTokenizer.from_pretrained(folder),  # pads
        callbacks=[clock],
        optimizers=make_adamw(model, job),
    )
    trainer.train()
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    return {"seconds": np.diff(clock.ticks).tolist(), "losses": losses}


@torch.no_grad()
def score_torch(folder: Path, job):
    """P(good) of the 1- or 2-way head at the marks of each solution."""
    model, solutions = load(folder).eval(), job["solutions"]
    if job["dtype"] == "bfloat16":
        model = model.to(torch.bfloat16)
    scores = [None] * len(solutions)
    order = np.argsort([len(s["ids"]) for s in solutions], kind="stable")
    start = time.perf_counter()
    for at in range(0, len(order), SCORING_BATCH):
        here = order[at : at + SCORING_BATCH]
        ids_BL, mask_BL = padded([solutions[i]["ids"] for i in here])
        logits = model(ids_BL, attention_mask=mask_BL).logits.float()
        p_BL = logits[..., 0].sigmoid() if logits.shape[-1] == 1 else logits.softmax(-1)[..., 1]
        for b, i in enumerate(here):
            scores[i] = p_BL[b, solutions[i]["marks"]].tolist()
    return {"seconds": time.perf_counter() - start, "scores": scores}


JOBS = {"train": {"torch": train_torch, "trl": train_trl}, "score": {"torch": score_torch}}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    result = JOBS[job["what"]][job["peer"]](folder, job)
    (folder / "result.json").write_text(json.dumps(result))
