"""Formulas of operations that are no single product: distances, transforms, factorisations, sampled
convolutions.

"Leading terms": the highest powers of the sizes only, as textbooks give them. Source, unless a
docstring names another: Golub and Van Loan, "Matrix Computations", 4th ed., 2013, figures 3.2.1,
4.2.1, 5.2.1, 8.3.1, 8.6.1 and section 7.5. Figures in FLOPs become multiply-adds by
halves, rounded.
"""

from __future__ import annotations

from dataclasses import replace
from math import log2, prod

from perfctl.orchestrator.estimate.flops.formulas import (
    CallWork,
    Shape,
    Works,
    count_convolution,
    count_first_output_elements,
    format_factors,
    format_mac_product,
    get_shape_or_empty,
    make_call_work,
    make_product_work,
    pair_shapes_with_item_bytes,
    read_boolean_attribute,
    read_integers_of_attribute,
)
from perfctl.records.paper import OpShape


def count_pairwise_distance(op: OpShape) -> Works:
    """cdist, B x P x R x M: for p = 2 a difference and a multiply-add each, otherwise 3
    elementwise FLOPs."""
    first = 1 if op.op.endswith("_backward") else 0
    first_shape, right = (
        get_shape_or_empty(op.inputs, first),
        get_shape_or_empty(op.inputs, first + 1),
    )
    work = prod(first_shape) * right[-2]
    if op.attributes.get("p", 2.0) != 2.0:
        return make_call_work(
            op, f"3 for each pair and coordinate: {3 * work:,}", elementwise=3 * work
        )
    factors = (prod(first_shape[:-2]), first_shape[-2], right[-2], first_shape[-1])
    return make_product_work(op, "B x P x R x M", factors, work)


def count_distance_by_product(op: OpShape) -> Works:
    """cdist of many rows, as torch does it: one product P x R x (M + 2) of the rows and their
    squared lengths."""
    first_shape, right = get_shape_or_empty(op.inputs, 0), get_shape_or_empty(op.inputs, 1)
    factors = (prod(first_shape[:-2]), first_shape[-2], right[-2], first_shape[-1] + 2)
    norms = 2 * (prod(first_shape) + prod(right))
    return make_product_work(
        op, "B x P x R x (M + 2)", factors, norms + 2 * count_first_output_elements(op)
    )


def count_grouped_product(op: OpShape) -> Works:
    """Grouped matrix product: each row is multiplied by the matrix of its group, so the sum is rows
    x K x N.

    Of the matrices (experts), those with a row are read: as many as there are, or as many as there
    are rows.
    """
    first_shape, right = get_shape_or_empty(op.inputs, 0), get_shape_or_empty(op.inputs, 1)
    if len(first_shape) == len(right) == 3:
        return make_product_work(op, "G x M x K x N", (*first_shape, right[-1]))
    letters = "M x K x N, the rows of all groups together"
    (part,) = make_product_work(op, letters, (first_shape[-2], first_shape[-1], right[-1]))
    if len(right) == 3 and first_shape[0] < right[0]:
        size = pair_shapes_with_item_bytes(op).sum_input_bytes(1)
        part = replace(part, read_bytes=part.read_bytes - size + size // right[0] * first_shape[0])
    return (part,)


def count_trilinear(op: OpShape) -> Works:
    """nn.Bilinear, x W y: N x out x in1 x in2 + N x out x in1, and the same for its gradients."""
    tensors = [list(get_shape_or_empty(op.inputs, index)) for index in range(3)]
    for sizes, attribute in zip(tensors, ("expand1", "expand2", "expand3"), strict=True):
        for axis in read_integers_of_attribute(op, attribute):
            sizes.insert(axis, 1)
    full = [max(sizes) for sizes in zip(*tensors, strict=True)]
    summed = read_integers_of_attribute(op, "sumdim")
    second = prod(full) // full[summed[-1]] if len(summed) > 1 else 0
    macs = prod(full) + second
    text = f"{format_factors(*full)} + {second:,} = {macs:,} MAC = {2 * macs:,} FLOP"
    return make_call_work(op, text, macs=macs)


def count_fft(op: OpShape) -> Works:
    """FFT, by convention 5 N log2 N FLOPs for a complex transform of N values and half of it for a
    real one.

    Source: benchFFT (Frigo and Johnson), "FFT Benchmark Methodology". No algorithm needs exactly
    so many.
    """
    shape = get_shape_or_empty(op.outputs if op.op.endswith("c2r") else op.inputs, 0)
    size = prod(shape[axis] for axis in read_integers_of_attribute(op, "dim"))
    many, each = prod(shape) // max(size, 1), 5.0 if op.op.endswith("c2c") else 2.5
    macs = round(many * each * size * log2(size) / 2) if size > 1 else 0
    text = (
        f"by convention {each:g} N log2 N FLOP: {many:,} x {each:g} x {size:,} x log2({size:,}) = "
        f"{2 * macs:,} FLOP"
    )
    return make_call_work(op, text, macs=macs)


def count_deformed_convolution(op: OpShape) -> Works:
    """Deformable convolution: the multiply-adds of a convolution, and 8 elementwise FLOPs for each
    sampled value."""
    (part,) = count_convolution(op)
    sampled = _count_sampling_flops(op, get_shape_or_empty(op.outputs, 0), 0)
    return make_call_work(op, part.text, macs=part.macs, elementwise=sampled)


def count_deformed_convolution_backward(op: OpShape) -> Works:
    """Both gradients cost as much as the forward pass. Sampling costs 8 FLOPs per value for the
    input and 8 for the offsets."""
    result, weight = get_shape_or_empty(op.inputs, 0), get_shape_or_empty(op.inputs, 2)
    factors = (result[0], *result[2:], *weight)
    macs, text = (
        prod(factors),
        format_mac_product("as forward: N x P x Q x K x C/g x R x S", factors),
    )
    sampled, tensors = _count_sampling_flops(op, result, 1), pair_shapes_with_item_bytes(op)
    values = prod(get_shape_or_empty(op.inputs, 1))
    return (
        CallWork(
            "grad_input",
            macs,
            tensors.sum_input_bytes(),
            tensors.sum_output_bytes(0, 2),
            values,
            text,
            2 * sampled,
        ),
        CallWork(
            "grad_weight",
            macs,
            tensors.sum_input_bytes(),
            tensors.sum_output_bytes(1),
            prod(weight),
            text,
            sampled,
        ),
    )


def _count_sampling_flops(op: OpShape, result: Shape, input_index: int) -> int:
    data, weight = (
        get_shape_or_empty(op.inputs, input_index),
        get_shape_or_empty(op.inputs, input_index + 1),
    )
    return (
        (8 + read_boolean_attribute(op, "use_mask"))
        * data[0]
        * data[1]
        * prod(weight[2:])
        * prod(result[2:])
    )


def count_linear_backward(op: OpShape) -> Works:
    """Both gradients of a linear layer, each rows x in x out. The bias takes additions."""
    grad, weight = get_shape_or_empty(op.inputs, 1), get_shape_or_empty(op.inputs, 2)
    factors = (prod(grad[:-1]), weight[-1], weight[0])
    macs, tensors = prod(factors), pair_shapes_with_item_bytes(op)
    text = format_mac_product("as forward: rows x in x out", factors)
    read, written = tensors.sum_input_bytes(0, 1), tensors.sum_output_bytes(1)
    parts = [CallWork("grad_weight", macs, read, written, prod(weight), text, prod(grad))]
    if op.outputs and op.outputs[0] is not None:
        read, written = tensors.sum_input_bytes(1, 2), tensors.sum_output_bytes(0)
        parts.append(
            CallWork("grad_input", macs, read, written, count_first_output_elements(op), text)
        )
    return tuple(parts)


def count_nested_product_backward(op: OpShape) -> Works:
    """Both gradients of a product of nested tensors, each M x K x N of every part."""
    first_shape, right = get_shape_or_empty(op.inputs, 1), get_shape_or_empty(op.inputs, 2)
    gradient_count = sum(shape is not None for shape in op.outputs)
    factors = (gradient_count, prod(first_shape[:-1]), first_shape[-1], right[-1])
    return make_product_work(op, "gradients x M x K x N", factors)


def count_ctc(op: OpShape) -> Works:
    """CTC loss: 13 elementwise FLOPs for each of N x T x (2S + 1) states: the sum of 3 exponentials
    and its logarithm.

    Source: Graves and others, 2006, equations 6 to 8, in logarithms: maximum 3, differences 3,
    exponentials 3, sums 2, logarithm 1, the label's own 1.
    """
    states = prod(get_shape_or_empty(op.outputs, 1))
    return make_call_work(op, f"13 x {states:,} states, by convention", elementwise=13 * states)


def count_ctc_backward(op: OpShape) -> Works:
    """CTC backward: the same recursion from the end, 2 for each state's sum, and 3 for each value
    of the gradient."""
    states, values = prod(get_shape_or_empty(op.inputs, 6)), prod(get_shape_or_empty(op.inputs, 1))
    work = 15 * states + 3 * values
    return make_call_work(
        op, f"15 x {states:,} states + 3 x {values:,} values, by convention", elementwise=work
    )


def _make_leading_term_work(op: OpShape, formula: str, flops_each: float, count: int) -> Works:
    macs = round(count * flops_each / 2)
    text = f"leading terms, {formula}: {count:,} x {flops_each:,.0f} = {2 * macs:,} FLOP"
    return make_call_work(op, text, macs=macs)


def _read_matrix_count_and_sides(op: OpShape) -> tuple[int, int, int]:
    """Return (matrices, longer side, shorter side) of the first argument."""
    *many, rows, columns = get_shape_or_empty(op.inputs, 0)
    return prod(many), max(rows, columns), min(rows, columns)


def count_cubic_in_matrix_size(op: OpShape, factor: int) -> Works:
    """``factor`` n^3 / 3 FLOPs for each square matrix."""
    many, _, size = _read_matrix_count_and_sides(op)
    return _make_leading_term_work(op, f"{factor} n^3 / 3", factor * size**3 / 3, many)


def count_lu(op: OpShape) -> Works:
    """LU, determinant: m n^2 - n^3/3 FLOPs (2 n^3 / 3 for a square matrix)."""
    many, long, short = _read_matrix_count_and_sides(op)
    return _make_leading_term_work(op, "m n^2 - n^3 / 3", long * short**2 - short**3 / 3, many)


def count_solve(op: OpShape) -> Works:
    """Solving A X = B: 2 n^3 / 3 + 2 n^2 r FLOPs for r right-hand sides."""
    many, _, size = _read_matrix_count_and_sides(op)
    sides = count_first_output_elements(op) // max(many * size, 1)
    return _make_leading_term_work(
        op, "2 n^3 / 3 + 2 n^2 r", 2 * size**3 / 3 + 2 * size**2 * sides, many
    )


def count_triangular_solve(op: OpShape, factor: int) -> Works:
    """``factor`` n^2 FLOPs for each right-hand side: one triangle 1, two triangles 2."""
    size = _read_matrix_count_and_sides(op)[2]
    sides = count_first_output_elements(op) // max(size, 1)
    return _make_leading_term_work(
        op, f"{factor} n^2 for each right-hand side", factor * size**2, sides
    )


def count_qr(op: OpShape) -> Works:
    """QR by Householder: 2 m n^2 - 2 n^3/3 FLOPs for R, as many again for the reduced Q."""
    many, long, short = _read_matrix_count_and_sides(op)
    factor = 2 * long * short**2 - 2 * short**3 / 3
    mode = op.attributes.get("mode", "reduced")
    rows = get_shape_or_empty(op.inputs, 0)[-2]
    complete_factor = 4 * rows * rows * short - 4 * rows * short**2 + 4 * short**3 / 3
    further = 0 if mode == "r" else complete_factor if mode == "complete" else factor
    return _make_leading_term_work(op, f"QR, mode {mode}", factor + further, many)


def count_svd(op: OpShape) -> Works:
    """SVD (Golub-Reinsch), m >= n: values 4 m n^2 - 4 n^3/3; with U, V 14 m n^2 + 8 n^3; whole U 4
    m^2 n + 8 m n^2 + 9 n^3."""
    many, m, n = _read_matrix_count_and_sides(op)
    if op.attributes.get("compute_uv") is False:
        return _make_leading_term_work(
            op, "4 m n^2 - 4 n^3 / 3", 4 * m * n * n - 4 * n**3 / 3, many
        )
    if read_boolean_attribute(op, "full_matrices"):
        return _make_leading_term_work(
            op, "4 m^2 n + 8 m n^2 + 9 n^3", 4 * m * m * n + 8 * m * n * n + 9 * n**3, many
        )
    return _make_leading_term_work(op, "14 m n^2 + 8 n^3", 14 * m * n * n + 8 * n**3, many)


def count_eigenvalues(op: OpShape) -> Works:
    """Eigenvalues: symmetric 4 n^3 / 3, with vectors 9 n^3; general 10 n^3, with vectors 25 n^3."""
    many, _, size = _read_matrix_count_and_sides(op)
    vectors = op.attributes.get("compute_v") is not False and not op.op.endswith("vals")
    general = ("25 n^3", 25.0) if vectors else ("10 n^3", 10.0)
    of_symmetric = ("9 n^3", 9.0) if vectors else ("4 n^3 / 3", 4 / 3)
    name, factor = of_symmetric if "eigh" in op.op else general
    return _make_leading_term_work(op, name, factor * size**3, many)


def count_pseudo_inverse(op: OpShape) -> Works:
    """pinv, as torch does it: SVD 14 m n^2 + 8 n^3 and a product 2 m n^2; hermitian: eigenvectors 9
    n^3 and 2 n^3."""
    many, m, n = _read_matrix_count_and_sides(op)
    if read_boolean_attribute(op, "hermitian"):
        return _make_leading_term_work(op, "9 n^3 + 2 n^3", 11 * n**3, many)
    return _make_leading_term_work(
        op, "14 m n^2 + 8 n^3 + 2 m n^2", 16 * m * n * n + 8 * n**3, many
    )


def count_least_squares(op: OpShape) -> Works:
    """lstsq for r right-hand sides: QR 2 m n^2 - 2 n^3/3 and (4 m n - n^2) r for Q^T b and
    one triangle.

    The drivers gelss and gelsd take an SVD without U instead: 4 m n^2 + 8 n^3 (figure 5.5.1), and 2
    (m n + n^2) r.
    """
    many, m, n = _read_matrix_count_and_sides(op)
    size = prod(get_shape_or_empty(op.inputs, 1)) // max(
        many * get_shape_or_empty(op.inputs, 0)[-2], 1
    )
    if op.attributes.get("driver") in ("gelss", "gelsd"):
        return _make_leading_term_work(
            op,
            "4 m n^2 + 8 n^3 + 2 (m n + n^2) r",
            4 * m * n * n + 8 * n**3 + 2 * (m * n + n * n) * size,
            many,
        )
    each = 2 * m * n * n - 2 * n**3 / 3 + (4 * m * n - n * n) * size
    return _make_leading_term_work(op, "2 m n^2 - 2 n^3 / 3 + (4 m n - n^2) r", each, many)


def count_matrix_exponential(op: OpShape) -> Works:
    """matrix_exp: 2 n^3 FLOPs per product. The number of products depends on the norms, and perfctl
    records it."""
    products = op.attributes["products"]
    return _make_leading_term_work(
        op,
        "2 n^3 for each product",
        2 * _read_matrix_count_and_sides(op)[2] ** 3,
        int(str(products)),
    )
