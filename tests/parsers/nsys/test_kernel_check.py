"""What a store is told of kernels, so that it need not look at each row again: never more than
is so."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.orchestrator.store import database
from perfctl.orchestrator.store.write import RunFacts, SweepFacts, write_run
from perfctl.parsers import parse
from perfctl.parsers.nsys import kernel_check
from perfctl.parsers.text import sqlite_pages
from perfctl.records.bulk import SqlKernels
from tests.parsers.nsys_builder import NsysBuilder

COUNTS = {
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "registers",
    "static_shared_bytes",
    "dynamic_shared_bytes",
    "duration_ns",
}
CLUSTERS = {"cluster_x", "cluster_y", "cluster_z"}


def kernels_of(builder: NsysBuilder, folder: Path) -> SqlKernels:
    kernels = parse(builder.write(folder / "r.sqlite")).kernels
    assert isinstance(kernels, SqlKernels)
    return kernels


@pytest.mark.parametrize(("generation", "more"), [("2020.3", set()), ("2026.1", CLUSTERS)])
def test_counts_that_are_numbers_from_0_on_are_checked_already(
    generation: str, more: set[str], tmp_path: Path
) -> None:
    builder = NsysBuilder(generation)
    builder.kernel(1)
    builder.kernel(2, gridX=None, registersPerThread=0)
    kernels = kernels_of(builder, tmp_path)
    assert set(kernels.never_negative) == COUNTS | more
    assert list(kernels.texts(kernels.names or {}).values()) == ["gemm(int)"]


@pytest.mark.parametrize(
    ("field", "column", "value"),
    [
        ("grid_x", "gridX", -1),
        ("registers", "registersPerThread", -(2**40)),
        ("duration_ns", "end", -(2**62)),
    ],
)
@pytest.mark.parametrize("place", [0, 3])
def test_one_negative_count_leaves_its_column_and_no_other_to_the_store(
    field: str, column: str, value: int, place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_pages, "SLICE_ROWS", 2)
    builder = NsysBuilder()
    for number in range(5):
        builder.kernel(number + 1, **({column: value} if number == place else {}))
    kernels = kernels_of(builder, tmp_path)
    assert COUNTS - set(kernels.never_negative) == {field}
    with database.writing(tmp_path / "store.db") as store:
        sweep, facts = (
            SweepFacts("an ingest", "ingest", None, None),
            RunFacts("nsys", "ok", "ingested"),
        )
        write_run(store, sweep, facts, parse(kernels.path), family=lambda name: None)
        (nulls,) = store.execute(f"SELECT count(*) FROM kernel WHERE {field} IS NULL").fetchone()
        said = store.execute(
            "SELECT reason FROM gap WHERE quantity = ?", (f"kernel.{field}",)
        ).fetchall()
    assert (nulls, said) == (1, [("1 value is below 0 or not a number",)])


def test_where_one_value_is_no_integer_nothing_is_known_of_any_column(tmp_path: Path) -> None:
    builder = NsysBuilder()
    builder.kernel(1)
    builder.kernel(2, gridY="many")
    kernels = kernels_of(builder, tmp_path)
    assert (list(kernels.never_negative), kernels.names) == ([], None)


def test_a_duration_is_not_checked_where_an_end_is_missing_or_times_are_far_apart(
    tmp_path: Path,
) -> None:
    for number, times in enumerate(({"end": None}, {"start": -(2**63), "end": 2**63 - 1})):
        builder = NsysBuilder()
        builder.kernel(1, **times)
        folder = tmp_path / str(number)
        folder.mkdir()
        assert "duration_ns" not in kernels_of(builder, folder).never_negative


def test_names_are_known_while_each_has_one_short_name(tmp_path: Path) -> None:
    builder = NsysBuilder()
    builder.kernel(1, name="a(int)", shortName=builder.string("a"))
    builder.kernel(2, name="b(int)", shortName=builder.string("b"))
    builder.kernel(3, name="a(int)", shortName=builder.string("a"))
    kernels = kernels_of(builder, tmp_path)
    assert kernels.names == {
        builder.string("a(int)"): builder.string("a"),
        builder.string("b(int)"): builder.string("b"),
    }


@pytest.mark.parametrize(
    "odd", ["two short names", "no name", "no short name", "a large number", "a negative number"]
)
def test_names_that_their_first_number_does_not_tell_apart_are_left_to_the_store(
    odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = NsysBuilder()
    builder.kernel(1, name="a(int)", shortName=builder.string("a"))
    named = {
        "two short names": {"name": "a(int)", "shortName": builder.string("other")},
        "no name": {"demangledName": None},
        "no short name": {"shortName": None},
        "a large number": {"demangledName": kernel_check.MOST_NAMES},
        "a negative number": {"demangledName": -3},
    }[odd]
    builder.kernel(2, **named)
    assert kernels_of(builder, tmp_path).names is None
