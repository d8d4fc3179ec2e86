"""What is left of a report, what is none, and which files of a folder are reports."""

import gc
from errno import EACCES
from pathlib import Path

import pytest

from perfctl.parsers import (
    HEAD_BYTES,
    PARSERS,
    ReportError,
    find_report_paths,
    is_empty_truncated_or_lfs_file,
    parse,
    sniff,
)
from perfctl.parsers.monitors import nvidia_smi
from tests.make.files import write
from tests.make.stored import execute

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
SMI = "utilization.gpu [%], index\n5 %, 0\n"
NO_REPORT = "it is not a profiler report. 'perfctl ingest --help' lists the formats"


def database(path, page, pages=2):
    """A real SQLite file of that many pages, or a few more."""
    filling = f"INSERT INTO a VALUES (zeroblob({page * (pages - 2) + 1}))"
    execute(path, f"PRAGMA page_size = {page}", "CREATE TABLE a (b)", filling)
    data = path.read_bytes()
    assert pages * page <= len(data) <= (pages + 3) * page
    return data


def refusal(path):
    """What is wrong with it and what to do, without its name."""
    with pytest.raises(ReportError) as caught:
        parse(path)
    assert caught.value.path == path
    assert caught.value.tool == "unknown"
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("page", "pages"), [(512, 2), (512, 300), (1024, 2), (4096, 3), (32768, 2), (65536, 3)]
)
def test_a_database_without_its_end_is_a_stump_and_a_whole_one_is_none(tmp_path, page, pages):
    path = tmp_path / "report.sqlite"
    whole = database(path, page, pages)
    assert not is_empty_truncated_or_lfs_file(path)
    assert refusal(path) == NO_REPORT
    for size in (100, page, len(whole) - page, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert is_empty_truncated_or_lfs_file(path)
        said = f"the SQLite database is truncated: only {size:,} of {len(whole):,} bytes exist"
        assert refusal(path) == f"{said}. Copy it again, or have the profiler export it again"
    path.write_bytes(whole + b"\0")
    assert not is_empty_truncated_or_lfs_file(path)


def test_a_database_whose_size_is_not_stated_is_no_stump(tmp_path):
    """Before 3.7.0 SQLite wrote no size: what stands there counts only where both change counters
    agree (format, 1.3.7)."""
    path = tmp_path / "report.sqlite"
    whole = database(path, 4096)
    for head in (
        whole[:99],
        whole[:24] + b"\0\0\0\7" + whole[28:100],
        whole[:92] + b"\7" + whole[93:100],
        b"sqlite" + whole[6:100],
    ):
        path.write_bytes(head)
        assert not is_empty_truncated_or_lfs_file(path)
        assert refusal(path) == NO_REPORT


def test_nothing_and_git_s_pointer_are_stumps_and_other_texts_are_none(tmp_path):
    path = tmp_path / "report.nsys-rep"
    for text, expected in (
        ("", True),
        (POINTER, True),
        ("x", False),
        (" " + POINTER, False),
        (SMI, False),
    ):
        path.write_text(text)
        assert is_empty_truncated_or_lfs_file(path) is expected


def test_what_is_refused_says_what_it_is_and_what_to_do(tmp_path):
    path = tmp_path / "report.csv"
    assert refusal(path) == "file not found. Check the path"
    path.write_bytes(b"")
    assert (
        refusal(path)
        == "the file is empty. The profiler wrote nothing. Check its log and run it again"
    )
    path.write_text(POINTER)
    said = (
        "this is a git-LFS pointer, not the report itself. Run 'git lfs pull' in the repository it "
        "came from"
    )
    assert refusal(path) == said
    said = (
        "no report was found in this folder. Pass the report file itself, or the folder that holds "
        "it"
    )
    assert refusal(tmp_path) == said
    for order in ("le", "be"):
        path.write_bytes("\ufeffone,two\n".encode(f"utf-16-{order}"))
        said = "it is UTF-16 text and not a profiler report"
        assert (
            refusal(path)
            == f"{said}. Save it as UTF-8 (iconv -f UTF-16 -t UTF-8) and pass that file"
        )


def test_a_kind_is_told_from_the_first_65536_bytes_and_no_further(tmp_path):
    """A header that ends with them is whole; one byte further down it has lost its last letter."""
    path = tmp_path / "smi.csv"
    header = SMI.partition("\n")[0]
    for before, is_seen in (
        (HEAD_BYTES - len(header), True),
        (HEAD_BYTES - len(header) + 6, False),
    ):
        filler = ("x" * 1023 + "\n") * (before // 1024) + "y" * (before % 1024 - 1) + "\n"
        assert len(filler) == before
        path.write_text(filler + SMI)
        assert (sniff(path) is not None) is is_seen
        if is_seen:
            assert [sample.gpu_utilisation for sample in parse(path).samples] == [0.05]
        else:
            with pytest.raises(ReportError, match="it contains no output of nvidia-smi"):
                nvidia_smi.parse(path)
    assert HEAD_BYTES == 2**16


@pytest.mark.parametrize("text", [SMI, "utilization.gpu [%], index\n"])
def test_the_collector_is_as_it_was_after_a_report_whole_or_broken(tmp_path, text):
    path = write(tmp_path / "smi.csv", text)
    for is_on in (True, False):
        (gc.enable if is_on else gc.disable)()
        try:
            parse(path)
        except ReportError:
            assert text != SMI
        finally:
            after = gc.isenabled()
            gc.enable()
        assert after is is_on


def test_the_reports_of_a_folder_are_found_in_order_without_hidden_empty_and_other_files(tmp_path):
    for name in (
        "b.csv",
        "a/z.csv",
        "a/y.csv",
        ".hidden.csv",
        ".git/c.csv",
        "c/own/smi.csv",
        "c/d.csv",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(SMI)
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("Epoch 1\n")
    (tmp_path / "a" / "round").symlink_to(tmp_path)
    (tmp_path / "gone.csv").symlink_to(tmp_path / "nowhere")

    def names(**options):
        return [str(path.relative_to(tmp_path)) for path in find_report_paths(tmp_path, **options)]  # type: ignore[arg-type]

    assert names() == ["a/y.csv", "a/z.csv", "b.csv", "c/d.csv", "c/own/smi.csv"]
    assert find_report_paths(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]
    assert find_report_paths(tmp_path, lambda folder: folder == tmp_path) == [tmp_path]
    assert names(is_single_report=lambda folder: folder.name == "own") == [*names()[:4], "c/own"]


def test_every_kind_has_a_name_of_its_own_and_a_module_that_tells_it():
    for values in zip(*((parser.name, parser.module) for parser in PARSERS), strict=True):
        assert len(set(values)) == len(PARSERS)
    assert not [parser.name for parser in PARSERS if parser.sniff(Path("absent"), b"Epoch 1\n")]


def test_a_file_that_may_not_be_read_is_refused_whatever_it_is(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(EACCES, "Permission denied")

    path = write(tmp_path / "report", SMI)
    monkeypatch.setattr(Path, "open", refuse)
    assert refusal(path) == (
        "it cannot be read (Permission denied). Check the path and its permissions"
    )
