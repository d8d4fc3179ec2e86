"""How well a launch fits a layer: every part of the score by itself, and what the layers of a step
come to."""

from perfctl.orchestrator.counts.kernels.layers import (
    LayerItem,
    list_step_layers_in_order,
    score_launches_against_layers,
)
from perfctl.orchestrator.counts.kernels.names import Algorithm
from perfctl.records.paper import LayerCall
from perfctl.records.report import Kernel
from tests.make.tables import table

GEMM = frozenset({"gemm"})
CONV = frozenset({"conv", "winograd", "fft", "depthwise", "gemm"})


def layer_item(direction, families, outputs=None, sides=None):
    return LayerItem("l", direction, families, outputs, sides)


def score(algorithm, item, name="kernel", grid=(1, 1, 1)):
    kernel = Kernel(0, name, grid_x=grid[0], grid_y=grid[1], grid_z=grid[2])
    ((found,),) = score_launches_against_layers([kernel], [item], {name: algorithm})
    return found


def call(direction, macs, outputs, parameters, kind="Linear", calls=1):
    return LayerCall(
        "fc",
        kind,
        direction,
        macs,
        2 * macs,
        parameters,
        0,
        0,
        outputs,
        None,
        calls=calls,
        position=0,
    )


@table(
    "family stated item expected",
    [
        ("conv", None, layer_item("forward", GEMM), -4.0),
        ("conv", None, layer_item("forward", CONV), 1.0),
        ("conv", "forward", layer_item("forward", CONV), 3.0),
        ("conv", "grad_input", layer_item("grad_input", CONV), 3.0),
        ("conv", "grad_input", layer_item("grad_weight", CONV), -3.0),
        ("conv", "forward", layer_item("grad_weight", CONV), -3.0),
        ("conv", "forward", layer_item("recompute", CONV), 1.0),
        ("conv", "forward", layer_item("backward", CONV), 1.0),
    ],
)
def test_the_family_must_fit_and_a_stated_direction_weighs_more(family, stated, item, expected):
    assert score(Algorithm(family, direction=stated), item) == expected


@table(
    "name direction families expected",
    [
        ("volta_sgemm_128x64_tn", "forward", GEMM, 1.5),
        ("volta_sgemm_128x64_nn", "forward", GEMM, 0.0),
        ("volta_sgemm_128x64_nn", "grad_input", GEMM, 1.5),
        ("volta_sgemm_128x64_nt", "grad_weight", GEMM, 1.5),
        ("volta_sgemm_128x64_tt", "grad_weight", GEMM, 0.0),
        ("ampere_sgemm_tn_align4", "forward", GEMM, 1.5),
        ("sgemm_tnx", "forward", GEMM, 1.0),
        ("volta_sgemm_128x64_tn", "recompute", GEMM, 1.0),
        ("volta_sgemm_128x64_nn", "forward", CONV, 1.0),
    ],
)
def test_the_letters_of_a_product_are_a_hint_for_linear_layers(name, direction, families, expected):
    assert score(Algorithm("gemm"), layer_item(direction, families), name) == expected


@table(
    "grid expected",
    [
        ((8, 1, 1), 3.0),
        ((2, 4, 1), 3.0),
        ((8, None, None), 3.0),
        ((4, 2, 9), 3.0),  # the third side is split-K
        ((2, 2, 2), 3.0),  # or a batch
        ((5, 1, 1), 3.0),  # tiles may lie across: 5 of 64 rows x 1 of 128 columns
        ((32, 1, 1), 1.0),
        ((33, 1, 1), -3.0),
        ((1, 2, 1), 1.0),
        ((1, 1, 1), -3.0),
        ((None, None, None), 1.0),
    ],
)
def test_the_grid_that_the_product_s_sides_ask_for(grid, expected):
    # 300 x 70 in tiles of 128 x 64: 3 x 2 = 6 blocks; in tiles of 64 x 128: 5 x 1 = 5 blocks.
    # 450 x 70: 4 x 2 = 8, or 8 x 1 = 8.
    rows = 300 if grid[0] == 5 else 450
    layer = layer_item("forward", GEMM, rows * 70, (rows, 70))
    assert score(Algorithm("gemm", tile=(128, 64, None)), layer, grid=grid) == expected


@table(
    "blocks expected",
    [
        (100, 2.0),
        (99, 2.0),
        (98, -3.0),
        (150, 2.0),
        (151, 1.0),
        (1600, 1.0),
        (1601, -3.0),
        (3, -3.0),
        (2, 1.0),
        (1, 1.0),
    ],
)
def test_without_sides_the_area_under_all_tiles_must_be_near_the_outputs(blocks, expected):
    layer = layer_item("forward", CONV, 100 * 128 * 64)
    assert score(Algorithm("conv", tile=(128, 64, 8)), layer, grid=(blocks, 1, 1)) == expected


def test_the_area_is_taken_with_and_without_the_grid_s_third_side():
    layer = layer_item("forward", CONV, 100 * 128 * 64)
    tiled = Algorithm("conv", tile=(128, 64, 8))
    assert score(tiled, layer, grid=(10, 1, 10)) == 2.0
    assert score(tiled, layer, grid=(25, 4, 7)) == 2.0
    assert score(tiled, layer, grid=(10, 1, 300)) == -3.0
    assert score(tiled, layer, grid=(10, None, None)) == -3.0


def test_without_a_tile_or_outputs_the_shape_says_nothing():
    tiled = Algorithm("conv", tile=(128, 64, 8))
    assert score(Algorithm("conv"), layer_item("forward", CONV, 9999), grid=(7, 7, 7)) == 1.0
    assert score(tiled, layer_item("forward", CONV), grid=(7, 7, 7)) == 1.0


@table(
    "given product",
    [
        # 32 images, 100 inputs, 10 outputs: 32 x 100 x 10 multiply-adds; 1010 parameters with a
        # bias, 1000 without.
        (call("forward", 32_000, 320, 1010), (32, 10)),
        (call("forward", 32_000, 320, 1000), (32, 10)),
        (call("forward", 64_000, 640, 1010, calls=2), (32, 10)),
        (call("forward", 32_000, 320, 1007), None),
        (call("forward", 32_500, 325, 1010), None),
        (call("forward", 32_000, 320, None), None),
        (call("grad_input", 32_000, 3200, 1010), (32, 100)),
        (call("grad_input", 32_000, 3200, 1000), (32, 100)),
        (call("grad_input", 32_000, 3200, 1007), None),
        (call("grad_input", 32_000, 3200, 10), (3200, 1)),
        (call("grad_weight", 32_000, 1000, 1010), (10, 100)),
        (call("grad_weight", 32_000, 1000, 1000), None),
        (call("grad_weight", 32_000, 1000, 1007), None),
        (call("recompute", 32_000, 320, 1010), None),
        # 2 images of 26 x 26 pixels, 9 inputs, 32 outputs.
        (call("forward", 2 * 676 * 32 * 9, 2 * 676 * 32, 320, "Conv2d"), (1352, 32)),
        (call("grad_input", 2 * 676 * 32 * 9, 2 * 784, 320, "Conv2d"), None),
        (call("grad_weight", 2 * 676 * 32 * 9, 288, 320, "Conv2d"), None),
    ],
)
def test_the_sides_of_a_product_follow_from_the_parameters(given, product):
    item = list_step_layers_in_order([given], "grad_input")[0]
    assert item.product == product
    assert item.outputs == (given.output_elements or 0) // given.calls


@table(
    "kind families",
    [
        ("Linear", {"gemm"}),
        ("ConvTranspose2d", {"conv", "winograd", "fft", "depthwise", "gemm"}),
        ("LSTM", {"rnn", "gemm"}),
        ("GRU", {"rnn", "gemm"}),
        ("RNN", {"rnn", "gemm"}),
        ("MultiheadAttention", {"attention", "gemm"}),
    ],
)
def test_which_kernels_may_serve_a_kind_of_layer(kind, families):
    assert (
        list_step_layers_in_order([call("forward", 8, 4, None, kind)], "grad_input")[0].families
        == families
    )


def test_a_step_comes_to_its_layers_in_order_and_to_both_gradients_where_the_input_s_is():
    def at(layer, direction, position, macs=8, calls=1):
        row = LayerCall(
            layer, "Linear", direction, macs, 2 * macs, 4, 0, 0, None, None, calls=calls
        )
        return row._replace(position=position)

    calls = [
        at("b", "grad_weight", 9),
        at("b", "grad_input", 6),
        at("a", "grad_weight", 7),
        at("b", "forward", 2),
        at("b", "recompute", 3, calls=2),
        at("a", "forward", None),
        at("relu", "forward", 1, macs=0),
        at("", "forward", 1),
        at("a", "optimizer", 20),
    ]
    start = [("a", "forward"), ("b", "forward"), ("b", "recompute"), ("b", "recompute")]
    inputs_first = [("b", "grad_input"), ("b", "grad_weight"), ("a", "grad_weight")]
    weights_first = [("b", "grad_weight"), ("b", "grad_input"), ("a", "grad_weight")]
    for first, gradients in (("grad_input", inputs_first), ("grad_weight", weights_first)):
        items = list_step_layers_in_order(calls, first)
        assert [(item.layer, item.direction) for item in items] == start + gradients
        assert {item.outputs for item in items} == {None}
