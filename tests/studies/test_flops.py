"""The study of FLOPs: what its page says of records whose figures follow from the
network's dimensions."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from perfctl.orchestrator.commands import study as actions
from perfctl.orchestrator.errors import PartlyDone, UsageError
from perfctl.orchestrator.ingest import sweep as sweeps
from perfctl.orchestrator.launch.sweep.folders import SweepSetting
from perfctl.orchestrator.launch.sweep.request import RunResult
from perfctl.orchestrator.launch.sweep.study import list_study_sweeps, split_study_into_parts
from perfctl.orchestrator.ledger.network import group_workload_runs_into_networks
from perfctl.orchestrator.stored_runs import load_latest_runs_per_configuration
from perfctl.workloads.data import mnist
from perfctl.workloads.models import mnist_cnn
from perfctl.workloads.run import loop
from perfctl.workloads.spec import WorkloadOptions
from tests.studies.asking import ask, find_table

BATCH, EPOCHS = 4, 2
FIRST, SECOND = (32, 64, 3, 1), (32, 128, 5, 1)
HAND, VALUES = 141_557_760, 514_112
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mnist_v100_study"


def conv2_macs(shape, batch):
    """Multiply-adds of conv2 forward: its input is 26 x 26."""
    into, out, kernel, stride = shape
    width = (26 - kernel) // stride + 1
    return batch * out * width * width * into * kernel * kernel


def parameters_of(shape):
    """Of the whole network: conv1 1->32 k3, conv2, fc1 to 128, fc2 to 10."""
    into, out, kernel, stride = shape
    pooled = ((26 - kernel) // stride + 1) // 2
    return (
        32 * 9
        + 32
        + out * into * kernel**2
        + out
        + out * pooled * pooled * 128
        + 128
        + 128 * 10
        + 10
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Run folders of both shapes, as the sweep with a synchronised clock leaves them; few images,
    so that it takes a second."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mnist, "TRAIN_IMAGES", 8 * BATCH)
        patch.setattr(mnist, "TEST_IMAGES", 4 * BATCH)
        for name, shape in (("first", FIRST), ("second", SECOND)):
            place = folder / name / f"b{BATCH}"
            place.mkdir(parents=True)
            options = WorkloadOptions(
                BATCH,
                steps=2,
                warmup=1,
                layer_steps=2,
                epochs=EPOCHS,
                record=place / "workload.json",
            )
            loop.run_workload(mnist_cnn, options, argparse.Namespace(conv2=shape))
            record = {
                "perfctl_run": 1,
                "profiler": "none",
                "workload": "mnist_cnn",
                "batch_size": BATCH,
                "workload_arguments": [],
                "device": "cpu",
                "status": "ok",
                "exit_code": 0,
                "artifact": "workload.json",
                "artifact_bytes": 1,
                "origin": "measured",
                "reason": None,
                "started_at": None,
                "duration_ns": None,
                "commands": [],
            }
            (place / "run.json").write_text(json.dumps(record))
    return folder


@pytest.fixture(scope="module")
def both(recorded, tmp_path_factory):
    """The page of both shapes."""
    asked = ask("flops", tmp_path_factory.mktemp("study"), batch=BATCH, source=recorded)
    return actions.run_study(asked).page


def column(found, label, unit=None):
    """Full values of a column, empty where unknown."""
    (place,) = (
        at
        for at, one in enumerate(found.columns)
        if one.label == label and unit in (None, one.unit or one.base)
    )
    return [row[place].value for row in found.rows]


def test_both_shapes_stand_one_below_the_other_in_the_table_of_parameters(both):
    found = find_table(both, "Layers")
    networks, parameters = column(found, "network"), column(found, "parameters")
    for shape in (FIRST, SECOND):
        name = f"conv2 {','.join(map(str, shape))}"
        *each, total = (
            int(str(value))
            for network, value in zip(networks, parameters, strict=True)
            if network == name
        )
        assert total == parameters_of(shape) == sum(each)


def test_the_sheet_has_operations_values_and_bytes_of_both_shapes(both):
    found = find_table(both, "conv2 at batch 4: every quantity")
    forward, output = found.rows[:2], [row for row in found.rows if row[0].text == "output map"]
    assert [row[2].value for row in forward] == [
        conv2_macs(FIRST, BATCH),
        conv2_macs(SECOND, BATCH),
    ]
    assert [row[3].value for row in forward] == [
        2 * conv2_macs(FIRST, BATCH),
        2 * conv2_macs(SECOND, BATCH),
    ]
    assert [row[5].value for row in output] == [BATCH * 64 * 24 * 24, BATCH * 128 * 22 * 22]
    assert [row[6].value for row in output] == [4 * BATCH * 64 * 24 * 24, 4 * BATCH * 128 * 22 * 22]


def test_what_a_cpu_cannot_count_is_named_with_its_reason_and_never_0(both):
    found = find_table(both, "FLOPs of conv2")
    assert column(found, "conv2 estimated", "FLOP") == [
        2 * conv2_macs(shape, BATCH) for shape in (FIRST, SECOND)
    ]
    assert "conv2 executed" not in [one.label for one in found.columns]
    missing = dict(both.missing)
    assert "CPU" in missing["executed FLOPs of conv2"]
    assert {"derived FLOPs of conv2", "GPU memory", "time of conv2 under a profiler"} <= set(
        missing
    )


def test_the_clocks_table_has_the_layer_on_the_synchronised_clock(both):
    found = find_table(both, "Time of conv2")
    assert all(float(str(value)) > 0 for value in column(found, "forward, clock"))
    (stated,) = (finding.text for finding in both.findings if " takes " in finding.text)
    assert re.search(r"takes \S+ \S+ \(\S+ \S+ to \S+ \S+ in 2 steps\) on the synchron", stated)


def test_memory_has_three_moments_and_the_last_is_after_the_epochs(both):
    found = find_table(both, "Memory of one run")
    heads = [one.label for one in found.columns]
    assert heads[2:] == [
        "before loading",
        "after loading",
        "peak of the measured steps",
        "at the end",
    ]
    (chapter,) = (one for one in both.chapters if one.key == "memory")
    assert f"{EPOCHS} epochs and their tests" in chapter.facts[0]


def test_every_epoch_has_loss_and_accuracy(both):
    found = find_table(both, "Epochs")
    assert column(found, "epoch") == [
        number for number in range(1, EPOCHS + 1) for _ in (FIRST, SECOND)
    ]
    assert all(0 <= float(str(value)) <= 1 for value in column(found, "test accuracy"))


def test_a_finding_never_ends_within_a_reason(both):
    (finding,) = (one.text for one in both.findings if "no executed FLOPs" in one.text)
    assert finding.count("(") == finding.count(")")
    assert finding.endswith("there are no executed FLOPs.")


def test_the_published_counter_stands_beside_paper_and_what_its_launch_executed(tmp_path):
    asked = ask("flops", tmp_path, layer="conv2", source=EXAMPLE)
    actions.run_study(asked)
    (first, *_) = group_workload_runs_into_networks(
        load_latest_runs_per_configuration(tmp_path / "perfctl.db")
    )
    adds = 1000 * 64 * 24 * 24  # one per output of a test batch of 1,000
    for point in first.list_layer_points_by_batch("conv2"):
        assert point.estimated.value == 2 * conv2_macs(FIRST, point.batch)
        assert (point.loose.flops, point.loose.names) == (adds, ("FADD",))
        # FFMA, FMUL and FADD of the same launch
        assert point.loose.derived == 2 * 288 * adds + 2 * adds
        assert point.executed.value is None


def test_what_was_published_stands_as_it_was_published(tmp_path):
    asked = ask("flops", tmp_path, layer="conv2", source=EXAMPLE, hand=(f"conv2={HAND}",))
    study = actions.run_study(asked).page
    memory = {
        row[0].text: [cell.text for cell in row[1:]]
        for row in find_table(study, "Memory of one run").rows
    }
    assert memory["GPU, reserved by torch, as published"] == ["0.02 GB", "0.62 GB"]
    assert memory["GPU, allocated by torch, as published"][1] == "0.02 GB"
    assert [text.partition("(")[2] for text in memory["GPU, free"]] == [
        "38,554 MiB)",
        "37,876 MiB)",
    ]
    assert {"CPU memory", "GPU utilization"} <= {what for what, _ in study.missing}
    assert "GPU memory" not in dict(study.missing)
    host = find_table(study, "Time of conv2 by the CPU timer")
    assert {"0.1746", "0.1304"} <= {row[-1].text for row in host.rows}
    assert "synchronised" not in dict(study.properties)["measured by"]
    (causes,) = (one for one in study.chapters if one.key == "causes")
    assert {"other GPU", "more work in less time"} <= {
        row[2].text for table in causes.tables if table for row in table.rows
    }
    (asked_in_kib,) = (
        row for row in find_table(study, "Manual estimates").rows if row[2].text == "1,936 KiB"
    )
    assert (asked_in_kib[5].value, asked_in_kib[6].text) == (64 * 64 * 24 * 24 * 4, "B")
    (comparison,) = (one for one in study.chapters if one.key == "comparison")
    (chart,) = comparison.charts
    assert chart is not None
    assert "logarithmic axis" in chart.note


def test_a_clear_line_refuses_what_makes_no_sense(tmp_path):
    out = tmp_path / "study"
    for asked, words in (
        (ask("flops", out, hand=("conv2",)), "`hand`"),
        (ask("flops", out, hand=("conv2=1.5",)), "`hand`"),
        (ask("flops", out, hand=("conv2=1 apple",)), "`hand`"),
        (ask("flops", out, conv2="16,64,3,1"), "must begin with 32"),
        (ask("flops", out, workload="lstm", conv2="32,64,3,1"), "conv2"),
        (ask("flops", out, profiler="dlprof"), "`profiler`"),
        (ask("flops", out, source=tmp_path / "no"), "`source`"),
        (ask("flops", out, source=tmp_path, words=("--seed", "1")), "`source`"),
    ):
        with pytest.raises(UsageError, match=words):
            actions.run_study(asked)
    assert not out.exists()


def test_another_request_in_the_same_folder_is_refused(recorded, tmp_path):
    actions.run_study(ask("flops", tmp_path, source=recorded))
    actions.run_study(ask("flops", tmp_path, source=recorded, hand=("conv2=1",)))
    with pytest.raises(UsageError, match=r"holds another study .*epochs was not set, now 3"):
        actions.run_study(ask("flops", tmp_path, device="cpu", epochs=3))


def test_the_parts_are_clock_training_profile_and_counts_of_each_shape(tmp_path):
    typed = {"batches": (16, 64), "epochs": 3, "conv2": "32,128,5,1"}
    asked = ask("flops", tmp_path, device="cuda", **typed)
    found = {one.label: one for one in list_study_sweeps(asked)}
    assert list(found) == [
        f"{part}{tail}"
        for tail in ("", " 32,128,5,1")
        for part in ("clock", "training", "profile", "counts")
    ]
    assert (found["clock"].options.batches, found["training"].options.batches) == ((16,), (64,))
    assert found["training"].arguments[-2:] == ("--epochs", "3")
    assert found["counts 32,128,5,1"].arguments == ("--conv2", "32,128,5,1")
    assert [label for label, _ in split_study_into_parts(asked).parts] == list(found)
    on_cpu = split_study_into_parts(ask("flops", tmp_path, device="cpu", **typed)).parts
    assert [label for label, _ in on_cpu] == [
        label for label in found if not label.startswith("counts")
    ]


def test_a_part_that_fails_leaves_the_others_and_is_named(recorded, tmp_path, monkeypatch):
    from perfctl.orchestrator.ingest.ingest import ingest_paths

    def run_sweep(request, events):
        results: tuple[RunResult, ...] = ()
        if request.profiler.name == "torch":
            failed = {"status": "failed", "reason": "no memory"}
            results = (RunResult(setting=SweepSetting(BATCH), folder=request.folder, **failed),)
        else:
            ingest_paths([recorded / "first"], request.store_path)
        return sweeps.Swept(request, request.store_path, results)

    monkeypatch.setattr(sweeps, "run_and_store_sweep", run_sweep)
    asked = ask("flops", tmp_path, batches=(BATCH,), batch=BATCH, device="cpu")
    result = actions.run_study(asked)
    assert dict(result.page.missing)["profile"] == f"batch {BATCH}: failed, no memory"
    with pytest.raises(PartlyDone, match="profile"):
        result.check()
