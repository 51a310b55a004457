"""Lists the commands, or runs one: python -m prm_jax train steps=100"""

import runpy
import sys

from prm_jax.launch.config import ROOT

COMMANDS = {
    "train": "a process reward model, an outcome model or a language model, into a run folder",
    "evaluate": "verifiers: step metrics, best-of-N, search, benchmarks, your own solutions",
    "sampling": "a pool of graded solutions of problems, by a language model or a server",
    "labeling": "labels of steps by the completions of a policy",
    "relabeling": "labels of steps from what is there: a verifier, scores, an exact checker",
    "rl": "a policy trained by rewards of its steps and answers",
    "export": "a run as a Hugging Face folder",
    "figures": "a paper's figure from nothing",
    "figures.sweeps": "the table and the figure of any number of runs",
    "bench": "speed and memory, PyTorch or TRL beside it",
}


def main():
    if sys.argv[1:2] in (["--help"], ["-h"]) and sys.argv[2:]:  # --help COMMAND
        sys.argv[1:3] = sys.argv[2:0:-1]
    name = sys.argv[1] if sys.argv[1:] else "--help"
    if name in ("train", "evaluate"):
        del sys.argv[1]
        runpy.run_path(str(ROOT / f"{name}.py"))["main"]()
    elif name in COMMANDS:
        del sys.argv[1]
        runpy.run_module(f"prm_jax.{name}", run_name="__main__", alter_sys=True)
    elif name in ("--help", "-h"):
        lines = "".join(f"\n  {name:<16}{what}" for name, what in COMMANDS.items())
        print(f"Usage: python -m prm_jax COMMAND [key=value ...], and COMMAND --help for its keys\n{lines}")
    else:
        sys.exit(f"error: {name}: no such command, expected {', '.join(COMMANDS)}")


if __name__ == "__main__":
    main()
