"""A recorded run in the place of a profiler, through a real process."""

import gzip
import json
import shutil
from dataclasses import replace

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.process import run as process_run
from perfctl.orchestrator.launch.profilers.base import RunStatus
from perfctl.orchestrator.launch.profilers.replay import Replay
from perfctl.orchestrator.launch.sweep.folders import SweepSetting
from tests.launch.programs import assert_verdict


@pytest.fixture
def recording(tmp_path):
    folder = tmp_path / "recorded"
    for batch in (8, 16):
        run = folder / f"b{batch}"
        run.mkdir(parents=True)
        (run / "report.pt.trace.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}'))
        (run / "workload.json").write_text(json.dumps({"status": "ok", "batch_size": batch}))
        record = {"profiler": "torch", "workload": "mnist_cnn", "device": "cpu"}
        (run / "run.json").write_text(json.dumps({**record, "status": "ok", "reason": None}))
        (run / "stdout.log").write_text(f"trained at {batch}\n")
        (run / "stderr.log").write_text("a warning\n")
    (folder / "sweep.json").write_text(json.dumps({"profiler": "torch"}))
    (folder / "b32.part").mkdir()
    return folder


def run(recording, request):
    (command,) = Replay(recording).build_commands(request)
    paths = request.paths
    logs = {"stdout": paths.stdout, "stderr": paths.stderr}
    return Replay(recording).determine_run_status(
        request,
        (
            process_run.run_command(
                command, cwd=paths.partial_folder, scratch=paths.scratch, **logs
            ),
        ),
    )


def edit(recording, **facts):
    """Change the record of batch size 16; its folder."""
    path = recording / "b16" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))
    return path.parent


def test_it_stands_for_the_recorded_profiler(recording):
    replay = Replay(recording)
    facts = (
        replay.name,
        tuple(one.batch for one in replay.list_recorded_settings()),
        replay.read_recorded_workload_name(),
        replay.read_recorded_device(),
    )
    assert facts == ("torch", (8, 16), "mnist_cnn", "cpu")
    assert replay.list_missing_tools() == ()
    (recording / "sweep.json").unlink()
    assert Replay(recording).name == "torch", "the runs say it, too"


def test_a_run_is_put_in_place_whole_and_says_what_it_said(recording, make_request):
    request = make_request()
    before = {path: path.read_bytes() for path in recording.rglob("*") if path.is_file()}
    assert run(recording, request) == RunStatus("ok", None)
    assert {path: path.read_bytes() for path in recording.rglob("*") if path.is_file()} == before
    paths = request.paths
    trace = "report.pt.trace.json.gz"
    assert Replay(recording).get_report_path(paths) == paths.partial_folder / trace
    assert (paths.partial_folder / trace).read_bytes() == (recording / "b16" / trace).read_bytes()
    assert json.loads(paths.workload_record.read_text())["batch_size"] == 16
    assert (paths.stdout.read_text(), paths.stderr.read_text()) == (
        "trained at 16\n",
        "a warning\n",
    )
    assert not (paths.partial_folder / "run.json").exists()


def test_a_recorded_failure_stays_one(recording, make_request):
    edit(recording, status="partial", reason="out of memory at batch size 16")
    assert run(recording, make_request()) == RunStatus(
        "partial", "as recorded: out of memory at batch size 16"
    )


def test_a_batch_size_that_was_not_recorded_fails_and_says_which_were(recording, make_request):
    asked = make_request()
    request = replace(asked, batches=(99,))
    request.paths.partial_folder.mkdir()
    verdict = run(recording, request)
    assert verdict.status == "failed"
    assert verdict.reason.endswith(
        "b99 does not exist: this batch size was not recorded. Recorded: 8, 16"
    )


def test_a_folder_that_is_no_recording_is_refused(tmp_path, make_request):
    with pytest.raises(UsageError, match="is not a recorded sweep"):
        Replay(tmp_path).build_commands(make_request())


def test_a_recording_under_another_file_name_is_replayed_by_what_its_record_names(
    recording, make_request
):
    folder = edit(recording, artifact="trace.json.gz")
    (folder / "report.pt.trace.json.gz").rename(folder / "trace.json.gz")
    request = make_request()
    assert run(recording, request) == RunStatus("ok", None)
    assert (
        Replay(recording).get_report_path(request.paths)
        == request.paths.partial_folder / "trace.json.gz"
    )


@pytest.mark.parametrize("name", [None, "../b8/report.pt.trace.json.gz", "absent.gz", "", 3])
def test_a_recording_without_its_report_or_whose_record_names_no_file_beside_it_is_failed(
    recording, make_request, name
):
    (edit(recording, artifact=name) / "report.pt.trace.json.gz").unlink()
    verdict = run(recording, make_request())
    assert_verdict(verdict, "failed", "", "the recording is incomplete")


def test_recorded_parameters_are_replayed_with_their_values(recording):
    setting = SweepSetting(None, (("x", "0.5"),))
    (recording / "b8").rename(recording / setting.file_name)
    path = recording / setting.file_name / "run.json"
    facts = {"parameters": setting.parameters, "batch_size": None}
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    assert Replay(recording).list_recorded_settings() == (setting, SweepSetting(16))
    assert Replay(recording).list_recorded_settings((16, 64)) == (
        SweepSetting(16),
        SweepSetting(64),
    )


def test_recorded_repeats_are_replayed_as_repeats(recording, make_request):
    for batch in (8, 16):
        shutil.copytree(recording / f"b{batch}", recording / f"b{batch}.2")
    shutil.copytree(recording / "b8", recording / "b8.3")
    replay = Replay(recording)
    assert tuple(
        replay.find_smallest_repeat_count(map(SweepSetting, sizes))
        for sizes in ((8,), (8, 16), (64,))
    ) == (
        3,
        2,
        1,
    )
    asked = make_request()
    second = replace(asked, attempt=2)
    fourth = replace(asked, attempt=4)
    assert replay.build_commands(second)[0].argv[3] == str(recording / "b16.2")
    assert replay.build_commands(fourth)[0].argv[3] == str(recording / "b16")
