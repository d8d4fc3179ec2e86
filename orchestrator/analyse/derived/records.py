"""What a derived count needs to know of a launch, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass

from perfctl.orchestrator.analyse.kernels.grids import ConvShape, GemmShape, Grid


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch as every profiler records it."""

    name: str
    grid: Grid | None = None
    """Thread blocks in x, y, z; None where the report has none."""
    block: Grid | None = None
    scale: float | None = None
    """FMUL counted, which tells how often a sum is split where there is no grid; None where nothing was counted."""
    sms: int | None = None
    """Streaming multiprocessors of the GPU; None when not known."""


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
        """Multiply-adds on paper; the square is whole, even where a causal mask hides half of it."""
        both = self.batch * self.heads * self.queries * self.keys * (self.width + self.value_width)
        return 2 * both if self.backward else both


@dataclass(frozen=True, slots=True)
class ConvGradients:
    """The backward of a 2-D convolution: the gradients of its input and of its weight."""

    batch: int
    in_channels: int
    out_channels: int
    in_h: int
    in_w: int
    out_h: int
    out_w: int
    kernel_h: int
    kernel_w: int

    @property
    def same_size(self) -> bool:
        """True where the output is as large as the input, as with stride 1."""
        return (self.in_h, self.in_w) == (self.out_h, self.out_w)

    @property
    def window(self) -> int:
        """R x S."""
        return self.kernel_h * self.kernel_w

    @property
    def depth(self) -> int:
        """C x R x S: weights of one output channel."""
        return self.in_channels * self.window

    @property
    def in_pixels(self) -> int:
        return self.batch * self.in_h * self.in_w

    @property
    def out_pixels(self) -> int:
        return self.batch * self.out_h * self.out_w


@dataclass(frozen=True, slots=True)
class Work:
    """What a launch computes."""

    shape: GemmShape | ConvShape | AttentionShape | ConvGradients
    onto: bool = False
    """True where the result is added to what is there (beta = 1): a bias that the product itself adds."""


@dataclass(frozen=True, slots=True)
class Derived:
    """Instructions of one launch. Threads for FADD, FMUL, FFMA, as SASS counters count; None where no rule says."""

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
    def fp32(self) -> float | None:
        """FADD + FMUL + 2 FFMA; None unless all three are known."""
        if self.ffma is None or self.fmul is None or self.fadd is None:
            return None
        return self.fadd + self.fmul + 2 * self.ffma
