"""Modules of the kernels that Inductor fused, from the source lines of their origins; annotations
of graph nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from perfctl.orchestrator.ledger.analysis import analyse
from perfctl.orchestrator.ledger.ledger import ledger
from perfctl.orchestrator.ledger.prepared import prepare, studies
from perfctl.orchestrator.report.ledger.rows import ledger_rows
from perfctl.orchestrator.report.terminal import ledger_document
from perfctl.parsers.kineto.fused import _multiplies, read_path, read_paths
from perfctl.records.report import Report
from tests.make import synthetic
from tests.parsers.kineto_trace import Event, annotation, event, kernel, launch, operation, read

NAME = "triton_per_fused_add_gelu_native_layer_norm_0"


def stack(*frames: tuple[str, str, str]) -> str:
    """(function, line, the part of it that ran) of each frame, as torch 2.14 writes them."""
    found = ""
    for function, line, part in frames:
        marks = " " * line.index(part) + "^" * len(part) if part else ""
        found += f'  File "/model.py", line 7, in {function}\n    {line}\n' + (
            f"    {marks}\n" if marks else ""
        )
    return found


LOOP = ("forward", "for block in self.blocks: x = block(x)", "block(x)")
LINE = "return self.norm(x + self.act(self.fc(x)))"
PARTS = (
    "self.norm(x + self.act(self.fc(x)))",
    "x + self.act(self.fc(x))",
    "self.act(self.fc(x))",
    "self.fc(x)",
)
STACKS = tuple(stack(LOOP, ("forward", LINE, part)) for part in PARTS)


@pytest.mark.parametrize(
    ("written", "path"),
    [
        (STACKS[0], "block.norm"),
        (STACKS[1], "block"),
        (STACKS[2], "block.act"),
        (STACKS[3], "block.fc"),
        (stack(LOOP, ("forward", LINE, "self.fc(x)))")), "block.fc"),
        (stack(LOOP, ("forward", LINE, "self.act(self.fc(x)))")), "block.act"),
        (
            stack(
                ("step", "return model(x)", "model(x)"),
                ("forward", "return self.fc(x)", "self.fc(x)"),
            ),
            "fc",
        ),
        (
            stack(
                ("forward", "x = self.layers[0](x)", "self.layers[0](x)"),
                ("forward", "return F.relu(x)", "F.relu(x)"),
            ),
            "layers.0",
        ),
        (stack(("forward", "return self.fc(x) * 2", "self.fc(x) * 2")), None),
        (stack(("forward", "return 2 * self.fc(x)", "2 * self.fc(x)")), ""),
        (
            stack(
                ("forward", "return self.help(x)", "self.help(x)"),
                ("help", "return x + 1", "x + 1"),
            ),
            "",
        ),
        (stack(("forward", "return self.fc(x)", "")), "fc"),
        (stack(("forward", LINE, "")), None),
        (stack(("main", "y = x + 1", "x + 1")), None),
        ("no frames", None),
    ],
)
def test_the_source_line_of_an_origin_says_its_module(written: str, path: str | None) -> None:
    assert read_path(written) == path


TIMES = stack(LOOP, ("forward", "return self.norm(x) * 2", "self.norm(x) * 2"))
"""As torch 2.14 marks both the call of norm and what is done with its value: it was seen on
a CPU."""


@pytest.mark.parametrize(
    ("kernel", "path"),
    [
        ("triton_per_fused_native_layer_norm_0", "block.norm"),  # no product in it
        ("sm90_xmma_gemm_bf16", "block.norm"),
        ("triton_poi_fused_mul_0", "block"),  # nothing else in it
        ("triton_per_fused_mul_native_layer_norm_0", None),
        ("", None),
    ],
)
def test_marks_that_reach_over_a_call_are_read_by_the_operators_of_the_kernel(
    kernel: str, path: str | None
) -> None:
    assert read_paths(TIMES) == ("block.norm", "block")
    assert read_path(TIMES, kernel) == path


def test_a_call_whose_value_is_used_in_the_line_is_what_the_next_frame_runs() -> None:
    written = stack(
        ("forward", "x = self.block(x) + x", "self.block(x) + x"),
        ("forward", "return self.fc(x)", "self.fc(x)"),
    )
    assert read_path(written) == "block.fc"


def fused(
    tmp_path: Path, stacks: Sequence[str], *, name: str = NAME, more: Sequence[Event] = ()
) -> Report:
    one = kernel(name, 50, 12, 2, 5)
    one["args"]["stack"] = list(stacks)
    region = operation("Torch-Compiled Region: 0/0", 0, 40, 1)
    return read(
        tmp_path,
        annotation("ProfilerStep#1", 0, 90),
        region,
        operation(name, 10, 5, 2),
        launch(11, 5),
        one,
        *more,
    )


def test_a_kernel_of_one_module_has_its_layer(tmp_path: Path) -> None:
    (found,) = fused(tmp_path, [STACKS[2], STACKS[2].replace("line 7", "line 8")]).kernels
    assert (found.layer, found.direction, found.layer_source) == ("block.act", "forward", "origins")


def test_a_kernel_of_several_modules_is_shared_out_by_its_operations(tmp_path: Path) -> None:
    """Four operations, two of act: half of 12 us is act's, a quarter each norm's and the
    block's own."""
    found = fused(
        tmp_path, [STACKS[0], STACKS[1], STACKS[2], STACKS[2].replace("line 7", "line 8")]
    )
    (launched,) = found.kernels
    assert (launched.layer, launched.layer_source) == (None, "shared")
    shares = {part.layer: (part.origins, part.share) for part in found.kernel_parts}
    assert shares == {"block.norm": (1, 1 / 4), "block": (1, 1 / 4), "block.act": (2, 2 / 4)}
    assert not [gap for gap in found.gaps if gap.quantity in ("kernel.layer", "kernel_part")]


def test_the_ledger_gives_each_layer_its_share_and_marks_it(tmp_path: Path) -> None:
    whole = kernel("gemm", 70, 36, 3, 6)
    whole["args"]["stack"] = [STACKS[3]]
    found = fused(
        tmp_path, STACKS[:3], more=[operation("aten::mm", 20, 5, 3), launch(21, 6), whole]
    )
    run = synthetic.foreign_run(
        1,
        kernels=list(found.kernels),
        kernel_parts=list(found.kernel_parts),
        profiler="torch",
        ranges=list(found.ranges),
        batch_size=8,
    )
    (study,) = studies([run])
    rows = {row.layer: row for row in ledger(prepare(study)).rows}
    times = {layer: row.time.median for layer, row in rows.items() if row.time}
    assert times == {"block.norm": 4_000, "block": 4_000, "block.act": 4_000, "block.fc": 36_000}
    assert sum(row.share or 0 for row in rows.values()) == pytest.approx(1)
    assert {layer: row.shared for layer, row in rows.items()} == {
        **dict.fromkeys(times, 1.0),
        "block.fc": 0.0,
    }
    found = analyse(study)
    in_json = {row["layer"]: row["shared"] for row in ledger_rows([found])}
    assert in_json == {layer: row.shared for layer, row in rows.items()} | {"not attributed": None}
    (table,) = [part for part in ledger_document(found) if part.title == "Ledger"]
    marked = {cells[0] for cells in table.rows if any(cell.startswith("~ 4") for cell in cells)}
    assert marked == {"block.norm", "block", "block.act"}
    assert any("shared out" in note for note in table.notes)


def test_what_the_lines_do_not_say_is_named_with_its_time(tmp_path: Path) -> None:
    unclear = stack(("forward", LINE, ""))
    found = fused(tmp_path, [STACKS[0], unclear], more=[kernel("other", 70, 36)])
    assert [one.layer for one in found.kernels] == [None, None]
    (gap,) = [gap for gap in found.gaps if gap.quantity == "kernel_part"]
    assert f"{NAME} ({12 / 48 * 100:.1f} %)" in gap.reason


def template(name: str, *shapes: tuple[int, ...]) -> Event:
    """The call of a template, as torch 2.14 writes it."""
    call = operation(name, 10, 5, 2)
    call["args"] |= {
        "kernel_hash": "c0",
        "kernel_backend": "triton",
        "Input Dims": list(map(list, shapes)),
        "Input type": ["c10::BFloat16"] * len(shapes),
        "Concrete Inputs": [""] * len(shapes),
    }
    return call


M, N, K = 48, 40, 24
TEMPLATE = "triton_tem_fused_addmm_gelu_0"
ADDMM = template(TEMPLATE, (N,), (M, K), (N, K), (M, N))


def of_template(
    tmp_path: Path, stacks: Sequence[str], *more: Event, call: Event | None = None
) -> Report:
    one = kernel(TEMPLATE, 50, 12, 2, 5)
    one["args"]["stack"] = list(stacks)
    region = operation("Torch-Compiled Region: 0/0", 0, 40, 1)
    return read(
        tmp_path,
        annotation("ProfilerStep#1", 0, 90),
        region,
        call or ADDMM,
        launch(11, 5),
        one,
        *more,
    )


def shares(report: Report) -> dict[str | None, float]:
    return {part.layer: part.share for part in report.kernel_parts}


def test_a_product_has_its_flops_and_what_was_fused_with_it_one_an_element(tmp_path: Path) -> None:
    """fc multiplies: 2 x M x N x K. act and the sum are one operation for each of the M x N
    elements of the output."""
    found = of_template(tmp_path, [STACKS[3], STACKS[2], STACKS[1]])
    whole = 2 * M * N * K + 2 * M * N
    assert shares(found) == {
        "block.fc": 2 * M * N * K / whole,
        "block.act": M * N / whole,
        "block": M * N / whole,
    }
    assert [(one.layer, one.layer_source) for one in found.kernels] == [(None, "shared")]
    assert {part.origins for part in found.kernel_parts} == {1}
    assert "kernel_part" not in {gap.quantity for gap in found.gaps}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_lines_say_who_multiplies_whatever_their_order(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    """Neither name says it: ``up`` calls F.linear, ``gate`` multiplies number by number."""
    up = stack(
        LOOP,
        ("forward", "y = self.up(x)", "self.up(x)"),
        ("forward", "return F.linear(x, self.w)", "F.linear(x, self.w)"),
    )
    gate = stack(
        LOOP,
        ("forward", "y = self.gate(y)", "self.gate(y)"),
        ("forward", "return x * self.w", "x * self.w"),
    )
    found = of_template(tmp_path, [(up, gate)[at] for at in order])
    whole = 2 * M * N * K + M * N
    assert shares(found) == {"block.up": 2 * M * N * K / whole, "block.gate": M * N / whole}


UP, DOWN = (
    stack(LOOP, ("forward", f"y = self.{name}(x)", f"self.{name}(x)")) for name in ("up", "down")
)


def test_two_modules_that_could_multiply_are_told_apart_by_kernels_of_one_alone(
    tmp_path: Path,
) -> None:
    assert shares(of_template(tmp_path, [UP, DOWN])) == {}
    alone = kernel("sm90_xmma_gemm_bf16", 70, 36, 3, 6)
    alone["args"]["stack"] = [UP]
    found = of_template(tmp_path, [UP, DOWN], operation("aten::mm", 20, 5, 3), launch(21, 6), alone)
    assert shares(found)["block.up"] == 2 * M * N * K / (2 * M * N * K + M * N)


@pytest.mark.parametrize(
    ("expression", "multiplies"),
    [
        ("x @ self.w", True),
        ("(x + y) @ self.w", True),
        ("x @ self.w + y", None),
        ("2 * (x @ self.w)", False),
        ("torch.bmm(x, y)", True),
        ("F.conv2d(x, w)", True),
        ("self.proj(x)", None),
        ("self.act(x @ w)", False),
        ("self.fc(x) * 2", None),
        ("self.norm1(x)", False),
        ("F.gelu(x)", False),
        ("x + y", False),
        ("self.relu_2(x)", False),
        ("self.actor(x)", None),
    ],
)
def test_an_expression_says_whether_it_multiplies(expression: str, multiplies: bool | None) -> None:
    assert _multiplies(stack(("forward", f"return {expression}", expression))) is multiplies


@pytest.mark.parametrize(
    "call",
    [
        operation(TEMPLATE, 10, 5, 2),  # no shapes
        template(TEMPLATE, (M, K), (N, K + 1), (M, N)),  # of no product
        # of another kernel
        template("triton_tem_fused_addmm_other_0", (N,), (M, K), (N, K), (M, N)),
    ],
)
def test_a_product_of_unknown_size_is_not_shared_out(tmp_path: Path, call: Event) -> None:
    found = of_template(tmp_path, [STACKS[2], STACKS[3]], call=call)
    assert [one.layer for one in found.kernels] == [None]
    assert not found.kernel_parts
    assert "kernel_part" in {gap.quantity for gap in found.gaps}


def test_kernels_of_a_graph_have_the_names_that_their_nodes_were_given(tmp_path: Path) -> None:
    """As torch.cuda's mark_kernels and its monitor's traces have them: the name, and the pass
    of autograd."""
    marks = [
        {"name": "head"},
        {"name": "head", "autograd_phase": "backward"},
        {"annotation": "conv2:grad_weight"},
        {},
    ]
    nodes = []
    for at, said in enumerate(marks):
        nodes.append(
            kernel("k", 10 + 20 * at, 10, correlation=50, graph_id=1, graph_node_id=7 + at)
        )
        nodes[-1]["args"] |= said
    found = read(tmp_path, event("cuda_runtime", "cudaGraphLaunch", 1, 1, correlation=50), *nodes)
    assert [(one.layer, one.direction) for one in found.kernels] == [
        ("head", "forward"),
        ("head", "backward"),
        ("conv2", "grad_weight"),
        (None, None),
    ]
    (replay,) = found.graph_launches
    assert (replay.how, replay.matched, replay.kernels, replay.confidence) == ("node", 3, 4, 3 / 4)


def test_parts_of_a_pipeline_s_blocks_are_layers(tmp_path: Path) -> None:
    names = ("attn(F)", "attn(B)", "attn(W)", "lonely(F)")
    events = [annotation(name, 100 * at, 50) for at, name in enumerate(names)]
    for at in range(len(names)):
        events += [
            launch(100 * at + 5, 10 + at),
            kernel("k", 100 * at + 20, 10, correlation=10 + at),
        ]
    assert [(one.layer, one.direction) for one in read(tmp_path, *events).kernels] == [
        ("attn", "forward"),
        ("attn", "grad_input"),
        ("attn", "grad_weight"),
        (None, None),
    ]


def engine(ts: int, dur: int, external: int) -> Event:
    """A node that autograd's engine runs on a thread of its own."""
    return operation(
        "autograd::engine::evaluate_function: FlashBackward", ts, dur, external, thread=2
    )


def parts_of_block(*more: Event) -> list[Event]:
    return [annotation("attn(F)", 0, 50), annotation("attn(B)", 100, 50), *more]


def test_what_the_engine_runs_is_of_the_range_that_waits_for_it(tmp_path: Path) -> None:
    """backward() was called inside attn(B), which is open from before the node to after it."""
    events = parts_of_block(
        engine(110, 20, 8), launch(115, 30, thread=2), kernel("k", 170, 10, correlation=30)
    )
    assert [
        (one.layer, one.direction, one.layer_source) for one in read(tmp_path, *events).kernels
    ] == [("attn", "grad_input", "operation")]


@pytest.mark.parametrize(
    "more",
    [
        (engine(10, 20, 8), launch(15, 30, thread=2)),  # inside attn(F), which calls no backward
        (engine(110, 90, 8), launch(115, 30, thread=2)),  # outlasts attn(B)
        (launch(115, 30, thread=2),),  # not of the engine
        # either may have called it
        (engine(110, 20, 8), launch(115, 30, thread=2), annotation("attn(B)", 90, 90, thread=3)),
    ],
)
def test_what_runs_beside_a_range_is_not_of_it(tmp_path: Path, more: tuple[Event, ...]) -> None:
    events = parts_of_block(*more, kernel("k", 270, 10, correlation=30))
    assert [one.layer for one in read(tmp_path, *events).kernels] == [None]
