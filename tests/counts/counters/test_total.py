"""What FLOPs of a launch rest on: the chip and the version of ncu, sums or averages, and which
paths are in the total."""

from perfctl.orchestrator.counts.counters.work import (
    compute_kernel_flops,
    find_compute_capability,
    is_flop_counter,
)
from perfctl.orchestrator.counts.figure import Figure, make_missing_figure
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.records.report import Counter, Device, Kernel
from tests.make import synthetic
from tests.make.metrics import PIPE, ZEROS, ops
from tests.make.tables import table


@table(
    "known chip",
    [
        *((True, chip) for chip in ("sm80", "sm90", "hopper", "ada", "blackwell")),
        *((False, chip) for chip in ("sm75", "sm70", "turing", "volta")),
    ],
)
def test_a_kernel_made_for_compute_capability_8_tells_the_chip(chip, known):
    """32 x 100 tensor instructions beside 3200 HFMA2 only moved constants, if the chip is one that
    does so."""
    values = ZEROS | ops(hfma=3200, ffma=7) | {PIPE: 100}
    counters = [Counter(0, name, value, None) for name, value in values.items()]
    kernels = [Kernel(0, f"{chip}_sgemm_128x64_tn"), Kernel(1, "volta_sgemm_128x64_tn")]
    run = synthetic.make_run(device=None, kernels=kernels, counters=counters)
    tensor = PreparedRun(run).flops_by_launch[0].tensor
    assert (tensor.value, tensor.state) == ((0, "counted") if known else (None, "refused"))


def test_capability_and_number_of_sms_are_the_device_s_own_else_the_first_that_says_so():
    bare, said = Device("x", "gpu"), Device("y", "gpu", compute_capability="7.0", sm_count=10)
    other = Device("z", "gpu", compute_capability="6.1", sm_count=20)
    averages = [
        Counter(4, name.replace(".sum", ".avg"), value, None)
        for name, value in (ZEROS | ops(fadd=3)).items()
    ]
    for device, listed, capability, sms in (
        (other, (said,), "6.1", 20),
        (bare, (bare, said), "7.0", 10),
        (None, (said, other), "7.0", 10),
        (bare, (), None, None),
    ):
        run = synthetic.make_run(device=device, devices=listed, counters=averages)
        assert find_compute_capability(run) == capability
        found = PreparedRun(run).flops_by_launch[4].fp32
        assert found.value == (None if sms is None else 3 * 4 * sms), "four partitions an SM"


def test_half_precision_is_weighed_as_the_version_of_ncu_does():
    counters = [
        Counter(0, name, value, None)
        for name, value in (ops(hadd=1, hmul=2, hfma=3) | {PIPE: 0}).items()
    ]
    made = [
        synthetic.make_run(
            device=synthetic.V100, counters=counters, profiler_version=own, tool_version=said
        )
        for own, said in (
            ("2024.3", "2025.1"),
            ("2025.1", "2024.3"),
            (None, "2025.1"),
            (None, None),
        )
    ]
    assert [PreparedRun(run).flops_by_launch[0].fp16.value for run in made] == [
        1 + 2 + 6,
        2 + 4 + 12,
        2 + 4 + 12,
        1 + 2 + 6,
    ]


@table(
    "makes name",
    [
        (True, "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"),
        (True, "derived__smsp__sass_thread_inst_executed_op_ffma_pred_on_x2"),
        (True, "sm__inst_executed_pipe_tensor.sum"),
        (True, "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum"),
        (True, "sm__ops_path_tensor_src_fp16.sum"),
        (False, "smsp__cycles_elapsed.avg"),
        (False, "gpu__time_duration.sum"),
        (False, "sm__inst_executed.sum"),
        (False, "sm__inst_executed_pipe_fma.sum"),
        (True, "SQ_INSTS_VALU_ADD_F16"),
        (True, "SQ_INSTS_VALU_MFMA_MOPS_XF32"),
        (False, "SQ_INSTS_VALU_MFMA_F16"),
        (False, "SQ_INSTS_VALU"),
        (False, "SQ_WAVES"),
    ],
)
def test_which_metrics_make_flops(makes, name):
    assert is_flop_counter(name) is makes


def test_the_total_adds_every_path_and_says_what_is_not_in_it():
    every = compute_kernel_flops(ZEROS | ops(ffma=10, dadd=3, hmul=5) | {PIPE: 2}, "7.0")
    half, cores = (
        "HADD + HMUL + 2 HFMA; up to twice if instructions are packed",
        "512 x tensor instructions",
    )
    assert (every.total.value, every.total.state, every.total.missing) == (
        20 + 3 + 5 + 1024,
        "estimated",
        (),
    )
    assert every.total.reason == f"{half}; {cores} (HMMA.884, fp32 accumulation)"
    assert every.total.rule == (
        "fp32: FADD + FMUL + 2 FFMA; fp64: DADD + DMUL + 2 DFMA; fp16: HADD + HMUL + 2 HFMA; "
        f"tensor: {every.tensor.rule}"
    )
    lacking = compute_kernel_flops(ops(fadd=1, fmul=0, ffma=0, dadd=0, dmul=0, dfma=0), "8.0").total
    assert (lacking.value, lacking.state, lacking.missing) == (1, "counted", ("fp16", "tensor"))
    assert lacking.reason == (
        "fp16: fp16 counters were not collected (HADD, HMUL, HFMA); tensor: tensor counters were not collected"
    )
    old = compute_kernel_flops(ZEROS | ops(ffma=10), "6.1").total
    assert (old.value, old.reason, old.missing) == (20, None, ()), (
        "no tensor cores is nothing that is missing"
    )


def test_nothing_but_0_with_a_part_missing_is_no_total_and_says_which_part():
    packed = compute_kernel_flops(ZEROS | {PIPE: 0}, "10.0")
    assert (packed.fp32.value, packed.fp32.missing) == (0, ("packed fp32",))
    assert packed.total == make_missing_figure(
        "not_collected", "packed fp32 was not collected and the rest is 0"
    )
    path = compute_kernel_flops(ZEROS, "8.0").total
    assert path == make_missing_figure("not_collected", "tensor counters were not collected")
    first = compute_kernel_flops(ops(fadd=None, fmul=1, ffma=1), "8.0").total
    assert first == make_missing_figure("not_available", "ncu printed no value for FADD")
    nothing = compute_kernel_flops(ZEROS | {PIPE: 0}, "8.0").total
    assert nothing == Figure(0, "counted"), "nothing is missing: it is 0"


def test_only_what_rests_on_averages_becomes_an_estimate_and_each_rule_is_said_once():
    averages = {
        name.replace(".sum", ".avg"): value for name, value in (ZEROS | ops(ffma=5, hadd=1)).items()
    }
    found = compute_kernel_flops(averages | {PIPE.replace(".sum", ".avg"): 2}, "7.0", sm_count=10)
    rule, cores = "average x units: .avg x 40 SM partitions", "average x units: .avg x 10 SMs"
    assert (found.fp32, found.fp64) == (
        Figure(5 * 2 * 40, "estimated", rule),
        Figure(0, "estimated", rule),
    )
    assert (found.fp16.value, found.fp16.reason) == (
        40,
        f"{rule}; HADD + HMUL + 2 HFMA; up to twice if instructions are packed",
    )
    assert (found.tensor.value, found.tensor.reason) == (
        20 * 512,
        f"{cores}; 512 x tensor instructions (HMMA.884, fp32 accumulation)",
    )
    assert (found.total.value, found.total.state) == (400 + 40 + 20 * 512, "estimated")
    assert (found.total.reason or "").startswith(f"{rule}; {cores}; ")
    mixed = compute_kernel_flops(averages | {PIPE: 20}, "7.0", sm_count=10)
    assert mixed.tensor.reason == "512 x tensor instructions (HMMA.884, fp32 accumulation)", (
        "a sum that was collected"
    )
    old = compute_kernel_flops(averages | {PIPE.replace(".sum", ".avg"): 2}, "6.1", sm_count=10)
    assert (old.fp32.state, old.tensor.state) == ("estimated", "counted"), (
        "that it has no tensor cores is no estimate"
    )


def test_rates_that_give_no_counts_are_named_path_by_path():
    rates = {
        name.replace(".sum", ".sum.per_cycle_elapsed"): 0.5
        for name in ops(fadd=0, fmul=0, ffma=0, dadd=0, dmul=0)
    }
    found = compute_kernel_flops(rates, "8.0")
    said = "fp32 counters (FADD, FMUL, FFMA) exist as rates only, which give no exact counts"
    assert found.fp32 == found.total == make_missing_figure("not_collected", said)
    assert found.fp64.reason == "fp64 counters were not collected (DADD, DMUL, DFMA)", (
        "one of its three is not there"
    )


@table("unit", ["sm", "smsp"])
@table("form per", [("sum.per_cycle_elapsed", "cycles_elapsed.avg"), ("sum.per_second", None)])
def test_rates_of_either_unit_give_the_counts_back(form, per, unit):
    """2^30 multiply-adds in 2^20 cycles of that unit, or nanoseconds."""
    rates = {
        name.replace("smsp__", f"{unit}__").replace("sum", form): value
        for name, value in ZEROS.items()
    }
    name = f"{unit}__sass_thread_inst_executed_op_ffma_pred_on.{form}"
    assert name in rates
    rates[name] = 2**10 if per else 2**10 * 1e9
    found = compute_kernel_flops(
        rates | {f"{unit}__{per}" if per else "gpu__time_duration.sum": 2**20}, "7.0"
    ).fp32
    assert (found.value, found.state) == (2 * 2**30, "estimated")
