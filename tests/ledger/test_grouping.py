"""Which runs are one study, and what it is called."""

from dataclasses import replace

from perfctl.orchestrator.ledger.prepared import (
    format_study_heading,
    get_device_label,
    group_into_studies,
)
from perfctl.records.report import Device, Kernel
from perfctl.records.run import make_parameter
from tests.make import synthetic
from tests.make.synthetic import foreign_run, make_run, study_of


def test_whatever_makes_other_work_makes_another_study():
    plain = make_run()
    others = [
        replace(plain, **change)
        for change in (
            {"workload": "mlp"},
            {"mode": "infer"},
            {"precision": "bf16"},
            {"device": synthetic.V100},
            {"variant": "hidden=9"},
        )
    ]
    found = group_into_studies(
        [plain, *others, replace(plain, id=7, profiler="nsys", batch_size=8), replace(plain, id=3)]
    )
    assert [len(study.runs) for study in found] == [3, 1, 1, 1, 1, 1]
    assert [(run.batch_size, run.profiler, run.id) for run in found[0].runs] == [
        (8, "nsys", 7),
        (64, "torch", 1),
        (64, "torch", 3),
    ]
    assert [item.run.id for item in found[0].list_runs_at(64)] == [1, 3]
    assert not any(study.is_foreign for study in found)


def test_a_report_without_a_workload_or_a_batch_size_stands_alone():
    nameless, sizeless = (
        make_run(1, workload=None),
        make_run(2, batch_size=None),
    )
    found = group_into_studies([nameless, sizeless, sizeless])
    assert [(study.workload, study.batches, study.is_foreign) for study in found] == [
        (None, (64,), True),
        ("mnist_cnn", (), True),
        ("mnist_cnn", (), True),
    ]


def test_a_sweep_without_batch_sizes_is_read_side_by_side_by_its_parameters():
    def run_at(number, *values, sweep=1, batch=None):
        pairs = zip(("N", "how"), values, strict=False)
        return replace(
            make_run(number, batch_size=batch),
            sweep_id=sweep,
            variant=" ".join(values),
            parameters=tuple(make_parameter(*pair) for pair in pairs),
        )

    one = [run_at(1, "1024"), run_at(2, "256")]
    two = [run_at(3, "256", "a"), run_at(4, "256", "b")]
    of_batches = [run_at(6, "256", batch=8), run_at(7, "512", batch=8)]
    found = group_into_studies([*one, *two, run_at(5, "256", sweep=2), *of_batches])
    assert [(study.points, study.axis_name, study.is_foreign) for study in found] == [
        (("N=256", "N=1024"), "N", False),
        (("N=256, how=a", "N=256, how=b"), "N, how", False),
        (("N=256",), "N", False),
        ((8,), "batch", False),
        ((8,), "batch", False),
    ]
    assert [item.run.id for item in found[0].list_runs_at("N=256")] == [2]
    assert [batch.batch for batch in found[0].prepared_batches] == ["N=256", "N=1024"]


def test_a_run_that_failed_early_joins_no_study_that_it_contradicts():
    whole = make_run(1)
    early = {"status": "failed", "device": None, "precision": None, "batch_size": 256}
    changes = {
        "workload": "mlp",
        "mode": "infer",
        "variant": "hidden=9",
        "precision": "bf16",
        "device": synthetic.V100,
    }
    for change in changes.items():
        found = group_into_studies([make_run(2, **{**early, **dict([change])}), whole])
        assert [study.batches for study in found] == [(64,), (256,)], change
    for change in ({}, {"mode": None}, {"precision": "fp32"}, {"device": synthetic.CPU}):
        study = study_of(make_run(2, **{**early, **change}), whole)
        assert study.batches == (64, 256)
    late = make_run(2, **{**early, "status": "partial"})
    assert len(group_into_studies([late, whole])) == 2, "only a failed one may not know"
    assert len(group_into_studies([make_run(2, **early), foreign_run(3)])) == 2


def test_a_study_is_called_after_its_work_and_a_foreign_one_after_its_file():
    def named(**changes):
        return format_study_heading(group_into_studies([make_run(4, **changes)])[0])

    assert named() == "mnist_cnn, training, fp32"
    assert (
        named(mode="infer", variant="hidden=9", precision=None) == "mnist_cnn, hidden=9, inference"
    )
    assert named(mode="other") == "mnist_cnn, other, fp32"
    assert named(workload=None) == "report.json"
    assert named(workload=None, artifact=None) == "torch run 4"


def test_the_device_is_the_run_s_own_or_the_report_s_and_kernels_are_a_gpu_s():
    gpu, nameless = Device("a GPU", "gpu"), Device(None, "cpu")

    def told(**changes):
        run = make_run(**{"device": None, **changes})
        return get_device_label(run), run.device_kind

    assert told() == (None, None)
    assert told(devices=(nameless, gpu)) == ("cpu", "gpu")
    assert told(devices=(nameless,)) == ("cpu", "cpu")
    assert told(device=nameless, devices=(gpu,)) == ("cpu", "cpu")
    assert told(device=nameless, kernels=[Kernel(0, "k")]) == ("cpu", "gpu")
