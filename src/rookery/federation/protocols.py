"""What may come from outside: the contracts of a method and of its parts, each once. Imports vectors and problems.

Whatever has these members fits; nothing need be inherited. `rk.check` holds a method to what its members must do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from rookery.problems.base import Problem
from rookery.vectors import Sequences


@runtime_checkable
class Method(Protocol):
    """A server program and the client phases it names, as `@rk.method` makes it; see `federation/method.py`."""

    scopes: tuple[str, ...]
    kinds: tuple[str, ...] | None
    participation: str
    biased: bool
    stable: tuple[str, ...] | None
    aggregation: str

    def init(self, problem: Problem, z: Sequences) -> Any:
        """The server's state before the first round."""
        ...

    def client(self, problem: Problem, z: Sequences) -> Any:
        """The state of one client before the first round."""
        ...

    def check(self, problem: Problem, population: int) -> None:
        """Refuses what does not fit the problem."""
        ...

    def round(self, state: Any, cohort: Any) -> Any:
        """One round: the state after it."""
        ...


@runtime_checkable
class Drift(Protocol):
    """Drift control: a correction of the clients' directions, with duals on the server and on every client. What it
    adds to their curvature it says in `own_terms`, as a method does (`federation/measuring.py`)."""

    def server(self, z: Sequences) -> Any:
        """The server's duals before the first round."""
        ...

    def client(self, z: Sequences) -> Any:
        """A client's dual before the first round."""
        ...

    def told(self, duals: Any) -> Any:
        """What the server sends of its duals."""
        ...

    def correct(self, client: Any, z: Sequences, told: Any) -> Any:
        """A function of a direction and the point it was taken at, both shared; None: nothing is corrected."""
        ...

    def upload(self, client: Any, work: Any, unit: Any) -> Any:
        """What a client sends: `rk.Scaled` of its summed directions over a unit."""
        ...

    def keep(self, client: Any, work: Any, told: Any) -> Any:
        """The client's new dual."""
        ...

    def step(self, q: Sequences, scaled: dict, duals: Any, cohort: Any, lr: Any, round: Any) -> tuple[Sequences, Any]:
        """The direction that the server steps along, and its new duals."""
        ...


@runtime_checkable
class Estimator(Protocol):
    """How a client with its own lower problem finds its adjoint."""

    @property
    def moves(self) -> tuple[str, ...]:
        """The sequences that its field moves."""
        ...

    def check(self) -> None:
        """Refuses what it cannot be set to."""
        ...

    def fields(self, client: Any, points: Sequence[Sequences], key: Any, size: int | None = None) -> list[Sequences]:
        """The client's field at some points, on the same samples at all of them; `size`: of minibatches, if not the
        run's."""
        ...


@runtime_checkable
class ServerStep(Protocol):
    """How the server moves along an aggregated direction."""

    def init(self, z: Sequences) -> Any:
        """What it keeps before the first round."""
        ...

    def step(self, z: Sequences, d: Sequences, gamma: Any, kept: Any) -> tuple[Sequences, Any]:
        """The next point, and what it keeps."""
        ...


def fulfils(value: Any, contract: type[Any]) -> bool:
    """Whether an object has what a contract asks for; a class has not, though it has the names."""
    return not isinstance(value, type) and isinstance(value, contract)
