"""Layer ranges against what autograd itself says: every node runs in the range of the layer that
made it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from perfctl.workloads.models.mnist_cnn import build_mnist_cnn
from perfctl.workloads.run.annotate import LayerRangeAnnotator
from tests.sample import draws
from tests.workloads.autograd_truth import Made, Seen, Truth, backward_places

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization", "ignore:None of the inputs")
BACKWARDS = ("backward", "grad_input", "grad_weight")


def shared_resnet():
    """A residual block, called twice, whose second convolution is its first."""
    conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)

    def residual(self, x):
        return torch.relu(self.bn(self.conv2(torch.relu(self.conv1(x)))) + x)

    block = Made(residual, conv1=conv, bn=nn.BatchNorm2d(4), conv2=conv)
    return Made(
        lambda self, x: self.fc(self.layer1(self.stem(x)).mean((2, 3))),
        stem=nn.Conv2d(3, 4, 3),
        layer1=nn.Sequential(block, block),
        fc=nn.Linear(4, 5),
    )


def bilstm():
    rnn = nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True, dropout=0.5)
    return Made(
        lambda self, x: self.out(self.rnn(self.embed(x))[0][:, -1]),
        embed=nn.Embedding(11, 4),
        rnn=rnn,
        out=nn.Linear(6, 2),
    )


def functional():
    """No module below it."""
    w, b = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))
    return Made(
        lambda self, x: nn.functional.layer_norm(x @ self.w + self.b, (3,)).tanh(), w=w, b=b
    )


def checkpointed(reentrant):
    second = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh())
    return Made(
        lambda self, x: checkpoint(self.second, self.first(x), use_reentrant=reentrant) * 2,
        first=nn.Linear(3, 3),
        second=second,
    )


class Recursive(nn.Module):
    """Calls itself, and the members of a list that nobody calls."""

    def __init__(self, depth):
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.below = Recursive(depth - 1) if depth else None

    def forward(self, x):
        for step in self.steps:
            x = torch.relu(step(x)) * 2
        return x if self.below is None else self.below(x) + x


def transformer():
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mnist": (build_mnist_cnn, lambda: torch.rand(2, 1, 28, 28)),
    "shared resnet": (shared_resnet, lambda: torch.rand(2, 3, 6, 6)),
    "bilstm": (bilstm, lambda: torch.randint(11, (2, 5))),
    "transformer": (transformer, lambda: torch.rand(2, 3, 8)),
    "functional": (functional, lambda: torch.rand(2, 4)),
    "recursive": (lambda: Recursive(3), lambda: torch.rand(2, 3)),
    "checkpointed": (lambda: checkpointed(False), lambda: torch.rand(2, 3)),
    "checkpointed, reentrant": (lambda: checkpointed(True), lambda: torch.rand(2, 3)),
}


def check(model, value):
    """Annotate one step, compare with autograd, and give the nodes that no layer made."""
    seen, truth = Seen(), Truth({"": model})
    with LayerRangeAnnotator(seen, model):
        with truth.watching():
            loss = model(value).sum()
        makers = truth.makers()
        rows = backward_places(loss, seen, truth)
    assert seen.open == []
    assert [row for row in rows if row[1] != row[2]] == []
    counted = seen.count()
    for layer in makers:
        assert counted[f"{layer}:forward"], layer
    for layer in {maker for _, maker, _ in rows if maker is not None}:
        assert sum(counted[f"{layer}:{direction}"] for direction in BACKWARDS), layer
    return [row for row in rows if row[1] is None]


@pytest.mark.parametrize("name", MODELS)
def test_each_node_runs_in_the_range_of_the_layer_that_made_it(name):
    torch.manual_seed(0)
    make, value = MODELS[name]
    # the sum is the test's own
    assert check(make(), value()) == [("SumBackward0", None, None)]


def test_two_models_of_a_script_keep_their_nodes_apart():
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))
    judge = nn.Sequential(nn.Linear(4, 3), nn.LeakyReLU(), nn.Linear(3, 1))
    loss = nn.BCEWithLogitsLoss()
    seen = Seen()
    truth = Truth({"generator": generator, "judge": judge, "BCEWithLogitsLoss": loss})
    with LayerRangeAnnotator(seen), truth.watching():
        real = loss(judge(torch.rand(2, 4)), torch.ones(2, 1))
        fake = loss(judge(generator(torch.rand(2, 2)).detach()), torch.zeros(2, 1))
        rows = backward_places(real + fake, seen, truth)
        rows += backward_places(
            loss(judge(generator(torch.rand(2, 2))), torch.ones(2, 1)), seen, truth
        )
    assert [row for row in rows if row[1] != row[2]] == []
    assert [row for row in rows if row[1] is None] == [("AddBackward0", None, None)]
    assert {"generator.0", "generator.2", "judge.0", "judge.2", "BCEWithLogitsLoss"} <= {
        row[2] for row in rows
    }


class Tree(nn.Module):
    """A module made of a drawn plan: its own operations and the modules it calls, in order."""

    def __init__(self, plan, shared):
        super().__init__()
        self.plan = plan
        self.own = nn.Parameter(torch.rand(3))
        self.kids = nn.ModuleList(self._child(item, shared) for item in plan)

    def _child(self, item, shared):
        if isinstance(item, list):
            shared.append(Tree(item, shared))
            return shared[-1]
        if item == "again":
            return shared[0]
        return {"linear": nn.Linear(3, 3), "norm": nn.LayerNorm(3), "drop": nn.Dropout(0.3)}.get(
            item, nn.Identity()
        )

    def forward(self, x):
        for item, kid in zip(self.plan, self.kids, strict=True):
            if item == "product":
                x = x * self.own
            elif item == "residual":
                x = torch.tanh(x) + x
            elif item == "inplace":
                x = (x + 1).relu_()
            else:
                out = kid(x)
                x = out["x"] if isinstance(out, dict) else out
        return {"x": x, "other": [x]} if len(self.plan) % 2 and len(self.plan) > 1 else x


STEPS = st.sampled_from(
    ["linear", "norm", "drop", "identity", "product", "residual", "inplace", "again"]
)
PLANS = st.recursive(
    st.lists(STEPS, min_size=1, max_size=3),
    lambda inner: st.lists(STEPS | inner, min_size=1, max_size=4),
)


def rooted(plan):
    """A model that ends in a tensor, whatever its tree gives."""

    def root(self, x):
        out = self.tree(x)
        return self.last(out["x"] if isinstance(out, dict) else out)

    return Made(root, tree=Tree(plan, [nn.Tanh()]), last=nn.Linear(3, 1))


@settings(max_examples=draws(60))
@given(plan=PLANS, needs_gradient=st.booleans())
def test_any_tree_of_modules_is_marked_as_autograd_has_it(plan, needs_gradient):
    unclaimed = check(rooted(plan), torch.rand(2, 3, requires_grad=needs_gradient))
    own_input = [("torch::autograd::AccumulateGrad", None, None)] if needs_gradient else []
    assert sorted(unclaimed) == sorted([("SumBackward0", None, None), *own_input])
