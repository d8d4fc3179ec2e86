"""What protects perfctl as a product: damaged reports, the wheel, annotator.pyz, the simulator of
causes, silicon tables."""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import runpy
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from recorder import Recorder, Values, help_texts

SIMULATOR = "scripts/proof/verdicts/run.py"
SILICON = "scripts/proof/silicon/silicon.py"
SILICON_ATEN = "scripts/proof/silicon/silicon_aten.py"
DIALECTS = "scripts/stress/fuzz/dialects.py"
"""Files of the repository, by their path. Change a path here when its file moves."""
ANNOTATOR = "perfctl.orchestrator.launch.annotator"
"""Module that writes annotator.pyz."""
DRAWS, BLOCK, SEEDS = 2000, 250, (0, 100_000)
"""Draws for each of the seeds, and draws of a table; a quick recording has one table."""
REPORTS = (
    "dcgm-synthetic/*",
    "dlprof-json-synthetic/*",
    "dlprof-synthetic/*",
    "inference-reports/densenet201_1_batch/*",
    "inference-reports/densenet201_1_batch_gpu_mem.csv",
    "kineto-synthetic/*",
    "ncu-logs/console.log",
    "ncu-nvtx/*.csv",
    "ncu-ragged/*.csv",
    "ncu-wide/*.csv",
    "nvidia-smi-synthetic/*",
    "nvprof-synthetic/*",
    "recorded-cpu/nsys/b16/report.sqlite",
    "recorded-cpu/torch/b16/report.pt.trace.json.gz",
)
"""Files below tests/data that are damaged."""
LARGEST_SHARED, SHARED_EACH = 320_000, 2
"""Bytes of a shared report that is damaged, and reports of a folder."""
PACKAGES = {
    "perfctl": "perfctl",
    "orchestrator": "perfctl/orchestrator",
    "parsers": "perfctl/parsers",
    "templates": "perfctl/templates",
    "workloads": "perfctl/workloads",
}
"""Folder of the repository -> folder of the wheel."""
SURPLUS = """
import json, re
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
def plain(name): return re.sub(r"[-_.]+", "-", name).lower()
wanted, left = set(), ["perfctl"]
while left:
    name = plain(re.match(r"[\\w.-]+", left.pop())[0])
    if name not in wanted:
        wanted.add(name)
        try:
            left += [line for line in distribution(name).requires or [] if "extra ==" not in line]
        except PackageNotFoundError:
            pass
print(json.dumps(sorted(top for top, owners in packages_distributions().items()
                        if not wanted & {plain(owner) for owner in owners})))
"""
"""Prints the packages of an environment that perfctl does not require without extras."""
HIDE = """
import sys
class Without:
    def __init__(self, finder): self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else self.finder.find_spec(name, path, target)
    def __getattr__(self, name): return getattr(self.finder, name)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""  # noqa: E501
"""A sitecustomize.py after which the packages in HIDDEN are not found."""
NAMES = """
import json, perfctl
print(json.dumps({name: type(getattr(perfctl, name)).__name__ for name in perfctl.__all__}))
"""
WITHOUT_EXTRAS = (
    "ingest tests/data/recorded-cpu --store a.db",
    "runs --store a.db",
    "show 1 --store a.db",
    "ledger --store a.db",
    "report --store a.db --out a.html",
    "compare 1 2 --store a.db",
    "history --store a.db",
    "query -",
    "predict --list-prices",
    "export --store a.db --out a.csv",
    "export --store a.db --out a.json",
    "export --store a.db --out a.parquet",
    "export --store a.db --out a.xlsx",
    "plot --list --store a.db",
    "plot step --store a.db --out a.svg",
    "trace 3 --store a.db --out a.json.gz",
    "estimate mnist_cnn --batch 16",
    "estimate torchvision:resnet18 --batch 2",
    "predict mnist_cnn --device A100 --batch 16",
    "predict resnet:depth=18 --device A100 --batch 16",
    (
        "mfu --layers 12 --hidden 768 --heads 12 --ffn 3072 --vocab 50304 --seq 1024 "
        "--tokens-per-second 1000 --device H100"
    ),
    "torch --batches 4",
    "calculator --models none --out c.html",
    "ledger --json-schema",
    "mcp --help",
)
"""Calls whose exit code is recorded where only run-time dependencies are installed."""
OLD_PYTHON = (3, 8)
SCRIPT = "import sys; print(len(sys.argv), 'torch' in sys.modules)"


def damage(recorder: Recorder) -> Values:
    """Yield how ``ingest`` ends for damaged files of the repository: what is read, partly
    read, refused."""
    folder = recorder.project / "tests/data"
    files: list[list[object]] = [
        [recorder.name(path), str(path), None, 1]
        for pattern in REPORTS
        for path in sorted(folder.glob(pattern))
        if path.suffix != ".md"
    ]
    dialects = recorder.project / DIALECTS
    samples = runpy.run_path(str(dialects))["MORE_SEEDS"] if dialects.exists() else {}
    for parser, contents in samples.items():
        for number, content in enumerate(contents):
            files.append(
                [f"sample/{parser}-{number}.txt", None, base64.b64encode(content).decode(), 0]
            )
    yield from recorder.child("damage.py", *every(recorder), given=json.dumps(files)).items()


def damage_shared(recorder: Recorder) -> Values:
    """Yield how ``ingest`` ends for damaged reports of real tools."""
    found: Counter[Path] = Counter()
    files: list[list[object]] = []
    for path in sorted((recorder.shared / "reports").rglob("*")):
        if (
            path.is_file()
            and path.suffix not in {".md", ".py"}
            and path.stat().st_size <= LARGEST_SHARED
        ):
            found[path.parent] += 1
            if found[path.parent] <= SHARED_EACH:
                files.append([recorder.name(path), str(path), None, 0])
    yield from recorder.child("damage.py", *every(recorder), given=json.dumps(files)).items()


def every(recorder: Recorder) -> list[str]:
    """Return the options of a quick recording."""
    return ["--every", "5"] if recorder.quick else []


def wheel(recorder: Recorder) -> Values:
    """Yield data files and metadata of the wheel, and what works with its run-time
    dependencies alone."""
    source, built, site = (recorder.work / name for name in ("source", "built", "site"))
    listed = recorder.run(
        "git", "-C", str(recorder.project), "ls-files", "-z", "-c", "-o", "--exclude-standard"
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (recorder.project / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(recorder.project / name, source / name)
    build = partial(
        recorder.run,
        recorder.python,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(built),
        str(source),
    )
    if build("--no-build-isolation").returncode:
        build()
    packed = next(built.glob("*.whl"), None)
    yield "builds", packed is not None
    if packed is None:
        return
    with zipfile.ZipFile(packed) as archive:
        names = archive.namelist()
        archive.extractall(site)
        information = next(name for name in names if name.endswith("METADATA"))
        metadata = archive.read(information).decode().partition("\n\n")[0]
        entries = archive.read(information.replace("METADATA", "entry_points.txt")).decode()
    for line in sorted(metadata.splitlines()):
        if line.startswith(("Requires-", "Provides-Extra", "License-File")):
            yield f"metadata / {line}", True
    yield "entry points", entries.split()
    yield from of_files({name for name in names if "dist-info" not in name}, source)
    hidden = recorder.run(recorder.python, "-c", SURPLUS).stdout
    (site / "sitecustomize.py").write_text(f"HIDDEN = set({hidden})\n{HIDE}", encoding="utf-8")
    yield from alone(recorder, site)


def of_files(held: set[str], source: Path) -> Values:
    """Yield the data files of the wheel, and what differs between its modules and those of
    the repository.

    Modules move often; that none is forgotten is what matters.
    """
    modules = {
        str(inside / path.relative_to(source / folder))
        for folder, inside in ((folder, Path(inside)) for folder, inside in PACKAGES.items())
        for path in (source / folder).rglob("*.py")
    }
    yield "modules that the wheel lacks", sorted(modules - held)
    yield (
        "modules that the repository lacks",
        sorted(name for name in held - modules if name.endswith(".py")),
    )
    for name in sorted(held):
        if not name.endswith(".py"):
            yield f"data / {name}", True


def alone(recorder: Recorder, site: Path) -> Values:
    """Yield the names and commands that work where only the wheel and its run-time dependencies
    are found."""
    inside = Recorder(
        [recorder.python, "-m", "perfctl"],
        recorder.project,
        recorder.shared,
        recorder.work,
        environment={"PYTHONPATH": str(site)},
    )
    done = inside.run(recorder.python, "-c", NAMES)
    for name, kind in (
        json.loads(done.stdout) if done.returncode == 0 else {"perfctl": "fails"}
    ).items():
        yield f"import / {name}", kind
    where = inside.run(recorder.python, "-c", "import perfctl; print(perfctl.__file__)").stdout
    yield "import / from the wheel", str(site) in where
    for command, _ in [] if recorder.quick else help_texts(inside):
        yield f"help / {' '.join(command) or 'perfctl'}", True
    # the first one makes the results database
    for call in WITHOUT_EXTRAS[: 5 if recorder.quick else None]:
        words = call.replace("tests/data", str(recorder.project / "tests/data")).split()
        yield f"exit / {call}", inside.call(*words).returncode


def annotator(recorder: Recorder) -> Values:
    """Yield the files of annotator.pyz, whether Python 3.8 reads them, and whether it runs
    without perfctl."""
    file = recorder.work / "annotator.pyz"
    call = f"a.write_annotator_archive(pathlib.Path({str(file)!r}), '0')"
    write = f"import pathlib, {ANNOTATOR} as a; {call}"
    yield "written", recorder.run(recorder.python, "-c", write).returncode
    if not file.exists():
        return
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            yield f"file / {name}", readable(archive.read(name).decode(), name)
    (recorder.work / "plain.py").write_text(SCRIPT, encoding="utf-8")
    python = next(old_pythons(recorder), None)
    if python is None:
        print(
            "annotator: no Python 3.8 was found (PERFCTL_PYTHON38); this Python runs annotator.pyz "
            "instead"
        )
    command = [
        python or recorder.python,
        "-I",
        "-S",
        str(file),
        "--record",
        "plain.json",
        "--",
        "plain.py",
        "a",
    ]
    done = recorder.run(*command)
    yield "run / exit", done.returncode
    yield "run / output", done.stdout
    record = recorder.work / "plain.json"
    yield "run / record", sorted(json.loads(record.read_text())) if record.exists() else []


def readable(text: str, name: str) -> bool:
    """Return whether the oldest Python reads the source."""
    try:
        ast.parse(text, name, feature_version=OLD_PYTHON)
    except SyntaxError:
        return False
    return True


def old_pythons(recorder: Recorder) -> Iterator[str]:
    """Yield the interpreters of Python 3.8 that start."""
    known = [os.environ.get("PERFCTL_PYTHON38"), shutil.which("python3.8")]
    known += [str(path) for path in sorted(Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8"))]
    for python in known:
        if python and recorder.run(python, "-c", "").returncode == 0:
            yield python


def causes(recorder: Recorder) -> Values:
    """Yield the outcome table of the simulator of causes: per effect the draws and rows
    by result."""
    blocks = [seed + first for seed in SEEDS for first in range(0, DRAWS, BLOCK)]
    for first in blocks[:1] if recorder.quick else blocks:
        program = [recorder.python, str(recorder.project / SIMULATOR)]
        done = recorder.run(
            *program, "--draws", str(BLOCK), "--seed", str(first), "--show", "0", timeout=1800
        )
        yield f"seed {first} / exit", done.returncode
        for line in done.stdout.splitlines():
            if found := re.fullmatch(r"(\w+)((?:\s+[\d.]+){9})", line.strip()):
                yield f"seed {first} / {found[1]}", [float(number) for number in found[2].split()]


def silicon(recorder: Recorder) -> Values:
    """Yield the tables of derived counts against hardware counters."""
    data, reports = recorder.shared / "datasets/a100_operators", recorder.shared / "reports"
    report = reports / "ncu/csv_long/leleucas_bert_nsight_with_prof_lines.csv"
    programs = {
        SILICON: ["--data", str(data), "--reports", str(reports)],
        SILICON_ATEN: ["--report", str(report)],
    }
    for program, arguments in programs.items():
        done = recorder.run(recorder.python, str(recorder.project / program), *arguments)
        yield f"{Path(program).stem} / exit", done.returncode
        seen: Counter[str] = Counter()
        for key, values in silicon_rows(done.stdout):
            number = f" #{seen[key]}" if seen[key] else ""
            seen[key] += 1
            yield f"{Path(program).stem} / {key}{number}", values


def silicon_rows(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield name and numbers of the rows of a table; its columns have fixed widths."""
    number = r"(?:[-+]?[\d,.]+%?|-)"
    for line in text.splitlines():
        if found := re.fullmatch(
            rf"(.{{24}})(.{{34}})\s*((?:{number}\s+){{4}}) (\w+ ?\w*);.*", line
        ):
            yield f"{found[1].strip()} / {found[2].strip()} / {found[4]}", found[3].split()
        elif found := re.fullmatch(rf"(.{{28}})((?:\s*{number}){{8}})", line):
            yield found[1].strip(), found[2].split()
        elif found := re.fullmatch(rf"(.{{30}})(.{{30}})\s*({number})  (\S.*)", line):
            yield found[4].strip(), [*found[1].split(), "derived", *found[2].split(), found[3]]
