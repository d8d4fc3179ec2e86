"""The mask of an attention: how many pairs of a query and a key it leaves.

A window and the lengths of packed sequences leave an exact number. Lengths or values that are not
known leave an upper bound, which states its reason. A causal mask alone is noted, and its complete
square counts.
"""

from __future__ import annotations

from math import prod
from typing import Any, Callable, NamedTuple, Sequence

UNREAD = "its mask is a tensor whose values perfctl does not read"
PACKED = "sequences of several lengths are packed, and their lengths are not known"
BLOCKS = "the values of its block mask are not known"


class ArgumentPositions(NamedTuple):
    """Where an operator has its arguments; -1: nowhere."""

    query: int
    causal: int
    lengths: int = -1
    """Of the cumulative lengths of packed queries; those of the keys and the two largest lengths
    follow."""
    window: int = -1
    """Of the keys that a query sees to its left; those to its right follow, or both are a list."""


OPERATORS = {
    "aten::_flash_attention_forward": ArgumentPositions(0, 8, 3, 11),
    "aten::_flash_attention_backward": ArgumentPositions(1, 11, 6, 15),
    "aten::_efficient_attention_forward": ArgumentPositions(0, 9, 4),
    "aten::_efficient_attention_backward": ArgumentPositions(1, -1, 6),
    "flash_attn::_flash_attn_forward": ArgumentPositions(0, 5, -1, 6),
    "flash_attn::_flash_attn_backward": ArgumentPositions(1, 11, -1, 12),
    "flash_attn::_flash_attn_varlen_forward": ArgumentPositions(0, 9, 3, 10),
    "flash_attn::_flash_attn_varlen_backward": ArgumentPositions(1, 15, 9, 16),
    "torch_attn::_varlen_attn": ArgumentPositions(0, 7, 3, 9),
    "torch_attn::_varlen_attn_backward": ArgumentPositions(1, 10, 6, 13),
}
"""Operators of attention whose tensors are samples x sequence x heads x head size, or packed: rows
of all sequences x heads x head size."""


def describe_attention_call_mask(
    name: str,
    get_shape: Callable[[int], Sequence[int]],
    get_value: Callable[[int], Any],
    get_cumulative_lengths: Callable[[int], Sequence[int] | None] = lambda index: None,
) -> dict[str, Any] | None:
    """Return the attributes of an operator of OPERATORS; None where its packed lengths are not
    known, and have no bound.

    ``get_cumulative_lengths``: the values of a tensor of cumulative lengths, None where they are
    not known.
    """
    places = OPERATORS[name]
    query, key = get_shape(places.query), get_shape(places.query + 1)
    window = get_value(places.window)
    left, right = (
        window if isinstance(window, (list, tuple)) else (window, get_value(places.window + 1))
    )
    causal = bool(get_value(places.causal))
    if not get_shape(places.lengths):
        pairs = [(query[-3], key[-3])]
        return describe_attention_mask(prod(query[:-3]) * query[-2], pairs, causal, left, right)
    rows, columns = prod(query[:-2]), prod(key[:-2])
    first = get_cumulative_lengths(places.lengths)
    if first is not None:
        second = get_cumulative_lengths(places.lengths + 1) or first
        pairs = [
            (first[index + 1] - first[index], second[index + 1] - second[index])
            for index in range(len(first) - 1)
        ]
        return describe_attention_mask(query[-2], pairs, causal, left, right, "packed sequences")
    most = get_value(places.lengths + 2), get_value(places.lengths + 3)
    if not all(isinstance(size, int) and size > 0 for size in most):
        return None
    count = get_shape(places.lengths)[0] - 1
    if (rows, columns) == (count * most[0], count * most[1]):
        return describe_attention_mask(
            query[-2] * count, [most], causal, left, right, "packed sequences"
        )
    keys = min(most[1], columns)
    if left is not None and left >= 0 and (causal or right == 0):
        keys = min(keys, left + 1)
    bound = min(rows * keys, columns * most[0])
    mask = {"scores": query[-2] * bound, "mask": f"at most {keys} keys for each query"}
    return {"is_causal": causal, **mask, "upper_bound": PACKED}


def describe_attention_mask(
    heads: int,
    query_and_key_lengths: Sequence[tuple[int, int]],
    causal: bool,
    left_window: int | None = None,
    right_window: int | None = None,
    packing_note: str = "",
) -> dict[str, Any]:
    """Return the attributes of attention of ``heads`` to sequences of (queries, keys); without a
    window and packing only whether it is causal.

    ``left_window``, ``right_window``: keys that a query sees on its sides; None or negative: all.
    """
    left_window = -1 if left_window is None else left_window
    right_window = 0 if causal else -1 if right_window is None else right_window
    causal = right_window == 0
    if all(left_window >= keys - 1 for _, keys in query_and_key_lengths):
        left_window = -1
    if (
        all(right_window >= queries - 1 for queries, _ in query_and_key_lengths)
        and right_window > 0
    ):
        right_window = -1
    has_window = left_window >= 0 or right_window > 0
    if not has_window and not packing_note:
        return {"is_causal": causal}
    if has_window:
        count = sum(
            count_query_key_window_pairs(queries, keys, left_window, right_window)
            for queries, keys in query_and_key_lengths
        )
        sides = [
            f"{size} {side}"
            for size, side in ((left_window, "before"), (right_window, "after"))
            if size >= 0
        ]
        packing_note = "; ".join(
            filter(None, (packing_note, f"window: {' and '.join(sides)} each query"))
        )
    else:
        count = sum(queries * keys for queries, keys in query_and_key_lengths)
    return {"is_causal": causal and not has_window, "scores": heads * count, "mask": packing_note}


def count_query_key_window_pairs(queries: int, keys: int, left: int, right: int) -> int:
    """Return the pairs inside of a window; the last query stands at the last key. A negative side
    has no limit."""

    def count_keys_up_to_offset(end: int) -> int:
        """Keys up to ``end`` after each query."""
        first, last = keys - queries + end + 1, keys + end
        low, high = max(first, 1), min(last, keys)
        partial = (low + high) * (high - low + 1) // 2 if high >= low else 0
        return partial + keys * max(0, last - max(first - 1, keys))

    before = count_keys_up_to_offset(-left - 1) if left >= 0 else 0
    return (count_keys_up_to_offset(right) if right >= 0 else queries * keys) - before
