"""dlprof_dldb.sqlite: damaged and strange databases, and the real one next to the CSV reports of the
same run."""

import pytest

from perfctl.parsers import ReportError, parse
from perfctl.parsers.dlprof import database as dlprof_database
from tests.make.dlprof import made


@pytest.fixture(scope="module")
def both(reports):
    """(the CSV folder, the database) of one run"""
    folder = reports / "dlprof" / "odema_pytorch"
    return parse(folder / "no_relu"), parse(folder / "no_relu_dlprof_dldb.sqlite")


def test_a_schema_that_is_no_text_is_refused(tmp_path):
    path = made(tmp_path / "d.sqlite")
    path.write_bytes(
        path.read_bytes().replace(
            b"CREATE TABLE read_only_memsets", b"CREATE \xd1\xff\xfe\xfd\xfc read_only_memsets"
        )
    )
    assert dlprof_database.sniff(path, path.read_bytes()[:65536]) in (True, False)
    with pytest.raises(ReportError, match="damaged"):
        dlprof_database.parse(path)


def test_the_real_database_and_its_csv_folder_have_the_same_launches(both):
    folder, database = (
        sorted(report.kernels, key=lambda kernel: kernel.start_ns or 0) for report in both
    )
    assert len(folder) == 51
    assert [one._replace(launch=0) for one in folder] == [
        one._replace(launch=0) for one in database
    ]


def test_the_real_database_and_its_csv_folder_have_the_same_operations(both):
    folder, database = (sorted(report.operations) for report in both)
    assert len(folder) == 32
    assert folder == database


def test_figures_of_the_real_database_round_to_those_of_its_summary(both):
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


def test_unknown_tables_and_columns_are_named_where_they_hold_something(tmp_path):
    more = (
        "CREATE TABLE tensors(x); CREATE TABLE heads(x); INSERT INTO heads VALUES (1);"
        "ALTER TABLE read_only_kernels ADD COLUMN mood; ALTER TABLE read_only_ops ADD COLUMN sky;"
        "UPDATE read_only_ops SET sky = 'blue';"
    )
    said = [entry.text for entry in parse(made(tmp_path / "d.sqlite", more)).diagnostics]
    assert said == ["not understood and left out: tables heads; columns read_only_ops.sky"]
    assert parse(made(tmp_path / "e.sqlite")).diagnostics == ()


def test_what_is_no_database_of_dlprof_is_refused(tmp_path):
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
