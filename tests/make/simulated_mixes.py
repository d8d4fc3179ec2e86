"""Random scenarios for the simulated sweeps."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

CHOICES = {
    "conv1": ["padding", "epilogue", "layout", "phantom"],
    "conv2": ["padding", "winograd2", "winograd4", "fft", "phantom", "tf32", "fp16"],
    "block.conv_a": [
        "padding",
        "winograd2",
        "winograd4",
        "fft",
        "tf32",
        "fp16",
        "phantom",
        "layout",
    ],
    "block.conv_b": ["padding", "winograd2", "winograd4", "fft", "tf32", "fp16", "phantom"],
    "proj": ["padding", "splitk", "phantom"],
    "fc1": ["padding", "phantom"],
    "fc2": ["padding", "epilogue", "phantom"],
}


@st.composite
def mixes(draw: Any, sim: Any) -> Any:
    """Random algorithms for every layer, with every kind of trouble on top; one chip and one set of
    counters a sweep."""
    forward = {
        layer: algorithm
        for layer, algorithms in CHOICES.items()
        if (algorithm := draw(st.sampled_from([None, *algorithms]))) is not None
    }
    words = set(forward.values())
    banned = {"tf32", "phantom"} if "fp16" in words else {"phantom"} if "tf32" in words else set()
    forward = {layer: algorithm for layer, algorithm in forward.items() if algorithm not in banned}
    facts: dict[str, Any] = {
        "forward": forward,
        "recompute": tuple(draw(st.sets(st.sampled_from(sim.NAMES), max_size=2))),
        "missing": draw(st.sampled_from([None, None, "all", "first"])),
        "window": draw(st.sampled_from([None, None, 1000, 64])),
        "counters": draw(st.sampled_from(["all", "all", "fadd", "no tensor"])),
        "batches": tuple(
            sorted(draw(st.sets(st.sampled_from(sim.BATCHES), min_size=2, max_size=3)))
        ),
    }
    if not {"block.conv_a", "block.conv_b"} & set(forward) and draw(st.booleans()):
        facts["shared"] = ("block.conv_a", "block.conv_b")
    if "conv2" not in forward and draw(st.booleans()):
        algorithm = draw(st.sampled_from(["winograd2", "winograd4", "fft", "padding"]))
        facts["switch"] = ("conv2", algorithm, draw(st.sampled_from(sim.BATCHES[1:])))
    return sim.Scenario(**facts)
