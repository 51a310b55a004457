"""Logs a training run to metrics.jsonl, W&B and the bar, and receives the signal to stop."""

import json
import math
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from omegaconf import OmegaConf
from tqdm import tqdm

from prm_jax import InputError
from prm_jax.launch.files import keep_steps, sha256
from prm_jax.launch.run_folder import run_config


class MetricsLog:
    """metrics.jsonl, an object a logged step, without the lines after step `first`; W&B, too, if asked."""

    def __init__(self, run: Path, first: int, wandb: str | None = None):
        self.wandb = None
        if wandb is not None:
            from wandb import init

            settings = OmegaConf.to_container(run_config(run))
            name = sha256(str(run.resolve()))[:16]  # the same for a resumed run
            about = {"project": "prm_jax", "id": name, "resume": "allow", "config": settings}
            self.wandb = init(mode=wandb, dir=run, **about)
        path = run / "metrics.jsonl"
        keep_steps(path, first)
        self.file = path.open("a")

    def write(self, record: dict):
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()
        if self.wandb is not None:
            scalars = {name: x for name, x in record.items() if name != "step" and not isinstance(x, dict)}
            self.wandb.log(scalars, step=record["step"])

    def close(self):
        self.file.close()
        if self.wandb is not None:
            self.wandb.finish()


class StepReader:
    """Reads the numbers of a step while the device computes the next one. `position(step)` adds what the
    caller knows, such as the learning rate; `before` are the seconds of earlier sessions."""

    def __init__(self, log: MetricsLog, bar: tqdm, every: int, before: float, position: Callable):
        self.log, self.bar, self.every, self.position = log, bar, every, position
        self.before = before
        self.started = time.perf_counter()
        self.tokens = 0.0
        self.pending = None  # (step, its numbers), still on the device
        self.stop = 0  # the number of a signal to stop that any process has received

    @property
    def seconds(self) -> float:
        """The seconds of the run in all its sessions."""
        return self.before + time.perf_counter() - self.started

    def add(self, step: int, metrics: dict):
        """Takes a step's numbers and logs those of the step before."""
        if self.pending and (record := self.read())["step"] % self.every == 0:
            self.log.write(record)
        self.pending = step, metrics

    def read(self) -> dict:
        """The numbers of the newest step, once the device has them; InputError where one is not finite."""
        (step, metrics), self.pending = self.pending, None
        self.stop = max(self.stop, int(metrics.pop("stop")))
        metrics = require_finite(step, {name: float(x) for name, x in metrics.items()})
        self.tokens += metrics["n_tokens"]
        seconds = self.seconds
        rate = self.tokens / (seconds - self.before)
        self.bar.set_postfix({"loss": f"{metrics['loss']:.4f}", "tok/s": f"{rate:,.0f}"}, refresh=False)
        self.bar.update()
        times = {"tokens_per_second": rate, "seconds": seconds}
        return {"step": step, **metrics, **self.position(step), **times}


def require_finite(step: int, numbers: dict[str, float]) -> dict[str, float]:
    """The numbers; InputError where one is NaN or infinite, so that no checkpoint is written."""
    if broken := [f"{name} is {x}" for name, x in numbers.items() if not math.isfinite(x)]:
        raise InputError(f"step {step}: {', '.join(broken)}; stopped, with no checkpoint of it")
    return numbers


class StopSignal:
    """Remembers the first SIGTERM or SIGINT, so that the loop can save and end; a second one ends at once."""

    received: signal.Signals | None = None

    def __enter__(self):
        self.handlers = {s: signal.signal(s, self.receive) for s in (signal.SIGTERM, signal.SIGINT)}
        return self

    def receive(self, number, frame):
        self.received = signal.Signals(number)
        self.__exit__()

    def __exit__(self, *error):
        for s, handler in self.handlers.items():
            signal.signal(s, handler)


def leave(received: int, step: int, run: Path):
    """Ends the command after a checkpoint that the signal `received` asked for."""
    name = signal.Signals(received).name
    print(f"stopped     by {name} after step {step}; continue with resume={run}")
    sys.exit(128 + received)
