"""Run scripts in processes forked from one that has loaded torch: loading it takes longer than any
of the scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

PERFCTL = ("-m", "perfctl.workloads")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore::UserWarning"}
_SERVER = """
import atexit, json, os, runpy, sys, tempfile
import torch, torch._dynamo
from perfctl.workloads.__main__ import main
torch.set_num_threads(1)

def start(folder, out, err, environment, argv):
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    append = os.O_CREAT | os.O_WRONLY | os.O_APPEND
    for number, file, how in ((0, os.devnull, os.O_RDONLY), (1, out, append), (2, err, append)):
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
    answer, *asked = json.loads(line)
    if os.fork() == 0:
        start(*asked)
    code = os.waitstatus_to_exitcode(os.wait()[1])
    with open(answer, "w") if answer else os.fdopen(1, "w", closefd=False) as told:
        print(code, file=told)
"""


class Done(NamedTuple):
    """How a script ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


class Forks:
    """Starts ``python ARGV`` in a folder, one after the other; ARGV is a script, or
    ``-m perfctl.workloads ...``."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def run(self, folder: Path, *argv: str, stem: str = "run") -> Done:
        """Its output is in ``folder``/``stem``.out and .err, too."""
        assert self._server.stdout is not None
        out, err = (folder / f"{stem}.{end}" for end in ("out", "err"))
        for file in (out, err):
            file.unlink(missing_ok=True)
        self._query_or_none(None, folder, out, err, os.environ | ENVIRONMENT, argv)
        code = int(self._server.stdout.readline())
        return Done(code, out.read_text(), err.read_text())

    def start(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        stdout: Path,
        stderr: Path,
    ) -> subprocess.Popen[bytes]:
        """Start one and return a process that ends as it does. A signal to that process does not
        reach it."""
        answer = Path(environment["TMPDIR"], "forked")
        os.mkfifo(answer)
        self._query_or_none(str(answer), cwd, stdout, stderr, environment, argv)
        waiting = ("sh", "-c", 'read code <"$0"; rm "$0"; exit "$code"', str(answer))
        return subprocess.Popen(waiting, stdin=subprocess.DEVNULL, start_new_session=True)

    def _query_or_none(
        self,
        answer: str | None,
        cwd: Path,
        out: Path,
        err: Path,
        environment: Mapping[str, str],
        argv: Sequence[str],
    ) -> None:
        assert self._server.stdin is not None
        asked = (
            answer,
            *map(str, (cwd, out.absolute(), err.absolute())),
            {**environment},
            list(argv),
        )
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()


@contextmanager
def forks() -> Iterator[Forks]:
    """While the block runs there is a process to fork from."""
    environment = {**os.environ, **ENVIRONMENT}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], env=environment, stdin=pipe, stdout=pipe, text=True
    ) as server:
        yield Forks(server)
        assert server.stdin is not None
        server.stdin.close()
        server.kill()
