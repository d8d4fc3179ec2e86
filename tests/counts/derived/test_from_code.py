"""Counts that perfctl 1.0.0 read from machine code, on their way from the store to the ledger."""

from perfctl.orchestrator.counts.derived.records import TENSOR_FLOP
from perfctl.orchestrator.counts.derived.run import (
    build_instructions_from_code_counts,
    convert_instructions_to_flops,
)
from perfctl.records.report import CODE, DerivedCount

THREADS = 10 * 128


def row(launch, instruction, value, rule="8 per thread"):
    return DerivedCount(launch, instruction, value, f"{CODE}: {rule}")


def test_fp32_instructions_become_flops_and_what_the_code_has_none_of_is_zero():
    found = build_instructions_from_code_counts(
        [row(3, "FADD", THREADS * 8), row(3, "FFMA", THREADS * 2)]
    )[3]
    assert (found.fadd, found.fmul, found.ffma, found.tensor) == (THREADS * 8, 0, THREADS * 2, None)
    flops = convert_instructions_to_flops(found)
    assert (flops.fp32.value, flops.fp32.state) == (THREADS * (8 + 2 * 2), "derived")
    assert flops.total.value == flops.fp32.value and not flops.total.lower_bound


def test_tensor_instructions_count_by_their_flops():
    found = build_instructions_from_code_counts(
        [row(0, "HMMA.16816", 32), row(0, TENSOR_FLOP, 32 * 4096)]
    )[0]
    assert (found.tensor, convert_instructions_to_flops(found).tensor.value) == (
        32 * 4096,
        32 * 4096,
    )


def test_a_lower_bound_or_arithmetic_in_other_types_gives_no_count():
    open_loop = row(0, "FFMA", 64, "1 per thread, at least: a loop's turns are not known")
    assert (
        build_instructions_from_code_counts([open_loop, row(1, "FFMA", 64), row(1, "HFMA2", 64)])
        == {}
    )
