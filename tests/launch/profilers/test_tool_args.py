"""Options that a user passes on to a profiler: taken as a shell would, refused only where perfctl
needs them itself."""

import os
import re
import subprocess

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers import base, ncu
from perfctl.orchestrator.launch.profilers.dlprof import DLProf
from perfctl.orchestrator.launch.profilers.ncu import Ncu
from perfctl.orchestrator.launch.profilers.nsys import Nsys


def test_words_are_split_as_a_shell_splits_them():
    assert base.split_shell_words("--env-var 'A=b c' -x \"$HOME\"") == (
        "--env-var",
        "A=b c",
        "-x",
        "$HOME",
    )
    with pytest.raises(UsageError, match=r"`tool_args`.*No closing quotation"):
        base.split_shell_words("--env-var 'A")


@pytest.mark.parametrize(
    ("make", "words", "why"),
    [
        (Ncu, "--export x", "does not pass --export to ncu: perfctl sets the name of the report"),
        (Ncu, "-ox", r"does not pass -ox \(-o\) to ncu: perfctl sets the name of the report"),
        (Ncu, "--expo=x", r"does not pass --expo=x \(--export\) to ncu"),
        (Ncu, "--metrics a.sum", "it has an option of that name"),
        (Ncu, "--kernel-name regex:nccl", "which leaves communication kernels out"),
        (Ncu, "--replay-mode range", "reads the report accordingly"),
        (Ncu, "--profile-from-start on", "cudaProfilerStart"),
        (Ncu, "--csv", "perfctl exports the table itself"),
        (Ncu, "--list-sets", "counts nothing"),
        (Ncu, "train.py", "would treat it as the program"),
        (Nsys, "-o /tmp/x", "perfctl sets the name of the report"),
        (Nsys, "--capture-range=none", "it marks the measured steps"),
        (Nsys, "--session-new=mine", "by the name of the session"),
        (Nsys, "-d 5", "records only the measured steps"),
        (DLProf, "--formats=json", "perfctl reads CSV"),
    ],
)
def test_what_perfctl_needs_itself_is_refused_with_the_reason(make, words, why):
    with pytest.raises(UsageError, match=f"`tool_args`.*{why}"):
        make(extra=base.split_shell_words(words))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Ncu, "--import-source yes --kernel-id ::gemm:2 --call-stack --pm-sampling-interval 1000"),
        (Ncu, "--filter-mode per-launch-config --launch-count 1"),
        (
            Ncu,
            (
                "--nvtx-include conv2:forward/ --nvtx-exclude loss/ --cache-control none "
                "--target-processes all"
            ),
        ),
        (
            Nsys,
            (
                "--sample=process-tree --cpuctxsw=process-tree --backtrace=dwarf "
                "--cuda-memory-usage=true"
            ),
        ),
        (
            Nsys,
            "--gpuctxsw=true --nic-metrics=true --python-sampling=true --wait=all --env-var=A=1",
        ),
        (DLProf, "--iter_start=5 --key_op=conv2 --delay=1"),
    ],
)
def test_everything_else_passes(make, words):
    assert make(extra=base.split_shell_words(words)).extra == base.split_shell_words(words)


def test_nsys_gets_the_users_trace_once(make_request):
    asked = Nsys(
        trace="cuda",
        gpu_metrics_devices="0",
        stats=True,
        cuda_graph_trace="graph",
        extra=("-t", "cuda,osrt"),
    )
    argv = asked.build_commands(make_request("cuda"))[0].argv
    own = argv[: argv.index("/opt/python")]
    assert own[:4] == ("nsys", "profile", "--sample=none", "--cpuctxsw=none")
    assert own[-2:] == ("-t", "cuda,osrt")
    assert [
        word
        for word in own
        if word.startswith(("--trace", "--cuda-graph", "--stats", "--gpu-metrics-device"))
    ][:1] == [
        "--cuda-graph-trace=graph",
    ]
    assert "--stats=true" in own


@pytest.mark.parametrize(
    ("help_text", "option"),
    [
        (
            "\t--gpu-metrics-device=\n\t   by '--gpu-metrics-device=help' switch\n",
            "--gpu-metrics-device=0,1",
        ),
        ("\t--gpu-metrics-devices=\n", "--gpu-metrics-devices=0,1"),
    ],
)
def test_the_option_for_gpu_metrics_is_called_what_this_nsys_calls_it(
    make_request, monkeypatch, help_text, option
):
    monkeypatch.setattr(tools, "find_program", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(tools, "run_cached_for_output", lambda *argv: help_text)
    assert option in Nsys(gpu_metrics_devices="0,1").build_commands(make_request("cuda"))[0].argv


WAITS = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "ncclKernel_AllGather_RING_LL_Sum_int8_t",
    "ncclSymkDevKernel_AllReduce",
    "nvshmemi_proxy_quiet_kernel",
    "mscclKernel_Sum_float_Simple",
    "cross_device_reduce_1stage",
    "void vllm::cross_device_reduce_2stage<__half, 8>",
    "oneShotAllReduceKernel",
    "allreduce_fusion_kernel_oneshot_lamport",
    "userbuffers_fp16_sum_inplace_gpu_rr_rs",
    "multimem_one_shot_all_reduce_kernel",
    "two_shot_all_reduce_kernel",
)
WORKS = (
    "ampere_sgemm_128x64_nn",
    "volta_scudnn_128x64_relu_interior_nn_v1",
    "vectorized_elementwise_kernel",
    "reduce_kernel",
    "indexSelectLargeIndex",
    "vectorized_gather_kernel",
    "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
    "triton_red_fused_native_layer_norm_0",
    "flash_fwd_kernel",
    "splitKreduce_kernel",
    "multi_tensor_apply_kernel",
)


def matches(value, name):
    """As ncu does it: a search with a Perl expression."""
    return re.search(value.removeprefix("regex:"), name) is not None


@pytest.mark.parametrize("asked", [None, "regex:.", "regex:^(?:n|v|o|a|c|u|m|t)|e|i"])
def test_kernels_that_wait_for_another_gpu_are_never_replayed(asked):
    value = ncu.build_noncommunication_kernel_filter(asked)
    assert [name for name in WAITS if matches(value, name)] == []
    assert [name for name in WORKS if not matches(value, name)] == []


def test_the_users_choice_is_made_among_the_others():
    value = ncu.build_noncommunication_kernel_filter("regex:gemm$|^flash")
    assert [name for name in (*WORKS, "my_gemm", "nccl_gemm") if matches(value, name)] == [
        "flash_fwd_kernel",
        "my_gemm",
    ]
    assert ncu.build_noncommunication_kernel_filter("reduce_kernel") == "reduce_kernel"


ANY_NCU = pytest.mark.skipif(tools.find_program("ncu") is None, reason="ncu is not installed")
ANY_NSYS = pytest.mark.skipif(tools.find_program("nsys") is None, reason="nsys is not installed")


def said_by_ncu(tmp_path, request, asked):
    argv = asked.build_commands(request)[0].argv
    own = (*argv[: argv.index("/opt/python")], "true")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(own, capture_output=True, text=True, env=environment, check=False)
    return done.stdout + done.stderr


@ANY_NCU
@pytest.mark.parametrize(
    "asked",
    [
        Ncu(metrics="fadd"),
        Ncu(
            metrics="fadd",
            kernel_name="regex:gemm|conv",
            launch_skip=1,
            launch_count=2,
            section=("SpeedOfLight",),
        ),
        Ncu(
            metrics="fadd",
            replay_mode="application",
            section_set="full",
            clock_control="none",
            cache_control="none",
        ),
        Ncu(metrics="dram__bytes_read.sum,sm__inst_executed_pipe_tensor.sum", replay_mode="range"),
        Ncu(
            metrics="fadd",
            layers=("conv2",),
            extra=("--kernel-id", "::gemm:2", "--nvtx-exclude", "loss/"),
        ),
    ],
)
def test_the_installed_ncu_takes_every_list_of_options(tmp_path, make_request, asked):
    said = said_by_ncu(tmp_path, make_request("cuda"), asked)
    errors = [line for line in said.splitlines() if "==ERROR==" in line]
    assert errors in ([], ["==ERROR== Failed to create report."]), (
        "2024.1 says so where an application launched nothing"
    )
    assert re.search(r"No (?:kernels|ranges) were profiled", said)


@ANY_NSYS
def test_the_installed_nsys_knows_every_option_that_perfctl_gives_it(make_request):
    listed = tools.get_output_if_installed("nsys", "profile", "--help")
    asked = Nsys(trace="cuda", cuda_graph_trace="node", gpu_metrics_devices="0", stats=True)
    argv = asked.build_commands(make_request("cuda"))[0].argv
    names = [word.partition("=")[0] for word in argv[2 : argv.index("/opt/python")]]
    assert [name for name in names if f"{name}=" not in listed] == []
