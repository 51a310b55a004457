"""A process that runs Math-Verify for grading.py: reads [gold, answer], writes a verdict, one a line.

Math-Verify's own time limit is a Python signal handler: it works in the main thread only, and not inside
compiled code (9^9^9^9). Here the kernel ends the process that spends more than its seconds of processor time
on a pair. Hash and random seeds are fixed, since SymPy's results may depend on them.
"""

import json
import os
import resource
import signal
import sys


def serve(seconds: float, memory: int):
    from math_verify import parse, verify
    from sympy.core.random import seed

    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    print("ready", file=replies, flush=True)
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # the parsers print what they cannot read
        os.dup2(null, stream)
    resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)  # without a handler the signal ends the process
        seed(0)
        gold, answer = (parse(rf"\boxed{{{text}}}", parsing_timeout=None) for text in json.loads(line))
        are_read = all(any(not isinstance(value, str) for value in values) for values in (gold, answer))
        verdict = "different" if are_read else "unparsable"
        if verify(gold, answer, timeout_seconds=None):
            verdict = "same"
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(verdict, file=replies, flush=True)


if __name__ == "__main__":
    serve(float(sys.argv[1]), int(sys.argv[2]))
