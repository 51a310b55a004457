"""The bench's jobs as one would write them in PyTorch with `transformers`: what our speed is measured against.

Imported by bench.py alone, and only where torch is installed. Training pads each batch to its longest solution, as TRL's
PRMTrainer did; scoring sorts by length and pads per batch of 32.
"""

import contextlib
import time

import numpy as np
import torch
from transformers import AutoModelForTokenClassification

SCORING_BATCH = 32


def load(folder):
    """The model of an export of ours, in float32."""
    return AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32)


def autocast(dtype: str):
    on = dtype == "bfloat16"
    return torch.autocast("cpu", torch.bfloat16) if on else contextlib.nullcontext()


def padded(rows: list[np.ndarray]):
    """(ids_BL, mask_BL), right-padded to the longest."""
    ids_BL = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    mask_BL = torch.zeros_like(ids_BL)
    for b, ids_L in enumerate(rows):
        ids_BL[b, : len(ids_L)], mask_BL[b, : len(ids_L)] = torch.from_numpy(ids_L.astype(np.int64)), 1
    return ids_BL, mask_BL


def train(folder, steps, optimizer, schedule, dtype: str):
    """(seconds of each step, loss of each step): cross-entropy of the 2-way head at the marks, clipped AdamW.

    steps: of each optimiser step its examples (batches.Example); optimizer: an OptimizerConfig; schedule: step -> rate.
    """
    model = load(folder).train()
    for module in model.modules():
        if isinstance(
            module, torch.nn.Dropout
        ):  # before the head, .1 by default; PRMTrainer switches it off too
            module.p = 0.0
    decayed = [p for name, p in model.named_parameters() if p.ndim > 1]
    others = [p for name, p in model.named_parameters() if p.ndim <= 1]
    adamw = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": optimizer.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=optimizer.lr,
        betas=(optimizer.b1, optimizer.b2),
    )
    seconds, losses = [], []
    for step, examples in enumerate(steps):
        start = time.perf_counter()
        for group in adamw.param_groups:
            group["lr"] = float(schedule(step))
        ids_BL, mask_BL = padded([e.ids_L for e in examples])
        row = torch.tensor([b for b, e in enumerate(examples) for _ in e.mark_T])
        mark = torch.tensor([int(m) for e in examples for m in e.mark_T])
        label = torch.tensor([float(y) for e in examples for y in e.label_T]).round().long()
        with autocast(dtype):
            logits = model(ids_BL, attention_mask=mask_BL).logits
        loss = torch.nn.functional.cross_entropy(logits[row, mark].float(), label)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optimizer.clip)
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return seconds, losses


@torch.no_grad()
def score(folder, encoded, dtype: str):
    """(seconds, step scores) of encoded solutions: P(good) of the 1- or 2-way head, sorted by length."""
    model = load(folder).eval()
    if dtype == "bfloat16":
        model = model.to(torch.bfloat16)
    scores: list[np.ndarray] = [None] * len(encoded)
    order = np.argsort([len(e.ids_L) for e in encoded], kind="stable")
    start = time.perf_counter()
    for at in range(0, len(order), SCORING_BATCH):
        here = order[at : at + SCORING_BATCH]
        ids_BL, mask_BL = padded([encoded[i].ids_L for i in here])
        logits = model(ids_BL, attention_mask=mask_BL).logits.float()
        p_BL = logits[..., 0].sigmoid() if logits.shape[-1] == 1 else logits.softmax(-1)[..., 1]
        for b, i in enumerate(here):
            scores[i] = p_BL[b, encoded[i].mark_T].numpy()
    return time.perf_counter() - start, scores
