"""What a derived count needs to know of a launch, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass

from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape, Grid

TENSOR_FLOP = "tensor FLOP"
"""Name of a derived count that is FLOPs of the tensor cores, not instructions."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch as every profiler records it."""

    name: str
    grid: Grid | None = None
    """Thread blocks in x, y, z; None where the report has none."""
    block: Grid | None = None
    cluster: tuple[int, int] | None = None
    """Thread blocks of a cluster in x and y; None where it was launched without, or not known."""
    scale: float | None = None
    """FMUL counted, which tells how often a sum is split where there is no grid; None where nothing
    was counted."""
    reduced: bool | None = None
    """True where a ``splitKreduce`` launch adds up the parts of its sum, False where none does;
    None when not known."""
    before: Launch | None = None
    """Of a ``splitKreduce``: the product whose parts it adds up."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Scaled dot product attention: queries and keys of each head, and the values' width."""

    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    """Of a head of queries and keys."""
    value_width: int
    causal: bool = False
    backward: bool = False

    @property
    def macs(self) -> int:
        """Estimated multiply-adds; the square is whole, even where a causal mask hides half
        of it."""
        both = self.batch * self.heads * self.queries * self.keys * (self.width + self.value_width)
        return 2 * both if self.backward else both


@dataclass(frozen=True, slots=True)
class LaunchWork:
    """What a launch computes."""

    shape: GemmShape | ConvShape | AttentionShape
    onto: bool = False
    """True where the result is added to what is there (beta = 1): a bias that the product
    itself adds."""
    direction: str = "forward"
    """forward, grad_input or grad_weight; forward also for products of which nothing says it. Of a
    convolution's gradients, the shape of grad_input is that of the convolution which computes it,
    with the channels exchanged, and that of grad_weight channels out x filter, summed over
    all outputs."""
    forward: ConvShape | None = None
    """The convolution whose gradient it is; None for other work."""
    stride: int | None = 1
    """Of the convolution whose gradient it is; None where nothing says it."""
    inside: int | None = None
    """Multiply-adds of a convolution that fall on the image and not on its padding; None when
    not known."""


@dataclass(frozen=True, slots=True)
class RowWork:
    """What an operation sums, normalises, pools or turns into probabilities: ``rows`` of
    ``columns`` elements."""

    kind: str
    """sum, softmax, layer_norm; batch_norm, whose rows are channels; average_pool, adaptive_pool
    and max_pool, whose rows are outputs and columns the inputs of a window; dropout, whose rows
    are elements."""
    rows: int
    columns: int
    affine: bool = False
    """True where the norm scales and shifts its elements."""
    training: bool = True


@dataclass(frozen=True, slots=True)
class DerivedInstructions:
    """Instructions of one launch. Threads for FADD, FMUL, FFMA, as SASS counters count; None where
    no rule says."""

    family: str
    """Which rule."""
    rule: str
    """Its arithmetic, with this launch's numbers."""
    ffma: float | None = None
    fmul: float | None = None
    fadd: float | None = None
    tensor: float | None = None
    """FLOPs of the tensor cores."""
    math: str | None = None
    """Type that the tensor cores multiply: tf32, fp16, bf16, ..."""

    @property
    def fp32_flops(self) -> float | None:
        """FADD + FMUL + 2 FFMA; None unless all three are known."""
        if self.ffma is None or self.fmul is None or self.fadd is None:
            return None
        return self.fadd + self.fmul + 2 * self.ffma
