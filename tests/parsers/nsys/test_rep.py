"""Reports that nsys keeps for itself: read through whichever nsys is installed, or refused with the
version to install."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from perfctl.parsers import ReportError, sniff
from perfctl.parsers.nsys import rep as nsys_rep
from perfctl.parsers.nsys import sqlite
from perfctl.records.bulk import Columns, SqlKernels
from tests.make.nsys_rep import MAGIC, STREAM, STREAM_WORDS, install
from tests.make.nsys_sqlite import NsysBuilder, training_step


def export_of(tmp_path: Path) -> Path:
    return training_step(NsysBuilder()).write(tmp_path / "export.sqlite")


@pytest.mark.parametrize(
    ("name", "head", "taken"),
    [
        ("a.dat", b"x" * 36 + STREAM_WORDS, True),
        ("a.dat", b"x" * 37 + STREAM_WORDS, False),
        ("a.dat", MAGIC, True),
        ("a.dat", b"x" + MAGIC, False),
        ("a.sqlite", b"\x01", False),
        ("a.QDREP", b"\x01", True),
        ("a.qdstrm", b"\x01", True),
        ("a.nsys-rep", b"", False),
        ("a.nsys-rep", b"SQLite format 3\0", False),
        ("a.nsys-rep", b"version https://git-lfs.github.com/spec/v1\n", False),
        ("a.dat", STREAM, True),
        ("a.dat", b"\x01", False),
    ],
)
def test_the_first_64_bytes_or_the_suffix_say_what_it_is(
    tmp_path: Path, name: str, head: bytes, taken: bool
) -> None:
    path = tmp_path / name
    path.write_bytes(head)
    parser = sniff(path)
    assert (
        (parser is not None and parser.name == "nsys report") == nsys_rep.sniff(path, head) == taken
    )


def test_the_whole_command_and_the_records(
    tmp_path: Path, report: Path, fake_nsys: Path, temporary: Path
) -> None:
    export = export_of(tmp_path)
    install(fake_nsys, f'printf "%s\\n" "$@" > {tmp_path}/argv; cp {export} "$5"\n')
    before = sorted(report.parent.iterdir())
    found = nsys_rep.parse(report)
    (folder,) = temporary.iterdir()
    assert (tmp_path / "argv").read_text().split("\n")[:-1] == [
        "export",
        "--type",
        "sqlite",
        "--output",
        f"{folder}/report.sqlite",
        f"{folder}/report.nsys-rep",
    ]
    assert found.path == report
    assert found.tool == "nsys"
    assert found.form == "nsys report, exported: nsys SQLite, schema 3.11.1"
    kernels = found.kernels
    direct = sqlite.parse(export)
    assert isinstance(kernels, SqlKernels)
    assert isinstance(found.ranges, Columns)
    assert [list(rows) for rows in (kernels, found.ranges, found.copies, found.samples)] == [
        list(rows) for rows in (direct.kernels, direct.ranges, direct.copies, direct.samples)
    ]
    assert sorted({*report.parent.iterdir()} - {tmp_path / "argv"}) == before
    del found
    gc.collect()
    assert len(list(kernels)) > 0  # the export is there as long as any of the records
    del kernels
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_what_is_wrong_with_the_export_is_said_of_the_report(
    tmp_path: Path, report: Path, fake_nsys: Path, temporary: Path
) -> None:
    install(fake_nsys, f'cp {export_of(tmp_path)} "$5"\n')
    found = nsys_rep.parse(report)
    kernels = found.kernels
    assert isinstance(kernels, SqlKernels)
    kernels.path.write_bytes(b"no database any more" * 1000)
    for read in (lambda: list(kernels), lambda: list(found.copies)):
        with pytest.raises(ReportError) as raised:
            read()
        assert raised.value.path == report
        assert "damaged or truncated" in raised.value.reason


@pytest.mark.parametrize("place", ["bin", "bin/host-linux-x64", "opt/host-linux-x64"])
def test_a_stream_is_imported_first(
    tmp_path: Path, fake_nsys: Path, temporary: Path, place: str
) -> None:
    """By the importer on the PATH, beside nsys, or in the installation that a link to nsys
    leads to."""
    export = export_of(tmp_path)
    for folder in (
        tmp_path / "opt/target/bin",
        tmp_path / place,
        fake_nsys / "host-linux-a/QdstrmImporter",
    ):
        folder.mkdir(parents=True, exist_ok=True)
    install(tmp_path / "opt/target/bin", f'cp {export} "$5"\n')
    (fake_nsys / "nsys").symlink_to(tmp_path / "opt/target/bin/nsys")
    install(
        tmp_path / place,
        f'printf "%s\\n" "$@" > {tmp_path}/argv; echo report > "$4"\n',
        "QdstrmImporter",
    )
    path = tmp_path / "a.qdstrm"
    path.write_bytes(STREAM)
    found = nsys_rep.parse(path)
    (folder,) = temporary.iterdir()
    assert (tmp_path / "argv").read_text().split("\n")[:-1] == [
        "--input-file",
        f"{folder}/stream.qdstrm",
        "--output-file",
        f"{folder}/report.nsys-rep",
    ]
    assert found.form.startswith("nsys stream, exported: nsys SQLite")
    assert len(list(found.kernels)) == 5


def test_the_tool_works_in_the_private_folder_and_is_told_nothing(
    tmp_path: Path, report: Path, fake_nsys: Path, temporary: Path
) -> None:
    export = export_of(tmp_path)
    said = f'printf "%s\\n" "$TMPDIR" "$LC_ALL" "$(pwd -P)" "$(wc -c)" > {tmp_path}/said'
    install(fake_nsys, f'{said}; cp {export} "$5"\n')
    found = nsys_rep.parse(report)  # keeps the folder
    (folder,) = temporary.iterdir()
    assert (tmp_path / "said").read_text().split() == [str(folder), "C", str(folder.resolve()), "0"]
    del found


def test_a_report_that_is_gone_is_named_with_what_to_check(
    tmp_path: Path, fake_nsys: Path, temporary: Path
) -> None:
    install(fake_nsys, "exit 0\n")
    with pytest.raises(ReportError) as caught:
        nsys_rep.parse(tmp_path / "gone.nsys-rep")
    assert caught.value.reason == "it cannot be exported (No such file or directory)"
    assert caught.value.remedy == "Check its permissions and the free space in TMPDIR"
    assert list(temporary.iterdir()) == []


def test_an_export_that_is_interrupted_leaves_nothing(
    report: Path, fake_nsys: Path, temporary: Path
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    install(fake_nsys, "sleep 0.3; kill -USR1 $PPID; sleep 60\n")
    try:
        with pytest.raises(KeyboardInterrupt):
            nsys_rep.parse(report)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "head", "is_stream"),
    [
        ("a.QDSTRM", b"\x01", True),
        ("a.dat", b"x" * 36 + STREAM_WORDS, True),
        ("a.dat", b"x" * 37 + STREAM_WORDS, False),
    ],
)
def test_a_stream_without_an_importer_says_what_is_missing(
    tmp_path: Path, fake_nsys: Path, temporary: Path, name: str, head: bytes, is_stream: bool
) -> None:
    install(fake_nsys, "exit 0\n")
    no_importer = "it is a stream .* and the installed nsys has no QdstrmImporter"
    said = no_importer if is_stream else "nsys could not export it .exit code 0"
    path = tmp_path / name
    path.write_bytes(head)
    with pytest.raises(ReportError, match=said):
        nsys_rep.parse(path)
    assert list(temporary.iterdir()) == []


def test_a_hanging_export_ends_with_all_it_started(
    report: Path, fake_nsys: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys_rep, "TIMEOUT_S", 1.0)
    install(fake_nsys, f"sleep 60 & echo $! > {tmp_path}/child; sleep 60\n")
    with pytest.raises(ReportError, match="within 1 seconds"):
        nsys_rep.parse(report)
    child = int((tmp_path / "child").read_text())
    for _ in range(50):
        if not _runs(child):
            break
        time.sleep(0.1)
    assert not _runs(child)
    assert list(temporary.iterdir()) == []


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    "rest", [b"", bytes(5000), random.Random(5).randbytes(5000)], ids=["nothing", "zeros", "noise"]
)
def test_the_installed_nsys_refuses_damage_in_one_sentence(
    tmp_path: Path, temporary: Path, rest: bytes
) -> None:
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not installed")
    path = tmp_path / "cut.nsys-rep"
    path.write_bytes(MAGIC + rest)
    with pytest.raises(ReportError, match="could not export"):
        nsys_rep.parse(path)
    assert list(temporary.iterdir()) == []
    assert [one.name for one in tmp_path.iterdir() if one.suffix] == ["cut.nsys-rep"]
