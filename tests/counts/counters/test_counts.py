"""Sums of weighted instructions, path by path: weights, what is lacking, and HFMA2 that only
moves constants."""

from perfctl.orchestrator.counts.counters import sums
from perfctl.orchestrator.counts.figure import Figure, make_missing_figure
from tests.make.metrics import PIPE, ops
from tests.make.tables import table

HALF = "HADD + HMUL + 2 HFMA"


@table("capability major", [("8.6", 8), ("10.0", 10), ("7", 7), (None, 0), ("", 0), ("sm_80", 0)])
def test_the_major_number_of_a_compute_capability(capability, major):
    assert sums.parse_major_capability(capability) == major


def test_a_sum_of_the_sm_is_taken_before_one_of_its_parts():
    assert sums.read_sm_or_smsp_metric({"sm__a.sum": 5, "smsp__a.sum": 6}, "a.sum") == 5
    assert sums.read_sm_or_smsp_metric({"sm__a.sum": 0, "smsp__a.sum": 6}, "a.sum") == 0
    assert sums.read_sm_or_smsp_metric({"sm__a.sum": None, "smsp__a.sum": 6}, "a.sum") == 6
    assert sums.read_sm_or_smsp_metric({"smsp__b.sum": 6}, "a.sum") is None
    assert sums.has_sm_or_smsp_metric({"sm__a.sum": None}, "a.sum")
    assert sums.has_sm_or_smsp_metric({"smsp__a.sum": None}, "a.sum")
    assert not sums.has_sm_or_smsp_metric({"smsp__a.sum.per_second": 5}, "a.sum")


@table(
    "values state reason",
    [
        ({}, "not_collected", "fp64 counters were not collected (DADD, DMUL, DFMA)"),
        (
            {"dadd": 1},
            "not_collected",
            "ncu collected only DADD, which gives no FLOPs without DMUL, DFMA",
        ),
        (
            {"dadd": 1, "dfma": 2},
            "not_collected",
            "ncu collected only DADD, DFMA, which gives no FLOPs without DMUL",
        ),
        ({"dadd": 1, "dmul": None, "dfma": 2}, "not_available", "ncu printed no value for DMUL"),
        (
            {"dadd": None, "dmul": None},
            "not_available",
            "ncu printed no value for DADD, DMUL, DFMA",
        ),
    ],
)
def test_a_path_needs_all_of_its_instructions(values, state, reason):
    assert sums.sum_weighted_instructions(ops(**values), "fp64") == make_missing_figure(
        state, reason
    )


def test_each_path_weighs_a_multiply_add_twice_and_names_its_rule():
    double = sums.sum_weighted_instructions(ops(dadd=100, dmul=20, dfma=3), "fp64")
    single = sums.compute_fp32_flops(ops(fadd=100, fmul=20, ffma=3), "9.0")
    assert (double.value, double.rule, double.state) == (126, "DADD + DMUL + 2 DFMA", "counted")
    assert (single.value, single.rule, single.missing) == (126, "FADD + FMUL + 2 FFMA", ())


@table(
    "capability packed value state missing",
    [
        ("9.0", {}, 7, "counted", ()),
        ("9.0", {"fadd2": 1, "fmul2": 1, "ffma2": 1}, 7, "counted", ()),
        (None, {}, 7, "counted", ()),
        ("10.0", {}, 7, "counted", ("packed fp32",)),
        ("10.0", {"fadd2": 1}, 7, "counted", ("packed fp32",)),
        ("10.0", {"fadd2": 0, "fmul2": 0, "ffma2": 0}, 7, "counted", ()),
        ("12.0", {"fadd2": 100, "fmul2": 10, "ffma2": 1}, 7 + 200 + 20 + 4, "estimated", ()),
    ],
)
def test_from_blackwell_on_packed_instructions_belong_to_single_precision(
    capability, packed, value, state, missing
):
    found = sums.compute_fp32_flops(ops(fadd=1, fmul=2, ffma=2, **packed), capability)
    assert (found.value, found.state, found.missing) == (value, state, missing)
    if len(packed) == 3 and capability != "9.0":
        assert found.rule == "FADD + FMUL + 2 FFMA + 2 FADD2 + 2 FMUL2 + 4 FFMA2"
    assert sums.compute_fp32_flops(ops(fadd=1, fmul=2, **packed), capability).value is None


@table(
    "names version doubled",
    [
        ((), None, False),
        ((), "2022.3.0", False),
        ((), "2024.3.2", False),
        ((), "2025.1.0", True),
        ((), "2026.1", True),
        ((), "unknown", False),
        ((), "12025.1", False),
        (("x.op_hfma_pred_on_x4",), "2022.3.0", True),
        (("x.op_hfma_pred_on_x2",), "2025.1.0", False),
        (("x.op_hfma_pred_on_x2", "x.op_hfma_pred_on_x4"), None, True),
    ],
)
def test_half_precision_is_weighed_as_that_version_of_ncu_does(names, version, doubled):
    values = ops(hadd=100, hmul=20, hfma=3) | dict.fromkeys(names, 1.0)
    found = sums.compute_fp16_flops(values, "7.0", False, version)
    assert (found.value, found.state) == (126 * (2 if doubled else 1), "estimated")
    assert found.rule == ("2 HADD + 2 HMUL + 4 HFMA" if doubled else HALF)
    assert found.reason == (
        "2 HADD + 2 HMUL + 4 HFMA; down to half if only one of two lanes is used"
        if doubled
        else "HADD + HMUL + 2 HFMA; up to twice if instructions are packed"
    )


@table(
    "capability hfma pipe value",
    [
        ("7.5", 320, 10, 640),
        ("8.0", 320, 9, 640),  # 32 x 9 = 288: fewer tensor instructions than moves would make
        ("8.0", 320, 10, None),
        ("8.6", 320, None, None),
        ("9.0", 320, 0, 640),
        ("10.0", 320, 0, None),
        ("12.0", 320, 0, None),
        (sums.AMPERE_OR_LATER, 320, 0, None),
        (None, 320, None, None),
        (None, 320, 10, None),
        ("10.0", 0, 0, 0),
    ],
)
def test_multiply_adds_that_may_be_moves_of_constants_are_refused(capability, hfma, pipe, value):
    values = ops(hadd=0, hmul=0, hfma=hfma) | ({} if pipe is None else {PIPE: pipe})
    found = sums.compute_fp16_flops(values, capability, False, None)
    assert found.value == value
    if value is None:
        chip = "" if capability else " (the chip is unknown; this applies from CC 8.0 on)"
        assert found == make_missing_figure(
            "refused", f"HFMA2 may only have moved constants{chip}: not included"
        )
    elif not value:
        assert found == Figure(0, "counted")


def test_additions_alone_are_work_on_any_chip():
    assert sums.compute_fp16_flops(ops(hadd=4, hmul=2, hfma=0), "10.0", False, None).value == 6


def test_beside_moves_of_constants_only_additions_and_products_are_left():
    left_out = "HFMA2 moved constants and is not included"
    none = sums.compute_fp16_flops(
        ops(hadd=0, hmul=0, hfma=99), "8.0", True, None, has_half_type=False
    )
    assert (none.value, none.state, none.reason, none.rule) == (
        0,
        "counted",
        left_out,
        "HADD + HMUL",
    )
    some = sums.compute_fp16_flops(
        ops(hadd=5, hmul=7, hfma=99), "8.0", True, "2025.1", has_half_type=False
    )
    assert (some.value, some.state, some.reason, some.missing) == (
        24,
        "estimated",
        left_out,
        ("fp16 multiply-adds",),
    )
    assert some.rule == "2 HADD + 2 HMUL"
    assert sums.compute_fp16_flops(ops(hadd=5, hfma=99), "8.0", True, None).value is None
    assert (
        sums.compute_fp16_flops(ops(hadd=5, hmul=7, hfma=99), None, True, None).state == "refused"
    ), "an unknown chip"


@table(
    "capability hfma pipe moves phantom",
    [
        ("8.0", 3200, 100, None, True),
        ("9.0", 3200, 100, None, True),
        (None, 3200, 100, None, True),
        ("7.0", 3200, 100, None, False),
        ("10.0", 3200, 100, None, False),
        ("8.0", 3200, 99, None, False),  # 32 x 99 = 3168 is fewer than 3200
        ("8.0", 3200, 105, None, True),  # 5% more
        ("8.0", 3200, 106, None, False),
        ("8.0", 3200, 0, None, False),
        ("8.0", 3200, None, None, False),
        ("8.0", 0, 100, None, False),
        ("8.0", None, 100, None, False),
        ("8.0", 3200, 100, 100, True),
        ("8.0", 3200, 100, 40, False),
        ("8.0", None, 100, 100, True),
        ("8.0", 3200, 500, 0, False),
    ],
)
def test_tensor_instructions_that_are_all_moves_of_constants(
    capability, hfma, pipe, moves, phantom
):
    values = ops(hfma=hfma) | {PIPE: pipe}
    if moves is not None:
        values["smsp__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum"] = moves
    assert sums.has_only_constant_move_instructions(values, capability) is phantom
