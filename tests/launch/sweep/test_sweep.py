from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.sweep import sweep
from perfctl.orchestrator.launch.sweep.request import Listener, RunResult, SweepRequest
from tests.launch.small_profiler import Small

WRITES = (
    "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text('a report of ' + sys.argv[2]); print('ran', sys.argv[2])"
)
FAILS_AT_32 = WRITES + "; sys.exit(3 if sys.argv[2] == '32' else 0)"


def asked(tmp_path: Path, program: str = WRITES, batches: tuple[int, ...] = (16, 32, 64)) -> SweepRequest:
    return SweepRequest(Small(program), "mnist_cnn", (), batches, "cpu", tmp_path / "runs", "perfctl small", "host")


def reports(request: SweepRequest) -> dict[str, str]:
    return {file.parent.name: file.read_text() for file in sorted(request.folder.glob("*/report.txt"))}


def test_each_batch_size_runs_in_its_own_folder_with_its_logs_and_record(tmp_path: Path) -> None:
    request = asked(tmp_path)
    results = sweep.run(request, Listener())
    assert [(result.batch_size, result.status) for result in results] == [(16, "ok"), (32, "ok"), (64, "ok")]
    assert reports(request) == {f"b{batch}": f"a report of {batch}" for batch in (16, 32, 64)}
    assert (request.folder / "b32" / "stdout.log").read_text() == "ran 32\n"
    record = json.loads((request.folder / "b32" / "run.json").read_text())
    assert (record["batch_size"], record["status"], record["artifact"]) == (32, "ok", "report.txt")
    assert sorted(path.name for path in request.folder.iterdir()) == [".lock", "b16", "b32", "b64", "sweep.json"]


def test_one_batch_size_failing_is_recorded_and_the_rest_go_on(tmp_path: Path) -> None:
    request = asked(tmp_path, FAILS_AT_32)
    results = sweep.run(request, Listener())
    assert [result.status for result in results] == ["ok", "failed", "ok"]
    assert results[1].reason == "exit code 3"
    assert json.loads((request.folder / "b32" / "run.json").read_text())["exit_code"] == 3


def test_run_again_it_skips_what_is_whole_and_repeats_what_failed(tmp_path: Path) -> None:
    request = asked(tmp_path, FAILS_AT_32)
    sweep.run(request, Listener())
    started: list[int] = []
    results = sweep.run(request, Listener(started=lambda batch, stage: started.append(batch)))
    assert started == [32]
    assert [result.skipped for result in results] == [True, False, True]


def test_again_repeats_everything_and_keeps_what_the_store_refers_to(tmp_path: Path) -> None:
    request = asked(tmp_path)
    sweep.run(request, Listener())
    started: list[int] = []
    again = sweep.run(replace(request, again=True), Listener(started=lambda batch, stage: started.append(batch)))
    assert started == [16, 32, 64]
    assert sorted(reports(request)) == ["b16", "b16.2", "b32", "b32.2", "b64", "b64.2"]
    assert [result.folder.name for result in again] == ["b16.2", "b32.2", "b64.2"]


def test_a_repetition_that_fails_harms_nothing_that_was_whole(tmp_path: Path) -> None:
    switch = tmp_path / "fail"
    request = asked(tmp_path, WRITES + f"; sys.exit(3 if pathlib.Path({str(switch)!r}).exists() else 0)", (16,))
    sweep.run(request, Listener())
    switch.touch()
    (failed,) = sweep.run(replace(request, again=True), Listener())
    assert (failed.status, failed.folder.name) == ("failed", "b16.2")
    assert sweep.is_whole(request.folder / "b16")
    assert sweep.run(request, Listener())[0].skipped
    switch.unlink()
    assert sweep.run(replace(request, again=True), Listener())[0].folder.name == "b16.2"


def test_a_report_that_was_cut_since_is_not_whole(tmp_path: Path) -> None:
    request = asked(tmp_path)
    (first, *_) = sweep.run(request, Listener())
    (first.folder / "report.txt").write_text("a")
    assert not sweep.is_whole(first.folder)


def test_the_same_request_has_the_same_name_and_another_has_another(tmp_path: Path) -> None:
    request = asked(tmp_path)
    assert asked(tmp_path, batches=(1,)).name == request.name
    assert replace(request, workload_arguments=("--steps", "5")).name != request.name
    assert replace(request, device="cuda").name != request.name
    assert replace(request, profiler=Small(FAILS_AT_32)).name != request.name


def test_a_second_perfctl_on_the_same_sweep_is_refused(tmp_path: Path) -> None:
    request = asked(tmp_path, batches=(16,))

    def start_another(result: RunResult) -> None:
        with pytest.raises(UsageError, match="another perfctl is running the sweep"):
            sweep.run(request, Listener())

    assert sweep.run(request, Listener(finished=start_another))[0].status == "ok"


@pytest.mark.parametrize(("batches", "said"), [((), "is empty"), ((0,), "at least 1"), ((8, 8), "repeats a size")])
def test_batch_sizes_that_make_no_sense_are_refused_before_anything_runs(
    tmp_path: Path, batches: tuple[int, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        sweep.run(asked(tmp_path, batches=batches), Listener())
    assert not (tmp_path / "runs").exists()
