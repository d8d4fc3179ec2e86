"""The GPU's side of clock, memory, window and machine, against stand-ins for torch.cuda."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perfctl.records.report import Device, MemoryFigure
from perfctl.workloads.run import setup as run_setup
from perfctl.workloads.run.clock import StepTimeline, make_device_clock, make_measured_window
from perfctl.workloads.run.memory import MemoryWatch


class Event:
    """A CUDA event on a device clock that advances a quarter of a millisecond at each record."""

    now = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        Event.now += 0.25
        self.at = Event.now

    def elapsed_time(self, end):
        return end.at - self.at


def test_events_time_steps_in_nanoseconds_and_no_phase_waits(monkeypatch):
    waits: list[str] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append("wait"))
    timeline = StepTimeline(make_device_clock("cuda"))
    waits.clear()
    with timeline.time_block(0, "step"), timeline.time_block(0, "forward"):
        pass
    timeline.set_loss_and_accuracy(0, "step", torch.tensor(1.5))
    assert waits == []
    step, forward = timeline.build_step_rows()
    assert (waits, timeline.clock.kind) == (["wait"], "device_events")
    assert (step.phase, step.duration_ns, step.loss) == ("step", 750_000, 1.5)
    assert (forward.phase, forward.duration_ns, forward.loss) == ("forward", 250_000, None)
    assert (forward.start_ns or 0) - (step.start_ns or 0) == 250_000


def test_a_block_that_raises_leaves_no_row():
    timeline = StepTimeline(make_device_clock("cpu"))
    with pytest.raises(ValueError, match="x"), timeline.time_block(0, "step"):
        raise ValueError("x")
    assert timeline.build_step_rows() == []


def test_gpu_memory_is_taken_from_allocator_and_device(monkeypatch):
    answers = {
        "synchronize": None,
        "reset_peak_memory_stats": None,
        "mem_get_info": (70, 80),
        "memory_allocated": 11,
        "memory_reserved": 22,
        "max_memory_allocated": 33,
        "max_memory_reserved": 44,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)
    watch = MemoryWatch("cuda")
    watch.record_memory_amounts("before")
    watch.reset_peak()
    watch.record_peak_memory()
    expected = [
        ("before", "allocated", 11),
        ("before", "reserved", 22),
        ("before", "device_free", 70),
        ("before", "device_total", 80),
        ("peak", "allocated", 33),
        ("peak", "reserved", 44),
    ]
    assert [row for row in watch.figures if not row.quantity.startswith("host")] == [
        MemoryFigure(*row) for row in expected
    ]
    assert watch.gaps == []


def test_the_hosts_peak_falls_back_after_a_reset():
    watch = MemoryWatch("cpu")
    big = torch.ones(64 * 2**20, dtype=torch.uint8)
    del big
    watch.reset_peak()
    if watch.host_peak_covers != "measured steps":
        pytest.skip("this kernel does not let a process forget its peak")
    watch.record_memory_amounts("after")
    watch.record_peak_memory()
    figures = {row[:2]: row.bytes for row in watch.figures}
    assert figures["peak", "host_resident"] - figures["after", "host_resident"] < 32 * 2**20


@pytest.mark.parametrize("fails", [False, True])
def test_the_cuda_window_opens_and_closes_with_the_device_idle(monkeypatch, fails):
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("wait"))
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: calls.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: calls.append("stop"))
    try:
        with make_measured_window("cuda", "cuda", None):
            calls.append("steps")
            if fails:
                raise ValueError
    except ValueError:
        assert fails
    assert calls == ["wait", "start", "steps", "wait", "stop"]


@pytest.mark.parametrize(
    ("clocks", "clock", "bandwidth"),
    [
        ((877_000, 4096, 1_530_000), 1_530_000_000, 2 * 877_000_000 * 4096 // 8),
        ((None, None, 0), None, None),  # a driver that keeps them to itself
    ],
)
def test_a_gpu_is_described_in_base_units(monkeypatch, clocks, clock, bandwidth):
    properties = SimpleNamespace(
        name="V100",
        major=7,
        minor=0,
        multi_processor_count=80,
        total_memory=16_945_512_448,
        memory_clock_rate=clocks[0],
        memory_bus_width=clocks[1],
        clock_rate=clocks[2],
    )
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    device = run_setup.describe_device("cuda")
    assert (device.kind, device.compute_capability, device.sm_count) == ("gpu", "7.0", 80)
    assert (device.clock_hz, device.memory_bandwidth_bps) == (clock, bandwidth)


@pytest.mark.parametrize(
    ("number", "text"), [(90100, "9.1.0"), (92600, "9.26.0"), (8907, "8.9.7"), (8204, "8.2.4")]
)
def test_cudnn_versions_are_read(monkeypatch, number, text):
    monkeypatch.setattr(torch.version, "cuda", "12.1")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: number)
    assert run_setup.collect_software_and_cpu_facts()["cudnn"] == text


@pytest.mark.parametrize(
    ("said", "model"),
    [
        (
            "cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nstepping\t: 1\n",
            "family 25, model 17, stepping 1",
        ),
        (
            "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd40\nCPU revision\t: 1\n",
            "implementer 0x41, part 0xd40, revision 1",
        ),
        ("processor\t: 0\n", None),
    ],
)
def test_a_processor_is_known_by_its_family_and_model(said, model, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(said)
    read = run_setup.find_in_file
    monkeypatch.setattr(
        run_setup,
        "find_in_file",
        lambda path, pattern: read(str(tmp_path / Path(path).name), pattern),
    )
    found = run_setup.collect_software_and_cpu_facts()
    assert found.get("cpu_model") == model
    assert found["cpu_capability"] == torch.backends.cpu.get_cpu_capability()


def test_tf32_is_switched_in_both_libraries():
    try:
        run_setup.set_tf32_for_precision("tf32")
        assert run_setup.are_matmul_conv_tf32_enabled() == (True, True)
        run_setup.set_tf32_for_precision("bf16")
        assert run_setup.are_matmul_conv_tf32_enabled() == (False, False)
    finally:
        run_setup.set_tf32_for_precision("fp32")


def test_tf32_is_switched_in_a_torch_before_2_9(monkeypatch):
    matmul, cudnn = SimpleNamespace(allow_tf32=False), SimpleNamespace(allow_tf32=True)
    monkeypatch.setattr(run_setup, "get_tf32_switches", lambda: (matmul, cudnn))
    assert run_setup.are_matmul_conv_tf32_enabled() == (False, True)
    run_setup.set_tf32_for_precision("fp32")
    assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, False)


@pytest.mark.parametrize(("capability", "gaps"), [("7.0", 1), ("8.0", 0), ("10.0", 0)])
def test_tf32_on_a_gpu_without_it_is_a_gap(capability, gaps):
    device = Device(name="X", kind="gpu", compute_capability=capability)
    assert len(run_setup.explain_unsupported_tf32("tf32", device)) == gaps
    assert run_setup.explain_unsupported_tf32("fp32", device) == []


def test_the_reason_torch_gives_for_having_no_gpu_is_passed_on(monkeypatch):
    def is_available():
        warnings.warn(
            "CUDA initialization: the driver is too old. Please update (Triggered at x)",
            stacklevel=1,
        )
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.version, "cuda", "12.1")
    with pytest.raises(RuntimeError, match=r"the driver is too old\. Set `device` to cpu"):
        run_setup.raise_if_device_unavailable("cuda")


def test_loss_scaling_is_for_fp16_alone():
    enabled: dict[str, Any] = {
        kind: run_setup.make_loss_scaler(kind, "cpu").is_enabled() for kind in ("fp32", "fp16")
    }
    assert enabled == {"fp32": False, "fp16": True}
