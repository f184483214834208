"""FedVRA: client-variance reduction by dual variables, with adaptive dual and aggregation step sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from rookery.algorithms.drift import AGGREGATION, EqualProgress, InverseProbability
from rookery.algorithms.local_steps import descend
from rookery.errors import InputError
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import amount, rates, steps
from rookery.federation.method import Plan, Rates, State, Steps, first_round, method, struct
from rookery.federation.rates import GivenRates, PerClient
from rookery.federation.scaled import Scaled
from rookery.problems.base import Problem
from rookery.vectors import Sequences


@struct
class FedVRAState(State):
    """The server's state with its dual u = lambda / sum_i omega_i gamma_i."""

    u: Sequences


class VarianceReduced:
    """What FedVRA and FedVRA-U share, whatever their other fields: the duals, and the server's side."""

    lr: GivenRates
    gamma: Any
    a: Any
    d: Any
    local_steps: Steps

    adds_up = True

    def check(self, problem: Problem, population: int) -> None:
        check_gamma(self.gamma)

    def advise(self, plan: Plan) -> list[str]:
        return check_convergence(plan, self.lr, self.gamma, self.a, self.d, self.local_steps)

    def init(self, problem: Problem, z: Sequences) -> FedVRAState:
        return FedVRAState(z, first_round(), u=z.zeros())

    def client(self, problem: Problem, z: Sequences) -> Sequences:
        return z.only(problem.shared).zeros()

    def exchange(self, state: FedVRAState, cohort: Cohort, phase: str) -> tuple[Sequences, Sequences]:
        """One exchange: the new x, before it is projected, and the new u."""
        beta = inverse_of_mean(self.gamma, cohort)
        (moved, by), work = cohort.update_mean(phase, state.z)
        u = state.u - beta * by["dual"]
        return state.z + beta * aggregated(self.d, moved, by, work, cohort) - u, u

    def answer(self, client: Client, moved: Sequences) -> tuple[Any, Sequences]:
        """What a client replies that has moved from x to x_i, and its new dual."""
        return upload(self, client, moved), client.state - client.at(self.a).one * moved


@method
class FedVRA(VarianceReduced):
    r"""Local steps on the augmented Lagrangian; client duals with step size a_i, aggregation with step size d_i.

    In every round client i of the cohort C sets x_i = x and takes Q_i steps

        x_i <- x_i - eta_i (g_i(x_i) - lambda_i + gamma_i (x_i - x))

    then, with beta = 1 / sum_i omega_i gamma_i over all clients,

        lambda_i <- lambda_i + a_i gamma_i (x - x_i)
        lambda   <- lambda + sum_{i in C} omega_i a_i gamma_i (x - x_i)
        x        <- x + beta sum_{i in C} omega_i d_i gamma_i (x_i - x) - beta lambda        with the new lambda

    so that lambda = sum_i omega_i lambda_i always. Kept as u_i = lambda_i / gamma_i and u = beta lambda, which have no
    singularity at gamma = 0. Client weights omega_i are the run's p_i.

    Args:
      lr: eta, the local step size; `rk.PerClient` for one each.
      gamma: the penalty: a number, or `rk.PerClient`.
      a: the dual step size: a number, a schedule, or `rk.PerClient`; 0 leaves the duals at 0.
      d: the aggregation step size: "inverse-probability" (1 / pi_i), "equal-progress" (FedNova's, see there), or as a.
      local_steps: Q_i, an int, `rk.FixedSteps`, `rk.RandomSteps`, `rk.StepsBy` or `rk.Epochs`.
      weight_decay: added times x to every gradient.

    Exchanges per round: 1. Floats per client: dim x down, dim x + 1 up: gamma_i (x_i - x), and a_i (and d_i where it is
    not the server's to know; with "equal-progress" also Q_i).
    Exactness: exact at any Q_i and under any sampling when a > 0, gamma > 0; as FedProx when a = 0. Needs
    (a + d) eta gamma Q~ <= 1 with Q~ = sum_{t < Q} (1 - gamma eta)^t; a warning says when it is not.
    Deviations from the paper: gamma (x_i - x) is uploaded without gamma where all clients have the same.

    Reference: Beyond ADMM: A Unified Client-variance-reduced Adaptive Federated Learning Framework, Algorithm 1.
    """

    lr: GivenRates = rates()
    gamma: Any = amount(default=0.1)
    a: Any = amount(default=1.0)
    d: Any = amount(default="inverse-probability", words=AGGREGATION, name="d")
    local_steps: Steps = steps(default=1)
    weight_decay: float = 0.0

    kinds = ("single", "joint")
    aggregation = "biased"  # absent clients count with the duals that they keep

    @property
    def local_bias(self) -> str:
        return "reweighted" if isinstance(self.a, (int, float)) and self.a == 0 else "none"

    def round(self, state: FedVRAState, cohort: Cohort) -> FedVRAState:
        z, u = self.exchange(state, cohort, "steps")
        return state.next(z=cohort.project(z), u=u)

    def steps(self, client: Client, z: Sequences) -> tuple[Any, Sequences]:
        u, gamma = client.state, client.at(self.gamma).one
        lagrangian = lambda g, x: g + self.weight_decay * x + gamma * (x - z - u)
        return self.answer(
            client, descend(client, z, client.at(self.lr), self.local_steps, correct=lagrangian, total=False).moved
        )


def check_gamma(gamma: Rates) -> None:
    """Refuses a penalty that changes over rounds, which the duals are measured in, and negative ones."""
    each = isinstance(gamma.one, PerClient)
    if callable(gamma.one):
        raise InputError(
            f"gamma: {gamma.one} was given; one number, or rk.PerClient, is needed, the same in all rounds"
        )
    values = np.asarray(gamma.one.table if each else gamma.one)
    if values.min() < 0 or (each and values.max() == 0):
        raise InputError(f"gamma: {values} was given; it must not be negative, nor 0 for each client")


def inverse_of_mean(gamma: Rates, cohort: Cohort) -> Any:
    """beta, where clients upload gamma_i (x_i - x); where all gamma are the same they upload x_i - x, and it is 1."""
    return 1 / cohort.expectation(gamma.one.table) if isinstance(gamma.one, PerClient) else 1


def times_gamma(gamma: Rates, client: Client, moved: Sequences) -> Sequences:
    """gamma_i (x_i - x); where all gamma are the same, x_i - x."""
    return client.at(gamma).one * moved if isinstance(gamma.one, PerClient) else moved


def upload(method: Any, client: Client, moved: Sequences) -> tuple[Scaled, Any]:
    """gamma_i (x_i - x) with the scalars that turn its unbiased mean into sum omega_i a_i and sum omega_i d_i of it."""
    moved = times_gamma(method.gamma, client, moved)
    by = {"dual": client.once_factor * client.at(method.a).one}
    if isinstance(method.d, InverseProbability):
        return Scaled(moved, by), ()
    if isinstance(method.d, EqualProgress):
        steps = client.steps(method.local_steps).astype(client.dtype)
        return Scaled(moved, by | {"primal": client.probability / steps}), client.probability * steps
    return Scaled(moved, by | {"primal": client.once_factor * client.at(method.d).one}), ()


def aggregated(d: Any, moved: Sequences, by: dict, work: Any, cohort: Cohort) -> Sequences:
    """sum_{i in C} omega_i d_i gamma_i (x_i - x)."""
    if isinstance(d, InverseProbability):
        return moved
    return by["primal"] * (work / cohort.weight**2) if isinstance(d, EqualProgress) else by["primal"]


def check_convergence(plan: Plan, lr: Rates, gamma: Rates, a: Rates, d: Any, work: Any) -> list[str]:
    """A sentence when (a + d) eta gamma Q~ > 1 for some client in the first round."""
    worst = 0.0
    for i in range(plan.population):
        g, eta, dual = (np.float64(rates.at(0, i)["x"]) for rates in (gamma, lr, a))
        own = isinstance(d, (InverseProbability, EqualProgress))  # FedNova's is about that, too
        aggregate = 1 / plan.probabilities[i] if own else np.float64(d.at(0, i).one)
        with np.errstate(over="ignore"):
            total = np.sum(np.abs(1 - g * eta) ** np.arange(plan.largest_steps(work, i)))
        worst = max(worst, (dual + aggregate) * eta * g * total)
    if worst <= 1:
        return []
    return [
        f"(a + d) eta gamma Q~ is {worst:.3g}, and at most 1 is known to converge; lower lr, gamma, a or local_steps"
    ]
