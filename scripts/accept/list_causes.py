"""Every cause of a ledger row or a sweep, as its rule's docstring states it:
``python scripts/accept/list_causes.py`` prints the tables that docs/verdicts.md contains."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from perfctl.orchestrator.ledger.causes import (
    call_rules,
    formula_rules,
    gradient_rules,
    missing_rules,
    row_rules,
    shape_rules,
    study_rules,
    tensor_rules,
    window_rules,
)

TABLES: dict[str, dict[str, tuple[Callable[..., Any], ...]]] = {
    "Work that a layer does differently": {
        "tile padding": (row_rules.tile_padding, row_rules.derived_tiles),
        "several algorithms": (row_rules.several_algorithms, gradient_rules.gradient_trials),
        "extra calls": (call_rules.extra_calls, call_rules.extra_gradients),
        "whole step": (call_rules.whole_steps,),
        "Winograd": (row_rules.winograd,),
        "FFT": (row_rules.fourier,),
        "split-K": (row_rules.split_k,),
        "persistent RNN": (row_rules.persistent,),
        "layout and epilogue": (row_rules.layout_and_epilogue,),
        "recomputation": (gradient_rules.recomputation, gradient_rules.recomputed_otherwise),
        "shared kernel": (row_rules.shared_kernel,),
        "groups run as dense": (shape_rules.groups_as_dense,),
        "skipped border": (shape_rules.skipped_border,),
        "causal mask": (shape_rules.causal_mask, shape_rules.attention_tiles),
        "swapped layers": (shape_rules.swapped,),
        "gradient missing": (gradient_rules.gradient_missing,),
        "needless gradient": (gradient_rules.needless_gradient,),
        "zeros inserted": (gradient_rules.zeros_inserted,),
    },
    "Tensor cores": {
        "TF32": (tensor_rules.tensor_cores,),
        "tensor cores": (tensor_rules.tensor_cores,),
        "3xTF32": (tensor_rules.three_tf32,),
        "2:4 sparsity": (tensor_rules.sparsity,),
        "constant moves": (tensor_rules.constant_moves,),
    },
    "Missing counts": {
        "FADD alone": (missing_rules.fadd_alone,),
        "counter not collected": (missing_rules.not_collected,),
        "nothing counted": (missing_rules.nothing_counted,),
        "direction missing": (missing_rules.direction_missing,),
    },
    "The sweep as a whole": {
        "wrong window": (window_rules.wrong_window, window_rules.find_window),
        "time does not follow": (study_rules.times_flat,),
        "algorithm switch": (study_rules.algorithm_switches,),
        "hand estimate": (study_rules.hand_estimates,),
        "wrong formula": (formula_rules.formula_slips,),
        "other GPU": (study_rules.other_gpu,),
        "more work in less time": (study_rules.less_time_for_more,),
    },
}
"""Heading -> cause -> the rules that propose it."""
BEGIN = "<!-- Made from the rules' docstrings: python scripts/accept/docs.py -->\n"
END = "<!-- End of the tables made from docstrings -->\n"
_HEAD = """\
| cause | meaning | evidence | factor | not reported | fix |
|---|---|---|---|---|---|
"""


def markdown() -> str:
    """Return the tables of all causes."""
    return "\n".join(
        f"## {title}\n\n{_HEAD}"
        + "".join(_row(cause, rule) for cause, rules in causes.items() for rule in rules)
        for title, causes in TABLES.items()
    )


def insert_into(page: str) -> str:
    """Return the page with the tables between its two comments."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{markdown()}\n{END}{rest.partition(END)[2]}"


def _row(cause: str, rule: Callable[..., Any]) -> str:
    """Return one line of a table: what the cause is, and the four lines of its rule."""
    summary, lines, *_ = (inspect.getdoc(rule) or "").split("\n\n")
    names, texts = zip(*re.findall(r"^(\w+) +(.+(?:\n +.+)*)", lines, re.MULTILINE), strict=True)
    if names != ("Evidence", "Factor", "Silent", "Fix"):
        raise ValueError(f"{rule.__name__}: a rule states Evidence, Factor, Silent and Fix")
    cells = [cause]
    for text in (summary.removeprefix("Return "), *texts):
        sentence = " ".join(text.split()).replace("``", "`").replace("|", "\\|")
        cells.append(sentence[:1].upper() + sentence[1:])
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    print(markdown(), end="")
