"""All tables of ``make accuracy``, one script after the other; each line is printed when it
is known.

    python scripts/proof/accuracy/all_tables.py [NAME ...] [--again]

A table is kept in build/accuracy/tables/ with digests of all that its run read: perfctl's modules,
scripts, measurements, and the versions of Python and of the installed packages. While none of it
changes, the kept table is shown, and said to be kept. So a run that was stopped goes on with the
table that it was at. Exits 1 when a line of any table misses its target.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import runpy
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[3]))

from scripts.proof.accuracy.accuracy_lines import parser_for, shared_folder

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BUILD = ROOT / "build"
KEPT = BUILD / "accuracy" / "tables"
TABLES = (
    "accuracy_operators",
    "accuracy_bench",
    "accuracy_memory",
    "accuracy_published",
    "engines/accuracy_engines",
    "accuracy_timm",
    "accuracy",
    "accuracy_against",
    "accuracy_named",
    "accuracy_detection",
)
"""The one that takes longest last."""
NOTES = "PERFCTL_ACCURACY_NOTES"
MISSED = re.compile(r"\bNO\b|\bWRONG\b|NOT EXPLAINED|[1-9]\d* failed|^Traceback|Error: ")


@cache
def digest(path: Path) -> str:
    """Of a file's content, or of the names in a folder; "" where there is neither."""
    if path.is_dir():
        return hashlib.sha256(
            "\n".join(sorted(one.name for one in path.iterdir())).encode()
        ).hexdigest()
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


@cache
def libraries() -> str:
    """Digest of the versions of Python and of the installed packages."""
    each = sorted({f"{one.name} {one.version}" for one in distributions()})
    return hashlib.sha256("\n".join([sys.version, *each]).encode()).hexdigest()


def noted(script: Path) -> int:
    """Runs a script in this process and writes down which files of the repository and of the
    measurements it read.

    A script that fails, other than with its exit code, leaves no notes.
    """
    read: set[str] = set()
    shared = str(shared_folder()) + os.sep

    def note(event: str, given: tuple[Any, ...]) -> None:
        if (
            event == "open"
            and isinstance(given[0], (str, os.PathLike))
            and "w" not in str(given[1] or "r")
        ):
            read.add(os.path.realpath(os.fspath(given[0])))
        elif event == "os.scandir" and given[0] and os.path.realpath(given[0]).startswith(shared):
            read.add(os.path.realpath(given[0]))

    sys.addaudithook(note)
    sys.argv = [str(script)]
    sys.path[0] = str(script.parent)
    code = 0
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0, 1):
            raise
        code = int(ended.code or 0)
    read |= {
        os.path.realpath(file)
        for module in list(sys.modules.values())
        if (file := getattr(module, "__file__", None))
    }
    ours = [
        path
        for path in sorted(read)
        if concerns(path, shared) and path != os.path.realpath(__file__)
    ]
    Path(os.environ[NOTES]).write_text(
        json.dumps([os.path.relpath(path, ROOT) for path in (*ours, script)]), encoding="utf-8"
    )
    return code


def concerns(path: str, shared: str) -> bool:
    """Whether a file is of the repository's code and data, or of the measurements: not of
    libraries, not made by a run."""
    if path.startswith(shared):
        return True
    inside = path.startswith(str(ROOT) + os.sep) and not path.endswith(".pyc")
    first = path[len(str(ROOT)) + 1 :].partition(os.sep)[0]
    return inside and not first.startswith(".") and first != BUILD.name


def run(name: str) -> dict[str, Any]:
    """One table, its lines shown as they come, and what is kept of it."""
    script = HERE / f"{name}.py"
    notes = KEPT / f"{name.replace('/', '-')}.notes"
    notes.unlink(missing_ok=True)
    begun, before, started = time.perf_counter(), used(), time.time()
    given = os.environ | {NOTES: str(notes), "PYTHONUNBUFFERED": "1"}
    lines = []
    with subprocess.Popen(
        [sys.executable, __file__, "--note", str(script)],
        stdout=subprocess.PIPE,
        env=given,
        text=True,
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line)
            print(line, end="", flush=True)
    files = json.loads(notes.read_text(encoding="utf-8")) if notes.is_file() else None
    notes.unlink(missing_ok=True)
    found = {
        "code": child.returncode,
        "wall_s": round(time.perf_counter() - begun, 1),
        "cpu_s": round(used() - before, 1),
        "libraries": libraries(),
        "files": {},
        "lines": lines,
    }
    if files is not None:
        found["files"] = {path: digest(ROOT / path) for path in files}
        read = [ROOT / path for path in files if (ROOT / path).is_file()]
        if all(path.stat().st_mtime < started for path in read):  # none changed meanwhile
            place(name).write_text(json.dumps(found), encoding="utf-8")
    return found


def used() -> float:
    """CPU seconds of all children that ended."""
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime


def place(name: str) -> Path:
    return KEPT / f"{name.replace('/', '-')}.json"


def kept(name: str) -> dict[str, Any] | None:
    """The kept table, if nothing that it was made from has changed."""
    if not place(name).is_file():
        return None
    found: dict[str, Any] = json.loads(place(name).read_text(encoding="utf-8"))
    same = found["libraries"] == libraries() and all(
        digest(ROOT / path) == was for path, was in found["files"].items()
    )
    return found if same else None


def short(name: str, found: dict[str, Any], old: bool) -> Iterable[str]:
    """A line of the summary, and below it the lines that miss."""
    end = "as wanted" if not found["code"] else "a line misses" if found["files"] else "FAILED"
    took = "kept" if old else f"{found['cpu_s']:.0f} s of CPU, {found['wall_s']:.0f} s in all"
    yield f"{name + '.py':36}{end:>14}   {took}"
    if found["code"]:
        yield from (f"    {line.rstrip()}" for line in found["lines"] if MISSED.search(line))


def main() -> int:
    """Print all tables, then a line for each."""
    parser = parser_for(__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(TABLES)}; all when none is given"
    )
    parser.add_argument("--again", action="store_true", help="run what is kept, too")
    parser.add_argument("--note", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.note:
        return noted(given.note)
    if unknown := set(given.names) - set(TABLES):
        parser.error(f"no such table: {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    KEPT.mkdir(parents=True, exist_ok=True)
    said, code = [], 0
    for name in given.names or TABLES:
        old = None if given.again else kept(name)
        print(
            f"\n== scripts/proof/accuracy/{name}.py"
            f"{' (kept: nothing that it reads has changed)' if old else ''}",
            flush=True,
        )
        if old:
            print("".join(old["lines"]), end="")
        found = old or run(name)
        code |= found["code"] != 0
        said += short(name, found, old is not None)
    print("\n== All tables\n" + "\n".join(said))
    return code


if __name__ == "__main__":
    sys.exit(main())
