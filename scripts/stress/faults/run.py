"""Does perfctl keep its promises when real processes are killed and disturbed?  ``make faults``

    python scripts/stress/faults/run.py [--only NAME] [--seed N] [--moments N] [--kills N]

Each fault is tried in its own scratch folder. The table shows how often, whether the promise held,
and what happened; the exit code is 1 when one did not hold. Faults that need something this machine
lacks (nsys, ncu, root for a small disk) are skipped and listed. Set TMPDIR to a large disk: big
inputs have 10 GB, one at a time, and are removed. ``--kills 120`` kills what writes to a store 120
times at random moments, shared between the commands, and tries nothing else.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import big
import disk
import hostile
import places
import programs
import signals
import stores
import tools
from scene import Broken, Fault, Scene, Skipped

WRITERS = ("stop-ingest", "stop-jobs", "stop-gather", "migrate")
"""Faults that kill what writes to a store, where there are such."""
FAMILIES = (signals, tools, programs, disk, stores, places, hostile, big)


def main() -> int:
    """Try the faults; return 1 when a promise did not hold."""
    asked = _arguments()
    faults = [
        fault
        for family in FAMILIES
        for fault in family.FAULTS
        if asked.only in f"{family.__name__}.{fault.name}"
    ]
    if asked.kills is not None:
        faults = [fault for fault in faults if fault.name in WRITERS]
        asked.moments = -(-asked.kills // len(faults))
    if asked.list:
        print("\n".join(f"{fault.name}: {fault.what}" for fault in faults))
        return 0
    print(f"{len(faults)} faults, {asked.moments} random moments, seed {asked.seed}\n")
    print("| fault | tried | held | s | what was seen |\n|---|---|---|---|---|", flush=True)
    return int(sum([_failed(fault, asked) for fault in faults]) > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", metavar="NAME", help="faults whose family.name holds this"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the random moments")
    parser.add_argument(
        "--moments", type=int, default=50, help="random moments of each command that is stopped"
    )
    parser.add_argument(
        "--kills", type=int, metavar="N", help="only kill what writes to a store, N times in all"
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the folders of faults that did not hold"
    )
    parser.add_argument("--list", action="store_true", help="name the faults, and try none")
    return parser.parse_args()


def _failed(fault: Fault, asked: argparse.Namespace) -> bool:
    """One fault, and its row."""
    folder = Path(tempfile.mkdtemp(prefix=f"perfctl-faults-{fault.name}-"))
    scene = Scene(folder, Random(f"{asked.seed} {fault.name}"), asked.moments)  # noqa: S311
    held, started = "yes", time.monotonic()
    try:
        fault.act(scene)
        scene.nothing_left()
    except Skipped as reason:
        held = "skipped"
        scene.seen.append(str(reason))
    except Broken as error:
        held = "NO"
        scene.seen.append(str(error))
    said = "; ".join(scene.seen).replace("|", "\\|").replace("\n", " ").replace(str(folder), "...")
    print(
        f"| {fault.name} | {scene.tried} | {held} | {time.monotonic() - started:.0f} | {said} |",
        flush=True,
    )
    if held == "NO" and asked.keep:
        print(f"  kept: {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return held == "NO"


if __name__ == "__main__":
    sys.exit(main())
