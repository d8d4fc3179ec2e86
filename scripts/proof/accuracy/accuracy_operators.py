"""Operators against values worked out by hand: one table. Each has to be right, or to be called
"at least".

    python scripts/proof/accuracy/accuracy_operators.py

Each value is an expression in the dimensions; the formulas and their sources are in
docs/reference/formulas.md. Runs on the CPU, without data where the operator allows it, in some
seconds. 1 multiply-add is 2 FLOPs. Exits 1 when a value is wrong.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import flex_attention
from torchvision.ops import deform_conv2d

from perfctl.orchestrator.estimate.session import estimate
from perfctl.orchestrator.estimate.step import Estimate


@dataclass(frozen=True)
class Case:
    """One operator in a small model, and its work by hand."""

    name: str
    make: Callable[[], nn.Module]
    inputs: tuple[Any, ...]
    forward: float
    """FLOPs of the products."""
    backward: float | None = None
    """FLOPs of the products; None: not worked out."""
    elementwise: tuple[str, int] | None = None
    """(Kind of the row, its elementwise FLOPs)."""
    integers: int = 0
    """Multiply-adds of integers, which are no FLOPs."""
    device: str | None = "meta"
    at_least: bool = False
    """Something is not counted, on purpose: the totals have to say so."""


class Calls(nn.Module):
    """Its forward is ``function(weight, *inputs)``."""

    def __init__(
        self, function: Callable[..., Any], *size: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(*size, dtype=dtype))

    def forward(self, *inputs: Any) -> Any:
        return self.function(self.weight, *inputs)


def calls(
    function: Callable[..., Any], *size: int, dtype: torch.dtype = torch.float32
) -> Callable[[], nn.Module]:
    return lambda: Calls(function, *(size or (1,)), dtype=dtype)


B, I, O = 4, 32, 64  # noqa: E741 - rows, inputs, outputs
N, C, K, H, P, R = 2, 8, 12, 9, 7, 3  # batch, channels in and out, image, its output, kernel
LINEAR = 2 * B * I * O
EACH = 2 * N * P * P
CONV = EACH * K * C * R * R
IMAGE = torch.ones(N, C, H, H)


def linear() -> nn.Linear:
    return nn.Linear(I, O)


def compiled_in_place() -> nn.Module:
    model = linear()
    model.compile(backend="aot_eager")
    return model


X = torch.ones(B, I)
COMPILED = [
    Case("Linear", linear, (X,), LINEAR, LINEAR),
    Case("  scripted", lambda: torch.jit.script(linear()), (X,), LINEAR, LINEAR),
    Case("  traced by torch.jit", lambda: torch.jit.trace(linear(), X), (X,), LINEAR, LINEAR),
    Case(
        "  compiled, aot_eager",
        lambda: torch.compile(linear(), backend="aot_eager"),
        (X,),
        LINEAR,
        LINEAR,
    ),
    Case(
        "  compiled, inductor",
        lambda: torch.compile(linear(), backend="inductor"),
        (X,),
        LINEAR,
        LINEAR,
    ),
    Case("  compiled in place", compiled_in_place, (X,), LINEAR, LINEAR),
    Case(
        "  vmap over rows",
        calls(lambda w, x: torch.func.vmap(lambda row: row @ w)(x), I, O),
        (X,),
        LINEAR,
        LINEAR,
    ),
    Case(
        "  jvp, tangent of x",
        calls(lambda w, x: torch.func.jvp(lambda y: y @ w, (x,), (torch.ones_like(x),))[1], I, O),
        (X,),
        2 * LINEAR,
    ),
]
XC = torch.ones(B, I, dtype=torch.complex64)
COMPLEX = [
    Case(
        "complex64 product",
        calls(lambda w, x: x @ w, I, O, dtype=torch.complex64),
        (XC,),
        4 * LINEAR,
        4 * LINEAR,
    ),
    Case(
        "real product, complex output",
        calls(lambda w, x: torch.view_as_complex((x @ w).view(B, O // 2, 2)), I, O),
        (X,),
        LINEAR,
        LINEAR,
    ),
    # torch runs 3 real convolutions (Gauss) forward and, for the gradient of the weights, the same.
    Case(
        "complex64 Conv2d, 3 real ones",
        lambda: nn.Conv2d(C, K, R, dtype=torch.complex64),
        (IMAGE.to(torch.complex64),),
        3 * CONV,
        3 * CONV,
    ),
]


def deformed(weight: Tensor, image: Tensor) -> Tensor:
    return deform_conv2d(image, torch.zeros(N, 2 * R * R, P, P, device=image.device), weight)


def grouped(weight: Tensor, rows: Tensor, ends: Tensor) -> Tensor:
    return torch._grouped_mm(rows, weight, offs=ends)


ROWS, GROUPS = 16, 4
ENDS = torch.arange(ROWS // GROUPS, ROWS + 1, ROWS // GROUPS, dtype=torch.int32)
BF16 = torch.bfloat16
PRODUCTS = [
    Case(
        "Conv2d, groups = channels",
        lambda: nn.Conv2d(C, C, R, groups=C),
        (IMAGE,),
        EACH * C * R * R,
        EACH * C * R * R,
    ),
    Case(
        "ConvTranspose2d",
        lambda: nn.ConvTranspose2d(C, K, R),
        (IMAGE,),
        *(2 * N * H * H * C * K * R * R,) * 2,
    ),
    Case(
        "einsum bij,bkj->bik",
        calls(lambda w, x: torch.einsum("bij,bkj->bik", x * w, x)),
        (torch.ones(2, 50, I),),
        2 * 2 * 50 * 50 * I,
        2 * 2 * 50 * 50 * I,
    ),
    Case(
        "addbmm",
        calls(lambda w, x: torch.addbmm(w, x, x.mT), 5, 5),
        (torch.ones(3, 5, I),),
        2 * 3 * 5 * I * 5,
        0,
    ),
    Case(
        "nn.Bilinear",
        lambda: nn.Bilinear(5, 6, 7),
        (torch.ones(3, 5), torch.ones(3, 6)),
        2 * (3 * 7 * 5 * 6 + 3 * 7 * 5),
        2 * 3 * 7 * 5 * 6,
    ),
    Case(
        "_grouped_mm",
        calls(grouped, GROUPS, I, O, dtype=BF16),
        (torch.ones(ROWS, I, dtype=BF16), ENDS),
        2 * ROWS * I * O,
        2 * ROWS * I * O,
    ),
    Case("deform_conv2d", calls(deformed, K, C, R, R), (IMAGE,), CONV, 2 * CONV),
    Case("cdist, 5 x 4 rows", calls(lambda w, x: torch.cdist(x, w), 5, I), (X,), 2 * B * 5 * I),
    Case(
        "cdist, 40 x 30 rows: a product",
        calls(lambda w, x: torch.cdist(x, w), 40, I),
        (torch.ones(30, I),),
        2 * 30 * 40 * (I + 2),
    ),
    Case(
        "cdist, p = 1: no product",
        calls(lambda w, x: torch.cdist(x, w, p=1.0), 5, I),
        (X,),
        0,
        elementwise=("_cdist_forward", 3 * B * 5 * I),
    ),
    Case(
        "LSTM, 2 directions",
        lambda: nn.LSTM(5, 7, bidirectional=True),
        (torch.ones(10, 3, 5),),
        2 * 2 * 10 * 3 * 28 * (5 + 7),
    ),
    Case(
        "attention, causal: the whole square",
        calls(lambda w, x: F.scaled_dot_product_attention(x * w, x, x, is_causal=True)),
        (torch.ones(2, 4, 10, 8),),
        2 * (2 * 4) * 10 * 10 * (8 + 8),
        2 * (2 * 4) * 10 * 10 * 2 * 8,
    ),
    Case(
        "FlexAttention",
        calls(lambda w, x: flex_attention.flex_attention(x * w, x, x)),
        (torch.ones(2, 4, 10, 8),),
        2 * (2 * 4) * 10 * 10 * (8 + 8),
        2 * (2 * 4) * 10 * 10 * 4 * 8,
    ),
]


def spectrum(weight: Tensor, sound: Tensor) -> Tensor:
    return torch.stft(
        sound * weight,
        64,
        hop_length=16,
        window=torch.ones(64, device=sound.device),
        return_complex=True,
    ).abs()


def sound_again(weight: Tensor, sound: Tensor) -> Tensor:
    return torch.istft(
        sound * weight, 64, hop_length=16, window=torch.ones(64, device=sound.device)
    )


FRAMES = 1 + 256 // 16
TRANSFORMS = [
    Case(
        "fft, by convention 5 N log2 N",
        calls(lambda w, x: torch.fft.fft(x * w)),
        (torch.ones(B, 64, dtype=torch.complex64),),
        B * 5 * 64 * log2(64),
        B * 5 * 64 * log2(64),
    ),
    Case(
        "rfft2, half of it",
        calls(lambda w, x: torch.fft.rfft2(x * w).abs()),
        (torch.ones(B, 16, 32),),
        B * 2.5 * 512 * log2(512),
    ),
    Case("stft", calls(spectrum), (torch.ones(2, 256),), 2 * FRAMES * 2.5 * 64 * log2(64)),
    Case(
        "istft",
        calls(sound_again),
        (torch.ones(2, 33, FRAMES, dtype=torch.complex64),),
        2 * FRAMES * 2.5 * 64 * log2(64),
    ),
]
M, n, W, r, LOTS = 8, 5, 6, 2, 3  # tall matrices, square ones, right-hand sides, how many
SQUARE, TALL, SIDES = (
    torch.eye(W).repeat(LOTS, 1, 1),
    torch.ones(LOTS, M, n),
    torch.ones(LOTS, W, r),
)
CUBE = W**3
EXP = torch.full((W, W), 10.0 / W)
"""Norm 10: a polynomial of 5 products, and as many squarings as halvings bring it below 3.01."""
PRODUCTS_OF_EXP = 5 + ceil(log2(10 / 3.010066362817634))


def tall_product(
    solution: Callable[[Tensor, Tensor], Tensor], sides: int
) -> Callable[[], nn.Module]:
    return calls(lambda w, x: solution(x * w, torch.ones(LOTS, M, sides, device=x.device)))


LINALG = [
    Case("cholesky", calls(lambda w, x: torch.linalg.cholesky(x * w)), (SQUARE,), LOTS * CUBE / 3),
    Case(
        "qr, reduced",
        calls(lambda w, x: torch.linalg.qr(x * w)[0]),
        (TALL,),
        LOTS * 2 * (2 * M * n**2 - 2 * n**3 / 3),
    ),
    Case(
        "svd, U and V",
        calls(lambda w, x: torch.linalg.svd(x * w, full_matrices=False)[1]),
        (TALL,),
        LOTS * (14 * M * n**2 + 8 * n**3),
    ),
    Case(
        "svdvals",
        calls(lambda w, x: torch.linalg.svdvals(x) * w),
        (TALL,),
        LOTS * (4 * M * n**2 - 4 * n**3 / 3),
    ),
    # torch makes U and V for the gradient of the values.
    Case(
        "svdvals, with gradient",
        calls(lambda w, x: torch.linalg.svdvals(x * w)),
        (TALL,),
        LOTS * (14 * M * n**2 + 8 * n**3),
    ),
    Case("eigh", calls(lambda w, x: torch.linalg.eigh(x * w)[0]), (SQUARE,), LOTS * 9 * CUBE),
    Case(
        "eigvalsh", calls(lambda w, x: torch.linalg.eigvalsh(x) * w), (SQUARE,), LOTS * 4 * CUBE / 3
    ),
    Case("eig", calls(lambda w, x: torch.linalg.eig(x * w)[0].real), (SQUARE,), LOTS * 25 * CUBE),
    Case(
        "solve",
        calls(lambda w, x, b: torch.linalg.solve(x * w, b)),
        (SQUARE, SIDES),
        LOTS * (2 * CUBE / 3 + 2 * W**2 * r),
        LOTS * (2 * W**2 * r + 2 * W**2 * r),
    ),
    Case(
        "inverse",
        calls(lambda w, x: torch.linalg.inv(x * w)),
        (SQUARE,),
        LOTS * 2 * CUBE,
        LOTS * 2 * 2 * CUBE,
    ),
    Case(
        "determinant", calls(lambda w, x: torch.linalg.det(x * w)), (SQUARE,), LOTS * 2 * CUBE / 3
    ),
    Case(
        "solve_triangular",
        calls(lambda w, x, b: torch.linalg.solve_triangular(x * w, b, upper=True)),
        (SQUARE, SIDES),
        LOTS * W**2 * r,
    ),
    Case(
        "lstsq, by QR",
        tall_product(lambda a, b: torch.linalg.lstsq(a, b).solution, r),
        (TALL,),
        LOTS * (2 * M * n**2 - 2 * n**3 / 3 + (4 * M * n - n**2) * r),
    ),
    Case(
        "pinv, by SVD",
        calls(lambda w, x: torch.linalg.pinv(x * w)),
        (TALL,),
        LOTS * (14 * M * n**2 + 8 * n**3 + 2 * M * n**2),
    ),
    Case(
        "matrix_exp, values known",
        calls(lambda w, x: torch.matrix_exp(x * w)),
        (EXP,),
        2 * CUBE * PRODUCTS_OF_EXP,
        device=None,
    ),
    Case(
        "matrix_exp, values unknown",
        calls(lambda w, x: torch.matrix_exp(x * w)),
        (EXP,),
        0,
        at_least=True,
    ),
]


def loss_of(lengths: Callable[..., Any]) -> Callable[[], nn.Module]:
    def loss(weight: Tensor, scores: Tensor) -> Tensor:
        labels = torch.ones(2, 5, dtype=torch.long, device=scores.device)
        return F.ctc_loss(scores * weight, labels, lengths((10, 10)), lengths((5, 4)))

    return calls(loss)


STATES = 2 * 10 * (2 * 5 + 1)


def quantized() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(linear()), {nn.Linear})


EYE, S = torch.eye(6), 3


def sparse() -> list[Case]:
    times, squared = calls(lambda w, x: x @ w, 6, S), calls(lambda w, x: (x @ x).to_dense() * w)
    return [
        Case("sparse COO x dense", times, (EYE.to_sparse(),), 2 * 6 * S, 2 * 6 * S),
        Case("sparse CSR x dense", times, (EYE.to_sparse_csr(),), 2 * 6 * S, 2 * 6 * S),
        Case("sparse x sparse", squared, (EYE.to_sparse(),), 2 * 6),
    ]


OTHERS = [
    Case(
        "ctc_loss",
        loss_of(tuple),
        (torch.zeros(10, 2, 7),),
        0,
        elementwise=("_ctc_loss", 13 * STATES),
    ),
    Case(
        "ctc_loss, lengths in tensors",
        loss_of(torch.tensor),
        (torch.zeros(10, 2, 7),),
        0,
        elementwise=("_ctc_loss", 13 * STATES),
    ),
    Case("quantized linear: integers", quantized, (X,), 0, integers=B * I * O),
    Case(
        "_int_mm: integers",
        calls(lambda w, x: torch._int_mm(x, torch.ones(I, O, dtype=torch.int8, device=x.device))),
        (torch.ones(17, I, dtype=torch.int8),),
        0,
        integers=17 * I * O,
    ),
]
LENGTHS = (3, 5)
HEADS = 4


class Nested(nn.Module):
    """A linear layer, then ``function``."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(I, I), function

    def forward(self, rows: Tensor) -> Tensor:
        return self.function(self.linear(rows))


def heads_of(rows: Tensor) -> Tensor:
    if rows.layout is torch.jagged:
        return rows.unflatten(-1, [HEADS, I // HEADS]).transpose(1, 2)
    return rows.reshape(len(LENGTHS), -1, HEADS, I // HEADS).transpose(1, 2).contiguous()


def attended(rows: Tensor) -> Tensor:
    heads = heads_of(rows)
    return F.scaled_dot_product_attention(heads, heads, heads)


def padded(rows: Tensor) -> Tensor:
    return torch.nested.to_padded_tensor(rows, 0.0) @ torch.ones(I, S, device=rows.device)


def nested(layout: torch.layout) -> list[Case]:
    rows = torch.nested.nested_tensor([torch.ones(length, I) for length in LENGTHS], layout=layout)
    kind = "strided" if layout is torch.strided else "jagged"
    first, scores = 2 * sum(LENGTHS) * I * I, sum(length**2 for length in LENGTHS)
    after = 2 * len(LENGTHS) * max(LENGTHS) * I * S
    each = 2 * scores * I
    found = [
        Case(
            f"nested {kind}: Linear",
            linear,
            (rows,),
            2 * sum(LENGTHS) * I * O,
            2 * sum(LENGTHS) * I * O,
        ),
        Case(
            f"nested {kind}: attention",
            lambda: Nested(attended),
            (rows,),
            first + 2 * each,
            first + 4 * each,
        ),
        Case(
            f"nested {kind}: padding", lambda: Nested(padded), (rows,), first + after, first + after
        ),
    ]
    if layout is torch.strided:
        product = Case(
            "nested strided: x x^T",
            lambda: Nested(lambda y: y @ y.transpose(1, 2)),
            (rows,),
            first + each,
            first + 2 * each,
        )
    else:
        product = replace(
            found[0],
            name="nested jagged: x @ weight",
            make=calls(lambda w, x: torch.matmul(x, w), I, O),
        )
    return [*found, product]


class Hidden(torch.autograd.Function):
    """A forward whose product cannot be seen."""

    @staticmethod
    def forward(context: Any, data: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(data, weight)
        return data.new_zeros(data.shape[0], weight.shape[1])

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Any:
        return None, context.saved_tensors[0].t() @ grad


class Unseen(nn.Linear):
    def forward(self, data: Tensor) -> Tensor:
        with torch.utils._python_dispatch._disable_current_modes():
            return super().forward(data)


@torch.library.custom_op("accuracy::cube", mutates_args=())
def cube(data: Tensor) -> Tensor:
    return data**3


@cube.register_fake
def _cube(data: Tensor) -> Tensor:
    return torch.empty_like(data)


UNKNOWN = [
    Case(
        "forward that cannot be seen",
        calls(lambda w, x: Hidden.apply(x, w), I, O),
        (X,),
        0,
        LINEAR,
        at_least=True,
    ),
    Case("module without operators", lambda: Unseen(I, O), (X,), 0, at_least=True),
    Case(
        "operator without formula",
        calls(lambda w, x: cube(x) @ w, I, O),
        (X,),
        LINEAR,
        LINEAR,
        at_least=True,
    ),
]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of sparse CSR and nested tensors, that they are new
    WITH_VALUES = [*sparse(), *nested(torch.strided), *nested(torch.jagged)]
CASES = [*COMPILED, *COMPLEX, *PRODUCTS, *TRANSFORMS, *LINALG, *OTHERS, *WITH_VALUES, *UNKNOWN]

RIGHT, LEAST, WRONG = "right", "at least", "WRONG"


def verdict(case: Case, found: Estimate) -> str:
    """Whether the figures are those by hand; of a case that cannot be counted whole, whether the
    totals say so."""
    forward = round(case.forward / 2) * 2
    backward = None if case.backward is None else round(case.backward / 2) * 2
    same = found.forward.flops == forward and backward in (None, found.backward.flops)
    same &= found.integer_macs == case.integers and found.problem is None
    if case.elementwise is not None:
        same &= elementwise_of(case.elementwise[0], found) == case.elementwise[1]
    if case.at_least:
        return LEAST if same and found.forward.is_lower_bound else WRONG
    return (
        RIGHT
        if same and not found.forward.is_lower_bound and not found.backward.is_lower_bound
        else WRONG
    )


def elementwise_of(kind: str, found: Estimate) -> int:
    """Elementwise FLOPs forward of the rows of a kind."""
    rows = (call for call in found.calls if (call.kind, call.direction) == (kind, "forward"))
    return sum(call.elementwise_flops or 0 for call in rows)


def line(case: Case, found: Estimate, end: str) -> str:
    hand, mine = f"{case.forward:,.0f}", f"{found.forward.flops:,}"
    if case.integers:
        hand, mine = f"{case.integers:,} int", f"{found.integer_macs:,} int"
    elif case.elementwise is not None:
        kind, flops = case.elementwise
        hand, mine = f"{flops:,} ew", f"{elementwise_of(kind, found):,} ew"
    back = "" if case.backward is None else f"{case.backward:,.0f}"
    least = " ".join(f"({kind})" for kind, _ in found.forward.missing)
    return (
        f"{case.name:<40}{hand:>14}{mine:>14}{back:>14}{found.backward.flops:>14,}  {end} {least}"
    ).rstrip()


def main() -> int:
    """Print the table and a last line that counts; 1 when a value is wrong."""
    print(
        "FLOPs by hand and by perfctl; ew: elementwise FLOPs of its row; int: multiply-adds of "
        "integers, no FLOPs"
    )
    print(f"{'operator':<40}{'forward':>14}{'perfctl':>14}{'backward':>14}{'perfctl':>14}")
    ends = []
    for case in CASES:
        found = estimate(case.make(), case.inputs, device=case.device)
        ends.append(verdict(case, found))
        print(line(case, found, ends[-1]))
        if found.problem:
            print(f"    {found.problem}")
    counts = ", ".join(f"{ends.count(end)} {end}" for end in (RIGHT, LEAST, WRONG))
    print(f"{len(CASES)} operator cases: {counts}")
    return int(WRONG in ends)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    sys.exit(main())
