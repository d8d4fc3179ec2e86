"""Prefill and decode of a server: times, tokens and rates from the steps' kernels, mixed steps
split by work."""

import pytest

from perfctl.orchestrator.ledger.usage.phase_layers import split_serving_phases_by_model_part
from perfctl.orchestrator.ledger.usage.served import (
    compute_kernel_time_share_with_layer,
    count_layer_matched_graph_kernels,
    measure_serving_phase_times,
)
from perfctl.orchestrator.report.page.usage import describe_kernel_time_module_coverage
from perfctl.records.paper import OpShape
from perfctl.records.report import Kernel
from perfctl.records.serving import GraphLaunch, ServedStep
from tests.make.synthetic import foreign_run

PREFILL = ServedStep(0, "p", "prefill", 2, 100, decodes=0, decode_tokens=0)
DECODE = ServedStep(1, "d", "decode", 0, 0, decodes=4, decode_tokens=4)
MIXED = ServedStep(2, "m", "mixed", 1, 30, decodes=10, decode_tokens=10)


def ran(step, start, duration, layer=None, name="k"):
    return Kernel(
        0, name, layer=layer, step=step, start_ns=start, duration_ns=duration, device_index=0
    )


def served(steps, kernels, **facts):
    return foreign_run(1, kernels=list(kernels), served_steps=list(steps), **facts)


def test_time_of_a_phase_is_that_in_which_its_kernels_ran_overlaps_once_and_waits_left_out():
    kernels = [
        ran(0, 0, 100),
        ran(0, 50, 100),
        ran(1, 200, 10),
        ran(1, 300, 10),
        ran(None, 400, 999),
    ]
    found = measure_serving_phase_times(served([PREFILL, DECODE], kernels))
    assert [
        (
            one.phase,
            one.launches,
            one.kernel_ns,
            one.running_ns,
            one.tokens,
            one.running_ns_per_token,
        )
        for one in found
    ] == [("prefill", 2, 200, 150, 100, 150 / 100), ("decode", 2, 20, 20, 4, 20 / 4)]
    assert found[1].sequences == 4
    assert found[1].tokens_per_second == pytest.approx(4 / 20e-9)


def test_steps_of_one_phase_add_up():
    twice = [DECODE, DECODE._replace(number=5, decodes=6, decode_tokens=6)]
    (decode,) = measure_serving_phase_times(served(twice, [ran(1, 0, 30), ran(5, 100, 20)]))
    assert (decode.steps, decode.sequences, decode.tokens, decode.running_ns) == (2, 10, 10, 50)


def test_a_mixed_step_is_split_by_its_tokens():
    found = measure_serving_phase_times(served([MIXED], [ran(2, 0, 60), ran(2, 60, 20)]))
    assert [(one.part, one.sequences, one.tokens, one.running_ns) for one in found] == [
        (None, 1 + 10, 40, 80),
        ("prompts", 1, 30, 80 * 30 / 40),
        ("decodes", 10, 10, 80 * 10 / 40),
    ]


def test_attention_of_a_mixed_step_is_split_by_pairs_and_what_runs_once_a_sequence_by_sequences():
    """70 ns of attention over 900 and 100 pairs, 22 ns of a projection of 1 + 10 rows, 40 ns of all
    30 + 10 tokens."""
    step = MIXED._replace(prompt_pairs=900, decode_pairs=100)
    last = OpShape(
        "head", "linear", "aten.mm", "forward", ((11, 8), (8, 16)), ((11, 16),), ("bfloat16",) * 3
    )
    kernels = [
        ran(2, 0, 70, "attn", "kernel_unified_attention_2d"),
        ran(2, 70, 22, "head"),
        ran(2, 92, 40, "mlp"),
    ]
    run = served([step], kernels, ops=(last,))
    expected = {"attn": 70 * 900 / 1000, "head": 22 * 1 / 11, "mlp": 40 * 30 / 40}
    (parts,) = split_serving_phases_by_model_part(run)
    assert {part.part: part.prompts_ns for part in parts.parts} == pytest.approx(expected)
    whole, prompts, decodes = measure_serving_phase_times(run)
    assert (whole.launches, prompts.launches, decodes.launches) == (3, None, None), (
        "one launch computes both parts"
    )
    assert prompts.kernel_ns == pytest.approx(sum(expected.values()))
    assert decodes.kernel_ns == pytest.approx(132 - sum(expected.values()))


def test_attention_without_pairs_leaves_a_mixed_step_whole():
    run = served(
        [MIXED], [ran(2, 0, 70, "attn", "kernel_unified_attention_2d"), ran(2, 70, 40, "mlp")]
    )
    assert [one.part for one in measure_serving_phase_times(run)] == [None]
    (parts,) = split_serving_phases_by_model_part(run)
    assert {part.part: part.prompts_ns for part in parts.parts} == {
        "attn": None,
        "mlp": 40 * 30 / 40,
    }


def test_what_the_names_do_not_say_is_not_known_and_not_zero():
    unsaid = ServedStep(0, "m", "mixed", 3, None, decodes=2)
    (only,) = measure_serving_phase_times(served([unsaid], [ran(0, 0, 10)]))
    assert (only.sequences, only.running_ns) == (3 + 2, 10)
    assert (only.tokens, only.running_ns_per_token, only.tokens_per_second) == (None, None, None)


def test_a_kernel_without_a_time_leaves_the_phase_without_one():
    (decode,) = measure_serving_phase_times(served([DECODE], [ran(1, 0, 10), ran(1, 20, None)]))
    assert (decode.launches, decode.running_ns, decode.tokens_per_second) == (2, None, None)


def test_the_share_of_time_with_a_module_is_of_time_and_only_asked_where_modules_are_known():
    kernels = [ran(1, 0, 30, "a"), ran(1, 50, 10)]
    assert compute_kernel_time_share_with_layer(served([DECODE], kernels).report) == 30 / 40
    assert compute_kernel_time_share_with_layer(served([], kernels).report) == 30 / 40
    assert compute_kernel_time_share_with_layer(served([], [ran(1, 0, 30)]).report) is None
    assert compute_kernel_time_share_with_layer(served([DECODE], [ran(1, 0, 30)]).report) == 0
    launches = [GraphLaunch(1, 0, 8, 40, "c", 6, "name", 0.75), GraphLaunch(2, 0, 2, 4)]
    run = served([], kernels, graph_launches=launches)
    assert compute_kernel_time_share_with_layer(run.report) == 30 / 40
    assert count_layer_matched_graph_kernels(run.report) == (6, 10, 0.75)
    assert (
        count_layer_matched_graph_kernels(served([], kernels, graph_launches=launches[1:]).report)
        is None
    )


@pytest.mark.parametrize(
    ("correlations", "nodes", "text"),
    [
        ([7, 7, 8], [None] * 3, "graphs launched 2 kernels, 1 of them without a layer"),
        ([7, 8, 9], [4, 5, None], "graphs launched 2 kernels, 1 of them without a layer"),
        ([None] * 3, [None] * 3, None),
    ],
)
def test_the_page_counts_kernels_of_a_graphs_node_and_of_a_call_with_several(
    correlations, nodes, text
):
    kernels = [
        Kernel(index, "k", correlation=call, graph_node_id=node, layer="fc" if index == 0 else None)
        for index, (call, node) in enumerate(zip(correlations, nodes, strict=True))
    ]
    assert describe_kernel_time_module_coverage(foreign_run(1, kernels=kernels)) == text


def test_calls_of_two_processes_with_one_number_are_no_graph():
    kernels = [Kernel(index, "k", correlation=7, process=100 + index) for index in range(2)]
    assert describe_kernel_time_module_coverage(foreign_run(1, kernels=kernels)) is None
