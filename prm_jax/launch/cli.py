"""Starts commands: help, configuration by Hydra, one-line errors, progress bars."""

import argparse
import contextlib
import difflib
import fcntl
import functools
import inspect
import io
import os
import re
import shlex
import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from tqdm import tqdm

from prm_jax import InputError
from prm_jax.launch.config import CONF, flatten, script
from prm_jax.launch.files import cache_folder
from prm_jax.launch.run_folder import begin_job

# Errors that are printed in one line: bad input, and refusals of the system such as a full disk or too little memory.
USER_ERRORS = (InputError, OSError, MemoryError)
# (folder, lock) of the sweep that this process runs; not in the callback, which launchers pickle.
active_sweeps: list[tuple[Path, TextIO | None]] = []
# {a key of ours: what other libraries and earlier versions call it}
SYNONYMS = {
    "optimizer.lr": "lr learning_rate", "steps": "epochs num_epochs num_train_epochs max_steps", "optimizer.warmup": "warmup_ratio",
    "batch.rows": "batch_size per_device_train_batch_size", "batch.accumulate": "gradient_accumulation_steps",
    "init": "model_name model_name_or_path", "batch.tokens": "max_length max_seq_length", "data.hub": "dataset dataset_name", "lora.rank": "lora_r",
    "input": "pool problems questions questions.file file", "data=jsonl data.path": "input problems questions file train_file", "checkpoint": "policy verifier",
    "eval.every": "eval_steps eval_strategy", "checkpoint_every": "save_steps save_strategy", "log_every": "logging_steps", "model.dtype": "bf16 fp16 dtype", "model.remat": "gradient_checkpointing",
    "optimizer.trainable": "use_peft", "optimizer.clip": "max_grad_norm", "optimizer.b1": "adam_beta1", "optimizer.b2": "adam_beta2", "model.head": "num_labels",
    "resume": "resume_from_checkpoint", "data.hub_split": "dataset_train_split split", "lora.targets": "lora_target_modules target_modules",
    "hydra.run.dir": "output_dir", "optimizer.final_lr": "lr_scheduler_type", "wandb": "report_to", "model.head_dropout": "disable_dropout",
}  # fmt: skip


class SweepFolder(Callback):
    """Notes a sweep's folder and locks it. Only the jobs, which may run elsewhere, and this callback learn the folder.
    A folder of numbered jobs belongs to one sweep at a time; stages of a figure share one, each under its own name."""

    def on_multirun_start(self, config: DictConfig, **more):
        folder, lock = Path(config.hydra.sweep.dir), None
        if OmegaConf.is_interpolation(config.hydra.sweep, "subdir"):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock = (folder / ".lock").open("a")  # released when the process ends
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sys.exit(f"error: hydra.sweep.dir: {folder}: another sweep works in it; stop that one first")
            except OSError:  # the first job prints why
                pass
        active_sweeps.append((folder, lock))


def command(config_name: str, end_of_sweep: Callable[[Path], None] | None = None):
    """Decorates a `main(cfg)` as a Hydra command whose --help is the commented configuration and whose errors are
    one line. `end_of_sweep` gets the folder of a sweep after its last job, even if jobs failed. The function itself is
    the command's __wrapped__, which api.py calls."""

    def decorate(main: Callable[[DictConfig], None]) -> Callable[[], None]:
        full_error = "HYDRA_FULL_ERROR" in os.environ  # the user wants tracebacks
        started = []  # the configurations of jobs

        def job(cfg: DictConfig):
            started.append(cfg)
            try:
                if begin_job(cfg):
                    check_experiment(config_name)
                    main(cfg)
            except Exception as error:
                hydra_cfg, is_users = HydraConfig.get(), isinstance(error, USER_ERRORS)
                if hydra_cfg.mode == RunMode.MULTIRUN:
                    why = one_line(error) if is_users else f"{type(error).__name__}: {error}"
                    path = Path(hydra_cfg.runtime.output_dir) / "error.txt"
                    path.write_text(f"{why} ({' '.join(hydra_cfg.overrides.task)})\n")
                    print(f"job {hydra_cfg.job.num}: {why}", file=sys.stderr)
                    error.is_printed = True
                    raise  # SystemExit would end a sweep; an exception lets Hydra start the next job
                if full_error or not is_users:
                    raise
                if not any(word.startswith("hydra.run.dir=") for word in hydra_cfg.overrides.hydra):
                    with contextlib.suppress(OSError):  # the folder is not empty
                        os.rmdir(hydra_cfg.runtime.output_dir)
                sys.exit(one_line(error))

        @functools.wraps(main)
        def start():
            if {"--help", "-h"} & set(sys.argv[1:]):
                try:
                    print_help(
                        config_name, main.__doc__, [word for word in sys.argv[1:] if not word.startswith("-")]
                    )
                    sys.stdout.flush()
                except BrokenPipeError:  # `--help | head`
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return
            started.clear()
            is_whole = False
            if "execution_whitelist" in inspect.signature(hydra.main).parameters:  # Hydra 1.4
                options = {"execution_whitelist": f"{SweepFolder.__module__}.SweepFolder"}
            else:
                options = {"version_base": "1.3"}
                # Python 3.14 checks the help of every option and refuses that of Hydra 1.3's --shell-completion.
                argparse.ArgumentParser._check_help = lambda self, action: None
            refuse_unknown_flags()
            run = hydra.main(config_path=str(CONF), config_name=config_name, **options)(job)
            os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise its errors, which become one line here
            try:
                if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
                    signal.signal(signal.SIGINT, signal.default_int_handler)  # train.py has its own
                use_compilation_cache()
                run()
                is_whole = True
            except Exception as error:
                is_known = isinstance(
                    error, (*USER_ERRORS, hydra.errors.HydraException, OmegaConfBaseException)
                )
                if full_error or started and not is_known:
                    raise
                if not is_known:  # Hydra's own, such as for data=null
                    error = InputError(f"{' '.join(sys.argv[1:])}: Hydra cannot read it: {error}")
                sys.exit(1 if getattr(error, "is_printed", False) else one_line(error, config_name))
            except KeyboardInterrupt:
                exit_interrupted()
            finally:
                if not full_error:
                    os.environ.pop("HYDRA_FULL_ERROR", None)
                if active_sweeps:
                    folder, lock = active_sweeps.pop()
                    if end_of_sweep:
                        end_of_sweep(folder)
                    if lock and not is_whole and any(folder.glob("[0-9]*")):
                        words = [x for x in sys.argv[1:] if not x.startswith("hydra.sweep.dir=")]
                        again = shlex.join([*words, f"hydra.sweep.dir={folder}"])
                        print(f"go on       {command_name(config_name)} {again}")

        return start

    return decorate


def refuse_unknown_flags():
    """Ends in one line at a flag that Hydra does not have, of which it would print its usage."""
    with contextlib.redirect_stderr(io.StringIO()) as output:
        try:
            get_args_parser().parse_args()
        except SystemExit as end:
            why = output.getvalue().strip().rpartition("error: ")[2]
            wrong = f"error: {why}; keys are KEY=VALUE, flags (-m) stand before them (--help)"
            sys.exit(wrong if end.code else 0)  # 0: --version


def experiment_of(path: Path) -> str | None:
    """The command that an experiment's file is for, by the one in its first lines: train or rl; None where it has none."""
    command = re.search(r"# python (?:-m prm_jax\.)?(\w+)", path.read_text())
    return command and command[1]


def check_experiment(config_name: str):
    """Raises InputError where experiment=NAME is one of another command."""
    name = HydraConfig.get().runtime.choices.get("experiment")
    if name and (owner := experiment_of(CONF / f"experiment/{name}.yaml")) not in (None, config_name):
        raise InputError(f"experiment: {name} is one of {command_name(owner)}")


def exit_interrupted(hint: str = ""):
    """Ends as shells expect of Ctrl-C. A shell's own loop ends too, as it does not for an error."""
    print(f"interrupted{hint}", file=sys.stderr)
    sys.exit(128 + signal.SIGINT)


def one_line(error: Exception, config_name: str | None = None, overrides: list[str] | None = None) -> str:
    """`error: MESSAGE` in one line, which suggests a key for a mistyped one of the configuration with these overrides,
    by default the command line's."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename or 'a file'}: {error.strerror}"
    if isinstance(error, MemoryError):
        text = f"not enough memory ({text or 'an object'}); a file, a batch or a model is too large for this machine"
    if isinstance(error, hydra.errors.OverrideParseException):
        key, _, value = error.override.partition("=")
        how = f"Hydra cannot read it; quote such a value twice: '{key}=\"{value}\"'"
        text = f"{error.override}: {how if value else f'has no value, expected {key}=VALUE'}"
    text = " ".join(line.strip() for line in text.splitlines() if line.strip())
    mistyped = re.match(r"Could not override '([^']+)'", text)
    if config_name and mistyped and not (CONF / mistyped[1]).is_dir():
        hint = hint_at(mistyped[1], config_name, overrides or sys.argv[1:])
        return f"error: {mistyped[1]}: no such key in the configuration; {hint}"
    options = r"Available options in '[^']+': (.*?)(?: Config search path|$)"
    if unknown := re.match(rf".*Could not find '([\w/]+)/([^'/]+)'.*?{options}", text):
        names = sorted(
            unknown[3].split(), key=lambda x: -difflib.SequenceMatcher(None, unknown[2], x).ratio()
        )
        return f"error: {unknown[1]}: got {unknown[2]!r}, expected {', '.join(names)}"
    is_whole = error.__cause__ is None or isinstance(error, InputError)
    if not is_whole and (cause := str(error.__cause__).partition("\n")[0]) not in text:
        text += f" ({cause})"
    return f"error: {text}"


def hint_at(key: str, config_name: str, words: list[str]) -> str:
    """Says what may be meant by a key that the configuration with these overrides lacks."""
    chosen = [word for word in words if (CONF / word.split("=")[0]).is_dir() and "," not in word]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = hydra.compose(config_name, chosen)
        for data in ("data=jsonl", "data=chain") if "data" in cfg and key.startswith("data.") else ():
            if key in dict(flatten(hydra.compose(config_name, [*chosen, data]))):
                return f"it is a key of {data}"
    keys = [name for name, _ in flatten(cfg) if name != key]
    for ours, theirs in SYNONYMS.items():
        if key in theirs.split() and ours.split("=")[0] in {*keys, *cfg, "hydra.run.dir"}:
            return f"did you mean {ours}?"
    last = {name.split(".")[-1]: name for name in keys}
    close = difflib.get_close_matches(key, keys, n=1, cutoff=0.8)
    close = close or [last[x] for x in difflib.get_close_matches(key.split(".")[-1], last, n=1, cutoff=0.75)]
    if close:
        return f"did you mean {close[0]}?"
    line = re.compile(rf"(?m)^{re.escape(key)}s?:")
    tasks = sorted(path.stem for path in CONF.glob("task/*.yaml") if line.search(path.read_text()))
    is_of_task = tasks and config_name == "evaluate"
    return f"it is a key of task={', '.join(tasks)}" if is_of_task else "--help lists every key"


def command_name(config_name: str) -> str:
    """How the command that reads conf/{config_name}.yaml is started from here."""
    module = {"sweeps": "figures.sweeps"}.get(config_name, config_name)
    return script(module) if module in ("train", "evaluate") else f"python -m prm_jax.{module}"


def print_help(config_name: str, doc: str, names: list[str]):
    """Prints the configuration file with its comments, which Hydra's own help drops, below a list of its groups of files;
    or of `names` alone: a group (data), a file of it with what it builds on (data=jsonl), a section (optimizer), what has
    a key (loss.gamma)."""
    top = (CONF / f"{config_name}.yaml").read_text().strip()
    groups = re.findall(r"^  - /?(\w+): (\w+)(?: +# (.*))?", top, flags=re.MULTILINE)
    sections = {x[1]: x[0].strip() for x in re.finditer(r"(?ms)^(\w+):.*?(?=^\S|\Z)", top)}
    for name in names:
        group, _, stem = name.partition("=")
        files = sorted((CONF / group).glob("*.yaml")) if re.fullmatch(r"\w+", group) else []
        shown = [f"# ----- {group}={path.stem} -----\n{path.read_text().strip()}\n" for path in files]
        if stem:
            texts = {path.stem: text for path, text in zip(files, shown, strict=True)}
            base = re.search(r"(?m)^defaults: \[(\w+), _self_\]", texts.get(stem, ""))
            shown = [texts[x] for x in (stem, base and base[1]) if x in texts]
        shown += [sections[group]] if group in sections else []
        print(
            "\n".join(
                shown or having(name, groups, sections) or [f"--help {name}: no such group, section or key"]
            )
        )
    if names:
        return
    command = command_name(config_name)
    print(f"{doc.strip()}\n\nUsage: {command} [key=value ...] [-m key=value1,value2 ...]\n")
    if groups:
        print(f"Groups of files, group=name chooses one; {command} --help GROUP shows its keys:")
    for group, default, about in groups:
        paths = sorted((CONF / group).glob("*.yaml"))
        stems = ", ".join(
            x.stem for x in paths if group != "experiment" or experiment_of(x) in (None, config_name)
        )
        print(
            textwrap.fill(
                f"{group:<12}{about or ''} (default: {default}): {stems}", 120, subsequent_indent=" " * 12
            )
        )
    print(f"\nKeys of the command; --help SECTION shows one:\n\n{top}")


def having(name: str, groups: list[tuple], sections: dict[str, str]) -> list[str]:
    """The sections that have a key, `loss.gamma` or `gamma`; else its lines in the files of the groups."""
    inside, _, key = name.rpartition(".")
    line = rf"(?m)^(?: +|\w+: {{(?:[^#\n]*, )?|){re.escape(key)}:.*(?:\n +#.*)*"
    if texts := [text for x, text in sections.items() if inside in ("", x) and re.search(line, text)]:
        return texts
    files = [
        path
        for group, *_ in groups
        if inside in ("", group)
        for path in sorted((CONF / group).glob("*.yaml"))
    ]
    lines = ((path, re.search(line, path.read_text())) for path in files)
    return [f"# ----- {path.parent.name}={path.stem} -----\n{x[0]}" for path, x in lines if x]


def use_compilation_cache():
    """Stores compiled programs on disk, so that only the first run with a shape waits for XLA."""
    import jax

    if not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def progress(what: str, total: int, unit: str, initial: int = 0, **more) -> tqdm:
    """A progress bar of process 0, or one line every 20 seconds where the output is a file."""
    import jax

    interval = dict.fromkeys(("mininterval", "maxinterval"), 0.5 if sys.stderr.isatty() else 20)
    return tqdm(
        desc=what,
        total=total,
        initial=initial,
        unit=unit,
        disable=jax.process_index() > 0,
        **interval,
        **more,
    )


def print_counts(counts: dict[str, float], totals=("rows", "solutions", "steps", "labels")):
    """Prints a line of everything that was dropped, cut, masked or odd in the data, without the totals."""
    odd = {name: n for name, n in counts.items() if n and name not in totals}
    if odd := [f"{n:.4g} {name}" if isinstance(n, float) else f"{n:,} {name}" for name, n in odd.items()]:
        print(f"counts      {', '.join(odd)}")
