"""Memory at any batch from two traces."""

import warnings
from dataclasses import replace

import pytest

from perfctl.orchestrator.estimate.memory import (
    MemoryLine,
    StepMemory,
    UnlikeTracesError,
    compute_batch_peak_bytes,
    find_largest_batch_by_lines,
    find_memory_peak,
    select_upper_envelope_lines,
)
from perfctl.orchestrator.predict.models.calculator import ModelCache
from perfctl.records.paper import MemoryTrace, TensorAllocation


def trace(batch, *storages, ends=9):
    """Storages as (fixed, bytes a sample, born, died)."""
    made = tuple(
        TensorAllocation(fixed + each * batch, "activation", born, died, "", "", "")
        for fixed, each, born, died in storages
    )
    return MemoryTrace(made, 3, 6, ends)


def test_the_peak_is_the_largest_of_the_moments_at_every_batch():
    storages = ((1000, 0, 0, None), (0, 30, 1, 4), (0, 12, 2, 5), (500, 0, 6, 8), (0, 1, 7, None))
    lines = StepMemory(trace(2, *storages), trace(3, *storages)).lines
    assert lines == (MemoryLine(1000, 42), MemoryLine(1500, 1))
    for batch in (1, 5, 12, 13, 400):
        assert (
            compute_batch_peak_bytes(lines, batch)
            == find_memory_peak(trace(batch, *storages)).bytes
            == max(1000 + 42 * batch, 1500 + batch)
        )


@pytest.mark.parametrize("life", [(1, 4), (6, 7)], ids=["earlier", "until backward's last moment"])
def test_the_optimizers_moments_stand_apart(life):
    storages = ((1000, 0, 0, None), (0, 30, *life), (500, 0, 7, 8))
    before, after = StepMemory(trace(2, *storages), trace(3, *storages)).lines_by_phase
    assert before == (MemoryLine(1000, 30),) and after == (MemoryLine(1500, 0),)


def test_the_largest_batch_that_fits_fills_the_limit_and_one_more_does_not():
    lines = (MemoryLine(1000, 42), MemoryLine(1500, 1))
    for limit in (1600, 5200, 99_999):
        batch = find_largest_batch_by_lines(lines, limit)
        assert batch is not None and compute_batch_peak_bytes(
            lines, batch
        ) <= limit < compute_batch_peak_bytes(lines, batch + 1)
    assert find_largest_batch_by_lines(lines, 1499) == 0, "not even the parameters fit"
    assert (
        find_largest_batch_by_lines((MemoryLine(100, 0),), 200) is None
        and find_largest_batch_by_lines((MemoryLine(100, 0),), 50) == 0
    )


def test_only_lines_that_are_on_top_somewhere_or_may_be_are_kept():
    assert select_upper_envelope_lines(
        [MemoryLine(5, 1), MemoryLine(4, 1), MemoryLine(5, 0), MemoryLine(9, 0), MemoryLine(5, 1)]
    ) == (
        MemoryLine(5, 1),
        MemoryLine(9, 0),
    )


def test_steps_that_differ_in_more_than_size_have_no_lines():
    one = trace(2, (0, 30, 1, 4))
    with pytest.raises(UnlikeTracesError, match="different tensors"):
        StepMemory(one, trace(3, (0, 30, 1, 4), (0, 1, 2, 3)))
    with pytest.raises(UnlikeTracesError, match="lifetime of a tensor"):
        StepMemory(one, trace(3, (0, 30, 1, 5)))
    for cut in (
        (replace(one, whole=False), trace(3, (0, 30, 1, 4))),
        (one, replace(trace(3, (0, 30, 1, 4)), whole=False)),
    ):
        with pytest.raises(UnlikeTracesError, match="different tensors"):
            StepMemory(*cut)


def traced(model, optimizer, batch, precision="fp32"):
    pytest.importorskip("torch")
    from perfctl.orchestrator.estimate.request import Request
    from perfctl.orchestrator.estimate.session import Session

    with warnings.catch_warnings():
        # CUDA builds of torch say in the first backward that there is no driver
        warnings.simplefilter("ignore")
        session = Session(Request(model, optimizer=optimizer, memory=True, precision=precision))
        return session.estimate_batch(batch)


def test_lines_from_batches_2_and_3_are_the_traced_peak_at_others():
    small, more = (traced("mnist_cnn", "adadelta", batch).memory_trace for batch in (2, 3))
    lines = StepMemory(small, more).lines
    for batch in (1, 64):
        assert (
            compute_batch_peak_bytes(lines, batch)
            == traced("mnist_cnn", "adadelta", batch).memory.peak.bytes
        )


def test_a_model_that_was_traced_with_adam_has_its_lines_for_the_other_optimizers():
    pytest.importorskip("torchvision")
    from perfctl.orchestrator.commands.calculator import load_or_trace_models

    ((found,), left_out) = load_or_trace_models(
        ("squeezenet1_1",), lambda *said: None, ModelCache()
    )
    assert left_out == () and found.lines is not None
    for precision, optimizer in (
        ("fp32", "sgd"),
        ("fp32", "momentum"),
        ("fp32", "adam"),
        ("fp16", "momentum"),
    ):
        small, more = (
            traced("torchvision:squeezenet1_1", optimizer, batch, precision).memory_trace
            for batch in (2, 3)
        )
        for batch in (1, 2, 32, 500):
            expected = compute_batch_peak_bytes(StepMemory(small, more).lines, batch)
            assert compute_batch_peak_bytes(found.lines[precision][optimizer], batch) == expected, (
                precision,
                optimizer,
                batch,
            )
