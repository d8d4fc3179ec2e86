"""samples.csv, which perfctl writes beside a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.parsers import ReportError
from perfctl.parsers.own import samples
from perfctl.records.report import Diagnostic, Gap, Sample, Summary

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


def test_readings_of_gpus_and_of_the_host_are_told_apart(tmp_path: Path) -> None:
    report = parsers.parse(put(tmp_path, HEAD + COLUMNS + HOST + GPU + END))
    assert list(report.samples) == [
        Sample(1000, None, None, None, None, None, None, host_cpu=1.25, host_memory_bytes=4096),
        Sample(1000, 0.5, 10, 100, 70.5, 41, 1_410_000_000, 1, 1_215_000_000, 99.5, "idle", 7, 0.4),
    ]
    assert {item.name: item.value for item in report.summaries} == {
        "sampling: readings": 2,
        "sampling: CPU time": 1_500_000,
    }
    assert report.gaps == ()


def test_what_the_driver_does_not_give_becomes_a_gap_with_its_reason(tmp_path: Path) -> None:
    report = parsers.parse(
        put(tmp_path, HEAD + COLUMNS + HOST + END + "# missing energy_j: Not Supported\n")
    )
    assert [(gap.quantity, gap.reason) for gap in report.gaps] == [
        ("sample.energy_j", "Not Supported")
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# perfctl samples 9\n", "version 9, this perfctl reads 1"),
        (HEAD + "device_index\n", "no column at_ns"),
        (HEAD + COLUMNS + "1,2\n", "line 5: 2 cells for 15 columns"),
        (HEAD + COLUMNS + HOST.replace("1.25", "many"), "line 5: could not convert"),
        (HEAD + COLUMNS + HOST.replace("1.25", "nan"), "line 5: nan is not a number"),
        (HEAD + COLUMNS + HOST.replace("1000", ""), "the reading has no time"),
    ],
)
def test_a_broken_file_is_refused_with_the_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ReportError, match=reason):
        parsers.parse(put(tmp_path, text))


def test_nvidia_smi_s_log_without_a_moment_to_hang_it_on_is_left_out_and_said(
    tmp_path: Path,
) -> None:
    (tmp_path / "samples.nvidia-smi.csv").write_text(
        "timestamp, index, utilization.gpu [%], memory.used [MiB]\n"
        "2024/11/23 12:23:29.950, 0, 92 %, 5 MiB\n"
    )
    report = parsers.parse(
        put(tmp_path, HEAD.replace("NVML,", "nvidia-smi,") + COLUMNS + HOST + END)
    )
    assert len(list(report.samples)) == 1
    assert "cannot be converted to the run's clock" in " ".join(gap.reason for gap in report.gaps)


SMI_HEAD = "timestamp, index, utilization.gpu [%], memory.used [MiB], power.draw [W]\n"
SMI = (
    SMI_HEAD
    + (
        "2024/11/23 12:23:29.950, 3, 92 %, 5 MiB, [N/A]\n2024/11/23 12:23:29.950, 1, 50 %, 6 MiB, "
        "70.00 W\n"
    )
    + "2024/11/23 12:23:30.450, 3, 94 %, 7 MiB, 71.00 W\n"
)


def test_nvidia_smi_s_log_is_moved_to_the_run_s_clock_and_its_devices_counted_from_0(
    tmp_path: Path,
) -> None:
    (tmp_path / "samples.nvidia-smi.csv").write_text(SMI)
    head = HEAD.replace("NVML, driver 550.54.15", "nvidia-smi") + "# nvidia_smi_first_ns: 400\n"
    report = parsers.parse(put(tmp_path, head + COLUMNS + HOST + END))
    found = [
        (sample.at_ns, sample.device_index, sample.gpu_utilisation, sample.power_w)
        for sample in report.samples
    ]
    assert found == [
        (400, 0, 0.92, None),
        (400, 1, 0.5, 70),
        (1000, None, None, None),
        (500_000_400, 0, 0.94, 71),
    ]
    gaps = {gap.quantity: (gap.state, gap.reason) for gap in report.gaps}
    assert gaps["sample.power_w"] == ("not_available", "printed instead: 'N/A' 1 times")
    for name in ("temperature_c", "sm_clock_hz", "memory_total_bytes"):
        assert gaps[f"sample.{name}"] == ("not_collected", "the file has no column for it")
    for name in (
        "memory_clock_hz",
        "energy_j",
        "throttle_reasons",
        "process_memory_bytes",
        "process_utilisation",
    ):
        assert gaps[f"sample.{name}"] == ("not_collected", "nvidia-smi was not asked for it")
    assert len(gaps) == 9
    assert [said.text for said in report.diagnostics] == ["readings of GPUs: nvidia-smi"]


@pytest.mark.parametrize("first", ["", "soon", "-5"])
def test_a_moment_that_is_none_leaves_nvidia_smi_s_readings_out(tmp_path: Path, first: str) -> None:
    (tmp_path / "samples.nvidia-smi.csv").write_text(SMI)
    report = parsers.parse(
        put(tmp_path, HEAD + f"# nvidia_smi_first_ns: {first}\n" + COLUMNS + HOST + END)
    )
    assert [sample.at_ns for sample in report.samples] == [1000]
    assert ("sample", "ambiguous") in [(gap.quantity, gap.state) for gap in report.gaps]


def test_a_broken_log_of_nvidia_smi_is_a_gap_and_an_empty_one_is_none(tmp_path: Path) -> None:
    log = tmp_path / "samples.nvidia-smi.csv"
    log.write_text(SMI_HEAD)
    report = parsers.parse(put(tmp_path, HEAD + COLUMNS + HOST + END))
    assert [(gap.quantity, gap.state) for gap in report.gaps] == [("sample", "unreadable")]
    assert "no complete row below it" in report.gaps[0].reason
    log.write_text("")
    assert parsers.parse(tmp_path / "samples.csv").gaps == ()


def test_a_run_without_a_gpu_says_why_none_was_read(tmp_path: Path) -> None:
    head = HEAD.replace("NVML, driver 550.54.15", "none, no NVIDIA driver")
    report = parsers.parse(
        put(tmp_path, head + COLUMNS + HOST + "# cost_ns: many\n# readings: 1\n")
    )
    assert report.gaps == (
        Gap("sample.gpu_utilisation", "not_collected", "no GPU was read: no NVIDIA driver"),
    )
    assert report.summaries == (Summary("sampling: readings", 1.0, None),)


@pytest.mark.parametrize("end", ["", "# readings: 1", GPU[:20]])
def test_a_file_that_was_cut_off_keeps_its_whole_rows_and_says_so(tmp_path: Path, end: str) -> None:
    report = parsers.parse(put(tmp_path, HEAD + COLUMNS + HOST + end))
    assert [sample.host_cpu for sample in report.samples] == [1.25]
    reason = "sampling was cut off: readings from the end of the run are missing"
    assert report.gaps == (Gap("sample", "unreadable", reason),)
    assert (report.tool, report.form) == ("sampler", "perfctl samples, version 1")
    assert report.diagnostics == (
        Diagnostic("info", "sampler", "readings of GPUs: NVML, driver 550.54.15"),
    )


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
        (
            b"# perfctl samples " + b"9" * 30 + b"\n",
            f"samples of version {'9' * 20}, this perfctl reads 1",
        ),
        (
            (HEAD + COLUMNS + HOST + GPU.replace("\n", ",\n")).encode(),
            "line 6: 16 cells for 15 columns",
        ),
        ((HEAD + "device_index,power_w\n").encode(), "line 4: no column at_ns"),
    ):
        path.write_bytes(data)
        with pytest.raises(ReportError) as caught:
            samples.parse(path)
        assert caught.value.reason.startswith(reason)
        assert caught.value.tool == "sampler"
    with pytest.raises(ReportError, match="it cannot be read"):
        samples.parse(tmp_path / "absent.csv")


def test_figures_of_sampling_are_counted_where_they_are_numbers(tmp_path: Path) -> None:
    for end, expected in (
        ("# readings: 0\n", [Summary("sampling: readings", 0.0, None)]),
        ("# readings: -1\n# cost_ns: 5\n", [Summary("sampling: CPU time", 5.0, "ns")]),
        ("# readings: some\n", []),
    ):
        report = parsers.parse(put(tmp_path, HEAD + COLUMNS + HOST + end))
        assert list(report.summaries) == expected
        assert report.gaps == ()
