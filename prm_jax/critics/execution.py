"""Runs the code of a critique in a process of its own, where format.critic.execute=true.

It has limits on CPU time, memory and output, writes no file, reads only Python's own, starts no process and has neither
network nor environment. This stops mistakes and simple attacks; a critic that you do not trust needs a container.
"""

import subprocess
import sys
import tempfile

SECONDS, MEGABYTES, CHARACTERS = 5, 1024, 2000

# The child sets limits, then an audit hook, which Python calls before it opens, connects or starts anything.
CHILD = """
import os, resource, sys, sysconfig
seconds, megabytes = int(sys.argv[1]), int(sys.argv[2])
for kind, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, megabytes << 20), (resource.RLIMIT_FSIZE, 0),
                   (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NPROC, 0)):
    resource.setrlimit(kind, (most, most))
code = sys.stdin.read()
for name in ("numpy", "sympy"):  # what critics use; they load libraries, which the hook forbids
    if name in code:
        __import__(name)
paths = (*sysconfig.get_paths().values(), *sys.path)
allowed = tuple({os.path.realpath(path) + os.sep for path in paths if os.path.isdir(path)})
reading, realpath, string = os.O_RDONLY | os.O_CLOEXEC, os.path.realpath, str
def hook(event, args):
    kind = event.split(".")[0]
    if event == "open":
        path, mode, flags = args
        reads = flags is None or not flags & ~reading
        if isinstance(path, int) or reads and realpath(string(path)).startswith(allowed):
            return
        raise PermissionError(f"no file may be opened: {path}")
    if kind in ("socket", "subprocess", "ctypes", "shutil", "ftplib", "urllib", "smtplib", "pty", "mmap", "_winapi",
                "fcntl", "webbrowser"):
        raise PermissionError(f"not allowed: {event}")
    if kind == "os" and event not in ("os.listdir", "os.scandir", "os.putenv", "os.unsetenv"):
        raise PermissionError(f"not allowed: {event}")
    if event in ("os.listdir", "os.scandir") and not (realpath(string(args[0])) + "/").startswith(allowed):
        raise PermissionError(f"not allowed: {event}")
sys.addaudithook(hook)
exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
"""


def run_code(code: str, seconds: int = SECONDS, megabytes: int = MEGABYTES) -> tuple[str, bool]:
    """(the code's output cut to CHARACTERS, or how it failed; whether it ended by itself and without an error)."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            process = subprocess.run(
                [sys.executable, "-I", "-B", "-c", CHILD, str(seconds), str(megabytes)],
                input=code.encode("utf-8", "replace"), capture_output=True, cwd=folder, env={}, check=False,
                timeout=4 * seconds,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"Error: took more than {4 * seconds} seconds", False
    text = process.stdout.decode("utf-8", "replace").strip()
    if process.returncode:
        last = process.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        why = last[0] if last else f"ended with status {process.returncode}, as at a limit"
        text = f"{text}\n" * bool(text) + f"Error: {why}"
    return text[:CHARACTERS], process.returncode == 0
