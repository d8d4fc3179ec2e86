"""Archives and texts that pretend: what they may take is bounded, and what is left out is said."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfctl import redact
from perfctl.orchestrator.ingest import archives
from tests.cli.test_ingest import NCU

Perfctl = Callable[..., Any]


def tarred(path: Path, *members: tuple[str, bytes]) -> None:
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


pytestmark = pytest.mark.usefixtures("forked_workers")


def zipped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


REPORT = NCU.format(count=3).encode()


def test_an_archive_of_very_many_files_is_refused(
    perfctl: Perfctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_MOST_FILES", 10)
    monkeypatch.setattr(archives.Room.__init__, "__defaults__", (10,))
    Path("ten.zip").write_bytes(zipped({f"r_b{n}.csv": REPORT for n in range(1, 11)}))
    Path("eleven.zip").write_bytes(zipped({f"s_b{n}.csv": REPORT for n in range(1, 12)}))
    assert perfctl("ingest", "ten.zip").code == 0
    said = perfctl("ingest", "eleven.zip")
    assert said.code == 1
    assert "eleven.zip: it holds more than 10 files" in said.err


def test_archives_inside_an_archive_share_its_room(
    perfctl: Perfctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_SMALL", 1 << 20)
    inside = zipped({"a.csv": bytes(700_000)})
    Path("one.zip").write_bytes(zipped({"1.zip": inside, "r_b1.csv": REPORT}))
    Path("two.zip").write_bytes(zipped({"1.zip": inside, "2.zip": inside, "r_b1.csv": REPORT}))
    assert Path("two.zip").stat().st_size * 200 < 1_400_000
    assert "unpacks to more" not in perfctl("ingest", "one.zip").err
    assert "2.zip: it unpacks to more than 200 times its size" in perfctl("ingest", "two.zip").err


def test_what_no_report_hides_behind_counts_as_unpacked(
    perfctl: Perfctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_SMALL", 1 << 20)
    tarred(Path("hidden.tar.gz"), (".hidden", bytes(4 << 20)), ("r_b1.csv", REPORT))
    assert "it unpacks to more than 200 times its size" in perfctl("ingest", "hidden.tar.gz").err


def test_a_header_that_would_fill_the_memory_is_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "header.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("././@PaxHeader")
        member.type, member.size = tarfile.XHDTYPE, archives._LONGEST_HEADER + 1
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    assert not archives.is_archive(path)


def test_names_that_no_file_can_have_are_left_out_and_said(perfctl: Perfctl) -> None:
    names = ("d/" * 1500 + "x.csv", "n" * 300 + ".csv")
    tarred(Path("odd.tar.gz"), *((name, REPORT) for name in names), ("r_b1.csv", REPORT))
    said = perfctl("ingest", "odd.tar.gz")
    assert said.code == 0, said.err
    assert "odd.tar.gz: 2 files have names that no file can have. perfctl skipped them" in " ".join(
        said.err.split()
    )


def test_a_very_long_text_is_cut_without_a_beginning_of_a_secret_and_a_gap_says_so(
    perfctl: Perfctl,
) -> None:
    token = "ghp_" + "a1B2" * 9
    # the token would be cut after 20 of its 40 characters
    fill = redact.LONGEST - len("k ") - 20
    Path("long_b1.csv").write_text(NCU.format(count=3).replace('"app"', f'"{"a" * 70_000}"'))
    assert perfctl("ingest", "long_b1.csv").code == 0
    name = f"k {'x' * (fill - 1)} {token} {'y' * 100_000}"
    with redact.counting_cuts() as cut:
        (kept,) = redact.clean_column([name])
    assert list(cut.values()) == [len(name)]
    assert kept.endswith(f"({len(name):,} characters)")
    assert "ghp_a1" not in kept
    assert len(kept) < redact.LONGEST + 40
    assert redact.clean_column(["k" * redact.LONGEST]) == ["k" * redact.LONGEST]
