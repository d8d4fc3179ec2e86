"""dlprof_dldb.sqlite: a small database made here, and the real one beside the CSV reports of the
same run."""

from __future__ import annotations

import csv
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfctl.parsers import ReportError, find, parse, sniff
from perfctl.parsers.dlprof import database as dlprof_database
from perfctl.records.report import Gap, Kernel, Report

SCHEMA = """
CREATE TABLE dictionary(id INTEGER PRIMARY KEY, string TEXT);
CREATE TABLE read_only_ops(id INTEGER PRIMARY KEY, domain_id, op_id, op_name, op_type_id, direction_id);
CREATE TABLE read_only_kernels(id INTEGER PRIMARY KEY, read_only_ops_id, name_id, long_name_id, uses_tc, gpu_start,
    gpu_stop, grid_id, block_id, device_id);
CREATE TABLE read_only_grid_block(id INTEGER PRIMARY KEY, x, y, z);
CREATE TABLE read_only_memcpys(id INTEGER PRIMARY KEY, gpu_start, gpu_stop, num_bytes, copy_kind, device_id);
CREATE TABLE read_only_memsets(id INTEGER PRIMARY KEY, gpu_start, gpu_stop, num_bytes, device_id);
CREATE TABLE read_only_gpu_infos(id INTEGER PRIMARY KEY, device_id, gpu_name, compute_capability_major,
    compute_capability_minor, sm_count);
CREATE TABLE kernel_iteration_node(id INTEGER PRIMARY KEY, aggr_id, read_only_kernel_id, iter_value);
CREATE TABLE iteration_list(id INTEGER PRIMARY KEY, aggr_id, iter_value, start_time, stop_time);
INSERT INTO dictionary VALUES (1, 'conv'), (2, 'void conv<float>(float*)'), (3, 'conv2d'), (4, 'fprop');
INSERT INTO read_only_ops VALUES (1, 1, 'CONV_1', 'conv1:forward', 3, 4);
INSERT INTO read_only_grid_block VALUES (1, 8, 2, 1), (2, 128, 1, 1);
INSERT INTO read_only_kernels VALUES (1, 1, 1, 2, 1, 5000, 5100, 1, 2, 0), (2, 99, 1, 98, 0, 0, 0, 97, 2, 0);
INSERT INTO read_only_memcpys VALUES (1, 10, 30, 4096, 1, 0);
INSERT INTO read_only_memsets VALUES (1, 40, 45, 64, 0);
INSERT INTO read_only_gpu_infos VALUES (1, 0, 'Synthetic GPU', 7, 5, 40);
INSERT INTO kernel_iteration_node VALUES (1, 1, 1, 7), (2, 2, 1, 9);
INSERT INTO iteration_list VALUES (1, 1, 7, 0, 10), (2, 2, 9, 100, 250);
"""


def made(path: Path, more: str = "") -> Path:
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(f"PRAGMA synchronous = OFF; BEGIN; {SCHEMA} {more} COMMIT;")
    return path


@pytest.fixture(scope="module")
def both(reports: Path) -> tuple[Report, Report]:
    """(the CSV folder, the database) of one run"""
    folder = reports / "dlprof" / "odema_pytorch"
    return parse(folder / "no_relu"), parse(folder / "no_relu_dlprof_dldb.sqlite")


def test_launches_carry_names_sizes_and_the_last_aggregations_step(tmp_path: Path) -> None:
    first, second = parse(made(tmp_path / "d.sqlite")).kernels
    assert first == Kernel(
        launch=0,
        name="void conv<float>(float*)",
        short_name="conv",
        layer="conv1",
        direction="forward",
        step=9,
        layer_source="range",
        device_index=0,
        grid_x=8,
        grid_y=2,
        grid_z=1,
        block_x=128,
        block_y=1,
        block_z=1,
        start_ns=5000,
        duration_ns=100,
    )
    assert (second.name, second.grid_x, second.duration_ns, second.step, second.layer) == (
        "conv",
        None,
        None,
        None,
        None,
    )


def test_copies_and_memory_settings_come_along(tmp_path: Path) -> None:
    copies = list(parse(made(tmp_path / "d.sqlite")).copies)
    assert [(copy.kind, copy.bytes, copy.duration_ns) for copy in copies] == [
        ("HtoD", 4096, 20),
        ("memset", 64, 5),
    ]


def test_a_database_without_the_later_tables_says_what_is_missing(tmp_path: Path) -> None:
    report = parse(
        made(
            tmp_path / "d.sqlite", "DROP TABLE read_only_memcpys; DROP TABLE read_only_grid_block;"
        )
    )
    assert {gap.quantity for gap in report.gaps} >= {
        "copy",
        "operation",
        "kernel.step",
        "device.memory_bytes",
    }
    assert [kernel.grid_x for kernel in report.kernels] == [None, None]


def test_reading_leaves_nothing_beside_the_file_and_does_not_change_it(tmp_path: Path) -> None:
    path = made(tmp_path / "na'me? #1%.sqlite")
    before = path.read_bytes()
    assert len(list(parse(path).kernels)) == 2
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_a_view_in_place_of_a_table_is_not_run(tmp_path: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    path = made(
        tmp_path / "d.sqlite",
        f"DROP TABLE read_only_kernels; CREATE VIEW read_only_kernels AS {endless};",
    )
    assert sniff(path) is None or sniff(path).name != "DLProf database"  # type: ignore[union-attr]


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_a_cut_database_is_refused_in_one_line(tmp_path: Path, kept: float) -> None:
    whole = made(tmp_path / "d.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(ReportError) as caught:
        parse(path)
    assert "\n" not in str(caught.value)
    assert "nsys" not in str(caught.value)


def test_damage_inside_is_an_error_or_leaves_the_rows_as_they_are(tmp_path: Path) -> None:
    whole = bytearray(made(tmp_path / "d.sqlite").read_bytes())
    good = list(parse(tmp_path / "d.sqlite").kernels)
    for page in range(1, len(whole) // 4096):
        path = tmp_path / f"{page}.sqlite"
        path.write_bytes(bytes(whole[: page * 4096] + b"\xff" * 4096 + whole[(page + 1) * 4096 :]))
        try:
            found = parse(path)
        except ReportError:
            continue
        assert len(list(found.kernels)) <= len(good)


def test_a_schema_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "d.sqlite")
    path.write_bytes(
        path.read_bytes().replace(
            b"CREATE TABLE read_only_memsets", b"CREATE \xd1\xff\xfe\xfd\xfc read_only_memsets"
        )
    )
    assert dlprof_database.sniff(path, path.read_bytes()[:65536]) in (True, False)
    with pytest.raises(ReportError, match="damaged"):
        dlprof_database.parse(path)


def test_texts_where_numbers_belong_stay_unknown(tmp_path: Path) -> None:
    more = (
        "UPDATE read_only_kernels SET gpu_start = 'x', device_id = 'y'; UPDATE dictionary SET "
        "string = 5 WHERE id = 2;"
    )
    kernel = next(iter(parse(made(tmp_path / "d.sqlite", more)).kernels))
    assert (kernel.start_ns, kernel.duration_ns, kernel.device_index) == (None, None, None)


def test_the_real_database_and_its_csv_folder_have_the_same_launches(
    both: tuple[Report, Report],
) -> None:
    folder, database = (
        sorted(report.kernels, key=lambda kernel: kernel.start_ns or 0) for report in both
    )
    assert len(folder) == 51
    assert [one._replace(launch=0) for one in folder] == [
        one._replace(launch=0) for one in database
    ]


def test_the_real_database_and_its_csv_folder_have_the_same_operations(
    both: tuple[Report, Report],
) -> None:
    folder, database = (sorted(report.operations) for report in both)
    assert len(folder) == 32
    assert folder == database


def test_figures_of_the_real_database_round_to_those_of_its_summary(
    both: tuple[Report, Report],
) -> None:
    known = {figure.name: figure for figure in both[1].summaries}
    checked = 0
    for figure in both[0].summaries:
        if figure.value is not None and figure.name != "GPU Count":
            assert (round(known[figure.name].value or 0.0, 1), known[figure.name].unit) == (
                figure.value,
                figure.unit,
            )
            checked += 1
    # 16 of the run, 4 x 3 of ops, 4 x 3 of kernels, 5 ops in the tensor core report
    assert checked == 45
    assert known["GPU Utilization"].value == 0.010363
    assert both[0].duration_ns == both[1].duration_ns == 2864091540


def test_the_real_database_says_more_than_the_csv(
    both: tuple[Report, Report], reports: Path
) -> None:
    report = both[1]
    with (reports / "dlprof/odema_pytorch/no_relu/dlprof_expert_systems.csv").open(
        newline=""
    ) as file:
        advice = {f"{row[0]}. {row[1]}" for row in list(csv.reader(file))[2:]}
    assert advice <= {entry.text for entry in report.diagnostics}
    (gpu,) = [device for device in report.devices if device.kind == "gpu"]
    assert (gpu.compute_capability, gpu.sm_count, gpu.memory_bytes) == ("7.5", 40, 8 * 2**30)
    assert (report.tool_version, report.environment["torch"]) == ("1.8.0", "1.10.1+cu102")
    assert len(list(report.copies)) == 16 + 4
    assert not any("mohanadodema" in value for value in report.environment.values())
    assert find(report.path) == [report.path]


def test_unknown_tables_and_columns_are_named_where_they_hold_something(tmp_path: Path) -> None:
    more = (
        "CREATE TABLE tensors(x); CREATE TABLE heads(x); INSERT INTO heads VALUES (1);"
        "ALTER TABLE read_only_kernels ADD COLUMN mood; ALTER TABLE read_only_ops ADD COLUMN sky;"
        "UPDATE read_only_ops SET sky = 'blue';"
    )
    said = [entry.text for entry in parse(made(tmp_path / "d.sqlite", more)).diagnostics]
    assert said == ["not understood and left out: tables heads; columns read_only_ops.sky"]
    assert parse(made(tmp_path / "e.sqlite")).diagnostics == ()


def test_a_database_without_iterations_or_ids_of_ops_leaves_them_unknown(tmp_path: Path) -> None:
    report = parse(made(tmp_path / "d.sqlite", "DROP TABLE kernel_iteration_node;"))
    assert [kernel.step for kernel in report.kernels] == [None, None]
    reason = "2 of 2 launches are outside the iterations that DLProf aggregated"
    assert Gap("kernel.step", "not_collected", reason) in report.gaps
    without = parse(
        made(tmp_path / "e.sqlite", "ALTER TABLE read_only_ops RENAME COLUMN op_id TO other;")
    )
    assert without.summaries == ()


def test_what_is_no_database_of_dlprof_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "d.sqlite", "DROP TABLE read_only_ops;")
    assert not dlprof_database.sniff(path, path.read_bytes())
    again = "Copy it again, or let dlprof make it again (dlprof --force=true ...)"
    for file, reason, remedy in (
        (path, "DLProf's tables are missing", again),
        (
            tmp_path / "absent.sqlite",
            "it cannot be read (No such file or directory)",
            "Check the path and its permissions",
        ),
    ):
        with pytest.raises(ReportError) as caught:
            dlprof_database.parse(file)
        assert (caught.value.tool, caught.value.reason, caught.value.remedy) == (
            "dlprof",
            reason,
            remedy,
        )
