"""Record the built-in workloads on this machine as test data, with a note on how it was made.

    python scripts/record_reports.py OUT [--batches 16,32,64,128,256] [--profilers torch,nsys,ncu] [--steps 2]

Runs ``perfctl PROFILER`` for each profiler that works here and copies the runs, without logs, to OUT/PROFILER.
Each recording can be replayed with ``perfctl replay OUT/PROFILER``. OUT/HOW.md names the machine and the commands,
and what did not work, with the reason.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KEPT = ("run.json", "workload.json", "report.sqlite", "report.csv", "report.pt.trace.json.gz", "report.ncu-rep")
LARGEST_BYTES = 4_000_000
"""A larger file is left out: test data is small."""
EVENT_TABLES = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "ENUM_CUDA_MEM", "META_DATA_EXPORT", "EXPORT_META_DATA", "TARGET_INFO_GPU",
                "TARGET_INFO_CUDA")  # fmt: skip
STRING_COLUMNS = ("textId", "jsonTextId", "nameId", "demangledName", "shortName", "mangledName")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batches", default="16,32,64,128,256")
    parser.add_argument("--profilers", default="torch,nsys,ncu")
    parser.add_argument("--steps", default="2")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    lines = []
    for profiler in asked.profilers.split(","):
        command = [profiler, "--batches", asked.batches, "--steps", asked.steps, "--warmup", "2"]
        with tempfile.TemporaryDirectory() as scratch:
            ended = subprocess.run(
                [sys.executable, "-m", "perfctl", *command, "--out", f"{scratch}/runs"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            kept = keep(Path(scratch) / "runs", asked.out / profiler)
        said = ended.stderr.strip().splitlines()[-1:] or ["no message"]
        outcome = (
            f"{kept} runs kept" if ended.returncode == 0 else f"{kept} runs kept; exit {ended.returncode}: {said[0]}"
        )
        lines.append(f"- `perfctl {shlex.join(command)}`: {outcome.replace(scratch, 'SCRATCH')}")
        print(lines[-1])
    (asked.out / "HOW.md").write_text(how(lines), encoding="utf-8")
    return 0


def keep(runs: Path, out: Path) -> int:
    """Copy the files that a replay needs from every complete run; return the number of runs."""
    count = 0
    for folder in sorted(runs.glob("*/b*")):
        record = folder / "run.json"
        if not record.is_file() or json.loads(record.read_text())["status"] == "failed":
            continue
        target = out / folder.name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in KEPT:
            file = folder / name
            if file.is_file() and file.stat().st_size <= LARGEST_BYTES:
                shutil.copyfile(file, target / name)
        clean(target)
        count += 1
    return count


def clean(folder: Path) -> None:
    """Keep the commands; remove the folders of this machine and the environments of its processes."""
    database, trace = folder / "report.sqlite", folder / "report.pt.trace.json.gz"
    if database.is_file():
        scrub(database)
    if trace.is_file():
        text = gzip.decompress(trace.read_bytes()).decode()
        text = re.sub(r'"/[^"]*/([^"/]+)"', r'"\1"', re.sub(r'"host_name": "[^"]*"', '"host_name": "host"', text))
        trace.write_bytes(gzip.compress(text.encode(), mtime=0))
    for name in ("run.json", "workload.json"):
        file = folder / name
        content = plain(json.loads(file.read_text()))
        if (artifact := content.get("artifact")) is not None and name == "run.json":
            content["artifact_bytes"] = (folder / artifact).stat().st_size
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def plain(value: Any) -> Any:
    """Every absolute path in a JSON value, also behind "=", as its last part."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, str):
        return re.sub(r"(^|=)/\S*/([^/\s]+)$", r"\1\2", value)
    return value


def scrub(database: Path) -> None:
    """nsys stores the environment of every process: keep only the tables of events and the strings that they use."""
    connection = sqlite3.connect(database, isolation_level=None)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for name in tables:
        if name != "StringIds" and not name.startswith(EVENT_TABLES):
            connection.execute(f'DROP TABLE "{name}"')
    used = " UNION ".join(
        f'SELECT "{column}" FROM "{table}" WHERE "{column}" IS NOT NULL'  # with a NULL in the list, NOT IN would keep all rows
        for table in tables
        if table.startswith(EVENT_TABLES)
        for (_, column, *_) in connection.execute(f'PRAGMA table_info("{table}")')
        if column in STRING_COLUMNS
    )
    connection.execute(f"DELETE FROM StringIds WHERE id NOT IN ({used})")
    for table in set(tables) & {"META_DATA_EXPORT", "EXPORT_META_DATA"}:
        connection.execute(f"DELETE FROM {table} WHERE name LIKE '%PATH%'")
    connection.execute("VACUUM")
    connection.close()


def how(lines: list[str]) -> str:
    device = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True, text=True, check=False,
    ).stdout.strip() if shutil.which("nvidia-smi") else ""  # fmt: skip
    return "\n".join(
        [
            "# How these were made",
            "",
            f"Real recordings of perfctl's own workloads on {device or 'a machine without a GPU'},"
            f" Python {platform.python_version()}, by `python scripts/record_reports.py`:",
            "",
            *lines,
            "",
            "Replay one with `perfctl replay FOLDER`. Times were measured on a shared machine and mean nothing by themselves.",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
