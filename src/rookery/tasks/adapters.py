"""Networks of Flax, Equinox and PyTorch as networks of tasks. Imports errors; the libraries only when asked.

An adapted network keeps the contract of `rookery.tasks.models`: `init(key)` gives a dict of layers, `network(params,
image)` the logits of one example. Two of them are equal, and share a program, when they compute the same from the same
parameters.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import InputError, failing

__all__ = ["from_equinox", "from_flax", "from_torch"]


def from_flax(module: Any, example: Any) -> FlaxNetwork:
    """A Flax linen module, whose call takes one image.

    Args:
      module: the module, such as an `nn.Sequential` or one of your own; it may hold parameters and nothing else (no
        batch statistics), and draw nothing (no dropout).
      example: an image, or its shape: what the parameters are made for.
    """
    linen = _need("flax.linen", "flax")
    if not isinstance(module, linen.Module):
        raise InputError(f"module: {type(module).__name__} was given; an instance of a flax.linen module is needed")
    # Lists cannot be hashed, and nn.Sequential is given one.
    lists = {f.name: tuple(own) for f in fields(module) if isinstance(own := getattr(module, f.name), list)}
    module = module.clone(**lists)
    _check_hashable("module", module)
    shape = tuple(example) if isinstance(example, tuple) else tuple(jnp.shape(example))
    variables = jax.eval_shape(module.init, jax.random.key(0), jax.ShapeDtypeStruct(shape, jnp.float32))
    if set(variables) != {"params"}:
        others = ", ".join(sorted(set(variables) - {"params"})) or "nothing"
        raise InputError(f"module: it holds {others}; a module with parameters and nothing else is needed")
    return FlaxNetwork(module, shape)


@dataclass(frozen=True)
class FlaxNetwork:
    """A linen module for images of a shape; made by `from_flax`."""

    module: Any
    shape: tuple[int, ...]

    def init(self, key: jax.Array) -> dict[str, Any]:
        return dict(self.module.init(key, jnp.zeros(self.shape, jnp.float32))["params"])

    def __call__(self, params: Any, image: jax.Array) -> jax.Array:
        return self.module.apply({"params": params}, image.reshape(self.shape))


def from_equinox(module: Any) -> EquinoxNetwork:
    """An Equinox module, whose call takes one image.

    Its parameters are its floating-point arrays; whatever else it holds is fixed. A layer is a field of the module, or
    an entry of a field that is a tuple or a list (`"layers.0"`).

    Args:
      module: a module, which then starts from the numbers it holds, or a function of a key that makes one.
    """
    equinox = _need("equinox", "equinox")
    if isinstance(module, equinox.Module):
        return EquinoxNetwork(*_structure(module), make=lambda key: module)
    if not callable(module):
        raise InputError(
            f"module: {type(module).__name__} was given; an equinox.Module or a function of a key is needed"
        )
    made = equinox.filter_eval_shape(module, jax.random.key(0))
    if not isinstance(made, equinox.Module):
        raise InputError(f"module: the function gives {type(made).__name__}; it must give an equinox.Module")
    return EquinoxNetwork(*_structure(made), make=module)


@dataclass(frozen=True)
class EquinoxNetwork:
    """The structure of a module, what in it is fixed, and where its parameters are; made by `from_equinox`."""

    structure: Any
    fixed: tuple[Any, ...]  # a leaf each, None where a parameter is
    places: tuple[tuple[str, str] | None, ...]  # (layer, name in it) of a parameter, None where something is fixed
    make: Callable[[jax.Array], Any] = field(compare=False, repr=False)

    def init(self, key: jax.Array) -> dict[str, Any]:
        layers: dict[str, Any] = {}
        for place, leaf in zip(self.places, jax.tree.leaves(self.make(key))):
            if place is not None:
                layers.setdefault(place[0], {})[place[1]] = leaf
        return layers

    def __call__(self, params: Any, image: jax.Array) -> jax.Array:
        leaves = [
            fixed if place is None else params[place[0]][place[1]] for place, fixed in zip(self.places, self.fixed)
        ]
        return jax.tree.unflatten(self.structure, leaves)(image)


def _structure(module: Any) -> tuple[Any, tuple, tuple]:
    """A module's structure, its fixed leaves, and the places of its parameters."""
    fixed, places = [], []
    leaves, structure = jax.tree_util.tree_flatten_with_path(module)
    for path, leaf in leaves:
        dtype = getattr(leaf, "dtype", None)
        if dtype is None:
            _check_hashable("module", leaf)
            fixed.append(leaf)
            places.append(None)
        elif jnp.issubdtype(dtype, jnp.floating):
            fixed.append(None)
            places.append(_place(path))
        else:
            raise InputError(
                f"module: it holds an array of {dtype} at {jax.tree_util.keystr(path)}; its arrays must be "
                "floating-point parameters"
            )
    if not any(places):
        raise InputError("module: it holds no floating-point array; a module with parameters is needed")
    return structure, tuple(fixed), tuple(places)


def _place(path: tuple) -> tuple[str, str]:
    """The layer that a path leads through, and the rest of the path."""
    names = [jax.tree_util.keystr((key,), simple=True) for key in path]
    inside = 2 if len(path) > 2 and isinstance(path[1], jax.tree_util.SequenceKey) else 1
    return ".".join(names[:inside]), ".".join(names[inside:]) or "value"


def from_torch(module: Any, shape: tuple[int, ...]) -> TorchNetwork:
    """A PyTorch module, whose forward takes a batch: it runs as JAX, through torchax.

    Layers are named as in its state_dict: `params["features.0"]["weight"]`. What is no parameter, and parameters that
    need no gradient, stay as they are. Layers that draw at random, or that use statistics of a batch (dropout,
    BatchNorm), are refused unless they are in evaluation mode (`module.eval()`): there dropout does nothing, and
    BatchNorm uses its running statistics, which stay as they are. Lazy layers are refused.

    Args:
      module: a module, which then starts from the numbers it holds, or a function without arguments that makes one,
        called with torch's seed taken from the run's.
      shape: that of one input as the data has it. Images are (height, width, channels) here, and given to the module as
        PyTorch has them, (channels, height, width).
    """
    torch = _need("torch", "'rookery[torch]'")
    torchax = _torchax(torch)
    if not isinstance(shape, tuple) or not all(isinstance(n, int) and n > 0 for n in shape) or not shape:
        raise InputError(f"shape: {shape!r} was given; that of one input is needed, such as (28, 28, 1)")
    make = None if isinstance(module, torch.nn.Module) else module
    if make is not None:
        with failing("module: the function without arguments that makes one"):
            made = make() if callable(make) else make
        if not isinstance(made, torch.nn.Module):
            given = f"a function that gives {type(made).__name__}" if callable(make) else type(made).__name__
            raise InputError(f"module: {given} was given; a torch.nn.Module, or a function that makes one, is needed")
        module = made
    _check_torch(torch, module)
    network = TorchNetwork(module, shape, make)
    with failing(f"module: its forward of a batch with one input of shape {network.batch_shape}"):
        image = jax.ShapeDtypeStruct(network.shape, jnp.float32)
        traced = str(jax.make_jaxpr(network)(network.init(jax.random.key(0)), image))
    if any(word in traced for word in ("random_bits", "random_wrap", "threefry")):
        torchax.default_env().manual_seed(0)  # its own state is no trace's
        raise InputError("module: its forward draws at random, such as torch.nn.functional.dropout does; none may")
    return network


@dataclass(frozen=True)
class TorchNetwork:
    """A PyTorch module as a network; made by `from_torch`. Two are equal when they are of the same module."""

    module: Any
    shape: tuple[int, ...]
    make: Callable[[], Any] | None = field(default=None, compare=False, repr=False)
    _program: tuple[Any, Any] = field(init=False, compare=False, repr=False)

    def __post_init__(self):
        import torchax

        states, function = torchax.extract_jax(self.module)
        object.__setattr__(self, "_program", (states, function))

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of a batch of one input, as the module takes it."""
        return (1, self.shape[2], *self.shape[:2]) if len(self.shape) == 3 else (1, *self.shape)

    def init(self, key: jax.Array) -> dict[str, Any]:
        if self.make is None:
            return self.params(self.module.state_dict())
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(jax.random.bits(key, dtype=jnp.uint32)))
            return self.params(self.make().state_dict())

    def params(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters in a state_dict, layer by layer."""
        if not isinstance(state_dict, Mapping):
            raise InputError(f"state_dict: {type(state_dict).__name__} was given; tensors by name are needed")
        layers: dict[str, Any] = {}
        shapes = {name: tuple(value.shape) for name, value in self.module.named_parameters()}
        for name in self._learnt():
            if name not in state_dict:
                raise InputError(
                    f"state_dict: it has no {name!r}; that of the module this network was made of is needed"
                )
            value = state_dict[name]
            array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
            if array.shape != shapes[name]:
                raise InputError(f"state_dict: {name!r} has shape {array.shape}; the module's has {shapes[name]}")
            layer, _, entry = name.rpartition(".")
            layers.setdefault(layer or "module", {})[entry] = array
        return layers

    def state_dict(self, params: Any) -> dict[str, Any]:
        """Parameters as a state_dict of the module, by name, with what stayed as it was."""
        import torch

        copied = copy.deepcopy(self.module)
        own = dict(copied.named_parameters())
        if not isinstance(params, Mapping) or not all(isinstance(entries, Mapping) for entries in params.values()):
            raise InputError(f"params: {type(params).__name__} was given; the network's layers by name are needed")
        with torch.no_grad():
            for name, array in self._named(params).items():
                if name not in own or tuple(own[name].shape) != np.shape(array):
                    known = f"of shape {tuple(own[name].shape)}" if name in own else "not there"
                    raise InputError(
                        f"params: {name!r} of shape {np.shape(array)} was given; in the module it is {known}"
                    )
                own[name].copy_(torch.from_numpy(np.array(array)))
        return copied.state_dict()

    def __call__(self, params: Any, image: jax.Array) -> jax.Array:
        import torch

        _check_torch(torch, self.module)  # its mode may have changed since
        states, function = self._program
        image = jnp.asarray(image).reshape(self.shape)
        image = jnp.transpose(image, (2, 0, 1)) if len(self.shape) == 3 else image
        dtype = jax.tree.leaves(params)[0].dtype
        cast = lambda value: value.astype(dtype) if jnp.issubdtype(value.dtype, jnp.floating) else value
        values = {name: cast(jnp.asarray(value)) for name, value in states.items()}
        given = {name: jnp.asarray(value) for name, value in self._named(params).items()}
        result = function(values | given, (cast(image)[None],))
        if not hasattr(result, "shape") or not result.shape:
            raise InputError(
                f"module: its forward gives {type(result).__name__}; a tensor with a row per input is needed"
            )
        return result[0]

    def _learnt(self) -> list[str]:
        return [name for name, value in self.module.named_parameters() if value.requires_grad]

    def _named(self, params: Any) -> dict[str, Any]:
        """Parameters by their names in the state_dict."""
        return {
            f"{layer}.{entry}" if layer != "module" or f"module.{entry}" in self._learnt() else entry: value
            for layer, entries in params.items()
            for entry, value in entries.items()
        }


def _torchax(torch: Any) -> Any:
    """torchax; one that is not there, or does not fit the torch that is, is refused."""
    try:
        return _need("torchax", "'rookery[torch]'")
    except AttributeError as error:
        raise InputError(
            f"module: the installed torchax does not work with torch {torch.__version__} ({error}); a newer one is "
            "needed: pip install 'rookery[torch]'"
        ) from None


def _check_torch(torch: Any, module: Any) -> None:
    """Refuses layers whose forward is no function of parameters and input."""
    for name, layer in module.named_modules():
        where = f"its layer {name!r} ({type(layer).__name__})" if name else f"it ({type(layer).__name__})"
        norm, trains = torch.nn.modules.batchnorm._NormBase, layer.training
        if isinstance(layer, norm) and layer.track_running_stats and trains:
            raise InputError(
                f"module: {where} keeps running statistics, which are no parameters; call module.eval() to use those "
                "that it has, or use GroupNorm or LayerNorm, which keep none"
            )
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and layer.running_mean is None:
            raise InputError(f"module: {where} mixes the examples of a batch; GroupNorm and LayerNorm do not")
        if isinstance(layer, torch.nn.modules.dropout._DropoutNd) and layer.p > 0 and trains:
            raise InputError(f"module: {where} draws at random; p=0, module.eval() or no dropout is needed")
        if isinstance(layer, torch.nn.modules.lazy.LazyModuleMixin):
            raise InputError(f"module: {where} has no shape yet; call the module once on a batch first")
        if isinstance(layer, torch.nn.RNNBase) and layer.dropout > 0 and trains:
            raise InputError(f"module: {where} draws at random; dropout=0 or module.eval() is needed")
    if not any(value.requires_grad for value in module.parameters()):
        raise InputError("module: it holds no parameter that needs a gradient; a module with parameters is needed")


def _need(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(f"module: {module.split('.')[0]} is not installed; pip install {package}") from None


def _check_hashable(argument: str, value: Any) -> None:
    try:
        hash(value)
    except TypeError:
        raise InputError(
            f"{argument}: {type(value).__name__} holds something that cannot be hashed; tuples in the place of lists "
            "and arrays are needed"
        ) from None
