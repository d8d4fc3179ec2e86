"""Whole argument lists, counters and ranges, and verdicts from what ncu 2022.3 says and
leaves behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers import ncu, rank_tables
from perfctl.orchestrator.launch.profilers.ncu import Ncu
from perfctl.orchestrator.launch.program import UserProgram
from tests.launch.programs import assert_verdict, workload_words

TABLE = '"ID","Process ID","Process Name"\n"","",""\n"0","7","python"\n'
REPORT = b"NVR\0rest"


def test_one_run_keeps_the_report_and_prints_it_as_csv(make_request):
    request = make_request("cuda")
    part = request.paths.partial_folder
    profile, table = Ncu(metrics="fadd").build_commands(request)
    assert profile.argv == (
        "ncu",
        "--force-overwrite",
        "--export",
        f"{part}/report.ncu-rep",
        "--nvtx",
        "--target-processes",
        "all",
        "--profile-from-start",
        "off",
        "--clock-control",
        "base",
        "--cache-control",
        "all",
        "--metrics",
        "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
        "--kernel-name",
        ncu.build_noncommunication_kernel_filter(None),
        *workload_words(part, "nvtx", "cuda"),
    )
    assert table.argv == (
        "ncu",
        "--import",
        f"{part}/report.ncu-rep",
        "--csv",
        "--page",
        "raw",
        "--print-units",
        "base",
        "--log-file",
        f"{part}/report.csv",
    )
    assert (dict(table.environment), table.needs) == ({"LC_ALL": "C"}, part / "report.ncu-rep")


def ranks(make_request):
    program = UserProgram(
        sys.executable, (), ("torchrun", "--nproc-per-node", "2", "t.py", "{batch}"), "t.py", None
    )
    return replace(make_request("cuda"), program=program)


def test_of_a_launcher_rank_0_starts_its_own_ncu_and_the_others_run_as_usual(make_request):
    request = ranks(make_request)
    part = request.paths.partial_folder
    profile, table = Ncu(metrics="fadd").build_commands(request)
    at = profile.argv.index("--under")
    inner = json.loads(profile.argv[at + 1])
    assert inner[:4] == ["ncu", "--force-overwrite", "--export", f"{part}/report{{rank}}.ncu-rep"]
    assert inner[-2:] == ["--kernel-name", ncu.build_noncommunication_kernel_filter(None)]
    assert sys.executable not in inner
    assert profile.argv[:3] == (sys.executable, "-m", "perfctl.workloads")
    assert profile.argv[at + 2 :] == (
        "--under-rank",
        "0",
        "--",
        "torchrun",
        "--nproc-per-node",
        "2",
        "t.py",
        "16",
    )
    assert table.argv[:3] == ("ncu", "--import", f"{part}/report.ncu-rep")
    facts = (profile.facts["ncu:ranks"], profile.facts["ncu:not_replayed"])
    assert facts == ("0", ncu.COMMUNICATION)


def test_every_rank_may_be_counted_and_then_gets_its_own_table(make_request):
    request = ranks(make_request)
    part = request.paths.partial_folder
    profile, table, others = Ncu(metrics="fadd", all_ranks=True).build_commands(request)
    at = profile.argv.index("--under")
    assert profile.argv[at + 2 :] == ("--", "torchrun", "--nproc-per-node", "2", "t.py", "16")
    assert table.argv[:3] == ("ncu", "--import", f"{part}/report.ncu-rep")
    module = "perfctl.orchestrator.launch.profilers.rank_tables"
    assert others.argv == (sys.executable, "-m", module, f"{part}/report.ncu-rep")
    assert (dict(others.environment), others.needs) == ({"LC_ALL": "C"}, part / "report.ncu-rep")


def test_the_ranks_beside_the_first_get_tables_and_one_that_cannot_be_printed_none(
    tmp_path, make_program, monkeypatch
):
    """A stand-in for ncu that prints what it was asked, and fails on rank 2."""
    program = make_program(
        'case "$2" in *rank2*) exit 1;; esac; while [ "$1" != --log-file ]; do shift; done; echo '
        '"$@" > "$2"'
    )
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ncu").symlink_to(program)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    for name in ("report", "report.rank1", "report.rank2"):
        (tmp_path / f"{name}.ncu-rep").write_bytes(REPORT)
    assert rank_tables.export_rank_reports_as_csv([str(tmp_path / "report.ncu-rep")]) == 0
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == ["report.rank1.csv"]


def test_filters_and_controls_reach_ncu(make_request):
    asked = Ncu(
        metrics="a.sum,b.avg",
        clock_control="none",
        cache_control="none",
        kernel_name="regex:gemm",
        launch_skip=2,
        launch_count=5,
        replay_mode="application",
        graph_profiling="graph",
        section=("SpeedOfLight", "Occupancy"),
        section_set="full",
        extra=("--import-source", "yes"),
    )
    argv = asked.build_commands(make_request("cuda"))[0].argv
    options = argv[argv.index("--clock-control") : argv.index("/opt/python")]
    assert options == (
        "--clock-control",
        "none",
        "--cache-control",
        "none",
        "--replay-mode",
        "application",
        "--metrics",
        "a.sum,b.avg",
        "--kernel-name",
        ncu.build_noncommunication_kernel_filter("regex:gemm"),
        "--launch-skip",
        "2",
        "--launch-count",
        "5",
        "--graph-profiling",
        "graph",
        "--set",
        "full",
        "--section",
        "SpeedOfLight",
        "--section",
        "Occupancy",
        "--import-source",
        "yes",
    )


@pytest.mark.parametrize("mode", ["range", "app-range"])
def test_a_window_that_is_measured_as_one_is_not_filtered_by_kernel(make_request, mode):
    argv = (
        Ncu(metrics="dram__bytes_read.sum", replay_mode=mode)
        .build_commands(make_request("cuda"))[0]
        .argv
    )
    assert argv[argv.index("--replay-mode") + 1] == mode
    assert not {"--kernel-name", "--profile-from-start"} & set(argv)


def test_what_the_user_passes_on_takes_the_place_of_what_perfctl_would_say(make_request):
    extra = (
        "--clock-control=none",
        "--target-processes",
        "application-only",
        "-c",
        "3",
        "--nvtx-exclude",
        "loss/",
    )
    argv = (
        Ncu(metrics="fadd", launch_count=9, extra=extra)
        .build_commands(make_request("cuda"))[0]
        .argv
    )
    own = argv[: argv.index("/opt/python")]
    assert own[-7:] == extra
    assert [word for word in own if word.startswith(("--clock", "--target", "--launch-count"))] == [
        "--clock-control=none",
        "--target-processes",
    ]
    assert own[4:9] == ("--nvtx", "--profile-from-start", "off", "--cache-control", "all")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *(
            ({"metrics": text}, "is not a list of metric names")
            for text in ("", "a,,b", "a;rm", "a b", "$(x)", "a,")
        ),
        *(
            ({option: "sometimes"}, f"`{option}` must be")
            for option in ("clock_control", "cache_control")
        ),
        *(({"layers": (layer,)}, "is not a layer name") for layer in ("", " ", "regex:x")),
        (
            {"replay_mode": "none"},
            "`replay_mode` must be kernel or application or range or app-range, got none",
        ),
        (
            {"replay_mode": "range", "metrics": "dram__bytes_read.sum", "layers": ("conv2",)},
            "without single kernels or layers",
        ),
        ({"launch_count": 0}, "`launch_count` must be at least 1, got 0"),
        ({"kernel_name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}, "waits for other GPUs"),
        ({"extra": ("--export", "x")}, "perfctl sets the name of the report"),
    ],
)
def test_options_that_ncu_cannot_take_are_refused(options, said):
    with pytest.raises(UsageError, match=said):
        Ncu(**options)


def test_a_cpu_has_nothing_to_count(make_request):
    with pytest.raises(UsageError, match="ncu needs a GPU"):
        Ncu().build_commands(make_request("cpu"))


NO_KERNELS = "==WARNING== No kernels were profiled.\n"
RETURNED = "==ERROR== The application returned an error code (3).\n"


@pytest.mark.parametrize(
    ("table", "first", "export", "status", "reason"),
    [
        (TABLE, {}, {}, "ok", None),
        (
            "==ERROR== Failed to load report file\n",
            {},
            {"exit_code": 1, "stderr": "required fields are missing\n"},
            "partial",
            (
                "the profiler report is complete, but this ncu could not export it as CSV: required fields "
                "are missing. "
            ),
        ),
        (
            TABLE,
            {"exit_code": 3, "stdout": RETURNED, "stderr": "KeyError: 'x'\n"},
            {},
            "partial",
            "the program ended with exit code 3: KeyError: 'x'",
        ),
        (
            TABLE,
            {"stdout": '==PROF== Connected\n==ERROR== Failed to profile "gemm" in process 7\n'},
            {},
            "partial",
            'ncu reported an error and continued: Failed to profile "gemm" in process 7',
        ),
    ],
)
def test_a_report_is_judged_with_its_table_and_what_the_program_and_ncu_said(
    make_request, make_outcome, table, first, export, status, reason
):
    request = make_request("cuda")
    request.paths.get_report_path(".ncu-rep").write_bytes(REPORT)
    request.paths.get_report_path(".csv").write_text(table)
    verdict = Ncu().determine_run_status(request, (make_outcome(**first), make_outcome(**export)))
    assert_verdict(verdict, status, *((reason,) if reason else ()))
    best = ".csv" if table == TABLE else ".ncu-rep"
    assert Ncu().get_report_path(request.paths) == request.paths.get_report_path(best), (
        "without a table the report itself"
    )


@pytest.mark.parametrize(
    ("exit_code", "said", "reason", "remedy"),
    [
        (
            1,
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission",
            "the driver lets only administrators",
            "NVreg_Restrict",
        ),
        (
            1,
            "==ERROR== Profiling failed because a driver resource was unavailable.",
            "another program holds the GPU's counters, usually DCGM",
            "dcgmi profile --pause",
        ),
        (
            9,
            "==ERROR== Failed to open lock file /tmp/nsight-compute-lock",
            "ncu's lock file",
            "Set TMPDIR",
        ),
        (0, NO_KERNELS, "ncu profiled no kernels: ", "perfctl doctor"),
        (
            1,
            "==ERROR== Failed to find metric foo__bar.sum",
            "ncu printed: Failed to find metric foo__bar.sum",
            "",
        ),
        (11, NO_KERNELS, "the program crashed (segmentation fault)", ""),
        (9, NO_KERNELS, "the program was killed (SIGKILL)", ""),
    ],
)
def test_its_failures_read_as_cause_and_remedy(
    make_request, make_outcome, exit_code, said, reason, remedy
):
    verdict = Ncu().determine_run_status(
        make_request("cuda"), (make_outcome(exit_code, stdout=f"loss 0.1\n{said}\n"),)
    )
    assert_verdict(verdict, "failed", reason, remedy)


@pytest.mark.parametrize(
    ("options", "report", "reason"),
    [
        ({}, b"junk", "report.ncu-rep is damaged"),
        ({"layers": ("convX",)}, None, "ncu profiled no kernels in the selected layers (convX)"),
        ({"kernel_name": "gemm"}, None, "ncu profiled no kernels: none in the measured steps"),
    ],
)
def test_without_a_message_of_ncu_the_request_explains_a_missing_report(
    make_request, make_outcome, options, report, reason
):
    request = make_request("cuda")
    if report is not None:
        request.paths.get_report_path(".ncu-rep").write_bytes(report)
    verdict = Ncu(**options).determine_run_status(request, (make_outcome(0, stdout=NO_KERNELS),))
    assert_verdict(verdict, "failed", reason)


def test_a_layer_narrows_ncu_to_the_ranges_of_its_directions_and_of_the_layers_inside(make_request):
    argv = Ncu(metrics="fadd", layers=("conv2", "fc1")).build_commands(make_request("cuda"))[0].argv
    asked = [argv[number + 1] for number, word in enumerate(argv) if word == "--nvtx-include"]
    directions = ("forward", "grad_input", "grad_weight", "grad_bias", "backward", "recompute")
    for layer in ("conv2", "fc1"):
        assert {f"{layer}:{direction}/" for direction in directions} <= set(asked)
        assert f"regex:(.+[.])?{layer}([.].+)?:({'|'.join(directions)})/" in asked
    assert len(asked) == 2 * (len(directions) + 1)
    assert argv.index("--nvtx-include") < argv.index("/opt/python")


@pytest.mark.parametrize(
    ("name", "literal"),
    [
        ("layer1.0.conv1", "layer1.0.conv1"),
        ("a[0]", r"a\[0\]"),
        ("x@y,z", r"x\@y\,z"),
        ("m/n*+", r"m\/n\*\+"),
        ("b\\c", r"b\\c"),
    ],
)
def test_what_means_something_to_ncu_in_a_layers_name_is_escaped(name, literal):
    assert ncu.build_nvtx_filters_of_layer(name)[0] == f"{literal}:forward/"


@pytest.mark.parametrize(
    ("layer", "range_name", "matches"),
    [
        ("conv2", "conv2:grad_weight", True),
        ("conv2", "model.conv2:forward", True),
        ("conv2", "conv20:forward", False),
        ("conv2", "conv2:optimizer", False),
        ("layer1", "model.layer1.0.bn1:backward", True),
        ("layer1.0", "layer1.10.conv:forward", False),
        ("a[0]", "a[0].conv:forward", True),
        ("é.x", "é.x.y:forward", True),
    ],
)
def test_the_expression_for_inner_layers_finds_them_and_not_their_neighbours(
    layer, range_name, matches
):
    expression = ncu.build_nvtx_filters_of_layer(layer)[-1].removeprefix("regex:").removesuffix("/")
    assert (re.fullmatch(expression, range_name) is not None) is matches


@pytest.mark.skipif(tools.find_program("ncu") is None, reason="ncu is not installed")
def test_the_installed_ncu_takes_the_expressions_of_hostile_names(tmp_path):
    layers = ("conv2", "a[0]", "x@y,z", "m/n*+", "b\\c", "[q]", "é", "a b", "$x", "(y|z)")
    ranges = [name for layer in layers for name in ncu.build_nvtx_filters_of_layer(layer)]
    options = ncu.repeat_option("--nvtx-include", ranges)
    argv = ["ncu", "--nvtx", *options, "--metrics", "smsp__inst_executed.sum", "true"]
    said = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert "Invalid configuration" not in said.stdout + said.stderr
    assert "No kernels were profiled" in said.stdout + said.stderr


@pytest.mark.parametrize(
    ("words", "filters"),
    [
        (("--kernel-name", ncu.build_noncommunication_kernel_filter(None)), ()),
        (
            ("--kernel-name", ncu.build_noncommunication_kernel_filter("regex:gemm")),
            ("--kernel-name",),
        ),
        (("-k", "gemm"), ("--kernel-name",)),
        (("--kernel-name=gemm", "-s", "5"), ("--kernel-name", "--launch-skip")),
        (("--launch-count=3",), ("--launch-count",)),
        (("--nvtx-exclude", "a]", "--nvtx-exclude", "b]"), ("--nvtx-exclude",)),
        (("--nvtx-include", "conv2:forward/"), ("--nvtx-include",)),
        (("python3", "-m", "perfctl.workloads", "--launch-skip", "5"), ()),
    ],
)
def test_which_options_leave_launches_out(words, filters):
    assert ncu.find_user_launch_filters(("ncu", "--nvtx", *words)) == filters
