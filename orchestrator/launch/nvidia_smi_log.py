"""Sample GPUs with nvidia-smi where NVML cannot be used: copy its CSV to a file, line by line."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

from perfctl.orchestrator.launch import adoption

FIELDS = (
    "timestamp", "index", "name", "utilization.gpu", "memory.used", "memory.total", "power.draw", "temperature.gpu",
    "clocks.sm", "clocks.mem",
)  # fmt: skip
"""In every nvidia-smi since 2016; an unknown field would make it print nothing else."""
SHORTEST_S = 0.02
END_S = 2.0


def command(program: str, every_s: float, visible: str | None) -> tuple[str, ...]:
    """The argument list; ``visible`` is the value of CUDA_VISIBLE_DEVICES."""
    chosen = ("-i", visible) if visible else ()
    milliseconds = round(max(every_s, SHORTEST_S) * 1000)
    return (program, f"--query-gpu={','.join(FIELDS)}", "--format=csv", f"--loop-ms={milliseconds}", *chosen)


class SmiLog:
    """Runs until ``close``. If perfctl is killed, nvidia-smi ends at its next line, which nobody reads."""

    def __init__(self, path: Path, every_s: float, visible: str | None, program: str) -> None:
        self.first_ns: int | None = None
        """Monotonic clock when the first reading arrived."""
        self._path = path
        with adoption.starting() as own:
            self._process = subprocess.Popen(
                command(program, every_s, visible), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            own.add(self._process.pid)
        self._thread = threading.Thread(target=self._copy, name="perfctl-nvidia-smi", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(END_S)

    def _copy(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as said, self._path.open("wb", buffering=0) as file:  # kept if perfctl is killed
            for number, line in enumerate(said):
                if number == 1:  # the first is the header
                    self.first_ns = time.monotonic_ns()
                file.write(line)
