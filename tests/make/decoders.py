"""Published decoders, by their dimensions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfctl.orchestrator.estimate.mfu import (
    AttentionSizes,
    DecoderSizes,
    build_dense_decoder_from_dimensions,
)


def gated(
    layers: int, hidden: int, ffn: int, heads: int, kv: int, vocab: int, seq: int, **more: Any
) -> DecoderSizes:
    """Return a decoder with a gated feed-forward layer and RMS norms, as Llama has them."""
    model = build_dense_decoder_from_dimensions(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv,
        ffn=ffn,
        gated=True,
        vocab=vocab,
        seq=seq,
        **more,
    )
    return replace(model, others=(2 * layers + 1) * hidden)


LLAMA3_8B = gated(32, 4096, 14336, 32, 8, 128_256, 8192)
QWEN3_MOE = DecoderSizes(
    name="Qwen3-30B-A3B",
    seq=8192,
    products=48 * (2048 * 128 * (2 * 32 + 2 * 4) + 8 * 3 * 2048 * 768),
    router=48 * 2048 * 128,
    head=2048 * 151_936,
    attention=(AttentionSizes(32 * 2 * 128),) * 48,
    embedding=2048 * 151_936,
    positions=0,
    tied=False,
    others=48 * (2 * 2048 + 2 * 128) + 2048,
    idle=48 * 120 * 3 * 2048 * 768,
    hidden=2048,
)
GPT_OSS = DecoderSizes(
    name="gpt-oss-20b",
    seq=4096,
    products=24 * (2 * 2880 * 4096 + 2 * 2880 * 512 + 4 * 3 * 2880 * 2880),
    router=24 * 2880 * 32,
    head=2880 * 201_088,
    attention=(AttentionSizes(64 * 2 * 64, 128), AttentionSizes(64 * 2 * 64)) * 12,
    embedding=2880 * 201_088,
    positions=0,
    tied=False,
    hidden=2880,
    kv_share=8 / 64,
    others=24 * (4096 + 2 * 512 + 2880 + 64 + 32 + 4 * 3 * 2880 + 2 * 2880) + 2880,
    idle=24 * 28 * (3 * 2880 * 2880 + 3 * 2880),
)
