"""Synthetic scenes with a known truth in which a number fits a cause that something else recorded
contradicts. Each names what is told of one row, or of the sweep, and how certain it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import NamedTuple

from perfctl.orchestrator.estimate.flops.engine import build_layer_calls_with_flops
from perfctl.orchestrator.ledger.analysis import analyse_study
from perfctl.orchestrator.ledger.prepared import group_into_studies
from perfctl.records.paper import OpShape
from perfctl.records.report import Kernel
from scripts.proof.verdicts.effects import ALGORITHMS, Task
from scripts.proof.verdicts.kernels import FAMILIES, Launch, plain, tiled
from scripts.proof.verdicts.kernels import Kernel as TiledKernel
from scripts.proof.verdicts.networks import (
    BACKWARD,
    FORWARD,
    Attention,
    Conv,
    Linear,
    Network,
    Scene,
)
from scripts.proof.verdicts.records import make_run
from tests.make.tables import table

OBSERVED, MATCHED, LIKELY, PLAUSIBLE = "observed", "predicted and matched", "likely", "plausible"
Works = Callable[[int], list[Launch]]
Own = Mapping[tuple[str, str], Works]
"""(layer, direction) -> the launches in place of the usual ones."""

FOUR: Network = (
    Conv("c1", True, True, 3, 64, 3, 32, 1, 1),
    Conv("c2", False, True, 64, 64, 3, 32, 1, 1),
    Conv("c3", False, True, 64, 128, 3, 32, 1, 1),
    Linear("fc", False, True, 1024, 1024, 32),
)
BLOCK: Network = (
    Linear("q", True, True, 1024, 1024, 64),
    Linear("up", False, True, 1024, 4096, 64),
    Linear("down", False, True, 4096, 1024, 64),
)
SPARSE = (
    "sm80_xmma_sparse_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64_stage3_warpsize2x2x1_"
    "sptensor16x8x32_execute_kernel__5x_cublas"
)
DGRAD = "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)"
WGRAD = "void cudnn::cnn::wgrad_alg0_engine<float, 128, 5, 5, 3, 3, 3, false, 512>(int)"
FLASH = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<{width}, 128, {keys}, 4, false, "
    "false, cutlass::half_t>, false, {causal}, false, false, true, true, false>"
    "(pytorch_flash::Flash_fwd_params)"
)


@dataclass(frozen=True)
class Recorded:
    """How a run is recorded."""

    network: Network
    chip: str = "70"
    precision: str = "fp32"
    train: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    collected: str = ""
    ops: tuple[OpShape, ...] = ()
    """Of layers that the network lacks."""

    @property
    def scene(self):
        return Scene(0, self.network, (), self.chip, self.precision, self.train, "2025.1.1", False)

    def run(self, batch, launches, number=1):
        """Return the run of one batch size."""
        tf32 = "on" if self.precision == "tf32" else "off"
        environment = {"cudnn_benchmark": "off", "tf32_conv": tf32, "tf32_matmul": tf32}
        run = make_run(
            self.scene,
            batch,
            number,
            launches,
            {**environment, **self.environment},
            collected=self.collected,
        )
        ops = (*run.report.ops, *self.ops)
        return replace(run, report=replace(run.report, ops=ops)) if self.ops else run

    def step(self, batch, own=None):
        """Return the launches of a step, each product by its usual kernel."""
        own = own or {}
        launches = []
        for layer in self.network:
            launches += self._launch(layer, FORWARD, batch, own)
        for layer in reversed(self.network) if self.train else ():
            launches += self._launch(layer, BACKWARD, batch, own)
        return launches

    def _launch(self, layer, direction, batch, own):
        works = own.get((layer.name, direction))
        return place(
            works(batch) if works else self.usual(layer, direction, batch), layer, direction
        )

    def usual(self, layer, direction, batch):
        """Return the usual kernels of one direction."""
        products = layer.forward(batch) if direction == FORWARD else layer.gradients(batch)
        wanted = [item for item in products if not (layer.first and item.part == "dgrad")]
        scene = self.scene
        return [
            plain(scene, layer, product, scene.random(layer.name, product.part))
            for product in wanted
        ]


def place(launches, layer, direction):
    return [replace(launch, layer=layer.name, direction=direction) for launch in launches]


def of_steps(*steps):
    return [replace(launch, step=number) for number, step in enumerate(steps) for launch in step]


def on_devices(run, *places):
    """Return the run with its launches once on each (device, process), with their counters."""
    kernels: list[Kernel] = []
    counters = []
    number = len(run.report.kernels)
    for copy, (device, process) in enumerate(places):
        for kernel in run.report.kernels:
            launch = kernel.launch + copy * number
            kernels.append(kernel._replace(launch=launch, device_index=device, process=process))
        counters += [
            counter._replace(launch=counter.launch + copy * number)
            for counter in run.report.counters
        ]
    return replace(run, report=replace(run.report, kernels=kernels, counters=counters))


def macs(layer, batch):
    return layer.macs(batch)


class Told(NamedTuple):
    """A cause as far as a scene states it."""

    rule: str
    factor: float | None
    confidence: str
    variant: str = ""


# Scenes


def run_two_ranks():
    recorded = Recorded(FOUR)
    return [on_devices(recorded.run(32, recorded.step(32)), (0, 100), (1, 101))]


def run_two_halves():
    recorded = Recorded(FOUR)
    return [on_devices(recorded.run(32, recorded.step(16)), (0, 100), (1, 100))]


def double_counters():
    recorded = Recorded(FOUR)
    launches = recorded.step(32)
    for launch in launches:
        launch.counts = {name: 2 * value for name, value in launch.counts.items()}
    return [recorded.run(32, launches)]


def run_batches(recorded, declared, *ran):
    return [recorded.run(declared, of_steps(*map(recorded.step, ran)))]


def pad_strided_gradient():
    """32 input channels in a tile of 128 columns: four times the gradient, as zeros inserted."""
    layer = Conv("s2", False, True, 32, 128, 4, 32, 2, 1)
    network = (Conv("c1", True, True, 3, 32, 3, 32, 1, 1), layer, FOUR[3])
    recorded = Recorded(network, "80", "tf32")
    name = (
        "sm80_xmma_dgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16"
        "_stage4_warpsize2x2x1_g1_tensor16x8x8_execute_kernel__5x_cudnn"
    )

    def backward(batch):
        rows = batch * 16 * 16
        grid = (ceil(rows / 128) * 4, 1, 1)
        padded = Launch(name, grid, {"tensor": 2 * 4 * rows * 128 * 128 * 4}, "tf32", 2048)
        return [padded, recorded.usual(layer, BACKWARD, batch)[1]]

    return [recorded.run(32, recorded.step(32, {("s2", BACKWARD): backward}))]


def drop_layer():
    """b2 does not run at all; b1's kernel wastes half of its work."""
    names = ("in", "b1", "b2", "out")
    network = tuple(Linear(name, name == "in", True, 1024, 1024, 64) for name in names)
    recorded = Recorded(network)

    def wasteful(batch):
        return [
            Launch("my_linear_kernel(float*)", (64, 1, 1), {"ffma": 2 * macs(network[1], batch)})
        ]

    step = recorded.step(32, {("b1", FORWARD): wasteful})
    return [recorded.run(32, [launch for launch in step if launch.layer != "b2"])]


def fuse_projections():
    """q, k and v are one product of three times the columns, forward and backward."""
    sides = (("in", 1024), ("q", 1024), ("k", 1024), ("v", 1024), ("out", 4096))
    network = tuple(Linear(name, name == "in", True, 1024, side, 64) for name, side in sides)
    recorded = Recorded(network)
    fused = Linear("q", False, True, 1024, 3072, 64)
    own: Own = {
        **{(name, way): lambda _: [] for name in "kv" for way in (FORWARD, BACKWARD)},
        ("q", FORWARD): lambda batch: recorded.usual(fused, FORWARD, batch),
        ("q", BACKWARD): lambda batch: recorded.usual(fused, BACKWARD, batch),
    }
    return [recorded.run(32, recorded.step(32, own))]


def pad_beside_sparsity():
    """p executes twice its estimate, which is r's; r executes half of its own, which is p's."""
    sides = (("in", 1024), ("p", 1024), ("r", 2048))
    network = tuple(Linear(name, name == "in", True, 1024, side, 64) for name, side in sides)
    recorded = Recorded(network, "80", "fp16")

    def padded(batch):
        counts = {"tensor": 4 * macs(network[1], batch)}
        return [Launch("triton_custom_linear", (64, 1, 1), counts, "fp16")]

    def sparse(batch):
        counts = {"tensor": macs(network[2], batch)}
        return [Launch(SPARSE, (ceil(batch * 64 / 128), 16, 1), counts, "fp16", 8192)]

    own: Own = {("p", FORWARD): padded, ("r", FORWARD): sparse}
    return [recorded.run(32, recorded.step(32, own))]


def compute_filter_gradient_twice():
    """The input's gradient by forward's own kernel, and the filter's by two others."""
    recorded, layer = Recorded(FOUR), FOUR[1]

    def forward(batch):
        family = replace(FAMILIES["volta fp32 conv"][2], path="fp32")
        return [tiled(TiledKernel(family, (128, 64)), layer.forward(batch)[0])]

    def backward(batch):
        names = (WGRAD, "void cudnn::cnn::wgrad2d_grouped_direct_kernel<false, true, int>(int)")
        others = [Launch(name, (64, 1, 1), {"ffma": macs(layer, batch)}) for name in names]
        return [*forward(batch), *others]

    own: Own = {("c2", FORWARD): forward, ("c2", BACKWARD): backward}
    return [recorded.run(32, recorded.step(32, own))]


def try_padded_gradient():
    """Of two kernels for the filter's gradient, the padded trial was counted, the other was not."""
    recorded, layer = Recorded(FOUR), FOUR[1]
    data, weight = layer.gradients(32)
    family = replace(FAMILIES["volta fp32 conv"][4], path="fp32")
    launches = [
        Launch(DGRAD, (64, 1, 1), {"ffma": data.macs}),
        tiled(TiledKernel(family, (128, 128)), weight),
        Launch(WGRAD, (64, 1, 1), {"ffma": weight.macs}, counted=False),
    ]
    return [recorded.run(32, recorded.step(32, {("c2", BACKWARD): lambda _: launches}))]


def misplace_gradient():
    """The gradient of c2's input is attributed to c1, which needs none and has the same size."""
    network = (Conv("c1", True, True, 64, 64, 3, 32, 1, 1), *FOUR[1:])
    recorded = Recorded(network)

    def launch(*names):
        return lambda batch: [
            Launch(name, (64, 1, 1), {"ffma": macs(network[1], batch)}) for name in names
        ]

    own: Own = {("c1", BACKWARD): launch(DGRAD, WGRAD), ("c2", BACKWARD): launch(WGRAD)}
    return [recorded.run(32, recorded.step(32, own))]


def lose_samples():
    """125 of 128 samples ran, which is also the share of a depthwise layer's taps inside."""
    network = (
        Conv("c1", True, True, 3, 64, 3, 56, 1, 1),
        Conv("dw", False, True, 64, 64, 3, 56, 1, 1, 64),
        Conv("c3", False, True, 64, 128, 3, 56, 1, 1),
        FOUR[3],
    )
    return run_batches(Recorded(network), 128, 125)


def try_templates():
    """torch.compile tries four Triton kernels of 'up' three times each, then runs the last."""
    recorded = Recorded(BLOCK, "80", "fp16")

    def forward(batch):
        counts = {"tensor": 2 * macs(BLOCK[1], batch)}
        tried = [
            Launch(f"triton_tem_fused_addmm_{number}", (number + 9, 1, 1), counts, "fp16")
            for number in range(4)
        ]
        return [*(launch for launch in tried for _ in range(3)), tried[-1]]

    return [recorded.run(32, recorded.step(32, {("up", FORWARD): forward}))]


def split_among_ranks():
    """One rank of two, with three TF32 products for each of fp32."""
    recorded = Recorded(BLOCK, "80", "fp32", False)
    name = "void cutlass::Kernel2<cutlass_80_tensorop_s1688fastf32gemm_128x128_16x3_tn_align4>(x)"

    def forward(layer):
        def launch(batch):
            (product,) = layer.forward(batch // 2)
            grid = (ceil(product.m / 128) * 4, ceil(ceil(product.n / 128) / 4), 1)
            return [Launch(name, grid, {"tensor": 6 * product.macs}, "tf32", 2048)]

        return launch

    own = {(layer.name, FORWARD): forward(layer) for layer in BLOCK}
    return [recorded.run(32, recorded.step(32, own))]


def accumulate_on_two_ranks():
    recorded = Recorded(FOUR, environment={"world_size": "2"})
    return [recorded.run(32, recorded.step(8) * 2)]


def try_in_the_first_step(benchmark):
    recorded, layer = Recorded(FOUR, environment={"cudnn_benchmark": benchmark}), FOUR[1]

    def forward(*numbers):
        families = [replace(family, path="fp32") for family in FAMILIES["volta fp32 conv"]]
        return lambda batch: [
            tiled(TiledKernel(families[number], (128, 64)), layer.forward(batch)[0])
            for number in numbers
        ]

    steps = [recorded.step(32, {("c2", FORWARD): forward(*tried)}) for tried in ((2, 0, 1), (2,))]
    return [recorded.run(32, of_steps(*steps))]


def split_and_accumulate():
    """The only layer runs two micro-batches, each in two launches whose tiles would also cover the
    complete product."""
    layer = Linear("proj", True, True, 512, 120, 128)
    recorded = Recorded((layer,), "89", "tf32", False)
    name = (
        "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize256x128x16_stage4_warpsize2x2x1_"
        "tensor16x8x8_execute_kernel__5x_cublas"
    )
    part = Launch(name, (2, 1, 1), {"tensor": 2 * 2 * 256 * 128 * 512}, "tf32", 2048)
    return [recorded.run(4, recorded.step(4, {("proj", FORWARD): lambda _: [part] * 4}))]


def fill_half_a_sparse_tile():
    """64 rows in a tile of 128, of whose multiplies 2:4 sparsity does half: ratio 1."""
    network = tuple(replace(layer, rows=1) for layer in BLOCK)
    recorded = Recorded(network, "80", "fp16", False)
    tile = Launch(SPARSE, (1, 32, 1), {"tensor": 2 * 128 * 4096 * 1024 // 2}, "fp16", 8192)
    return [recorded.run(64, recorded.step(64, {("up", FORWARD): lambda _: [tile]}))]


def attend(share, width=64, causal=True):
    """Flash attention of 16 heads and 1,024 x 1,024 scores."""
    layer = Attention("attn", False, False, 16, 1024, width, causal)
    recorded = Recorded((*BLOCK, layer), "80", "fp16", False)
    padded, keys = (64, 128) if width <= 64 else (96, 64)
    name = FLASH.format(width=padded, keys=keys, causal=str(causal).lower())

    def forward(batch):
        counts = {"tensor": int(4 * batch * 16 * 1024 * 1024 * padded * share)}
        return [Launch(name, (8, batch, 16), counts, "fp16")]

    return [recorded.run(4, recorded.step(4, {("attn", FORWARD): forward}))]


def attend_in_fp32(width):
    """Memory-efficient attention of 8 heads and 256 x 256 scores, in tiles of 64 x 64."""
    layer = Attention("attn", False, False, 8, 256, width, False)
    recorded = Recorded((*BLOCK, layer), "80", "fp32", False)
    name = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<x>)"

    def forward(batch):
        products = 2 * batch * 8 * 256 * 256 * 64
        return [Launch(name, (4, 8, batch), {"tensor": 3 * 2 * products}, "tf32")]

    return [recorded.run(4, recorded.step(4, {("attn", FORWARD): forward}))]


def collect_without_ffma():
    recorded = Recorded(FOUR)
    run = recorded.run(32, recorded.step(32))
    counters = [counter for counter in run.report.counters if "ffma" not in counter.name]
    return [replace(run, report=replace(run.report, counters=counters))]


def run_beside_another_process():
    """Evaluation; the products outside of layers are another process's."""
    recorded = Recorded(BLOCK, train=True)
    forward = [launch for launch in recorded.step(16) if launch.direction == FORWARD]
    foreign = [Launch("volta_sgemm_128x64_tn", (64, 64, 1), {"ffma": 4 * 10**9})] * 5
    run = recorded.run(16, [*forward, *foreign])
    kernels = [kernel._replace(process=1 if kernel.layer else 999) for kernel in run.report.kernels]
    return [replace(run, report=replace(run.report, kernels=kernels))]


def run_own(layer, launches, chip="70", precision="fp32", calls=1, environment=None):
    """A step of 32 samples whose layer's forward is these launches, in as many calls."""
    network = (*(other for other in FOUR if other.name != layer.name), layer)
    recorded = Recorded(network, chip, precision, False, environment or {})
    run = recorded.run(32, recorded.step(32, {(layer.name, FORWARD): lambda _: launches}))
    ops = tuple(replace(op, calls=calls) if op.layer == layer.name else op for op in run.report.ops)
    return [
        replace(
            run, report=replace(run.report, ops=ops), layer_calls=build_layer_calls_with_flops(ops)
        )
    ]


def realise(name, **settings):
    """Return the launches of an algorithm of c2's forward."""
    scene = Recorded(FOUR, train=False).scene
    return ALGORITHMS[name](Task(scene, FOUR[1], FORWARD, 32, settings))


def fill_loads():
    """3 channels are loaded as 4, and the sum of 196 is padded to 224."""
    layer = Conv("c1", True, False, 3, 64, 7, 64, 2, 3)
    name = (
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32"
        "_stage3_warpsize2x2x1_g1_tensor16x8x8_alignc4_execute_kernel_cudnn"
    )
    rows = 32 * layer.out**2
    tile = Launch(name, (rows // 128, 1, 1), {"tensor": 2 * rows * 128 * 224}, "tf32", 2048)
    return run_own(layer, [tile], "80", "tf32")


def widen_product():
    """5,120 columns ran where the layer has 4,096."""
    name = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_64x3_tn"
    counts = {"tensor": 2 * 32 * 64 * 5120 * 1024}
    return run_own(BLOCK[1], [Launch(name, (40, 16, 1), counts, "fp16")], "80", "fp16")


def use_one_lane():
    """A kernel of packed halves that fills one of two lanes, which no counter shows."""
    counts = {"hfma": macs(BLOCK[1], 32)}
    return run_own(BLOCK[1], [Launch("void my_kernel(__half*)", (64, 1, 1), counts)], "70", "fp16")


def pad_tokens_of_experts():
    """A grouped GEMM over experts, each with a quarter more tokens than it gets: its grid is that
    of the GPU, and its name states no sizes."""
    counts = {"tensor": int(2.5 * macs(BLOCK[1], 32))}
    name = "void cutlass::Kernel2<cutlass::gemm::kernel::GroupedGemm<128,128,32>>(Params)"
    return run_own(BLOCK[1], [Launch(name, (108, 1, 1), counts, "bf16")], "80", "bf16")


def pad_groups_in_a_swizzled_grid():
    """32 channels of each of two groups in tiles of 64: four times the blocks of the tiles, so the
    grid may also be that of another size."""
    layer = Conv("g", False, True, 64, 64, 3, 32, 1, 1, 2)
    traits = "cutlass_tensorop_f16_s16816fprop_optimized_f16_128x64_64x4_nhwc_align8"
    name = f"void cutlass__5x_cudnn::Kernel<{traits}>({traits}::Params)"
    tiles = 32 * layer.out**2 // 128 * 2
    counts = {"tensor": 2 * tiles * 128 * 64 * 320}
    return run_own(layer, [Launch(name, (tiles * 2, 1, 1), counts, "fp16")], "80", "fp16")


def run_both_inputs_at_once():
    """A grouped convolution of twice the recorded samples."""
    layer = Conv("g", False, True, 128, 128, 3, 32, 1, 1, 2)
    counts = {"ffma": 2 * layer.macs(32)}
    return run_own(layer, [Launch("volta_scudnn_128x64_relu_medium_nn_v1", (512, 1, 2), counts)])


def direct_product():
    family = replace(FAMILIES["volta fp32 conv"][2], path="fp32")
    return tiled(TiledKernel(family, (128, 64)), FOUR[1].forward(32)[0])


def try_transforms():
    """cuDNN tries both kinds of Winograd and FFT, and takes none of them."""
    tried = [
        *realise("winograd2", tiles=(1, 4, 8)),
        *realise("winograd4", tile=(128, 64)),
        *realise("fft", side=32, flips=False),
    ]
    product = direct_product()
    on = {"cudnn_benchmark": "on"}
    return run_own(FOUR[1], [product, *tried, product], environment=on)


def run_one_of_two_calls_as_winograd():
    launches = [*realise("winograd2", tiles=(1, 4, 8)), direct_product()]
    return run_own(FOUR[1], launches, calls=2)


def pad_gradient_of_transposed():
    """The gradient of a transposed convolution's input is a convolution, of 64 channels in a tile
    of 128."""
    small, weight, large = (32, 64, 16, 16), (64, 64, 4, 4), (32, 64, 32, 32)
    facts = {"stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "transposed": True}
    facts |= {"groups": 1, "output_mask": [True, True, False], "role": "grad_input"}
    shapes = {
        FORWARD: ("aten.convolution", (small, weight, None), (large,)),
        BACKWARD: ("aten.convolution_backward", (large, small, weight), (small, weight, None)),
    }
    types, kind = ("float32",) * 5, "ConvTranspose2d"
    ops = [
        OpShape("up", kind, name, direction, inputs, outputs, types, facts, weight[0], 1, 50)
        for direction, (name, inputs, outputs) in shapes.items()
    ]
    products = 32 * 16 * 16 * 64 * 64 * 4 * 4
    launches = [
        Launch("volta_scudnn_128x128_relu_medium_nn_v1", (64, 1, 1), {"ffma": 2 * products}),
        Launch(WGRAD, (16, 64, 1), {"ffma": products}),
    ]
    recorded, layer = Recorded(FOUR), replace(FOUR[3], name="up")
    run = recorded.run(32, [*recorded.step(32), *place(launches, layer, BACKWARD)])
    ops = (*run.report.ops, *ops)
    return [
        replace(
            run, report=replace(run.report, ops=ops), layer_calls=build_layer_calls_with_flops(ops)
        )
    ]


HALF = {"c2 forward": {Told("whole step", 0.5, MATCHED, "uneven steps")}}


@table(
    "runs told",
    {
        "two processes on two devices, each with the complete batch": (
            run_two_ranks(),
            {"c2 forward": {Told("whole step", 2, MATCHED, "copies")}},
        ),
        "two devices with half each": (run_two_halves(), {"c2 forward": set()}),
        "twice the counts in the grids of the recorded batch": (
            double_counters(),
            {"c2 forward": {Told("whole step", 2, PLAUSIBLE, "own grids")}},
        ),
        "one step of three": (run_batches(Recorded(FOUR), 64, 64, 16, 16), HALF),
        "two steps of other sizes": (
            run_batches(Recorded(FOUR), 32, 32, 96),
            {"c2 backward": {Told("whole step", 2, MATCHED, "uneven steps")}},
        ),
        "another batch, no multiple of the recorded one": (
            run_batches(Recorded(FOUR), 64, 96),
            {"c2 backward": {Told("whole step", 1.5, PLAUSIBLE, "other batch")}},
        ),
        "the last batch of a data set is no skipped border": (
            lose_samples(),
            {"dw forward": {Told("whole step", 125 / 128, PLAUSIBLE, "other batch")}},
        ),
        "a padded tile is no zeros inserted": (
            pad_strided_gradient(),
            {"s2 backward": {Told("tile padding", 2.5, PLAUSIBLE)}},
        ),
        "a layer that did not run shares no kernel": (
            drop_layer(),
            {
                "b1 forward": set(),
                "b2 forward": {Told("direction missing", None, OBSERVED)},
            },
        ),
        "one product for three layers, forward and backward": (
            fuse_projections(),
            {
                "q forward": {Told("shared kernel", 3, MATCHED)},
                "q backward": {Told("shared kernel", 3, MATCHED)},
                "v grad_weight": {Told("shared kernel", None, MATCHED, "within another kernel")},
            },
        ),
        "a grid of its own shape is not swapped": (
            pad_beside_sparsity(),
            {"p forward": set(), "r forward": {Told("2:4 sparsity", 0.5, MATCHED)}},
        ),
        "two gradients of the weight leave forward's kernel to the input's": (
            compute_filter_gradient_twice(),
            {"c2 backward": set()},
        ),
        "padded tiles beside a product that was not counted": (
            try_padded_gradient(),
            {
                "c2 backward": {
                    Told("tile padding", 1.61, PLAUSIBLE),
                    Told("counter not collected", None, OBSERVED, "for some kernels"),
                }
            },
        ),
        "a gradient at another layer is neither needless nor missing": (
            misplace_gradient(),
            {
                "c1 backward": {Told("swapped layers", 2, PLAUSIBLE)},
                "c2 backward": {Told("swapped layers", 0.5, PLAUSIBLE)},
            },
        ),
        "torch.compile tries kernels of a Linear": (
            try_templates(),
            {"up forward": {Told("several algorithms", 13, PLAUSIBLE)}},
        ),
        "a factor that only three rows share": (
            split_among_ranks(),
            {
                "up forward": {
                    Told("3xTF32", 3, MATCHED),
                    Told("whole step", 0.5, PLAUSIBLE, "smaller batch"),
                }
            },
        ),
        "four launches of one layer may be two halves twice": (
            split_and_accumulate(),
            {"proj forward": {Told("extra calls", None, OBSERVED, "or parts")}},
        ),
        "two micro-batches on one of two recorded ranks": (
            accumulate_on_two_ranks(),
            {
                "c2 backward": {
                    Told("whole step", 2, MATCHED, "launches"),
                    Told("whole step", 0.25, PLAUSIBLE, "one rank"),
                }
            },
        ),
        "trials in the first of two steps": (
            try_in_the_first_step("on"),
            {"c2 forward": {Told("several algorithms", 2, MATCHED)}},
        ),
        "the same if nothing was recorded of cuDNN": (
            try_in_the_first_step("unknown"),
            {"c2 forward": {Told("several algorithms", 2, PLAUSIBLE)}},
        ),
        "a flash kernel skips the tiles above the diagonal": (
            attend(36 / 64),
            {"attn forward": {Told("causal mask", 36 / 64, MATCHED, "by tiles")}},
        ),
        "sparsity and a half-filled tile cancel out": (
            fill_half_a_sparse_tile(),
            {"up forward": {Told("tile padding", 2, MATCHED), Told("2:4 sparsity", 0.5, MATCHED)}},
        ),
        "a window hides more": (attend(21 / 64), {"attn forward": set()}),
        "a mask that skips nothing": (attend(1), {"attn forward": set()}),
        "a head size of 80 in 96": (
            attend(1, 80, causal=False),
            {"attn forward": {Told("tile padding", 96 / 80, MATCHED)}},
        ),
        "fp32 attention without padding": (
            attend_in_fp32(64),
            {"attn forward": {Told("3xTF32", 3, MATCHED)}},
        ),
        "fp32 attention with a head size of 40": (
            attend_in_fp32(40),
            {
                "attn forward": {
                    Told("3xTF32", 3, MATCHED),
                    Told("tile padding", 64 / 40, MATCHED),
                }
            },
        ),
        "channels filled up to complete loads": (
            fill_loads(),
            {"c1 forward": {Told("tile padding", 2 * 224 / 147, MATCHED)}},
        ),
        "a transposed convolution's gradient in half-filled tiles": (
            pad_gradient_of_transposed(),
            {"up backward": {Told("tile padding", (2 + 1) / 2, MATCHED)}},
        ),
        "a grid with more columns than the layer": (
            widen_product(),
            {"up forward": {Told("other size", 5120 / 4096, PLAUSIBLE)}},
        ),
        "halves of which one lane was used stay open": (use_one_lane(), {"up forward": set()}),
        "padded tokens of experts stay open": (pad_tokens_of_experts(), {"up forward": set()}),
        "padded groups in a swizzled grid stay open": (
            pad_groups_in_a_swizzled_grid(),
            {"g forward": set()},
        ),
        "a grid with twice the rows of every group": (
            run_both_inputs_at_once(),
            {"g forward": {Told("other size", 2, PLAUSIBLE)}},
        ),
        "Fourier transforms among the trials": (
            try_transforms(),
            {"c2 forward": {Told("several algorithms", 3.89, MATCHED)}},
        ),
        "Winograd in one of two calls": (
            run_one_of_two_calls_as_winograd(),
            {"c2 forward": {Told("Winograd", 0.73, MATCHED)}},
        ),
        "FADD and FMUL without FFMA": (
            collect_without_ffma(),
            {"c2 forward": {Told("counter not collected", None, OBSERVED, "in part")}},
        ),
    },
)
def test_a_fitting_number_is_no_proof(runs, told):
    analysis = make_analysis(runs)
    causes = {
        row.name: {
            Told(cause.rule, cause.factor, cause.confidence, cause.variant)
            for cause in analysis.judgement.get_row_causes(
                row.batch, row.layer, row.direction
            ).causes
            if cause.rule not in ("TF32", "tensor cores", "layout and epilogue")
        }
        for row in analysis.ledger.rows
    }
    assert {name: round_factors(causes[name]) for name in told} == {
        name: round_factors(items) for name, items in told.items()
    }


def round_factors(told):
    """Return the causes with two decimals: epilogues are within some factors."""
    return {item._replace(factor=item.factor and round(item.factor, 2)) for item in told}


def make_analysis(runs):
    (study,) = group_into_studies(runs)
    return analyse_study(study)


def test_a_factor_of_all_rows_is_told_once_for_all_batch_sizes():
    recorded = Recorded(FOUR)
    runs = [
        recorded.run(batch, recorded.step(3 * batch // 2), number)
        for number, batch in enumerate((32, 64), 1)
    ]
    (cause,) = make_analysis(runs).judgement.sweep
    assert (cause.rule, cause.variant, cause.confidence) == (
        "whole step",
        "sweep, other batch",
        PLAUSIBLE,
    )


def test_products_of_another_process_are_not_the_missing_backward_pass():
    (cause,) = make_analysis(run_beside_another_process()).judgement.sweep
    assert (cause.rule, cause.variant) == ("direction missing", "sweep, did not run")
