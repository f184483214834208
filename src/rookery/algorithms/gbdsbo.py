"""GBDSBO: gossip-based decentralised stochastic bilevel optimisation, which mixes whole Hessians and Jacobians."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from rookery.algorithms.gossip import Decentralised, share
from rookery.errors import InputError
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import count, number, rates
from rookery.federation.graphs import GivenMixing, mixing_field
from rookery.federation.method import State, method, struct
from rookery.federation.rates import GivenRates
from rookery.problems.base import Problem
from rookery.vectors import Sequences, Vector

MOST = 2**28  # numbers that a client's matrices may have


@struct
class MatrixClient:
    """A client's point, and its estimates of everybody's: both upper gradients, the Jacobian and b Hessians."""

    z: Sequences
    s: Any  # of grad_x f, flat
    h: Any  # of grad_y f, flat
    u: Any  # of d2 g/dx dy, a row for each number of x
    H: Any  # of d2 g/dy2, b of them


@method
class GBDSBO(Decentralised):
    r"""Decentralised bilevel optimisation by matrices: neighbours mix points, gradients, Jacobians and Hessians.

    With W the Metropolis weights of the graph, and every sampled quantity times n p_i, in every round client i

        q   = lambda sum_{k = 0 .. b} (I - lambda H_i^1) ... (I - lambda H_i^k)
        x_i <- sum_j W_ij x_j - alpha (s_i - u_i q h_i)
        y_i <- sum_j W_ij y_j - gamma grad_y g_i(x_i, y_i)
        s_i <- (1 - beta) sum_j W_ij s_j + beta grad_x f_i(x_i, y_i)              h_i likewise with grad_y f_i,
        u_i <- (1 - beta) sum_j W_ij u_j + beta (d2 g_i/dx dy)(x_i, y_i)          H_i^k likewise with d2 g_i/dy2,

    all at the point of before the round, each H_i^k with a sample of its own. All estimates begin at 0. The run's z, at
    which metrics are evaluated, is the plain mean of the clients' points; v stays where it is.

    Args:
      lr: alpha for x and gamma for y.
      mixing: `rk.Mixing(graph)` or a graph: `rk.Ring()`, `rk.Torus(rows)`, `rk.RandomGraph(p, seed)`,
        `rk.Complete()`.
      neumann_step: lambda, the paper's 1 / L.
      neumann_terms: b + 1, the length of the Neumann series.
      averaging: beta, how much of an estimate is new in a round.

    Exchanges per round: 1, between neighbours. Floats over every edge, each way: 2 dim x + 2 dim y + dim x dim y +
    b dim y^2. Oracle calls: b dim y Hessian products and dim y cross products a round and client.
    Exactness: biased where clients differ: the mean of products of estimates is no product of means; and by the
    truncation of the series. It shrinks with alpha, gamma and beta, and with more terms.
    Deviations from the paper: steps are weighed by n p_i; a matrix is made of its products with unit vectors.

    Reference: Yang, Zhang and Wang, Decentralized Gossip-Based Stochastic Bilevel Optimization over Communication
    Networks, 2022; the gossip method that Communication-Efficient Federated Hypergradient Computation via Aggregated
    Iterative Differentiation compares with in figure 7.
    """

    lr: GivenRates = rates()
    mixing: GivenMixing = mixing_field()
    neumann_step: float = number(default=0.1, scale=True)
    neumann_terms: int = count(default=5, static=True)
    averaging: float = 0.2

    kinds = ("bilevel",)
    scopes = ("shared",)
    uses = ("x", "y")
    biased = True

    def check(self, problem: Problem, population: int) -> None:
        super().check(problem, population)
        if not self.neumann_step > 0:
            raise InputError(f"neumann_step: {self.neumann_step} was given; a positive number is needed")
        if not 0 < self.averaging <= 1:
            raise InputError(f"averaging: {self.averaging} was given; 0 < beta <= 1 is needed")

    def client(self, problem: Problem, z: Sequences) -> MatrixClient:
        x, y = flat(z.x), flat(z.y)
        dx, dy, b = x.size, y.size, self.neumann_terms - 1
        if dx * dy + b * dy**2 > MOST:
            raise InputError(
                f"method: GBDSBO was given, which mixes a {dx} x {dy} matrix and {b} of {dy} x {dy}; at most {MOST} "
                "numbers a client are allowed, and Gossip and GossipTracking make no matrices"
            )
        zeros = lambda *shape: jnp.zeros(shape, x.dtype)
        return MatrixClient(z.only(("x", "y")), zeros(dx), zeros(dy), zeros(dx, dy), zeros(b, dy, dy))

    def round(self, state: State, cohort: Cohort) -> State:
        return state.next(z=state.z.merged(cohort.mix(self.mixing, "give", "take")))

    def give(self, client: Client) -> tuple[MatrixClient, MatrixClient]:
        return client.state, client.state

    def take(self, client: Client, mean: MatrixClient) -> tuple[Sequences, MatrixClient]:
        kept, eta = client.state, client.at(self.lr)
        x, y = kept.z.x, kept.z.y
        sample = client.sample(client.key)

        q = self.neumann_step * kept.h  # q h_i, the innermost factor first
        for k in reversed(range(self.neumann_terms - 1)):
            q = self.neumann_step * kept.h + q - self.neumann_step * kept.H[k] @ q
        direction = Sequences({"x": like(x, kept.s - kept.u @ q), "y": client.lower_grad(x, y, sample) * share(client)})

        def mixed(old: Any, new: Any) -> Any:
            return (1 - self.averaging) * old + self.averaging * share(client) * new

        jacobian = columns(client, y, lambda e: client.cross(x, y, e, sample), kept.u.shape)
        z = client.project_shared(mean.z - eta * direction)
        return z, MatrixClient(
            z=z,
            s=mixed(mean.s, flat(client.upper_grad_x(x, y, sample))),
            h=mixed(mean.h, flat(client.upper_grad_y(x, y, sample))),
            u=mixed(mean.u, jacobian),
            H=mixed(mean.H, self.hessians(client, x, y)),
        )

    def hessians(self, client: Client, x: Vector, y: Vector) -> jax.Array:
        """d2 g_i/dy2 on b samples."""

        def hessian(number: int) -> jax.Array:
            own = client.sample(jax.random.fold_in(client.key, number), only="lower")
            size = flat(y).size
            return columns(client, y, lambda e: client.hvp(x, y, e, own), (size, size))

        found = [hessian(number) for number in range(1, self.neumann_terms)]
        return jnp.stack(found) if found else client.state.H


def flat(vector: Vector) -> jax.Array:
    """All numbers of a vector in a row."""
    return ravel_pytree(vector)[0]


def like(vector: Vector, numbers: jax.Array) -> Vector:
    """A vector of these numbers, shaped like another."""
    return ravel_pytree(vector)[1](numbers)


def columns(client: Client, y: Vector, product: Callable[[Vector], Vector], shape: tuple[int, ...]) -> jax.Array:
    """A matrix from its products with unit vectors shaped like y, one by one."""
    unit = lambda k: like(y, jnp.zeros(shape[1], client.dtype).at[k].set(1))
    fill = lambda matrix, k, key: matrix.at[:, k].set(flat(product(unit(k))))
    return client.loop(shape[1], fill, jnp.zeros(shape, client.dtype))
