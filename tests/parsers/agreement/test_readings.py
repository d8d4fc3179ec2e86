"""What logs of readings and perfctl's own records say twice."""

from __future__ import annotations

import io
import json
from pathlib import Path

from perfctl import parsers
from perfctl.orchestrator.launch.sampling.sampler import _Rows
from perfctl.records import checksum
from perfctl.records.report import Report
from perfctl.workloads.run.record import Record
from tests.parsers.monitor_logs import read

HEADER = "timestamp, index, utilization.gpu [%], memory.used [MiB], memory.total [MiB]\n"


def warnings(report: Report) -> str:
    return " | ".join(said.text for said in report.diagnostics if said.severity == "warning")


def rows(*seconds: int, gpu: int = 0, used: int = 10, total: int = 100) -> str:
    return "".join(
        f"2026/01/02 10:00:{second:02d}.000, {gpu}, 5 %, {used} MiB, {total} MiB\n"
        for second in seconds
    )


def test_readings_that_are_missing_are_counted_for_each_gpu(tmp_path: Path) -> None:
    whole = "".join(rows(second) + rows(second, gpu=1) for second in range(20))
    assert "missing" not in warnings(read(tmp_path, HEADER + whole))
    lost = whole.replace(rows(7, gpu=1), "").replace(rows(8, gpu=1), "")
    assert "GPU 1: 2 readings are missing between 6.0 s and 9.0 s" in warnings(
        read(tmp_path, HEADER + lost)
    )


def test_more_memory_in_use_than_there_is_and_a_size_that_changes_are_said(tmp_path: Path) -> None:
    assert "GPU 0: 900 MiB used of 100 MiB" in warnings(
        read(tmp_path, HEADER + rows(1) + rows(2, used=900))
    )
    assert "the memory in all differs between readings" in warnings(
        read(tmp_path, HEADER + rows(1, 2) + rows(3, total=1000))
    )


def samples(folder: Path, change: str = "", into: str = "") -> list[str]:
    """What is said about samples.csv with three readings."""
    text = io.StringIO()
    text.write("# perfctl samples 1\n# gpu: none, the run used no GPU\n")
    table = _Rows(text)
    for line in (
        "at_ns,host_cpu,host_memory_bytes\n",
        "1000,0.5,4096\n",
        "2000,0.5,4096\n",
        "3000,0.5,4096\n",
    ):
        table.write(line)
    text.write(f"# readings: 3\n# rows: {table.count - 1}\n# {checksum.FIELD}: {table.checksum}\n")
    path = folder / "samples.csv"
    path.write_text(text.getvalue().replace(change, into) if change else text.getvalue())
    return [gap.reason for gap in parsers.parse(path).gaps if gap.quantity == "sample"]


def test_rows_of_samples_that_are_missing_or_changed_are_said(tmp_path: Path) -> None:
    assert samples(tmp_path) == []
    assert samples(tmp_path, "2000,0.5,4096\n") == [
        "the file has 2 rows of readings, and says that it has 3"
    ]
    assert "not as perfctl wrote them" in samples(tmp_path, "2000,0.5", "2000,0.6")[0]


def test_a_workload_record_that_was_changed_is_said(tmp_path: Path) -> None:
    path = tmp_path / "workload.json"
    Record("mlp", 4, "train", "fp32", 0, duration_ns=70).write(path)
    assert warnings(parsers.parse(path)) == ""
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert warnings(parsers.parse(path)) == "", "its layout does not matter"
    path.write_text(path.read_text().replace('"duration_ns": 70', '"duration_ns": 90'))
    assert "not as perfctl wrote it" in warnings(parsers.parse(path))


FREE = "timestamp, index, memory.used [MiB], memory.free [MiB], memory.total [MiB]\n"


def test_memory_in_use_and_free_add_up_to_the_same_in_all_readings(tmp_path: Path) -> None:
    """Synthetic: 20 readings of 1,000 MiB, of which the driver keeps 40; both figures
    are rounded."""

    def log(**used: str) -> str:
        lines = (
            f"2026/01/02 10:00:{at:02d}.000, 0, {used.get(f's{at}', at)} MiB, {960 - at + at % 2} "
            "MiB, 1000 MiB\n"
            for at in range(20)
        )
        return warnings(read(tmp_path, FREE + "".join(lines)))

    assert "together" not in log()
    assert (
        "memory in use and free memory are 961 MiB together, but 974 MiB in 1 of 20 readings"
        in log(s4="18")
    )
    assert "together" not in log(s1="90", s2="91", s3="92"), (
        "where more than a tenth differ, nothing is usual"
    )


def test_a_gpu_that_is_left_out_of_its_turn_is_said(tmp_path: Path) -> None:
    whole = [rows(second, gpu=gpu) for second in range(10) for gpu in range(3)]
    assert "in turn" not in warnings(read(tmp_path, HEADER + "".join(whole)))
    for lost in (0, 1, 13, 29):
        text = HEADER + "".join(whole[:lost] + whole[lost + 1 :])
        said = "GPUs are read in turn, but 1 of 29 readings follow that of another GPU than usual"
        assert (said in warnings(read(tmp_path, text))) == (0 < lost < 29), (
            "the first and the last cannot be told"
        )
    blocks = [rows(second, gpu=gpu) for gpu in range(3) for second in range(10)]
    assert "in turn" not in warnings(read(tmp_path, HEADER + "".join(blocks))), (
        "one GPU after the other"
    )


def test_a_header_that_lost_its_row_is_said_where_each_reading_has_one(tmp_path: Path) -> None:
    pairs = [HEADER + rows(second) for second in range(5)]
    assert "headers" not in warnings(read(tmp_path, "".join(pairs)))
    assert "1 headers have no row below them" in warnings(
        read(tmp_path, "".join([*pairs[:2], HEADER, *pairs[3:]]))
    )


def test_a_cell_in_another_unit_than_its_column_is_said(tmp_path: Path) -> None:
    text = HEADER + rows(*range(9))
    assert " is in " not in warnings(read(tmp_path, text))
    said = warnings(read(tmp_path, text.replace("10 MiB", "10 KiB", 2)))
    assert "memory.used is in MiB, but in KiB in 2 cells" in said


def test_a_power_without_its_point_is_said(tmp_path: Path) -> None:
    lines = [f"2026/01/02 10:00:{at:02d}.000, 0, 7{at % 10}.{at:02d} W\n" for at in range(60)]
    header = "timestamp, index, power.draw [W]\n"
    assert "decimals" not in warnings(read(tmp_path, header + "".join(lines)))
    text = header + "".join([*lines[:7], lines[7].replace("77.07", "7707"), *lines[8:]])
    assert "the power has 2 decimals, but other ones in 1 of 60 readings" in warnings(
        read(tmp_path, text)
    )
    short = header + "".join(line.replace("0 W", " W") for line in lines)
    assert "decimals" not in warnings(read(tmp_path, short)), "zeros at the end are left out"
