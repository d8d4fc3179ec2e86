"""The store as a folder of Parquet files, and SQL on it."""

import shutil
from pathlib import Path

import pytest

from perfctl.orchestrator.commands.query import query_parquet_dataset
from perfctl.orchestrator.errors import ToolMissing
from perfctl.orchestrator.store import database, query
from tests.cli.conftest import sql
from tests.cli.test_ingest import NCU

duckdb = pytest.importorskip("duckdb")
DATA = Path(__file__).resolve().parent.parent / "data"


@pytest.fixture
def store(perfctl, recorded):
    """Real recordings of two profilers, and synthetic counters and kernels, in three sweeps."""
    Path("b8.csv").write_text(NCU.format(count=5))
    perfctl("ingest", recorded)
    perfctl("ingest b8.csv")
    perfctl("ingest", DATA / "kineto-synthetic" / "trace.json")
    return Path("perfctl.db")


def parts():
    return {str(file) for file in Path("data").rglob("*.parquet")}


def test_every_table_of_the_dataset_has_the_rows_columns_and_nulls_of_the_store(perfctl, store):
    assert perfctl("export --dataset data").code == 0
    with database.open_store_for_reading(store) as connection:
        for table in query.list_public_table_names():
            names = [column.name for column, _ in query.list_table_columns(table)]
            found = perfctl(
                "query",
                "--dataset",
                "data",
                f'SELECT {", ".join(f"{chr(34)}{name}{chr(34)}" for name in names)} FROM "{table}"',
                "--json",
            ).json
            rows = [
                dict(zip(names, row, strict=True))
                for row in query.read_table_rows(connection, table, None)
            ]
            assert sorted(map(repr, found)) == sorted(map(repr, plain(rows, found))), table


def plain(rows, like):
    """Whole numbers as floats where Parquet's column is of floats, which it is for the
    type NUMERIC."""
    floats = {name for row in like for name, value in row.items() if isinstance(value, float)}
    return [
        {
            name: float(value) if name in floats and value is not None else value
            for name, value in row.items()
        }
        for row in rows
    ]


def test_files_lie_by_sweep_and_profiler_and_pandas_reads_them(perfctl, store):
    import pandas

    perfctl("export --dataset data")
    assert {
        "data/range/sweep=1/profiler=nsys/part-0.parquet",
        "data/range/sweep=1/profiler=torch/part-0.parquet",
        "data/counter/sweep=2/profiler=ncu/part-0.parquet",
        "data/run/part-0.parquet",
    } <= parts()
    frame = pandas.read_parquet("data/range")
    counted = sql(
        "SELECT sweep_id, profiler, count(*) FROM range JOIN run ON run.id = run_id GROUP BY 1, 2 "
        "ORDER BY 1, 2"
    )
    found = frame.groupby(["sweep", "profiler"], observed=True).size()
    assert [
        (int(sweep), str(profiler), int(rows)) for (sweep, profiler), rows in found.items()
    ] == counted


def test_later_runs_add_files_and_leave_the_others_as_they_are(perfctl, store):
    perfctl("export --dataset data")
    before = {file: Path(file).stat().st_mtime_ns for file in parts() if "/columns/" not in file}
    assert "every run" in perfctl("export --dataset data").out
    Path("b16.csv").write_text(NCU.format(count=6))
    perfctl("ingest b16.csv")
    Path("data/kernel/sweep=4/profiler=ncu").mkdir(parents=True)
    Path("data/kernel/sweep=4/profiler=ncu/part-1.parquet").write_text("what a killed export left")
    assert "Added 1 runs" in perfctl("export --dataset data").out
    assert {file: Path(file).stat().st_mtime_ns for file in before} == before
    new = {file for file in parts() - before.keys() if "/columns/" not in file}
    assert new
    assert all(file.endswith("part-1.parquet") for file in new)
    said = perfctl(
        "query --dataset data 'select count(*) n, count(distinct id) ids from run' --json"
    )
    ((runs,),) = sql("SELECT count(*) FROM run")
    assert said.json == [{"n": runs, "ids": runs}]


def test_a_dataset_of_another_store_and_a_folder_of_other_things_are_refused(perfctl, store):
    perfctl("export --dataset data")
    Path("other.csv").write_text(NCU.format(count=9))
    perfctl("ingest other.csv --store other.db")
    said = perfctl("export --dataset data --store other.db")
    assert (said.code, said.out) == (2, "")
    assert "new folder" in said.err
    Path("mine").mkdir()
    Path("mine/photo.jpg").touch()
    assert perfctl("export --dataset mine").code == 2
    assert perfctl("query --dataset mine 'select 1'").code == 2


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("copy run to 'out.csv'", "only read"),
        ("copy run to 'data/out.csv'", "only read"),
        ("attach 'perfctl.db'", "only read"),
        ("set enable_external_access = true", "only read"),
        ("install httpfs", "only read"),
        ("select 1; select 2", "more than one"),
        ("", "empty"),
        ("select * from read_text('secret.txt')", "disabled"),
        ("select * from read_csv('data/../secret.txt')", "disabled"),
        ("select * from glob('/etc/*')", "disabled"),
        ("select * from 'secret.txt'", ""),
        ("select nothing from run", "nothing"),
    ],
)
def test_the_sql_reads_the_dataset_and_nothing_else(perfctl, dataset, typed, why):
    shutil.copytree(dataset, "data")
    Path("secret.txt").write_text("password")
    said = perfctl("query", "--dataset", "data", typed)
    assert (said.code, said.out) == (2, "")
    assert len(said.err.splitlines()) == 1
    assert why in said.err
    assert not Path("out.csv").exists()
    assert not Path("data/out.csv").exists()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    from perfctl import ingest
    from perfctl.orchestrator.commands.export import export_new_runs_to_dataset

    folder = tmp_path_factory.mktemp("dataset")
    (folder / "b8.csv").write_text(NCU.format(count=5))
    ingest(folder / "b8.csv", folder / "perfctl.db")
    return export_new_runs_to_dataset(folder / "data", folder / "perfctl.db").path


def test_a_query_that_takes_too_long_is_stopped_and_a_missing_duckdb_is_named(
    perfctl, dataset, monkeypatch
):
    said = perfctl(
        f"query --dataset {dataset} 'select sum(a.i * b.i) from range(1000000) a(i), range(1000000) b(i)' --timeout 0.5",
    )
    assert "longer than 0.5 s" in said.err
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    # in this process: a worker may have DuckDB already
    with (
        pytest.raises(ToolMissing, match="`dataset` needs DuckDB"),
        query_parquet_dataset(dataset, "select 1", dataset),
    ):
        pass
