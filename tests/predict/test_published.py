"""The fit that ships: rules that hold on every device, in every precision, for several networks,
and what is said about it."""

from dataclasses import replace
from itertools import permutations

import pytest

from perfctl.orchestrator.counts.hardware.machines import Machine, find_device, parse_device_spec
from perfctl.orchestrator.predict import published
from perfctl.orchestrator.predict.predict import PRECISIONS, predict_from_best_source
from perfctl.orchestrator.predict.published import (
    get_product_depthwise_and_byte_peaks,
    list_board_table_machines,
)
from perfctl.orchestrator.report.predict import describe_host_launch_bound
from tests.make.steps import plan_step
from tests.sample import sample

FIT = published.load_shipped_fit("gpu")
BATCHES = (1, 7, 64, 513)
RESNET50 = "resnet:depth=50,image=224,classes=1000"
SPECS = ("mlp", RESNET50, "vgg:image=64", "inception")


def seconds(one, machine, fit=FIT):
    """None where the machine cannot compute in the precision."""
    try:
        return published.predict_step_by_published_fit(fit, one, machine).seconds
    except ValueError:
        return None


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("spec", sample(SPECS, 3))
def test_a_device_is_never_slower_than_one_whose_peaks_are_all_lower(spec, training):
    compared = 0
    for precision in PRECISIONS:
        one = plan_step(spec, precision, training=training)
        known = {
            machine.name: (get_product_depthwise_and_byte_peaks(machine, precision), found)
            for machine in list_board_table_machines()
            if (found := seconds(one, machine)) is not None
        }
        for (fast, (high, less)), (slow, (low, more)) in permutations(known.items(), 2):
            if all(a >= b for a, b in zip(high, low, strict=True)):
                compared += 1
                assert less <= more * (1 + 1e-12), f"{fast} is slower than {slow} in {precision}"
    assert compared > 1000


@pytest.mark.parametrize("spec", sample(SPECS, 3))
def test_tf32_is_at_least_as_fast_as_fp32_where_the_chip_has_it(spec):
    compared = 0
    for machine in sample(list_board_table_machines(), 5):
        for batch in BATCHES:
            for training in (True, False):
                fp32 = seconds(plan_step(spec, "fp32", batch, training=training), machine)
                tf32 = seconds(plan_step(spec, "tf32", batch, training=training), machine)
                if "tensor tf32" in machine.flops_per_second:
                    compared += 1
                    assert tf32 is not None and fp32 is not None and tf32 <= fp32 * (1 + 1e-12), (
                        machine.name
                    )
    assert compared > 50


@pytest.mark.parametrize("spec", sample(SPECS, 3))
def test_a_larger_batch_never_takes_less_time(spec):
    for machine in sample(list_board_table_machines(), 5):
        for precision in PRECISIONS:
            times = [seconds(plan_step(spec, precision, batch), machine) for batch in BATCHES]
            assert times == sorted(times, key=lambda one: one or 0.0), f"{machine.name} {precision}"


def test_a_step_of_few_samples_takes_what_the_host_needs_to_start_it():
    one = plan_step(RESNET50, "fp16", 1, training=False)
    found = published.predict_step_by_published_fit(FIT, one, find_device("H100 SXM5").machine)
    assert found.seconds == pytest.approx(FIT.host["i2"] * sum(work.calls for work in one.works))
    assert found.low < found.seconds < found.high


def test_the_costs_on_a_machine_give_the_time_that_is_predicted_there():
    one, machine = (
        plan_step(RESNET50, "fp16", 256),
        find_device("V100 SXM2").machine,
    )
    found = predict_from_best_source(one, machine, (), (), FIT)
    assert found.way == "published"
    assert sum(found.phases.values()) == pytest.approx(found.seconds)
    assert sum(share.seconds for share in found.shares) == pytest.approx(found.seconds)
    # backward has two products for one in forward
    assert 0.15 < found.phases["forward"] / found.seconds < 0.45


def test_what_nobody_published_is_said_and_has_a_wider_range():
    one = plan_step(RESNET50, "fp16")
    known, new = (
        predict_from_best_source(one, find_device(name).machine, (), (), FIT)
        for name in ("RTX 3090", "B200")
    )
    assert known.outside == ()
    assert known.coverage == published.COVERED
    assert new.coverage is None
    assert "the fit has no measurements of B200" in new.outside
    assert any("1000 W is outside" in said for said in new.outside)
    assert new.high / new.seconds > known.high / known.seconds


def test_the_nearest_measured_step_is_named():
    one = plan_step(RESNET50, "fp16")
    found = published.find_nearest_published_step(FIT, one, find_device("RTX 3090").machine)
    assert found is not None
    assert (found.device, found.regime) == ("RTX 3090", "tT")
    assert "resnet50" in found.model
    assert found.away < 0.05


def test_channels_last_is_its_own_figure_in_half_precision_and_said_to_be_unknown_in_fp32():
    machine = find_device("V100 SXM2").machine
    half, last = (plan_step("resnet", "fp16", channels_last=each) for each in (False, True))
    assert seconds(half, machine) != seconds(last, machine)
    plain = predict_from_best_source(
        plan_step("resnet", "fp32", channels_last=True), machine, (), (), FIT
    )
    assert (
        plain.seconds
        == predict_from_best_source(plan_step("resnet", "fp32"), machine, (), (), FIT).seconds
    )
    assert any(
        "the data for channels-last has half precision only" in said for said in plain.outside
    )


@pytest.mark.parametrize(
    ("more", "power", "process"),
    [("", None, None), (",sms=80,clock_mhz=1600,power_w=300,process_nm=8", 300.0, 8)],
)
def test_peaks_by_hand_are_predicted_without_sms_clock_and_power(more, power, process):
    spec = "name=X1,fp32_tflops=20,bandwidth_gbs=900,memory_gb=24,tensor_fp16_tflops=160"
    machine = parse_device_spec(spec + more).machine
    found = predict_from_best_source(plan_step("resnet", "fp16"), machine, (), (), FIT)
    assert found.floor < found.seconds
    assert 0 < found.low < found.seconds < found.high
    assert (machine.power_w, machine.process_nm) == (power, process)


def test_the_file_states_its_sources_and_stays_small():
    assert published.FILE.stat().st_size < 600_000
    for source in FIT.sources:
        assert {"name", "licence", "dates", "what"} <= source.keys()
        assert "not stated" not in source["licence"]
    assert all(cost >= 0 for costs in FIT.costs.values() for cost in costs.values())
    assert FIT.rows > 5000


def test_a_file_of_another_format_is_refused():
    with pytest.raises(ValueError, match="'other'"):
        published.parse_shipped_fit({"format": "other"})


def test_a_device_of_two_memory_sizes_has_one_factor():
    small, large = (find_device(f"V100 SXM2 {size} GB").machine for size in (16, 32))
    one = plan_step("vgg:image=64", "fp16")
    assert seconds(one, small) == seconds(one, large)
    free = replace(small, name="V100 of another maker")
    assert (
        published.scale_fit_to_machine(FIT, one, free).rates
        != published.scale_fit_to_machine(FIT, one, small).rates
    )


def test_a_step_is_the_longer_of_the_hosts_time_and_the_gpus_and_says_which_of_them_limits_it():
    for batch, waits in ((1, True), (256, False)):
        one = plan_step(RESNET50, "fp16", batch, training=False)
        found = predict_from_best_source(one, find_device("H100").machine, (), (), FIT)
        assert found.host is not None and found.gpu is not None
        assert found.seconds == max(found.host, found.gpu)
        assert found.host_limits is waits
        said = describe_host_launch_bound(found)
        assert (said is not None) == waits
        if said is not None:
            assert f"launching {sum(work.calls for work in one.works)} operations takes" in said
            assert "CUDA graphs or torch.compile" in said


CPU_FIT = published.load_shipped_fit("cpu")
OTHER_CPU = Machine("Desk CPU", "cpu", {"fp32": 4e11, "bf16": 4e11}, 4e10, 64e9, sms=16)
RESNET_ON_CPU = plan_step(RESNET50, batch=1, training=False)
"""timm measured 14.865 ms of it on the Core i9-10940X under torch.compile."""


def test_a_published_step_of_the_measured_cpu_is_inside_of_its_range_and_nothing_is_beyond_the_data():
    found = predict_from_best_source(
        replace(RESNET_ON_CPU, compiled=True), find_device("i9-10940X").machine, (), (), CPU_FIT
    )
    assert found.way == "published"
    assert found.low < 14.865e-3 < found.high
    assert (found.outside, found.coverage) == ((), 0.9)
    assert "one CPU, Core i9-10940X under torch.compile" in found.source
    assert "resnet50" in found.nearest


def test_each_way_in_which_a_step_on_a_cpu_is_unlike_the_measured_ones_is_said_and_squares_the_range():
    compiled, own = replace(RESNET_ON_CPU, compiled=True), find_device("Core i9-10940X").machine
    half = published.compute_device_interval_factor(CPU_FIT, compiled, own)
    for asked, machine, said in (
        (RESNET_ON_CPU, own, "eager mode is slower"),
        (compiled, OTHER_CPU, "the range for other CPUs is an assumption"),
        (replace(compiled, batch=8), own, "not 8"),
    ):
        (sentence,) = published.list_fit_extrapolations(CPU_FIT, asked, machine)
        assert said in sentence
        assert published.compute_device_interval_factor(CPU_FIT, asked, machine) == pytest.approx(
            half**2
        )
        assert predict_from_best_source(asked, machine, (), (), CPU_FIT).coverage is None


@pytest.mark.parametrize(
    ("step", "machine", "fit"),
    [
        (plan_step("resnet"), find_device("T4").machine, None),
        (plan_step("resnet"), OTHER_CPU, FIT),
        (RESNET_ON_CPU, OTHER_CPU, FIT),
        (RESNET_ON_CPU, find_device("T4").machine, CPU_FIT),
        (plan_step(RESNET50, batch=8), OTHER_CPU, CPU_FIT),
        (replace(RESNET_ON_CPU, precision="bf16"), OTHER_CPU, CPU_FIT),
    ],
    ids=[
        "no fit",
        "training on a CPU by the fit of GPUs",
        "inference on a CPU by the fit of GPUs",
        "a GPU by the fit of CPUs",
        "training by the fit of CPUs",
        "another precision by the fit of CPUs",
    ],
)
def test_a_fit_says_nothing_of_other_kinds_of_steps_and_devices(step, machine, fit):
    assert predict_from_best_source(step, machine, (), (), fit).way == "roofline"


def test_the_fits_of_cpus_and_of_gpus_share_no_device():
    assert not set(CPU_FIT.measured) & set(FIT.measured)
    assert all(
        published.load_shipped_fit(machine.kind) is FIT for machine in list_board_table_machines()
    )


@pytest.mark.parametrize("spec", sample(SPECS, 3))
def test_on_a_cpu_a_larger_batch_is_never_faster_and_a_faster_cpu_never_slower(spec):
    one = plan_step(spec, training=False)
    fast = replace(OTHER_CPU, flops_per_second={"fp32": 8e11}, bytes_per_second=6e10)
    found = [
        published.predict_step_by_published_fit(
            CPU_FIT, replace(one, batch=batch), OTHER_CPU
        ).seconds
        for batch in BATCHES
    ]
    assert found == sorted(found)
    assert (
        published.predict_step_by_published_fit(CPU_FIT, one, fast).seconds
        < published.predict_step_by_published_fit(CPU_FIT, one, OTHER_CPU).seconds
    )
