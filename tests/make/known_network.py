"""Networks whose launches are known: names as cuDNN 7 and cuBLAS write them, grids worked out from
dimensions. Synthetic."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from perfctl.records.paper import LayerCall
from perfctl.records.report import Kernel

Truth = list[tuple[str, tuple[str | None, str | None]]]


@dataclass(frozen=True)
class Layer:
    name: str
    kind: str
    rows: int
    """Of the product: images x pixels for a convolution."""
    inputs: int
    """Values that one output is summed over."""
    outputs: int
    first: bool = False

    @property
    def macs(self) -> int:
        return self.rows * self.inputs * self.outputs


def mnist(batch: int) -> list[Layer]:
    return [
        Layer("conv1", "Conv2d", batch * 26 * 26, 9, 32, first=True),
        Layer("conv2", "Conv2d", batch * 24 * 24, 288, 64),
        Layer("fc1", "Linear", batch, 9216, 128),
        Layer("fc2", "Linear", batch, 128, 10),
    ]


def blocks(batch: int, number: int) -> list[Layer]:
    """Many layers that are all alike: only their order tells them apart."""
    same = [Layer(f"layer1.{n}.conv", "Conv2d", batch * 56 * 56, 576, 64) for n in range(number)]
    stem = Layer("conv1", "Conv2d", batch * 112 * 112, 147, 64, first=True)
    return [stem, *same, Layer("fc", "Linear", batch, 512, 1000)]


def calls(layers: list[Layer], *, train: bool = True) -> list[LayerCall]:
    found = []
    for position, layer in enumerate(layers):
        back = 100 + 2 * (len(layers) - position)
        sizes = [("forward", position, layer.rows * layer.outputs)]
        if train:
            sizes += [] if layer.first else [("grad_input", back, layer.rows * layer.inputs)]
            sizes += [
                ("grad_weight", back + (layer.kind == "Linear"), layer.inputs * layer.outputs)
            ]
        for direction, at, outputs in sizes:
            parameters = (layer.inputs + 1) * layer.outputs
            row = (
                layer.name,
                layer.kind,
                direction,
                layer.macs,
                2 * layer.macs,
                parameters,
                0,
                0,
                outputs,
                None,
            )
            found.append(LayerCall(*row, position=at))
    return found


def tiled(name: str, rows: int, columns: int) -> tuple[str, int, int]:
    return name, ceil(rows / 128), ceil(columns / 64)


def names(layer: Layer, direction: str) -> list[tuple[str, int, int]]:
    """(kernel, grid x, grid y); convolutions' gradients say what they are, products say nothing."""
    if layer.kind == "Conv2d":
        return {
            "forward": [
                tiled("volta_scudnn_128x64_relu_xregs_large_nn_v1", layer.rows, layer.outputs)
            ],
            "grad_input": [("void cudnn::detail::dgrad_engine<float, 512>(int)", 99, 1)],
            "grad_weight": [
                ("void cudnn::detail::wgrad_alg0_engine<float, 128>(int)", 50, 1),
                ("void splitKreduce_kernel<float>(int)", 4, 1),
            ],
        }[direction]
    sizes = {
        "forward": (layer.outputs, layer.rows, "tn"),
        "grad_input": (layer.inputs, layer.rows, "nn"),
        "grad_weight": (layer.inputs, layer.outputs, "nt"),
    }
    m, n, letters = sizes[direction]
    return [tiled(f"volta_sgemm_128x64_{letters}", m, n)]


RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::relu_functor<float>>(int)"


def step(layers: list[Layer], *, train: bool = True, weights_first: bool = False) -> Truth:
    """One step's launches with their true layers; what stands between layers has none."""
    found: list[tuple[tuple[str, int, int], tuple[str | None, str | None]]] = []
    for layer in layers:
        found += [(kernel, (layer.name, "forward")) for kernel in names(layer, "forward")] + [
            ((RELU, 9, 1), (None, None))
        ]
    for layer in reversed(layers) if train else ():
        gradients = ["grad_weight"] if layer.first else ["grad_input", "grad_weight"]
        for direction in reversed(gradients) if weights_first else gradients:
            found += [(kernel, (layer.name, direction)) for kernel in names(layer, direction)]
        found += [((RELU, 9, 1), (None, None))]
    return found  # type: ignore[return-value]


def launches(truth: Truth) -> list[Kernel]:
    return [
        Kernel(number, name, grid_x=x, grid_y=y, grid_z=1, start_ns=10 * number, duration_ns=5)
        for number, ((name, x, y), _) in enumerate(truth)  # type: ignore[misc]
    ]
