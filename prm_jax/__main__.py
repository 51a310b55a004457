"""Lists the commands, or runs one: python -m prm_jax train steps=100"""

import runpy
import sys

from prm_jax.launch.config import ROOT

COMMANDS = {
    "train": "a process reward model, an outcome model or a language model, into a run folder",
    "evaluate": "verifiers: step metrics, best-of-N, search, benchmarks, your own solutions",
    "sampling": "a pool of graded solutions of problems, by a language model or a server",
    "labeling": "labels of steps by the completions of a policy",
    "rl": "a policy trained by rewards of its steps and answers",
    "export": "a run as a Hugging Face folder",
    "sweeps": "the table and the figure of any number of runs",
    "bench": "speed and memory",
}


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("--help", "-h"):
        print("Usage: python -m prm_jax COMMAND [key=value ...], and COMMAND --help for its keys\n")
        print("\n".join(f"  {name:<12}{what}" for name, what in COMMANDS.items()))
        return
    if name not in COMMANDS:
        sys.exit(f"error: {name}: no such command, expected {', '.join(COMMANDS)}")
    del sys.argv[1]
    if name in ("train", "evaluate"):
        runpy.run_path(str(ROOT / f"{name}.py"))["main"]()
    else:
        runpy.run_module(f"prm_jax.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
