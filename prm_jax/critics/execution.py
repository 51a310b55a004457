"""Runs the code of a critique in a process of its own, where format.critic.execute=true.

It has limits on CPU and real time, memory, output and, unless it is root's, processes, can enlarge no file and sees no
environment. Its process group is killed at its end. An audit hook refuses files but Python's own, processes and the
network. The hook stops mistakes; code that wants to can disable it. So the code runs in a sandbox where one works
(bubblewrap, or unshare and setpriv of util-linux): no network, no file but the system's programs and Python's own, all
read-only, no process of others in sight, and none that outlives it. Elsewhere a line says what is not stopped; a critic
that you do not trust then needs a container.
"""

import contextlib
import functools
import os
import selectors
import shlex
import signal
import subprocess
import sys
import tempfile
import time

SECONDS, MEGABYTES, CHARACTERS = 5, 1024, 2000

# The child sets limits, then an audit hook, which Python calls before it opens, connects or starts anything. The hook is
# out of reach of the code's frames and of __main__, but not of one who searches the memory.
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
os.environ.clear()
def confine():
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
                    "fcntl", "webbrowser", "sqlite3", "gc") or event == "import" and args[0] == "readline":
            raise PermissionError(f"not allowed: {event}")
        if event == "object.__setattr__" and args[1] == "__code__":
            raise PermissionError(f"not allowed: {event}")
        if kind == "os" and event not in ("os.listdir", "os.scandir", "os.putenv", "os.unsetenv"):
            raise PermissionError(f"not allowed: {event}")
        if event in ("os.listdir", "os.scandir") and not (realpath(string(args[0])) + "/").startswith(allowed):
            raise PermissionError(f"not allowed: {event}")
    sys.addaudithook(hook)
confine()
exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
"""

# sh FOLDER PATH.. -- COMMAND: runs the command with FOLDER as its root, where there are the paths alone, read-only. The
# shell stays the first process of its namespace: with it all others end.
ROOT = """
set -e; umask 022; root=$1; shift
mount -t tmpfs -o mode=755 none "$root"
while [ "$1" != -- ]; do
    mkdir -p "$root$1"; mount --bind "$1" "$root$1"; mount -o remount,bind,ro "$root$1"; shift
done
shift; mount -o remount,bind,ro "$root"
chroot "$root" "$@"; exit $?
"""


def sandboxes(folder: str) -> list[list[str]]:
    """What stands before a command to run it in a sandbox whose root is the empty folder, the best way first; the last
    is no sandbox."""
    paths = {"/usr", "/lib", "/lib64", "/bin", sys.prefix, sys.base_prefix}
    paths = sorted(path for path in paths if os.path.isdir(path))
    bwrap = [
        "bwrap",
        "--die-with-parent",
        *(f"--unshare-{x}" for x in ("pid", "net", "ipc", "uts")),
        "--cap-drop",
    ]
    bwrap += [
        "ALL",
        *(x for path in paths for x in ("--ro-bind", path, path)),
        "--remount-ro",
        "/",
        "--chdir",
        "/",
    ]
    unshare = shlex.split(
        "setpriv --pdeathsig KILL unshare --fork --kill-child --pid --mount --net --ipc --uts"
    )
    inside = ["sh", "-c", ROOT, "sh", folder, *paths, "--"]
    inside += ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    nobody = [
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ]  # the limit on processes does not hold for root
    return [[*unshare, *inside, *nobody], bwrap, [*unshare, "--user", "--map-root-user", *inside], []]


@functools.cache
def sandbox() -> int:
    """The number of the first of `sandboxes` that works here; where it is the last, a line says what that means."""
    *real, none = range(len(sandboxes("")))
    for number in real:
        if run_code("print(6 * 7)", number=number) == ("42", True):
            return number
    risk = (
        "code that wants to can read and change this user's files, use the network and leave processes behind"
    )
    print(f"critic      no sandbox works here (bwrap, or unshare and setpriv): {risk}")
    return none


def run_code(code: str, seconds=SECONDS, megabytes=MEGABYTES, number: int | None = None) -> tuple[str, bool]:
    """(the code's output cut to CHARACTERS, or how it failed; whether it ended by itself and without an error).

    number: which of `sandboxes` it runs in; None: the first that works here."""
    number = sandbox() if number is None else number
    command = [sys.executable, "-I", "-B", "-c", CHILD, str(seconds), str(megabytes)]
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/bin:/sbin:/bin"
    environment = {"PATH": path, "OPENBLAS_NUM_THREADS": "1"}  # its threads would be processes too many
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as file:
        file.write(code.encode("utf-8", "replace"))
        file.seek(0)
        try:
            with subprocess.Popen(
                [*sandboxes(folder)[number], *command], stdin=file, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, cwd=folder, env=environment, start_new_session=True,
            ) as process:  # fmt: skip
                out, err = outputs(process, 4 * seconds)
        except FileNotFoundError as error:
            return f"Error: {error}", False
        except subprocess.TimeoutExpired:
            return f"Error: took more than {4 * seconds} seconds", False
    text = out.decode("utf-8", "replace").strip()
    if process.returncode:
        last = err.decode("utf-8", "replace").strip().splitlines()[-1:]
        why = last[0] if last else f"ended with status {process.returncode}, as at a limit"
        text = f"{text}\n" * bool(text) + f"Error: {why}"
    return text[:CHARACTERS], process.returncode == 0


def outputs(process: subprocess.Popen, seconds: float) -> list[bytes]:
    """The starts of a process's output and errors; its group has ended then. Raises TimeoutExpired where it takes
    longer, or another process that holds its output."""
    kept, end = {process.stdout: b"", process.stderr: b""}, time.monotonic() + seconds
    try:
        with selectors.DefaultSelector() as selector:
            for pipe in kept:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(max(end - time.monotonic(), 0))
                if not ready or time.monotonic() > end:
                    raise subprocess.TimeoutExpired(process.args, seconds)
                for key, _ in ready:
                    data, pipe = os.read(key.fd, 1 << 16), key.fileobj
                    kept[pipe] = (kept[pipe] + data)[: 1 << 16]
                    if not data:
                        selector.unregister(pipe)
        process.wait(max(end - time.monotonic(), 0))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return list(kept.values())
