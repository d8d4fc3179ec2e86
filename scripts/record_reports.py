"""Record the main job on this machine in one command of under nine minutes, and leave small results
to carry away.

    python3 scripts/record_reports.py OUT [--wheels FOLDER] [--budget 500]

On a machine with a GPU, torch, and nothing else: it makes perfctl ready from this checkout, finds
ncu and nsys, sweeps the built-in network under torch, ncu and nsys, counts matrix products of known
size in four precisions, tries the options that need hardware, and stops a profiler early. What does
not work here is a line with the reason. Without network, what pip needs travels as wheels:
``--download FOLDER`` fetches them where there is one.

OUT gets at most seven files, 15 MB each: HOW.md (what ran, how it ended), results.json (the same
for programs, and the machine), recordings.tar.gz (``perfctl replay recordings/STEP`` replays a
sweep), ledger.json, report.html, log.txt.gz, tools.tar.gz (help and counters of ncu and nsys).
Names of the machine, its folders and secrets are masked.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from record import keep, machine

LARGEST_OUT = 15_000_000
"""Bytes of a file in OUT."""
PACKING_S = 30.0
"""Kept of the budget for packing."""
READING_S = 45.0
"""Kept of it for the steps that read what was recorded."""
PROGRAMS = machine.ROOT / "scripts/record/programs"
"""What the steps run that is no built-in workload."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call of perfctl."""

    name: str
    words: tuple[str, ...]
    limit_s: float
    sweeps: bool = True
    """Whether it makes runs to keep."""
    store: str = "main"


@dataclass(slots=True)
class Done:
    """How a step ended."""

    name: str
    command: str
    seconds: float = 0.0
    exit_code: int | None = None
    """None: it was not started, or was stopped at its limit."""
    said: str = ""
    """The last line that it printed, or why it was not started."""
    runs: list[dict[str, Any]] = field(default_factory=list)


def steps(batches: str, device: str, size: int, known: Path | None) -> list[Step]:
    """What is recorded, the main job first; what is last may have no time left.

    ``known``: the library of ``known.cu``, where nvcc compiled it.
    """
    main = ("--batches", batches, "--warmup", "2", "--timeout", "60")
    built_in = ("--batches", "64", "--steps", "1", "--warmup", "2", "--device", "cuda")
    ncu = ("ncu", *built_in, "--timeout", "60")
    one_step = ("--steps", "1", "--warmup", "1", "--timeout", "90")
    products = ("--batches", str(size), *one_step, "--step-marker", "forward:Products")
    found = [
        Step("doctor", ("doctor",), 30, sweeps=False),
        Step("torch", ("torch", *main, "--steps", "2", "--device", device), 150),
        Step("ncu", ("ncu", *main, "--steps", "1", "--device", "cuda"), 200),
        Step("nsys", ("nsys", *main, "--steps", "2", "--device", device), 100),
        Step("ledger", ("ledger", "--json"), 30, sweeps=False),
        Step("report", ("report",), 60, sweeps=False),
        Step("ncu-products", ("ncu", *products, *program("products.py")), 60, store="more"),
        *(
            Step(f"ncu-{precision}", (*ncu, "--precision", precision), 60, store="more")
            for precision in ("tf32", "bf16", "fp16")
        ),
    ]
    if known is not None:
        words = (
            *("ncu", "--batches", "100", *one_step, "--step-marker", "forward:Known"),
            *program("known.py", str(known)),
        )
        found.append(Step("ncu-known", words, 30, store="more"))
    blocks = ("--batches", "8", *one_step, *program("network.py", "blocks", "bf16"))
    resnet = ("--batches", "32", *one_step, *program("network.py", "resnet18", "default"))
    found += [
        Step("ncu-blocks", ("ncu", *blocks), 100, store="more"),
        Step("ncu-distinct", ("ncu", "--launches", "distinct", *blocks), 100, store="more"),
        Step("ncu-resnet18", ("ncu", *resnet), 120, store="more"),
    ]
    for name, precision, sizes in (
        ("resnet50", "bf16", "64,256"),
        ("vit_b_16", "bf16", "64"),
        ("resnet50", "default", "64"),
    ):
        timed = ("--batches", sizes, "--steps", "3", "--warmup", "4", "--timeout", "60")
        words = ("torch", *timed, *program("network.py", name, precision))
        found.append(Step(f"torch-{name}-{precision}", words, 60, store="more"))
    found += [
        Step(
            "ncu-configurations",
            (*ncu, "--launch-count", "1", "--tool-args", "--filter-mode per-launch-config"),
            60,
            store="more",
        ),
        Step(
            "ncu-warm",
            (*ncu, "--cache-control", "none", "--clock-control", "none"),
            60,
            store="more",
        ),
        Step(
            "ncu-stopped",
            (
                *("ncu", "--batches", "256", "--steps", "2000", "--device", "cuda"),
                *("--timeout", "18", "--grace", "40"),
            ),
            70,
            store="more",
        ),
        Step("ncu-application-replay", (*ncu, "--replay-mode", "application"), 120, store="more"),
        Step("ledger-more", ("ledger", "--json", "--store", "more.db"), 30, sweeps=False),
    ]
    return found


def program(name: str, *words: str) -> tuple[str, ...]:
    """The end of a command line that runs one of PROGRAMS with a batch size."""
    return ("--", sys.executable, str(PROGRAMS / name), *words, "{batch}")


class Recording:
    """A recording that is made: its folders, its clock, and how its steps ended."""

    def __init__(self, out: Path, work: Path, budget_s: float) -> None:
        self.out, self.work = out, work
        self.began, self.budget_s = time.monotonic(), budget_s
        path = os.pathsep.join(filter(None, (str(work / "site"), os.environ.get("PYTHONPATH"))))
        self.environment = {
            **os.environ,
            "PYTHONPATH": path,
            "PYTHONNOUSERSITE": "1",
            "COLUMNS": "160",
        }
        folders = {
            "scratch": work,
            "checkout": machine.ROOT,
            "out": out.absolute(),
            "home": Path.home(),
        }
        self.masks = keep.Masks(folders, os.environ)
        self.log = bytearray()
        self.done: list[Done] = []
        self.left_out: list[str] = []

    def left_s(self) -> float:
        """Seconds of the budget that are left for steps."""
        return self.budget_s - PACKING_S - (time.monotonic() - self.began)

    def run(self, step: Step) -> None:
        """Run one step, within its limit and what is left of the budget; keep its runs."""
        runs = self.work / "runs" / step.name
        words = list(step.words)
        at = words.index("--") if "--" in words else len(words)
        words[at:at] = ["--out", str(runs), "--store", f"{step.store}.db"] if step.sweeps else []
        if step.name in ("ledger", "report"):
            words += ["--store", "main.db"]
        ended = Done(step.name, f"perfctl {shlex.join(words)}")
        self.done.append(ended)
        limit = min(step.limit_s, self.left_s() - (READING_S if step.sweeps else 0.0))
        if limit < 10:
            ended.said = "not started: no time was left"
        else:
            self._call(ended, [sys.executable, "-m", "perfctl", *words], limit)
        if step.sweeps:
            self.log += keep.logs(runs)
            _, left = keep.keep(runs, self.work / "recordings" / step.name, self.masks)
            self.left_out += left
            ended.runs = [outcome(record) for record in sorted(runs.glob("*/b*/run.json"))]
        print(
            f"{ended.name}: {ended.seconds:.0f} s, exit {ended.exit_code}, {ended.said}"[:200],
            flush=True,
        )

    def _call(self, ended: Done, argv: list[str], limit: float) -> None:
        began = time.monotonic()
        out, err = self.work / f"{ended.name}.out", self.work / f"{ended.name}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=self.work,
                env=self.environment,
                start_new_session=True,
            )
            try:
                ended.exit_code = child.wait(limit)
            except subprocess.TimeoutExpired:
                stop(child)
        ended.seconds = round(time.monotonic() - began, 1)
        lines = (
            (err.read_text(errors="replace") or out.read_text(errors="replace"))
            .strip()
            .splitlines()
        )
        ended.said = lines[-1] if lines and lines[-1] != "}" else ""
        if ended.exit_code is None:
            ended.said = f"stopped at its limit of {limit:.0f} s; {ended.said}"
        self.log += (
            f"\n=== {ended.command}\n".encode()
            + out.read_bytes()[-200_000:]
            + err.read_bytes()[-100_000:]
        )

    def tools(self) -> None:
        """What the profilers say of themselves: their options, and the chip's counters."""
        asked = [
            ("ncu-help.txt", "ncu", "--help"),
            ("nsys-profile-help.txt", "nsys", "profile", "--help"),
            ("ncu-metrics.txt", "ncu", "--query-metrics"),
            ("ncu-chips.txt", "ncu", "--list-chips"),
            ("ncu-sections.txt", "ncu", "--list-sections"),
            ("nvidia-smi-help.txt", "nvidia-smi", "--help-query-gpu"),
        ]
        folder = self.work / "tools"
        folder.mkdir()
        for name, *argv in asked:
            if self.left_s() > 10 and (
                said := machine.ask(self.environment, *argv, limit_s=min(40.0, self.left_s()))
            ):
                (folder / name).write_bytes(self.masks.text(said.encode()))

    def write(self, facts: dict[str, str | None], setup: list[str]) -> None:
        """Fill OUT. A file that is too large is left out, and named."""
        for name in ("recordings", "tools"):
            (self.work / name).mkdir(exist_ok=True)
            self.left_out += keep.pack(self.work / name, self.out, self.masks)
        answer = {"main": self.work / "ledger.out", "more": self.work / "ledger-more.out"}
        ledgers = {name: read_json(file) for name, file in answer.items()}
        self._put("ledger.json", json.dumps(ledgers, indent=1).encode())
        if (self.work / "perfctl-report.html").is_file():
            self._put("report.html", (self.work / "perfctl-report.html").read_bytes())
        (self.out / "log.txt.gz").write_bytes(
            gzip.compress(self.masks.text(bytes(self.log)), mtime=0)
        )
        for file in sorted(self.out.iterdir()):
            if file.is_file() and file.stat().st_size > LARGEST_OUT:
                self.left_out.append(f"{file.name} ({file.stat().st_size / 1e6:.1f} MB)")
                file.unlink()
        took = time.monotonic() - self.began
        results = {
            "machine": facts,
            "setup": setup,
            "steps": [asdict(one) for one in self.done],
            "left_out": self.left_out,
            "budget_s": self.budget_s,
            "took_s": round(took, 1),
        }
        self._put("results.json", json.dumps(results, indent=1).encode() + b"\n")
        self._put("HOW.md", how(results).encode())

    def _put(self, name: str, content: bytes) -> None:
        (self.out / name).write_bytes(self.masks.text(content))


def stop(child: subprocess.Popen[bytes]) -> None:
    """perfctl ends its profiler on TERM; what does not end in 20 s is killed."""
    child.terminate()
    try:
        child.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def outcome(record: Path) -> dict[str, Any]:
    """How one run ended."""
    run = json.loads(record.read_text(encoding="utf-8"))
    names = ("batch_size", "status", "reason", "exit_code", "duration_ns")
    return {name: run.get(name) for name in names}


def read_json(file: Path) -> Any:
    """What a step printed; None where it did not run, or failed."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def how(results: dict[str, Any]) -> str:
    """HOW.md, for the reader of the recording."""
    facts = results["machine"]
    lines = [
        "# How these were made",
        "",
        (
            f"Real recordings on {facts.get('gpu name') or 'a machine without a GPU'}, by `python3 "
            f"scripts/record_reports.py`, in {results['took_s']:.0f} s. Replay one with `perfctl "
            "replay recordings/STEP`. Times were measured on a shared machine and mean nothing by "
            "themselves."
        ),
        "",
        "| machine | |",
        "|---|---|",
        *(f"| {name} | {value or 'not known'} |" for name, value in facts.items()),
        "",
        "Made ready: " + "; ".join(results["setup"]) + ".",
        "",
        "| step | command | s | exit | runs | said |",
        "|---|---|---|---|---|---|",
        *map(_row, results["steps"]),
        "",
        *(["Left out: " + "; ".join(results["left_out"]) + ".", ""] if results["left_out"] else []),
    ]
    return "\n".join(lines)


def _row(step: dict[str, Any]) -> str:
    runs = ", ".join(f"{run['batch_size']}: {run['status']}" for run in step["runs"]) or "–"
    code = "–" if step["exit_code"] is None else step["exit_code"]
    said = step["said"].replace("|", "\\|")
    return (
        f"| {step['name']} | `{step['command']}` | {step['seconds']:.0f} | {code} | {runs} | "
        f"{said} |"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, nargs="?", help="folder for the results")
    parser.add_argument("--batches", default="16,32,64,128,256")
    parser.add_argument(
        "--size",
        type=int,
        default=4096,
        help="rows and columns of the matrix products; default: 4096",
    )
    parser.add_argument("--only", help="steps to run, commas between; default: all")
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        help="of torch and nsys; default: cuda where a GPU answers",
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        help="folder of wheels to install from; default: .whl in the checkout",
    )
    parser.add_argument(
        "--budget", type=float, default=500.0, help="seconds for everything; default: 500"
    )
    parser.add_argument(
        "--download",
        type=Path,
        metavar="FOLDER",
        help="only fetch wheels for a machine without network",
    )
    parser.add_argument(
        "--python", default="3.12", help="with --download: Python of that machine; default: 3.12"
    )
    asked = parser.parse_args()
    if asked.out is None and asked.download is None:
        parser.error("name the folder OUT for the results")
    return asked


def main() -> int:
    asked = arguments()
    if asked.download is not None:
        print(machine.download(asked.download, asked.python))
        return 0
    asked.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="perfctl-record-"))
    try:
        return record(asked, Recording(asked.out, work, asked.budget))
    except machine.CannotRecord as error:
        print(f"record_reports.py: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)


def record(asked: argparse.Namespace, recording: Recording) -> int:
    """Make ready, run the steps, write the results. Exit code 1 when a step of the main
    job failed."""
    site = recording.work / "site"
    beside = machine.ROOT / ".whl"
    wheels = asked.wheels or (beside if beside.is_dir() else None)
    setup = machine.install(site, wheels, limit_s=240.0)
    setup += machine.find_profilers(recording.environment, limit_s=100.0)
    print("; ".join(setup), flush=True)
    sys.path.insert(0, str(site))  # for perfctl.redact
    facts = machine.facts(recording.environment)
    gpu = bool(machine.ask(recording.environment, "nvidia-smi", "--list-gpus"))
    known = machine.compile_known(PROGRAMS / "known.cu", recording.work, recording.environment)
    wanted = asked.only.split(",") if asked.only else None
    device = asked.device or ("cuda" if gpu else "cpu")
    for step in steps(asked.batches, device, asked.size, known):
        if wanted is None or step.name in wanted:
            recording.run(step)
    if wanted is None or "tools" in wanted:
        recording.tools()
    recording.write(facts, setup)
    failed = [
        one.name
        for one in recording.done
        if one.name in ("torch", "ncu", "ledger") and one.exit_code != 0
    ]
    total = sum(file.stat().st_size for file in asked.out.iterdir())
    print(f"Wrote {asked.out}: {len(list(asked.out.iterdir()))} files, {total / 1e6:.1f} MB")
    if failed:
        print(f"record_reports.py: failed: {', '.join(failed)}; HOW.md says why", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
