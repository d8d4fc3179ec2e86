"""Batches and samples of a step: expected from what each step is given."""

import pytest

torch = pytest.importorskip("torch")

from perfctl.workloads.run.record import WorkloadRecord  # noqa: E402
from perfctl.workloads.script.counting import SampleCounter  # noqa: E402
from perfctl.workloads.script.facts import ScriptFacts  # noqa: E402


def stated(samples, asked):
    record = WorkloadRecord("x.py", asked, None, None, None)
    samples.fill_record(record)
    return {one.name: one.value for one in record.summaries}, [gap.quantity for gap in record.gaps]


def train(samples, given, passes, steps=3, optimizers=1):
    """``given``: for each step the inputs of its calls."""
    for step in range(steps):
        for x in given[step % len(given)]:
            samples.count_model_call([x], grad_enabled=True)
        for _ in range(passes):
            samples.count_backward_pass()
        samples.finish_step(True, optimizers)


@pytest.mark.parametrize(
    ("calls", "passes", "optimizers", "asked", "found", "unknown"),
    [
        *((3, 3, 1, asked, (24.0, 3.0), []) for asked in (8, 3 * 8, None)),
        (2, 2, 1, 5, (None, 2.0), ["samples_per_step"]),  # 5 is neither 8 nor 16
        # one batch a step: alone, as a pair, with two losses, of two optimizers
        *((*each, 8, (), []) for each in ((1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 1, 2))),
    ],
)
def test_accumulated_batches_are_one_step_whichever_of_them_the_batch_size_means(
    calls, passes, optimizers, asked, found, unknown
):
    samples, given = SampleCounter(), [[torch.ones(8, 4) for _ in range(calls)] for _ in range(3)]
    train(samples, given, passes, optimizers=optimizers)
    names = ("samples_per_step", "batches_per_step")[: len(found)]
    assert stated(samples, asked) == (dict(zip(names, found, strict=True)), unknown)


def test_one_tensor_given_twice_in_a_step_is_one_batch_unless_every_step_has_the_same():
    samples, steps = SampleCounter(), [torch.ones(8, 4) for _ in range(3)]
    train(samples, [[x, x] for x in steps], passes=2)
    assert stated(samples, 8) == ({}, [])
    samples, same = SampleCounter(), torch.ones(8, 4)
    samples.count_model_call([same], grad_enabled=True)
    samples.finish_step(False, 1)
    train(samples, [[same, same]], passes=2)
    assert stated(samples, 8)[0] == {"samples_per_step": 16.0, "batches_per_step": 2.0}


def test_a_shorter_last_batch_lowers_the_mean():
    samples = SampleCounter()
    train(samples, [[torch.ones(8, 4), torch.ones(size, 4)] for size in (8, 8, 2)], passes=2)
    assert stated(samples, None)[0] == {
        "samples_per_step": (16 + 16 + 10) / 3,
        "batches_per_step": 2.0,
    }


@pytest.mark.parametrize(
    ("shape", "requested", "samples", "stated_shape"),
    [
        ((64, 32), 64, {}, None),
        ((64, 32), 48, {"samples_per_step": 64.0}, "64x32"),
        ((64, 32), 128, {"samples_per_step": 64.0}, "64x32"),
        ((64, 32), 16, {"samples_per_step": None}, "64x32"),  # 4 rows of each, or not used
        ((35, 16, 8), 16, {}, "35x16x8"),
    ],
)
def test_the_samples_of_a_step_are_those_that_the_model_received(
    shape, requested, samples, stated_shape
):
    facts, record = ScriptFacts(), WorkloadRecord("x.py", requested, None, None, None)
    facts.observe_model_call(torch.nn.Linear(shape[-1], 2), (shape,), 0)
    facts.fill_record(record)
    assert {summary.name: summary.value for summary in record.summaries} == samples
    assert record.environment.get("input_shape") == stated_shape
    reasons = [gap.quantity for gap in record.gaps if gap.quantity == "batch_size"]
    assert reasons == ([] if stated_shape is None else ["batch_size"])


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("batches", [1, 2])
def test_a_closure_that_is_called_three_times_computes_the_same_batches(batches, is_new):
    """As LBFGS does, also if all steps have the same data."""
    samples, data = SampleCounter(), [torch.ones(8, 4) for _ in range(batches)]
    for _ in range(3):
        data = [torch.ones(8, 4) for _ in range(batches)] if is_new else data
        for x in data * 3:
            samples.count_model_call([x], grad_enabled=True)
            samples.count_backward_pass()
        samples.finish_step(True, 1, closure_calls=3)
    expected = {"samples_per_step": 16.0, "batches_per_step": 2.0} if batches == 2 else {}
    assert stated(samples, 8) == (expected, [])


@pytest.mark.parametrize(
    ("events", "found"),
    [
        # encoder and decoder, two batches, then both optimizers
        ("ed|ed|__", {"samples_per_step": 16.0, "batches_per_step": 2.0}),
        ("ed|__", {}),
        ("dgd|_d|_", {}),  # a GAN
        ("ab|_ab|_", {}),  # in turn, on the same batch
        ("a|c|__", {}),  # actor and critic
    ],
)
def test_several_optimizers_accumulate_only_if_all_models_are_called_in_each_pass(events, found):
    """A letter is a call of that model, | a backward pass, _ a step of an optimizer."""
    samples = SampleCounter()
    for _ in range(3):
        alive = []
        for event in events:
            if event == "|":
                samples.count_backward_pass()
            elif event == "_":
                samples.note_optimizer_step()
            else:
                alive.append(torch.ones(8, 4))
                samples.count_model_call(alive[-1:], grad_enabled=True, model=ord(event))
        samples.finish_step(True, 2)
    assert stated(samples, 8) == (found, [])
