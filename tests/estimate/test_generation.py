"""The sum over the steps of generation, and what a cache of keys and values is made of."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.orchestrator.estimate.generation import (
    count_cache_writes_by_layer,
    describe_kv_cache,
    sum_step_forward_work,
    sum_step_work_over_contexts,
)
from perfctl.records.paper import CacheTensor, LayerCall, LayerTraffic
from tests.make.tables import table

KEY = ("layer", "macs")


def counted(value):
    asked: Counter[int] = Counter()

    def at(context):
        asked[context] += 1
        return {KEY: value(context)}

    return at, asked


@table(
    "first last degree value traced",
    {
        "a line": (513, 640, 1, lambda context: 7 + 5 * context, 3),
        "a square": (10, 1000, 2, lambda context: 3 * context**2 + context + 11, 4),
        **{
            f"{count} steps": (5, 4 + count, 2, lambda context: context**3, count)
            for count in (1, 2, 3, 4)
        },
    },
)
def test_steps_are_added_up_from_as_few_as_their_degree_needs(first, last, degree, value, traced):
    at, asked = counted(value)
    assert sum_step_work_over_contexts(first, last, at, degree)[KEY] == sum(
        map(value, range(first, last + 1))
    )
    assert len(asked) == traced


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 50), st.integers(0, 300), st.integers(1, 400), st.integers(1, 9))
def test_a_window_that_fills_up_is_found_wherever_it_is(first, more, window, slope):
    at, _asked = counted(lambda context: 4 + slope * min(context, window))
    last = first + more
    assert sum_step_work_over_contexts(first, last, at, 1)[KEY] == sum(
        4 + slope * min(c, window) for c in range(first, last + 1)
    )
    again, fewer = counted(lambda context: 4 + slope * min(context, window))
    assert sum_step_work_over_contexts(
        first, last, again, 1, [window]
    ) == sum_step_work_over_contexts(first, last, at, 1)
    assert len(fewer) <= 6, "a window that is known needs no search"


def test_layers_with_windows_of_their_own_are_added_up_each():
    def at(context):
        return {
            ("full", "macs"): context,
            ("short", "macs"): min(context, 20),
            ("long", "macs"): min(context, 77),
        }

    found = sum_step_work_over_contexts(1, 128, at, 1)
    for layer, window in (("full", 128), ("short", 20), ("long", 77)):
        assert found[layer, "macs"] == sum(min(context, window) for context in range(1, 129))


def test_what_comes_up_in_some_steps_only_counts_where_it_is():
    def at(context):
        return {KEY: 1} if context > 40 else {}

    assert sum_step_work_over_contexts(1, 100, at, 1)[KEY] == 60


def tensor(name, layer, before, shape, written=True):
    return CacheTensor(name, layer, before, shape, "float32", written)


PROBE = (
    tensor("layers.0.keys", "a", (1, 2, 1, 8), (1, 2, 2, 8)),
    tensor("layers.1.keys", "b", (1, 2, 1, 8), (1, 2, 2, 8)),
    tensor("cross.0.keys", "c", (1, 2, 30, 8), (1, 2, 30, 8), False),
    tensor("states.0", "d", (1, 5), (1, 5)),
)
END = (
    tensor("layers.0.keys", "a", None, (3, 2, 100, 8)),
    tensor("layers.1.keys", "b", None, (3, 2, 15, 8)),
    tensor("cross.0.keys", "c", None, (3, 2, 30, 8), False),
    tensor("states.0", "d", None, (3, 5)),
)


def test_a_cache_says_what_grows_what_a_window_keeps_and_what_stays():
    cache = describe_kv_cache(PROBE, END, 100, 3, None, None)
    assert cache.bytes_per_token == 2 * 2 * 8 * 4, "two layers, until a window is full"
    assert cache.fixed_bytes == (2 * 30 * 8 + 5) * 4
    assert cache.bytes_at_end == 3 * (2 * 100 * 8 + 2 * 15 * 8 + 2 * 30 * 8 + 5) * 4
    assert [part.window for part in cache.parts if part.is_growing] == [None, 15]
    assert (
        describe_kv_cache(PROBE, END, 100, 3, "float8_e4m3fn", None).bytes_at_end * 4
        == cache.bytes_at_end
    )


def test_a_step_writes_one_token_and_a_changed_state_but_no_keys_of_the_encoder():
    assert count_cache_writes_by_layer(PROBE, END, False) == {
        "a": 3 * 2 * 8,
        "b": 3 * 2 * 8,
        "d": 3 * 5,
    }
    assert count_cache_writes_by_layer(PROBE, END, True)["b"] == 3 * 2 * 15 * 8, (
        "prefill leaves what the window keeps"
    )


def test_an_operation_without_formula_is_named_and_not_zero():
    call = LayerCall(
        "a", "strange", "forward", None, None, 0, 10, 20, 5, "no formula", None, calls=3
    )
    found = sum_step_forward_work([call], [LayerTraffic("a", 4, 6, 24)], {"a": 7}, 2)
    assert found["a", "?strange"] == 3
    assert (
        found["a", "cache_read_bytes"],
        found["a", "weight_bytes"],
        found["a", "cache_written_bytes"],
    ) == (12, 4, 7)
