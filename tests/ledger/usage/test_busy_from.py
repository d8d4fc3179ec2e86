"""From which batch size on a GPU is busy."""

from __future__ import annotations

from perfctl.orchestrator.ledger.usage.readings import BUSY, Ways, busy_from
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.records.report import Device, Kernel, Sample
from perfctl.records.run import Run
from tests.make import synthetic


def kernel(start: int, length: float, launch: int = 0) -> Kernel:
    return Kernel(
        launch, f"k{launch}", start_ns=start, duration_ns=length, stream=7, device_index=0
    )


def batch_of(runs: list[Ways], threshold: float = BUSY) -> tuple[int, bool]:
    """The batch size from which on the GPU is busy, and whether it is."""
    result = busy_from(runs, threshold)
    assert result is not None
    return result[:2]


def test_the_batch_size_from_which_the_gpu_is_busy() -> None:
    def run(batch: int, share: float) -> Ways:
        made: Run = synthetic.foreign_run(
            batch,
            batch_size=batch,
            ranges=[],
            kernels=[kernel(0, share * 1000 - 1), kernel(999, 1, launch=1)],
        )
        return RunUsage(made).ways

    assert batch_of([run(1, 0.2), run(5, 0.95), run(10, 0.5), run(15, 0.9), run(20, 0.97)]) == (
        15,
        True,
    )
    assert batch_of([run(1, 0.2), run(5, 0.3)]) == (5, False)
    assert busy_from([RunUsage(synthetic.make_run()).ways]) is None


def test_busy_is_from_nine_tenths_on_and_of_repeats_the_first_speaks() -> None:
    def run(batch: int | None, *spans: tuple[int, int]) -> Ways:
        kernels = [
            kernel(start, length, launch=place) for place, (start, length) in enumerate(spans)
        ]
        made: Run = synthetic.foreign_run(1, batch_size=batch, ranges=[], kernels=kernels)
        return RunUsage(made).ways

    idle_at, just = run(4, (0, 899), (999, 1)), run(8, (0, 899), (999, 1))
    assert batch_of([idle_at, just]) == (4, True)
    assert batch_of([run(4, (0, 898), (999, 1)), just]) == (8, True)
    assert batch_of([run(8, (0, 10), (999, 1)), just]) == (8, False)
    assert batch_of([just, run(8, (0, 10), (999, 1))]) == (8, True)
    assert batch_of([run(2, (0, 10)), run(4, (0, 10), (999, 1)), run(8, (0, 10))]) == (8, True), (
        "once more below"
    )
    assert busy_from([run(None, (0, 10))]) is None
    assert batch_of([run(4, (0, 80), (90, 10))], threshold=0.95) == (4, False)
    samples = [Sample(at, 0.95, None, None, None, None, None, 0) for at in (0, 10)]
    sampled = RunUsage(
        synthetic.make_run(batch_size=16, samples=samples, device=Device("a GPU", "gpu"))
    ).ways
    assert batch_of([sampled]) == (16, True), "NVML where no kernel is known"
    assert batch_of([sampled, run(4, (0, 10), (999, 1))]) == (4, False), (
        "kernels where any is known"
    )
