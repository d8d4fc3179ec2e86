"""Plans of network families: what a specification means, and which ones cannot be."""

from __future__ import annotations

import random

import pytest

from perfctl.workloads.models.plan import (
    PARAMETERS,
    NumberParameter,
    format_canonical_spec,
    parse_spec_settings,
    plan_model,
    split_evenly,
)
from perfctl.workloads.spec import SpecError


@pytest.mark.parametrize(
    ("spec", "parameters", "macs"),
    [  # torchvision's own documentation: parameters, and GFLOPS counted as multiply-adds
        ("resnet:depth=18,image=224,classes=1000", 11_689_512, 1.814e9),
        ("resnet:depth=50,image=224,classes=1000", 25_557_032, 4.089e9),
        ("resnet:depth=152,image=224,classes=1000", 60_192_808, 11.514e9),
        ("vgg:depth=11,hidden=4096,image=224,classes=1000", 132_863_336, 7.609e9),
        ("vgg:depth=16,hidden=4096,image=224,classes=1000", 138_357_544, 15.470e9),
        ("vgg:depth=19,hidden=4096,image=224,classes=1000,batchnorm=yes", 143_678_248, 19.632e9),
    ],
)
def test_published_networks_are_points_of_the_families(spec, parameters, macs):
    found = plan_model(spec)
    assert found.parameters == parameters
    assert found.forward_macs_per_sample == pytest.approx(macs, rel=1e-3)


def test_the_first_inception_module_of_width_64_is_googlenets_3a_behind_its_192_channels():
    names = {layer.name: layer for layer in plan_model("inception:width=64").layers}
    assert names["stage1.0.concat"].gives[0] == 64 + 128 + 32 + 32
    assert names["stage1.0.b3.2.conv"].kernel == 5


def test_the_order_of_the_parameters_and_defaults_given_change_nothing():
    assert (
        plan_model("resnet:width=32,depth=26").spec
        == plan_model("resnet: depth=26 ,width=32,classes=10").spec
    )
    assert plan_model("resnet:depth=18").spec == "resnet"


def test_the_full_name_of_a_plan_names_the_same_plan():
    found = plan_model("vgg:batchnorm=yes,depth=9,width=8,image=32")
    assert plan_model(found.spec) == found
    assert format_canonical_spec(*parse_spec_settings(found.spec)) == found.spec


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("lenet", f"unknown family 'lenet'; known: {', '.join(PARAMETERS)}"),
        ("vgg:dept=11", r"vgg has no parameter 'dept' \(did you mean depth\?\)"),
        ("vgg:depth", "depth has no value; for example depth=11"),
        ("vgg:depth=11,depth=13", "depth is repeated"),
        ("vgg:depth=two", "depth must be 4 to 200, got two"),
        ("vgg:depth=²", "depth must be 4 to 200, got ²"),
        ("vgg:width=0", "width must be 1 to 4096, got 0"),
        ("vgg:kernel=4", "got 4: an even width"),
        ("vgg:activation=elu", "activation must be one of relu, gelu, silu, tanh, got elu"),
        ("vgg:image=16", "image=16 is too small: stage5.pool would pool 2x2 from 1x1"),
        ("vgg:depth=7", "depth=7 is too small for stages=5.*use depth=8 or more"),
        ("resnet:depth=27", "depth=27 is impossible with basic blocks.*use depth=26 or depth=28"),
        (
            "resnet:depth=54",
            "depth=54 is impossible with bottleneck blocks.*use depth=53 or depth=56",
        ),
        ("resnet:depth=8", "depth=8 is too small for stages=4.*use depth=10 or more"),
        ("resnet:image=8", "image=8 is too small: stage4.0.1.norm would normalize a single value"),
        ("inception:width=6", "width must be 4 to 4096, a multiple of 4, got 6"),
        ("inception:blocks=2", "blocks=2 is too small for stages=3"),
    ],
)
def test_what_cannot_be_is_said_by_its_parameter_value_and_range(spec, said):
    with pytest.raises(SpecError, match=said):
        plan_model(spec)


@pytest.mark.parametrize("family", PARAMETERS)
def test_each_proposal_of_a_message_is_possible(family):
    """ "use depth=26" is a promise: random depths and stages that fail are followed up."""
    chance = random.Random(5)
    for _ in range(60):
        depth = chance.randint(4, 60)
        name = next(name for name in ("depth", "blocks", "width") if name in PARAMETERS[family])
        stages = f",stages={chance.randint(1, 5)}" if "stages" in PARAMETERS[family] else ""
        try:
            plan_model(f"{family}:{name}={depth}{stages},image=64")
        except SpecError as error:
            said = str(error).rpartition("use ")[2].split(" or ")[0]
            assert plan_model(f"{family}:{said}{stages},image=64")


@pytest.mark.parametrize("family", PARAMETERS)
def test_the_defaults_of_a_family_lie_in_their_ranges_and_make_a_network(family):
    for parameter in PARAMETERS[family].values():
        if isinstance(parameter, NumberParameter):
            assert parameter.least <= parameter.default <= parameter.most
            assert parameter.default % parameter.multiple == 0
    assert plan_model(family).layers


def test_a_number_is_spread_over_places_with_the_rest_at_the_end():
    assert split_evenly(8, 3) == [2, 3, 3]
    assert split_evenly(6, 3) == [2, 2, 2]
