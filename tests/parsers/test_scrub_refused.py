"""What is no report that can be scrubbed is refused in one line with the way out, and nothing
half-written is left."""

from __future__ import annotations

import gzip
import signal
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from perfctl import redact
from perfctl.parsers import ReportError
from perfctl.parsers.scrub import scrub

LOG = b"HF_TOKEN=abcdefgh\n"
CUT = gzip.compress(LOG * 99, mtime=0)[:-9]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("r.log", b"", "the file is empty. Check the path"),
        (
            "r.bin",
            b"x" * 511 + b"\0",
            (
                "a binary report cannot be edited. Export it and scrub the export: as SQLite, CSV "
                "or JSON"
            ),
        ),
        (
            "r.nsys-rep",
            LOG,
            (
                "a binary report cannot be edited. Export it and scrub the export: nsys export "
                "--type sqlite REPORT"
            ),
        ),
        (
            "r.qdrep",
            LOG,
            (
                "a binary report cannot be edited. Export it and scrub the export: nsys export "
                "--type sqlite REPORT"
            ),
        ),
        (
            "r.qdstrm",
            LOG,
            "a binary report cannot be edited. Export it and scrub the export: "
            "QdstrmImporter -i REPORT, then nsys export --type sqlite",
        ),
        (
            "r.ncu-rep",
            LOG,
            "a binary report cannot be edited. Export it and scrub the export: "
            "ncu --import REPORT --csv --page raw > REPORT.csv",
        ),
        (
            "r.nsight-cuprof-report",
            LOG,
            "a binary report cannot be edited. Export it and scrub the export: "
            "ncu --import REPORT --csv --page raw > REPORT.csv",
        ),
        (
            "r.gz",
            CUT,
            "the gzip file is cut off or damaged "
            "(Compressed file ended before the end-of-stream marker was reached). Copy it again",
        ),
    ],
)
def test_what_cannot_be_scrubbed_is_refused_with_the_way_out(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ReportError) as found:
        scrub(path, tmp_path / "copy")
    assert str(found.value) == f"{path}: {said}"
    assert [one.name for one in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("content", ["é\n".encode("utf-16") + b"x", b"\xfe\xff\xd8\x00\x00"])
def test_utf_16_that_is_cut_off_is_damaged(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(content)
    with pytest.raises(
        ReportError,
        match=r"the database or its text is damaged or cut off .*truncated data.*Copy it again",
    ):
        scrub(path, tmp_path / "copy")
    assert [one.name for one in tmp_path.iterdir()] == ["r.csv"]


def test_ctrl_c_while_a_text_is_searched_stays_ctrl_c_and_is_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report.sqlite"
    with closing(sqlite3.connect(report)) as connection:
        connection.execute("CREATE TABLE log (line TEXT)")
        connection.execute("INSERT INTO log VALUES ('a line')")
        connection.commit()
    monkeypatch.setattr(redact, "secrets_in", lambda raw: signal.raise_signal(signal.SIGINT))
    # a shell's background jobs ignore it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            scrub(report, tmp_path / "copy.sqlite")
    finally:
        signal.signal(signal.SIGINT, before)
    assert [path.name for path in tmp_path.iterdir()] == [report.name]


def test_a_folder_a_missing_file_and_a_missing_target_folder_are_said(tmp_path: Path) -> None:
    path = tmp_path / "r.log"
    path.write_bytes(LOG)
    with pytest.raises(ReportError, match=r"this is a folder\. Pass one report in it"):
        scrub(tmp_path, tmp_path / "copy")
    for source, target in (
        (tmp_path / "none.log", tmp_path / "copy"),
        (path, tmp_path / "none" / "copy"),
    ):
        with pytest.raises(
            ReportError,
            match=r"no copy could be made \(No such file or directory\)\. Check the permissions",
        ):
            scrub(source, target)
    assert [one.name for one in tmp_path.iterdir()] == ["r.log"]


def test_a_zero_byte_further_on_does_not_make_a_log_a_binary_report(tmp_path: Path) -> None:
    path = tmp_path / "r.log"
    path.write_bytes(b"x" * 511 + b"\n\0" + LOG)
    assert (
        scrub(path, tmp_path / "copy").path.read_bytes() == b"x" * 511 + b"\n\0HF_TOKEN=(removed)\n"
    )


@pytest.mark.parametrize(
    "content",
    [b"a", b"ab", b"abc", b"abcd", b"abcde", "é".encode("utf-16"), gzip.compress(b"", mtime=0)],
)
def test_a_text_of_a_few_bytes_is_copied_as_it_is(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "r.log"
    path.write_bytes(content)
    done = scrub(path, tmp_path / "copy")
    copy = done.path.read_bytes()
    assert (gzip.decompress(copy) == b"") if content.startswith(b"\x1f") else (copy == content)
    assert (done.path, done.names, done.rows, done.found) == (tmp_path / "copy", (), {}, {})


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_the_copy_may_be_read_by_those_who_may_read_the_report_and_replaces_what_was_there(
    mode: int, tmp_path: Path
) -> None:
    path, target = tmp_path / "r.log", tmp_path / "copy"
    path.write_bytes(LOG)
    path.chmod(mode)
    target.write_bytes(b"older, and longer than what comes in its place")
    assert scrub(path, target).names == ("HF_TOKEN",)
    assert target.read_bytes() == b"HF_TOKEN=(removed)\n"
    assert stat.S_IMODE(target.stat().st_mode) == mode
