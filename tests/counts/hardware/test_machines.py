"""Machines from names, from peaks by hand, and from measured peaks."""

import pytest

from perfctl.orchestrator.counts.hardware import machines
from perfctl.orchestrator.counts.hardware.machines import (
    DeviceError,
    build_measured_device,
    find_device,
    format_machine_name,
    parse_device_spec,
    parse_machine_name_thread_count,
)
from tests.make.tables import table


def test_a_name_that_means_one_board_gives_its_peaks_and_no_note():
    device = find_device("Tesla T4")
    machine = device.machine
    assert (machine.name, machine.kind, machine.sms) == ("T4", "gpu", 40)
    assert machine.flops_per_second["fp32"] == 40 * 128 * 1590e6  # SMs x FLOPs a cycle x clock
    assert machine.bytes_per_second == 320e9
    assert machine.memory_bytes == 15_360 * 2**20, "as nvidia-smi prints it"
    assert (device.note, device.power_w, machine.clock_hz) == (None, 70, 1_590_000_000)


@table(
    "name expected_bytes",
    {
        "sold as 80 GB": ("H100 SXM5", 81_559 * 2**20),
        "one of two sizes": ("A100-SXM4-80GB", 81_920 * 2**20),
        "one of two sizes of one product": ("V100 SXM2 32 GB", 32_768 * 2**20),
        "no table shows it: 10^9 bytes per GB": ("GTX 1080", 8e9),
    },
)
def test_memory_is_the_total_of_nvidia_smi_where_it_is_known(name, expected_bytes):
    assert find_device(name).machine.memory_bytes == expected_bytes


def test_an_unknown_name_offers_the_nearest_and_peaks_by_hand():
    with pytest.raises(DeviceError, match="'A10H' is not in the table") as caught:
        find_device("A10H")
    assert "A10," in caught.value.remedy
    assert "`device_spec`" in caught.value.remedy
    with pytest.raises(DeviceError) as caught:
        find_device("banana")
    assert caught.value.remedy.startswith("Give its peaks instead: `device_spec` name=")
    with pytest.raises(DeviceError, match="slice of a GPU"):
        find_device("NVIDIA A100-SXM4-40GB MIG 1g.5gb")


LINE = "name=X1,fp32_tflops={},bandwidth_gbs=900,memory_gb={}"
NO_NUMBER = "{} must be a number above 0, got {!r}"


@table(
    "text message",
    {
        "keys missing": ("name=X1,fp32_tflops=20", "bandwidth_gbs, memory_gb missing"),
        "no name": ("fp32_tflops=20,bandwidth_gbs=900,memory_gb=24", "name missing"),
        **{
            f"{value} as a peak": (LINE.format(value, 24), NO_NUMBER.format("fp32_tflops", value))
            for value in ("fast", "0", "inf", "nan")
        },
        "negative": (LINE.format(1, -24), NO_NUMBER.format("memory_gb", "-24")),
        "empty": (LINE.format("", 24), "fp32_tflops missing"),
        "two commas": ("name=X1,,fp32_tflops=1", "'' is not key=value"),
        "unknown key": ("name=X1,tflops=20", "'tflops' is not known"),
        "twice": ("name=X1,name=X2", "'name=X2' is given twice"),
        "no key": ("X1", "'X1' is not key=value"),
        "another kind": (f"kind=tpu,{LINE.format(1, 1)}", "kind is gpu or cpu, got 'tpu'"),
    },
)
def test_what_is_wrong_in_a_description_is_named(text, message):
    with pytest.raises(DeviceError) as caught:
        parse_device_spec(text)
    assert message in str(caught.value)


def test_measured_peaks_make_a_machine_of_a_cpu():
    record = {
        "device": "AMD EPYC",
        "kind": "cpu",
        "at": "2026-11-20T10:00:00Z",
        "threads": 2,
        "flops": {"fp32": 9e10},
        "bandwidth_bps": 2e10,
    }
    device = build_measured_device(record, 8_000)
    assert device.machine.name == "AMD EPYC, 2 threads"
    assert device.machine.sms == 2
    assert device.machine.memory_bytes == 8_000
    assert "2026-11-20" in device.source


def test_every_key_of_a_description_has_its_unit():
    machine = parse_device_spec(
        "name=X1,fp32_tflops=2,fp64_tflops=1,fp16_tflops=4,tensor_fp16_tflops=8,"
        "tensor_bf16_tflops=7,tensor_tf32_tflops=3,bandwidth_gbs=0.5,memory_gb=24,sms=12,"
        "clock_mhz=1500"
    ).machine
    assert machine.flops_per_second == {
        "fp32": 2e12,
        "fp64": 1e12,
        "fp16": 4e12,
        "tensor fp16": 8e12,
        "tensor bf16": 7e12,
        "tensor tf32": 3e12,
    }
    assert (machine.bytes_per_second, machine.memory_bytes) == (0.5e9, 24e9)
    assert (machine.sms, machine.clock_hz) == (12, 1.5e9)
    assert (machine.name, machine.kind) == ("X1", "gpu")


@table(
    "keys tensor_peaks",
    {
        "none": ("", {}),
        "bf16 follows fp16": (
            ", tensor_fp16_tflops=160",
            {"tensor fp16": 160e12, "tensor bf16": 160e12},
        ),
        "bf16 alone": (",tensor_bf16_tflops=8", {"tensor bf16": 8e12}),
    },
)
def test_no_tensor_peak_is_made_up_but_bf16_from_fp16(keys, tensor_peaks):
    device = parse_device_spec(f"{LINE.format(2, 1)}{keys}")
    assert device.machine.flops_per_second == {"fp32": 2e12} | tensor_peaks
    assert (device.machine.sms, device.machine.clock_hz, device.power_w) == (None, None, None)


@table("name", ["i9-10940X", "Core i9-10940X", "intel core I9 10940x"])
def test_the_cpu_that_was_measured_is_known_by_its_name_and_any_by_its_peaks(name):
    machine = find_device(name).machine
    assert (machine.name, machine.kind, machine.sms) == ("Core i9-10940X", "cpu", 14)
    # Two AVX-512 units of 16 fp32 lanes in each of 14 cores at 3.3 GHz; four channels of 2,933
    # million transfers of 8 bytes.
    assert machine.flops_per_second["fp32"] == pytest.approx(14 * 2 * 16 * 2 * 3.3e9)
    assert machine.bytes_per_second == pytest.approx(4 * 2933e6 * 8, rel=0.005)
    assert (
        parse_device_spec(
            "name=X1,kind=cpu,fp32_tflops=2,bandwidth_gbs=90,memory_gb=64"
        ).machine.kind
        == "cpu"
    )


def test_an_unknown_key_is_answered_with_all_known_ones_each_once():
    with pytest.raises(DeviceError) as caught:
        parse_device_spec("tflops=20")
    assert caught.value.remedy == (
        "Known: name, fp32_tflops, bandwidth_gbs, memory_gb, fp64_tflops, fp16_tflops, "
        "tensor_fp16_tflops, tensor_bf16_tflops, tensor_tf32_tflops, kind, sms, clock_mhz, "
        "power_w, process_nm"
    )


def test_a_gpu_is_called_after_its_board_where_the_name_means_one():
    assert [
        format_machine_name("NVIDIA A100-SXM4-40GB", "gpu"),
        format_machine_name("A100", "gpu"),
        format_machine_name("Some GPU", "gpu", 4),
        format_machine_name("AMD EPYC", "cpu"),
        format_machine_name("AMD EPYC", "cpu", 2),
        format_machine_name("AMD EPYC, Zen 4", "cpu", 1),
    ] == [
        "A100 SXM4 40 GB",
        "A100",
        "Some GPU",
        "AMD EPYC",
        "AMD EPYC, 2 threads",
        "AMD EPYC, Zen 4, 1 thread",
    ]


def test_measured_peaks_of_a_machine_without_threads_have_no_cores():
    record = {
        "device": "Tesla T4",
        "kind": "gpu",
        "at": "2026-11-20T10:00:00Z",
        "flops": {"fp32": 8},
        "bandwidth_bps": 3,
    }
    machine = build_measured_device(record).machine
    assert (machine.name, machine.kind, machine.sms, machine.memory_bytes) == (
        "T4",
        "gpu",
        None,
        None,
    )
    assert (machine.flops_per_second, machine.bytes_per_second) == ({"fp32": 8.0}, 3.0)


def test_the_others_of_a_name_are_all_boards_that_it_may_mean_but_the_one_taken():
    device = find_device("A100")
    assert device.note is not None and device.board is not None
    assert "using A100 SXM4 40 GB (the SXM variant if there is one" in device.note
    others = device.note.partition("others: ")[2].split(", ")
    meant = [board.name for board in machines.find_boards("A100")]
    assert len(meant) > 2 and sorted([*others, device.board.name]) == sorted(meant)
    assert device.source == f"published values of the {device.board.gpu.name}, dense"


@table(
    "name threads",
    {
        "twelve": ("AMD EPYC, 12 threads", 12),
        "one": ("AMD EPYC, 2 thread", 2),
        "more words": ("AMD EPYC, 2 threads more", None),
        "another name": ("AMD EPYC, Zen 4, 12 threads", None),
        "no number": ("AMD EPYC", None),
    },
)
def test_threads_of_a_machine_are_those_of_the_whole_name_alone(name, threads):
    assert parse_machine_name_thread_count("AMD EPYC", name) == threads
