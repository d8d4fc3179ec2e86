"""Archives are unpacked within bounds; what lies elsewhere or has no possible name is left out."""

import gzip
import io
import tarfile
import time
from pathlib import Path

import pytest

import perfctl
from perfctl import ReportError
from perfctl.orchestrator.ingest import archives, find
from perfctl.orchestrator.ingest.archives import (
    UnpackingBudget,
    is_archive,
    unpack_archive_and_count_skipped,
)
from perfctl.orchestrator.ingest.ingest import ingest_paths
from tests.cli.test_ingest import NCU
from tests.make.archives import pack

REPORT = NCU.format(count=3)
TEN = {f"r{number}.csv": "" for number in range(10)}


@pytest.fixture
def small(monkeypatch):
    """An archive may grow 200 times, or to a MiB."""
    monkeypatch.setattr(archives, "_SMALL", 1 << 20)


@pytest.mark.parametrize(
    ("members", "written", "left_out"),
    [
        pytest.param(TEN, set(TEN), 0, id="as many files as there may be"),
        pytest.param(
            {"../out.csv": "", "/out.csv": "", "good.csv": ""}, {"good.csv"}, 0, id="elsewhere"
        ),
        pytest.param(
            {"d/" * 1500 + "x.csv": "", "n" * 300 + ".csv": "", "good.csv": ""},
            {"good.csv"},
            2,
            id="names that no file can have",
        ),
    ],
)
def test_the_files_of_an_archive_are_written_below_the_folder(members, written, left_out, tmp_path):
    path = pack(tmp_path / "r.tar", members)
    out = tmp_path / "sub" / "out"
    out.mkdir(parents=True)
    assert (
        unpack_archive_and_count_skipped(path, out, UnpackingBudget(path.stat().st_size, files=10))
        == left_out
    )
    assert {file.name for file in tmp_path.rglob("*.csv")} == written
    assert not Path("/out.csv").exists()


@pytest.mark.parametrize(
    ("name", "members", "reason"),
    [
        ("r.zip", {**TEN, "r10.csv": ""}, "it holds more than .* files"),
        ("bomb.tgz", {"zeros.csv": bytes(4 << 20)}, "it unpacks to more than 200 times its size"),
        ("hidden.tgz", {".hidden": bytes(4 << 20), "r.csv": REPORT}, "it unpacks to more than"),
        ("inside.tar", {"a": "", "a/b.json": ""}, "cannot be unpacked"),
    ],
    ids=["more files", "a bomb", "a bomb that no report hides behind", "a file in a file"],
)
def test_an_archive_without_bounds_is_refused(small, name, members, reason, tmp_path):
    path = pack(tmp_path / name, members)
    with pytest.raises(ReportError, match=reason):
        unpack_archive_and_count_skipped(
            path, tmp_path, UnpackingBudget(path.stat().st_size, files=10)
        )


def overwrite(whole):
    """Damage each byte once."""
    for at in range(len(whole)):
        for value in (0, 255):
            yield whole[:at] + bytes([value]) + whole[at + 1 :]


@pytest.mark.parametrize(
    ("name", "damage", "refused"),
    [
        pytest.param("r.zip", overwrite, 20, id="zip, any byte"),
        pytest.param("r.tgz", lambda whole: (whole[:40], whole[:-40]), 2, id="tar, truncated"),
    ],
)
def test_a_damaged_archive_is_unpacked_or_refused_in_words(name, damage, refused, tmp_path):
    """IndexError and OSError of zipfile, EOFError of tarfile."""
    path = pack(tmp_path / name, {"a/report.json": REPORT})
    reasons = []
    for number, content in enumerate(damage(path.read_bytes())):
        path.write_bytes(content)
        assert is_archive(path) or name == "r.zip"
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            unpack_archive_and_count_skipped(path, folder, UnpackingBudget(path.stat().st_size))
        except ReportError as error:
            reasons.append(error.reason)
    assert sum("cannot be unpacked" in reason for reason in reasons) >= refused


def test_a_header_that_would_fill_the_memory_is_no_archive(tmp_path):
    path = tmp_path / "header.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("././@PaxHeader")
        member.type, member.size = tarfile.XHDTYPE, archives._LONGEST_HEADER + 1
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    assert not is_archive(path)


def test_the_parser_of_a_single_report_refuses_an_archive(tmp_path):
    path = pack(tmp_path / "r.tar", {"r.csv": REPORT})
    with pytest.raises(ReportError, match=r"it is an archive\. Pass it to perfctl ingest"):
        perfctl.parse(path)


def test_archives_inside_an_archive_share_its_room(small, tmp_path):
    inside = pack(tmp_path / "inside.zip", {"a.csv": bytes(700_000)}).read_bytes()
    one, two = (
        pack(
            tmp_path / f"{count}.zip",
            {"r_b1.csv": REPORT, **{f"inside{n}.zip": inside for n in range(count)}},
        )
        for count in (1, 2)
    )
    assert two.stat().st_size * 200 < 1_400_000
    refusal = "it unpacks to more than 200 times its size"
    for path, is_refused in ((one, False), (two, True)):
        entries = find._find_all_sources([path], tmp_path).entries
        assert any(f"inside1.zip: {refusal}" in str(entry) for entry in entries) is is_refused


def test_files_that_are_left_out_are_counted_in_a_note(tmp_path):
    path = pack(tmp_path / "odd.tgz", {"n" * 300: "", "m" * 300: "", "r_b1.csv": REPORT})
    assert find._find_all_sources([path], tmp_path).notes == [
        f"{path}: 2 files have names that no file can have. perfctl skipped them"
    ]


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tgz", "tar.bz2", "tar.xz", "zip"])
def test_the_reports_in_an_archive_are_read_and_the_other_files_named(suffix, heard, tmp_path):
    members = {
        "job/ncu_b16.csv": NCU.format(count=1),
        "job/b32/ncu.csv": NCU.format(count=2),
        "job/README": "hello",
        "job/._x.csv": "x",
    }
    path = pack(tmp_path / f"job.{suffix}", members)
    store = tmp_path / "s.db"
    done = ingest_paths(path, store, listener=heard)
    assert [report for report, _ in done.taken] == [
        path / "job/b32/ncu.csv",
        path / "job/ncu_b16.csv",
    ]
    assert [(run.batch_size, str(run.artifact)) for run in perfctl.runs(store)] == [
        (32, f"job.{suffix}/job/b32/ncu.csv"),
        (16, f"job.{suffix}/job/ncu_b16.csv"),
    ]
    assert f"{path}: skipped 1 file that is not a report: README" in heard.lines
    (tmp_path / "plain.csv").write_text(members["job/ncu_b16.csv"])
    (again,) = perfctl.ingest(tmp_path / "plain.csv", store).taken
    assert not again[1].new, "the same report"


def test_an_archive_in_a_folder_or_an_archive_is_walked_too(tmp_path):
    inner = pack(tmp_path / "inner.tar", {"a.csv": NCU.format(count=1)})
    folder = tmp_path / "folder"
    folder.mkdir()
    pack(folder / "outer.tgz", {"inner.tar": inner.read_bytes()})
    (folder / "b.csv").write_text(NCU.format(count=2))
    done = perfctl.ingest(folder, tmp_path / "s.db")
    assert [path.relative_to(folder).as_posix() for path, _ in done.taken] == [
        "b.csv",
        "outer.tgz/inner.tar/a.csv",
    ]


def test_a_report_in_an_archive_and_beside_it_is_taken_once_also_gzipped(heard, tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    texts = {f"in{number}.csv": NCU.format(count=1000 + number) for number in range(3)}
    pack(folder / "all.tar.gz", texts)
    (folder / "other-name.csv").write_text(texts["in0.csv"])
    trace = (
        '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", '
        '"ts": 1, "dur": 2}]}'
    )
    (folder / "trace.json.gz").write_bytes(gzip.compress(trace.encode()))
    pack(folder / "traces.tar", {"trace.json": trace})
    for again in (False, True):
        done = ingest_paths(folder, tmp_path / f"{again}.db", again=again, listener=heard)
        assert [path.name for path, _ in done.taken] == [
            "in1.csv",
            "in2.csv",
            "other-name.csv",
            "trace.json.gz",
        ]
    for name in ("all.tar.gz", "traces.tar"):
        note = f"{folder / name}: 1 report is also in other files with the same content"
        assert sum(line.startswith(note) for line in heard.lines) == 2


@pytest.mark.parametrize("name", ["report.tar.gz", "trace.json.gz"])
def test_a_gzip_file_that_breaks_off_within_the_first_block_is_refused_in_words(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(gzip.compress(bytes(range(256)) * 4)[:40])
    with pytest.raises(ReportError, match=r"archive|gzip"):
        perfctl.parse(path)


@pytest.mark.parametrize("fault", ["it is not ended", "it raises an error of tarfile's"])
def test_an_archive_that_cannot_be_read_costs_itself_only(fault, tmp_path, monkeypatch):
    def fail(path, folder, room):
        time.sleep(60 if fault == "it is not ended" else 0)
        raise ValueError("not enough values to unpack")

    monkeypatch.setattr(archives, "_SECONDS", 0.2)
    monkeypatch.setattr(find, "unpack_archive_and_count_skipped", fail)
    pack(tmp_path / "a.tar", {"a.csv": REPORT})
    (tmp_path / "b.csv").write_text(REPORT)
    done = perfctl.ingest(tmp_path, tmp_path / "s.db")
    assert [path.name for path, _ in done.taken] == ["b.csv"]
    assert len(done.failed) == 1
    assert "a.tar" in done.failed[0]


def test_a_header_that_tarfile_cannot_read_is_refused_in_words(tmp_path):
    path = tmp_path / "r.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("r.csv")
        member.pax_headers = {"GNU.sparse.map": "a,b"}
        archive.addfile(member)
    (entry,) = find._find_all_sources([path], tmp_path).entries
    assert "the archive cannot be unpacked" in str(entry)
