"""Secrets of every form, in every place that a report, a script, an argument list, a log or a Slurm
file has for them.

None reaches the store, a page, an export, or a scrubbed copy. Each place holds all forms at once.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perfctl.parsers.scrub import scrub
from perfctl.redact import masked, masked_line, masked_words
from tests.parsers.nsys_builder import NsysBuilder
from tests.secret_shapes import SHAPES, said

Perfctl = Callable[..., Any]
COMMANDS = ("an option", "curl", "sshpass", "mysql", "Weights & Biases", "netrc")


def survivors(kept: bytes) -> list[str]:
    """Forms whose value is there, whole or without its end; also as JSON and pages write it."""
    left = []
    for name, (_, value) in SHAPES.items():
        beginning = value[: max(8, len(value) // 2)]
        if any(
            form.encode() in kept
            for form in (beginning, json.dumps(beginning)[1:-1], beginning.replace("+", "&#43;"))
        ):
            left.append(name)
    return left


def everything(folder: Path) -> bytes:
    """The store, its log, pages and exports."""
    files = [
        file
        for ending in ("db", "html", "csv", "json", "md")
        for file in folder.glob(f"kept*.{ending}*")
    ]
    assert len(files) > 2
    return b"".join(file.read_bytes() for file in files)


def shown(perfctl: Perfctl, *reports: str) -> bytes:
    """What ingest says, and all that is written afterwards."""
    said_there = [perfctl("ingest", *reports, "--batch", "16", "--store", "kept.db")]
    assert said_there[0].code == 0, said_there[0].err
    for command in (
        ("report", "--out", "kept.html"),
        ("export", "--out", "kept.csv"),
        ("show", "1", "--json"),
        ("runs", "--json"),
    ):
        said_there.append(perfctl(*command, "--store", "kept.db"))
        assert said_there[-1].code == 0, (command, said_there[-1].err)
    return b"".join((each.out + each.err).encode() for each in said_there) + everything(Path.cwd())


def nsys_report(path: Path) -> Path:
    """All forms as names of ranges, as a kernel's name, in the capture's facts, in messages,
    in strings."""
    builder = NsysBuilder("2024.2")
    builder.range("perfctl:step:0", 1, 9000)
    builder.launch(40, name="gemm(int)")
    for number, name in enumerate(SHAPES):
        builder.range(said(name), 10 + number, 5000 + number)
        builder.launch(100 + 10 * number, name=f"kernel_{number} {said(name)}")
        builder.string(said(name))
        builder.row("META_DATA_CAPTURE", "name value", name=f"NOTE_{number}", value=said(name))
        columns = "timestamp timestampType source severity text globalPid"
        builder.row("DIAGNOSTIC_EVENT", columns, severity=1, source=1, text=said(name))
    for number, word in enumerate(said("an option of a database").split()):
        builder.row(
            "META_DATA_CAPTURE", "name value", name=f"PROCESS_0:ARGUMENT_{number}", value=word
        )
    return builder.write(path)


def kineto_report(path: Path) -> Path:
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": said(name),
            "pid": 1,
            "tid": 1,
            "ts": 10 * number,
            "dur": 5,
            "args": {"said": said(name)},
        }
        for number, name in enumerate(SHAPES)
    ]
    path.write_text(
        json.dumps(
            {"schemaVersion": 1, "traceEvents": events, "facts": [said(name) for name in SHAPES]}
        )
    )
    return path


def log(path: Path) -> Path:
    """Also what a Slurm script and a shell script are."""
    lines = (
        f"{said(name)}\n#SBATCH --comment='{said(name)}'\nexport NOTE=1 # {said(name)}\n"
        for name in SHAPES
    )
    path.write_bytes("\n".join(lines).encode())
    return path


@pytest.mark.parametrize("report", [nsys_report, kineto_report])
def test_of_a_report_no_secret_reaches_the_store_a_page_or_an_export(
    report: Callable[[Path], Path], perfctl: Perfctl, tmp_path: Path
) -> None:
    path = report(tmp_path / ("r.sqlite" if report is nsys_report else "r.json"))
    assert len(survivors(path.read_bytes())) > 60, "they are in it"
    assert survivors(shown(perfctl, path.name)) == []


@pytest.mark.parametrize("report", [nsys_report, kineto_report, log])
def test_of_a_report_or_a_script_no_secret_reaches_a_scrubbed_copy(
    report: Callable[[Path], Path], tmp_path: Path
) -> None:
    done = scrub(report(tmp_path / "r.txt"), tmp_path / "copy.txt")
    assert survivors(done.path.read_bytes()) == []


@pytest.mark.parametrize("coding", ["gzip", "utf-16"])
def test_nor_one_of_a_log_that_is_gzipped_or_utf_16(coding: str, tmp_path: Path) -> None:
    text = log(tmp_path / "r.txt").read_text()
    path = tmp_path / "r.log"
    path.write_bytes(
        gzip.compress(text.encode(), mtime=0) if coding == "gzip" else text.encode("utf-16")
    )
    raw = scrub(path, tmp_path / "copy.log").path.read_bytes()
    copy = gzip.decompress(raw).decode() if coding == "gzip" else raw.decode("utf-16")
    assert survivors(copy.encode()) == []


def test_of_a_runs_record_no_secret_reaches_the_store_a_page_or_an_export(
    perfctl: Perfctl, tmp_path: Path, recorded: Path
) -> None:
    shutil.copytree(recorded / "torch" / "b16", tmp_path / "b16")
    record, workload = (
        json.loads((tmp_path / "b16" / name).read_text()) for name in ("run.json", "workload.json")
    )
    words = [word for name in SHAPES for word in said(name).split(" ")]
    record["commands"] = [
        ["python", "train.py", *words],
        ["python", *(said(name) for name in SHAPES)],
    ]
    record |= {"status": "partial", "reason": "\n".join(map(said, SHAPES))}
    workload["options"] |= {f"note {number}": said(name) for number, name in enumerate(SHAPES)}
    (tmp_path / "b16" / "run.json").write_text(json.dumps(record))
    (tmp_path / "b16" / "workload.json").write_text(json.dumps(workload))
    assert survivors(shown(perfctl, "b16")) == []


@pytest.mark.parametrize("name", SHAPES)
def test_a_form_is_masked_in_a_text_and_in_an_argument_list(name: str) -> None:
    value = SHAPES[name][1]
    for text in (
        masked(said(name)),
        masked(f"before\n\t{said(name)}, after"),
        " ".join(masked_words(said(name).split(" "))),
    ):
        assert value[:8] not in text.replace("eyJhbGciOiJIUzI1NiJ9.", ""), text
    assert value not in masked_line(f"perfctl torch train.py '{said(name)}'")


def test_each_form_is_counted_and_none_is_found_in_the_copy_again(tmp_path: Path) -> None:
    done = scrub(log(tmp_path / "r.txt"), tmp_path / "copy.txt")
    assert sum(done.found.values()) >= 3 * len(SHAPES)
    again = scrub(done.path, tmp_path / "again.txt")
    assert (again.names, again.found) == ((), {})
    assert again.path.read_bytes() == done.path.read_bytes()


def test_measurements_of_the_scrubbed_copy_are_whole(tmp_path: Path) -> None:
    path = nsys_report(tmp_path / "r.sqlite")
    copy = scrub(path, tmp_path / "copy.sqlite").path
    counts = []
    for file in (path, copy):
        with closing(sqlite3.connect(file)) as connection:
            counts.append(
                connection.execute(
                    'SELECT count(*), sum("end" - start) FROM NVTX_EVENTS'
                ).fetchone()
            )
    assert counts[0] == counts[1]
