"""Bad input of every kind, from the command line: each ends in one line that names the key, or the file, its line and field.

None is a traceback, none is taken in silence, and none leaves a folder that refuses the corrected command.
"""

import gzip
import json
import os
import re
import shlex
import shutil

import pytest
from conftest import call

import evaluate
import train
from prm_jax.checkpoints import export, hf
from prm_jax.data import rows as data_rows
from prm_jax.figures import sweeps
from prm_jax.generate import labeling, relabeling, sampling
from prm_jax.rl import __main__ as rl

COMMANDS = {
    "train": train, "evaluate": evaluate, "sampling": sampling, "labeling": labeling, "relabeling": relabeling,
    "export": export, "sweeps": sweeps, "rl": rl,
}  # fmt: skip

GOOD = {"prompt": "p", "completions": ["a", "b"], "labels": [True, False]}
BENCH = {"id": "x", "problem": "p", "steps": ["a", "b"], "label": 1, "final_answer_correct": False}
PRMBENCH = {
    "modified_question": "m",
    "question": "q",
    "modified_process": ["a"],
    "error_steps": [],
    "idx": "1",
}
CANDIDATE = {"steps": ["a", "b"], "answer": "1", "correct": True, "step_scores": {"s": [0.5, 0.5]}}
POOL = {"id": "p", "problem": "q", "answer": "1", "candidates": [CANDIDATE]}
RAW = {"problem": "q", "steps": ["a"], "ratings": [1]}  # PRM800K, flat
WORD = {"problem": "2+3?", "solution": "2+3=5"}
QUESTION = {"problem": "4 +5 mod7?", "answer": "2"}

# What is wrong with the second row of a file, and what is said of it: (name of the table, changes of a good row, message).
# A text stands for the whole row.
ROWS = {
    "native": ("train data=jsonl data.path={}", GOOD, [
        ({"labels": [True]}, r"labels: found 1 for 2 steps"),
        ({"labels": [1.5, 0]}, r"labels\[0\]: found 1.5, expected a number in \[0, 1\]"),
        ({"labels": [float("nan"), 0]}, r"labels\[0\]: found nan"),
        ({"labels": ["good", 0]}, r"labels\[0\]: found 'good'"),
        ({"labels": [-0.1, 0]}, r"labels\[0\]: found -0.1"),
        ({"labels": {"a": 1}}, r"labels: found \{'a': 1\}, expected a list"),
        ({"labels": "++"}, r"labels: found '\+\+', expected a list"),
        ({"labels": None}, r"labels: found null, expected a list"),
        ({"label": [True], "labels": ...}, r"labels: missing"),
        ({"completions": [], "labels": []}, r"completions: found no steps"),
        ({"completions": "a b"}, r"completions: found 'a b', expected a list"),
        ({"completions": ["a", 3]}, r"completions\[1\]: found 3, expected text"),
        ({"completions": ["a", None]}, r"completions\[1\]: found null"),
        ({"completions": ...}, r"completions: missing"),
        ({"prompt": ...}, r"prompt: missing, expected text; found completions, labels"),
        ({"prompt": 3}, r"prompt: found 3, expected text"),
        ({"prompt": None}, r"prompt: found null, expected text"),
        ({"prompt": ["p"]}, r"prompt: found \['p'\]"),
        ({"outcome": 2}, r"outcome: found 2"),
        ({"outcome": "right"}, r"outcome: found 'right'"),
        ({"ratings": [1]}, r"ratings: found 1 for 2 steps"),
        ({"ratings": [1, 7]}, r"ratings\[1\]: found 7"),
        ({"answer": 4}, r"answer: found 4, expected text or null"),
        ('{"prompt": "p", "completions": ["a"], "labels": [tr', r"broken JSON \(Expecting value at column 50"),
        ("[1, 2]", r": found \[1, 2\], expected an object"),
        ("null", r": found null, expected an object"),
        ("3", r": found 3, expected an object"),
        ("{'prompt': 'p'}", r"broken JSON"),
        ('{"prompt": "p"} {"prompt": "q"}', r"broken JSON \(Extra data"),
        ("[" * 100_000, r"broken JSON \(.*(recursion|overflow)"),
        (f'{{"prompt": {"9" * 5001}}}', r"broken JSON \(a whole number of 5001 digits, expected at most 300"),
        ('{"prompt": "\\ud800", "completions": ["a"], "labels": [1]}', r"broken JSON \(.*surrogates not allowed"),
        (b'{"prompt": "\xff"}', r"broken JSON \('utf-8' codec"),
    ]),
    "prm800k": ("train data=prm800k data.path={}", RAW, [
        ({"ratings": [2]}, r"ratings\[0\]: found 2"),
        ({"ratings": [1, 1]}, r"ratings: found 2 for 1 steps|labels: found 2 for 1 steps"),
        ({"steps": []}, r"steps: found no steps"),
        ({"problem": 1}, r"problem: found 1"),
        ({"ratings": ...}, r"question: missing"),
    ]),
    "math_shepherd": ("train data=math_shepherd data.path={}", {"input": "q Step 1: a ки", "label": "q Step 1: a +"}, [
        ({"input": "no mark"}, r"input: found no ки"),
        ({"label": "q Step 1: a ?"}, r"label\[12\]: found '\?', expected the \+ or -"),
        ({"label": "short"}, r"label\[\d+\]: found ''"),
        ({"label": None}, r"label: found null"),
    ]),
    "text": ("train data=text data.path={}", WORD, [
        ({"solution": 3}, r"solution: found 3"),
        ({"solution": ...}, r"solution: missing"),
        ({"problem": ...}, r"problem: missing"),
    ]),
    "processbench": ("evaluate task=processbench data.path={} checkpoint=random", BENCH, [
        ({"label": 2}, r"label: found 2, expected -1 to 1 for 2 steps"),
        ({"label": -2}, r"label: found -2"),
        ({"label": "1"}, r"label: found '1', expected a whole number"),
        ({"label": True}, r"label: found True"),
        ({"final_answer_correct": 1}, r"final_answer_correct: found 1, expected true or false"),
        ({"steps": [1]}, r"steps\[0\]: found 1"),
        ({"problem": ...}, r"problem: missing"),
        ({}, r"id: 'x' is the id of .*line 1 too"),
    ]),
    "prmbench": ("evaluate task=prmbench data.path={} checkpoint=random", PRMBENCH | {"classification": "circular"}, [
        ({"error_steps": [0]}, r"error_steps\[0\]: found 0, expected a step number from 1"),
        ({"error_steps": ["1"]}, r"error_steps\[0\]: found '1'"),
        ({"error_steps": 1}, r"error_steps: found 1, expected a list"),
        ({"modified_process": ...}, r"modified_process: missing"),
        ({"classification": None}, r"classification: found null"),
    ]),
    "pool": ("evaluate task=best_of_n input={}", POOL, [
        ({}, r"id: found 'p', expected an id not seen before"),
        ({"id": 3}, r"id: found 3, expected text"),
        ({"problem": ...}, r"problem: missing"),
        ({"answer": 4}, r"answer: found 4"),
        ({"candidates": []}, r"candidates: found none"),
        ({"candidates": {}}, r"candidates: found \{\}, expected a list"),
        ({"candidates": [3]}, r"candidates\[0\]: found 3, expected an object"),
        ({"scores_unit": {"s": "percent"}}, r"scores_unit.s: found 'percent', expected logit, probability"),
        ({"scores_unit": "logit"}, r"scores_unit: found 'logit', expected an object"),
    ]),
    "candidate": ("evaluate task=best_of_n input={}", CANDIDATE, [
        ({"steps": []}, r"candidates\[0\].steps: found no steps"),
        ({"steps": "a"}, r"candidates\[0\].steps: found 'a'"),
        ({"answer": 1}, r"candidates\[0\].answer: found 1"),
        ({"correct": "yes"}, r"candidates\[0\].correct: found 'yes'"),
        ({"correct": 1}, r"candidates\[0\].correct: found 1, expected true or false"),
        ({"finished": 0}, r"candidates\[0\].finished: found 0"),
        ({"step_scores": {"s": [0.5]}}, r"step_scores.s: found 1, expected one number for each of 2 steps"),
        ({"step_scores": {"s": [0.5, None]}}, r"step_scores.s\[1\]: found null, expected a finite number"),
        ({"step_scores": {"s": [0.5, float("nan")]}}, r"step_scores.s\[1\]: found nan"),
        ({"step_scores": {"s": [0.5, float("inf")]}}, r"step_scores.s\[1\]: found inf"),
        ({"step_scores": {"s": [0.5, "1"]}}, r"step_scores.s\[1\]: found '1'"),
        ({"step_scores": {"s": [0.5, True]}}, r"step_scores.s\[1\]: found True"),
        ({"step_scores": {"s": 0.5}}, r"step_scores.s: found 0.5, expected a list"),
        ({"step_scores": [0.5, 0.5]}, r"step_scores: found \[0.5, 0.5\], expected an object"),
        ({"step_scores": {"s": [0.5, 1.5]}}, r"problem other: candidates\[0\].step_scores.s\[1\]: got 1.5, expected a prob"),
        ({"step_scores": {"s": [0.5, int("9" * 400)]}}, r"broken JSON|finite"),
        ({"correct": None}, r"problem other: candidates\[0\].correct: nobody graded it"),
    ]),
    "scores_file": ("evaluate task=processbench data.path=bench.jsonl scores_file={}", {"id": "x", "scores": [0.5, 0.5]}, [
        ({}, r"id 'x': is the id of .*line 1 too"),
        ({"id": "y"}, r"id 'y': no solution has it"),
        ({"id": 3}, r"id: found 3"),
        ({"id": ...}, r"id: missing"),
    ]),
    "questions": ("sampling input={} n=2", QUESTION, [
        ({"problem": 3}, r"problem: found 3"),
        ({"problem": ...}, r"problem"),
        ({"answer": [5]}, r"answer: found \[5\]"),
        ({"answer": float("nan")}, r"answer: found nan, expected a text, a finite number or null"),
        ('{"problem": "4 +5 mod7?", "answer": 1e400}', r"answer: found inf"),
        ({"answer": True}, r"answer: found True"),
        ({"id": {"a": 1}}, r"id: found \{'a': 1\}, expected a text"),
    ]),
    "labels": ("relabeling by=labels input={}", GOOD, [
        ({"labels": ...}, r"labels: missing"),
        ({"labels": [2, 0]}, r"labels\[0\]: found 2"),
    ]),
}  # fmt: skip

# (command line, message): keys, paths, and files that are wrong as a whole.
LINES = [
    ("train lrr=1", r"lrr: no such key in the configuration; did you mean optimizer.lr\?"),
    ("train output_dir=1", r"did you mean hydra.run.dir\?"),
    ("train report_to=wandb", r"did you mean wandb\?"),
    ("train lora_r=1", r"did you mean lora.rank\?"),
    ("train optimizer.lrr=1", r"did you mean optimizer.lr\?"),
    ("evaluate task=witness aggregator=min", r"aggregator: no such key in the configuration; did you mean witness.aggregator\?"),
    ("train model.NEWFIELD=3", r"model.NEWFIELD: no such key in the configuration; --help lists every key"),
    ("train lora.x=3", r"lora.x: no such key in the configuration; --help lists every key"),
    ("train optimizer.trainable=lora lora.rank=1000000", r"lora.rank: got 1000000, expected at most 64, the longer side of w_q"),
    ("train batch.accumulate=1000000", r"batch.rows x batch.accumulate x batch.tokens: got \d+, expected at most 10\^8 tokens of a step"),
    ("train seed=" + "x" * 5000, r"seed: got 'x{199}\.\.\., expected an integer"),
    ("train +model.dmi=3", r"model.dmi: unknown key; did you mean model.dim\?"),
    ("train optimizer.lr=fast", r"optimizer.lr: got 'fast', expected a number"),
    ("train optimizer.lr=-1", r"optimizer.lr: got -1.0, expected a number above 0"),
    ("train optimizer.lr=nan", r"optimizer.lr: got nan, expected a number above 0"),
    ("train optimizer.weight_decay=nan", r"optimizer.weight_decay: got nan, expected a finite number"),
    ("train optimizer.b1=1", r"optimizer.b1: got 1"),
    ("train optimizer.warmup=2", r"optimizer.warmup: got 2.0, expected"),
    ("train optimizer.final_lr=-1", r"optimizer.final_lr: got -1"),
    ("train optimizer.clip=0", r"optimizer.clip: got 0.0, expected a number above 0"),
    ("train optimizer.trainable=some", r"optimizer.trainable: got 'some', expected all, head or lora"),
    ("train optimizer.mu_dtype=int8", r"optimizer.mu_dtype: got 'int8'"),
    ("train optimizer=adam", r"optimizer: got 'adam', expected a section"),
    ("train steps=1e3", r"steps: got 1000.0, expected an integer"),
    ("train steps=0", r"steps: got 0, expected at least 1"),
    ("train steps=true", r"steps: got True, expected an integer"),
    ("train seed=-1", r"seed: got -1, expected at least 0"),
    ("train seed=99999999999999999999", r"seed: got 9+, expected"),
    ("train log_every=0", r"log_every: got 0"),
    ("train checkpoint_every=0", r"checkpoint_every: got 0"),
    ("train eval.every=0", r"eval.every: got 0"),
    ("train eval.best_by=auroc", r"eval.best_by: got 'auroc', expected loss, accuracy, step_auroc or first_error_f1"),
    ("train eval.best_by=step_auroc objective=lm", r"eval.best_by: got 'step_auroc', expected .*: loss, accuracy"),
    ("train batch.rows=0", r"batch.rows: got 0"),
    ("train batch.tokens=20", r"chain/train/0/0: has \d+ tokens, more than batch.tok"),
    ("train batch.too_long=skip", r"batch.too_long: got 'skip', expected error, drop"),
    ("train batch.step_weights=early", r"batch.step_weights: got 'early', expected u"),
    ("train batch.accumulate=0", r"batch.accumulate: got 0"),
    ("train mesh.data=3", r"mesh: data 3 x fsdp 1 x tensor 1 does not make the"),
    ("train mesh.fsdp=0", r"mesh.fsdp: got 0"),
    ("train cpu_devices=0", r"cpu_devices: got 0"),
    ("train distributed=yes", r"distributed: got .*expected null, auto or"),
    ("train distributed=inf", r"distributed: got .*expected null, auto or"),
    ("train objective=prn", r"objective: got 'prn', expected prm, orm, implicit or lm"),
    ("train objective=implicit init=random", r"init: got 'random', expected a language model"),
    ("train objective=orm outcome_at=tokens loss.step=pqm", r"outcome_at: got 'tokens', expected last"),
    ("train loss.step=hinge", r"loss.step: got 'hinge', expected"),
    ("train loss.pos_weight=0", r"loss.pos_weight: got 0"),
    ("train loss.gamma=-1", r"loss.gamma: got -1"),
    ("train model.head=two", r"model.head: got 'two', expected scalar, binary, mlp, mlp_scalar, ternary or quantile"),
    ("train model.dim=128", r"model.dim: got 128, but embedded has \d+; init=random"),
    ("train model.layers=0 init=random", r"model.layers: got 0, expected at least 1"),
    ("train model.dtype=float8", r"dtype: got 'float8', expected auto, float32 or bfloat16"),
    ("train lora.rank=0", r"lora.rank: got 0"),
    ("train optimizer.trainable=lora lora.targets=[w_x]", r"lora.targets: got .*w_x"),
    ("train init=./nowhere", r"nowhere: no such folder"),
    ("train init=empty", r"empty: has no tokenizer.json"),
    ("train tokenizer=empty", r"empty: has no tokenizer.json"),
    ("train resume=nowhere", r"resume: .*nowhere is no run folder"),
    ("train resume=broken", r"broken/.hydra/config.yaml: cannot be read"),
    ("train wandb=on", r"wandb: got 'on', expected offline or online"),
    ("train format.separator=''", r"format.separator: got '', expected a text"),
    ("train format=trl", r"model.head: got 'scalar', but format=trl has its own head: binary"),
    ("train format=none_such", r"format: got 'none_such', expected .*plain"),
    ("train data=nothing", r"data: got 'nothing', expected .*chain_easy, "),
    ("train experiment=base_lmm", r"experiment: got 'base_lmm', expected base_lm, "),
    ("rl experiment=base_lmm", r"experiment: got 'base_lmm', expected base_lm, "),
    ("train data=null", r"data=null: Hydra cannot read it: Config group override must be a string"),
    ("train data=1", r"data=1: Hydra cannot read it: Config group override must be a string"),
    ("train data=[null]", r"data=\[null\]: Hydra cannot read it"),
    ("evaluate task=null", r"task=null: Hydra cannot read it"),
    ("train 'data.path=~/a b.jsonl'", r"a b.jsonl: Hydra cannot read it; quote such a value twice: 'data.path=\"~/a b.jsonl\"'"),
    ("train batch.tokens=2147483648", r"batch.tokens: got 2147483648, expected at most 10\^8"),
    ("train batch.rows=1000000000", r"batch.rows: got 1000000000, expected at most 10\^8"),
    ("train cpu_devices=1000000", r"cpu_devices: got 1000000, expected .*at most 1024"),
    ("train data.solutions=1000000000000", r"data.solutions: got 1000000000000, expected at most 10\^8"),
    ("train data.solutions_per_problem=1000000000", r"data.solutions_per_problem: got 1000000000, expected at most 10\^8"),
    ("train data.task.modulus=99999989", r"data.task.modulus: got 99999989, expected an odd prime below 1000"),
    ("train data.task.max_operations=10000", r"data.task.max_operations: got 10000, expected at most 1000"),
    ("train model.rope_theta=0", r"model.rope_theta: got 0.0, expected a number above 0"),
    ("train model.rope_theta=nan", r"model.rope_theta: got nan, expected a number above 0"),
    ("train data=jsonl 'data.path=\"\"'", r"data.path: expected a file"),
    ("train data=jsonl data.path=good.jsonl 'data.test_path=\"\"'", r"is a folder"),
    ("evaluate checkpoint=[null]", r"checkpoint: got \[None\], expected texts or numbers in the list"),
    ("evaluate checkpoint=[[random]]", r"checkpoint: got \[\['random'\]\], expected texts or numbers in the list"),
    ("train data=files", r"data.name: got None, expected chain"),
    ("train data=jsonl", r"data.path: expected a file"),
    ("train data=jsonl data.path=nowhere.jsonl", r"nowhere.jsonl: no such file"),
    ("train data=jsonl data.path=empty.jsonl", r"empty.jsonl: is empty, expected at least one row"),
    ("train data=jsonl data.path=blank.jsonl", r"blank.jsonl: is empty, expected at least one row"),
    ("train data=jsonl data.path=rows.csv", r"rows.csv: unknown type of file, expected .jsonl"),
    ("train data=jsonl data.path=folder.jsonl", r"folder.jsonl: is a folder, expected a file; .* to_parquet writes one"),
    ("train data=jsonl data.path=cut.jsonl.gz", r"cut.jsonl.gz.*: cannot be read|cut.jsonl.gz line \d+: broken"),
    ("train data=jsonl data.path=plain.jsonl.gz", r"plain.jsonl.gz: cannot be read"),
    ("train data=jsonl data.path=bad.parquet", r"bad.parquet: broken Parquet"),
    ("train data=jsonl data.path=list.json", r"list.json row 1: found 1, expected an object"),
    ("train data=jsonl data.path=good.jsonl", r"data.folds: 10 with fold 0 leave no \w+ solution of 1"),
    ("train data=jsonl data.path=good.jsonl data.test_path=none.jsonl", r"none.jsonl: no such file"),
    ("train data=jsonl data.path=[]", r"data.path: got \[\], expected a file or a list of files"),
    ("train data=jsonl data.path=[5]", r"data.path: got \[5\], expected a file or a list of files"),
    ("train data=jsonl data.path=5", r"data.path: got 5"),
    ("train data=jsonl data.path=good.jsonl data.hub=a/b", r"data.path: expected a file.* and not both"),
    ("train data=jsonl data.path=good.jsonl data.folds=1", r"data.folds: found 1, expected at least 3"),
    ("train data=jsonl data.path=good.jsonl data.fold=10", r"data.fold: found 10, expected 0 to 9"),
    ("train data=jsonl data.path=good.jsonl data.neutral=fine", r"data.neutral: got 'fine', expected good, bad or mask"),
    ("train data=jsonl data.path=good.jsonl data.duplicates=some", r"data.duplicates: got 'some'"),
    ("train data=jsonl data.path=good.jsonl data.label_kind=soft", r"data.label_kind: got 'soft'"),
    ("train data=jsonl data.path=values.jsonl", r"data.label_kind: got 'correctness', expected value, as values.jsonl li"),
    ("train data.label_kind=value data.after_first_error=keep eval.best_by=first_error_f1",
     r"eval.best_by: got 'first_error_f1', expected another: value labels have no first error"),
    ("train tokenizer=new data.samples=solver data.solutions=40", r"tokenizer: got 'new', expected another, or init=random: the emb"),
    ("train data.label_kind=value", r"data.after_first_error: got .mask., expected keep with label_kind=value"),
    ("train data.task.slip=2", r"data.task.slip: got 2.0, expected a number in \[0, 1\]"),
    ("train data.task.operations.max=lots", r"data.task.operations.max: got 'lots', expected a number"),
    ("train data.task.modulus=0 data.samples=solver", r"data.task.modulus: got 0"),
    ("train data.policy=nowhere data.samples=policy", r"data.policy: .*nowhere"),
    ("train data=mixture +data@data.sources.a=jsonl", r"data.sources: got 'a', expected two or more"),
    ("train data=mixture data.sources=chain", r"data.sources: got 'chain', expected two or more"),
    ("train data=mixture +data@data.sources.a=jsonl +data@data.sources.b=jsonl 'data.weights={a: 1}'",
     r"data.weights: got {'a': 1.0}, expected one of each: a, b"),
    ("train data=mixture +data@data.sources.a=jsonl +data@data.sources.b=jsonl data.sources.b.label_kind=value",
     r"data.sources: got {'a': 'correctness', 'b': 'value'}, expected data.label_kind=correctness of all"),
    ("train data=mixture +data@data.sources.a=jsonl +data@data.sources.b=jsonl data.sources.a.pth=x",
     r"data.sources.a.pth: no such key|data.sources.a: unknown"),
    ("train data=mixture +data@data.sources.a=jsonl +data@data.sources.b=jsonl batch.share_prefixes=true",
     r"batch.share_prefixes: solutions of data=mixture"),
    ("evaluate", r"checkpoint: no finished run under"),
    ("evaluate checkpoint=./nowhere", r"nowhere: no such folder"),
    ("evaluate checkpoint=empty", r"empty: is neither a run with checkpoints nor a Hugging Face folder"),
    ("train batch=[]", r"Could not override 'batch'"),
    ("evaluate checkpoint=[]", r"checkpoint: got an empty list"),
    ("evaluate checkpoint=[random,./nowhere] data=chain", r"nowhere: no such folder"),
    ("evaluate checkpoint=checker-2-3", r"checker-2-3"),
    ("evaluate checkpoint=stopped", r"stopped: stopped before its first checkpoint; resume=stopped of its command continues"),
    ("evaluate checkpoint=no_config task=score input=good.jsonl", r"no_config/config.json: broken JSON"),
    ("evaluate checkpoint=no_weights task=score input=good.jsonl", r"model.safetensors: no such file"),
    ("evaluate checkpoint=cut_weights task=score input=good.jsonl", r"model.safetensors: not a whole safetensors file"),
    ("evaluate checkpoint=huge task=score input=good.jsonl", r"layers"),
    ("evaluate checkpoint=many_tokens task=score input=good.jsonl", r"vocab|tokens|shape"),
    ("evaluate checkpoint=adapter task=score input=good.jsonl", r"adapter"),
    ("evaluate checkpoint=embedded task=score input=good.jsonl", r"embedded"),
    ("evaluate checkpoint=random which=newest task=steps data=chain data.samples=solver data.test_solutions=9", r"which"),
    ("evaluate checkpoint=random dtype=int8", r"dtype: got 'int8'"),
    ("evaluate checkpoint=random batch.rows=0", r"batch.rows: got 0"),
    ("evaluate checkpoint=random task=steps", r"data: random is no run of ours, so name the data set"),
    ("evaluate checkpoint=random task=steps data.path=good.jsonl", r"data.path: say what the rows are, data=NAME"),
    ("evaluate checkpoint=random task=steps data=jsonl data.path=bare.jsonl", r"bare.jsonl line 1: labels: missing"),
    ("evaluate checkpoint=random task=steps data=jsonl data.path=unlabelled.jsonl", r"no labelled solution"),
    ("evaluate checkpoint=random task=steps data=jsonl data.path=good.jsonl threshold=2", r"threshold: got 2"),
    ("evaluate checkpoint=random task=steps data=jsonl data.path=good.jsonl max_solutions=0", r"max_solutions: got 0"),
    ("evaluate checkpoint=random task=steps data=jsonl data.path=good.jsonl calibrated_by=nowhere", r"calibrated_by: "),
    ("evaluate task=stepz", r"task: got 'stepz', expected steps, mistakes, score, split, report, "),
    ("evaluate task=solutions", r"data: name the data set whose solutions are wanted"),
    ("evaluate task=steps vote_draws=3", r"vote_draws: no such key"),
    ("evaluate task=witness input=x", r"input: no such key"),
    ("evaluate task=witness seed=-1", r"seed: got -1, expected at least 0"),
    ("evaluate task=witness witness.betas=1", r"witness.betas: got 1, expected at least 2"),
    ("evaluate task=witness witness.beta=-1", r"witness.beta: got -1.0, expected a finite number"),
    ("evaluate task=witness witness.aggregator=median", r"witness.aggregator: got 'median', expected min"),
    ("evaluate task=witness resume=nowhere", r"resume: .*nowhere is no run folder"),
    ("evaluate task=best_of_n input=nowhere.jsonl", r"nowhere.jsonl: no such file"),
    ("evaluate task=best_of_n input=empty.jsonl", r"empty.jsonl: is empty"),
    ("evaluate task=best_of_n input=good.jsonl", r"good.jsonl line 1: id: missing|good.jsonl line 1: candidates: missing"),
    ("evaluate task=best_of_n input=pool.jsonl scores=t", r"scores: got 't', expected step scores that every candidate has: s"),
    ("evaluate task=best_of_n input=pool.jsonl scores=[s,t]", r"scores: got 't'"),
    ("evaluate task=best_of_n input=pool.jsonl aggregator=median", r"aggregator: got 'median', expected min, prod"),
    ("evaluate task=best_of_n input=pool.jsonl ties=random", r"ties: got 'random', expected share or first"),
    ("evaluate task=best_of_n input=pool.jsonl checker=maths", r"checker: got 'maths', expected"),
    ("evaluate task=best_of_n input=pool.jsonl scores_unit=percent", r"scores_unit: got 'percent', expected logit, prob"),
    ("evaluate task=best_of_n input=pool.jsonl vote_draws=0", r"vote_draws: got 0"),
    ("evaluate task=best_of_n input=pool.jsonl vote_counts=all", r"vote_counts: got 'all'"),
    ("evaluate task=best_of_n input=bare_pool.jsonl", r"scores: the pool has no step scores of every candidate"),
    ("evaluate task=best_of_n input=pool.jsonl checkpoint=random scores_name=../x", r"scores_name: got '../x', expected"),
    ("evaluate task=best_of_n input=pool.jsonl checkpoint=random scores_name=s", r"scores_name: got 's', expected a name"),
    ("evaluate task=best_of_n input=pool.jsonl checkpoint=[random,checker] scores_name=t", r"scores_name: got 't', expected"),
    ("evaluate task=best_of_n input=pool.jsonl fresh.problems=0", r"fresh.problems: got 0"),
    ("evaluate task=best_of_n input=two_units.jsonl", r"scores_unit.s: found 'logit and probability', expected one unit"),
    ("evaluate task=best_of_n checkpoint=checker data=jsonl data.path=good.jsonl", r"input: the data native cannot draw candidates"),
    ("evaluate task=score checkpoint=random", r"input: got None, expected a file of solutions"),
    ("evaluate task=score checkpoint=random input=nowhere.jsonl", r"nowhere.jsonl: no such file"),
    ("evaluate task=score checkpoint=random input=empty.jsonl", r"empty.jsonl: is empty"),
    ("evaluate task=score checkpoint=random input=good.jsonl figures=-1", r"figures: got -1"),
    ("evaluate task=score checkpoint=random input=good.jsonl figures=[none]", r"figures: no solution has the id 'none'"),
    ("evaluate task=score checkpoint=[random,checker] input=good.jsonl", r"checkpoint: got .*, expected one verifier"),
    ("evaluate task=score checkpoint=[1,2] input=good.jsonl", r"1: no such folder"),
    ("evaluate task=score checkpoint=random input=twice.jsonl", r"twice.jsonl.*id.*'x'"),
    ("evaluate task=processbench checkpoint=random", r"data.path: expected a file or a list of files"),
    ("evaluate task=processbench data.path=[] checkpoint=random", r"data.path: got \[\], expected a file or a list of files"),
    ("evaluate task=processbench data.path=[1] checkpoint=random", r"data.path: got \[1\], expected a file or a list of files"),
    ("evaluate task=mistakes data=mr_gsm8k checkpoint=random", r"data.path: expected a file or a list of files"),
    ("evaluate task=processbench data=chain checkpoint=random", r"data: got 'chain', expected data=processbench"),
    ("evaluate task=processbench data.path=bench.jsonl scores_file=none.jsonl", r"none.jsonl: no such file"),
    ("evaluate task=processbench data.path=bench.jsonl scores_file=s.jsonl checkpoint=random", r"scores_file: stored scores"),
    ("evaluate task=processbench data.path=bench.jsonl scores_file=few.jsonl", r"few.jsonl line 1: id 'x': scores: found 1,"),
    ("evaluate task=processbench data.path=bench.jsonl scores_file=high.jsonl", r"scores\[0\]: found 3, expected a probab"),
    ("evaluate task=processbench data.path=bench.jsonl scores_file=nan.jsonl", r"scores\[0\]: found nan, expected a finite"),
    ("evaluate task=processbench data.path=bench.jsonl scores_file=unit.jsonl", r"unit: found 'percent'"),
    ("evaluate task=processbench data.path=bench.jsonl scores_file=text.jsonl", r"scores: found 'high', expected a list"),
    ("evaluate task=processbench data.path=bench.jsonl checkpoint=random threshold_split=x", r"threshold_split: got 'x'"),
    ("evaluate task=processbench data.path=[bench.jsonl,bench.jsonl] checkpoint=random", r"data.path: two files or splits"),
    ("evaluate task=mistakes checkpoint=random", r"data"),
    ("evaluate task=mistakes data=hard2verify data.path=good.jsonl checkpoint=random", r"good.jsonl line 1: \w+: missing"),
    ("evaluate task=search checkpoint=checker data=chain 'methods=[beam,dfs]'", r"methods: got .*dfs.*expected a list of"),
    ("evaluate task=search checkpoint=checker data=chain 'budgets=[0]'", r"budgets: got .*0.*expected a list of whole num"),
    ("evaluate task=search checkpoint=checker data=jsonl data.path=good.jsonl", r"input: the data native has no problems"),
    ("evaluate task=search checkpoint=checker data=chain input=none.jsonl policy=embedded", r"none.jsonl: no such file"),
    ("evaluate task=search checkpoint=checker data=chain input=q.jsonl", r"policy: got None"),
    ("evaluate task=search checkpoint=checker data=chain input=half.jsonl policy=embedded checker=string",
     r"problem 2: has no right answer"),
    ("evaluate task=search checkpoint=checker data=chain aggregator=median", r"aggregator: got 'median'"),
    ("evaluate task=search checkpoint=checker data=chain stop_at=2", r"stop_at: got 2"),
    ("evaluate task=search checkpoint=checker data=chain policy=embedded_orm problems=1", r"is a verifier"),
    ("evaluate task=search checkpoint=values data=jsonl data.path=good.jsonl", r"values needs the embedded task|input: "),
    ("sampling input=none.jsonl", r"none.jsonl: no such file"),
    ("sampling problems=q.jsonl", r"problems: no such key in the configuration; did you mean input\?"),
    ("evaluate task=best_of_n pool=pool.jsonl", r"pool: no such key in the configuration; did you mean input\?"),
    ("rl questions.file=q.jsonl", r"questions.file: no such key in the configuration; did you mean input\?"),
    ("train input=good.jsonl", r"input: no such key in the configuration; did you mean data=jsonl data.path\?"),
    ("train learning_rate=1", r"learning_rate: no such key in the configuration; did you mean optimizer.lr\?"),
    ("train epochs=1", r"epochs: no such key in the configuration; did you mean steps\?"),
    ("train batch_size=1", r"batch_size: no such key in the configuration; did you mean batch.rows\?"),
    ("train eval_steps=9", r"eval_steps: no such key in the configuration; did you mean eval.every\?"),
    ("train data.path=good.jsonl", r"data.path: no such key in the configuration; it is a key of data=jsonl$"),
    ("train data=jsonl data.solutions=9", r"data.solutions: no such key in the configuration; it is a key of data=chain$"),
    ("train experiment=dapo", r"experiment: dapo is one of python -m prm_jax.rl$"),
    ("train seed", r"seed: has no value, expected seed=VALUE$"),
    ("evaluate task=best_of_n input=pool.jsonl lower_bound=''", r"lower_bound: got '', expected step scores that every"),
    ("evaluate task=best_of_n input=pool.jsonl split_by=line", r"pool.jsonl line 1: split_by: found 'line', expected null: the candidates have"),
    ("train --lr 1", r"unrecognized arguments: --lr 1; keys are KEY=VALUE, flags \(-m\) stand before them"),
    ("train loss=focal", r"loss: got 'focal', expected a section of LossConfig keys; did you mean loss.step=focal\?"),
    ("train data=jsnl", r"data: got 'jsnl', expected jsonl, "),
    ("sampling", r"input: missing; give input=VALUE"),
    ("sampling input=q.jsonl n=0", r"n: got 0, expected at least 1"),
    ("sampling input=q.jsonl sampling.top_p=1.5", r"sampling.top_p: got 1.5, expected a number in \[0, 1\]"),
    ("sampling input=q.jsonl sampling.temperature=-1", r"sampling.temperature: got -1"),
    ("sampling input=q.jsonl sampling.top_k=0", r"sampling.top_k: got 0"),
    ("sampling input=q.jsonl sampling.max_tokens=0", r"sampling.max_tokens: got 0"),
    ("sampling input=q.jsonl batch_rows=0", r"batch_rows: got 0"),
    ("sampling input=q.jsonl checker=maths", r"checker: got 'maths', expected task, chain, string, number or math"),
    ("sampling input=q.jsonl checkpoint=/nowhere", r"/nowhere: no such folder"),
    ("sampling input=q.jsonl checkpoint=embedded_orm", r"embedded_orm: is a verifier|expected a language model"),
    ("sampling input=q.jsonl which=newest", r"which: got 'newest', expected best or latest"),
    ("sampling input=q.jsonl server.retries=-1", r"server.retries: got -1"),
    ("sampling resume=nowhere", r"resume: .*nowhere is no run folder"),
    ("labeling input=none.jsonl", r"none.jsonl: no such file"),
    ("labeling input=empty.jsonl", r"empty.jsonl: is empty, expected at least one row"),
    ("labeling input=good.jsonl checker=math", r"checker: got 'math', expected task for native rows"),
    ("labeling input=good.jsonl k=0", r"k: got 0, expected at least 1"),
    ("labeling input=good.jsonl threshold=1.5", r"threshold: got 1.5, expected a number in \[0, 1\]"),
    ("labeling input=good.jsonl label=best", r"label: got 'best', expected soft, hard, threshold, ratio, advantage, first"),
    ("labeling input=good.jsonl label=advantage prover=9", r"prover: got 9, expected at most 8, the number of completions"),
    ("labeling input=good.jsonl noise.false_negative=2", r"noise.false_negative: got 2.0, expected a number in \[0, 1\]"),
    ("labeling input=good.jsonl 'adapt={below: [0.1, 0.9], k: [4, 2]}'", r"adapt.k: got \[4, 2\], expected 3 numbers, one m"),
    ("labeling input=good.jsonl 'adapt={below: [0.9, 0.1], k: [4, 2, 1]}'", r"adapt.below: got \[0.9, 0.1\], expected ris"),
    ("labeling input=good.jsonl tree.searches=0", r"tree.searches: got 0, expected at least 1"),
    ("labeling input=good.jsonl checker=chain label=first_error", r"good.jsonl: good.jsonl:1: outcome: found null, expected 0 or 1"),
    ("labeling input=good.jsonl checker=chain label=tree", r"good.jsonl: good.jsonl:1: outcome: found null, expected 0 or 1: label=tree"),
    ("labeling input=no_gold.jsonl checker=number", r"no_gold.jsonl: problem p: answer: found null, expected the one right"),
    ("relabeling input=good.jsonl", r"by"),
    ("relabeling input=good.jsonl by=magic", r"by: got 'magic', expected"),
    ("relabeling input=good.jsonl by=scorer", r"checkpoint: got None"),
    ("relabeling input=good.jsonl by=scores scores=s", r"good.jsonl: by=scores reads the step scores of a pool"),
    ("relabeling input=pool.jsonl by=scores", r"scores: got None"),
    ("relabeling input=pool.jsonl by=scores scores=t", r"pool.jsonl line 1: candidates\[0\].step_scores.t: missing"),
    ("relabeling input=good.jsonl by=consensus", r"other: got None"),
    ("relabeling input=good.jsonl by=consensus other=two.jsonl", r"other: two.jsonl: got 2, expected 1 solutions"),
    ("relabeling input=good.jsonl by=consensus other=values.jsonl", r"other: values.jsonl line 1: another solution than"),
    ("relabeling input=good.jsonl by=td td_lambda=1", r"good.jsonl: good.jsonl:1: outcome: found null"),
    ("relabeling input=good.jsonl by=labels threshold=2", r"threshold: got 2"),
    ("relabeling input=good.jsonl by=labels after_first_error=drop", r"after_first_error: got 'drop'"),
    ("relabeling input=good.jsonl by=labels td_lambda=2", r"td_lambda: got 2"),
    ("export", r"to"),
    ("export checkpoint=nowhere to=new", r"nowhere"),
    ("export checkpoint=stopped to=new", r"stopped"),
    ("export checkpoint=stopped to=empty/../folder.jsonl", r"to: .*folder.jsonl holds a and is no earlier export"),
    ("export checkpoint=stopped to=good.jsonl", r"to: good.jsonl is a file"),
    ("export checkpoint=stopped to=new which=newest", r"which: got 'newest'"),
    ("sweeps", r"runs"),
    ("sweeps runs=nowhere", r"runs: nowhere: no such file or folder"),
    ("sweeps runs=good.jsonl", r"runs: good.jsonl: expected a folder or"),
    ("sweeps runs=empty", r"runs: no finished run or evaluation in empty"),
    ("sweeps runs=bad_summary", r"bad_summary/summary.json: broken JSON .*; delete it, and its command makes it again"),
    ("sweeps runs=one_run y=none_such", r"y: got 'none_such', which no summary or results or metrics has"),
    ("sweeps runs=one_run x=none_such", r"x: got 'none_such', which no run was told"),
    ("sweeps runs=one_run interval=wide", r"interval: got 'wide', expected auto, t or range"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the lines name: good files, and files and folders that are bad as a whole."""
    at = tmp_path_factory.mktemp("bad")
    bare = {key: GOOD[key] for key in ("prompt", "completions")}
    unscored = {key: CANDIDATE[key] for key in ("steps", "answer", "correct")}
    score = lambda *scores, **more: [{"id": "x", "scores": list(scores)} | more]
    other_unit = POOL | {"id": "r", "scores_unit": {"s": "logit"}}
    tables = {
        "good": [GOOD], "values": [GOOD | {"prompt": "r", "label_kind": "value"}], "bare": [bare], "bench": [BENCH],
        "two": [GOOD, GOOD | {"prompt": "r"}], "twice": [GOOD | {"id": "x"}, GOOD | {"id": "x", "prompt": "r"}],
        "unlabelled": [GOOD | {"labels": [None, None]}], "pool": [POOL], "two_units": [POOL, other_unit],
        "bare_pool": [POOL | {"candidates": [unscored]}], "no_gold": [POOL | {"answer": None}],
        "q": [QUESTION], "half": [QUESTION, {"problem": "2 +1 mod7?"}], "few": score(0.5), "high": score(3, 0.5),
        "nan": score(float("nan"), 0.5), "unit": score(0.5, 0.5, unit="percent"), "text": [{"id": "x", "scores": "high"}],
        "s": score(0.5, 0.5),
    }  # fmt: skip
    for name, rows in tables.items():
        (at / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = gzip.compress(
        b"".join(json.dumps(GOOD | {"prompt": os.urandom(40).hex()}).encode() + b"\n" for _ in range(99))
    )
    files = {
        "empty.jsonl": "", "blank.jsonl": "\n \n", "rows.csv": "a,b\n", "bad.parquet": "PAR1", "list.json": "[1]",
        "plain.jsonl.gz": "{}\n", "cut.jsonl.gz": whole[: len(whole) // 2], "folder.jsonl/a": "", "empty/.keep": "",
        "broken/.hydra/config.yaml": "a: [", "stopped/.hydra/config.yaml": "seed: 0\n", "stopped/checkpoints/best/.keep": "",
        "no_config/config.json": "{", "adapter/adapter_config.json": "{}", "bad_summary/summary.json": "{",
        "one_run/summary.json": json.dumps({"objective": "prm", "eval_loss": 0.5, "seed": 0, "overrides": []}),
    }  # fmt: skip
    for name, content in files.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (at / "empty/.keep").unlink(), (at / "stopped/checkpoints/best/.keep").unlink()
    config = json.loads((hf.SHIPPED["embedded_orm"] / "config.json").read_text())
    for name, changes in (
        ("no_weights", {}),
        ("cut_weights", {}),
        ("huge", {"num_hidden_layers": 10**9}),
        ("many_tokens", {"vocab_size": 100}),
    ):
        shutil.copytree(hf.SHIPPED["embedded_orm"], at / name)
        (at / name / "config.json").write_text(json.dumps(config | changes))
    (at / "no_weights/model.safetensors").unlink()
    data = (at / "cut_weights/model.safetensors").read_bytes()
    (at / "cut_weights/model.safetensors").write_bytes(data[: len(data) // 2])
    return at


def refused(command: str, folder, monkeypatch) -> str:
    """The one line with which a command line ends; its folder is free for the next one."""
    name, *words = shlex.split(command)
    monkeypatch.chdir(folder)
    own = ["hydra.run.dir=out"]
    if name == "train":  # what is taken in silence should end soon
        own += ["steps=1", "eval.solutions=20"]
        if not any(word.startswith(("data=", "resume=")) for word in words):
            own += ["data.samples=solver", "data.solutions=50", "data.test_solutions=20"]
    shutil.rmtree(folder / "out", ignore_errors=True)
    error = call(COMMANDS[name].main, monkeypatch, f"{name}.py", *own, *words)
    assert error.startswith("error: ") and "\n" not in error and len(error) < 700, error
    assert not (folder / "out/.hydra").exists(), "the corrected command would be refused"
    return error


@pytest.mark.parametrize("command, message", LINES, ids=[command for command, _ in LINES])
def test_a_bad_command_line_ends_in_one_line(command, message, folder, monkeypatch):
    error = refused(command, folder, monkeypatch)
    assert re.search(message, error), error


TABLE = [(table, change, message) for table, (*_, rows) in ROWS.items() for change, message in rows]


@pytest.mark.parametrize("table, change, message", TABLE, ids=[f"{t} {str(c)[:60]}" for t, c, _ in TABLE])
def test_a_bad_row_is_named_by_file_line_and_field(table, change, message, folder, monkeypatch):
    command, good, _ = ROWS[table]
    bad = change
    if isinstance(change, dict):
        bad = {key: value for key, value in (good | change).items() if value is not ...}
        if table == "candidate":
            good, bad = POOL, POOL | {"id": "other", "candidates": [bad]}
        bad = json.dumps(bad)
    path = folder / "rows.jsonl"
    path.write_bytes(
        json.dumps(good).encode() + b"\n" + (bad if isinstance(bad, bytes) else bad.encode()) + b"\n"
    )
    error = refused(command.format("rows.jsonl"), folder, monkeypatch)
    place = r"pool: problem other" if "problem other" in message else r"rows.jsonl line 2"
    assert re.search(place, error) and re.search(message, error), error


def test_a_line_of_a_packed_file_is_not_read_beyond_a_limit(folder, monkeypatch):
    monkeypatch.setattr(data_rows, "LONGEST", 1000)
    (folder / "bomb.jsonl.gz").write_bytes(gzip.compress(json.dumps(GOOD).encode() + b"\n[" + b" " * 10**6))
    error = refused("train data=jsonl data.path=bomb.jsonl.gz", folder, monkeypatch)
    assert re.search(r"bomb.jsonl.gz line 2: got '1,000 bytes', expected fewer in a line", error), error
    (folder / "long.json").write_text(json.dumps([GOOD] * 20))
    error = refused("train data=jsonl data.path=long.json", folder, monkeypatch)
    assert re.search(r"long.json: got '1,000 bytes', expected fewer in a .json file", error), error


def test_too_little_memory_is_one_line(folder, monkeypatch):
    def fail(*_):
        raise MemoryError("Unable to allocate 9. TiB")

    monkeypatch.setattr(evaluate, "checkpoints", fail)
    error = refused("evaluate checkpoint=random", folder, monkeypatch)
    assert error.startswith(
        "error: not enough memory (Unable to allocate 9. TiB); a file, a batch or a model is too"
    )


def test_the_tables_are_as_large_as_is_said():
    assert len(LINES) + len(TABLE) >= 250
