"""Values of a layer that somebody worked out by hand, checked against the sheets of networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.sheets.slips import (
    CheckFinding,
    StatedValue,
    diagnose_stated_value,
    parse_stated_value,
)
from perfctl.orchestrator.ledger.causes.study_rules import read_hand_estimates
from perfctl.orchestrator.ledger.network import Network

LAYERS_NAMED = 20
"""Layers that an error lists."""


@dataclass(frozen=True, slots=True)
class CheckedHandValue:
    """One value worked out by hand, checked."""

    layer: str
    network: str
    """Label of the network whose sheet explains it."""
    batch: int
    finding: CheckFinding

    @property
    def is_right(self) -> bool:
        """Whether it is a figure of the layer."""
        return self.finding.is_explained and not self.finding.mistakes


def check_hand_values(
    networks: Sequence[Network], layer_value_texts: Sequence[str], preferred_batch: int
) -> Iterator[CheckedHandValue]:
    """Yield each value of texts like "conv2=141557760,514112 values", and of hand estimates that
    came with the reports, with the sheet that explains it best.

    Exactly goes before nearly, few slips before many, ``preferred_batch`` first. Raises UsageError
    for a layer that the networks do not have.
    """
    typed: dict[tuple[str, StatedValue], int | None] = {}
    for text in layer_value_texts:
        layer, _, values = text.partition("=")
        typed |= {(layer.strip(), parse_stated_value(value)): None for value in values.split(",")}
    numbers = {(layer, value.value) for layer, value in typed}
    reported: dict[tuple[str, StatedValue], int | None] = {}
    for run in (run for network in networks for run in network.runs):
        for layer, _, value in read_hand_estimates(run):
            if (layer, value.value) not in numbers:
                reported.setdefault((layer, value), run.batch_size)
    for (layer, value), size in (typed | reported).items():
        ranked: list[tuple[tuple[object, ...], CheckedHandValue]] = []
        for number, network in enumerate(networks):
            for other in network.batches if size is None else (size,):
                sheet = network.build_layer_calculation_sheet(other, layer)
                if sheet is not None:
                    finding = diagnose_stated_value(value, sheet.facts, sheet.quantities)
                    slips = len(finding.mistakes)
                    rank = (
                        not finding.is_explained,
                        slips,
                        number,
                        other != preferred_batch,
                        other,
                    )
                    ranked.append((rank, CheckedHandValue(layer, network.label, other, finding)))
        if not ranked:
            raise build_unknown_layer_error("hand", layer, networks[0], preferred_batch)
        exact = [pair for pair in ranked if pair[1].finding.is_explained]
        near = [pair for pair in ranked if pair[1].batch == preferred_batch] or ranked
        yield min(exact or near, key=lambda pair: pair[0])[1]


def build_unknown_layer_error(option: str, layer: str, network: Network, batch: int) -> UsageError:
    """Return the error of a layer that the network does not have."""
    names = list(
        dict.fromkeys(line.layer for line in network.build_network_calculation_sheet(batch).lines)
    )
    suffix = f" and {len(names) - LAYERS_NAMED} more" if len(names) > LAYERS_NAMED else ""
    listed = f"There are {', '.join(names[:LAYERS_NAMED])}{suffix}; the runs are kept"
    return UsageError(f"`{option}`: no layer '{layer}' in these runs", listed if names else None)
