"""Guessed layers against real traces that say themselves which layer launched each kernel: it is
hidden, guessed, compared.

Pen and paper of the networks is worked out from their published dimensions.
"""

from perfctl import parsers
from perfctl.orchestrator.counts.kernels.layers import HEAVY, guess_kernel_layers
from perfctl.orchestrator.counts.kernels.names import recognise_kernel
from tests.make.known_network import Layer, calls

BATCH, TOKENS, WIDTH, HEADS, INNER, BLOCKS, PATCH = 4, 197, 768, 12, 3072, 12, 16
"""ViT-Base/16 on 224 x 224: 14 x 14 patches and the class token."""


def vit(batch):
    """Pen and paper of a forward pass, under the names of the trace: classes and their numbers in
    order of the calls."""
    rows = batch * TOKENS
    patches = batch * (TOKENS - 1)
    stem = Layer(
        "ViTEmbeddings_0.ViTPatchEmbeddings_0.Conv2d_0", "Conv2d", patches, 3 * PATCH * PATCH, WIDTH
    )
    layers, attention, number = [stem], {}, 0
    for block in range(BLOCKS):
        at = f"ViTEncoder_0.ViTLayer_{block}"
        own = f"{at}.ViTSdpaAttention_{block}.ViTSdpaSelfAttention_{block}"
        places = [
            own,
            own,
            own,
            f"{at}.ViTSdpaAttention_{block}.ViTSelfOutput_{block}",
            f"{at}.ViTIntermediate_{block}",
            f"{at}.ViTOutput_{block}",
        ]
        sizes = [(WIDTH, WIDTH)] * 4 + [(WIDTH, INNER), (INNER, WIDTH)]
        for place, (inputs, outputs) in zip(places, sizes, strict=True):
            if place.endswith(f"ViTSelfOutput_{block}"):
                attention[len(layers)] = own
                layers.append(Layer(own, "scaled_dot_product_attention", rows, 2 * TOKENS, WIDTH))
            layers.append(Layer(f"{place}.Linear_{number}", "Linear", rows, inputs, outputs))
            number += 1
    layers += [Layer(f"ViTPooler_0.Linear_{number}", "Linear", batch, WIDTH, WIDTH)]
    found = calls(layers, train=False)
    return [
        call._replace(parameters=0) if index in attention else call
        for index, call in enumerate(found)
    ]


def is_heavy(kernel):
    algorithm = recognise_kernel(kernel.name)
    return algorithm.family in HEAVY and algorithm.role == "main"


def test_every_product_of_a_real_transformer_gets_its_true_layer_and_no_launch_a_wrong_one(reports):
    trace = reports / "kineto" / "tracelens_h100_Falconsai_vit.json.gz"
    kernels = parsers.parse(trace).kernels
    hidden = [
        kernel._replace(layer=None, direction=None, step=None, layer_source=None)
        for kernel in kernels
    ]
    made = guess_kernel_layers(hidden, vit(BATCH))
    pairs = list(zip(kernels, made.kernels, strict=True))
    products = [(a, b) for a, b in pairs if is_heavy(a)]
    assert len(products) == 2 + BLOCKS * 7
    assert all((a.layer, a.direction) == (b.layer, b.direction) for a, b in products)
    guessed = [(a.name, a.layer, b.layer) for a, b in pairs if b.layer is not None]
    assert len(guessed) == made.guessed > 0
    assert [one for one in guessed if one[1] != one[2]] == []
