"""A process that answers one question after another: one that takes too long is ended, and the next gets a new process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from perfctl.orchestrator.errors import PerfctlError

_GRACE = 10.0
"""Seconds more than a question may take, for the first: the process has to start."""


class Worker:
    """Questions wait for each other: one is answered at a time, so that ten together take no more memory than one."""

    def __init__(self, store: Path, seconds: float) -> None:
        self.store = store
        self.seconds = seconds
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Connection | None = None

    def ask(self, tool: str, arguments: dict[str, Any]) -> str:
        """The answer as JSON. Raises PerfctlError, in one line, where there is none."""
        question = json.dumps({"tool": tool, "arguments": arguments}).encode()
        with self._turn:
            line, seconds = self._line, self.seconds
            if line is None:
                line, seconds = self._start(), seconds + _GRACE
            try:
                line.send_bytes(question)
                if not line.poll(seconds):
                    self._end()
                    problem = f"{tool} took longer than {self.seconds:g} s and was ended"
                    raise PerfctlError(problem, "Ask for less: one run, layer or batch, fewer rows")
                answer = json.loads(line.recv_bytes())
            except (EOFError, OSError) as error:
                self._end()
                problem = f"{tool}: the process that answers ended, as it does when memory runs out"
                raise PerfctlError(problem, "Ask for less: one run, layer or batch") from error
        if "error" in answer:
            raise PerfctlError(answer["error"])
        return str(answer["answer"])

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._end()

    def _start(self) -> Connection:
        self._line, other = Pipe()
        with other:
            argv = [
                sys.executable,
                "-P",
                "-m",
                "perfctl.orchestrator.actions.mcp.worker",
                str(self.store),
                str(other.fileno()),
            ]
            self._process = subprocess.Popen(
                argv, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        return self._line

    def _end(self) -> None:
        process, line = self._process, self._line
        self._process = self._line = None
        if line is not None:
            line.close()
        if process is not None:
            process.kill()
            process.wait()


def _serve(store: Path, line: Connection) -> None:
    """What the process does, until nobody asks any more."""
    from perfctl.orchestrator.actions.mcp.tools import call, one_line
    from perfctl.orchestrator.actions.wall.unexpected import said_of, short_of_memory

    while True:
        try:
            asked = json.loads(line.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            said = {"answer": call(store, asked["tool"], asked["arguments"])}
        except PerfctlError as error:
            said = {"error": str(error)}
        except MemoryError:
            said = {"error": short_of_memory(asked["tool"], None)}
        except Exception as error:
            said = {"error": one_line(said_of(f"perfctl mcp {asked['tool']}", error))}
        try:
            line.send_bytes(json.dumps(said).encode())
        except OSError:
            return


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), Connection(int(sys.argv[2])))
