"""Modules of the kernels that Inductor fused, from the source lines of their origins, up to the
ledger."""

import pytest

from perfctl.orchestrator.ledger.analysis import analyse_study
from perfctl.orchestrator.ledger.ledger import build_ledger
from perfctl.orchestrator.ledger.prepared import group_into_studies
from perfctl.orchestrator.report.ledger.rows import list_ledger_rows
from perfctl.orchestrator.report.terminal import DOCUMENT, build_ledger_row_views
from perfctl.parsers.kineto.origins import (
    _is_matrix_product,
    find_module_path,
    find_possible_module_paths,
)
from tests.make import synthetic
from tests.make.kineto import annotation, kernel, launch, operation, read

NAME = "triton_per_fused_add_gelu_native_layer_norm_0"


def stack(*frames):
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
def test_the_source_line_of_an_origin_says_its_module(written, path):
    assert find_module_path(written) == path


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
def test_marks_that_reach_over_a_call_are_read_by_the_operators_of_the_kernel(kernel, path):
    assert find_possible_module_paths(TIMES) == ("block.norm", "block")
    assert find_module_path(TIMES, kernel) == path


def test_a_call_whose_value_is_used_in_the_line_is_what_the_next_frame_runs():
    written = stack(
        ("forward", "x = self.block(x) + x", "self.block(x) + x"),
        ("forward", "return self.fc(x)", "self.fc(x)"),
    )
    assert find_module_path(written) == "block.fc"


def fused(tmp_path, stacks, *, name=NAME, more=()):
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


def test_the_ledger_gives_each_layer_its_share_and_marks_it(tmp_path):
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
    (study,) = group_into_studies([run])
    rows = {row.layer: row for row in build_ledger(study).rows}
    times = {layer: row.time.median for layer, row in rows.items() if row.time}
    assert times == {"block.norm": 4_000, "block": 4_000, "block.act": 4_000, "block.fc": 36_000}
    assert sum(row.share or 0 for row in rows.values()) == pytest.approx(1)
    assert {layer: row.shared for layer, row in rows.items()} == {
        **dict.fromkeys(times, 1.0),
        "block.fc": 0.0,
    }
    found = analyse_study(study)
    in_json = {row["layer"]: row["shared"] for row in list_ledger_rows([found])}
    assert in_json == {layer: row.shared for layer, row in rows.items()} | {"not attributed": None}
    views = list(build_ledger_row_views(found, DOCUMENT))
    tables = [table for view in views for table in view.tables]
    (table,) = [table for table in tables if table.caption == "Ledger"]
    marked = {row[0].text for row in table.rows if any(c.text.startswith("~ 4") for c in row)}
    assert marked == {"block.norm", "block", "block.act"}
    assert any(
        "perfctl divides fused kernels between their layers" in note
        for part in (*views, *tables)
        for note in part.notes
    )


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
def test_an_expression_says_whether_it_multiplies(expression, multiplies):
    assert _is_matrix_product(stack(("forward", f"return {expression}", expression))) is multiplies
