"""What fuzzing databases (``make fuzz``) once found, kept small."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest

from perfctl.parsers import ReportError, parse
from tests.make.nsys_sqlite import NsysBuilder, training_step
from tests.make.stored import execute


def nsys(folder: Path, *statements: str) -> Path:
    path = training_step(NsysBuilder()).write(folder / "report.sqlite")
    execute(path, *statements)
    return path


@pytest.mark.parametrize("table", ["NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL"])
def test_a_column_called_rowid_hides_the_rows_numbers_and_the_table_is_named(
    table: str, tmp_path: Path
) -> None:
    """A ValueError with NVTX_EVENTS, a TypeError with kernels."""
    path = nsys(tmp_path, f"ALTER TABLE {table} ADD COLUMN rowid")
    report = parse(path)
    assert any(
        gap.quantity == f"table:{table}" and gap.state == "unreadable" for gap in report.gaps
    )
    assert list(report.kernels if table.endswith("KERNEL") else report.ranges) == []


def test_a_text_in_a_column_of_numbers_is_null_with_a_gap_and_never_a_number(
    tmp_path: Path,
) -> None:
    """ "12abc" counted as 12 where SQL reckoned with it, and as text where it went to the store (an
    OperationalError there)."""
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    path = nsys(
        tmp_path,
        f"UPDATE {table} SET end = '12abc', streamId = CAST(x'ff41' AS TEXT) WHERE rowid = 1",
    )
    report = parse(path)
    first, *others = report.kernels
    assert (first.duration_ns, first.stream) == (None, None)
    assert all(
        isinstance(kernel.duration_ns, int) and isinstance(kernel.stream, int) for kernel in others
    )
    reasons = {
        gap.reason.partition(":")[0] for gap in report.gaps if gap.quantity == f"table:{table}"
    }
    assert reasons == {f"{table}.end", f"{table}.streamId"}


@pytest.mark.parametrize("name", ["report.tar.gz", "trace.json.gz"])
def test_a_gzip_file_that_breaks_off_within_the_first_block_is_refused_in_words(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(bytes(range(256)) * 4)[:40])
    with pytest.raises(ReportError, match=r"archive|gzip"):
        parse(path)


def test_a_pickle_that_states_a_text_of_two_gigabytes_takes_no_memory_for_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(b"\x80\x04}\x8d" + (2 << 30).to_bytes(8, "little") + b"segments total_size")
    tracemalloc.start()
    try:
        with pytest.raises(ReportError, match="damaged or truncated"):
            parse(path)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
