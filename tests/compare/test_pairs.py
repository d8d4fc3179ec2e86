"""Which runs stand against which: equal studies first, then those that differ least; the rest
is named."""

from dataclasses import replace

from perfctl.orchestrator.compare.sides import (
    align_runs_of_sides,
    list_shared_profilers,
    select_newest_repeats_by_profiler,
)
from perfctl.records.run import make_parameter
from tests.make.synthetic import foreign_run, make_run
from tests.make.tables import table


def runs(*changes):
    return [
        make_run(number, **{"batch_size": 16, **change}) for number, change in enumerate(changes, 1)
    ]


def paired(a, b):
    return [
        ([run.id for run in one.a], [run.id for run in one.b])
        for one in align_runs_of_sides(a, b).opposed
    ]


def test_equal_studies_are_paired_before_any_other_and_stand_in_the_order_of_a():
    a = runs({"precision": "bf16"}, {"precision": "fp32"}, {"precision": "fp16"})
    b = runs({"precision": "tf32"}, {"precision": "fp16"}, {"precision": "fp32"})
    assert paired(a, b) == [([1], [1]), ([2], [3]), ([3], [2])]
    assert [one.heading for one in align_runs_of_sides(a, b).opposed] == [
        f"mnist_cnn, training, {one}" for one in ("bf16", "fp32", "fp16")
    ]


@table(
    "first second chosen",
    [
        # 2 facts differ, 1 differs
        ({"precision": "bf16", "mode": "infer"}, {"precision": "bf16"}, 2),
        ({"precision": "bf16", "variant": "x=1"}, {"variant": "x=1"}, 2),
        ({"precision": "bf16", "device": None}, {"device": None}, 2),
        ({"precision": "bf16"}, {"mode": "infer"}, 1),  # alike: the earlier one
        (
            {"precision": "bf16", "batch_size": 32},
            {"mode": "infer"},
            2,
        ),  # no batch size in common counts for half a fact
        ({"precision": "bf16", "batch_size": 32}, {"mode": "infer", "precision": "bf16"}, 1),
    ],
)
def test_of_two_that_differ_the_one_that_differs_least_is_taken(first, second, chosen):
    found = align_runs_of_sides(runs({}), runs(first, second))
    assert [one.b[0].id for one in found.opposed] == [chosen]
    assert found.only_a == ()
    assert len(found.only_b) == 1


def test_another_workload_is_no_pair_and_both_are_named():
    found = align_runs_of_sides(runs({}), runs({"workload": "resnet18", "mode": "infer"}))
    assert found.opposed == ()
    assert (found.only_a, found.only_b) == (
        ("mnist_cnn, training, fp32",),
        ("resnet18, inference, fp32",),
    )


def test_one_batch_size_each_is_a_pair_whatever_they_are():
    found = align_runs_of_sides(runs({}), runs({"batch_size": 32}))
    assert [(one.a[0].batch_size, one.b[0].batch_size) for one in found.opposed] == [(16, 32)]
    assert (found.only_a, found.only_b, found.failed) == ((), (), ())


def test_of_several_batch_sizes_the_common_ones_are_pairs_and_the_others_are_named():
    a = runs({"batch_size": 64}, {"batch_size": 16}, {"batch_size": 32})
    b = runs({"batch_size": 128}, {"batch_size": 64}, {"batch_size": 16})
    assert paired(a, b) == [([2], [3]), ([1], [2])]
    found = align_runs_of_sides(a, b)
    assert found.only_a == ("mnist_cnn, training, fp32, batch 32",)
    assert found.only_b == ("mnist_cnn, training, fp32, batch 128",)
    assert paired(a[:1], b) == [([1], [2])]
    assert align_runs_of_sides(a[:1], b).only_b == tuple(
        f"mnist_cnn, training, fp32, batch {size}" for size in (16, 128)
    )
    assert align_runs_of_sides(a[1:], b[:1]).opposed == (), (
        "several on one side, and none of them the other's"
    )
    assert len(align_runs_of_sides(a[1:], b[:1]).only_a) == 2


def test_what_b_tried_and_did_not_make_is_said_with_the_last_reason():
    a = runs({}, {"batch_size": 32}, {"batch_size": 64})
    b = runs(
        {},
        {"batch_size": 32, "status": "failed", "reason": "no GPU"},
        {"batch_size": 32, "status": "partial", "reason": "cut"},
        {"batch_size": 64, "status": "failed"},
    )
    found = align_runs_of_sides(a, b)
    assert found.failed == (
        "mnist_cnn, training, fp32, batch 32: partial in B: cut",
        "mnist_cnn, training, fp32, batch 64: failed in B: no reason was recorded",
    )
    assert (found.only_a, found.only_b) == ((), ())


def test_reports_made_elsewhere_are_pairs_where_one_tool_made_both():
    a, b = foreign_run(1), foreign_run(2)
    assert paired([a], [b]) == [([1], [2])]
    found = align_runs_of_sides([a], [foreign_run(2, profiler="torch")])
    assert (found.opposed, found.only_a, found.only_b) == (
        (),
        ("foreign1.sqlite",),
        ("foreign2.sqlite",),
    )


def test_repeats_are_the_whole_runs_of_the_newest_sweep_that_has_any():
    made = runs(
        {"sweep_id": 1},
        {"sweep_id": 2},
        {"sweep_id": 2},
        {"sweep_id": 3, "status": "failed"},
        {"sweep_id": 1, "profiler": "nsys"},
        {"sweep_id": 3, "profiler": "ncu", "status": "partial"},
    )
    found = select_newest_repeats_by_profiler(made)
    assert {profiler: [run.id for run in kept] for profiler, kept in found.items()} == {
        "torch": [2, 3],
        "nsys": [5],
    }
    assert paired(made, made) == [([5, 2, 3], [5, 2, 3])]


def test_common_profilers_stand_in_the_order_in_which_times_are_taken_from_them():
    order = ("nsys", "torch", "dcgm", "dlprof", "none", "nvprof", "ncu")
    every = runs(*({"profiler": name} for name in sorted(order)))
    assert list_shared_profilers(every, every[::-1]) == order
    assert list_shared_profilers(every[:3], every[2:]) == (every[2].profiler,)
    assert list_shared_profilers(every[:2], every[2:]) == ()


def test_sweeps_over_other_parameters_are_paired_by_their_values():
    def sized(*values):
        return [
            replace(run, variant=value, parameters=(make_parameter("N", value),))
            for run, value in zip(runs(*[{"batch_size": None}] * len(values)), values, strict=True)
        ]

    found = align_runs_of_sides(sized("256", "512"), sized("512", "1024", "256"))
    assert [(one.a[0].point, one.b[0].point) for one in found.opposed] == [
        ("N=256", "N=256"),
        ("N=512", "N=512"),
    ]
    assert found.only_b == ("mnist_cnn, training, fp32, N=1024",)
