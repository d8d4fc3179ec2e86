import csv
import json
import sys
from pathlib import Path

import pytest

from perfctl.orchestrator.store import query
from tests.cli.conftest import sql


def cells(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def mine():
    """Names in this folder; SQLite's own beside the store left out."""
    return {path.name for path in Path().iterdir() if not path.name.endswith(("-wal", "-shm"))}


def test_every_table_leaves_with_all_its_rows_and_a_table_that_describes_the_columns(
    perfctl, replayed
):
    assert perfctl(f"export --all --store {replayed}").code == 0
    files = {file.stem for file in Path("perfctl-export").iterdir()}
    assert files == {*query.list_public_table_names(), "ledger", "columns"}
    for name in query.list_public_table_names():
        rows = cells(Path("perfctl-export", f"{name}.csv"))
        assert [(len(rows),)] == sql(f"SELECT count(*) FROM {name}", replayed), name
    described = {
        (row["table"], row["column"]): row for row in cells(Path("perfctl-export/columns.csv"))
    }
    assert described["kernel", "duration_ns"]["unit"] == "ns"
    assert described["ledger", "estimated_flops"]["unit"] == "FLOP"


def test_null_is_empty_an_empty_text_is_quoted_and_zero_is_zero(perfctl, hostile):
    perfctl("export --all")
    lines = Path("perfctl-export/counter.csv").read_text().splitlines()
    assert [line.split(",")[2] for line in lines[1:]] == ["0", "", "2.5"]
    assert Path("perfctl-export/environment.csv").read_text().splitlines()[1] == '1,empty,""'


def test_text_that_a_spreadsheet_would_run_gets_an_apostrophe_and_numbers_none(perfctl, hostile):
    perfctl("export --all --out guarded")
    assert cells(Path("guarded/kernel.csv"))[0]["name"].startswith("'=HYPERLINK")
    assert cells(Path("guarded/gap.csv"))[0]["reason"] == "'-1+1|cmd"
    assert cells(Path("guarded/sweep.csv"))[0]["name"] == "'@sweep"
    assert cells(Path("guarded/summary.csv"))[0]["text"] == "-5", "a number in a text is no formula"
    perfctl("export --all --out raw --raw")
    assert cells(Path("raw/kernel.csv"))[0]["name"].startswith("=HYPERLINK")


def test_json_has_null_for_what_is_not_known_and_is_strict(perfctl, hostile):
    assert perfctl("export --all -f json").code == 0
    text = Path("perfctl-export.json").read_text(encoding="utf-8")
    found = json.loads(text, parse_constant=lambda word: pytest.fail(word))["tables"]
    assert [row["duration_ns"] for row in found["kernel"]] == [500, 0, None]
    assert [row["value"] for row in found["counter"]] == [0, None, 2.5]


def test_only_the_runs_that_were_asked_for_leave(perfctl, replayed):
    perfctl(f"export --table step --table device --run 2 --store {replayed}")
    assert {row["run_id"] for row in cells(Path("perfctl-export/step.csv"))} == {"2"}
    assert len(cells(Path("perfctl-export/device.csv"))) == 1
    perfctl(f"export --out ledger.csv --run 2 --store {replayed}")
    assert {row["batch"] for row in cells(Path("ledger.csv"))} == {"32"}


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (("--out", "a.xlsx"), b"PK"),
        (("--out", "a.parquet"), b"PAR1"),
        (("--out", "a.JSON"), b"{"),
        (("--out", "a.csv"), b"workload,"),
        (("--out", "a.CSV"), b"workload,"),
        (("--out", "a.txt", "--format", "json"), b"{"),
    ],
)
def test_the_name_of_the_file_tells_the_format(perfctl, hostile, words, begins):
    for library in {".xlsx": ["openpyxl"], ".parquet": ["pyarrow"]}.get(Path(words[1]).suffix, []):
        pytest.importorskip(library)
    assert perfctl("export", *words).code == 0
    assert Path(words[1]).read_bytes().startswith(begins)


def test_a_folder_that_is_replaced_keeps_what_is_not_perfctls(perfctl, hostile):
    Path("out").mkdir()
    Path("out/notes.txt").write_text("mine")
    assert perfctl("export --all --out out").code == 2
    assert perfctl("export --all --out out --force").code == 0
    assert Path("out/notes.txt").read_text() == "mine"
    assert Path("out/kernel.csv").exists()


def test_a_write_that_fails_leaves_nothing_behind(perfctl, hostile, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("perfctl.orchestrator.report.files.tables.write_csv", full)
    before = mine()
    perfctl("export --all").ends(1, "No space left")
    assert mine() == before


@pytest.mark.parametrize(("form", "library"), [("parquet", "pyarrow"), ("xlsx", "openpyxl")])
def test_a_missing_library_is_named_with_how_to_get_it(
    perfctl, hostile, monkeypatch, form, library
):
    monkeypatch.setitem(sys.modules, library, None)
    perfctl(f"export -f {form}").ends(1, library, "perfctl[export]")


def test_parquet_keeps_types_and_nulls(perfctl, hostile):
    parquet = pytest.importorskip(
        "pyarrow.parquet", reason="pyarrow is not installed (extra 'export')"
    )
    assert perfctl("export --all -f parquet").code == 0
    kernels = parquet.read_table("perfctl-export/kernel.parquet")
    assert kernels["duration_ns"].to_pylist() == [500.0, 0.0, None]
    assert kernels["launch"].to_pylist() == [0, 1, 2]
    assert kernels["name"].to_pylist()[0].startswith("=HYPERLINK"), "a Parquet cell is never run"
    assert kernels.schema.field("duration_ns").metadata[b"unit"] == b"ns"
    assert parquet.read_table("perfctl-export/counter.parquet")["value"].to_pylist() == [
        0.0,
        None,
        2.5,
    ]


def test_a_workbook_has_a_sheet_a_table_text_that_is_no_formula_and_whole_large_numbers(
    perfctl, hostile
):
    openpyxl = pytest.importorskip("openpyxl", reason="openpyxl is not installed (extra 'export')")
    epoch = 1_700_000_000_123_456_789
    sql(f"UPDATE kernel_launch SET start_ns = {epoch} WHERE id = 1")
    assert perfctl("export --all -f xlsx").code == 0
    book = openpyxl.load_workbook("perfctl-export.xlsx")
    assert book.sheetnames == ["ledger", *query.list_public_table_names(), "columns"]
    head, first, second, third = book["kernel"].iter_rows()
    at = {cell.value: place for place, cell in enumerate(head)}
    assert first[at["name"]].data_type == "s", "a formula would be f"
    assert [row[at["duration_ns"]].value for row in (first, second, third)] == [500, 0, None]
    assert first[at["start_ns"]].value == str(epoch), "a spreadsheet would keep 15 digits"
    assert "\x1b" not in second[at["name"]].value
