"""Estimated FLOPs of generation: prefill, and the sum over all steps of decode. 1 multiply-add
is 2 FLOPs.

Amounts of a step are whole numbers that follow a polynomial of the context: of degree 1 with a
cache (attention meets every token so far once), of degree 2 without one. A window changes the
polynomial where it is full. So few steps are traced, and the sum over all is exact where the
polynomial through them also gives the steps traced as a check
(:func:`sum_step_work_over_contexts`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from math import prod
from typing import ClassVar, NamedTuple

from perfctl.orchestrator.estimate.flops.engine import WorkTotals
from perfctl.orchestrator.estimate.flops.formulas import ITEM_BYTES
from perfctl.orchestrator.estimate.step import Estimate, extract_layer_estimate, is_layer_inside
from perfctl.records.paper import CacheTensor, LayerCall, LayerTraffic, TracedModule

Amounts = Mapping[tuple[str, str], int]
"""(Layer, measure) -> value; measures are those of LayerWork, and "?NAME" for calls of what has
no formula."""
MEASURES = (
    "macs",
    "elementwise_flops",
    "weight_bytes",
    "cache_read_bytes",
    "cache_written_bytes",
    "unfused_bytes",
)


@dataclass(frozen=True, slots=True)
class LayerWork:
    """What one layer does in a phase."""

    JSON_KEYS = ("*", "flops")

    layer: str
    kind: str
    macs: int
    elementwise_flops: int
    weight_bytes: int
    """Parameters read, each once a step; rows of an embedding, experts that have a token."""
    cache_read_bytes: int
    """Read of what earlier steps left in the cache."""
    cache_written_bytes: int
    """What stays in the cache."""
    unfused_bytes: int
    """Read and written by its operations one by one, weights and cache too: the traffic if nothing
    is fused or kept on chip."""
    missing: tuple[tuple[str, int], ...] = ()

    @property
    def flops(self) -> int:
        """Of the multiply-adds: 2 each."""
        return 2 * self.macs

    @property
    def bytes(self) -> int:
        """Weights and cache: what a step moves at least."""
        return self.weight_bytes + self.cache_read_bytes + self.cache_written_bytes


class PhaseBytes(NamedTuple):
    """Bytes of a phase, as in LayerWork."""

    weight_bytes: int
    cache_read_bytes: int
    cache_written_bytes: int
    unfused_bytes: int
    bytes: int


@dataclass(frozen=True, slots=True)
class GenerationPhase:
    """Prefill, decode, or one step of decode; for the whole batch."""

    JSON_KEYS = (
        "name",
        "steps",
        "tokens",
        "first_step_context",
        "last_step_context",
        "totals",
        "moved",
        "flops_per_byte",
        "traced_steps",
        "layers",
    )
    JSON_INLINED = ("totals", "moved")

    name: str
    steps: int
    tokens: int
    """Tokens of one sequence that go into a step; of decode without a cache those of its
    last step."""
    first_step_context: int
    """Tokens that the first step's last token attends to, itself included."""
    last_step_context: int
    layers: tuple[LayerWork, ...]
    traced_steps: int
    """Steps that were traced; the others follow from them."""

    def sum_layer_field(self, field_name: str) -> int:
        return sum(getattr(layer, field_name) for layer in self.layers)

    @property
    def moved(self) -> PhaseBytes:
        """Bytes of all layers."""
        return PhaseBytes(*(self.sum_layer_field(name) for name in PhaseBytes._fields))

    @property
    def totals(self) -> WorkTotals:
        """Multiply-adds and FLOPs, with what is not counted."""
        missing: Counter[str] = Counter()
        for layer in self.layers:
            missing.update(dict(layer.missing))
        macs = self.sum_layer_field("macs")
        return WorkTotals(
            macs,
            2 * macs,
            self.sum_layer_field("elementwise_flops"),
            tuple(sorted(missing.items())),
        )

    @property
    def flops_per_byte(self) -> float | None:
        """FLOPs of multiply-adds for each byte of weights and cache; None where none are read."""
        moved = self.sum_layer_field("bytes")
        return self.totals.flops / moved if moved else None


class KvCachePart(NamedTuple):
    """Layers whose cache is alike."""

    layers: int
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    """(Name, shape for one token, or as a whole where it does not grow), of one sequence."""
    item_bytes: int
    is_growing: bool
    """False: a state, or the keys and values of the encoder's tokens."""
    window: int | None
    """Tokens that it holds at the end if they are fewer than all; None: all."""

    @property
    def values_per_layer(self) -> int:
        """Values of one layer: for one token, or as a whole."""
        return sum(prod(shape) for _, shape in self.tensors)

    @property
    def bytes(self) -> int:
        """Of one token in all these layers, or of all that does not grow."""
        return self.layers * self.values_per_layer * self.item_bytes


class LatentSizes(NamedTuple):
    """Values of a token in one layer."""

    compressed_values: int
    expanded_values: int
    """As keys and values of all heads."""


@dataclass(frozen=True, slots=True)
class KvCache:
    """The cache of keys and values, from the model's own tensors."""

    JSON_KEYS = (
        "dtypes",
        "bytes_per_token",
        "values_per_token",
        "fixed_bytes",
        "bytes_at_end",
        "tokens_at_end",
        "parts",
        "latent",
    )

    dtypes: tuple[str, ...]
    parts: tuple[KvCachePart, ...]
    tokens_at_end: int
    """Tokens of the decoder."""
    batch: int
    bytes_at_end: int
    """Bytes of the complete batch."""
    latent: LatentSizes | None
    """Multi-head latent attention: values of a token in one layer, compressed and as keys and
    values of all heads."""

    @property
    def values_per_token(self) -> int:
        """Of one sequence in all layers, while no window is full."""
        return sum(part.layers * part.values_per_layer for part in self.parts if part.is_growing)

    @property
    def bytes_per_token(self) -> int:
        return sum(part.bytes for part in self.parts if part.is_growing)

    @property
    def has_compressed_latent_cache(self) -> bool:
        """Whether keys and values are compressed ones of latent attention; an index of them may be
        kept beside."""
        cached_sizes = {
            sum(prod(shape) for name, shape in part.tensors if name in ("keys", "values"))
            for part in self.parts
            if part.is_growing
        }
        return self.latent is not None and cached_sizes == {self.latent[0]}

    @property
    def fixed_bytes(self) -> int:
        """Of one sequence: what does not grow with the tokens."""
        return sum(part.bytes for part in self.parts if not part.is_growing)


@dataclass(frozen=True, slots=True)
class GenerationEstimate:
    """One model at one batch size, generating."""

    JSON_KEYS = (
        "prompt",
        "generate",
        "parameters",
        "active_parameters",
        "phases",
        "cache",
        "problem",
        "notes",
    )
    JSON_NAMES: ClassVar = {"cache": "kv_cache"}

    name: str
    batch: int
    prompt: int
    generate: int
    phases: tuple[GenerationPhase, ...]
    """Prefill; if there are steps also decode, both together, the first step of decode and
    its last."""
    cached: bool
    """False: there is no cache (``kv_cache`` none)."""
    cache: KvCache | None
    """None: there is none, or these are parts of a model."""
    prefill: Estimate
    """The trace of prefill."""
    notes: tuple[str, ...]
    problem: str | None = None
    """Where and why a trace stopped early; there are no phases then."""
    decode: tuple[Estimate, ...] = ()
    """The traces of the first and of the last step of decode; () without steps, and of parts of
    a model."""
    model_notes: tuple[str, ...] = ()
    """Sentences of ``notes`` that hold for the model, whatever runs it."""

    @property
    def parameters(self) -> int:
        return self.prefill.parameters

    @property
    def active_parameters(self) -> int | None:
        """Parameters that one token meets; None where the model has no experts."""
        return self.prefill.active_parameters

    def get_phase(self, name: str) -> GenerationPhase:
        return next(phase for phase in self.phases if phase.name == name)

    def extract_layer(self, layer_path: str) -> GenerationEstimate | None:
        """Only the layer at ``layer_path`` and what is inside it; None when the model has no
        such layer."""
        prefill = extract_layer_estimate(self.prefill, layer_path)
        if prefill is None:
            return None

        phases = tuple(
            replace(
                phase,
                layers=tuple(row for row in phase.layers if is_layer_inside(row.layer, layer_path)),
            )
            for phase in self.phases
        )
        return replace(
            self,
            phases=phases,
            prefill=prefill,
            cache=self.cache if not layer_path else None,
            decode=(),
        )


def sum_step_forward_work(
    calls: Iterable[LayerCall],
    traffic: Iterable[LayerTraffic],
    cache_written_bytes_by_layer: Mapping[str, int],
    cache_item_bytes: int | None,
) -> Amounts:
    """Return what one traced step does. ``cache_written_bytes_by_layer``: put into the cache;
    ``cache_item_bytes``: of a value there, None: its own."""
    sums: Counter[tuple[str, str]] = Counter()
    for call in calls:
        if call.direction != "forward":
            continue
        if call.macs is None:
            sums[call.layer, f"?{call.kind}"] += call.calls
        sums[call.layer, "macs"] += call.macs or 0
        sums[call.layer, "elementwise_flops"] += call.elementwise_flops or 0
        sums[call.layer, "unfused_bytes"] += (call.read_bytes or 0) + (call.write_bytes or 0)
    for row in traffic:
        sums[row.layer, "weight_bytes"] += row.weight_bytes
        sums[row.layer, "cache_read_bytes"] += (
            row.cache_bytes if cache_item_bytes is None else row.cache_values * cache_item_bytes
        )
    for layer, size in cache_written_bytes_by_layer.items():
        sums[layer, "cache_written_bytes"] += size
    return sums


def build_layer_work_rows(
    amounts: Amounts, modules: Sequence[TracedModule]
) -> tuple[LayerWork, ...]:
    """Return a row for every layer that does something, in the model's order."""
    kinds = {module.path: module.kind for module in modules}
    places = {path: index for index, path in enumerate(kinds)}
    without_formula: dict[str, list[tuple[str, int]]] = {}
    for (path, name), count in sorted(
        item for item in amounts.items() if item[0][1][:1] == "?" and item[1]
    ):
        without_formula.setdefault(path, []).append((name[1:], count))
    rows = []
    for layer in sorted(
        {layer for layer, _ in amounts}, key=lambda path: places.get(path, len(places))
    ):
        missing = tuple(without_formula.get(layer, ()))
        values = {name: amounts.get((layer, name), 0) for name in MEASURES}
        if any(values.values()) or missing:
            rows.append(LayerWork(layer, kinds.get(layer, ""), missing=missing, **values))
    return tuple(rows)


def sum_step_work_over_contexts(
    first: int,
    last: int,
    amounts_at: Callable[[int], Amounts],
    degree: int,
    window_full_contexts: Iterable[int] = (),
) -> Amounts:
    """Return the sum of ``at(context)`` over all contexts from ``first`` to ``last``.

    A polynomial of ``degree`` through evenly spaced contexts gives the sum, if it also gives one
    more context between them; otherwise the range is halved. ``window_full_contexts``: contexts
    where a window is full, at which the range is split before. At a single bend (a window that
    fills up between) no line gives the middle, so it is found wherever it is.
    """
    total: Counter[tuple[str, str]] = Counter()
    bounds = [
        first,
        *sorted({end + 1 for end in window_full_contexts if first <= end < last}),
        last + 1,
    ]
    for start, stop in pairwise(bounds):
        _add_context_range_work(start, stop - 1, amounts_at, degree, total)
    return total


def _add_context_range_work(
    first: int,
    last: int,
    amounts_at: Callable[[int], Amounts],
    degree: int,
    total: Counter[tuple[str, str]],
) -> None:
    count = last - first + 1
    if count <= degree + 2:
        for context in range(first, last + 1):
            total.update(amounts_at(context))
        return
    places = [first + (count - 1) * step // (degree + 1) for step in range(degree + 2)]
    check = places.pop(1)
    samples, middle = [amounts_at(point) for point in places], amounts_at(check)
    names = {name for sample in (*samples, middle) for name in sample}
    values = {name: [sample.get(name, 0) for sample in samples] for name in names}
    if all(
        _interpolate_polynomial(places, values[name], check) == middle.get(name, 0)
        for name in names
    ):
        for name in names:
            total[name] += _sum_polynomial_over_integers(places, values[name], first, last)
        return
    half = (first + last) // 2
    _add_context_range_work(first, half, amounts_at, degree, total)
    _add_context_range_work(half + 1, last, amounts_at, degree, total)


def _interpolate_polynomial(
    positions: Sequence[int], values: Sequence[int | Fraction], position: int
) -> Fraction:
    """Return the polynomial through these points at ``position`` (Lagrange)."""
    total = Fraction(0)
    for other_position, value in zip(positions, values, strict=True):
        factors = (
            Fraction(position - other, other_position - other)
            for other in positions
            if other != other_position
        )
        total += value * prod(factors, start=Fraction(1))
    return total


def _sum_polynomial_over_integers(
    positions: Sequence[int], values: Sequence[int], first: int, last: int
) -> int:
    """Return the sum of the polynomial through these points over all whole numbers from first to
    last: the running sums follow a polynomial of one degree more."""
    if len(set(values)) == 1:
        return values[0] * (last - first + 1)
    starts = range(first, first + len(positions))
    sums = [
        *accumulate(
            (_interpolate_polynomial(positions, values, position) for position in starts),
            initial=Fraction(0),
        )
    ]
    total = _interpolate_polynomial(range(first - 1, starts.stop), sums, last)
    if total.denominator != 1:
        raise ArithmeticError(f"a sum of whole numbers came out as {total}")
    return int(total)


def describe_kv_cache(
    probe_tensors: Sequence[CacheTensor],
    end_tensors: Sequence[CacheTensor],
    tokens_in_cache: int,
    batch: int,
    dtype: str | None,
    latent: tuple[int, int] | None,
) -> KvCache:
    """How the cache is built, and its size. ``probe_tensors``: after a second token;
    ``end_tensors``: after the last of ``tokens_in_cache``.

    dtype: type of its values; None takes that of the tensors.
    """
    probe_by_name = {tensor.name: tensor for tensor in probe_tensors}
    layers: dict[str, list[_CachedTensor]] = {}
    for tensor in end_tensors:
        axis = (
            find_growing_axis(probe_by_name[tensor.name]) if tensor.name in probe_by_name else None
        )
        owner, role = _split_tensor_path(tensor.name)
        shape = tuple(
            size for axis_index, size in enumerate(tensor.shape) if axis_index not in (0, axis)
        )
        kept_tokens = tensor.shape[axis] if axis is not None else tokens_in_cache
        cached_tensor = _CachedTensor(
            role,
            shape,
            axis is not None,
            kept_tokens if kept_tokens < tokens_in_cache else None,
            dtype or tensor.dtype,
        )
        layers.setdefault(f"{owner} {axis is None} {cached_tensor.dtype}", []).append(cached_tensor)
    counts = Counter(map(tuple, layers.values()))
    parts = tuple(
        KvCachePart(
            count,
            tuple((cached.name, cached.shape) for cached in group),
            ITEM_BYTES[group[0].dtype],
            group[0].is_growing,
            group[0].window,
        )
        for group, count in counts.items()
    )
    dtypes = tuple(dict.fromkeys(cached.dtype for group in counts for cached in group))
    size = sum(prod(tensor.shape) * ITEM_BYTES[dtype or tensor.dtype] for tensor in end_tensors)
    return KvCache(dtypes, parts, tokens_in_cache, batch, size, latent and LatentSizes(*latent))


def _split_tensor_path(path: str) -> tuple[str, str]:
    """ "layers.0.conv_states.1" -> ("layers.0", "conv_states"); of tuples alone, "0.1" -> ("0",
    "tensor 1")."""
    parts = path.split(".")
    index = next(
        (index for index in reversed(range(len(parts))) if not parts[index].isdecimal()), None
    )
    if index is None or (index == 0 and len(parts) > 1):
        return ".".join(parts[:-1]), f"tensor {parts[-1]}"
    return ".".join(parts[:index]), parts[index]


class _CachedTensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    is_growing: bool
    window: int | None
    dtype: str


def find_growing_axis(tensor: CacheTensor) -> int | None:
    """The dimension that one more token makes longer; None where none does."""
    if tensor.before is None or len(tensor.before) != len(tensor.shape):
        return None
    return next(
        (
            axis
            for axis, (old, new) in enumerate(zip(tensor.before, tensor.shape, strict=True))
            if new == old + 1
        ),
        None,
    )


def count_cache_writes_by_layer(
    probe: Sequence[CacheTensor], step: Sequence[CacheTensor], is_prefill: bool
) -> Mapping[str, int]:
    """Layer -> values that a step puts into the cache: of a token, or of all that prefill
    leaves there.

    probe: after a second token, which says which layer a tensor belongs to and how it grows.
    """
    probe_by_name = {tensor.name: tensor for tensor in probe}
    elements: Counter[str] = Counter()
    for tensor in step:
        probe_tensor = probe_by_name.get(tensor.name)
        axis = find_growing_axis(probe_tensor) if probe_tensor is not None else None
        layer = (probe_tensor.layer if probe_tensor is not None else None) or ""
        if is_prefill:
            elements[layer] += prod(tensor.shape)
        elif axis is not None:
            elements[layer] += prod(tensor.shape) // tensor.shape[axis]
        elif tensor.written:
            elements[layer] += prod(tensor.shape)
    return elements
