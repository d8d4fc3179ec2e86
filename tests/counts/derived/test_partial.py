"""Launches of which only some instructions were counted."""

from perfctl.orchestrator.counts.derived.records import Launch, LaunchWork
from perfctl.orchestrator.counts.derived.run import infer_uncounted_instructions
from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape

SCUDNN = Launch("volta_scudnn_128x64_relu_xregs_large_nn_v1")
BATCH, CONV1, CONV2 = 64, (1, 32, 26), (32, 64, 24)
"""Input channels, output channels, output side."""


def conv(batch, channels, filters, side):
    return LaunchWork(ConvShape(batch, channels, filters, side, side, 3, 3))


WORKS = (
    conv(BATCH, *CONV1),
    conv(BATCH, *CONV2),
    LaunchWork(GemmShape(BATCH, 128, 9216)),
    LaunchWork(GemmShape(BATCH, 10, 128)),
)


def test_fadd_alone_tells_the_layer_the_batch_and_the_multiply_adds():
    outputs, depth = 1000 * 64 * 24 * 24, 32 * 3 * 3
    found = infer_uncounted_instructions(SCUDNN, {"fadd": outputs}, WORKS, BATCH)
    assert found is not None
    assert (found.fadd, found.fmul, found.ffma) == (outputs, outputs, outputs * depth)
    assert f"{outputs * depth:,} FFMA" in found.rule


def test_nothing_is_completed_where_the_multiply_adds_were_counted():
    outputs = 1000 * 64 * 24 * 24
    assert (
        infer_uncounted_instructions(SCUDNN, {"fadd": outputs, "ffma": outputs * 288}, WORKS, BATCH)
        is None
    )


def test_an_addition_more_than_the_rule_gives_fits_no_work():
    assert (
        infer_uncounted_instructions(SCUDNN, {"fadd": 1000 * 64 * 24 * 24 + 1}, WORKS, BATCH)
        is None
    )


def test_a_batch_that_fills_its_last_tile_in_part_has_more_additions_than_outputs():
    """One image has 4.5 tiles of 128 outputs: the kernel adds in 5 of them, so that one addition
    per output is not its count."""
    assert infer_uncounted_instructions(SCUDNN, {"fadd": 64 * 24 * 24}, WORKS, BATCH) is None


def test_two_works_that_fit_alike_but_multiply_differently_give_nothing():
    deeper = conv(BATCH, 64, 64, 24)
    assert (
        infer_uncounted_instructions(SCUDNN, {"fadd": 1000 * 64 * 24 * 24}, (*WORKS, deeper), BATCH)
        is None
    )


def test_a_kernel_without_a_rule_stays_without_a_count():
    assert (
        infer_uncounted_instructions(
            Launch("elementwise_kernel"), {"fadd": 1000 * 64 * 24 * 24}, WORKS, BATCH
        )
        is None
    )
