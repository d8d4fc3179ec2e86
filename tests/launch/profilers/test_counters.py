"""Which counters ncu is asked for: by its own list, for the GPU that is used, where it will run.
ncu and nvidia-smi are played by scripts, and by the installed ncu, which needs no GPU to list
a chip."""

import os

import pytest

from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers import counters
from perfctl.orchestrator.launch.profilers.counters import (
    CORE,
    PORTABLE,
    choose_counters,
    parse_metric_names,
    query_available_counters_or_reason,
    select_flop_counters,
)
from perfctl.orchestrator.launch.profilers.ncu import Ncu
from tests.launch.programs import write_program

PATH = "sm__ops_path_tensor_"
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


def test_only_counters_of_the_chip_are_asked_for_and_the_three_of_fp32_always():
    assert select_flop_counters(parse_metric_names(QUERY)) == (
        *CORE[:3],
        "sm__inst_executed_pipe_tensor.sum",
        "gpu__time_duration.sum",
        "dram__bytes_read.sum",
        "smsp__sass_thread_inst_executed_op_ffma2_pred_on.sum",
        f"{PATH}src_fp16_dst_fp32.sum",
        "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum",
    )
    assert [name.split("_op_")[1][:4] for name in CORE[:3]] == ["fadd", "fmul", "ffma"]


def test_each_tensor_type_is_asked_for_once():
    names = {
        "fp16",
        "fp16_dst_fp16",
        "fp16_dst_fp32",
        "fp64",
        "fp8_sparsity_on",
        "fp8_sparsity_off",
        "int8",
    }
    wanted = names - {"fp16"}  # the sum of the two forms that say what they add up to
    asked = select_flop_counters(frozenset(f"{PATH}src_{name}" for name in names))
    assert {name for name in asked if "ops_path" in name} == {
        f"{PATH}src_{name}.sum" for name in wanted
    }


def test_blackwell_has_its_tensor_pipe_in_parts_and_instructions_of_tensor_memory():
    pipe = "sm__inst_executed_pipe_tensor_subpipe_"
    known = {
        f"{pipe}hmma",
        f"{pipe}imma",
        f"{pipe}hmma_op_hmma",
        "sm__pipe_tensor_subpipe_hmma_cycles_active",
    }
    fp8 = f"{PATH}op_utcqmma_src_fp8_dst_fp32"
    known |= {
        fp8,
        f"{fp8}_sparsity_on",
        f"{fp8}_sparsity_off",
        f"{fp8}_realtime",
        f"{PATH}op_hmma_src_fp16_dst_fp32",
    }
    asked = select_flop_counters(frozenset(known))
    assert [name for name in asked if "tensor" in name] == [
        f"{pipe}hmma.sum",
        f"{pipe}imma.sum",
        f"{fp8}.sum",
    ]
    assert "sm__inst_executed_pipe_tensor.sum" in select_flop_counters(
        frozenset({"dram__bytes_read"})
    ), "some tensor counter always"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A node with a V100, an A100 in two MIG instances, and a Blackwell that its ncu does not know
    by the chip's name."""
    folder = tmp_path / "bin"
    chips = "index,compute_cap) printf '0, 7.0\\n1, 8.0\\n2, 10.3\\n';;"
    cards = "".join(f"{n}, GPU-{n}{n}-aa, 00000000:{n}5:00.0\\n" for n in range(3))
    listed = "GPU 1: NVIDIA A100 (UUID: GPU-11-aa)\\n  MIG 3g.20gb Device 0: (UUID: MIG-77-bb)\\n"
    write_program(
        folder / "nvidia-smi",
        f"case $1 in --query-gpu={chips}\n--list-gpus) printf '{listed}';;\n*) printf '{cards}';; esac",
    )
    write_program(folder / "ncu", NCU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    tools.run_cached_for_output.cache_clear()
    counters._choose_flop_counters.cache_clear()
    yield folder
    tools.run_cached_for_output.cache_clear()
    counters._choose_flop_counters.cache_clear()


NCU = """[ "$1" = --query-metrics ] || exit 9
case "$2 $3" in
"--chips gv100") echo "sm__inst_executed_pipe_tensor Counter inst of V100";;
"--chips ga100") echo "sm__ops_path_tensor_src_tf32_dst_fp32 Counter of A100";;
"--devices 0") [ "$CUDA_VISIBLE_DEVICES" = 2 ] && echo "sm__inst_executed_pipe_tensor_subpipe_hmma Counter of B300" ;;
*) echo "==ERROR== Invalid chip $3"; echo "Use --help for further details."; exit 1;;
esac
"""


@pytest.mark.parametrize(
    ("visible", "has", "target", "capability"),
    [
        (None, "pipe_tensor.sum", "chip gv100", "7.0"),
        ("1,0", "src_tf32_dst_fp32.sum", "chip ga100", "8.0"),
        ("GPU-11", "src_tf32_dst_fp32.sum", "chip ga100", "8.0"),
        ("MIG-77-bb", "src_tf32_dst_fp32.sum", "chip ga100", "8.0"),
        ("MIG-GPU-11-aa/1/0", "src_tf32_dst_fp32.sum", "chip ga100", "8.0"),
        ("2", "subpipe_hmma.sum", "the device itself", "10.3"),
    ],
)
def test_the_counters_are_those_of_the_gpu_that_the_program_sees(
    machine, visible, has, target, capability
):
    found, gpu = choose_counters("flops", visible), (visible or "0").partition(",")[0]
    assert found.queried
    assert found.reason == (
        f"those that ncu lists for {target} (GPU {gpu}, compute capability {capability})"
    )
    assert any(name.endswith(has) for name in found.names)
    assert set(CORE[:3]) <= set(found.names)


def test_numbers_mean_nothing_where_cuda_may_count_differently(machine, monkeypatch):
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    found = choose_counters("flops", "1")
    assert not found.queried
    assert "CUDA numbers unlike GPUs by speed" in found.reason
    assert choose_counters("flops", "GPU-11").queried, "a UUID always means the same GPU"


def test_a_query_that_fails_is_said_and_the_portable_list_stands_in(machine):
    found = choose_counters("flops", "9")
    assert (found.names, found.queried) == (PORTABLE, False)
    assert found.reason == (
        "the portable list, because ncu lists no counters for GPU 9, of unknown compute capability "
        "(ncu --query-metrics --devices 0: exit code 1, no output)"
    )


def test_a_query_that_takes_too_long_is_said(machine, monkeypatch):
    write_program(machine / "ncu", "exec sleep 60")
    monkeypatch.setattr(counters, "QUERY_S", 0.2)
    assert query_available_counters_or_reason(("--chips", "ga100")) == (
        frozenset(),
        "no response within 0 s",
    )
    assert "no response within 0 s" in choose_counters("flops", "1").reason


def test_in_an_image_the_ncu_of_the_image_is_asked(machine, tmp_path):
    runtime = write_program(
        tmp_path / "apptainer",
        'shift 2\necho "$@" >&2\n[ "$3 $4" = "--chips ga100" ] && '
        'echo "sm__ops_path_tensor_src_bf16_dst_fp32 Counter of the image"',
    )
    (machine / "ncu").unlink()
    found = choose_counters("flops", "1", (str(runtime), "exec", "x.sif"))
    assert (
        found.reason
        == "those that ncu in the image lists for chip ga100 (GPU 1, compute capability 8.0)"
    )
    assert f"{PATH}src_bf16_dst_fp32.sum" in found.names


def test_the_choice_and_its_reason_go_into_the_runs_record(machine, make_request):
    facts = Ncu().build_commands(make_request("cuda"))[0].facts
    assert facts["ncu:metrics"].split(",") == list(choose_counters("flops").names)
    assert facts["ncu:metrics_chosen"] == choose_counters("flops").reason
    asked = Ncu(metrics="a.sum,b.avg").build_commands(make_request("cuda"))[0].facts
    assert asked == {"ncu:metrics": "a.sum,b.avg", "ncu:metrics_chosen": "set by the user"}


@pytest.mark.skipif(tools.find_program("ncu") is None, reason="ncu is not installed")
@pytest.mark.parametrize(("chip", "moves"), [("gv100", False), ("ga100", True)])
def test_the_installed_ncu_knows_its_chips_without_a_gpu(chip, moves):
    known, why = query_available_counters_or_reason(("--chips", chip))
    assert why == ""
    assert set(PORTABLE) <= set(select_flop_counters(known))
    assert (
        "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum" in select_flop_counters(known)
    ) is moves


@pytest.mark.skipif(tools.find_program("ncu") is None, reason="ncu is not installed")
def test_the_installed_ncu_says_why_it_lists_nothing():
    assert query_available_counters_or_reason(("--chips", "gx999")) == (
        frozenset(),
        "Invalid chip gx999",
    )
