"""Readings beside a run: what NVML says, what processes take, and that all of it ends with
the run."""

import os
import subprocess
import sys
import time
from statistics import median

import pytest

from perfctl import parsers
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.process import run
from perfctl.orchestrator.launch.profilers.base import Command
from perfctl.orchestrator.launch.sampling import sampler
from perfctl.orchestrator.launch.sampling.sampler import (
    HostLoadReader,
    NvidiaSmiLog,
    NvmlReader,
    NvmlUnavailable,
    SamplingSettings,
    build_smi_command,
    describe_clock_limit_reasons,
)
from tests.launch.fake_nvml import FakeNvml
from tests.launch.programs import wait_until, write_program

MIB = 2**20
FULL = {
    "percent": 25,
    "used": 3 * MIB,
    "total": 8 * MIB,
    "milliwatt": 70_500,
    "millijoule": 1_234_500,
    "celsius": 41,
    "sm_mhz": 1410,
    "memory_mhz": 1215,
    "reasons": 0x4 | 0x20,
}
UNTIL_LOGGED = """
import os, time
while not os.path.exists(log) or open(log).read().count("\\n") < 4:  # it may begin before nvidia-smi's log is there
    time.sleep(0.05)
"""


def spin_until(condition):
    """A program that uses a core and 90 MB until the rows of its samples fulfil this."""
    return (
        f"import pathlib; path, rows, x = pathlib.Path({sampler.FILE!r}), [], bytearray(90_000_000)\n"
        f"while not ({condition}):\n"
        "    lines = path.read_text().splitlines()[:-1] if path.exists() else []\n"
        "    rows = [line.split(',') for line in lines if line[:1].isdigit()]"
    )


def start(folder, code, every_s=0.02, *, gpu=False, visible=None):
    outcome = run.run_command(
        Command((sys.executable, "-c", code), "run"),
        cwd=folder,
        stdout=folder / "out.log",
        stderr=folder / "err.log",
        scratch=folder / "tmp",
        sampling=SamplingSettings(every_s, folder, gpu, visible),
    )
    assert outcome.exit_code == 0, outcome.stderr.read_text()


def test_nvml_gives_every_quantity_in_base_units():
    library = FakeNvml([[FULL]], processes={7: MIB, 8: 5 * MIB, 9: 2 * MIB})
    (reading,) = NvmlReader(None, library).read_gpus({7, 9})
    values = (
        0,
        0.25,
        3 * MIB,
        8 * MIB,
        70.5,
        41,
        1_410_000_000,
        1_215_000_000,
        1234.5,
        "sw_power_cap+sw_thermal",
        3 * MIB,
        0.8,
    )
    assert reading == dict(zip(sampler.COLUMNS[1:-2], values, strict=True))
    assert tuple(map(describe_clock_limit_reasons, (0, 1, 0x8040))) == (
        "none",
        "idle",
        "hw_thermal+0x8000",
    )


def test_what_a_gpu_does_not_support_is_none_with_a_reason_and_never_zero():
    nvml = NvmlReader(None, FakeNvml([[{"percent": 0}]]))
    (reading,) = nvml.read_gpus(())
    assert reading["gpu_utilisation"] == 0, "counted, and zero"
    with pytest.raises(NvmlUnavailable, match="Library Not Found"):
        NvmlReader(None, FakeNvml([], broken=True))
    assert [reading[name] for name in ("power_w", "energy_j", "process_memory_bytes")] == [None] * 3
    assert nvml.problems["energy_j"] == "Not Supported"


def test_processes_that_have_other_numbers_in_a_container_are_not_counted_as_none():
    nvml = NvmlReader(None, FakeNvml([[FULL]], processes={4242: MIB}))
    (reading,) = nvml.read_gpus({7})
    assert reading["process_memory_bytes"] is None
    assert "no process of the run" in nvml.problems["process_memory_bytes"]


@pytest.mark.parametrize(
    ("visible", "percents"),
    [(None, [10, 20, 30]), ("2,0", [30, 10]), ("GPU-1111", [20]), ("", []), ("0,9,1", [10])],
)
def test_only_the_gpus_that_the_run_sees_are_read_in_its_order(visible, percents):
    library = FakeNvml([[{"percent": 10}], [{"percent": 20}], [{"percent": 30}]])
    found = NvmlReader(visible, library).read_gpus(())
    assert [(one["device_index"], one["gpu_utilisation"]) for one in found] == [
        (n, p / 100) for n, p in enumerate(percents)
    ]


def test_a_run_is_sampled_while_it_runs_and_the_file_is_whole(tmp_path):
    before = time.monotonic_ns()
    start(tmp_path, spin_until("len(rows) > 4 and any(float(row[-2]) > 0.01 for row in rows)"))
    after = time.monotonic_ns()
    report = parsers.parse(tmp_path / sampler.FILE)
    samples = list(report.samples)
    assert before < samples[0].at_ns < samples[-1].at_ns < after, (
        "on the monotonic clock, as steps are"
    )
    busy = [sample.host_cpu for sample in samples if sample.host_cpu is not None]
    assert len(busy) == len(samples)
    assert max(busy) > 0.01 and median(busy) < 2.5, "one process that never waits"
    assert all(sample.gpu_utilisation is None for sample in samples)
    assert [gap.reason for gap in report.gaps] == ["no GPU was sampled: the run used no GPU"]


def test_what_a_process_did_before_the_first_reading_is_no_part_of_its_rate():
    busy = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ntime.sleep(60)"
    with subprocess.Popen((sys.executable, "-S", "-c", busy), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        load = HostLoadReader("no such mark", process.pid)
        time.sleep(0.5)
        read = load.read_busy_cores_and_resident_bytes()
        process.kill()
    assert read is not None and read[0] < 0.2, "half a second of work came before"
    assert read[1] > 0


def test_processes_that_the_program_starts_count_too(tmp_path):
    # many processes are looked through less often
    child = ("-c", spin_until("any(int(row[-1]) > len(x) for row in rows)"))
    start(tmp_path, f"import subprocess, sys; subprocess.run([sys.executable, *{child!r}])")
    samples = list(parsers.parse(tmp_path / sampler.FILE).samples)
    assert max(sample.host_memory_bytes or 0 for sample in samples) > 90_000_000


def test_readings_of_gpus_stand_beside_those_of_the_host(tmp_path, monkeypatch):
    library = FakeNvml([[FULL], [FULL | {"percent": 50}]])
    monkeypatch.setattr(sampler, "NvmlReader", lambda visible: NvmlReader(visible, library))
    start(tmp_path, spin_until("{'0', '1'} < {row[1] for row in rows}"), gpu=True)
    report = parsers.parse(tmp_path / sampler.FILE)
    gpu = [sample for sample in report.samples if sample.device_index is not None]
    assert {(sample.device_index, sample.gpu_utilisation) for sample in gpu} == {
        (0, 0.25),
        (1, 0.5),
    }
    assert gpu[0].energy_j == 1234.5 and gpu[0].throttle_reasons == "sw_power_cap+sw_thermal"
    assert all(sample.host_cpu is None for sample in gpu)
    assert library.closed == 1
    assert "readings of GPUs: NVML, driver 550.54.15" in [item.text for item in report.diagnostics]


def test_without_nvml_nvidia_smi_is_read_and_its_readings_come_onto_the_runs_clock(
    tmp_path, monkeypatch
):
    write_program(
        tmp_path / "nvidia-smi",
        'echo "timestamp, index, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB], '
        'power.draw [W], temperature.gpu, clocks.current.sm [MHz], clocks.current.memory [MHz]"\n'
        "for i in 0 1 2 3 4 5 6 7 8 9; do\n"
        'echo "2024/11/23 12:23:2$i.500, 3, NVIDIA A40, 80 %, 100 MiB, 2000 MiB, 99.50 W, 50, 1200 '
        'MHz, 7250 MHz"\n'
        "sleep 0.1; done; exec sleep 600",  # it is ended with the run
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def missing(visible):
        raise NvmlUnavailable("nvidia-ml-py is not installed")

    def late(log):
        time.sleep(0.5)  # as on a busy machine, where the program begins first
        copy(log)

    copy = NvidiaSmiLog._copy_output_to_file
    monkeypatch.setattr(NvidiaSmiLog, "_copy_output_to_file", late)
    monkeypatch.setattr(sampler, "NvmlReader", missing)
    before = time.monotonic_ns()
    start(
        tmp_path,
        f"log = {str(tmp_path / sampler.SMI_FILE)!r}\n{UNTIL_LOGGED}",
        gpu=True,
        visible="3",
    )
    report = parsers.parse(tmp_path / sampler.FILE)
    gpu = [sample for sample in report.samples if sample.gpu_utilisation is not None]
    assert gpu[0].at_ns > before
    assert (gpu[0].device_index, gpu[0].gpu_utilisation, gpu[0].memory_used_bytes) == (
        0,
        0.8,
        100 * MIB,
    )
    assert gpu[1].at_ns - gpu[0].at_ns == 10**9, "as nvidia-smi's own stamps have it"
    assert {gap.quantity for gap in report.gaps} >= {"sample.energy_j", "sample.throttle_reasons"}


def test_the_command_of_nvidia_smi():
    assert build_smi_command("/usr/bin/nvidia-smi", 0.05, "2") == (
        "/usr/bin/nvidia-smi",
        (
            "--query-gpu=timestamp,index,name,utilization.gpu,memory.used,memory.total,power.draw,"
            "temperature.gpu,clocks.sm,clocks.mem"
        ),
        "--format=csv",
        "--loop-ms=50",
        "-i",
        "2",
    )


def test_sampling_ends_with_perfctl_when_that_is_killed_and_what_was_read_is_kept(
    processes, tmp_path
):
    perfctl = processes.start_perfctl(tmp_path, "sleep", "600")
    path = tmp_path / sampler.FILE
    processes.wait_for(1)
    wait_until(lambda: path.exists() and path.stat().st_size > 2000, "readings to reach the disk")
    perfctl.kill()
    perfctl.communicate()
    processes.assert_gone_within(60.0)
    size = path.stat().st_size
    time.sleep(0.3)
    assert path.stat().st_size == size
    report = parsers.parse(path)
    assert len(list(report.samples)) > 5
    assert "sampling ended early" in " ".join(gap.reason for gap in report.gaps)


def test_a_folder_that_cannot_be_written_to_harms_no_run(tmp_path):
    (tmp_path / sampler.FILE).mkdir()
    start(tmp_path, "print('done')")
    assert (tmp_path / "out.log").read_text() == "done\n"


def test_intervals_are_read_and_others_refused():
    for text, seconds in (
        ("50ms", 0.05),
        ("0.1s", 0.1),
        ("1s", 1.0),
        ("off", None),
        (" OFF ", None),
    ):
        assert sampler.parse_sampling_interval(text) == seconds
    for text, said in (
        ("", "expected"),
        ("50", "expected"),
        ("fast", "expected"),
        ("ms", "expected"),
        ("0ms", "between"),
        ("-1s", "between"),
        ("nans", "between"),
        ("1e9s", "between"),
    ):
        with pytest.raises(UsageError, match=f"`sample`.* {said}|`sample`: {said}"):
            sampler.parse_sampling_interval(text)
