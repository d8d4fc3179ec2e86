"""Scores of attention that a window, packed lengths or a block mask leave, against counts by hand."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import flex_attention, varlen

from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.estimate.flops.engine import build_layer_calls_with_flops as layer_calls
from perfctl.orchestrator.estimate.session import estimate
from perfctl.orchestrator.report.tables import format_state_sign
from perfctl.parsers.operators import READERS, _read_operator_shapes, parse_operator_call
from perfctl.records.masks import BLOCKS, PACKED, UNREAD, count_query_key_window_pairs

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore:CUDA initialization")
HEADS, DEPTH, LENGTH, WINDOW = 2, 32, 1000, 256
WINDOWED = WINDOW * (WINDOW + 1) // 2 + (LENGTH - WINDOW) * WINDOW
"""Scores of a causal window: a triangle, then the window for each query."""
LENGTHS = (100, 50, 850)


class Attention(nn.Module):
    """Attention of one sequence; ``way``: which one."""

    is_causal = True

    def __init__(self, way, sliding_window=None):
        super().__init__()
        self.way, self.sliding_window = way, sliding_window

    def forward(self, query):
        if self.way == "masked":
            mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=query.device)
            return F.scaled_dot_product_attention(query, query, query, mask)
        if self.way == "blocks":
            blocks = flex_attention.create_block_mask(
                lambda batch, head, q, k: (q >= k) & (q - k < WINDOW),
                *(None, None, LENGTH, LENGTH),
                device=str(query.device),
            )
            return flex_attention.flex_attention(query, query, query, block_mask=blocks)
        rows = query[0].transpose(0, 1)
        ends = torch.tensor([0, 100, 150, LENGTH], dtype=torch.int32, device=query.device)
        return varlen.varlen_attn(rows, rows, rows, ends, ends, 850, 850)


BLOCK_ROWS = 128 * 128 + 128 * 256 + 5 * 128 * 384 + 104 * (2 * 128 + 104)
"""Blocks of 128 x 128 that touch the window; the last row and column of blocks have 104."""


@pytest.mark.parametrize(
    ("model", "device", "scores", "reason"),
    [
        (Attention("masked", WINDOW), "meta", WINDOWED, ""),
        (Attention("masked"), "meta", LENGTH**2, UNREAD),
        (Attention("blocks"), None, BLOCK_ROWS, ""),
        (Attention("blocks"), "meta", LENGTH**2, BLOCKS),
        (Attention("packed"), "meta", LENGTH * max(LENGTHS), PACKED),
    ],
    ids=["window", "tensor", "blocks", "blocks without values", "packed without values"],
)
def test_a_model_counts_the_scores_that_its_mask_leaves(model, device, scores, reason):
    result = estimate(model, (torch.ones(1, HEADS, LENGTH, DEPTH),), mode="infer", device=device)
    assert result.forward.macs == HEADS * scores * 2 * DEPTH
    assert {call.upper_bound_reason for call in result.calls if call.macs} == {reason}


def test_a_window_has_the_pairs_that_a_loop_finds():
    for queries, keys, left, right in product(range(1, 6), range(1, 6), range(-1, 6), range(-1, 6)):
        pairs = sum(
            (left < 0 or key >= query + keys - queries - left)
            and (right < 0 or key <= query + keys - queries + right)
            for query, key in product(range(queries), range(keys))
        )
        assert count_query_key_window_pairs(queries, keys, left, right) == pairs


ROWS = [LENGTH, HEADS, DEPTH]
DENSE = [1, LENGTH, HEADS, DEPTH]


@pytest.mark.parametrize(
    ("name", "dims", "values", "scores", "reason"),
    [
        (
            "flash_attn::_flash_attn_forward",
            [DENSE] * 3,
            ["", "", "", "0.0", "0.1", "True", str(WINDOW - 1), "0"],
            WINDOWED,
            "",
        ),
        (
            "flash_attn::_flash_attn_varlen_forward",
            [ROWS, ROWS, ROWS, [4], [4]],
            ["", "", "", "", "", "850", "850", "0.0", "0.1", "False", "-1", "-1"],
            LENGTH * 850,
            PACKED,
        ),
        (
            "flash_attn::_flash_attn_varlen_forward",
            [ROWS, ROWS, ROWS, [5], [5]],
            ["", "", "", "", "", "250", "250", "0.0", "0.1", "False", "-1", "-1"],
            4 * 250**2,
            "",
        ),
        (
            "torch_attn::_varlen_attn",
            [ROWS, ROWS, ROWS, [4], [4]],
            ["", "", "", "", "", "850", "850", "True", "", "[63, 0]"],
            LENGTH * 64,
            PACKED,
        ),
    ],
    ids=["window", "packed", "packed, equal lengths", "packed with a window"],
)
def test_a_trace_counts_the_scores_that_a_mask_leaves(name, dims, values, scores, reason):
    dims = dims + [[]] * (len(values) - len(dims))
    types = ["c10::Half" if sizes else "Scalar" for sizes in dims]
    assert name in READERS
    (call,) = layer_calls(
        [_read_operator_shapes(name, parse_operator_call(dims, types, values), ())]
    )
    assert (call.macs, call.upper_bound_reason) == (HEADS * scores * 2 * DEPTH, reason)


def test_an_upper_bound_has_a_mark():
    assert format_state_sign(Figure(1, "counted", upper_bound=True)) == "≤ "
