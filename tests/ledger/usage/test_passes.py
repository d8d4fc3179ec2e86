"""Passes of training traces made elsewhere: time, exchanges between GPUs, and the tokens of a call
of attention. Made kernels."""

import pytest

from perfctl.orchestrator.ledger.usage.training import (
    infer_attention_call_shape,
    list_ingested_training_pass_times,
)
from perfctl.orchestrator.report.page.usage import build_training_passes_table
from perfctl.records.report import Kernel
from perfctl.records.serving import ServedStep
from tests.make.synthetic import foreign_run
from tests.make.tables import table
from tests.report.outline import printed, terminal_run

TILE, BLOCKS, HEADS, SEQUENCES = 128, 5, 8, 3
FLASH2 = (
    f"flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, {TILE}, 64, 4, false, false, "
    "cutlass::bfloat16_t>, true>"
)
OF_TORCH = (
    f"void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, {TILE}, 64, "
    "4>, false>"
)
FLASH3 = (
    f"flash::compute_attn_ws<Flash_fwd_kernel_traits<192, {TILE}, 128, 12, 2>, true, "
    "flash::SingleTileScheduler>"
)
BACKWARD3 = (
    f"cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cute::tuple<cute::C<{TILE}>, "
    "cute::C<192> >, float> >"
)
BACKWARD2 = f"flash::flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<64, {TILE}, 128, 8> >"
MS = 10**6
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def ran(name, direction, start, duration, layer="block", grid=(1, 1, 1)):
    x, y, z = grid
    return Kernel(
        0,
        name,
        layer=layer,
        direction=direction,
        start_ns=start,
        duration_ns=duration,
        device_index=0,
        grid_x=x,
        grid_y=y,
        grid_z=z,
    )


def training(kernels, **facts):
    return foreign_run(1, kernels=list(kernels), **facts)


def test_passes_have_their_own_times_and_what_of_it_is_exchange():
    found = list_ingested_training_pass_times(
        training(
            [
                ran("gemm", "forward", 0, 100),
                ran("gemm", "forward", 50, 100, "other"),
                ran("gemm", "grad_input", 200, 30),
                ran(NCCL, "grad_input", 210, 60),
                ran("gemm", "grad_weight", 300, 10),
                ran("copy", None, 400, 5, None),
            ]
        )
    )
    assert [
        (one.direction, one.layers, one.launches, one.kernel_ns, one.running_ns, one.collective_ns)
        for one in found
    ] == [
        ("forward", 2, 2, 200, 150, 0),
        ("grad_input", 1, 2, 90, 70, 60),
        ("grad_weight", 1, 1, 10, 10, 0),
        (None, 0, 1, 5, 5, 0),
    ]
    assert sum(one.share for one in found) == pytest.approx(1)


def test_inference_a_servers_steps_and_kernels_without_times_have_no_passes():
    forward, backward = ran("gemm", "forward", 0, 10), ran("gemm", "backward", 10, 10)
    assert not list_ingested_training_pass_times(training([forward]))
    step = ServedStep(0, "step", "decode", 0, 0, decodes=1, decode_tokens=1)
    assert not list_ingested_training_pass_times(training([forward, backward], served_steps=[step]))
    assert not list_ingested_training_pass_times(
        training([forward, backward._replace(start_ns=None)])
    )
    assert list_ingested_training_pass_times(training([forward, backward]))


def test_a_trace_that_says_the_pass_of_less_than_half_of_its_kernel_time_has_no_table_unless_the_rest_are_exchanges():
    told = [ran("gemm", "forward", 0, 10), ran("gemm", "backward", 10, 10)]
    assert list_ingested_training_pass_times(training([*told, ran("norm", None, 20, 20, None)]))
    assert not list_ingested_training_pass_times(training([*told, ran("norm", None, 20, 21, None)]))
    assert list_ingested_training_pass_times(training([*told, ran(NCCL, None, 20, 900, None)]))


@table(
    "name grid",
    {
        "flash-attention 2": (FLASH2, (BLOCKS, SEQUENCES, HEADS)),
        "PyTorch's": (OF_TORCH, (BLOCKS, SEQUENCES, HEADS)),
        "flash-attention 3": (FLASH3, (BLOCKS, HEADS, SEQUENCES)),
        "3, backward": (BACKWARD3, (BLOCKS, HEADS, SEQUENCES)),
        "2, backward": (BACKWARD2, (BLOCKS, SEQUENCES, HEADS)),
    },
)
def test_tokens_of_a_call_lie_between_its_last_block_with_one_query_and_a_full_one(name, grid):
    found = infer_attention_call_shape([ran(name, "forward", 0, 10, grid=grid)] * 4)
    assert found is not None
    assert (found.calls, found.sequences, found.heads) == (4, SEQUENCES, HEADS)
    assert (found.min_tokens, found.max_tokens) == (
        ((BLOCKS - 1) * TILE + 1) * SEQUENCES,
        BLOCKS * TILE * SEQUENCES,
    )
    assert found.rows is None, "no other kernel says how many of these"


def test_other_kernels_with_a_block_for_each_row_say_the_number_if_they_agree():
    attention, rows = ran(FLASH3, "forward", 0, 10, grid=(BLOCKS, HEADS, 1)), BLOCKS * TILE - 40

    def rows_said(*blocks):
        others = (
            ran(f"of_a_row_{number}", "forward", 20, 5, grid=(count, 1, 1))
            for number, count in enumerate(blocks)
        )
        found = infer_attention_call_shape([attention, *others])
        assert found is not None
        return found.rows, found.kernels

    assert rows_said(rows, rows, 100 * rows) == (rows, 2)
    assert rows_said(rows, 100 * rows)[0] is None, (
        "a single kernel may have as many blocks by chance"
    )
    assert rows_said(rows, rows, rows - 1)[0] is None


def test_calls_of_different_sizes_and_kernels_of_unknown_tiles_give_no_tokens():
    one, other = (
        ran(FLASH2, "forward", 0, 10, grid=(blocks, 1, HEADS)) for blocks in (BLOCKS, BLOCKS + 1)
    )
    assert infer_attention_call_shape([one, other]) is None
    assert (
        infer_attention_call_shape(
            [ran("fmha_cutlassF_bf16_aligned", "forward", 0, 10, grid=(BLOCKS, HEADS, 1))]
        )
        is None
    )


def test_the_table_says_what_part_of_the_exchanges_nothing_hides():
    kernels = [
        ran("gemm", "forward", 0, 60),
        ran(NCCL, "forward", 50, 30),
        ran("gemm", "grad_input", 80, 20),
    ]
    made = build_training_passes_table([training(kernels, profiler="torch")])
    assert made is not None and "Exposed communication: 20.0% of the time." in made.notes
    alone = build_training_passes_table([training([kernels[0], kernels[2]], profiler="torch")])
    assert alone is not None and not any("Exchanges" in note for note in alone.notes)


def test_the_table_says_the_tokens_or_why_they_are_not_known():
    def table(name, grid=(1, 1, 1)):
        forward = ran(name, "forward", 0, 10, grid=grid)
        made = build_training_passes_table([training([forward, ran("gemm", "grad_input", 20, 10)])])
        assert made is not None
        return made

    told = table(FLASH3, (BLOCKS, HEADS, 1))
    assert any("513 to 640 tokens" in (cell.title or "") for row in told.rows for cell in row)
    assert "Tokens per call: unknown" in " ".join(table("my_attention").notes)
    assert "Tokens" not in " ".join(table("conv").notes)


def test_the_terminal_shows_the_time_that_a_share_is_of_beside_the_time_in_which_a_kernel_ran():
    """Two kernels of the forward overlap: 60 + 60 ms added up, 90 ms in which one ran; the backward
    has 40 of all 160 ms."""
    kernels = [
        ran("gemm", *at)
        for at in (
            ("forward", 0, 60 * MS),
            ("forward", 30 * MS, 60 * MS),
            ("grad_input", 90 * MS, 40 * MS),
        )
    ]
    shown = printed(terminal_run(training(kernels, profiler="torch")))
    (forward,) = (line for line in shown.splitlines() if line.startswith("forward"))
    for words in ("90.0 ms", "120 ms", "75.0%"):
        assert words in forward
