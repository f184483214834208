"""Problems: every part of a direction against autodiff of the mean loss, and its unbiasedness by enumeration."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.data.batches import shard
from rookery.data.federated import cast
from rookery.federation.client import Call, Client, ProgramConfig, Record, Sample
from rookery.problems.kinds import Compositional
from rookery.vectors import Sequences, Values

RNG = np.random.default_rng(0)
DATA = {"a": RNG.normal(size=(4, 3)), "b": RNG.normal(size=4)}


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def upper(x, y, e):
    return jnp.sum(jnp.sin(y["w"] * e["a"])) * e["b"] + jnp.sum(x**3) * e["b"] ** 2


def lower(x, y, e):
    return jnp.sum(jnp.cosh(y["w"]) * e["a"] ** 2) + jnp.sum(x) * jnp.sum(y["w"] ** 2 * e["a"]) + y["c"] ** 2 * x[0]


Z = Values(
    x=np.array([0.3, -0.2]),
    y={"w": np.array([0.1, 0.5, -0.4]), "c": np.array(0.7)},
    v={"w": np.array([1.0, -2.0, 0.3]), "c": np.array(0.2)},
)


def client_of(problem, data=DATA):
    clients = rk.federate([data])
    level = dict.fromkeys(problem.draws.values())
    setting = ProgramConfig(problem, 1, tuple((k, None) for k in level), tuple((k, 4) for k in level), "float64")
    key = jax.random.key(0)
    call = Call(0, 1.0, 1.0, 1.0, 0, True, key, key)
    levels = jax.tree.map(jnp.asarray, cast(clients.levels, np.float64))
    return Client(setting, shard(levels, 0), call, Record(Sequences({}), ()))


def direction(problem, z, indices=None):
    """A client's direction on explicit examples per draw; None: all."""
    index = {name: None if indices is None else jnp.array([indices[n]]) for n, name in enumerate(problem.draws)}
    return client_of(problem).direction(Sequences.of(z), Sample(index)).trees()


def assert_same(a, b, tolerance=1e-12):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, atol=tolerance, rtol=tolerance), a, b)


def mean(loss, *arguments):
    return jnp.mean(jax.vmap(lambda e: loss(*arguments, e))(DATA))


def test_bilevel_direction_is_autodiff_of_the_mean_losses():
    d = direction(rk.Bilevel(upper=upper, lower=lower), Z)
    grad_g = lambda x, y: jax.grad(lambda x, y: mean(lower, x, y), (0, 1))(x, y)
    (_, g_y), (cross, hv) = jax.jvp(lambda y: grad_g(Z.x, y), (Z.y,), (Z.v,))
    f_x, f_y = jax.grad(lambda x, y: mean(upper, x, y), (0, 1))(Z.x, Z.y)
    assert_same(d.y, g_y)
    assert_same(d.v, jax.tree.map(jnp.subtract, hv, f_y))
    assert_same(d.x, f_x - cross)
    # The mixed term also by differentiating <grad_y g, v> in x, the other order.
    inner = lambda x: sum(jnp.vdot(a, b) for a, b in zip(*map(jax.tree.leaves, (grad_g(x, Z.y)[1], Z.v))))
    assert_same(cross, jax.grad(inner)(Z.x))


def test_bilevel_parts_one_by_one():
    problem = rk.Bilevel(upper=upper, lower=lower)
    client, whole = client_of(problem), direction(problem, Z)
    z, sample = Sequences.of(Z), Sample({"lower": None, "upper": None})
    assert_same(client.lower_grad(z.x, z.y, sample).tree, whole.y)
    assert_same((client.hvp(z.x, z.y, z.v, sample) - client.upper_grad_y(z.x, z.y, sample)).tree, whole.v)
    assert_same((client.upper_grad_x(z.x, z.y, sample) - client.cross(z.x, z.y, z.v, sample)).tree, whole.x)


MAPS = (
    lambda x, e: {"p": jnp.tanh(x * e["b"]), "q": jnp.sum(x) * e["a"][:2]},
    lambda z, e: jnp.stack([jnp.sum(z["p"] ** 2), jnp.sum(z["q"]) * e["b"], e["a"][0]]),
    lambda z, e: jnp.sum(jnp.cos(z) * e["a"]),
)
POINT = Values(
    x=np.array([0.4, -0.3]),
    z1={"p": np.array([0.2, 0.1]), "q": np.array([0.5, -0.5])},
    z2=np.array([0.3, 0.2, -0.1]),
    w1={"p": np.array([1.0, -1.0]), "q": np.array([0.3, 0.4])},
    w2=np.array([-0.5, 0.25, 1.5]),
)


def averaged(n):
    return lambda z: jax.tree.map(lambda leaf: leaf.mean(axis=0), jax.vmap(lambda e: MAPS[n](z, e))(DATA))


def test_tracked_adjoints_pull_back_through_averaged_maps():
    d = direction(Compositional(MAPS), POINT)
    value0, pull0 = jax.vjp(averaged(0), POINT.x)
    value1, pull1 = jax.vjp(averaged(1), POINT.z1)
    minus = lambda a, b: jax.tree.map(jnp.subtract, a, b)
    assert_same(d.z1, minus(POINT.z1, value0))
    assert_same(d.z2, minus(POINT.z2, value1))
    assert_same(d.w2, minus(POINT.w2, jax.grad(averaged(2))(POINT.z2)))
    assert_same(d.w1, minus(POINT.w1, pull1(POINT.w2)[0]))
    assert_same(d.x, pull0(POINT.w1)[0])


def test_local_adjoints_multiply_the_clients_own_jacobians():
    problem = Compositional(MAPS, adjoint="local")
    assert problem.names == ("x", "z1", "z2")
    d = direction(problem, Values({name: POINT[name] for name in problem.names}))
    _, pull0 = jax.vjp(averaged(0), POINT.x)
    _, pull1 = jax.vjp(averaged(1), POINT.z1)
    assert_same(d.x, pull0(pull1(jax.grad(averaged(2))(POINT.z2))[0])[0])


def test_one_map_is_single_level():
    problem = Compositional((lambda x, e: jnp.sum(x**2 * e["a"]),))
    z = Values(x=np.array([1.0, 2.0, 3.0]))
    single = rk.Single(problem.maps[0])
    assert problem.names == ("x",)
    assert_same(direction(problem, z), direction(single, z))


def test_minimax_joint_and_field():
    loss = lambda x, y, e: jnp.sum(jnp.outer(x, y) ** 2) * e["b"] + jnp.sum(y) * jnp.sum(e["a"])
    z = Values(x=np.array([1.0, 2.0]), y=np.array([0.5, -1.0, 2.0]))
    g_x, g_y = jax.grad(lambda x, y: mean(loss, x, y), (0, 1))(z.x, z.y)
    assert_same(direction(rk.Minimax(loss), z), Values(x=g_x, y=-g_y))
    assert_same(direction(rk.Joint(loss), z), Values(x=g_x, y=g_y))
    grads = lambda z, e: dict(zip("xy", jax.grad(loss, (0, 1))(z.x, z.y, e)))
    assert_same(direction(rk.Field(grads, ["x", "y"]), z), Values(x=g_x, y=g_y))
    assert rk.Joint(loss).local == ("y",) and rk.Field(grads, {"x": "shared", "y": "local"}).local == ("y",)


@pytest.mark.parametrize(
    ("problem", "z"),
    [
        (rk.Bilevel(upper=upper, lower=lower), Z),
        (rk.Bilevel(upper=upper, lower=lower, independent=True), Z),
        (Compositional(MAPS), POINT),
        (Compositional(MAPS, adjoint="local"), Values({name: POINT[name] for name in ("x", "z1", "z2")})),
        (rk.Single(lambda x, e: jnp.sum(x**4 * e["a"])), Values(x=np.array([1.0, 2.0, 3.0]))),
        (rk.Minimax(lambda x, y, e: jnp.sum(x * y * e["a"]) ** 2), Values(x=np.ones(3), y=np.arange(3.0))),
    ],
    ids=["bilevel", "bilevel-independent", "tracked", "local-adjoint", "single", "minimax"],
)
def test_stochastic_directions_are_unbiased_over_all_single_example_batches(problem, z):
    batches = list(itertools.product(range(4), repeat=len(problem.draws)))
    one = jax.jit(jax.vmap(lambda index: direction(problem, z, index)))
    every = jax.tree.map(lambda leaf: leaf.mean(axis=0), one(jnp.array(batches)))
    assert_same(every, direction(problem, z), 1e-10)


def test_sets_project_onto_themselves_and_nowhere_nearer():
    rng = np.random.default_rng(3)
    simplex, box, ball = rk.Simplex(), rk.Box(-0.5, 1.0), rk.Ball(2.0)
    for _ in range(20):
        a = rng.normal(size=5) * 3
        p = np.asarray(simplex.project(a))
        assert p.min() >= 0 and abs(p.sum() - 1) < 1e-12
        for _ in range(20):  # the variational inequality <a - p, q - p> <= 0 characterises the projection
            q = rng.dirichlet(np.ones(5))
            assert (a - p) @ (q - p) <= 1e-10
        assert_same(simplex.project(p), jnp.asarray(p), 1e-10)
        np.testing.assert_allclose(box.project(a), np.clip(a, -0.5, 1.0))
        tree = {"u": a[:2], "w": a[2:]}
        expected = a * min(1.0, 2.0 / np.linalg.norm(a))
        np.testing.assert_allclose(np.concatenate(list(ball.project(tree).values())), expected, rtol=1e-12)
    assert_same(ball.project({"u": jnp.zeros(2)}), {"u": jnp.zeros(2)})
    assert rk.Projection(jnp.abs).project(jnp.array(-2.0)) == 2.0


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: rk.Bilevel(upper, lower, lower_scope="globl"), "scope of y: 'globl' is not known"),
        (lambda: Compositional(()), "maps: none was given"),
        (lambda: Compositional(MAPS, adjoint="tracket"), "adjoint: 'tracket' is not known (did you mean 'tracked'?)"),
        (lambda: rk.Field(lambda z, e: {}, []), "sequences: none was given"),
        (lambda: rk.Minimax(upper, y_set="simplex").sequences, "set of y: 'simplex' was given"),
    ],
)
def test_bad_problems_are_refused_in_a_sentence(make, sentence):
    with pytest.raises(rk.InputError) as error:
        make()
    assert sentence in str(error.value)
