"""The fit that ships, for tensors that lie channels-last, and under torch.compile."""

from dataclasses import replace

import pytest

from perfctl.orchestrator.counts.hardware.machines import Machine, find_device
from perfctl.orchestrator.predict import published, step_parts
from perfctl.orchestrator.predict.operations import StepSpec
from perfctl.orchestrator.predict.predict import predict_from_best_source
from tests.make.steps import plan_step
from tests.make.works import moving, product

FIT = published.load_shipped_fit("gpu")
RTX_3090 = find_device("RTX 3090").machine
BATCHES = (1, 7, 64, 513)


def grouped(width, groups, wider=1, kernel=9):
    """A 3x3 convolution of 28x28 maps: ``groups`` groups, each of ``width`` channels in and
    ``wider`` times as many out."""
    positions, depth, columns = 28 * 28, width * kernel, width * wider
    return product(
        "grouped_conv",
        positions,
        columns,
        depth,
        positions * width * groups,
        positions * columns * groups,
        groups * columns * depth,
        calls=4,
        groups=groups,
        kernel=kernel,
    )


def step(*works, batch=64, channels_last=False):
    return StepSpec("m", "resnet", works, batch, True, "fp16", "sgd", 1_000_000, channels_last)


def inference(spec, precision="fp16", **changes):
    return plan_step(spec, precision, training=False, **changes)


def seconds(one, machine=RTX_3090):
    return published.predict_device_step_seconds(FIT, one, machine)


@pytest.mark.parametrize(
    ("work", "unpacked"),
    [
        *(
            (grouped(width, groups), False)
            for width, groups in ((4, 32), (8, 16), (16, 8), (32, 8))
        ),
        (grouped(64, 32, kernel=1), False),
        *(
            (grouped(width, groups), True)
            for width, groups in ((64, 8), (56, 14), (128, 6), (16, 4))
        ),
        (grouped(8, 32, wider=2), True),
    ],
)
def test_groups_of_4_to_32_channels_have_a_kernel_for_channels_last_tensors_and_others_take_much_longer(
    work, unpacked
):
    assert step_parts.lacks_channels_last_kernel(work) is unpacked
    slower = seconds(step(work, channels_last=True)) / seconds(step(work))
    assert slower > 1.5 if unpacked else slower < 1.3


def test_single_channels_are_no_groups():
    assert not step_parts.lacks_channels_last_kernel(grouped(1, 64))


def test_what_linear_layers_write_has_no_channels_last_form():
    for one in (inference("mlp"), plan_step("mlp", "fp16")):
        assert seconds(replace(one, channels_last=True)) == seconds(one)


def test_a_gate_of_each_channel_takes_longer_than_its_bytes_alone():
    def gated(gate):
        return step(moving("elementwise", 1e6 + gate, 1e6, calls=100))

    assert seconds(gated(1e3)) > 1.2 * seconds(gated(0.0))


def test_a_larger_batch_never_takes_less_time_channels_last_or_compiled():
    layout = [
        step(grouped(64, 8), grouped(16, 8), batch=batch, channels_last=True) for batch in BATCHES
    ]
    compiled = [
        inference("resnet:depth=50,image=224", batch=batch, compiled=True) for batch in BATCHES
    ]
    for machine in published.list_board_table_machines():
        for cases in (layout, compiled):
            try:
                times = [
                    published.predict_step_by_published_fit(FIT, one, machine).seconds
                    for one in cases
                ]
            except ValueError:
                continue
            assert times == sorted(times), machine.name


def test_compiled_inference_is_faster_than_eager_and_its_range_is_no_narrower():
    for precision, device in (("fp16", "RTX 5090"), ("fp32", "T4"), ("tf32", "A100")):
        eager = inference("resnet:depth=50,image=224", precision=precision)
        machine = find_device(device).machine
        plain, fast = (
            published.predict_step_by_published_fit(FIT, replace(eager, compiled=each), machine)
            for each in (False, True)
        )
        assert fast.seconds < plain.seconds
        assert fast.high / fast.seconds >= plain.high / plain.seconds * (1 - 1e-12)
        assert any(
            "torch.compile" in said
            for said in published.list_fit_extrapolations(
                FIT, replace(eager, compiled=True), machine
            )
        )


def test_under_torch_compile_a_gpu_that_it_was_not_measured_on_has_a_wider_range_and_is_called_a_guess():
    def asked(device, precision):
        case = inference("resnet:depth=50,image=224", precision=precision, compiled=True)
        machine = find_device(device).machine
        return published.compute_device_interval_factor(FIT, case, machine), " ".join(
            published.list_fit_extrapolations(FIT, case, machine)
        )

    (own, sure), (other, unsure) = asked("RTX 5090", "fp16"), asked("RTX 4090", "fp16")
    assert other > own
    assert "guess" not in sure
    assert "its effect on this device is a guess" in unsure
    assert "guess" in asked("T4", "fp16")[1]  # measured there in fp32 only


def test_runs_of_the_store_are_not_taken_for_compiled_ones():
    one = inference("mlp", precision="fp32", compiled=True)
    found = predict_from_best_source(one, find_device("T4").machine, (), (), FIT)
    assert found.way == "published"
    assert any("eager mode" in reason for reason in found.why_not)


def test_compiled_training_and_compiled_work_on_a_cpu_in_half_precision_are_refused():
    cpu = Machine("Desk CPU", "cpu", {"fp32": 4e11, "bf16": 4e11}, 4e10, 64e9, sms=16)
    training = plan_step("mlp", compiled=True)
    with pytest.raises(ValueError, match="training on T4 under torch"):
        predict_from_best_source(training, find_device("T4").machine, (), (), FIT)
    with pytest.raises(ValueError, match="inference in bf16 on Desk CPU under torch"):
        predict_from_best_source(
            inference("mlp", precision="bf16", compiled=True),
            cpu,
            (),
            (),
            published.load_shipped_fit("cpu"),
        )
