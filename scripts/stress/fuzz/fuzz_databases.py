"""Fuzzing of the binary readers with damaged databases: ``make fuzz``, or this file with
``[FORMAT...]``.

Each format runs in its own process, for an equal share of FUZZ_SECONDS (600), from the reports of
tests/data and of REPORTS (a folder; ../shared/reports where it is there). A mutant follows from its
number: ``--mutant FORMAT NUMBER`` makes it again.

Each is read as a whole, and compared with the undamaged report: it is refused, or the same, or
differs and says so (by a gap, a diagnostic or another form), or differs in silence. What the
parser's records do not say the store may: a mutant that is silent is written into a store, whose
gaps count. Findings are exceptions other than ReportError, the end of the process, 10 CPU s (30 s
on the clock), and 1 GiB of memory: such a mutant is kept in build/fuzz/FORMAT/ and the exit code
is 1. Silent mutants are counted by kind of damage and shown; not all of them can be noticed.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import damage_files
import damage_sqlite

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests" / "data"
REPORTS = Path(os.environ.get("REPORTS", ROOT.parent / "shared" / "reports"))
KEPT = ROOT / "build" / "fuzz"
SECONDS_PER_INPUT = 10
MEMORY_BYTES = 1 << 30
"""More than the process has when it begins."""
LARGEST = 4_000_000
"""Bytes of a sample; each is read once a mutant."""
SHOWN = 12

Snapshot = tuple[dict[str, Any], frozenset[str]]
"""What a report holds, field by field, and what it says about itself."""


@dataclass(frozen=True)
class Format:
    """One binary format."""

    seeds: tuple[str, ...]
    """Below tests/data and REPORTS."""
    damaged: Callable[[Path, Path, Random], list[str]]
    endings: tuple[str, ...]
    """Of the mutants' names."""


FORMATS = {
    "nsys": Format(
        ("recorded-cpu/nsys/*/*.sqlite", "nsys/*/*.sqlite", "nsys/*/*/*.sqlite"),
        damage_sqlite.damaged,
        (".sqlite",),
    ),
    "dldb": Format(("dlprof/*/*dldb.sqlite",), damage_sqlite.damaged, (".sqlite",)),
    "rocm": Format(("rocm/rocprofv3/*.db",), damage_sqlite.damaged, (".db",)),
    "ncu-rep": Format(("ncu/rep/*.ncu-rep",), damage_files.ncu_rep, (".ncu-rep",)),
    "snapshot": Format(("torch_memory/*.pickle",), damage_files.snapshot, (".pickle",)),
    "gzip": Format(
        ("recorded-cpu/torch/b16/*.json.gz", "kineto/hta_*.json.gz"),
        damage_files.gzipped,
        (".json.gz",),
    ),
    "archive": Format(
        ("recorded-cpu/torch/b16/*.json.gz", "kineto/hta_large*.json.gz"),
        damage_files.archive,
        (".zip", ".tar"),
    ),
}


def seeds(name: str, folder: Path) -> list[Path]:
    """Its samples; small ones are made where a format has none in the repository."""
    found = [
        path
        for base in (DATA, REPORTS)
        for pattern in FORMATS[name].seeds
        for path in sorted(base.glob(pattern))
    ]
    found = [path for path in found if 200 < path.stat().st_size <= LARGEST]
    sys.path.insert(0, str(ROOT))
    if name == "rocm":
        from tests.make.rocpd import made

        found.append(made(folder / "made.db"))
    if name == "nsys":
        from tests.make.nsys_sqlite import NsysBuilder, training_step

        found.append(training_step(NsysBuilder()).write(folder / "made.sqlite"))
    if name == "snapshot":
        found.append(folder / "made.pickle")
        event = {
            "action": "alloc",
            "addr": 1,
            "size": 512,
            "stream": 0,
            "time_us": 1_700_000_000_000_000,
        }
        segment = {
            "device": 0,
            "total_size": 1024,
            "allocated_size": 512,
            "requested_size": 500,
            "active_size": 512,
            "blocks": [],
        }
        found[-1].write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[event]]}))
    if name == "dldb" and not found:
        from tests.make.dlprof import made as made_dldb

        found.append(made_dldb(folder / "dlprof_dldb.sqlite"))
    return found


def _plain(value: object) -> object:
    """Comparable, also where it holds NaN."""
    return repr(value)


def snapshot_of(path: Path) -> Snapshot:
    """Read the file and everything in it. Raises what the parser raises."""
    from perfctl import parsers

    report = parsers.parse(path)
    rows: dict[str, Any] = {}
    for field in fields(report):
        value = getattr(report, field.name)
        if field.name in ("path", "gaps", "diagnostics", "form"):
            continue
        is_many = isinstance(value, Iterable) and not isinstance(value, str | dict)
        rows[field.name] = [_plain(one) for one in value] if is_many else _plain(value)
    return rows, frozenset(map(repr, (*report.gaps, *report.diagnostics, report.form)))


class Stores:
    """Empty stores in memory, one for each report."""

    def __init__(self, folder: Path) -> None:
        import sqlite3

        from perfctl.orchestrator.store import database

        path = folder / "empty.db"
        with database.open_store_for_writing(path) as store:
            store.execute("PRAGMA journal_mode = DELETE")
        with closing(sqlite3.connect(path)) as made:
            self._empty = made.serialize()

    def said_of(self, path: Path) -> frozenset[str]:
        """What the store says about the report: its gaps."""
        import sqlite3

        from perfctl import parsers
        from perfctl.orchestrator.store import write

        report = parsers.parse(path)
        facts = write.SweepFacts("fuzz", "ingest", None, None)
        run = write.RunFacts(
            report.tool,
            "ok",
            "ingested",
            started_at=report.started_at,
            duration_ns=report.duration_ns,
        )
        with closing(sqlite3.connect("file::memory:", uri=True, isolation_level=None)) as store:
            store.deserialize(self._empty)
            write.write_run(store, facts, run, report)
            return frozenset(
                map(repr, store.execute("SELECT quantity, state, reason FROM gap").fetchall())
            )


def of_archive(path: Path) -> Snapshot:
    """Unpack it as ingest does, and read what was in it."""
    from perfctl.orchestrator.ingest import archives, find
    from perfctl.parsers import ReportError

    find.read_unpacked_size(path)
    if not archives.is_archive(path):
        raise ReportError(path, "archive", "no archive", "")
    with tempfile.TemporaryDirectory() as folder:
        archives.unpack_archive_and_count_skipped(
            path, Path(folder), archives.UnpackingBudget(path.stat().st_size)
        )
        found = [one for one in sorted(Path(folder).rglob("*")) if one.is_file()]
        find.hash_unpacked_content(found[0]) if found else None
        if any(one.is_symlink() for one in Path(folder).rglob("*")):
            raise AssertionError("a link was unpacked")
        return {"files": [snapshot_of(one)[0] for one in found]}, frozenset()


def in_forks() -> None:
    """NVIDIA's package is loaded once: its reader then runs in a fork of this process instead of a
    new one."""
    import ncu_report

    from perfctl.parsers.ncu import rep, rep_worker

    assert ncu_report

    def read(path: Path, *, source: bool) -> Iterator[dict[str, Any]]:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(reading)
                nowhere = os.open(os.devnull, os.O_RDWR)
                for number in (1, 2):
                    os.dup2(nowhere, number)
                with os.fdopen(writing, "w", encoding="utf-8") as out:
                    code = rep_worker.main(
                        [str(path.absolute()), *(["source"] if source else [])], out
                    )
            finally:
                os._exit(code)
        os.close(writing)
        try:
            with os.fdopen(reading, "rb") as lines:
                for line in lines:
                    if line.endswith(b"\n"):
                        yield json.loads(line)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        except BaseException:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        if code:
            raise rep.ReportError(
                path, "ncu", f"the report is damaged: the reader ended with {code}", "Copy it again"
            )

    rep._read_results_in_subprocess = read


class Slow(BaseException):
    """A mutant took too long."""


def _slow(*_: object) -> None:
    raise Slow


def run(name: str, seconds: int, first: int, only: bool) -> None:
    """Read mutants from number ``first`` on, and print a line of JSON before and after each."""
    from perfctl.parsers import ReportError

    form = FORMATS[name]
    scratch = tempfile.TemporaryDirectory()
    folder = Path(scratch.name)
    samples = seeds(name, folder)
    if not samples:
        sys.exit("no samples")
    weights = [1 / (one.stat().st_size + 100_000) for one in samples]  # small ones are fast
    if name == "ncu-rep":
        in_forks()
    read = of_archive if name == "archive" else snapshot_of
    stores = Stores(folder)
    known: dict[Path, tuple[Snapshot, frozenset[str]] | None] = {}
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES, resource.RLIM_INFINITY))
    signal.signal(signal.SIGPROF, _slow)
    until = time.monotonic() + seconds
    number = first
    while time.monotonic() < until and not (only and number > first):
        random = Random(f"{name} {number}")  # noqa: S311  the same again for the same number
        (source,) = random.choices(samples, weights)
        if source not in known:
            try:
                known[source] = (
                    read(source),
                    (stores.said_of(source) if name != "archive" else frozenset()),
                )
            except ReportError:
                known[source] = None
        target = folder / f"mutant-{number}{random.choice(form.endings)}"
        try:
            notes = form.damaged(source, target, random)
        except Exception:  # the library that writes does not take it
            number += 1
            continue
        print(json.dumps(["begin", number, source.name, notes]), flush=True)
        verdict, detail = "same", ""
        signal.setitimer(signal.ITIMER_PROF, SECONDS_PER_INPUT)
        try:
            verdict, detail = _verdict(
                target, read, known[source], stores if name != "archive" else None
            )
        except ReportError as error:
            verdict = "refused"
            detail = error.reason[:120]
        except Slow:
            verdict, detail = "finding", f"over {SECONDS_PER_INPUT} CPU s"
        except Exception as error:
            verdict, detail = "finding", _where(error)
            if only:
                traceback.print_exc()
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if verdict == "finding" or (only and verdict == "silent"):
            (KEPT / name).mkdir(parents=True, exist_ok=True)
            (KEPT / name / target.name).write_bytes(target.read_bytes())
        target.unlink(missing_ok=True)
        print(json.dumps(["end", number, verdict, detail]), flush=True)
        number += 1


def _verdict(
    target: Path,
    read: Callable[[Path], Snapshot],
    known: tuple[Snapshot, frozenset[str]] | None,
    stores: Stores | None,
) -> tuple[str, str]:
    rows, said = read(target)
    if known is None:
        return "said", "the sample itself is refused"
    (own_rows, own_said), stored = known
    changed = [field for field, value in rows.items() if value != own_rows.get(field)]
    if not changed:
        return ("same" if said == own_said else "said"), ""
    detail = _difference(own_rows[changed[0]], rows[changed[0]]) if changed else ""
    in_store = stores.said_of(target) if stores else frozenset()
    if said != own_said or in_store != stored:
        return "said", ""
    return "silent", f"{', '.join(changed)}: {detail}"


def _difference(one: Any, other: Any) -> str:
    if not isinstance(one, list):
        return f"{str(one)[:60]} -> {str(other)[:60]}"
    if len(one) != len(other):
        return f"{len(one)} -> {len(other)} rows"
    at, (first, second) = next(
        (at, pair) for at, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]
    )
    first, second = (
        re.findall(r"\w+=(?:'[^']*'|[^,()]*)", str(text)) or [str(text)] for text in (first, second)
    )
    different = [f"{a[:50]} -> {b[:50]}" for a, b in zip(first, second, strict=False) if a != b]
    return f"row {at}: {'; '.join(different[:3])}"


def _where(error: BaseException) -> str:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "fuzz" not in Path(frame.filename).parts[-2:]
    ]
    own = [
        frame for frame in frames if "parsers" in frame.filename or "orchestrator" in frame.filename
    ] or frames
    place = f"{'/'.join(Path(own[-1].filename).parts[-2:])}:{own[-1].lineno}" if own else "?"
    return f"{type(error).__name__} at {place}: {str(error)[:150]}"


def fuzz(name: str, seconds: int, first: int) -> bool:
    """Watch the process that reads, and start another one where it ends. Whether anything
    was found."""
    verdicts: Counter[str] = Counter()
    places: dict[str, int] = {}
    silent: dict[str, list[tuple[int, str, str]]] = {}
    begun, until, number, mutants = time.monotonic(), time.monotonic() + seconds, first, 0
    longest = 0.0
    while (left := until - time.monotonic()) > 1:
        command = [sys.executable, __file__, "--run", name, str(int(left)), str(number)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            last: list[Any] = []
            at = time.monotonic()
            buffer = b""
            why = ""
            while True:
                if not select.select([process.stdout], [], [], SECONDS_PER_INPUT * 3)[0]:
                    why = f"hangs inside a library, over {SECONDS_PER_INPUT * 3} s"
                    process.kill()
                    break
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    break
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    what, number, *rest = json.loads(line)
                    if what == "begin":
                        last, at = rest, time.monotonic()
                        continue
                    mutants += 1
                    longest = max(longest, time.monotonic() - at)
                    verdicts[rest[0]] += 1
                    if rest[0] == "finding":
                        place = re.sub(r"[0-9]+(?= values| rows)", "N", rest[1])[:110]
                        if place not in places:
                            print(
                                f"  FINDING {name} {number} ({last[0]}; "
                                f"{'; '.join(last[1])[:160]}): {rest[1]}",
                                flush=True,
                            )
                        places[place] = places.get(place, 0) + 1
                    elif rest[0] == "silent":
                        kind = " | ".join(sorted({re.split(r"[:=]", note)[0] for note in last[1]}))
                        silent.setdefault(kind, []).append(
                            (number, last[0], f"{'; '.join(last[1])} => {rest[1]}")
                        )
                    last = []
                    number += 1
            code = process.wait()
            if last:  # it began a mutant and did not end it
                why = why or f"the process ended with {code}"
                print(
                    f"  FINDING {name} {number} ({last[0]}; {'; '.join(last[1])[:160]}): {why}",
                    flush=True,
                )
                places[why] = places.get(why, 0) + 1
                verdicts["finding"] += 1
                mutants += 1
                number += 1
            elif code:
                print(f"  FINDING {name}: the fuzzer itself ended with {code}", flush=True)
                places["fuzzer"] = 1
                break
    minutes = (time.monotonic() - begun) / 60
    shown = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    print(
        f"{name}: {mutants} mutants in {minutes:.1f} min ({shown}), longest {longest:.1f} s, "
        f"{len(places)} places",
        flush=True,
    )
    for found in sorted(silent.values(), key=len, reverse=True)[
        : None if "--all" in sys.argv else SHOWN
    ]:
        for one in found[: len(found) if "--all" in sys.argv else 1]:
            print(f"  silent {len(found)} times: {one[0]} {one[1]}: {one[2][:260]}", flush=True)
    return bool(places)


def main(names: list[str]) -> int:
    """Fuzz each in turn; 1 when anything was found."""
    wanted = names or [name for name in FORMATS if name != "ncu-rep" or find_spec("ncu_report")]
    if "ncu-rep" not in wanted and not names:
        print("ncu-rep is left out: NVIDIA's package ncu_report is not installed")
    with tempfile.TemporaryDirectory() as folder:
        for name in [name for name in wanted if not seeds(name, Path(folder))]:
            print(f"{name} is left out: no samples in {REPORTS}")
            wanted.remove(name)
    seconds = int(os.environ.get("FUZZ_SECONDS", "600")) // len(wanted)
    first = int(os.environ.get("FUZZ_FIRST", "0"))
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    bad = [name for name in wanted if fuzz(name, max(2, seconds), first)]
    print(f"Findings in {', '.join(bad)}: inputs are in {KEPT}" if bad else "No findings.")
    return 1 if bad else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), False)
    elif sys.argv[1:2] == ["--mutant"]:
        run(sys.argv[2], 600, int(sys.argv[3]), True)
    else:
        sys.exit(main([one for one in sys.argv[1:] if not one.startswith("--")]))
