"""Memory of a run from several hands, and the straight line through measured peaks: by hand."""

from perfctl.orchestrator.ledger.usage.readings import (
    MemoryFit,
    MemoryUse,
    collect_memory_use,
    extrapolate_largest_fitting_batch,
)
from perfctl.records.paper import LayerCall
from perfctl.records.report import Device, MemoryFigure, Sample
from tests.make.synthetic import make_run
from tests.make.tables import table


def reading(device, used, own=None, total=None):
    return Sample(0, 0.5, used, total, None, None, None, device, process_memory_bytes=own)


def host(resident):
    return Sample(0, None, None, None, None, None, None, host_memory_bytes=resident)


def layer(direction, parameters, written):
    return LayerCall("a", "A", direction, 1, 2, parameters, 0, written, 0, "")


def peak(kind, bytes):
    return MemoryFigure("peak", kind, bytes)


GPU = Device("Some GPU", "gpu", index=1, memory_bytes=999)


def test_every_figure_is_the_highest_of_its_own_device():
    run = make_run(
        device=GPU,
        samples=[
            reading(0, 900, 800, 1000),
            reading(1, 50, 30, 640),
            reading(1, 70, 20, 640),
            host(11),
            host(13),
        ],
        memory=(
            peak("allocated", 40),
            peak("reserved", 44),
            MemoryFigure("after", "allocated", 5),
            peak("host_resident", 99),
        ),
        layer_calls=(
            layer("forward", 10, 100),
            layer("forward", 5, 7),
            layer("grad_input", 1000, 1000),
        ),
    )
    assert collect_memory_use(run) == MemoryUse(
        run,
        weights=60,
        outputs=107,
        allocated=40,
        reserved=44,
        process=30,
        device=70,
        device_total=640,
        host=99,
        host_all=13,
    )


def test_what_is_not_known_is_none_and_never_0():
    empty = make_run(device=None)
    assert collect_memory_use(empty) == MemoryUse(empty, *[None] * 9)
    on_cpu = make_run(
        device=Device("EPYC", "cpu", memory_bytes=7),
        memory=(peak("host_resident", 99),),
    )
    assert (collect_memory_use(on_cpu).device_total, collect_memory_use(on_cpu).host) == (None, 99)


BEFORE, AFTER = (
    MemoryFigure(moment, "device_total", size) for moment, size in (("before", 500), ("after", 501))
)


@table(
    "figures samples total",
    [
        ((AFTER, BEFORE), [reading(1, 1, 1, 640)], 500),
        ((AFTER,), [reading(1, 1, 1, 640)], 501),
        ((), [reading(1, 1, 1, 640)], 640),
        ((), [], 999),
    ],
)
def test_the_devices_memory_is_torchs_figure_then_the_highest_reading_then_the_record(
    figures, samples, total
):
    run = make_run(device=GPU, memory=figures, samples=samples)
    assert collect_memory_use(run).device_total == total


def test_readings_of_other_devices_are_taken_where_there_are_no_others():
    run = make_run(device=GPU, samples=[reading(None, 8), reading(0, 9)])
    assert collect_memory_use(run).device == 9


def uses(*peaks, total=1000):
    figures = () if total is None else (MemoryFigure("before", "device_total", total),)
    return [
        collect_memory_use(
            make_run(
                device=None,
                batch_size=batch,
                memory=(*figures, peak("reserved", size)),
            )
        )
        for batch, size in peaks
    ]


@table(
    "peaks found",
    [
        (((1, 110), (2, 120), (4, 140)), MemoryFit(90, 1000, 100.0, 10.0, (1, 2, 4))),
        (((4, 140), (1, 110), (2, 120)), MemoryFit(90, 1000, 100.0, 10.0, (1, 2, 4))),
        (((1, 110), (2, 120)), None),  # two are always on a line
        (((1, 110), (2, 120), (2, 120)), None),
        (((1, 110), (2, 110), (4, 110)), None),  # does not grow
        (((1, 140), (2, 120), (4, 100)), None),
        (((1, 1101), (2, 1201), (4, 1401)), MemoryFit(0, 1000, 1001.0, 100.0, (1, 2, 4))),
        (((1, 0), (2, 10), (3, 20)), None),  # a peak of nothing is no peak
        # 100 lies 2 off its line: 2%
        (((1, 101), (2, 100), (3, 105)), MemoryFit(451, 1000, 98.0, 2.0, (1, 2, 3))),
        (((1, 100), (2, 99), (3, 104)), None),
    ],
)
def test_what_fits_is_where_the_line_meets_the_limit(peaks, found):
    assert extrapolate_largest_fitting_batch(uses(*peaks)) == found
    assert extrapolate_largest_fitting_batch(uses(*peaks, total=None)) is None
