"""PyTorch modules as networks: what they compute, what they start from, what comes back, and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.tasks.models import Classification, OnStored, cross_entropy

torch: Any = pytest.importorskip("torch", reason="the CPU build of PyTorch is not installed")
pytest.importorskip("torchax", reason="torchax is not installed")
nn = torch.nn

SHAPE = (8, 8, 1)


def mlp() -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 10))


class SmallCNN(nn.Module):
    """Two convolutions, a group norm, a pooling, a fixed buffer and a tied weight."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3)
        )
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 10)
        self.register_buffer("shift", torch.linspace(0, 1, 6))

    def forward(self, batch):
        pooled = torch.relu(self.features(batch)).mean(dim=(2, 3)) + self.shift
        return self.head(torch.nn.functional.gelu(self.mix(self.mix(pooled))))


MODULES = {"mlp": mlp, "cnn": SmallCNN}


@pytest.fixture(params=MODULES)
def both(request):
    torch.manual_seed(3)
    module = MODULES[request.param]()
    return module, rk.adapters.from_torch(module, SHAPE)


def examples(count=5):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, *SHAPE)).astype(np.float32), rng.integers(0, 10, count)


def as_torch(images):
    return torch.tensor(np.transpose(images, (0, 3, 1, 2)))


def test_forward_and_gradients_are_torchs(both):
    module, network = both
    images, labels = examples()
    params = network.init(jax.random.key(0))
    logits = jax.vmap(lambda image: network(params, image))(images)
    np.testing.assert_allclose(logits, module(as_torch(images)).detach().numpy(), atol=1e-5)

    loss = lambda params: jnp.mean(
        jax.vmap(lambda image, label: cross_entropy(network(params, image), label))(images, labels)
    )
    gradient = jax.jit(jax.grad(loss))(params)
    torch.nn.functional.cross_entropy(module(as_torch(images)), torch.tensor(labels)).backward()
    for name, value in module.named_parameters():
        layer, _, entry = name.rpartition(".")
        np.testing.assert_allclose(gradient[layer][entry], value.grad.numpy(), atol=1e-5, err_msg=name)


def test_second_derivatives_are_torchs():
    """What nested methods need: a Hessian-vector product."""
    torch.manual_seed(0)
    module = mlp()
    network = rk.adapters.from_torch(module, SHAPE)
    images, labels = examples(3)
    params = network.init(jax.random.key(0))
    loss = lambda params: jnp.mean(
        jax.vmap(lambda image, label: cross_entropy(network(params, image), label))(images, labels)
    )
    product = jax.jvp(jax.grad(loss), (params,), (params,))[1]
    values = list(module.parameters())
    value = torch.nn.functional.cross_entropy(module(as_torch(images)), torch.tensor(labels))
    gradients = torch.autograd.grad(value, values, create_graph=True)
    along = sum((g * v.detach()).sum() for g, v in zip(gradients, values))
    expected = dict(zip(dict(module.named_parameters()), torch.autograd.grad(along, values)))
    for name, wanted in expected.items():
        layer, _, entry = name.rpartition(".")
        np.testing.assert_allclose(product[layer][entry], wanted.numpy(), atol=1e-5, err_msg=name)


def test_weights_go_in_and_out_by_name(both):
    module, network = both
    params = network.params(module.state_dict())
    moved = jax.tree.map(lambda leaf: leaf + 1, params)
    out = network.state_dict(moved)
    assert set(out) == set(module.state_dict())
    other = type(module)() if isinstance(module, SmallCNN) else mlp()
    other.load_state_dict(out)
    for name, value in module.named_parameters():
        np.testing.assert_allclose(dict(other.named_parameters())[name].detach(), value.detach() + 1, rtol=1e-6)
    again = network.params(other.state_dict())
    jax.tree.map(np.testing.assert_array_equal, again, moved)
    with pytest.raises(rk.InputError, match=r"state_dict: it has no '.*weight'"):
        network.params({})


def test_a_federated_run_is_torchs_own_descent():
    """Three clients, full batches, one local step: FedAvg is gradient descent on the mean loss of the clients."""
    torch.manual_seed(1)
    module = mlp()
    network = rk.adapters.from_torch(module, SHAPE)
    digits = rk.data.digits()
    parts = [{key: digits.train[key][i * 20 : (i + 1) * 20] for key in ("input", "label")} for i in range(3)]
    result = rk.run(
        rk.Single(Classification(OnStored(network, digits.scale))),
        rk.FedAvg(lr=0.5),
        rk.federate(parts),
        x=network.init,
        rounds=5,
    )
    for _ in range(5):
        module.zero_grad()
        for part in parts:
            images = as_torch(part["input"].reshape(-1, *SHAPE))
            (torch.nn.functional.cross_entropy(module(images), torch.tensor(part["label"]).long()) / 3).backward()
        with torch.no_grad():
            for value in module.parameters():
                value -= 0.5 * value.grad
    reached = network.state_dict(result.x)
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(reached[name], value, atol=1e-5, err_msg=name)


def test_a_function_makes_a_fresh_module_by_the_runs_seed():
    network = rk.adapters.from_torch(mlp, SHAPE)
    before = torch.random.get_rng_state()
    first, same, other = (network.init(jax.random.key(seed)) for seed in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state()), "torch's own seed was moved"
    np.testing.assert_array_equal(first["1"]["weight"], same["1"]["weight"])
    assert (first["1"]["weight"] != other["1"]["weight"]).any()


def test_what_needs_no_gradient_stays_and_the_head_alone_is_learnt():
    torch.manual_seed(0)
    module = mlp()
    module[1].requires_grad_(False)
    network = rk.adapters.from_torch(module, SHAPE)
    assert list(network.init(jax.random.key(0))) == ["3", "4"]
    out = network.state_dict(jax.tree.map(lambda leaf: leaf + 1, network.init(jax.random.key(0))))
    assert torch.equal(out["1.weight"], module.state_dict()["1.weight"])


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 3)

    def forward(self, batch):
        return torch.nn.functional.dropout(self.layer(batch.flatten(1)), 0.5)


class TwoOutputs(Dropping):
    def forward(self, batch):
        return self.layer(batch.flatten(1)), batch


def test_wrong_weights_are_refused():
    network = rk.adapters.from_torch(mlp(), SHAPE)
    params = network.init(jax.random.key(0))
    for given, sentence in [
        ({"foo": {"w": np.zeros(2)}}, "params: 'foo.w' of shape .* was given; in the module it is not there"),
        (
            {**params, "1": {"weight": np.zeros(2)}},
            r"'1.weight' of shape \(2,\) was given; in the module it is of shape",
        ),
        (np.zeros(2), "params: ndarray was given"),
    ]:
        with pytest.raises(rk.InputError, match=sentence):
            network.state_dict(given)
    with pytest.raises(rk.InputError, match="state_dict: NoneType was given"):
        network.params(None)
    with pytest.raises(rk.InputError, match=r"state_dict: '1.weight' has shape \(2,\)"):
        network.params({**network.state_dict(params), "1.weight": np.zeros(2)})
    for shape in (3, (), (8, 0, 1)):
        with pytest.raises(rk.InputError, match=r"shape: .* was given; that of one input is needed"):
            rk.adapters.from_torch(mlp, shape)


def normed():
    """Batch norm with statistics of its own, and dropout in three forms."""
    torch.manual_seed(5)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(144, 8), nn.BatchNorm1d(8),
        nn.Dropout(0.5), nn.Linear(8, 10),
    )  # fmt: skip
    for _ in range(3):  # moves the running statistics
        module(torch.randn(16, 1, 8, 8) * 2 + 1)
    return module


def test_batch_norm_and_dropout_in_evaluation_mode_are_torchs():
    module = normed().eval()
    network = rk.adapters.from_torch(module, SHAPE)
    images, labels = examples()
    params = network.init(jax.random.key(0))
    assert set(params["1"]) == {"weight", "bias"}, "running statistics are no parameters"
    logits = jax.vmap(lambda image: network(params, image))(images)
    np.testing.assert_allclose(logits, module(as_torch(images)).detach().numpy(), atol=1e-5)
    loss = lambda params: jnp.mean(
        jax.vmap(lambda image, label: cross_entropy(network(params, image), label))(images, labels)
    )
    gradient = jax.jit(jax.grad(loss))(params)
    torch.nn.functional.cross_entropy(module(as_torch(images)), torch.tensor(labels)).backward()
    np.testing.assert_allclose(gradient["1"]["weight"], module[1].weight.grad.numpy(), atol=1e-5)
    out = network.state_dict(jax.tree.map(lambda leaf: leaf + 1, params))
    assert torch.equal(out["1.running_mean"], module.state_dict()["1.running_mean"])


def test_a_module_that_trains_again_is_refused():
    module = normed().eval()
    network = rk.adapters.from_torch(module, SHAPE)
    params = network.init(jax.random.key(0))
    module.train()
    with pytest.raises(rk.InputError, match=r"its layer '1' \(BatchNorm2d\) keeps running statistics"):
        network(params, examples(1)[0][0])


WRONG = {
    "batch norm": (lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64)), r"its layer '1' \(BatchNorm1d\) keeps running"),
    "batch norm without statistics": (
        lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False)),
        "mixes the examples of a batch",
    ),
    "batch norm without statistics, evaluated": (
        lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False)).eval(),
        "mixes the examples of a batch",
    ),
    "one layer that trains": (
        lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64).eval(), nn.Dropout(0.5), nn.Linear(64, 2)),
        "draws at random; p=0",
    ),
    "dropout": (lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 2)), "draws at random; p=0"),
    "functional dropout": (lambda: Dropping(), "its forward draws at random"),
    "two outputs": (lambda: TwoOutputs(), "forward gives tuple"),
    "an argument": (lambda a: mlp(), "the function without arguments that makes one fails"),
    "lazy": (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), "has no shape yet"),
    "no parameters": (lambda: nn.Flatten(), "it holds no parameter that needs a gradient"),
    "wrong shape": (lambda: nn.Linear(3, 2), r"forward of a batch with one input of shape \(1, 1, 8, 8\) fails"),
    "a list": (lambda: [1], "a function that gives list was given"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_run_is_refused(name):
    make, sentence = WRONG[name]
    with pytest.raises(rk.InputError, match=f"module: .*{sentence}"):
        rk.adapters.from_torch(make, SHAPE)
    with pytest.raises(rk.InputError, match=r"module: int was given; a torch\.nn\.Module"):
        rk.adapters.from_torch(3, SHAPE)
