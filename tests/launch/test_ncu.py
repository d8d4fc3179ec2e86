"""Whole argument lists, and verdicts from what ncu 2022.3 says and leaves behind."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch import ncu_metrics, tools
from perfctl.orchestrator.launch.ncu import Ncu
from perfctl.orchestrator.launch.profiler import Verdict

TABLE = '"ID","Process ID","Process Name"\n"","",""\n"0","7","python"\n'
REPORT = b"NVR\0rest"


def test_one_run_keeps_the_report_and_prints_it_as_csv(make_request):
    request = make_request("cuda")
    part = request.paths.part
    profile, table = Ncu(metrics="fadd").commands(request)
    assert profile.argv == (
        "ncu", "--force-overwrite", "--export", f"{part}/report.ncu-rep", "--nvtx", "--target-processes", "all",
        "--profile-from-start", "off", "--clock-control", "base", "--cache-control", "all",
        "--metrics", "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
        "/opt/python", "-m", "perfctl.workloads", "mnist_cnn", "--batch", "16", "--record", f"{part}/workload.json",
        "--annotate", "nvtx", "--window", "cuda", "--steps", "2",
    )  # fmt: skip
    assert table.argv == (
        "ncu", "--import", f"{part}/report.ncu-rep", "--csv", "--page", "raw", "--print-units", "base",
        "--log-file", f"{part}/report.csv",
    )  # fmt: skip
    assert (dict(table.environment), table.needs) == ({"LC_ALL": "C"}, part / "report.ncu-rep")


def test_filters_and_controls_reach_ncu(make_request):
    asked = Ncu(
        metrics="a.sum,b.avg", clock_control="none", cache_control="none", kernel="regex:gemm", skip=2, count=5,
        extra=("--replay-mode", "application"),
    )  # fmt: skip
    argv = asked.commands(make_request("cuda"))[0].argv
    options = argv[argv.index("--clock-control") : argv.index("/opt/python")]
    assert options == (
        "--clock-control", "none", "--cache-control", "none", "--metrics", "a.sum,b.avg", "--kernel-name", "regex:gemm",
        "--launch-skip", "2", "--launch-count", "5", "--replay-mode", "application",
    )  # fmt: skip


@pytest.mark.parametrize("metrics", ["", "a,,b", "a;rm", "a b", "$(x)", "a,"])
def test_metrics_that_cannot_be_names_are_refused(metrics):
    with pytest.raises(UsageError, match="is not a list of metric names"):
        Ncu(metrics=metrics)


@pytest.mark.parametrize("option", ["clock_control", "cache_control"])
def test_unknown_controls_are_refused(option):
    with pytest.raises(UsageError, match="is not known"):
        Ncu(**{option: "sometimes"})


def test_a_cpu_has_nothing_to_count(make_request):
    with pytest.raises(UsageError, match="GPUs only"):
        Ncu().commands(make_request("cpu"))


def test_what_is_missing_is_named_one_by_one(monkeypatch):
    monkeypatch.setattr(tools, "find", lambda program: None)
    monkeypatch.setattr(tools, "has_gpu_driver", lambda: False)
    monkeypatch.setattr(tools, "has_package", lambda name: False)
    assert [tool.name for tool in Ncu().missing()] == ["ncu", "an NVIDIA driver", "torch"]


def test_a_report_and_its_table_are_ok(make_request, make_outcome):
    request = make_request("cuda")
    request.paths.report(".ncu-rep").write_bytes(REPORT)
    request.paths.report(".csv").write_text(TABLE)
    assert Ncu().judge(request, (make_outcome(), make_outcome())) == Verdict("ok", None)
    assert Ncu().artifact(request.paths) == request.paths.report(".csv")


def test_without_a_table_the_report_itself_is_the_artifact(make_request, make_outcome):
    request = make_request("cuda")
    request.paths.report(".ncu-rep").write_bytes(REPORT)
    request.paths.report(".csv").write_text("==ERROR== Failed to load report file\n")
    verdict = Ncu().judge(request, (make_outcome(), make_outcome(1, stderr="required fields are missing\n")))
    assert verdict.status == "partial"
    assert "could not print it as CSV: required fields are missing" in verdict.reason
    assert Ncu().artifact(request.paths) == request.paths.report(".ncu-rep")


def test_a_program_that_failed_under_ncu_is_partial(make_request, make_outcome):
    request = make_request("cuda")
    request.paths.report(".ncu-rep").write_bytes(REPORT)
    request.paths.report(".csv").write_text(TABLE)
    first = make_outcome(3, stdout="==ERROR== The application returned an error code (3).\n", stderr="KeyError: 'x'\n")
    verdict = Ncu().judge(request, (first, make_outcome()))
    assert verdict.status == "partial"
    assert verdict.reason.startswith("the program ended with exit code 3: KeyError: 'x'")


def test_kernels_that_ncu_could_not_profile_make_it_partial(make_request, make_outcome):
    request = make_request("cuda")
    request.paths.report(".ncu-rep").write_bytes(REPORT)
    request.paths.report(".csv").write_text(TABLE)
    first = make_outcome(0, stdout='==PROF== Connected\n==ERROR== Failed to profile "gemm" in process 7\n')
    verdict = Ncu().judge(request, (first, make_outcome()))
    assert verdict == Verdict("partial", 'ncu went on after an error: Failed to profile "gemm" in process 7')


@pytest.mark.parametrize(
    ("exit_code", "said", "cause", "remedy"),
    [
        (1, "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "only administrators", "NVreg_Restrict"),
        (1, "==ERROR== Profiling failed because a driver resource was unavailable.", "DCGM", "dcgmi profile --pause"),
        (9, "==ERROR== Failed to open lock file /tmp/nsight-compute-lock", "lock file", "Set TMPDIR"),
        (0, "==WARNING== No kernels were profiled.", "profiled no kernels", "perfctl doctor"),
        (1, "==ERROR== Failed to find metric foo__bar.sum", "ncu said: Failed to find metric foo__bar.sum", ""),
    ],
)
def test_its_failures_read_as_cause_and_remedy(make_request, make_outcome, exit_code, said, cause, remedy):
    verdict = Ncu().judge(make_request("cuda"), (make_outcome(exit_code, stdout=f"loss 0.1\n{said}\n"),))
    assert verdict.status == "failed"
    assert cause in verdict.reason
    assert remedy in verdict.reason


@pytest.mark.parametrize(("exit_code", "word"), [(11, "crashed (segmentation fault)"), (9, "was killed (SIGKILL)")])
def test_bare_signal_numbers_are_read_as_signals(make_request, make_outcome, exit_code, word):
    first = make_outcome(exit_code, stdout="==WARNING== No kernels were profiled.\n")
    verdict = Ncu().judge(make_request("cuda"), (first,))
    assert verdict.reason.startswith(f"the program {word}")


def test_a_damaged_report_is_said_to_be_damaged(make_request, make_outcome):
    request = make_request("cuda")
    request.paths.report(".ncu-rep").write_bytes(b"junk")
    verdict = Ncu().judge(request, (make_outcome(0, stdout="bye\n"),))
    assert (verdict.status, verdict.reason.startswith("report.ncu-rep is damaged")) == ("failed", True)


QUERY = """Chip gx100
--------------------------- ------------- ----------- -----------------------------
Metric Name                 Metric Type   Metric Unit Metric Description
--------------------------- ------------- ----------- -----------------------------
dram__bytes_read            Counter       byte        # of bytes read from DRAM
gpu__time_duration          Counter       nsecond     equals to gpu__time_duration_measured_user
                                                      equals to gpu__time_duration_measured_wallclock
sm__inst_executed_pipe_tensor Counter     inst        # of warp instructions
sm__inst_executed_pipe_tensor_op_hmma_type_hfma2 Counter inst HFMA2.MMA
sm__ops_path_tensor_src_fp16_dst_fp32 Counter         operations
sm__ops_path_tensor_src_fp16_dst_fp32_sparsity_off Counter operations
sm__ops_path_tensor_src_fp16_dst_fp32_sparsity_on Counter operations
smsp__sass_thread_inst_executed_op_fadd_pred_on Counter inst
smsp__sass_thread_inst_executed_op_ffma_pred_on Counter inst
smsp__sass_thread_inst_executed_op_ffma2_pred_on Counter inst
smsp__sass_thread_inst_executed_op_memory_pred_on Counter inst
"""


def test_only_counters_of_the_chip_are_asked_for(monkeypatch):
    monkeypatch.setattr(ncu_metrics, "chip_metrics", lambda chip: ncu_metrics.read_metrics(QUERY))
    assert ncu_metrics.flops("gx100") == (
        "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
        "sm__inst_executed_pipe_tensor.sum",
        "gpu__time_duration.sum",
        "dram__bytes_read.sum",
        "smsp__sass_thread_inst_executed_op_ffma2_pred_on.sum",
        "sm__ops_path_tensor_src_fp16_dst_fp32.sum",
        "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum",
    )


def test_an_unknown_chip_gets_the_portable_counters():
    assert ncu_metrics.flops(None) == ncu_metrics.PORTABLE
    assert len(set(ncu_metrics.PORTABLE)) == 3 * 3 + 1 + 3


def test_the_chip_comes_from_the_compute_capability(monkeypatch):
    monkeypatch.setattr(tools, "find", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(tools, "output", lambda *argv: "8.0\n8.6\n")
    ncu_metrics.chip.cache_clear()
    assert ncu_metrics.chip() == "ga100"
    ncu_metrics.chip.cache_clear()


@pytest.mark.skipif(tools.find("ncu") is None, reason="ncu is not installed")
@pytest.mark.parametrize(("chip", "moves"), [("gv100", False), ("ga100", True)])
def test_the_installed_ncu_knows_its_chips_without_a_gpu(chip, moves):
    asked = ncu_metrics.flops(chip)
    assert set(ncu_metrics.PORTABLE) <= set(asked)
    assert ("sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum" in asked) is moves
