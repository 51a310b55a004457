"""A script that trains a PRM as `python -m prm_jax.bench` does, in PyTorch or TRL on CPU, beside ours.

    python -m examples.bench_peers                                         # a plain PyTorch loop
    python -m venv TRL && TRL/bin/pip install torch==2.13.0 trl==1.13.0   # the last release with a PRMTrainer
    python -m examples.bench_peers --peer trl --python TRL/bin/python

Both sides begin with the same weights and take the same steps on the same random solutions. The peer's side
of this file (`--job`) imports nothing of ours. Dimension key: B rows, L tokens.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def load(folder: Path):
    """Our exported model in float32, without dropout before the head, as in PRMTrainer."""
    import torch
    from transformers import AutoModelForTokenClassification

    return AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32)


def make_adamw(model, job: dict):
    """(AdamW that decays matrices only, fused as is TRL's default, its scheduler)."""
    import torch

    matrices = {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": job["weight_decay"]}
    others = {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0}
    groups = [matrices, others]
    adamw = torch.optim.AdamW(groups, lr=1.0, betas=(job["b1"], job["b2"]), fused=True)
    rates = [*job["rates"], 0.0]  # the scheduler asks once more after the last step
    return adamw, torch.optim.lr_scheduler.LambdaLR(adamw, rates.__getitem__)


def train_torch(folder: Path, job: dict) -> dict:
    """A plain loop: mean cross-entropy of the 2-way head over the step ends of a batch."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    model, seconds, solutions = load(folder), [], job["solutions"]
    adamw, scheduler = make_adamw(model, job)
    rows = [b for b, s in enumerate(solutions) for _ in s["step_end"]]
    step_ends = [end for s in solutions for end in s["step_end"]]
    label = torch.tensor([y for s in solutions for y in s["label"]])
    ids = [torch.tensor(s["ids"]) for s in solutions]
    for _ in job["rates"]:
        start = time.perf_counter()
        ids_BL = pad_sequence(ids, batch_first=True)
        mask_BL = pad_sequence([torch.ones_like(x) for x in ids], batch_first=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=job["dtype"] == "bfloat16"):
            logits = model(ids_BL, attention_mask=mask_BL).logits
        loss = torch.nn.functional.cross_entropy(logits[rows, step_ends].float(), label)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), job["clip"])
        adamw.step()
        scheduler.step()
        adamw.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "loss": loss.item()}


def train_trl(folder: Path, job: dict) -> dict:
    """PRMTrainer on token ids in order, without its default gradient checkpointing, which costs time."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl.experimental.prm import PRMConfig, PRMTrainer

    def row(solution):  # as PRMTrainer.tokenize_row would give it
        labels = np.full(len(solution["ids"]), -100)
        labels[solution["step_end"]] = solution["label"]
        return {"input_ids": solution["ids"], "labels": labels.tolist()}

    # Ticks at the start and after every step, so that all of a trainer's work between two steps counts.
    model = load(folder)
    ticks, clock = [], TrainerCallback()
    clock.on_train_begin = clock.on_step_end = lambda *args, **kwargs: ticks.append(time.perf_counter())
    config = PRMConfig(
        str(folder / "trl"),
        per_device_train_batch_size=len(job["solutions"]),
        num_train_epochs=1,
        train_sampling_strategy="sequential",
        max_grad_norm=job["clip"],
        bf16=job["dtype"] == "bfloat16",
        gradient_checkpointing=False,
        logging_steps=1,
        use_cpu=True,
        dataloader_pin_memory=False,
        save_strategy="no",
        report_to="none",
    )
    trainer = PRMTrainer(
        model=model,
        args=config,
        train_dataset=Dataset.from_list([row(s) for _ in job["rates"] for s in job["solutions"]]),
        processing_class=AutoTokenizer.from_pretrained(folder),  # pads
        callbacks=[clock],
        optimizers=make_adamw(model, job),
    )
    trainer.train()
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    return {"seconds": np.diff(ticks).tolist(), "loss": losses[-1]}


def compare(peer: str, python: str, **changes) -> dict[str, float]:
    """Tokens a second of ours, how many times the peer's that is, and the difference of the last losses."""
    from prm_jax import bench
    from prm_jax.checkpoints import hf
    from prm_jax.checkpoints.folders import EMBEDDED
    from prm_jax.checkpoints.tokenizer import load_tokenizer
    from prm_jax.launch.mesh import MeshConfig
    from prm_jax.training import make_schedule

    sizes = {"shape": "small", "rows": 1, "mean_tokens": 204, "solutions": 8, "problems": 1}
    sizes |= {"new_tokens": 1, "repeats": 5, "dtype": "float32"}
    cfg = bench.BenchConfig(what="train", mesh=MeshConfig(1, 1, 1), **sizes | changes)
    schedule = make_schedule(bench.OPTIMIZER, 1000)
    rates = [float(schedule(i)) for i in range(bench.WARMUP + cfg.repeats)]
    job = vars(bench.OPTIMIZER) | {"dtype": cfg.dtype, "rates": rates, "solutions": []}
    for e in bench.random_solutions(cfg, 1):
        label = e.targets["label"].astype(int).tolist()
        job["solutions"].append({"ids": e.ids_L.tolist(), "step_end": e.step_end_T.tolist(), "label": label})
    with tempfile.TemporaryDirectory() as name:
        model = bench.random_model(cfg, stored=lambda model: model)
        hf.save(Path(name), model, load_tokenizer(EMBEDDED))
        Path(name, "job.json").write_text(json.dumps(job))
        env = os.environ | {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
        subprocess.run([python, "-P", __file__, "--peer", peer, "--job", name], env=env, check=True)
        theirs = json.loads(Path(name, "result.json").read_text())
    ours = bench.bench_train(cfg)
    seconds = float(np.median(theirs["seconds"][bench.WARMUP :]))
    rates = {"tokens_per_second": ours["tokens_per_second"], "times_peer": seconds / ours["seconds"]}
    return rates | {"loss_difference": abs(ours["last_loss_nats"] - theirs["loss"])}


def main():
    parser = argparse.ArgumentParser(description="Compare our training speed with PyTorch's or TRL's.")
    parser.add_argument("--peer", default="torch", choices=("torch", "trl"))
    parser.add_argument("--python", default=sys.executable, help="an interpreter with the peer's packages")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--job", type=Path, help="the peer's side: a folder with a model and job.json")
    args = parser.parse_args()
    if args.job:
        train = {"torch": train_torch, "trl": train_trl}[args.peer]
        result = train(args.job, json.loads((args.job / "job.json").read_text()))
        (args.job / "result.json").write_text(json.dumps(result))
        return
    for name, x in compare(args.peer, args.python, dtype=args.dtype).items():
        print(f"{name:<20}{x:,.4g}")


if __name__ == "__main__":
    main()
