"""Reports that nsys keeps for itself: read through whichever nsys is installed, or refused with the version to install."""

from __future__ import annotations

import gc
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

import pytest

from perfctl.parsers import ReportError, nsys_rep, sniff
from tests.parsers.nsys_builder import NsysBuilder, training_step

MAGIC = b"NVIDIA Tegra Profiler Report 1.\n"
STREAM = b"U3w[END]NVIDIA Nsight Systems Stream 2022.4.2.1-df9881f!\n"
END = b'"\x1320XX*\x02vm2\x122024.6.2.225-246235244459v0:\x12'


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A file that looks like a report; synthetic, no nsys could read it."""
    path = tmp_path / "my run.nsys-rep"
    path.write_bytes(MAGIC + b"NSIGHT_SYSTEMS_VERSION 2021.3.2.4-027534f" + bytes(70_000) + END)
    return path


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that takes temporary files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def fake_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that alone is searched for tools; ``install`` puts scripts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *rest: real(name, path=str(folder)))
    return folder


def install(folder: Path, script: str, name: str = "nsys") -> None:
    path = folder / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def export_of(tmp_path: Path) -> Path:
    return training_step(NsysBuilder()).write(tmp_path / "export.sqlite")


@pytest.mark.parametrize("name", ["a.nsys-rep", "a.qdrep", "a.dat"])
def test_a_report_is_recognised_by_its_first_bytes(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(MAGIC + b"rest")
    parser = sniff(path)
    assert parser is not None
    assert parser.name == "nsys report"


def test_a_stream_and_a_damaged_report_are_recognised(tmp_path: Path) -> None:
    assert nsys_rep.sniff(tmp_path / "a.dat", STREAM)
    assert nsys_rep.sniff(tmp_path / "a.nsys-rep", b"\x01\x02")
    assert not nsys_rep.sniff(tmp_path / "a.dat", b"\x01\x02")
    assert not nsys_rep.sniff(tmp_path / "a.nsys-rep", b"version https://git-lfs.github.com/spec/v1\n")


def test_without_nsys_the_version_that_wrote_it_is_named(report: Path, fake_nsys: Path) -> None:
    with pytest.raises(ReportError) as caught:
        nsys_rep.parse(report)
    assert "2024.6.2.225" in caught.value.reason
    assert "no nsys on this machine" in caught.value.reason
    assert "nsys 2024.6.2.225 or newer" in caught.value.remedy


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("Exportation error: Version number is invalid: 2024@6@3@225-24623", "2024.6.3"),
        ("ProtobufParseException", "2024.6.2.225"),
    ],
)
def test_a_newer_report_is_refused_with_the_version_it_needs(
    report: Path, fake_nsys: Path, temporary: Path, said: str, version: str
) -> None:
    install(
        fake_nsys,
        f'[ "$1" = --version ] && echo "NVIDIA Nsight Systems version 2022.4.2.1-df9881f" && exit 0\necho "{said}" >&2; exit 1\n',
    )
    with pytest.raises(ReportError) as caught:
        nsys_rep.parse(report)
    assert f"written by nsys {version}" in caught.value.reason
    assert "(2022.4.2)" in caught.value.reason
    assert f"nsys {version} or newer" in caught.value.remedy
    assert caught.value.path == report
    assert list(temporary.iterdir()) == []


def test_a_failed_export_is_refused_though_it_left_a_database(report: Path, fake_nsys: Path, temporary: Path) -> None:
    install(
        fake_nsys, 'echo x > "$5"; echo "Exportation error: Section Table Reference magic number mismatch."; exit 1\n'
    )
    with pytest.raises(ReportError, match="magic number mismatch"):
        nsys_rep.parse(report)
    assert list(temporary.iterdir()) == []


def test_success_without_a_file_is_not_believed(report: Path, fake_nsys: Path, temporary: Path) -> None:
    install(fake_nsys, "exit 0\n")
    with pytest.raises(ReportError, match="could not export"):
        nsys_rep.parse(report)


def test_the_whole_command_and_the_records(tmp_path: Path, report: Path, fake_nsys: Path, temporary: Path) -> None:
    export = export_of(tmp_path)
    install(fake_nsys, f'printf "%s\\n" "$@" > {tmp_path}/argv; cp {export} "$5"\n')
    before = sorted(report.parent.iterdir())
    found = nsys_rep.parse(report)
    (folder,) = temporary.iterdir()
    assert (tmp_path / "argv").read_text().split("\n")[:-1] == [
        "export", "--type", "sqlite", "--output", f"{folder}/report.sqlite", f"{folder}/report.nsys-rep",
    ]  # fmt: skip
    assert found.path == report
    assert found.tool == "nsys"
    assert found.form.startswith("nsys report, exported: nsys SQLite")
    kernels = found.kernels
    assert sorted({*report.parent.iterdir()} - {tmp_path / "argv"}) == before
    del found
    gc.collect()
    assert len(list(kernels)) > 0  # the export is there as long as any of the records
    del kernels
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_a_stream_is_imported_first(tmp_path: Path, fake_nsys: Path, temporary: Path) -> None:
    export = export_of(tmp_path)
    install(fake_nsys, f'cp {export} "$5"\n')
    install(fake_nsys, 'echo report > "$4"\n', "QdstrmImporter")
    path = tmp_path / "a.qdstrm"
    path.write_bytes(STREAM)
    assert len(list(nsys_rep.parse(path).kernels)) > 0


def test_a_stream_without_an_importer_says_what_is_missing(tmp_path: Path, fake_nsys: Path, temporary: Path) -> None:
    install(fake_nsys, "exit 0\n")
    path = tmp_path / "a.qdstrm"
    path.write_bytes(STREAM)
    with pytest.raises(ReportError, match="no QdstrmImporter"):
        nsys_rep.parse(path)
    assert list(temporary.iterdir()) == []


def test_a_hanging_export_ends_with_all_it_started(
    report: Path, fake_nsys: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys_rep, "TIMEOUT_S", 1.0)
    install(fake_nsys, f"sleep 60 & echo $! > {tmp_path}/child; sleep 60\n")
    with pytest.raises(ReportError, match="after 1 seconds"):
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


@pytest.mark.parametrize("content", [MAGIC, MAGIC + bytes(5000), MAGIC + os.urandom(5000)])
def test_the_installed_nsys_refuses_damage_in_one_sentence(tmp_path: Path, temporary: Path, content: bytes) -> None:
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not installed")
    path = tmp_path / "cut.nsys-rep"
    path.write_bytes(content)
    with pytest.raises(ReportError, match="could not export"):
        nsys_rep.parse(path)
    assert list(temporary.iterdir()) == []
    assert [one.name for one in tmp_path.iterdir() if one.suffix] == ["cut.nsys-rep"]
