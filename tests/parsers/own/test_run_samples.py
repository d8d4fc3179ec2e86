"""samples.csv, which perfctl writes next to a run: broken files."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.parsers import ReportError
from perfctl.parsers.own import samples

HEAD = "# perfctl samples 1\n# gpu: NVML, driver 550.54.15\n# every_s: 0.05\n"
COLUMNS = (
    "at_ns,device_index,gpu_utilisation,memory_used_bytes,memory_total_bytes,power_w,temperature_c,"
    "sm_clock_hz,memory_clock_hz,energy_j,throttle_reasons,process_memory_bytes,"
    "process_utilisation,host_cpu,host_memory_bytes\n"
)
GPU = "1000,1,0.5,10,100,70.5,41,1410000000,1215000000,99.5,idle,7,0.4,,\n"
HOST = "1000,,,,,,,,,,,,,1.25,4096\n"
END = "# readings: 2\n# cost_ns: 1500000\n"


def put(folder: Path, text: str) -> Path:
    path = folder / "samples.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"# perfctl samples {'9' * 30}\n", f"version {'9' * 20}, but this perfctl reads 1"),
        (HEAD + "device_index\n", "line 4: no column at_ns"),
        (HEAD + COLUMNS + "1,2\n", "line 5: 2 cells for 15 columns"),
        (HEAD + COLUMNS + HOST.replace("1.25", "many"), "line 5: could not convert"),
        (HEAD + COLUMNS + HOST.replace("1.25", "nan"), "line 5: nan is not a number"),
        (HEAD + COLUMNS + HOST.replace("1000", ""), "the sample has no time"),
    ],
)
def test_a_broken_file_is_refused_with_the_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ReportError, match=reason):
        parsers.parse(put(tmp_path, text))


def test_cells_of_whole_numbers_take_no_fraction_and_texts_may_have_commas(tmp_path: Path) -> None:
    report = parsers.parse(put(tmp_path, HEAD + COLUMNS + GPU.replace("idle", '"idle, cap"') + END))
    assert next(iter(report.samples)).throttle_reasons == "idle, cap"
    for cell in ("1000.5", "inf"):
        with pytest.raises(ReportError, match="line 5: "):
            parsers.parse(put(tmp_path, HEAD + COLUMNS + HOST.replace("1000", cell) + END))


def test_a_file_that_cannot_be_read_is_refused_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    for data, reason in (
        (b"", "the file is empty"),
        (HEAD.encode() + b"\xff\n", "it cannot be read ('utf-8' codec can't decode byte 0xff"),
    ):
        path.write_bytes(data)
        with pytest.raises(ReportError) as caught:
            samples.parse(path)
        assert caught.value.reason.startswith(reason)
        assert caught.value.tool == "sampler"
    with pytest.raises(ReportError, match="it cannot be read"):
        samples.parse(tmp_path / "absent.csv")
