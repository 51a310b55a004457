"""A script that does the work of `python -m prm_jax.bench` in PyTorch or TRL, at their best settings, on CPU.

    python -m examples.bench_peers what=train                    # or score, sampling: beside PyTorch
    python -m examples.bench_peers --peer trl --python TRL/bin/python what=train   # TRL 1.13.0, the last

Other keys are those of conf/bench.yaml. Both sides have the same weights and texts. TRL trains on random
batches and by length, PyTorch on the solutions of our rows, so that it must end at our loss; it scores and
samples by length. The peer's side (`--job`) imports nothing of ours. Dimension key: B rows, L tokens."""

import argparse
import functools
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

if "--job" in sys.argv:
    import torch
    import transformers
    from torch.nn.utils.rnn import pad_sequence
else:
    from prm_jax import bench
    from prm_jax.checkpoints import hf
    from prm_jax.checkpoints.folders import EMBEDDED
    from prm_jax.checkpoints.tokenizer import load_tokenizer
    from prm_jax.training import make_schedule

BATCH = 8  # solutions of a peer's batch, TRL's default
SORTED = 50  # batches that TRL sorts by length at a time


def step_logits(model, solutions: list[dict]):
    """The outputs at all step ends of a padded batch."""
    ids = [torch.tensor(s["ids"]) for s in solutions]
    mask_BL = pad_sequence([torch.ones_like(x) for x in ids], True)
    logit_BLC = model(input_ids=pad_sequence(ids, True), attention_mask=mask_BL).logits
    rows = [b for b, s in enumerate(solutions) for _ in s["step_end"]]
    return logit_BLC[rows, [end for s in solutions for end in s["step_end"]]].float()


def train_torch(model, job: dict, tick) -> dict:
    """A plain loop: mean cross-entropy of the 2-way head over the step ends."""
    groups = []
    for decays, decay in ((True, job["weight_decay"]), (False, 0.0)):  # matrices, and other arrays
        params = [p for p in model.parameters() if (p.ndim > 1) == decays]
        groups.append({"params": params, "weight_decay": decay})
    adamw = torch.optim.AdamW(groups, betas=(job["b1"], job["b2"]), fused=True)
    for solutions, rate in zip(job["batches"], job["rates"], strict=True):
        tick()
        for group in adamw.param_groups:
            group["lr"] = rate
        label = torch.tensor([y for s in solutions for y in s["label"]])
        with torch.autocast("cpu", torch.bfloat16, enabled=job["dtype"] == "bfloat16"):
            logits = step_logits(model, solutions)
        loss = torch.nn.functional.cross_entropy(logits, label)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), job["clip"])
        adamw.step()
        adamw.zero_grad(set_to_none=True)
    tick()
    return {"last_loss_nats": loss.item()}


def train_trl(model, job: dict, tick) -> dict:
    """PRMTrainer on the batches in order, without its default gradient checkpointing, which costs time."""
    from datasets import Dataset
    from trl.experimental.prm import PRMConfig, PRMTrainer

    def row(solution):  # as PRMTrainer.tokenize_row would give it
        labels = np.full(len(solution["ids"]), -100)
        labels[solution["step_end"]] = solution["label"]
        return {"input_ids": solution["ids"], "labels": labels.tolist()}

    options = {"train_sampling_strategy": "sequential", "gradient_checkpointing": False, "use_cpu": True}
    options |= {"per_device_train_batch_size": BATCH, "num_train_epochs": 1, "save_strategy": "no"}
    clock = transformers.TrainerCallback()  # all of a trainer's work between two steps counts
    clock.on_train_begin = clock.on_step_end = lambda *args, **kwargs: tick()
    trainer = PRMTrainer(
        model=model,
        args=PRMConfig(job["folder"], bf16=job["dtype"] == "bfloat16", report_to="none", **options),
        train_dataset=Dataset.from_list([row(s) for batch in job["batches"] for s in batch]),
        processing_class=transformers.AutoTokenizer.from_pretrained(job["folder"]),  # pads
        callbacks=[clock],
    )
    trainer.train()
    return {}


def score_torch(model, job: dict, tick) -> dict:
    """Log-odds of all steps."""
    for solutions in job["batches"]:
        tick()
        step_logits(model, solutions).diff().numpy()
    tick()
    return {}


def sampling_torch(model, job: dict, tick) -> dict:
    """`generate` to the policy's stops; a sample's tokens end with the first one that stops it."""
    ends, tokens = job["ends"], []
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "eos_token_id": ends}
    options |= {"max_new_tokens": job["max_tokens"], "num_return_sequences": job["samples"]}
    for prompts in job["batches"]:
        tick()
        L = max(map(len, prompts))
        ids_BL = torch.tensor([[0] * (L - len(ids)) + ids for ids in prompts])
        mask_BL = torch.tensor([[0] * (L - len(ids)) + [1] * len(ids) for ids in prompts])
        written_BL = model.generate(ids_BL, attention_mask=mask_BL, pad_token_id=ends[0], **options)
        is_end_Bt = np.isin(written_BL[:, L:].numpy(), ends)
        tokens.append(int((is_end_Bt.cumsum(1) - is_end_Bt == 0).sum()))
    tick()
    return {"tokens": tokens}


def run_job(job: dict):
    """Does a job of the other side, without dropout; result.json has the seconds of each batch."""
    what, ticks = job["work"].split("_")[0], []  # wall and CPU seconds
    kind = "AutoModelForCausalLM" if what == "sampling" else "AutoModelForTokenClassification"
    stored = "float32" if what == "train" else job["dtype"]  # training computes in the dtype by autocast
    model = getattr(transformers, kind).from_pretrained(job["model"], dtype=getattr(torch, stored))
    with torch.inference_mode(what != "train"):
        tick = lambda: ticks.append((time.perf_counter(), time.process_time()))
        result = globals()[job["work"]](model, job, tick)
    high = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())  # not the parent's, too
    result["peak_gb"] = 1024 * int(high[1]) / 1e9
    result["seconds"] = np.diff(ticks, axis=0).tolist()
    Path(job["folder"], "result.json").write_text(json.dumps(result))


def to_json(examples) -> list[dict]:
    arrays = [{"ids": e.ids_L, "step_end": e.step_end_T, "label": e.label_T} for e in examples]
    return [{name: x.astype(int).tolist() for name, x in one.items()} for one in arrays]


def chunks(items: list, n: int) -> list[list]:
    return [items[i : i + n] for i in range(0, len(items), n)]


def training_batches(cfg, peer: str) -> dict[str, list[list[dict]]]:
    """As many batches as we take steps, by name."""
    rows = bench.training_rows(cfg)
    if peer == "torch":
        ours = chunks([rows[i] for i in range((bench.WARMUP + cfg.repeats) * cfg.rows)], cfg.rows)
        return {"our rows": [to_json(itertools.chain(*some)) for some in ours]}
    order = to_json([rows.examples[i] for i in rows.order(0)][: SORTED * BATCH])
    orders = {"random": order, "by length": sorted(order, key=lambda s: -len(s["ids"]))}
    # Of these batches, from the longest to the shortest, as many as are timed, evenly.
    timed = (np.arange(cfg.repeats) + 0.5) * len(order) / BATCH / cfg.repeats
    picked = [0] * bench.WARMUP + timed.astype(int).tolist()
    return {name: [chunks(order, BATCH)[i] for i in picked] for name, order in orders.items()}


def jobs_beside(cfg, peer: str, folder: str) -> dict[str, dict]:
    """The jobs of the other side by name, with the model in a folder."""
    job = {"work": f"{cfg.what}_{peer}", "dtype": cfg.dtype, "warmup": 0}
    job |= {"folder": folder, "model": cfg.checkpoint or folder}
    if cfg.what == "sampling":
        policy, prefixes = bench.sampling_work(cfg)
        if not cfg.checkpoint:
            hf.save(Path(folder), policy.model, policy.tokenizer)
        prompts = sorted((ids_L.tolist() for ids_L in policy.prefix_ids(prefixes)), key=len)
        job |= {"ends": policy.eos_ids, "max_tokens": policy.sampling.max_tokens, "samples": cfg.solutions}
        return {"generate": job | {"batches": chunks(prompts, cfg.rows)}}
    hf.save(Path(folder), bench.random_model(cfg, stored=lambda model: model), load_tokenizer(EMBEDDED))
    if cfg.what == "score":
        by_length = sorted(to_json(bench.random_solutions(cfg)), key=lambda s: len(s["ids"]))
        return {"torch by length": job | {"batches": chunks(by_length, BATCH)}}
    schedule = make_schedule(bench.OPTIMIZER, 1000)
    rates = [float(schedule(i)) for i in range(bench.WARMUP + cfg.repeats)]
    job |= vars(bench.OPTIMIZER) | {"warmup": bench.WARMUP, "rates": rates}
    return {f"{peer} {name}": job | {"batches": x} for name, x in training_batches(cfg, peer).items()}


def beside(job_of_ours, peer: str, python: str, cfg) -> dict[str, float]:
    """The numbers of our job and of the peer's; rates count useful tokens."""
    numbers, env = job_of_ours(cfg), os.environ | {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        for name, job in jobs_beside(cfg, peer, folder).items():
            Path(folder, "job.json").write_text(json.dumps(job))
            subprocess.run([python, "-P", __file__, "--job", f"{folder}/job.json"], env=env, check=True)
            result = json.loads(Path(folder, "result.json").read_text())
            tokens = result.pop("tokens", None) or [sum(len(s["ids"]) for s in x) for x in job["batches"]]
            timed = slice(job["warmup"], None)
            rates = sum(tokens[timed]) / np.sum(result.pop("seconds")[timed], axis=0)
            for unit, rate in zip(("second", "cpu_second"), rates.tolist(), strict=True):
                result[f"tokens_per_{unit}"] = rate
                result[f"ours_by_theirs_{unit}"] = numbers[f"tokens_per_{unit}"] / rate
            numbers |= {f"{name} {key}": x for key, x in result.items()}
    return numbers


def main():
    parser = argparse.ArgumentParser(description="Compare our speed with PyTorch's or TRL's.")
    parser.add_argument("--peer", default="torch", choices=("torch", "trl"))
    parser.add_argument("--python", default=sys.executable, help="an interpreter with the peer's packages")
    args, sys.argv[1:] = parser.parse_known_args()
    for what in ("train", "score", "sampling"):
        bench.JOBS[what] = functools.partial(beside, bench.JOBS[what], args.peer, args.python)
    bench.main()


if __name__ == "__main__" and "--job" in sys.argv:
    run_job(json.loads(Path(sys.argv[2]).read_text()))
elif __name__ == "__main__":
    main()
