"""What the columns of the ledger mean, for files that leave perfctl."""

from __future__ import annotations

MEANINGS = {
    "workload": "name of the workload or script",
    "variant": "the workload's own options that are not at their default",
    "mode": "train or infer",
    "precision": "fp32, tf32, bf16 or fp16",
    "device": "the device that did the work",
    "batch": "samples a step",
    "layer": "dotted module path; 'not attributed' is what no layer explains",
    "kind": "class of the module, or name of the operation",
    "direction": "forward, grad_input, grad_weight, grad_bias, backward, optimizer",
    "paper_flops": "on paper for one step: 2 x multiply-adds",
    "paper_state": "known, or why not",
    "counted_flops": "counted by the hardware for one step",
    "counted_state": "counted, estimated, or why not",
    "counted_why": "how it was counted, or why it is not known",
    "counted_rule": "how it is made of counters",
    "counted_is_lower_bound": "some of it was not counted",
    "ratio": "counted / paper",
    "verdicts": "why counted and paper differ: rule, sentence, numbers",
    "unexplained": "what of the ratio no verdict explains",
    "time_ns": "median over the measured steps",
    "time_low_ns": "lowest over the measured steps",
    "time_high_ns": "highest over the measured steps",
    "time_why": "why there is no time",
    "clock": "what took the time",
    "clock_trusted": "the clock waited for the device",
    "share": "share of the time of the whole",
    "share_of": "the whole that it is a share of",
    "paper_flops_per_s": "paper FLOPs over time",
    "dram_bytes": "bytes moved to and from DRAM in one step",
    "flops_per_byte": "FLOPs per byte of DRAM",
    "roof": "the roof it is held against",
    "peak_flops_per_s": "that roof",
    "attainable_flops_per_s": "what the roofline allows at this intensity",
    "of_attainable": "share of the attainable rate that was reached",
    "mfu": "paper FLOPs over time over peak",
    "mfu_refused": "why there is no MFU",
    "hfu": "counted FLOPs over time over peak",
    "bound": "what limits it: memory, compute, latency",
    "bound_why": "why that is said",
    "guessed": "kernels were given to the layer by guess",
    "kernels": "the kernels behind the row",
}
_UNITS = {
    "batch": "count",
    "ratio": "1",
    "unexplained": "1",
    "share": "0..1",
    "of_attainable": "0..1",
    "mfu": "0..1",
    "hfu": "0..1",
    "flops_per_byte": "FLOP/byte",
}
_ENDINGS = {"_ns": "ns", "_bytes": "byte", "_flops_per_s": "FLOP/s", "_flops": "FLOP"}


def unit(name: str) -> str:
    """The unit of a column, which its name says; "-" where there is none."""
    return _UNITS.get(name) or next((unit for ending, unit in _ENDINGS.items() if name.endswith(ending)), "-")
