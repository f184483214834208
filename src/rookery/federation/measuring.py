"""Step sizes that are measured: how curved a problem is along each of its sequences. Imports contracts only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import InputError
from rookery.federation.client import Client, Sample
from rookery.federation.cohort import Cohort
from rookery.federation.method import State, first_round, method, static, struct
from rookery.federation.protocols import fulfils
from rookery.federation.rates import Rates
from rookery.federation.sampling import Sampling
from rookery.problems.base import Problem
from rookery.vectors import Sequences, Vector

POWER = 12  # steps of a power iteration
ANSWER = 20  # steps that the inner sequences are given to answer a change of the outer one
WAIT = 4  # steps, at most, that the outer sequence waits for what is late of it
BEYOND = 1.5  # times 1 / L of the most curved client, at most; at 2 its steps would not shrink any more
BINS, OCTAVE = 257, 4  # of curvatures, so many to an octave: from 2^-32 to 2^32


@dataclass(frozen=True)
class OwnTerms:
    """What the steps of a method have beside the direction field, in shared sequences.

    Args:
      curvature: what its terms add to the curvature along each sequence.
      factor: the largest number that a direction is multiplied by.
      normalised: whether the weights of the clients who are there sum to 1, so that none of them moves further than in
        a step of its own.
    """

    curvature: Rates = field(default_factory=lambda: Rates(0.0))
    factor: Any = 1.0
    normalised: bool = False


@runtime_checkable
class HasOwnTerms(Protocol):
    """A method, or drift control, whose steps are not along the direction field alone."""

    def own_terms(self) -> OwnTerms:
        """What they have besides; refuses what makes it unknown."""
        ...


def terms_of(part: Any) -> OwnTerms:
    """What the steps of a method or of drift control have beside the direction field."""
    return part.own_terms() if fulfils(part, HasOwnTerms) else OwnTerms()


@struct
class Found(State):
    """What the clients found: by sequence the mean of their curvatures, and how much of the cohort has which."""

    mean: dict[str, Any]
    bins: dict[str, Any]


@method
class Curvature:
    r"""Measures how fast the direction field of a problem changes along each sequence, in one exchange.

    Client i draws one sample, as a step would, and looks at its own field D_i there, at the point z it is sent. With
    J_st the derivative of D_s in the sequence t, L_s = ||J_ss|| comes of a power iteration on Jacobian-vector products.
    Then the inner sequences take steps of 1 / L_s, on this client alone, and L_s is the larger of before and after.

    An outer sequence x is answered by the inner ones r, and it is the direction with their answer that must not
    overshoot. A change u of x is held, and

        r <- r - (J_rx u + J_rr r) / L_r,        S_k u = J_xx u + J_xr r        k = 1, 2, ...

    tends to the derivative of the hypergradient. L_x is the largest ||S u||, or the largest entry of D_x if that is
    more, so that no step moves an entry by more than 1; times the steps that the answer takes to come,
    1 + sum_k (1 - S_k / S), WAIT at most, and 1 more than there are inner sequences to go through, at least. The answer
    of sequences that all share to one client's own x is p_i of its own.

    Args:
      outer: the sequence that waits for others, if there is one.
      inner: those that settle first.
      answer: the steps that they get.
      alike: sequences that take one step size, the smallest of theirs.
      differences: whether derivatives of directions are central differences, of which gradients alone are needed. Their
        length is eps^(1/4) times that of the point, and not eps^(1/3), since a penalty multiplies what is rounded.
      normalised: whether the method's means are; otherwise a client's step in shared sequences is p_i / pi_i times its
        own, and its curvature in the largest of the cohort is that many times, where it is more than 1.

    Exchanges: 1. Floats per client: dim z down, 258 for each sequence up.
    """

    outer: str = static(default="")
    inner: tuple[str, ...] = static(default=())
    answer: int = static(default=ANSWER)
    alike: tuple[str, ...] = static(default=())
    differences: bool = static(default=False)
    normalised: bool = static(default=False)

    def init(self, problem: Problem, z: Sequences) -> Found:
        none = jnp.zeros((), jax.tree.leaves(z)[0].dtype) if z.names else jnp.zeros(())
        every = lambda value: dict.fromkeys(problem.names, value)
        return Found(z, first_round(), mean=every(none), bins=every(jnp.zeros(BINS, none.dtype)))

    def round(self, state: Found, cohort: Cohort) -> Found:
        mean, bins = cohort.average("look", state.z)
        return state.next(mean=mean, bins=bins)

    def look(self, client: Client, z: Sequences) -> tuple[dict[str, Any], dict[str, Any]]:
        s, here = client.sample(client.key), client.enter(z)
        found = self.own(client, here, s)
        if self.inner:
            there = self.settled(client, here, s, found)
            again = self.own(client, there, s)
            found = {name: jnp.maximum(found[name], again[name]) for name in found}
            if self.outer:
                found[self.outer] = self.answered(client, there, s, found)
        factor = 1.0 if self.normalised else jnp.maximum(client.weight / client.probability, 1)
        moved = {name: L if name in client.own else L * factor for name, L in found.items()}
        return found, {name: _bin(curvature) for name, curvature in moved.items()}

    def own(self, client: Client, z: Sequences, s: Sample) -> dict[str, Any]:
        """L_s of every sequence."""

        def step(carry: dict, k: Any, key: Any) -> dict:
            return {name: power(name, u) for name, (u, _) in carry.items()}

        def power(name: str, u: Vector) -> tuple[Vector, Any]:
            part = lambda part: client.part(name, z.replace(**{name: part}), s)
            changed = self.derivative(part, partial(client.part_along, name, z, u, s), z[name], u)
            return _direction(changed), changed.norm()

        first = {name: (_drawn(client, z[name]), jnp.zeros((), client.dtype)) for name in z.names}
        return {name: size for name, (_, size) in client.loop(POWER, step, first, _key(client, 1)).items()}

    def derivative(self, direction: Callable[[Any], Any], exact: Callable[[], Any], at: Any, along: Any) -> Any:
        """The derivative of a direction at a point along a vector: the exact one, or by central differences."""
        if not self.differences:
            return exact()
        size = along.norm()
        step = jnp.finfo(size.dtype).eps ** (1 / 4) * jnp.maximum(at.norm(), 1) / _positive(size)
        return (direction(at + step * along) - direction(at - step * along)) / (2 * step)

    def settled(self, client: Client, z: Sequences, s: Sample, found: Mapping[str, Any]) -> Sequences:
        """z after the inner sequences' steps of 1 / L_s."""

        def step(z: Sequences, k: Any, key: Any) -> Sequences:
            d = client.direction(z, s)
            return client.project(z.map(lambda name, v: v - _over(d[name], found[name]) if name in self.inner else v))

        return client.loop(self.answer, step, z, _key(client, 2))

    def answered(self, client: Client, z: Sequences, s: Sample, found: Mapping[str, Any]) -> Any:
        """L_x of the outer sequence."""
        outer = self.outer
        alone = outer in client.own and not any(name in client.own for name in self.inner)
        part, zero = client.weight if alone else 1.0, jnp.zeros((), client.dtype)

        def changed(u: Vector, r: Sequences) -> Sequences:
            along = z.map(lambda name, v: u if name == outer else (r[name] if name in r else v.zeros()))
            return self.derivative(
                lambda z: client.direction(z, s), partial(client.direction_along, z, along, s), z, along
            )

        def power(carry: tuple, k: Any, key: jax.Array) -> tuple:
            u, before, _, _ = carry
            own = changed(u, zero_r)[outer]

            def step(carry: tuple, k: Any, key: Any) -> tuple:
                r, _, come = carry
                d = changed(u, r)
                now = own + part * (d[outer] - own)
                come = come + _direction(before).dot(now)
                return r.map(lambda name, v: v - _over(d[name], found[name])), now, come

            r, _, come = client.loop(self.answer, step, (zero_r, own, zero), key)
            after = own + part * (changed(u, r)[outer] - own)
            return _direction(after), after, after.norm(), come

        zero_r = z.only(self.inner).zeros()
        first = (_drawn(client, z[outer]), z[outer].zeros(), zero, zero)
        _, _, size, come = client.loop(POWER, power, first, _key(client, 3))
        late = jnp.clip(self.answer - come / _positive(size), 0, self.answer)
        entries = [jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(client.direction(z, s)[outer])]
        return jnp.maximum(size, jnp.max(jnp.stack(entries))) * jnp.maximum(
            jnp.minimum(1 + late, WAIT), min(self.answer, 1 + len(self.inner))
        )


def curvature_of(problem: Problem, normalised: bool = False) -> Curvature:
    """What measures the curvatures of a problem, by who waits for whom in it."""
    others = problem.names[1:]
    if problem.kind == "joint":
        return Curvature(inner=problem.local, normalised=normalised)
    if problem.kind == "single" or not others:
        return Curvature(normalised=normalised)
    if problem.kind == "minimax" and "y" in problem.sets:
        # An adversary that is held in a set cannot run away, and x need not wait for it; it waits for x, a step long.
        return Curvature("y", ("x",), 1, normalised=normalised)
    if problem.kind == "first-order bilevel":
        # It is the difference of y and w that moves as v does, and the losses may have gradients and nothing more.
        return Curvature(problem.names[0], others, alike=others, differences=True, normalised=normalised)
    return Curvature(problem.names[0], others, normalised=normalised)


def largest_factor(weights: Any, sampling: Sampling) -> float:
    """The largest p_i / pi_i of all clients that may be drawn, or 1."""
    weights = np.asarray(weights, float)
    expected = np.broadcast_to(np.asarray(sampling.expected(weights.size), float), weights.shape)
    drawn = expected > 0
    return float(np.max(weights[drawn] / expected[drawn], initial=1.0))


def step_sizes(
    found: Found, measuring: Curvature, names: Iterable[str], terms: OwnTerms = OwnTerms(), factor: float = 1.0
) -> dict[str, float]:
    """The step sizes of some sequences that curvatures allow: 1 / L of the mean client, and BEYOND / L of the most
    curved of the cohort if that is less, for its local steps; of an outer sequence, which clients do not move far
    alone, the first. The method's own terms are added to L. `factor` is the largest of p_i / pi_i: who has it may not
    have been there, and is taken for the mean client."""
    rates = {}
    for name in names:
        held = np.flatnonzero(np.asarray(found.bins[name]) > 0)
        largest = 2.0 ** (float(held.max(initial=0) - BINS // 2) / OCTAVE)
        mean, shared = float(found.mean[name]), name in found.z
        added, times = (abs(float(terms.curvature[name])), float(terms.factor)) if shared else (0.0, 1.0)
        most = mean * (factor if shared and not measuring.normalised else 1.0)
        if not (np.isfinite(mean) and mean + added > 0):
            raise InputError(
                f"lr.{name}: 'auto' was given, and the direction of {name} does not change along {name} where the run "
                "begins, so that there is nothing to measure; give a number"
            )
        largest = most if name == measuring.outer else max(most, largest)
        rates[name] = 1 / (times * max(mean + added, (largest + added) / BEYOND))
    together = [rates[name] for name in measuring.alike if name in rates]
    return {name: min(together) if name in measuring.alike else rate for name, rate in rates.items()}


def _bin(curvature: Any) -> jax.Array:
    """A curvature as one of BINS, the next that is not smaller."""
    place = jnp.ceil(OCTAVE * jnp.log2(jnp.maximum(curvature, jnp.finfo(curvature.dtype).tiny)))
    place = jnp.clip(place, -(BINS // 2), BINS // 2).astype(jnp.int32) + BINS // 2
    return jax.nn.one_hot(place, BINS, dtype=curvature.dtype)


def _key(client: Client, number: int) -> jax.Array:
    return jax.random.fold_in(client.key, number)


def _drawn(client: Client, like: Vector) -> Vector:
    """A random vector of length 1."""
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(_key(client, 0), len(leaves))
    drawn = [jax.random.normal(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves)]
    return _direction(jax.tree.unflatten(structure, drawn))


def _direction(v: Vector) -> Vector:
    """v at length 1; zero stays."""
    return v / _positive(v.norm())


def _over(v: Vector, curvature: Any) -> Vector:
    """v / L, and nothing where L is 0."""
    return v * jnp.where(curvature > 0, 1 / _positive(curvature), 0)


def _positive(number: Any) -> Any:
    return jnp.where(number > 0, number, 1)
