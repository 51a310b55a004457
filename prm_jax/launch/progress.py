"""What a command shows while it works: a progress bar, and what its data lost."""

import sys

from tqdm import tqdm


def progress(what: str, total: int, unit: str, initial: int = 0, **more) -> tqdm:
    """A progress bar of process 0, or one line every 10 seconds where the output is a file."""
    import jax  # not above: a worker process that grades answers needs no jax

    more |= dict.fromkeys(("mininterval", "maxinterval"), 0.5 if sys.stderr.isatty() else 10)
    hidden = jax.process_index() > 0
    return tqdm(desc=what, total=total, initial=initial, unit=unit, disable=hidden, **more)


TOTALS = ("rows", "solutions", "steps", "labels", "policy_tokens")  # counts of all that was read or drawn


def print_counts(counts: dict[str, int], totals=TOTALS):
    """Prints a line of everything that was dropped, cut, masked or odd in the data, without the totals, which
    stand behind the name of a mixture's source."""
    ends = tuple(f"_{name}" for name in totals)
    if odd := [f"{n:,} {name}" for name, n in counts.items() if n and not f"_{name}".endswith(ends)]:
        print(f"counts      {', '.join(odd)}")
