"""Drift control: corrections of the clients' directions that make many local steps exact. Imports contracts only.

Local steps on clients that differ drift towards each client's own solution. A correction is a transform of the
direction field with a dual of every shared sequence, kept on the client, so it works on any problem; at the solution
the corrected directions of all clients vanish together, whatever the number of local steps and whoever takes part.

A method with `drift=` takes its clients' steps along `correct`, lets them `upload` and `keep`, and gives the aggregate
to `step`.
"""

from __future__ import annotations

from typing import Any

from rookery.algorithms.local_steps import Correct, Descent
from rookery.errors import InputError
from rookery.federation.client import Client
from rookery.federation.codec import part
from rookery.federation.cohort import Cohort
from rookery.federation.fields import amount, rates, wrapped
from rookery.federation.measuring import OwnTerms
from rookery.federation.method import struct
from rookery.federation.protocols import Drift, fulfils
from rookery.federation.rates import GivenRates, PerClient, Rates
from rookery.federation.scaled import Scaled
from rookery.vectors import Sequences


@part
@struct
class InverseProbability:
    """d_i = 1 / pi_i."""


@part
@struct
class EqualProgress:
    """FedNova's d_i = Q_eff / (Q_i sum_C p), with Q_eff the cohort's mean number of steps."""


AGGREGATION = {"inverse-probability": InverseProbability(), "equal-progress": EqualProgress()}  # words for d


@part
@struct
class NoControl:
    """Directions as they are."""

    def server(self, z: Sequences) -> tuple:
        return ()

    def client(self, z: Sequences) -> tuple:
        return ()

    def told(self, duals: tuple) -> tuple:
        return ()

    def correct(self, client: Client, z: Sequences, told: tuple) -> Correct | None:
        return None

    def upload(self, client: Client, work: Descent, unit: Any) -> Scaled:
        return Scaled(work.q / unit, {})

    def keep(self, client: Client, work: Descent, told: tuple) -> tuple:
        return ()

    def step(
        self, q: Sequences, scaled: dict, duals: tuple, cohort: Cohort, lr: Rates, round: Any
    ) -> tuple[Sequences, tuple]:
        return q, ()


@part
@struct
class ControlVariates:
    r"""SCAFFOLD's control variates for every shared sequence: directions D_i - c_i + c.

    Client i keeps c_i, the server c; both begin at 0. After its steps, with q_i = sum_k a_k (D_i(z_i^k) - c_i + c),

        c_i <- c_i - c + q_i / ||a_i||_1          the mean of its own directions in this round
        c   <- c + sum_{i in C} p_i (c_i^+ - c_i)   so that c = sum_i p_i c_i always

    Floats per exchange: dim z more down, one more up (the server forms q_i / ||a_i||_1 itself).

    Reference: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, 2020, option II.
    """

    def server(self, z: Sequences) -> Sequences:
        return z.zeros()

    def client(self, z: Sequences) -> Sequences:
        return z.zeros()

    def told(self, duals: Sequences) -> Sequences:
        return duals

    def correct(self, client: Client, z: Sequences, told: Sequences) -> Correct:
        shift = told - client.state
        return lambda d, z_i: d + shift

    def upload(self, client: Client, work: Descent, unit: Any) -> Scaled:
        """q_i / unit, and the scalar that makes the unbiased mean a sum of q_i / ||a_i||_1."""
        return Scaled(work.q / unit, {"control": client.once_factor * unit / work.norm})

    def keep(self, client: Client, work: Descent, told: Sequences) -> Sequences:
        return client.state - told + work.q / work.norm

    def step(
        self, q: Sequences, scaled: dict, duals: Sequences, cohort: Cohort, lr: Rates, round: Any
    ) -> tuple[Sequences, Sequences]:
        return q, duals + scaled["control"] - cohort.share * duals


@part
@struct
class Duals:
    r"""FedVRA's dual variables for every shared sequence: directions D_i - gamma u_i + gamma (z_i - z).

    Client i keeps u_i = lambda_i / gamma, the server u; both begin at 0. With z_i the client's last point,

        u_i <- u_i + a (z - z_i)
        u   <- u + sum_{i in C} p_i a (z - z_i)                     so that u = sum_i p_i u_i always
        z   <- z + sum_{i in C} p_i d_i (z_i - z) - u

    (times gamma_server / eta where the method has a server step size). Floats per exchange: one more up, the scalar a,
    and one more where d is given.

    Args:
      gamma: the penalty, per sequence: numbers, the same for all clients and rounds, in which u is measured.
      a: the dual step size: a number, a schedule, or `rk.PerClient`.
      d: the aggregation step size: "inverse-probability" (1 / pi_i; in ShroFBO with its normalisation), or as a.

    On a field that is not a gradient the duals can be unstable where a gradient's would not be: see `rk.fixed_point`.

    Reference: Beyond ADMM: A Unified Client-variance-reduced Adaptive Federated Learning Framework, Algorithm 1.
    """

    gamma: GivenRates = rates(default=Rates(1.0), positive=False)
    a: Any = amount(default=1.0)
    d: Any = amount(default="inverse-probability", words={"inverse-probability": InverseProbability()}, name="d")

    def __post_init__(self):
        wrapped(self)

    def server(self, z: Sequences) -> Sequences:
        return z.zeros()

    def client(self, z: Sequences) -> Sequences:
        return z.zeros()

    def own_terms(self) -> OwnTerms:
        return OwnTerms(self.gamma)

    def told(self, duals: Sequences) -> tuple:
        return ()

    def correct(self, client: Client, z: Sequences, told: tuple) -> Correct:
        u, gamma = client.state, client.at(self.gamma)
        return lambda d, z_i: d + gamma * (z_i - z - u)

    def upload(self, client: Client, work: Descent, unit: Any) -> Scaled:
        by = {"dual": client.once_factor * unit * client.at(self.a).one}
        if not isinstance(self.d, InverseProbability):
            by["primal"] = client.once_factor * unit * client.at(self.d).one
        return Scaled(work.q / unit, by)

    def keep(self, client: Client, work: Descent, told: tuple) -> Sequences:
        return client.state - client.at(self.a).one * work.moved

    def step(
        self, q: Sequences, scaled: dict, duals: Sequences, cohort: Cohort, lr: Rates, round: Any
    ) -> tuple[Sequences, Sequences]:
        eta = lr.at(round)
        u = duals + eta * scaled["dual"]
        return scaled.get("primal", q) + eta.inverse() * u, u


def wrap_drift(drift: Any) -> Any:
    """None means no control."""
    return NoControl() if drift is None else drift


def check_drift(drift: Any, lr: Rates, server_lr: Rates | None = None) -> None:
    """Refuses what is no drift control, penalties that vary, and step sizes of clients that the server would need."""
    if not fulfils(drift, Drift):
        raise InputError(f"drift: {drift!r} was given; None, rk.ControlVariates() or rk.Duals(gamma, a, d) is needed")
    if isinstance(drift, Duals):
        for name, gamma in drift.gamma.entries().items():
            if callable(gamma) or isinstance(gamma, PerClient) or not gamma >= 0:
                raise InputError(
                    f"drift.gamma.{name}: {gamma} was given; a number that is not negative, the same for all clients "
                    "and rounds, is needed"
                )
    if lr.varies and (server_lr is None or isinstance(drift, Duals)):
        raise InputError(
            "lr: rk.PerClient was given, and the server steps with lr, too; give server_lr to SimFBO or ShroFBO, "
            "without rk.Duals"
        )
