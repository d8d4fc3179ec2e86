"""Damage real reports in many ways and ingest each: ``python scripts/stress/fuzz/attack.py
[--mutants N] [--seed N] [REPORT...]``.

For each report the rows of the undamaged one are kept. A mutant is

- refused, or
- read with the **same rows**, or
- read with other rows and a word that the undamaged report did not cause (a gap, a diagnostic of
  perfctl, a warning, a partial run): **said**. Words of the profiler that stand in the report are
  rows, and a word that is missing is none.
- read with other rows and no word: **silent**.

Silent mutants are counted by format and damage: perfctl stores what a report says, and a digit
that another digit replaced is as good as the right one. Findings are a traceback, more than 20 s,
or more memory than ``--memory-limit``: the file is kept in build/attack/, and the exit code is 1.
Memory is that of the process and of the children that it read in, whichever has most. No two
mutants of a report are the same, and none is the report itself.

Without reports: ``--files`` of those in REPORTS (a folder, ../shared/reports by default; else
tests/data), from each format in turn. Each child is forked from a process that has loaded the
parsers and made an empty store; TMPDIR=/dev/shm is faster.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib
import json
import os
import pkgutil
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from damage_reports import columns_of, damages  # beside this file

ROOT = Path(__file__).resolve().parents[3]
KEPT = ROOT / "build" / "attack"
LARGEST = 500_000
"""Bytes of a report, without compression, that is damaged; a larger one takes too long to read
so often."""
HANGS_AFTER_S = 20
SPEAKING = ("gap", "diagnostic")
"""Tables in which a doubt is stored."""
OF_PERFCTL = (b"perfctl", b"perfctl parser")
"""Sources of diagnostics that perfctl made; the others are the profiler's and stand in
the report."""
IGNORED = {
    "sweep": None,
    "store_info": None,
    "run": {"artifact", "artifact_sha256", "sweep_id", "command", "started_at", "ingested_at"},
}
"""Tables (None) and columns that differ between two readings of the same report."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one ingest did."""

    rows: Mapping[str, str] = field(default_factory=dict)
    """Table -> digest of its rows."""
    form: str = ""
    words: tuple[str, ...] = ()
    failed: bool = False
    broken: str = ""
    """A traceback's last line, or what limit was passed."""
    seconds: float = 0.0
    megabytes: float = 0.0


def warm(folder: Path) -> Path:
    """Load what a child would load; an empty store that it gets a copy of."""
    from perfctl import parsers
    from perfctl.orchestrator.store import database

    for module in pkgutil.walk_packages(parsers.__path__, f"{parsers.__name__}."):
        if not module.name.endswith("rep_worker"):  # a program of its own
            importlib.import_module(module.name)
    for name in (
        "perfctl.orchestrator.ingest.ingest",
        "numpy",
        "encodings.utf_16_le",
        "encodings.utf_8_sig",
    ):
        importlib.import_module(name)
    store = folder / "empty.db"
    with database.open_store_for_writing(store):
        pass
    return store


def taken_in(report: Path, folder: Path) -> Outcome:
    """Ingest into the store ``folder/s.db``, in a process of its own."""
    answer = folder / "answer"
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        _as_child(report, folder, answer)
    until = started + HANGS_AFTER_S
    while True:
        pid, _, used = os.wait4(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            os.wait4(child, 0)
            return Outcome(broken=f"over {HANGS_AFTER_S} s", seconds=time.monotonic() - started)
        time.sleep(0.002)
    spent = time.monotonic() - started
    if not answer.exists():
        return Outcome(broken="it died without a word", seconds=spent)
    found = json.loads(answer.read_text())
    found["words"] = tuple(found["words"])
    return replace(Outcome(**found), seconds=spent, megabytes=used.ru_maxrss / 1024)


def _as_child(report: Path, folder: Path, answer: Path) -> None:
    try:
        outcome = _ingested(report, folder)
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        outcome = Outcome(
            broken=(
                f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}: "
                f"{str(error)[:150]}"
            )
        )
    answer.write_text(json.dumps(asdict(outcome)))
    os._exit(0)


def _ingested(report: Path, folder: Path) -> Outcome:
    from perfctl.orchestrator.ingest.ingest import ingest_paths

    words: list[str] = []
    heard = partial(keep_words, words, (str(report), report.name))
    store = folder / "s.db"
    found = ingest_paths(report, store, listener=heard, jobs=1)
    unexpected = [text for text in found.failed if "reference" in text]
    if not found.taken:
        return Outcome(words=tuple(words), failed=True, broken="; ".join(unexpected))
    rows: dict[str, str] = {}
    with closing(sqlite3.connect(store)) as connection:
        connection.text_factory = bytes
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall():
            table = name.decode()
            left_out = IGNORED.get(table, set())
            if left_out is None:
                continue
            columns = [
                column
                for column in map(_text, columns_of(connection, table))
                if column not in left_out
            ]
            chosen = ", ".join(f'"{column}"' for column in columns)
            found_rows = connection.execute(f'SELECT {chosen} FROM "{table}"').fetchall()
            if table in SPEAKING:
                said = [
                    row
                    for row in found_rows
                    if table == "gap" or row[columns.index("source")] in OF_PERFCTL
                ]
                words += map(repr, said)
                found_rows = [row for row in found_rows if row not in said]
            if found_rows:
                rows[table] = _digest(sorted(map(repr, found_rows)))
        words += [
            _text(text)
            for (text,) in connection.execute("SELECT status || coalesce(reason, '') FROM run")
        ]
        (form,) = connection.execute("SELECT coalesce(min(form), '') FROM run").fetchone()
    return Outcome(
        rows, _text(form), tuple(sorted(words)), bool(found.failed), "; ".join(unexpected)
    )


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def keep_words(words: list[str], names: Sequence[str], event: object) -> None:
    """Keep what an event of an ingest says, without the report's name."""
    from perfctl.orchestrator.ingest.context import NoteSent, ReportFailed, WarningSent

    if isinstance(event, (ReportFailed, NoteSent, WarningSent)):
        text = event.text
        for known in names:
            text = text.replace(known, "REPORT")
        words.append(text)


@dataclass(slots=True)
class Attack:
    """One run: its scratch folder, its random numbers, and what it found."""

    asked: argparse.Namespace
    scratch: Path
    empty: Path
    random: Random
    counts: Counter[str] = field(default_factory=Counter)
    silent: Counter[tuple[str, str]] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    slowest: float = 0.0
    most: float = 0.0
    sizes: list[int] = field(default_factory=list)

    def tried(self, name: str, data: bytes) -> Outcome:
        """Ingest these bytes as a file of this name."""
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        try:
            (folder / name).write_bytes(data)
            shutil.copyfile(self.empty, folder / "s.db")
            return taken_in(folder / name, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def damage(self, report: Path, name: str, data: bytes, whole: Outcome) -> None:
        """So many different mutants of one report."""
        kinds = damages(name, data)
        number, seen = 0, {data}
        self.sizes.append(len(data))
        self.forms[whole.form] += 1
        for attempt in range(40 * (each := self.asked.mutants // self.asked.files)):
            if number == each:
                break
            kind = list(kinds)[attempt % len(kinds)]
            try:
                mutant = kinds[kind](data, self.random)
            except (sqlite3.Error, IndexError, ValueError, RecursionError):
                continue
            if mutant in seen:
                continue
            seen.add(mutant)
            number += 1
            self.judge(report, name, kind, whole, (mutant, self.tried(name, mutant)))

    def judge(
        self, report: Path, name: str, kind: str, whole: Outcome, tried: tuple[bytes, Outcome]
    ) -> None:
        """Count one mutant; keep it where it is a finding."""
        mutant, found = tried
        self.slowest, self.most = max(self.slowest, found.seconds), max(self.most, found.megabytes)
        if found.megabytes > self.asked.memory_limit:
            found = replace(found, broken=f"over the limit: {found.megabytes:.0f} MB")
        verdict = _verdict(found, whole)
        self.counts[verdict] += 1
        if verdict == "silent":
            self.silent[whole.form, kind] += 1
        is_finding = verdict == "BROKEN"
        if is_finding or (verdict == "silent" and self.asked.keep_silent):
            KEPT.mkdir(parents=True, exist_ok=True)
            digest = _digest([str(mutant)])[:8]
            kept = KEPT / f"{verdict}-{kind.replace(' ', '_')}-{digest}-{name}"
            kept.write_bytes(mutant)
            what = found.broken or f"silent: {', '.join(_changed(found.rows, whole.rows))}"
            if is_finding:
                self.findings.append(f"{report}, {kind}: {what}: {kept}")
            print(f"{report}, {kind}: {what}: {kept.name}", flush=True)

    def report(self) -> None:
        """Print what was found."""
        print(
            f"{self.counts.total()} mutants of {len(self.sizes)} reports, seed {self.asked.seed}:"
        )
        for verdict in ("said", "refused", "same rows", "silent", "BROKEN"):
            print(f"  {verdict}: {self.counts[verdict]}")
        sizes = sorted(self.sizes) or [0]
        print(f"slowest {self.slowest:.1f} s, most memory {self.most:.0f} MB")
        print(
            f"reports of {sizes[0]:,} to {sizes[-1]:,} bytes, half of them up to "
            f"{sizes[len(sizes) // 2]:,}"
        )
        print(f"{len(self.forms)} formats: {'; '.join(sorted(self.forms))}")
        for (form, kind), times in sorted(self.silent.items()):
            print(f"  silent: {times} of {form}, {kind}")
        print("\n".join(self.findings) or "No findings.")


def content(report: Path) -> bytes:
    """What is in the file, without compression."""
    raw = report.read_bytes()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" and report.suffix == ".gz" else raw


def reports(random: Random) -> Iterator[Path]:
    """Files small enough: from each format in turn, a random one."""
    folder = Path(os.environ.get("REPORTS", ROOT.parent / "shared" / "reports"))
    folder = folder if folder.is_dir() else ROOT / "tests" / "data"
    forms: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.rglob("*")):
        if (
            path.is_file()
            and path.suffix not in (".md", ".py", ".sql")
            and 0 < len(content(path)) <= LARGEST
        ):
            forms[_form(path)].append(path)
    for one in forms.values():
        random.shuffle(one)
    return (path for path in chain.from_iterable(zip_longest(*forms.values())) if path)


def _form(path: Path) -> str:
    """The parser that takes a report, and its kind of file, without numbers."""
    from perfctl import parsers

    found = parsers.sniff(path)
    return (
        f"{found.name if found else ''} "
        f"{path.parent.name if path.suffix in ('.csv', '.txt', '.log') else path.suffix}"
    )


def main() -> int:
    """Attack; 1 when anything was found."""
    asked = _arguments()
    random = Random(asked.seed)  # noqa: S311
    scratch = Path(tempfile.mkdtemp(prefix="perfctl-attack-"))
    attack = Attack(asked, scratch, warm(scratch), random)
    started = time.monotonic()
    try:
        for report in map(Path, asked.reports) if asked.reports else reports(random):
            if len(attack.sizes) == asked.files:
                break
            data, name = content(report), report.name.removesuffix(".gz")
            whole = attack.tried(name, data)
            if whole.broken:
                attack.findings.append(f"{report}: undamaged: {whole.broken}")
            elif whole.rows:
                attack.damage(report, name, data, whole)
                spent = time.monotonic() - started
                print(
                    f"{len(attack.sizes)}: {report}: {attack.counts.total()} mutants, {spent:.0f} "
                    "s",
                    flush=True,
                )
    except KeyboardInterrupt:
        print("Stopped.")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        attack.report()
    return int(bool(attack.findings))


def _changed(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _verdict(found: Outcome, whole: Outcome) -> str:
    if found.broken:
        return "BROKEN"
    if not found.rows:
        return "refused"
    if found.rows == whole.rows:
        return "same rows"
    return (
        "said"
        if Counter(found.words) - Counter(whole.words) or (found.failed and not whole.failed)
        else "silent"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", nargs="*", metavar="REPORT")
    parser.add_argument("--mutants", type=int, default=5000)
    parser.add_argument(
        "--files",
        type=int,
        default=40,
        help="reports that are damaged, each the same number of times",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory-limit", type=float, default=2048, help="MB")
    parser.add_argument(
        "--keep-silent", action="store_true", help="keep and name silent mutants, too"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
