"""The page of operators: every operation that has a formula, and the formula."""

from __future__ import annotations

import inspect
from functools import partial

from perfctl.orchestrator.estimate.flops.engine import TABLE
from perfctl.orchestrator.estimate.flops.formulas import Formula

SECTIONS = {
    "convolution": "products",
    "convolution_backward": "backward",
    "matrix_product": "products",
    "linear": "products",
    "recurrent": "products",
    "recurrent_backward": "backward",
    "attention": "products",
    "attention_backward": "backward",
    "grouped_product": "products",
    "vector_products": "products",
    "vector_products_backward": "backward",
    "trilinear": "products",
    "deformed_convolution": "products",
    "deformed_convolution_backward": "backward",
    "linear_backward": "backward",
    "nested_product_backward": "backward",
    "pairwise_distance": "products",
    "distance_by_product": "products",
    "fft": "products",
    "cubic_in_matrix_size": "linear-algebra",
    "lu": "linear-algebra",
    "solve": "linear-algebra",
    "triangular_solve": "linear-algebra",
    "qr": "linear-algebra",
    "svd": "linear-algebra",
    "eigenvalues": "linear-algebra",
    "pseudo_inverse": "linear-algebra",
    "least_squares": "linear-algebra",
    "matrix_exponential": "linear-algebra",
    "ctc": "elementwise-flops",
    "ctc_backward": "elementwise-flops",
    "per_output": "elementwise-flops",
    "per_input": "elementwise-flops",
    "moved_values": "elementwise-flops",
    "pooling": "elementwise-flops",
    "batch_norm": "elementwise-flops",
    "norm_backward": "elementwise-flops",
    "interpolation_backward": "elementwise-flops",
    "optimizer_step": "elementwise-flops",
}
"""Formula -> the section of docs/reference/formulas.md that states it, with its source. One that is
missing here is an error."""
HEAD = """\
# Operators

This page lists PyTorch operators with their formulas. [Formulas and sources](formulas.md) has the
derivations; 1 multiply-add = 2 FLOPs. Operators that torch tags as pointwise count 1 FLOP per
output value. `aten._foreach_*` counts 1 FLOP per value of the first list. perfctl lists any other
operator by name and number of calls, never as 0.
"""


def page() -> str:
    """Return the page, without its mark."""
    groups: dict[str, dict[str, list[str]]] = {}
    for operation, formula in TABLE.items():
        name, words = _describe(formula)
        groups.setdefault(SECTIONS[name], {}).setdefault(words, []).append(operation)
    parts = [HEAD]
    for section in dict.fromkeys(SECTIONS.values()):
        title = section.replace("-", " ").capitalize().replace("flops", "FLOPs")
        parts.append(f"\n## {title}\n\n[Derivation](formulas.md#{section}).\n")
        parts.append("\n|formula|operators|\n|-|-|\n")
        for words, operations in sorted(groups[section].items()):
            names = "<br>".join(f"`{operation}`" for operation in operations)
            parts.append(f"|{words}|{names}|\n")
    return "".join(parts)


def _describe(formula: Formula) -> tuple[str, str]:
    """Return the name of the function, and its first docstring line with the factor."""
    if not isinstance(formula, partial):
        return formula.__name__.removeprefix("count_"), _first_paragraph(formula)
    name, number = formula.func.__name__.removeprefix("count_"), formula.keywords["factor"]
    unit = "FLOP" if number == 1 else "FLOPs"
    return name, {
        "per_output": f"{number} {unit} per output value",
        "cubic_in_matrix_size": f"{number} n^3 / 3 FLOPs per matrix",
        "triangular_solve": f"{number} n^2 FLOPs per right-hand side",
        "per_input": f"{number} {unit} per value of the largest input",
        "interpolation_backward": f"{2 * number} FLOPs per value of the incoming gradient",
    }[name]


def _first_paragraph(formula: Formula) -> str:
    line = " ".join((inspect.getdoc(formula) or "").partition("\n\n")[0].split())
    return line.replace("|", "\\|")
