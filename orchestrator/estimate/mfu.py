"""Model FLOPs utilization (MFU) of one throughput by every published convention, and which
convention or mistake gives a published figure.

A convention gives FLOPs of one token by term (:data:`TERMS`), so that the difference of any two is
a sum of named terms. 1 multiply-add is 2 FLOPs. The conventions were read in their sources on
2026-11-23; docs/how-to/mfu.md links them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

RECOMPUTE = ("none", "selective", "full")
"""Activation checkpointing: nothing, attention's two products, or the whole forward pass of
the layers."""

TERMS = {
    "weights": "layers",
    "router": "router",
    "head": "LM head",
    "attention": "attention",
    "unweighted": "matrix multiplications without weights",
    "embedding": "token embedding",
    "positions": "position embedding",
    "others": "parameters without a matrix multiplication",
    "idle": "idle experts",
}
"""Term -> its name. The last four multiply nothing: a formula that counts parameters has them all
the same."""
PARAMETERS = (
    "weights",
    "router",
    "head",
    "attention",
    "embedding",
    "positions",
    "others",
    "idle",
)
"""Terms of a formula that counts 6 FLOPs per parameter. A tied matrix is in N once: as the LM head,
which multiplies."""
PRODUCTS = ("weights", "router", "head", "attention", "idle")
"""Terms of a formula that counts 6 FLOPs per multiply-add of the forward pass."""
RUN = ("weights", "router", "head", "attention", "unweighted")
"""Terms of the products that run."""


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """One layer of attention."""

    per_pair: int
    """Multiply-adds of one query and one key, forward: heads x (depth of queries and keys + depth
    of values)."""
    window: int | None = None
    """Tokens that a query sees at most, itself included; None: all."""


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """One model at one sequence length. Multiply-adds are those of one token, forward; experts:
    those that it meets."""

    JSON_KEYS = ("name", "seq", "parameters", "active")
    JSON_NAMES: ClassVar = {"name": "model", "active": "active_parameters"}

    name: str
    seq: int
    products: int
    """With weights, without router and LM head."""
    router: int
    head: int
    attention: tuple[AttentionSizes, ...]
    embedding: int
    """Parameters of the table of tokens."""
    positions: int
    """Parameters of learned positions."""
    tied: bool
    """The LM head has the weights of the table of tokens."""
    others: int
    """Parameters that no product of a token uses: norms, biases, parts for images. Negative:
    weights are used more than once."""
    idle: int = 0
    """Parameters of the experts that a token does not meet."""
    unweighted: float = 0
    """FLOPs of training in products of two activations that do not grow with the sequence."""
    hidden: int | None = None
    kv_share: float | None = None
    """Heads of keys and values for each head of queries; None: not known."""
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """All of them; shared ones once."""
        return self.active + self.idle

    @property
    def active(self) -> int:
        """Parameters that one token meets."""
        head = 0 if self.tied else self.head
        return self.products + self.router + head + self.embedding + self.positions + self.others

    def compute_attention_flops_per_token(self, counted_keys: str) -> float | None:
        """Return the FLOPs of attention for one token of training; None: not known.

        counted_keys: "none"; every one of the "sequence"; those in the "window"; of these the mean
        that the causal "mask" leaves; "window, key heads": as many heads as keys have; "hidden": of
        the sequence, with heads that are hidden / heads deep.
        """
        if counted_keys == "hidden":
            flops = 12 * len(self.attention) * self.seq
            return flops * self.hidden if self.hidden is not None else None
        share = self.kv_share if counted_keys == "window, key heads" else 1
        if counted_keys == "none" or share is None:
            return 0 if share is not None else None
        macs: float = 0
        for layer in self.attention:
            width = min(layer.window or self.seq, self.seq)
            mean_keys: float = self.seq if counted_keys == "sequence" else width
            if counted_keys == "mask":
                mean_keys = (width * (width + 1) / 2 + (self.seq - width) * width) / self.seq
            macs += layer.per_pair * mean_keys
        return 6 * macs * share

    def compute_exact_token_flops(self) -> dict[str, float]:
        """Return the products of forward and backward that run, with attention as the whole square,
        as ``perfctl estimate`` counts it without sliding windows."""
        return {
            "weights": 6 * self.products,
            "router": 6 * self.router,
            "head": 6 * self.head,
            "attention": self.compute_attention_flops_per_token("sequence") or 0,
            "unweighted": self.unweighted,
        }


def build_dense_decoder_from_dimensions(
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    vocab: int,
    seq: int,
    head_dim: int | None = None,
    kv_heads: int | None = None,
    gated: bool = False,
    tied: bool = False,
    parameters: float | None = None,
    name: str = "by hand",
) -> DecoderSizes:
    """Return a dense decoder from its dimensions.

    gated: the feed-forward has three matrices (SwiGLU, GeGLU), else two. parameters: the published
    number; what it has beyond the matrices is taken for norms and biases. Without it they are
    left out.
    """
    depth = head_dim or hidden // heads
    shared = kv_heads or heads
    block = hidden * depth * (2 * heads + 2 * shared) + (3 if gated else 2) * hidden * ffn
    decoder = DecoderSizes(
        name=name,
        seq=seq,
        products=layers * block,
        router=0,
        head=hidden * vocab,
        attention=(AttentionSizes(2 * heads * depth),) * layers,
        embedding=hidden * vocab,
        positions=0,
        tied=tied,
        others=0,
        hidden=hidden,
        kv_share=shared / heads,
    )
    if parameters is None:
        return decoder
    remainder = round(parameters) - decoder.parameters
    share = remainder / parameters
    note = f"parameters: {remainder:+,} ({share:+.1%}) outside the matrices of these dimensions"
    return replace(decoder, others=remainder, notes=(note,) if abs(share) > 0.001 else ())


@dataclass(frozen=True, slots=True)
class MfuConvention:
    """One way to count."""

    JSON_KEYS = ("formula", "source")

    key: str
    formula: str
    """With N parameters, L layers, H heads of depth Q, T tokens, W the smaller of T and
    the window."""
    source: str
    attention: str
    """What it makes of attention, for the list of differences."""
    keys: str
    """As in :meth:`DecoderSizes.compute_attention_flops_per_token`."""
    counted: tuple[str, ...] = PARAMETERS
    left_out: tuple[str, ...] = ("idle",)
    """Terms of ``counted`` that it has as 0; "tied head": an LM head with the token table's
    weights."""
    attention_share: float = 1
    """Share of attention's FLOPs that it counts."""

    def compute_token_flops_by_term(self, model: DecoderSizes) -> dict[str, float] | None:
        """Return FLOPs of one token by term; None: not known of this model."""
        attention = model.compute_attention_flops_per_token(self.keys)
        if attention is None:
            return None
        parts = {
            **model.compute_exact_token_flops(),
            "attention": attention * self.attention_share,
            "embedding": 0 if model.tied else 6 * model.embedding,
            "positions": 6 * model.positions,
            "others": 6 * model.others,
            "idle": 6 * model.idle,
        }
        if model.tied and "tied head" in self.left_out:
            parts["head"] = 0
        return {term: 0 if term in self.left_out else parts[term] for term in self.counted}


EXACT = MfuConvention(
    "exact",
    "executed matrix multiplications, full square",
    "perfctl estimate, with sliding windows as the full square",
    "whole square",
    "sequence",
    RUN,
)
CAUSAL = MfuConvention(
    "exact, causal",
    "executed matrix multiplications, unmasked scores",
    "perfctl estimate, with the causal mask",
    "only unmasked scores",
    "mask",
    RUN,
)
CONVENTIONS = (
    MfuConvention(
        "6N",
        "6 N",
        "Kaplan et al., arXiv 2001.08361; PaLM, table 21",
        "left out",
        "none",
    ),
    MfuConvention(
        "palm",
        "6 N + 12 L H Q T",
        "PaLM, arXiv 2204.02311, appendix B; torchtitan before pull request 280",
        "whole square",
        "sequence",
    ),
    MfuConvention(
        "megatron",
        "6 x multiply-adds of layers and LM head + 6 L H Q T",
        "Megatron-LM, num_floating_point_operations",
        "halved (causal)",
        "sequence",
        PRODUCTS,
        ("router", "idle"),
        attention_share=0.5,
    ),
    MfuConvention(
        "nanogpt",
        "6 (N - positions) + 12 L hidden T",
        "nanoGPT, estimate_mfu",
        "head depth assumed hidden / heads",
        "hidden",
        left_out=("positions",),
    ),
    MfuConvention(
        "olmo",
        "6 (N - token embedding) + 12 L H Q W",
        "OLMo-core, num_flops_per_token since pull request 511",
        "only the window",
        "window",
        left_out=("embedding", "tied head", "idle"),
    ),
    MfuConvention(
        "torchtitan",
        "6 (N - token embedding) + 12 L H Q W",
        "torchtitan, get_nparams_and_active_nparams and quadratic_attention_flops_per_token",
        "only the window",
        "window",
        left_out=("embedding", "positions", "idle"),
    ),
    MfuConvention(
        "maxtext",
        "6 x multiply-adds of layers, router and LM head + 6 L H Q W",
        "MaxText, calculate_tflops_training_per_device since pull request 1988",
        "halved (causal, in the window)",
        "window",
        PRODUCTS,
        attention_share=0.5,
    ),
)
"""The conventions in the order of the table. N: parameters that a token meets; idle experts are in
none but nanogpt's."""
KEYS = tuple(convention.key for convention in CONVENTIONS)

VARIANTS = (
    MfuConvention(
        "megatron, paper",
        "72 B L s h^2 (1 + s / 6h + v / 12hL)",
        "Megatron-LM, arXiv 2205.05198, equation 7",
        "whole square",
        "sequence",
        PRODUCTS,
        ("router", "idle"),
    ),
    MfuConvention(
        "torchtitan, window ignored",
        "6 (N - token embedding) + 12 L H Q T",
        "torchtitan before pull request 4300",
        "whole square",
        "sequence",
        left_out=("embedding", "positions", "idle"),
    ),
    MfuConvention(
        "torchtitan, one of two attention products",
        "6 (N - token embedding) + 6 L H Q W",
        "torchtitan pull request 4366 (its flux models)",
        "one of two products",
        "window",
        left_out=("embedding", "positions", "idle"),
        attention_share=0.5,
    ),
    MfuConvention(
        "torchtitan, heads hidden / heads deep",
        "6 (N - token embedding) + 12 L hidden T",
        "torchtitan issue 1920",
        "head depth assumed hidden / heads",
        "hidden",
        left_out=("embedding", "positions", "idle"),
    ),
    MfuConvention(
        "torchtitan, all experts",
        "6 N of all experts + 12 L hidden T",
        "torchtitan's transformers backend before pull request 4300",
        "head depth assumed hidden / heads",
        "hidden",
        left_out=(),
    ),
    MfuConvention(
        "torchtitan, tied LM head left out",
        "6 (N - LM head) + 12 L H Q W",
        "torchtitan before pull request 3225",
        "only the window",
        "window",
        left_out=("embedding", "positions", "tied head", "idle"),
    ),
    MfuConvention(
        "olmo, window ignored",
        "6 (N - token embedding) + 12 L H Q T",
        "OLMo-core issue 475, which pull request 478 is about",
        "whole square",
        "sequence",
        left_out=("embedding", "tied head", "idle"),
    ),
    MfuConvention(
        "olmo, heads of keys in place of queries",
        "6 (N - token embedding) + 12 L Hkv Q W",
        "OLMo-core pull request 478 as proposed; not merged, since each query head multiplies",
        "key heads only",
        "window, key heads",
        left_out=("embedding", "tied head", "idle"),
    ),
    MfuConvention(
        "maxtext, whole square",
        "6 x multiply-adds + 12 L H Q W",
        "MaxText before pull request 1988",
        "only the window",
        "window",
        PRODUCTS,
    ),
    MfuConvention(
        "maxtext, all experts",
        "6 x multiply-adds with all experts + 12 L H Q T",
        "MaxText before pull request 678",
        "whole square",
        "sequence",
        PRODUCTS,
        (),
    ),
)
"""What sources counted once, and known mistakes: for ``--reported``."""


@dataclass(frozen=True, slots=True)
class ConventionRow:
    """One convention on one model. Terms and what follows from them are None where the formula asks
    for what is not known of the model."""

    JSON_KEYS = ("convention", "total", "terms", "mfu", "hfu", "reason")
    JSON_NAMES: ClassVar = {"total": "flops_per_token"}
    JSON_INLINED = ("convention",)

    convention: MfuConvention
    terms: Mapping[str, float] | None
    """FLOPs of one token; None: the formula asks for what is not known of the model."""
    mfu: float | None
    """As a share of 1. None: not known, or refused."""
    hfu: float | None
    """With the forward FLOPs that activation checkpointing repeats. None without a mode, or where
    MFU or HFU is refused."""
    reason: str | None = None
    """Why there is no MFU or no HFU."""

    @property
    def total(self) -> float | None:
        return None if self.terms is None else sum(self.terms.values())


@dataclass(frozen=True, slots=True)
class MfuExplanation:
    """One explanation of a reported MFU."""

    JSON_KEYS = ("said", "source", "value")
    JSON_NAMES: ClassVar = {"said": "explanation", "value": "mfu"}

    said: str
    source: str
    value: float
    """What it gives, as a share of 1."""
    rank: int
    """0: a convention, 1: other FLOPs of a source, 2: HFU, 3: another peak or number of devices."""


@dataclass(frozen=True, slots=True)
class ReportedMfu:
    """A published MFU and what explains it."""

    JSON_NAMES: ClassVar = {"value": "mfu"}

    value: float
    tolerance: float
    matches: tuple[MfuExplanation, ...]
    """All that fit, by rank, then the nearest first."""
    nearest: MfuExplanation


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """Dense FLOP/s of one device, and others that are taken for it by mistake."""

    JSON_KEYS = ("flops", "source")
    JSON_NAMES: ClassVar = {"flops": "peak_flops_per_s", "source": "peak"}

    flops: float
    source: str
    slips: tuple[tuple[str, float], ...] = ()
    """(What was taken instead, FLOP/s)."""


@dataclass(frozen=True, slots=True)
class MfuAudit:
    """MFU of one throughput by every convention."""

    JSON_KEYS = (
        "model",
        "tokens_per_second",
        "devices",
        "peak",
        "recompute",
        "reported",
        "notes",
    )
    JSON_NAMES: ClassVar = {"devices": "gpus"}
    JSON_INLINED = ("model", "peak")

    model: DecoderSizes
    tokens_per_second: float
    """Of all devices together."""
    devices: int
    peak: DevicePeak
    recompute: str | float
    exact: ConventionRow
    """Every product that runs, attention as the whole square, also of sliding windows."""
    causal: ConventionRow
    """Every product that runs, attention with only the scores that the mask leaves."""
    rows: tuple[ConventionRow, ...]
    reported: ReportedMfu | None = None
    notes: tuple[str, ...] = ()

    def get_convention_row(self, key: str) -> ConventionRow:
        """Return the row of a convention. Raises StopIteration for another key."""
        return next(row for row in self.rows if row.convention.key == key)

    def compute_excess_flops_over_exact(
        self, row: ConventionRow
    ) -> tuple[float, tuple[tuple[str, float], ...]] | None:
        """Return the FLOPs of one token beyond the exact count, in all and by term (name, FLOPs),
        the largest first; None: not known."""
        if row.terms is None or self.exact.terms is None:
            return None
        names = {**TERMS, "attention": f"attention {row.convention.attention}"}
        by_term = [
            (name, flops)
            for term, name in names.items()
            if (flops := row.terms.get(term, 0) - self.exact.terms.get(term, 0))
        ]
        by_term.sort(key=lambda pair: -abs(pair[1]))
        return sum(flops for _, flops in by_term), tuple(by_term)


def audit_mfu(
    model: DecoderSizes,
    tokens_per_second: float,
    devices: int,
    peak: DevicePeak,
    *,
    recompute: str | float = "none",
    reported: tuple[float, float] | None = None,
    notes: tuple[str, ...] = (),
) -> MfuAudit:
    """``recompute``: one of RECOMPUTE, or the share of the layers' forward products that runs again
    (attention then wholly).

    ``reported``: a published MFU and its tolerance, as shares of 1. Nothing is refused but
    utilizations over 1.
    """
    per_flop = tokens_per_second / (peak.flops * devices)
    exact, causal, *rows = (
        compute_convention_mfu_and_hfu(convention, model, per_flop, recompute, devices)
        for convention in (EXACT, CAUSAL, *CONVENTIONS)
    )
    explained = None
    if reported is not None:
        value, tolerance = reported
        matches = list(_list_mfu_explanations(model, tokens_per_second, devices, peak, recompute))
        fits = [match for match in matches if abs(match.value - value) <= tolerance]
        fits.sort(key=lambda match: (match.rank, round(abs(match.value - value), 12)))
        nearest = min(matches, key=lambda match: abs(match.value - value))
        explained = ReportedMfu(value, tolerance, tuple(fits), nearest)
    return MfuAudit(
        model,
        tokens_per_second,
        devices,
        peak,
        recompute,
        exact,
        causal,
        tuple(rows),
        explained,
        (*model.notes, *notes),
    )


def compute_recomputed_flops_per_token(
    convention: MfuConvention, terms: Mapping[str, float], recompute: str | float
) -> float:
    """Return the FLOPs of one token that activation checkpointing runs again: a forward pass is a
    third of a training step."""
    if recompute == "none":
        return 0
    attention = terms.get("attention", 0) / 3
    if recompute == "selective":
        return attention
    share = 1.0 if isinstance(recompute, str) else recompute
    # A formula that counts parameters counts all of them again, others the layers without LM head.
    recomputed_terms = ["weights", "router"]
    if convention.counted == PARAMETERS:
        recomputed_terms = [term for term in terms if term != "attention"]
    return share * sum(terms.get(term, 0) for term in recomputed_terms) / 3 + attention


def compute_convention_mfu_and_hfu(
    convention: MfuConvention,
    model: DecoderSizes,
    tokens_per_peak_flop: float,
    recompute: str | float,
    devices: int,
) -> ConventionRow:
    """Return MFU and HFU by one convention. ``tokens_per_peak_flop``: tokens/s for each FLOP/s of
    the peak."""
    terms = convention.compute_token_flops_by_term(model)
    if terms is None:
        return ConventionRow(
            convention, None, None, None, "the hidden size of the model is unknown"
        )
    total = sum(terms.values())
    mfu = total * tokens_per_peak_flop
    if mfu > 1:
        return ConventionRow(
            convention,
            terms,
            None,
            None,
            f"{mfu:.1%}: {explain_mfu_over_one(model, terms, mfu, devices)}",
        )
    if recompute == "none":
        return ConventionRow(convention, terms, mfu, None)
    hfu = (
        total + compute_recomputed_flops_per_token(convention, terms, recompute)
    ) * tokens_per_peak_flop
    if hfu > 1:
        problem = (
            f"HFU {hfu:.1%}: the model recomputes less than stated, or the throughput is too high"
        )
        return ConventionRow(convention, terms, mfu, None, problem)
    return ConventionRow(convention, terms, mfu, hfu)


def explain_mfu_over_one(
    model: DecoderSizes, terms: Mapping[str, float], mfu: float, devices: int
) -> str:
    """Return the likely cause of an MFU over 1."""
    total, square = sum(terms.values()), terms.get("attention", 0)
    masked = model.compute_attention_flops_per_token("mask") or 0
    if (total - terms.get("idle", 0)) / total * mfu <= 1:
        return "the formula counts experts that a token does not use"
    if square > masked and (total - square + masked) / total * mfu <= 1:
        windows = [layer.window or model.seq for layer in model.attention]
        is_windowed = min(windows, default=model.seq) < model.seq
        excess = "beyond the window" if is_windowed else "that the causal mask removes"
        return f"the formula counts scores {excess}"
    if devices == 1:
        return (
            f"tokens/s of several devices? With `gpus` {-int(-mfu // 1)} or more it fits. Or the "
            "wrong device, precision or `seq`"
        )
    return "check tokens/s, `device`, `precision` (FP8 doubles the peak) and `seq`"


def _list_mfu_explanations(
    model: DecoderSizes,
    tokens_per_second: float,
    devices: int,
    peak: DevicePeak,
    recompute: str | float,
) -> Iterator[MfuExplanation]:
    """Yield conventions, other FLOPs of their sources, recomputed FLOPs (HFU), another peak or
    number of devices."""

    def make_explanation(
        text: str, source: str, flops: float, rank: int, supply: float = peak.flops * devices
    ) -> MfuExplanation:
        return MfuExplanation(text, source, tokens_per_second * flops / supply, rank)

    terms_of = [
        (convention, terms, sum(terms.values()))
        for convention in (*CONVENTIONS, EXACT, CAUSAL)
        if (terms := convention.compute_token_flops_by_term(model)) is not None
    ]
    for convention, _, flops in terms_of:
        yield make_explanation(convention.key, convention.source, flops, 0)
    totals = {flops for *_, flops in terms_of}
    for variant in VARIANTS:
        terms = variant.compute_token_flops_by_term(model)
        if terms is not None and (flops := sum(terms.values())) not in totals:
            yield make_explanation(variant.key, variant.source, flops, 1)
    modes: dict[str, str | float] = {mode: mode for mode in RECOMPUTE[1:]}
    if isinstance(recompute, float):
        modes[f"{recompute:.0%}"] = recompute
    for convention, terms, total in terms_of:
        for name, mode in modes.items():
            text = f"{convention.key} with {name} recomputing: HFU, not MFU"
            flops = total + compute_recomputed_flops_per_token(convention, terms, mode)
            yield make_explanation(text, convention.source, flops, 2)
    paper = next(variant for variant in VARIANTS if variant.key == "megatron, paper")
    terms = paper.compute_token_flops_by_term(model) or {}
    tripled = sum(terms.values()) + terms.get("attention", 0)
    text = "megatron, paper's equation 8: HFU that counts recomputed attention three times"
    yield make_explanation(text, "Megatron-LM, arXiv 2205.05198", tripled, 2)
    for convention, _, flops in terms_of:
        key, source = convention.key, convention.source
        for slip, wrong in peak.slips:
            yield make_explanation(f"{key} over {slip}", source, flops, 3, wrong * devices)
        if devices > 1:
            text = f"{key}, tokens/s of {devices} devices over the peak of one"
            yield make_explanation(text, source, flops, 3, peak.flops)
