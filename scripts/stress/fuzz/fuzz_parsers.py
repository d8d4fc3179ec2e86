"""Coverage-guided fuzzing of the text parsers: ``make fuzz``, or
``python scripts/stress/fuzz/fuzz_parsers.py [PARSER...]``.

Each parser runs in its own process, for an equal share of FUZZ_SECONDS (600), from small samples of
its dialects. Any exception other than ReportError is a finding: the input is kept in
build/fuzz/PARSER/, its location is printed, the run continues and ends with exit code 1. An input
that takes over 10 s or 1 GB ends that parser's run. Needs the extra ``fuzz``; set TMPDIR to a
folder in memory to spare the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import atheris
from dialects import MORE_SEEDS

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests" / "data"
KEPT = ROOT / "build" / "fuzz"
LONGEST = 8192
"""Bytes of one input."""
SECONDS_PER_INPUT = 10
MEMORY_MIB = 1024
SEEDS = {
    "ncu.csv": [
        "ncu-logs/*.csv",
        "ncu-logs/*.log",
        "ncu-nvtx/*.csv",
        "ncu-ragged/*.csv",
        "ncu-wide/*.csv",
    ],
    "ncu.text": ["ncu-logs/*.log"],
    "nsys.stats": [],
    "dlprof.csv": ["dlprof-synthetic/*.csv"],
    "dlprof.json": ["dlprof-json-synthetic/*.json"],
    "kineto.trace": ["kineto-synthetic/*.json"],
    "monitors.nvidia_smi": ["nvidia-smi-synthetic/*"],
    "monitors.dcgm": ["dcgm-synthetic/*"],
    "nvprof": ["nvprof-synthetic/*"],
    "rocm.csv": [],
    "rocm.refused": [],
    "rocm.json": [],
    "proton": [],
    "own.samples": [],
    "own.workload_record": ["recorded-cpu/*/b16/workload.json"],
    "text.numbers": [],
}
"""Parser -> the samples under tests/data it starts from."""


def seeds(parser: str) -> Iterator[bytes]:
    """Small samples of every dialect; long ones cut, as a cut-off report is one more dialect."""
    yield from MORE_SEEDS.get(parser, [])
    if parser == "own.workload_record":
        yield from _short_records()
    for pattern in SEEDS[parser]:
        for path in sorted(DATA.glob(pattern)):
            yield path.read_bytes()[:LONGEST]


def _short_records() -> Iterator[bytes]:
    """Whole records, with two rows of each kind."""
    for path in sorted(DATA.glob(SEEDS["own.workload_record"][0])):
        record = json.loads(path.read_bytes())
        yield json.dumps(
            {key: value[:2] if isinstance(value, list) else value for key, value in record.items()}
        ).encode()


def read(parser: str, path: Path) -> Callable[[bytes], None]:
    """Parse one input; raises what the parser raises, except ReportError."""
    from perfctl.records.errors import ReportError

    module = import_module(f"perfctl.parsers.{parser}")
    bulk = ("kernels", "counters", "copies", "ranges", "operations", "samples")

    def through_file(data: bytes) -> None:
        path.write_bytes(data)
        module.sniff(path, data[:65536])
        try:
            report = module.parse(path)
            for name in bulk:
                for _ in getattr(report, name):
                    pass
        except ReportError:
            pass

    def through_units(data: bytes) -> None:
        number, _, unit = data.decode("utf-8", "replace").partition(" ")
        scaled = module.base_unit(unit)
        for style in module.DecimalStyle:
            try:
                read = module.read_number(number, style)
                module.read_value(number, style)
            except module.AmbiguousNumber:
                continue
            if read is not None:
                module.to_base(read, scaled.scale)

    return through_units if parser == "text.numbers" else through_file


def fuzz(parser: str, seconds: int) -> None:
    """Fuzz one parser in this process; libFuzzer ends the process itself."""
    with atheris.instrument_imports(include=["perfctl.parsers"]):
        import perfctl.records.errors

        assert perfctl.records.errors
    folder = KEPT / parser
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for data in seeds(parser):
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    places: set[tuple[str, str]] = set()
    with (
        tempfile.TemporaryDirectory() as scratch,
        atheris.instrument_imports(include=["perfctl.parsers"]),
    ):
        take = read(parser, Path(scratch) / "report.txt")

        def one(data: bytes) -> None:
            try:
                take(data)
            except Exception as error:
                _keep(folder, data, error, places)

        limits = [
            f"-max_total_time={seconds}",
            f"-timeout={SECONDS_PER_INPUT}",
            f"-rss_limit_mb={MEMORY_MIB}",
        ]
        shape = [
            f"-max_len={LONGEST}",
            f"-artifact_prefix={folder}/",
            "-print_final_stats=1",
            "-verbosity=0",
        ]
        atheris.Setup([sys.argv[0], *limits, *shape, str(corpus)], one)
        atheris.Fuzz()


def _keep(folder: Path, data: bytes, error: Exception, places: set[tuple[str, str]]) -> None:
    """Keep the first input for each place and kind of error."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "parsers" in frame.filename
    ]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    if (where, type(error).__name__) in places:
        return
    places.add((where, type(error).__name__))
    kept = folder / f"finding-{hashlib.sha256(data).hexdigest()[:12]}"
    kept.write_bytes(data)
    print(f"FINDING {type(error).__name__} at {where}: {str(error)[:200]!r}: {kept}", flush=True)


def main(parsers: list[str]) -> int:
    """Fuzz each in turn; 1 when anything was found."""
    names = parsers or list(SEEDS)
    seconds = max(1, int(os.environ.get("FUZZ_SECONDS", "600")) // len(names))
    bad = []
    for name in names:
        done = subprocess.run(
            [sys.executable, __file__, "--one", name, str(seconds)],
            capture_output=True,
            text=True,
            errors="replace",
        )
        lines = (done.stdout + done.stderr).splitlines()
        found = [
            line
            for line in lines
            if line.startswith(("FINDING", "SUMMARY", "ERROR: libFuzzer", "==")) or "ALARM" in line
        ]
        runs = next((line.split()[-1] for line in lines if "number_of_executed_units" in line), "?")
        peak = next((line.split()[-1] for line in lines if "peak_rss_mb" in line), "?")
        print(
            f"{name}: {runs} inputs in {seconds} s, peak {peak} MB, {len(found) or 'no'} findings",
            flush=True,
        )
        if found or done.returncode:
            print("\n".join(f"  {line}" for line in found or lines[-5:]), flush=True)
            bad.append(name)
    print(f"Findings in {', '.join(bad)}: inputs are in {KEPT}" if bad else "No findings.")
    return 1 if bad else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        fuzz(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main(sys.argv[1:]))
