"""From which batch size on a GPU is busy."""

from perfctl.orchestrator.ledger.usage.readings import find_busy_batch
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.records.report import Device, Kernel, Sample
from tests.make.synthetic import foreign_run, make_run
from tests.make.tables import table


def kernel(start, length, launch=0):
    return Kernel(
        launch, f"k{launch}", start_ns=start, duration_ns=length, stream=7, device_index=0
    )


def ways(batch, *spans):
    """Of a run whose kernels have these starts and lengths."""
    kernels = [kernel(start, length, launch=place) for place, (start, length) in enumerate(spans)]
    return RunUsage(foreign_run(batch or 1, batch_size=batch, ranges=[], kernels=kernels)).ways


def busy(batch, share):
    return ways(batch, (0, share * 1000 - 1), (999, 1))


SAMPLES = [Sample(at, 0.95, None, None, None, None, None, 0) for at in (0, 10)]
SAMPLED = RunUsage(make_run(batch_size=16, samples=SAMPLES, device=Device("a GPU", "gpu"))).ways


@table(
    "runs expected",
    {
        "no larger one falls below": (
            [busy(1, 0.2), busy(5, 0.95), busy(10, 0.5), busy(15, 0.9), busy(20, 0.97)],
            (15, True),
        ),
        "never": ([busy(1, 0.2), busy(5, 0.3)], (5, False)),
        "exactly nine tenths": ([busy(4, 0.9), busy(8, 0.9)], (4, True)),
        "just below": ([busy(4, 0.899), busy(8, 0.9)], (8, True)),
        "of repeats the first: idle": ([busy(8, 0.01), busy(8, 0.9)], (8, False)),
        "of repeats the first: busy": ([busy(8, 0.9), busy(8, 0.01)], (8, True)),
        "NVML where no kernel is known": ([SAMPLED], (16, True)),
        "kernels where any is known": ([SAMPLED, busy(4, 0.01)], (4, False)),
    },
)
def test_the_batch_size_from_which_the_gpu_is_busy(runs, expected):
    found = find_busy_batch(runs)
    assert found is not None and found[:2] == expected


def test_without_a_batch_size_or_kernels_it_is_not_known():
    assert find_busy_batch([ways(None, (0, 10))]) is None
    assert find_busy_batch([RunUsage(make_run()).ways]) is None
