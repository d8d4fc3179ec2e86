"""A language model as the conventions of MFU see it: FLOPs of training by term, for one token. 1
multiply-add is 2 FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

TERMS = {
    "weights": "layers",
    "router": "router",
    "head": "LM head",
    "attention": "attention",
    "unweighted": "products without weights",
    "embedding": "token embedding",
    "positions": "position embedding",
    "others": "parameters without a product",
    "idle": "idle experts",
}
"""Term -> its name. The last four multiply nothing: a formula that counts parameters has them all
the same."""
Terms = Mapping[str, float]
"""Term -> FLOPs of one token, forward and backward."""


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """One layer of attention."""

    per_pair: int
    """Multiply-adds of one query and one key, forward: heads x (depth of queries and keys + depth
    of values)."""
    window: int | None = None
    """Tokens that a query sees at most, itself included; None: all."""


@dataclass(frozen=True, slots=True)
class Decoder:
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
    attention: tuple[AttentionLayer, ...]
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

    @property
    def pairs(self) -> int:
        """Multiply-adds of one query and one key in all layers, forward."""
        return sum(layer.per_pair for layer in self.attention)

    @property
    def windowed(self) -> bool:
        """Whether a window is shorter than the sequence."""
        return any(layer.window is not None and layer.window < self.seq for layer in self.attention)

    def seen(self, windows: bool = True) -> int:
        """Multiply-adds of attention for one token, forward: every key in the sequence or, with
        ``windows``, in the window."""
        return sum(
            layer.per_pair * min(self.seq, layer.window if windows and layer.window else self.seq)
            for layer in self.attention
        )

    def needed(self) -> float:
        """As :meth:`seen`, with only the keys that a causal mask leaves: the mean over all tokens
        of the sequence."""
        return sum(layer.per_pair * _mean_keys(self.seq, layer.window) for layer in self.attention)

    def narrow(self) -> int | None:
        """Multiply-adds of one query and one key in all layers, if a head were hidden / heads deep;
        None: not known."""
        return 2 * self.hidden * len(self.attention) if self.hidden is not None else None

    def exact(self) -> dict[str, float]:
        """What ``perfctl estimate`` counts of forward and backward: the products that run,
        attention as the whole square."""
        return {
            "weights": 6 * self.products,
            "router": 6 * self.router,
            "head": 6 * self.head,
            "attention": 6 * self.seen(windows=False),
            "unweighted": self.unweighted,
        }


def _mean_keys(seq: int, window: int | None) -> float:
    """Token t of a causal sequence sees t keys, at most ``window``."""
    kept = min(window or seq, seq)
    return (kept * (kept + 1) / 2 + (seq - kept) * kept) / seq


def by_hand(
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
) -> Decoder:
    """A dense decoder from its dimensions.

    gated: the feed-forward has three matrices (SwiGLU, GeGLU), else two. parameters: the published
    number; what it has beyond the matrices is taken for norms and biases. Without it they are
    left out.
    """
    depth = head_dim or hidden // heads
    shared = kv_heads or heads
    block = hidden * depth * (2 * heads + 2 * shared) + (3 if gated else 2) * hidden * ffn
    found = Decoder(
        name=name,
        seq=seq,
        products=layers * block,
        router=0,
        head=hidden * vocab,
        attention=(AttentionLayer(2 * heads * depth),) * layers,
        embedding=hidden * vocab,
        positions=0,
        tied=tied,
        others=0,
        hidden=hidden,
        kv_share=shared / heads,
    )
    if parameters is None:
        return found
    rest = round(parameters) - found.parameters
    off = abs(rest) / parameters
    said = (
        f"parameters: {rest:+,} ({rest / parameters:+.1%}) beside the matrices of these dimensions"
    )
    return replace(found, others=rest, notes=(said,) if off > 0.001 else ())
