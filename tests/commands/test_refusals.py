"""What actions refuse, and what they return: fields in backquotes, records, nothing printed."""

from pathlib import Path

import pytest

import perfctl
from perfctl.orchestrator.commands import ingest, speedup
from perfctl.orchestrator.commands.export import export, trace
from perfctl.orchestrator.commands.plot import plot
from perfctl.orchestrator.commands.speedup import SpeedupOptions
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import estimate_model_for_batches
from perfctl.orchestrator.events import SILENT
from perfctl.orchestrator.launch.cluster import status
from perfctl.orchestrator.launch.cluster.plan import JobArrayPlan, TaskSweepRuns, make_sweep_task
from perfctl.orchestrator.launch.images import definition
from perfctl.orchestrator.launch.images.definition import ImageRecipe
from perfctl.orchestrator.launch.sweep.folders import SweepSetting
from perfctl.orchestrator.launch.sweep.plan import plan_torchvision_inference_sweeps

NET = "mlp:depth=3,width=16"


def plan(folder):
    """An array of two tasks of one sweep, of which nothing has run."""
    tasks = tuple(
        make_sweep_task(at, TaskSweepRuns("torch", SweepSetting(batch), "torch-mnist_cnn-1"))
        for at, batch in enumerate((16, 32))
    )
    made = JobArrayPlan(
        folder / "slurm-mnist_cnn-1", "mnist_cnn", tasks, "perfctl slurm render torch", "host"
    )
    made.folder.mkdir(parents=True)
    made.write_tasks_json()
    return made


def test_a_copy_without_secrets_is_not_written_over_the_report_or_another_file(tmp_path):
    report = tmp_path / "report.csv"
    report.write_text("HF_TOKEN=abcdefgh\n")
    (tmp_path / "report.scrubbed.csv").write_text("kept")
    for out, field in (
        (report, "`out`: .* is a file that this command reads"),
        (None, "Use `force` to overwrite it"),
        (tmp_path / "no" / "x.csv", "`out`: folder"),
    ):
        with pytest.raises(UsageError, match=field):
            ingest.scrub(report, out)
    done = ingest.scrub(report, force=True)
    assert (done.path.name, done.replaced) == ("report.scrubbed.csv", {"secret": 1})
    assert "abcdefgh" not in done.path.read_text()


def test_an_image_definition_is_replaced_only_by_force(tmp_path):
    out = tmp_path / "perfctl.def"
    asked = ImageRecipe("python:3.11-slim", ("torch",), None, None, (), ())
    build = definition.write_definition_get_build_command(
        asked, out, command_line="perfctl image render"
    )
    assert str(out) in build and "perfctl image render" in out.read_text()
    with pytest.raises(UsageError, match="already exists"):
        definition.write_definition_get_build_command(asked, out)


def asked(**said):
    return perfctl.SweepOptions(**{"batches": (4,), "out": Path("runs"), **said})


def placed(said, **places):
    return lambda store: perfctl.sweep("torch", asked(**said, **places))


def hinted(**said):
    return lambda store: perfctl.ingest(store, Path("new.db"), **said)


def predicted(**said):
    return lambda store: perfctl.predict(NET, batch=8, **said)


def estimated(batches=(1,), **said):
    return lambda store: estimate_model_for_batches(Request(NET, **said), batches)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (estimated(mode="learn"), "invalid value 'learn' for `mode`"),
        (estimated(optimizer="magic"), "invalid value 'magic' for `optimizer`"),
        (estimated(device="tpu"), "invalid value 'tpu' for `device`"),
        (estimated((0,)), "`batch` must be at least 1"),
        (estimated(()), "`batch` names no batch size"),
        (predicted(), "no device"),
        (
            predicted(device="A100", device_spec="name=X"),
            "`device` and `device_spec` exclude each other",
        ),
        (predicted(device="cuda"), "`device`: 'cuda' matches several GPU models"),
        (predicted(device="A100", threads=2), "`threads` needs `device` cpu"),
        (predicted(device="T4", optimizer="lion"), "invalid value 'lion' for `optimizer`"),
        (hinted(mode="bogus"), "invalid value 'bogus' for `mode`"),
        (hinted(precision="int3"), "invalid value 'int3' for `precision`"),
        (hinted(batch=0), "`batch` must be at least 1, got 0"),
        (hinted(guess_layers=True), "`guess_layers` needs the name of the network"),
        (placed({"device": "tpu"}), "invalid value 'tpu' for `device`"),
        (placed({"sweep_name": "a/b"}), "`sweep_name`: invalid folder name 'a/b'"),
        (placed({"step_marker": "optimizer"}), "`step_marker` works only with your own script"),
        (
            placed({"device": "cuda"}, devices="cpu:0"),
            "`device` cuda and `devices` cpu:0 (sets of cores) do not agree",
        ),
        (
            placed({"no_store": True}, devices="cpu:0"),
            "`devices` and `no_store` exclude each other",
        ),
        (placed({}, bind=("/data",)), "`bind` and `container_runtime` need an image"),
        (placed({"batches": (0,)}), "0"),
        (lambda store: perfctl.sweep("perf", asked()), "invalid value 'perf' for `profiler`"),
        (
            lambda store: perfctl.sweep(
                "torch", asked(mode="infer"), program=["python", "train.py", "{batch}"]
            ),
            "`mode` works only with built-in workloads",
        ),
        (lambda store: plan_torchvision_inference_sweeps((), "none", asked()), "`models` is empty"),
        (
            lambda store: plan_torchvision_inference_sweeps(("resnet18",) * 2, "none", asked()),
            "is repeated",
        ),
        (
            lambda store: plan_torchvision_inference_sweeps(("resnet18",), "ncu", asked()),
            "invalid value 'ncu' for `profiler`",
        ),
        (lambda store: export(("nothing",), store=store), "invalid value 'nothing'"),
        (lambda store: export(format="doc", store=store), "invalid value 'doc' for `format`"),
        (
            lambda store: export(sweep=1, runs=(1,), store=store),
            "`sweep` and `runs` exclude each other",
        ),
        (
            lambda store: trace(1, step=1, whole=True, store=store),
            "`whole` and `step` exclude each other",
        ),
        (
            lambda store: plot("sample", store=store, out=Path("s.doc")),
            "invalid file name 's.doc' for `out`",
        ),
        (
            lambda store: plot("sample", store=store, pie=True),
            "`pie` does not apply to the chart 'sample'",
        ),
        (
            lambda store: speedup.run_speedup(SpeedupOptions(runs=("one",), store=store), SILENT),
            "`runs` needs at least two",
        ),
        (
            lambda store: speedup.run_speedup(
                SpeedupOptions(runs=("1", "2"), store=store, allow=("all",)), SILENT
            ),
            "`allow`: 'all' is not known",
        ),
        (
            lambda store: perfctl.report(store, "page.html", studies=0),
            "`studies` must be at least 1, got 0",
        ),
        (
            lambda store: perfctl.report(store, "page.html", peaks="guessed"),
            "invalid value 'guessed' for `peaks`",
        ),
        (lambda store: perfctl.compare(store, store, gate=-0.1), "`gate` must be 0 or more"),
        (
            lambda store: perfctl.compare(store, store, gate=float("nan")),
            "`gate` must be 0 or more",
        ),
        (
            lambda store: perfctl.compare("nothing", store, store=store),
            "is not a file, and not a sweep or run",
        ),
        (
            lambda store: perfctl.compare("nothing", store, store="none.db"),
            "Name an existing file, folder or database",
        ),
    ],
)
def test_a_request_that_makes_no_sense_names_the_field_and_nothing_is_written(
    call, said, store, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as error:
        call(store)
    assert said in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_without_slurm_the_folders_alone_say_how_far_an_array_is(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    made = plan(tmp_path)
    found = status.collect_array_status(made)
    assert (found.asked_squeue, found.gather, found.repeat) == (False, None, [0, 1])
    with pytest.raises(
        UsageError, match=r"`tasks`: task '2' not found\. Tasks are numbered 0 to 1"
    ):
        status.submit_job_array(made, [0, 2])
