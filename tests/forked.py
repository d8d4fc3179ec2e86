"""Run scripts in processes forked from one that has loaded torch: loading it takes longer than any of the scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

PERFCTL = ("-m", "perfctl.workloads")
_SERVER = """
import atexit, json, os, runpy, sys
import torch, torch._dynamo
from perfctl.workloads.__main__ import main
torch.set_num_threads(1)

def start(folder, stem, argv):
    os.chdir(folder)
    for number, file, how in ((0, os.devnull, os.O_RDONLY), (1, f"{stem}.out", os.O_CREAT | os.O_WRONLY | os.O_TRUNC),
                              (2, f"{stem}.err", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)):
        os.dup2(os.open(file, how), number)
    code = 0
    try:
        if argv[:2] == ["-m", "perfctl.workloads"]:
            code = main(argv[2:])
        else:
            sys.argv = argv
            sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)  # what Python does beyond that takes a second with torch

for line in sys.stdin:
    if os.fork() == 0:
        start(*json.loads(line))
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


class Done(NamedTuple):
    """How a script ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


class Forks:
    """Starts ``python ARGV`` in a folder, one after the other; ARGV is a script, or ``-m perfctl.workloads ...``."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def run(self, folder: Path, *argv: str, stem: str = "run") -> Done:
        """Its output is in ``folder``/``stem``.out and .err, too."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps((str(folder), stem, argv)) + "\n")
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        return Done(code, *((folder / f"{stem}.{end}").read_text() for end in ("out", "err")))


@contextmanager
def forks() -> Iterator[Forks]:
    """While the block runs there is a process to fork from."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore::UserWarning"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], env=environment, stdin=pipe, stdout=pipe, text=True
    ) as server:
        yield Forks(server)
        assert server.stdin is not None
        server.stdin.close()
        server.kill()
