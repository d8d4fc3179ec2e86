"""A sweep: a process per batch size; repeats (--repeat); a profiler that could not start
just then."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.profilers import nsys
from perfctl.orchestrator.launch.profilers.torch import TorchProfiler
from perfctl.orchestrator.launch.program import parse_user_program
from perfctl.orchestrator.launch.sweep import sweep
from perfctl.orchestrator.launch.sweep.folders import parse_run_folder_name
from perfctl.orchestrator.launch.sweep.options import SweepOptions, list_sweep_settings
from perfctl.orchestrator.launch.sweep.plan import plan_sweep
from perfctl.orchestrator.launch.sweep.request import SweepListener
from tests.launch.small_profiler import WRITES, Small, asked

SAYS = WRITES + "; print('ran', sys.argv[2])"
FAILS_AT_32 = WRITES + "; sys.exit(3 if sys.argv[2] == '32' else 0)"


def run(request):
    """(batch sizes in the order in which processes started, results)."""
    started: list[int] = []
    listener = SweepListener(started=lambda setting, stage: started.append(setting.batch or 0))
    return started, sweep.run_incomplete_settings(request, listener)


def folders(results):
    return " ".join(result.folder.name for result in results)


def reports(request):
    return {
        file.parent.name: file.read_text() for file in sorted(request.folder.glob("*/report.txt"))
    }


def test_each_batch_size_runs_in_its_own_folder_with_its_logs_and_record(tmp_path):
    request = asked(tmp_path, SAYS)
    results = sweep.run_incomplete_settings(request, SweepListener())
    assert [(result.batch_size, result.status) for result in results] == [
        (batch, "ok") for batch in (16, 32, 64)
    ]
    assert reports(request) == {f"b{batch}": f"a report of {batch}" for batch in (16, 32, 64)}
    assert (request.folder / "b32" / "stdout.log").read_text() == "ran 32\n"
    record = json.loads((request.folder / "b32" / "run.json").read_text())
    assert (record["batch_size"], record["status"], record["artifact"]) == (32, "ok", "report.txt")
    assert sorted(path.name for path in request.folder.iterdir()) == [
        ".lock",
        "b16",
        "b32",
        "b64",
        "sweep.json",
    ]


def test_run_again_it_skips_what_is_whole_and_repeats_what_failed(tmp_path):
    request = asked(tmp_path, FAILS_AT_32)
    run(request)
    started, results = run(request)
    assert started == [32]
    assert [result.skipped for result in results] == [True, False, True]


def test_a_program_that_runs_on_after_its_recorded_steps_is_told_of_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "RUNS_ON_S", 0)
    ends = (
        WRITES + "; import json, time; steps = [{'phase': 'step'}]"
        "; record = pathlib.Path(sys.argv[1]).with_name('workload.json')"
        "; record.write_text(json.dumps({'options': {'steps': 1}, 'steps': steps})); time.sleep(3)"
    )
    (tmp_path / "train.py").touch()
    program = parse_user_program((sys.executable, str(tmp_path / "train.py")), None, {})
    request = replace(asked(tmp_path, ends, (16,)), program=program, workload="train.py")
    lines: list[str] = []
    listener = SweepListener(noted=lines.append)
    sweep.run_incomplete_settings(request, listener)
    told = "batch 16: all steps are recorded, and train.py runs to its end; --no-to-end stops it"
    assert lines == [told]
    sweep.run_incomplete_settings(replace(request, to_end=False, again=True), listener)
    assert lines == [told], "it stops by itself"


def test_a_repetition_that_fails_harms_nothing_that_was_whole(tmp_path):
    switch = tmp_path / "fail"
    request = asked(
        tmp_path, WRITES + f"; sys.exit(3 if pathlib.Path({str(switch)!r}).exists() else 0)", (16,)
    )
    sweep.run_incomplete_settings(request, SweepListener())
    switch.touch()
    (failed,) = sweep.run_incomplete_settings(replace(request, again=True), SweepListener())
    assert (failed.status, failed.folder.name) == ("failed", "b16.2")
    assert sweep.is_run_complete(request.folder / "b16")
    assert sweep.run_incomplete_settings(request, SweepListener())[0].skipped
    switch.unlink()
    assert (
        sweep.run_incomplete_settings(replace(request, again=True), SweepListener())[0].folder.name
        == "b16.2"
    )


def test_a_report_that_was_cut_since_is_not_whole(tmp_path):
    request = asked(tmp_path)
    (first, *_) = sweep.run_incomplete_settings(request, SweepListener())
    (first.folder / "report.txt").write_text("a")
    assert not sweep.is_run_complete(first.folder)


def test_the_same_request_has_the_same_name_and_another_has_another(tmp_path):
    request = asked(tmp_path)
    assert asked(tmp_path, batches=(1,), repeat=5).name == request.name
    assert replace(request, workload_arguments=("--steps", "5")).name != request.name
    assert replace(request, device="cuda").name != request.name
    assert replace(request, profiler=Small(FAILS_AT_32)).name != request.name


@pytest.mark.parametrize(
    ("batches", "said"), [((0,), "at least 1"), ((8, 8), "repeats a batch size")]
)
def test_batch_sizes_that_make_no_sense_are_refused_before_anything_runs(tmp_path, batches, said):
    with pytest.raises(UsageError, match=said):
        sweep.run_incomplete_settings(asked(tmp_path, batches=batches), SweepListener())
    assert not (tmp_path / "runs").exists()


TWO = (16, 32)
TURNS = "b16 b32 b16.2 b32.2 b16.3 b32.3"


@pytest.mark.parametrize(
    ("first", "then", "new", "names"),
    [
        pytest.param(None, {"repeat": 3}, TURNS, TURNS, id="take turns: a drift touches each"),
        pytest.param({"repeat": 2}, {"repeat": 3}, TURNS[-11:], TURNS, id="more repeats add"),
        pytest.param({"repeat": 2}, {}, "", TURNS[8:19], id="fewer run nothing"),
        pytest.param({}, {"again": True}, TURNS[8:19], TURNS[8:19], id="again, and all are kept"),
        pytest.param(
            {"repeat": 2},
            {"repeat": 2, "again": True},
            "b16.3 b32.3 b16.4 b32.4",
            "b16.3 b32.3 b16.4 b32.4",
            id="again makes as many new ones",
        ),
    ],
)
def test_the_processes_of_a_command_and_of_one_after_it(tmp_path, first, then, new, names):
    if first is not None:
        run(asked(tmp_path, batches=TWO, **first))
    before = reports(asked(tmp_path))
    started, results = run(asked(tmp_path, batches=TWO, **then))
    ran = [result for result in results if not result.skipped]
    assert (folders(ran), folders(results)) == (new, names)
    assert started == [result.batch_size for result in ran]
    assert reports(asked(tmp_path)).items() >= before.items()


def test_what_failed_is_not_repeated_and_the_same_command_tries_again(tmp_path):
    switch = tmp_path / "fail"
    switch.touch()
    fails = (
        WRITES
        + f"; sys.exit(3 if sys.argv[2] == '32' and pathlib.Path({str(switch)!r}).exists() else 0)"
    )
    started, results = run(asked(tmp_path, fails, TWO, repeat=3))
    assert started == [16, 32, 16, 16]
    assert [result.status for result in results] == ["ok", "failed", "ok", "ok"]
    switch.unlink()
    started, results = run(asked(tmp_path, fails, TWO, repeat=3))
    assert started == [32, 32, 32]
    assert all(result.status == "ok" for result in results)
    assert folders(results) == "b16 b32 b16.2 b32.2 b16.3 b32.3"


def test_a_dry_run_shows_every_process(tmp_path):
    commands = sweep.list_sweep_commands(asked(tmp_path, batches=TWO, repeat=3))
    assert [setting.batch for setting, _ in commands] == [*TWO] * 3


BUSY = """
import pathlib, sys
tries = pathlib.Path(sys.argv[1]).parents[2] / "tries"
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
if len(tries.read_text()) <= {fails}:
    sys.exit({said!r})
pathlib.Path(sys.argv[1]).write_text("a report")
"""


@pytest.mark.parametrize(
    ("fails", "said", "status", "tries"),
    [
        (1, "sem_open: File exists", "ok", 2),
        (2, "sem_open: File exists", "failed", 2),
        (1, "Connection reset by peer", "ok", 2),
        (1, "Connection reset by peer: the user's own server", "failed", 1),
        (1, "another reason", "failed", 1),
    ],
)
def test_a_profiler_that_could_not_start_beside_another_is_started_once_more(
    tmp_path, monkeypatch, fails, said, status, tries
):
    monkeypatch.setattr(sweep, "PAUSE_S", (0.0, 0.1))
    request = asked(tmp_path, Small(BUSY.format(fails=fails, said=said), nsys.BUSY), (16,))
    stages: list[str] = []
    (result,) = sweep.run_incomplete_settings(
        request, SweepListener(started=lambda batch, stage: stages.append(stage))
    )
    assert (result.status, len((request.out / "tries").read_text())) == (status, tries)
    assert stages == ["profile", "profile-again"][:tries]
    assert ("trying once more" in (result.folder / "stderr.log").read_text()) == (tries == 2)


GRID = ("N=256,512", "how=a,b")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        pytest.param({"batches": (16, 32)}, "b16 b32", id="batch sizes alone keep their folders"),
        pytest.param({}, "run", id="a program without parameters"),
        pytest.param({"sweep": ("N=512,256",)}, "N=512 N=256", id="values in their order"),
        pytest.param(
            {"sweep": GRID},
            "N=256+how=a N=256+how=b N=512+how=a N=512+how=b",
            id="all combinations",
        ),
        pytest.param(
            {"sweep": GRID[::-1], "zip": True}, "N=256+how=a N=512+how=b", id="pairs, by name"
        ),
        pytest.param(
            {"batches": (8,), "sweep": ("N=1,2",), "zip": True}, "b8+N=1 b8+N=2", id="one for all"
        ),
        pytest.param(
            {"sweep": ("x=0.5,0_5",)},
            f"x=0_5-{hashlib.sha256(b'0.5').hexdigest()[:8]} x=0_5",
            id="values that a folder cannot be named after stay apart",
        ),
    ],
)
def test_each_setting_of_a_sweep_has_its_folder(options, names):
    settings = list_sweep_settings(SweepOptions(**options))
    assert " ".join(setting.file_name for setting in settings) == names
    if "x=" not in names:
        assert [parse_run_folder_name(f"{name}.2") for name in names.split()] == [
            (setting, "2") for setting in settings
        ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({"sweep": ("N",)}, "'N' is not a name and its values", id="without values"),
        pytest.param({"sweep": ("N=1,",)}, "is not a name and its values", id="an empty value"),
        pytest.param({"sweep": ("N=1,1",)}, "repeats a value", id="a value twice"),
        pytest.param({"sweep": ("N=1", "N=2")}, "N is named twice", id="a name twice"),
        pytest.param({"batches": (8,), "sweep": ("batch=8",)}, "batch is named", id="two batches"),
        pytest.param({"sweep": ("N=1,2", "M=1,2,3"), "zip": True}, "2 of one", id="odd pairs"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(options, said):
    with pytest.raises(UsageError, match=said):
        list_sweep_settings(SweepOptions(**options))


def test_a_setting_that_failed_runs_again_and_its_record_has_the_parameters(tmp_path):
    request = replace(asked(tmp_path, batches=()), sweep=("N=2,1",))
    (tmp_path / "runs" / request.name / "N=2").mkdir(parents=True)
    results = sweep.run_incomplete_settings(request, SweepListener())
    assert [(str(result.setting), result.skipped) for result in results] == [
        ("N=2", False),
        ("N=1", False),
    ]
    assert [
        result.skipped for result in sweep.run_incomplete_settings(request, SweepListener())
    ] == [
        True,
        True,
    ]
    record = json.loads((request.folder / "N=1" / "run.json").read_text())
    assert (record["batch_size"], record["parameters"]) == (None, {"N": "1"})


@pytest.mark.parametrize(
    ("options", "names"),
    [
        pytest.param({"sweep": ("batch=8,16",)}, "b8 b16", id="batch sizes by their name"),
        pytest.param(
            {"batches": (8,), "sweep": ("precision=fp32,bf16",)},
            "b8+precision=fp32 b8+precision=bf16",
            id="an option of the workload",
        ),
    ],
)
def test_a_built_in_workload_takes_its_own_options_as_parameters(options, names, tmp_path):
    request = plan_sweep(TorchProfiler(), SweepOptions(device="cpu", out=tmp_path, **options))
    assert " ".join(setting.file_name for setting in request.settings) == names
    ((_, first), *_) = sweep.list_sweep_commands(request)
    assert ("--precision", "fp32") in pairwise(first.argv) or "precision" not in names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing=1", "unknown option '--nothing 1'"),
        ("precision=fp32,fp9", "invalid choice: 'fp9'"),
        ("device=cpu,cuda", "does not pass --device"),
    ],
)
def test_a_parameter_that_the_workload_lacks_is_refused(text, said):
    with pytest.raises(UsageError, match=said):
        plan_sweep(TorchProfiler(), SweepOptions(sweep=(text,), device="cpu"))
