"""Records what perfctl says, and compares it with what 1.0.0 said: values only, through outside
interfaces only.

    python guard.py check OUT [--perfctl CMD] [--project DIR] [--shared DIR] [--area NAME ...]
                              [--quick]
    python guard.py record OUT [the same options]
    python guard.py compare BEFORE... AFTER [--renames FILE] [--changes FILE] [--area NAME ...]
                                            [--quick]

``check`` is what ``make guard`` does: it records every area whose inputs exist, and compares it
with the recordings of 1.0.0. ``record`` writes one ``AREA.json.gz`` per area: an object of keys and
values. Ten areas have their inputs and their recording in SHARED, where 1.0.0 was recorded with the
same keys:

reading      each shared report: exit code, and counts and sums of what the results database holds per run
attribution  the same: launches and time by layer and pass, by kernel name, by counter
ledger       ``ledger --json``: estimated and executed FLOPs, states, ratios, causes and factors
compare      ``compare --json`` and ``history --json`` of pairs of runs
estimate     ``estimate --json`` of models and modules: parameters, FLOPs, bytes, memory
predict      ``predict --json``: medians and intervals
mfu          ``mfu --json``: every formula
launch       ``--dry-run`` of sweeps (argument lists), rendered job scripts
surface      options of every command, names and parameters of ``import perfctl``
exits        exit codes of wrong calls

The others have their recording in this folder (``recorded``):

damage         damaged files of tests/data: what ``ingest`` reads, reads partly, refuses
damage_shared  the same for small reports of SHARED
wheel          data files and metadata of the wheel; names, commands and exit codes with run-time dependencies alone
annotator      annotator.pyz: its files, and a run on an old Python without perfctl
stores         three results databases that 1.0.0 wrote (``stores``)
answers        charts, exports, traces, gates, speed-ups, plans, prices
causes         the simulator of causes, 2,000 draws of two seeds: per effect how many are right, missing, false
silicon        derived counts against hardware counters (inputs of SHARED)

Sentences are left out: text of more than four words, and keys whose value explains. Times of this
machine are never recorded. ``compare`` prints ``area / key: before -> after`` for each difference
that is neither renamed (renames.tsv: old pattern, new text, as regular expressions on keys) nor
expected (changes.tsv: area / key, before, after, reason; ``*`` stands for any text). Exit code 1: a
value differs, or an area is missing. ``--quick`` records a third.
"""  # noqa: E501

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import proofs
import questions
import reports
import stored
from compare import areas_of, compare, save
from recorder import Recorder, Values

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[2]
RECORDED, RENAMES, CHANGES = HERE / "recorded", HERE / "renames.tsv", HERE / "changes.tsv"
SHARED_AREAS: dict[str, Callable[[Recorder], Values]] = {
    "reading": reports.reading,
    "attribution": reports.attribution,
    "ledger": reports.ledger,
    "compare": reports.compare,
    "estimate": questions.estimate,
    "predict": questions.predict,
    "mfu": questions.mfu,
    "launch": questions.launch,
    "surface": questions.surface,
    "exits": questions.exits,
}
OWN_AREAS: dict[str, Callable[[Recorder], Values]] = {
    "damage": proofs.damage,
    "damage_shared": proofs.damage_shared,
    "wheel": proofs.wheel,
    "annotator": proofs.annotator,
    "stores": stored.stores,
    "answers": stored.answers,
    "causes": proofs.causes,
    "silicon": proofs.silicon,
}
AREAS = SHARED_AREAS | OWN_AREAS
NEEDS_SHARED = {*SHARED_AREAS, "damage_shared", "silicon"}


def record(options: argparse.Namespace) -> int:
    """Write the values of each area."""
    command = shlex.split(options.perfctl)
    command[0] = str(Path(shutil.which(command[0]) or command[0]).absolute())
    with tempfile.TemporaryDirectory() as work:
        recorder = Recorder(
            command,
            options.project.resolve(),
            options.shared.resolve(),
            Path(work).resolve(),
            options.quick,
        )
        for area in AREAS if options.area is None else options.area:
            start = time.monotonic()
            values = dict(AREAS[area](recorder))
            save(options.out / f"{area}.json.gz", values)
            print(f"{area}: {len(values):,} values, {time.monotonic() - start:.0f} s", flush=True)
    return 0


def check(options: argparse.Namespace) -> int:
    """Record, and compare with the recordings of 1.0.0."""
    areas = options.area or list(AREAS)
    if not (options.shared / "guard").is_dir():
        areas = [area for area in areas if area not in NEEDS_SHARED]
        print(
            f"guard: {options.shared} has no recording; only areas with inputs in the repository: "
            f"{', '.join(areas)}"
        )
    shutil.rmtree(options.out, ignore_errors=True)
    options.area = areas
    record(options)
    options.before, options.after = [options.shared / "guard", RECORDED], options.out
    options.renames, options.changes = RENAMES, CHANGES
    return compare_folders(options)


def compare_folders(options: argparse.Namespace) -> int:
    """Compare two recordings."""
    before, after = areas_of(options.before), areas_of([options.after])
    if options.area is not None:
        before, after = (
            {area: found[area] for area in options.area if area in found}
            for found in (before, after)
        )
    return compare(before, after, options.renames, options.changes, options.quick, options.most)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for name, run in (("check", check), ("record", record)):
        one = commands.add_parser(name)
        one.add_argument("out", type=Path)
        one.add_argument(
            "--perfctl", default="perfctl", help="the command, with the path of its environment"
        )
        one.add_argument(
            "--project", type=Path, default=PROJECT, help="the checkout of that perfctl"
        )
        shared = os.environ.get("PERFCTL_SHARED") or PROJECT.parent / "shared"
        one.add_argument(
            "--shared",
            type=Path,
            default=Path(shared),
            help="default: PERFCTL_SHARED, or ../shared",
        )
        one.set_defaults(run=run)
    two = commands.add_parser("compare")
    two.add_argument("before", type=Path, nargs="+")
    two.add_argument("after", type=Path)
    two.add_argument("--renames", type=Path)
    two.add_argument("--changes", type=Path)
    two.set_defaults(run=compare_folders)
    for each in commands.choices.values():
        each.add_argument("--area", action="append", choices=AREAS)
        each.add_argument(
            "--quick", action="store_true", help="record a third; compare what was recorded"
        )
        each.add_argument("--most", type=int, default=200, help="differences to print")
    options = parser.parse_args()
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
