"""What actions refuse, and what they return: fields in backquotes, records, nothing printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import perfctl
from perfctl.orchestrator.actions import setup
from perfctl.orchestrator.actions.ingest import scan_file
from perfctl.orchestrator.actions.sweep import gather, infer, slurm
from perfctl.orchestrator.errors import PartlyDone, UsageError
from perfctl.orchestrator.launch.cluster.plan import Plan, Task
from perfctl.orchestrator.launch.images.definition import Definition


def plan(folder: Path) -> Plan:
    """An array of two tasks of one sweep, of which nothing has run."""
    tasks = (Task(0, "torch", 16, "torch-mnist_cnn-1"), Task(1, "torch", 32, "torch-mnist_cnn-1"))
    made = Plan(folder / "slurm-mnist_cnn-1", "mnist_cnn", tasks, "perfctl slurm render torch", "host")
    made.folder.mkdir(parents=True)
    made.write()
    return made


def test_a_copy_without_secrets_is_not_written_over_the_report_or_another_file(tmp_path: Path) -> None:
    report = tmp_path / "report.csv"
    report.write_text("HF_TOKEN=abcdefgh\n")
    (tmp_path / "report.scrubbed.csv").touch()
    for out, field in ((report, "`out`: .* is the report itself"), (None, "Replace it with `force`"),
                       (tmp_path / "no" / "x.csv", "`out`: there is no folder")):  # fmt: skip
        with pytest.raises(UsageError, match=field):
            scan_file.scrub(report, out)
    done = scan_file.scrub(report, force=True)
    assert (done.path.name, done.names) == ("report.scrubbed.csv", ("HF_TOKEN",))
    assert "abcdefgh" not in done.path.read_text()


def test_an_image_definition_is_replaced_only_by_force(tmp_path: Path) -> None:
    out = tmp_path / "perfctl.def"
    asked = Definition("python:3.11-slim", ("torch",), None, None, (), ())
    build = setup.render_image(asked, out, command_line="perfctl image render")
    assert str(out) in build and "perfctl image render" in out.read_text()
    with pytest.raises(UsageError, match="already exists"):
        setup.render_image(asked, out)


def test_the_doctor_returns_findings() -> None:
    found = setup.doctor()
    assert {"ok", "warning", "missing"} >= {finding.state for finding in found}
    assert len(found) > 5


@pytest.mark.parametrize(
    ("models", "profiler", "message"),
    [
        ((), "none", "`models` names no model"),
        (("resnet18", "resnet18"), "none", "stands twice"),
        (("resnet18",), "ncu", "`profiler`: 'ncu' is not known"),
    ],
)
def test_models_and_profiler_of_an_inference_sweep_are_checked(
    models: tuple[str, ...], profiler: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        infer.infer_requests(models, profiler, perfctl.SweepOptions(batches=(1,), out=tmp_path / "runs"))


def test_without_slurm_the_folders_alone_say_how_far_an_array_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    folder = plan(tmp_path).folder
    found = slurm.status(folder)
    assert (found.asked_squeue, found.gather, [state.state for state in found.tasks]) == (False, None, ["missing"] * 2)
    assert found.repeat == [0, 1]
    with pytest.raises(UsageError, match=r"`tasks`: there is no task '2'\. They are numbered 0 to 1"):
        slurm.submit(folder, [0, 2])


def test_gathering_names_what_is_missing_and_counts_what_is_there(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    made = plan(tmp_path)
    options = perfctl.SweepOptions(batches=(16,), out=tmp_path, sweep_name="torch-mnist_cnn-1", store=tmp_path / "a.db")
    swept = perfctl.replay(recorded, options, all_batches=False)
    assert json.loads((swept.folder / "sweep.json").read_text())["name"] == "torch-mnist_cnn-1"
    done = gather.gather([made.folder], tmp_path / "b.db")
    assert (done.new, done.known, len(done.wrong)) == (2, 0, 1), "one whole run, and one that says what is missing"
    assert [(run.batch_size, run.status) for run in perfctl.runs(tmp_path / "b.db")] == [(16, "ok"), (32, "failed")]
    with pytest.raises(PartlyDone, match="1 run is missing or incomplete"):
        done.check()
    again = gather.gather([made.folder], tmp_path / "b.db")
    assert (again.new, again.known) == (0, 1)
    with pytest.raises(UsageError, match="nothing of a sweep is there"):
        gather.gather([tmp_path / "no"], tmp_path / "b.db")
