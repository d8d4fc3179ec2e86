"""nsys exports that are odd, cut off, damaged or no nsys exports at all."""

import pytest

from perfctl.parsers import ReportError, parse, sniff
from perfctl.parsers.nsys import sqlite
from tests.make.nsys_sqlite import NsysBuilder, read, training_step
from tests.make.stored import execute


def test_strings_that_are_no_utf8_are_read_all_the_same(tmp_path):
    path = training_step(NsysBuilder()).write(tmp_path / "report.sqlite")
    execute(path, "UPDATE StringIds SET value = CAST(x'6765ff6d' AS TEXT) WHERE value = 'gemm'")
    assert next(iter(parse(path).kernels)).short_name == "ge\ufffdm"


def test_a_path_full_of_uri_characters_is_opened_and_nothing_is_written_beside_it(tmp_path):
    folder = tmp_path / "100% a?mode=rwc#b"
    folder.mkdir()
    path = training_step(NsysBuilder()).write(folder / "re port%20é.sqlite")
    execute(path, "PRAGMA journal_mode = WAL")
    folder.chmod(0o555)
    try:
        before = (path.read_bytes(), path.stat().st_mtime_ns)
        assert len(list(parse(path).kernels)) == 5
        assert (path.read_bytes(), path.stat().st_mtime_ns) == before
        assert [child.name for child in folder.iterdir()] == [path.name]
    finally:
        folder.chmod(0o755)


def test_other_sqlite_files_are_not_taken_for_nsys(tmp_path):
    path = tmp_path / "other.sqlite"
    execute(path, "CREATE TABLE kernel (id)", "CREATE TABLE StringIds (id, value)")
    assert sniff(path) is None


def big_export(path):
    builder = NsysBuilder()
    for number in range(3000):
        builder.range(f"layer{number}:forward", 10 * number, 10 * number + 9)
        builder.launch(10 * number + 1)
    return builder.write(path)


def test_damage_further_in_is_a_report_error_whenever_it_is_met(tmp_path):
    whole = big_export(tmp_path / "whole.sqlite").read_bytes()
    path = tmp_path / "damaged.sqlite"
    refused = 0
    for offset in range(4096, len(whole), 4096 * 7):
        path.write_bytes(whole[:offset] + b"\xff" * 4096 + whole[offset + 4096 :])
        try:
            report = sqlite.parse(path)
            rows = [list(rows) for rows in (report.kernels, report.copies, report.ranges)]
            assert [len(part) for part in rows] == [3000, 0, 3000]
        except ReportError as error:
            assert "damaged or truncated" in str(error)
            refused += 1
    assert refused > 5


def test_values_that_are_no_numbers_do_not_shift_the_others(tmp_path):
    builder = training_step(NsysBuilder())
    builder.tables["CUPTI_ACTIVITY_KIND_RUNTIME"][1][0]["start"] = None
    with pytest.raises(ReportError, match="not numbers"):
        read(builder, tmp_path)


def test_the_strings_alone_are_a_failed_export(tmp_path):
    builder = NsysBuilder()
    builder.tables.clear()
    with pytest.raises(ReportError, match=r"export failed.*at least as new as the report"):
        read(builder, tmp_path)
