"""Cost of sampling during a run: the same work with and without it, run alternately.

The work counts its iterations in a fixed time on every core; time for sampling reduces the count.
Other work on the machine can hide this, so the CPU time of the sampler is reported too. Nothing
is asserted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from perfctl import parsers
from perfctl.orchestrator.launch.process import run
from perfctl.orchestrator.launch.profilers.base import Command
from perfctl.orchestrator.launch.sampling.sampler import FILE, SamplingSettings

WORK = """
import os, sys, time
for _ in range(int(sys.argv[2]) - 1):
    if os.fork() == 0: break
end, count = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < end:
    for _ in range(1000): pass
    count += 1
os.write(1, b"%d\\n" % count)
try:
    while True: os.wait()
except ChildProcessError: pass
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7, help="pairs of runs (default 7)")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a run (default 4)")
    parser.add_argument(
        "--every-ms", type=float, default=50.0, help="time between readings (default 50)"
    )
    asked = parser.parse_args()
    lost, own, counts = [], [], []
    for number in range(asked.rounds):
        pair = {}
        for sampled in (False, True) if number % 2 else (True, False):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                pair[sampled] = _run(
                    folder, asked.seconds, asked.every_ms / 1000 if sampled else None
                )
                if sampled:
                    report = parsers.parse(folder / FILE)
                    figures = {item.name: item.value or 0.0 for item in report.summaries}
                    own.append(figures["sampling: CPU time"] / 1e9 / asked.seconds)
                    counts.append(figures["sampling: readings"])
        lost.append(1 - pair[True] / pair[False])
    print(
        f"sampling every {asked.every_ms:g} ms beside {os.cpu_count()} busy processes, "
        f"{asked.seconds:g} s, {asked.rounds} pairs"
    )
    took = statistics.median(own)
    said = f"{took * 100:.2f} % of one core, {statistics.median(counts):.0f} readings a run"
    print(f"  CPU time of the sampler  {said}; under 1 %: {_verdict(took)}")
    middle, low, high = (
        f"{share * 100:+.2f}" for share in (statistics.median(lost), min(lost), max(lost))
    )
    print(
        f"  work that was lost       {middle} % ({low} to {high} %); means something on an idle "
        "machine only"
    )


def _run(folder: Path, seconds: float, every_s: float | None) -> int:
    """Rounds of all processes together."""
    run.run_command(
        Command((sys.executable, "-c", WORK, str(seconds), str(os.cpu_count())), "run"),
        cwd=folder,
        stdout=folder / "out",
        stderr=folder / "err",
        scratch=folder / "tmp",
        sampling=None if every_s is None else SamplingSettings(every_s, folder, gpu=False),
    )
    return sum(map(int, (folder / "out").read_text().split()))


def _verdict(share: float) -> str:
    return "ok" if share < 0.01 else "missed"


if __name__ == "__main__":
    main()
