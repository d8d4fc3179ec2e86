"""What layers of a script that nobody edited are called, the same for ranges and for
recorded shapes."""

import contextlib
import weakref

import pytest
import torch
from torch import nn

from perfctl.workloads.run.annotate import LayerRangeAnnotator
from perfctl.workloads.tracing.layers import ModuleNames
from perfctl.workloads.tracing.recorder import Recorder
from tests.workloads.autograd_truth import Seen

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")


def forwards(seen):
    """Layers with a forward range, in order of first call."""
    return list(
        dict.fromkeys(
            name.removesuffix(":forward") for name in seen.count() if name.endswith(":forward")
        )
    )


def test_a_model_goes_by_what_the_script_calls_it():
    seen, netD = Seen(), nn.Sequential(nn.Linear(2, 2))
    with LayerRangeAnnotator(seen):
        netD(torch.ones(1, 2)).sum()
    assert forwards(seen) == ["netD", "netD.0"]


class Trainer:
    def __init__(self):
        self.generator = nn.Sequential(nn.Tanh())

    def step(self):
        return self.generator(torch.ones(1))


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: Trainer().step(), ["generator", "generator.0"]),
        (lambda: list(map(nn.Linear(2, 2), [torch.ones(1, 2)])), ["Linear"]),
        (lambda: [nn.MSELoss()(torch.ones(1), torch.zeros(1)) for _ in range(3)], ["MSELoss"]),
    ],
)
def test_an_attribute_loses_its_self_and_what_has_no_name_goes_by_its_class(call, names):
    seen = Seen()
    with LayerRangeAnnotator(seen):
        call()
    assert forwards(seen) == names


def test_two_models_with_one_name_are_numbered():
    seen, kept = Seen(), []
    with LayerRangeAnnotator(seen):
        for size in (2, 3):
            model = nn.Linear(2, size)
            kept.append(model)
            model(torch.ones(1, 2))
            model(torch.ones(1, 2))
    assert forwards(seen) == ["model", "model-2"]


def test_a_layer_that_is_made_in_the_first_forward_has_its_path():
    class Late(nn.Module):
        def forward(self, x):
            if not hasattr(self, "fc"):
                self.fc = nn.Linear(2, 2)
            return self.fc(x)

    seen, late = Seen(), Late()
    with LayerRangeAnnotator(seen):
        late(torch.ones(1, 2)).sum().backward()
    assert forwards(seen) == ["late", "late.fc"]
    assert seen.count()["late.fc:grad_weight"] >= 1


def test_a_replica_goes_by_its_originals_name():
    model = nn.Sequential(nn.Linear(2, 2))
    names = ModuleNames(model)
    replica = model[0]._replicate_for_data_parallel()
    assert names.find_or_assign_name(replica, None) == "0"


def test_names_keep_nothing_of_the_script_alive():
    names, model = ModuleNames(), nn.Linear(2, 2)
    names.find_or_assign_name(model, None)
    gone = weakref.ref(model)
    del model
    assert gone() is None


def test_shapes_and_ranges_have_the_same_names():
    judge, maker = nn.Sequential(nn.Linear(2, 1)), nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    seen, names = Seen(), ModuleNames()

    def step():
        nn.BCEWithLogitsLoss()(judge(maker(torch.ones(1, 3))), torch.ones(1, 1)).backward()

    with Recorder(names=names) as recorder:
        step()
    with LayerRangeAnnotator(seen, names=names):
        step()
    shaped = {op.layer for op in recorder.ops if op.layer}
    assert shaped == {"judge.0", "maker.0", "maker.1", "BCEWithLogitsLoss"}
    assert shaped <= set(forwards(seen))
    assert {module.path: module.parameters for module in recorder.modules}["maker.0"] == 3 * 2 + 2
    assert {op.layer: op.parameters for op in recorder.ops}["judge.0"] == 2 + 1


def train(model, value, around):
    torch.manual_seed(3)
    optimizer = torch.optim.Adam(model.parameters())
    kept = []
    for _ in range(3):
        with around():
            optimizer.zero_grad()
            loss = model(value).square().mean()
            loss.backward()
            optimizer.step()
        kept.append(loss.detach())
    return [*kept, *(part.detach().clone() for part in model.parameters()), torch.rand(1)]


@pytest.mark.parametrize(
    "name", ["mnist", "shared resnet", "bilstm", "transformer", "checkpointed, reentrant"]
)
@pytest.mark.parametrize("kind", ["ranges", "shapes"])
def test_training_is_the_same_to_the_bit(name, kind):
    from tests.workloads.run.test_annotate_autograd import MODELS

    make, value = MODELS[name]
    around = {"ranges": lambda: LayerRangeAnnotator(Seen()), "shapes": Recorder}[kind]
    results = []
    for way in (contextlib.nullcontext, around):
        torch.manual_seed(1)
        results.append(train(make(), value(), way))
    assert all(torch.equal(plain, watched) for plain, watched in zip(*results, strict=True))
