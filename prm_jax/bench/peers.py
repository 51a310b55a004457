"""The benchmarks in PyTorch on CPU, to compare our speed with.

`python -P prm_jax/bench/peers.py FOLDER` does FOLDER/job.json with the model that hf.save wrote there, and writes
result.json. It imports nothing of ours: TRL, whose last release with a PRMTrainer is 1.13.0, has its own environment.

job.json     what, peer, dtypes; train: steps (lists of solutions: ids, step_end, label), rates (one per step), b1, b2,
weight_decay, clip; score: solutions (ids, step_end); sampling: prompts (ids), n, new_tokens
result.json  {dtype: result}; train: seconds and loss per step; score: total seconds, and score, a list per solution;
sampling: total seconds, and greedy, the most likely tokens after the first prompt
"""

import contextlib
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer, TrainerCallback


def load(folder: Path):
    """Our exported model in float32 and evaluation mode, so without dropout before the head, as in PRMTrainer."""
    return AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32)


def padded(solutions: list[dict]):
    """(ids_BL, mask_BL), padded on the right to the longest."""
    ids = [torch.tensor(s["ids"]) for s in solutions]
    ids_BL, mask_BL = (pad_sequence(x, batch_first=True) for x in (ids, list(map(torch.ones_like, ids))))
    return ids_BL, mask_BL


def make_adamw(model, job):
    """(AdamW that decays matrices only, fused as is TRL's default, scheduler with the job's learning rates)."""
    matrices, others = ([p for p in model.parameters() if (p.ndim > 1) is wanted] for wanted in (True, False))
    groups = [
        {"params": matrices, "weight_decay": job["weight_decay"]},
        {"params": others, "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=1.0, betas=(job["b1"], job["b2"]), fused=True)
    rates = [*job["rates"], 0.0]  # the scheduler asks once more after the last step
    return adamw, torch.optim.lr_scheduler.LambdaLR(adamw, rates.__getitem__)


def train_torch(folder: Path, job, dtype: str):
    """Trains in a plain loop: a batch per step, mean cross-entropy of the 2-way head over the step ends."""
    model, seconds, losses = load(folder), [], []
    adamw, scheduler = make_adamw(model, job)
    for solutions in job["steps"]:
        start = time.perf_counter()
        ids_BL, mask_BL = padded(solutions)
        row, step_end = zip(
            *[(b, end) for b, s in enumerate(solutions) for end in s["step_end"]], strict=True
        )
        label = torch.tensor([y for s in solutions for y in s["label"]])
        with torch.autocast("cpu", torch.bfloat16) if dtype == "bfloat16" else contextlib.nullcontext():
            logits = model(ids_BL, attention_mask=mask_BL).logits
        loss = torch.nn.functional.cross_entropy(logits[list(row), list(step_end)].float(), label)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), job["clip"])
        adamw.step()
        scheduler.step()
        adamw.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "loss": losses}


def train_trl(folder: Path, job, dtype: str):
    """Trains with PRMTrainer on token ids in order, without its default gradient checkpointing, which costs time."""
    from datasets import Dataset
    from trl.experimental.prm import PRMConfig, PRMTrainer

    def row(solution):  # as PRMTrainer.tokenize_row would give it
        labels = np.full(len(solution["ids"]), -100)
        labels[solution["step_end"]] = solution["label"]
        return {"input_ids": solution["ids"], "labels": labels.tolist()}

    # Ticks at the start and after every step, so that all of a trainer's work between two steps counts.
    model, ticks, clock = load(folder), [], TrainerCallback()
    clock.on_train_begin = clock.on_step_end = lambda *args, **kwargs: ticks.append(time.perf_counter())
    options = {"num_train_epochs": 1, "train_sampling_strategy": "sequential", "max_grad_norm": job["clip"]}
    options |= {
        "bf16": dtype == "bfloat16",
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "use_cpu": True,
    }
    options |= {"dataloader_pin_memory": False, "save_strategy": "no", "report_to": "none"}
    trainer = PRMTrainer(
        model=model,
        args=PRMConfig(str(folder / "trl"), per_device_train_batch_size=len(job["steps"][0]), **options),
        train_dataset=Dataset.from_list([row(s) for solutions in job["steps"] for s in solutions]),
        processing_class=AutoTokenizer.from_pretrained(folder),  # pads
        callbacks=[clock],
        optimizers=make_adamw(model, job),
    )
    trainer.train()
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    return {"seconds": np.diff(ticks).tolist(), "loss": losses}


@torch.no_grad()
def score_torch(folder: Path, job, dtype: str):
    """Scores P(good) of the 2-way head at each step end, in batches of 32 solutions sorted by length and padded."""
    model = load(folder).to(getattr(torch, dtype))
    scores, start = {}, time.perf_counter()
    order = sorted(range(len(job["solutions"])), key=lambda i: len(job["solutions"][i]["ids"]))
    for start_of_batch in range(0, len(order), 32):
        batch = order[start_of_batch : start_of_batch + 32]
        ids_BL, mask_BL = padded([job["solutions"][i] for i in batch])
        p_BL = model(ids_BL, attention_mask=mask_BL).logits.float().softmax(-1)[..., 1]
        for b, i in enumerate(batch):
            scores[i] = p_BL[b, job["solutions"][i]["step_end"]].tolist()
    return {"seconds": time.perf_counter() - start, "score": [scores[i] for i in range(len(scores))]}


@torch.no_grad()
def sampling_torch(folder: Path, job, dtype: str):
    """Draws n samples per prompt with `generate`, all of the same length, since no token ends them."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    prompts = [torch.tensor([ids]) for ids in job["prompts"]]
    model.generation_config.eos_token_id = None
    options = {"pad_token_id": 0, "max_new_tokens": job["new_tokens"]}
    greedy = model.generate(prompts[0], do_sample=False, **options)  # also warms up
    start = time.perf_counter()
    for ids in prompts:
        model.generate(ids, do_sample=True, top_k=0, num_return_sequences=job["n"], **options)
    return {"seconds": time.perf_counter() - start, "greedy": greedy[0, len(job["prompts"][0]) :].tolist()}


JOBS = {"train": {"torch": train_torch, "trl": train_trl}, "score": {"torch": score_torch}}
JOBS["sampling"] = {"torch": sampling_torch}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    result = {dtype: JOBS[job["what"]][job["peer"]](folder, job, dtype) for dtype in job["dtypes"]}
    (folder / "result.json").write_text(json.dumps(result))
