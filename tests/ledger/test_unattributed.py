"""What the time is that no layer explains: each cause from a run made for it."""

from perfctl.orchestrator.ledger.analysis import analyse_study
from perfctl.orchestrator.ledger.ledger import build_ledger
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.orchestrator.ledger.unattributed import (
    AROUND_MODEL,
    BETWEEN,
    COMPILED_CODE,
    NO_BACKWARD,
    NO_CALL,
    NO_RANGES,
    explain_unattributed_time,
    list_reasons_for_untimed_kernels,
)
from perfctl.orchestrator.report.findings import list_findings
from perfctl.records.report import Gap, Kernel, Range
from tests.make import synthetic
from tests.make.synthetic import make_run, study_of
from tests.make.tables import table


def kernel(launch, duration, inside=None, name="k", **more):
    return Kernel(
        launch,
        name,
        range_number=inside,
        start_ns=launch,
        duration_ns=duration,
        **{"step": 0, **more},
    )


def span(number, name, parent=None, duration=100, **more):
    return Range(
        number, name, None, number, duration, 1, 0 if parent is None else 1, parent, step=0, **more
    )


def gpu(kernels, ranges, **changes):
    return make_run(
        1,
        profiler="nsys",
        device=synthetic.V100,
        kernels=kernels,
        ranges=ranges,
        layer_calls=synthetic.layer_calls(64),
        **changes,
    )


def explain(run):
    return [
        (cause.text, cause.share, cause.launches)
        for cause in explain_unattributed_time(PreparedRun(run))
    ]


DATA = "data loading and copies to the device"


STEP = span(0, "perfctl:step:0")
FORWARD = span(1, "perfctl:phase:forward", 0, phase="forward")
BACKWARD = span(2, "perfctl:phase:backward", 0, phase="backward")
CONV = span(3, "conv1:forward", 1, layer="conv1", direction="forward", phase="forward")
GRADIENT = span(4, "conv1:backward", layer="conv1", direction="backward", phase="backward")
IN_CONV = {"layer": "conv1", "direction": "forward", "layer_source": "range"}


def shares(run):
    return {text: share for text, share, _ in explain(run)}


def test_compiled_code_is_told_by_its_range_or_its_kernels():
    compiled = span(5, "Torch-Compiled Region: 0/0", 1, phase="forward")
    kernels = [
        kernel(0, 50, 3, **IN_CONV),
        kernel(1, 30, 5),
        kernel(2, 20, 1, "triton_poi_fused_relu_0"),
    ]
    found = shares(gpu(kernels, [STEP, FORWARD, CONV, GRADIENT, compiled]))
    assert found == {COMPILED_CODE: 1}


def test_graphs_without_kernels_are_not_in_the_time():
    reason = "CUDA graphs were recorded as a whole: record with --cuda-graph-trace=node"
    gap = Gap("kernel", "not_collected", reason)
    run = gpu([SEEN], [STEP, FORWARD, CONV], gaps=(gap,))
    assert explain(run) == []
    (graph,) = list_reasons_for_untimed_kernels(run)
    assert "--cuda-graph-trace=node" in graph


@table("loose said", [(4, False), (20, True)])
def test_the_page_speaks_of_it_above_a_twentieth(loose, said):
    kernels = [kernel(0, 96, 3, **IN_CONV), kernel(1, loose, 1)]
    study = study_of(gpu(kernels, [STEP, FORWARD, BACKWARD, CONV, GRADIENT]))
    texts = [
        item.text
        for item in list_findings(analyse_study(study))
        if "is not attributed to a layer" in item.text
    ]
    assert len(texts) == said
    for text in texts:
        share = f"{loose / (96 + loose) * 100:.1f}%"
        assert text.startswith(f"{share} of the kernel time of all steps at batch 64")
        assert f": mostly the loss and functional calls ({share}, 1 launch)." in text


def test_a_run_of_which_no_kernel_has_a_layer_still_has_its_row_of_unattributed_time():
    study = study_of(gpu([kernel(0, 10), kernel(1, 30)], [STEP]))
    (item,) = build_ledger(study).unattributed
    assert (item.share, item.time.median) == (1, 40)


def test_a_run_whose_kernels_took_no_time_at_all_has_no_share_to_state():
    found = build_ledger(study_of(gpu([kernel(0, 0), kernel(1, 0, 3, **IN_CONV)], [STEP, CONV])))
    assert found.unattributed == ()
    assert {row.share for row in found.rows} == {None}


@table(
    "phase cause",
    [
        ("data", DATA),
        ("copy", "copies to the device"),
        ("zero_grad", "setting gradients to zero"),
        ("forward", "the loss and functional calls"),
        ("inference", "functional calls"),
        ("backward", "autograd"),
        ("logging", "the phase logging"),
    ],
)
def test_each_phase_is_named_on_either_clock(phase, cause):
    around = span(1, f"perfctl:phase:{phase}", 0, 60, phase=phase)
    ranges = [STEP, around, CONV._replace(parent=0), GRADIENT, span(7, "aten::relu", 1)]
    assert explain(gpu([kernel(0, 50, 3, **IN_CONV), kernel(1, 30, 7)], ranges)) == [(cause, 1, 1)]
    layer = span(3, "conv1:forward", 1, 25, layer="conv1", direction="forward")
    # 100 of the step, 60 of the phase, 25 of a layer in it.
    assert explain(make_run(ranges=[STEP, around, layer])) == [
        (
            AROUND_MODEL if phase in ("forward", "inference") else BETWEEN,
            (100 - 60) / (100 - 25),
            None,
        ),
        (cause, (60 - 25) / (100 - 25), None),
    ]


def test_the_largest_cause_is_first_and_each_has_its_launches():
    kernels = [
        kernel(0, 50, 3, **IN_CONV),
        kernel(1, 10, 0),
        kernel(2, 20, 2),
        kernel(3, 25, 2),
        kernel(4, 15),
        kernel(5, 99, 2, step=None),
        kernel(6, 0, 1),
        kernel(7, 5, 2)._replace(duration_ns=None),
    ]
    ranges = [STEP, FORWARD, BACKWARD, CONV, GRADIENT]
    assert explain(gpu(kernels, ranges)) == [
        ("autograd", (20 + 25) / 70, 2),
        (NO_CALL, 15 / 70, 1),
        (BETWEEN, 10 / 70, 1),
    ]
    inference = [STEP, span(1, "perfctl:phase:inference", 0, phase="inference"), CONV]
    assert explain(gpu(kernels[:2], inference)) == [(AROUND_MODEL, 1, 1)]
    unnumbered = [item._replace(step=None) for item in kernels[:3]]
    assert explain(gpu(unnumbered, ranges)) == [("autograd", 20 / 30, 1), (BETWEEN, 10 / 30, 1)], (
        "no launch states its step"
    )


OPTIMIZER = span(5, "perfctl:phase:optimizer", 0, phase="optimizer")
AGAIN = span(6, "conv1:recompute", 1, layer="conv1", direction="recompute")
OPT = span(7, "opt", 1, direction="optimizer")
COPYING = span(8, "perfctl:phase:copy", 0, phase="copy")
SEEN, LOOSE = kernel(0, 50, 3, **IN_CONV), kernel(1, 30)
OF_WEIGHT = kernel(2, 5, layer="conv1", direction="grad_weight", layer_source="range")


@table(
    "kernels ranges cause",
    {
        "an evaluation": ([SEEN, LOOSE], [], NO_CALL),
        "an optimizer's phase": ([SEEN, LOOSE], [OPTIMIZER], NO_BACKWARD),
        "a backward phase": ([SEEN, LOOSE], [BACKWARD], NO_BACKWARD),
        "and recomputation": ([SEEN, LOOSE], [OPTIMIZER, AGAIN], NO_BACKWARD),
        "and optimizer ranges": ([SEEN, LOOSE], [OPTIMIZER, OPT], NO_BACKWARD),
        "a backward range": ([SEEN, LOOSE], [OPTIMIZER, GRADIENT], NO_CALL),
        "a gradient's kernel": ([SEEN, LOOSE, OF_WEIGHT], [OPTIMIZER], NO_CALL),
        "in another phase": (
            [SEEN, kernel(1, 30, 8)],
            [OPTIMIZER, COPYING],
            "copies to the device",
        ),
        "in a range outside of steps": (
            [SEEN, kernel(1, 30, 9)],
            [GRADIENT, span(9, "warm-up")._replace(step=None)],
            NO_CALL,
        ),
    },
)
def test_backward_is_missed_only_where_something_was_trained_and_in_no_other_phase(
    kernels, ranges, cause
):
    assert shares(gpu(kernels, [STEP, FORWARD, CONV, *ranges])) == {cause: 1}


def test_without_a_layer_s_range_that_is_the_cause():
    ranges = [STEP, span(1, "opt", 0, direction="optimizer")]
    assert shares(gpu([kernel(1, 30, 1)], ranges)) == {NO_RANGES: 1}


def test_on_a_cpu_what_lies_outside_of_steps_in_layers_or_has_no_end_takes_no_time():
    layer = span(2, "Net:forward", 1, 500, layer="Net", direction="forward")
    ranges = [
        span(0, "perfctl:step:0", None, 1000),
        span(1, "perfctl:phase:forward", 0, 600, phase="forward"),
        layer,
        # within a layer: the layer's, and its own
        span(3, "perfctl:phase:data", 2, 40, phase="data"),
        span(4, "perfctl:phase:copy", 0, None, phase="copy"),
        span(5, "script's own", 0, 70),
        span(6, "perfctl:phase:zero_grad", 0, 300, phase="zero_grad")._replace(step=None),
        span(7, "perfctl:phase:optimizer", 0, 50, phase="optimizer"),
    ]

    def found(*ranges):
        return shares(make_run(ranges=list(ranges)))

    left = {
        "the loss and functional calls": 600 - 500,
        BETWEEN: 1000 - 600 - 300 - 50,
        DATA: 40,
    }
    assert found(*ranges) == {cause: ns / sum(left.values()) for cause, ns in left.items()}
    assert found(*ranges[:2]) == {}, "no layer at all: nothing is known to be outside of one"
    step = ranges[0]._replace(duration_ns=500)
    assert list(found(step, ranges[1], layer).values()) == [1], "no cause takes less than no time"
    assert found(step, layer._replace(parent=0)) == {}


def test_launches_outside_of_steps_are_said_only_beside_others_that_are_inside():
    inside, outside = kernel(0, 5), kernel(1, 5, step=None)
    assert list_reasons_for_untimed_kernels(gpu([inside, inside], [])) == ()
    assert list_reasons_for_untimed_kernels(gpu([outside, outside], [])) == ()
    assert list_reasons_for_untimed_kernels(gpu([inside, outside, outside], [])) == (
        "2 of 3 launches are outside of all measured steps and not included",
    )
    gaps = (Gap("kernel", "not_collected", "no reason"), Gap("memory", "not_collected", "a graph"))
    assert list_reasons_for_untimed_kernels(gpu([inside], [], gaps=gaps)) == ()
