"""What every method must do: each check takes a case and fails by AssertionError. Mutation tests call them too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np

import rookery as rk
from properties.table import Case, bed, reweighted

RATES = 0.1


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def run(exact: Any, method: Any, rounds: int = 20, **options: Any) -> rk.Result:
    """A run of an exact problem from a point that is not its solution, in float64."""
    start = jax.tree.map(lambda leaf: leaf + 0.3, exact.start(leaves=2))
    return rk.run(exact.problem, method, exact.clients, rounds=rounds, **({"precision": "float64"} | options), **start)


def difference(a: rk.Result, b: rk.Result) -> float:
    """The largest difference over all sequences."""
    return max(np.abs(flat(a.sequences[name]) - flat(b.sequences[name])).max() for name in a.sequences)


def error(case: Case, exact: Any, truth: np.ndarray, scale: float, cls: type | None) -> float:
    method = case.make(rk.Rates(RATES * scale), cls)
    point = rk.fixed_point(exact.problem, method, exact.clients, **exact.start(leaves=2))
    return float(np.abs(point.flat("x") - truth).max())


def exactness(case: Case, name: str, cls: type | None = None) -> None:
    """The fixed point of the round itself against the closed form."""
    exact = bed(name)
    steps = case.options.get("local_steps", 1)
    judge = reweighted(exact, steps.steps) if case.solves == "reweighted" else exact
    truth = judge.solution()
    if case.order == 0:
        assert error(case, exact, truth, 1.0, cls) <= 1e-10
        return
    assert case.order is not None, "judged by tests of its own"
    coarse, fine = (error(case, exact, truth, scale, cls) for scale in (2**-5, 2**-6))
    assert coarse > 1e-9, "an error of order eta is expected, and there is none"
    assert abs(coarse / fine / 2**case.order - 1) <= 0.05, (coarse, fine)
    if case.solves == "reweighted":
        assert np.abs(exact.solution() - truth).max() > 100 * fine, "the reweighted problem must differ"


def engines_agree(case: Case, name: str, cls: type | None = None) -> None:
    """Compiled = client by client, with sampling, minibatches, random steps and client state; the ledgers too."""
    steps = {case.random_steps: rk.RandomSteps(1, 3)} if case.random_steps else {}
    method = case.make(rk.Rates(0.02), cls, **steps)
    options = case.noisy | {"seed": 5}
    compiled = run(bed(name), method, **options)
    eager = run(bed(name), method, engine="eager", **options)
    assert difference(compiled, eager) <= 1e-12
    assert compiled.ledger == eager.ledger
    side_by_side = run(bed(name), method, engine=rk.Local(at_once=2), **options)
    assert difference(compiled, side_by_side) <= 1e-12
    assert compiled.ledger == side_by_side.ledger


def published_counts(case: Case, name: str, cls: type | None = None) -> None:
    """Exchanges and floats per round, counted by the ledger."""
    rounds, cohort = 3, case.cohort
    result = run(bed(name), case.make(rk.Rates(0.02), cls), rounds=rounds, **case.noisy)
    sizes = {name: flat(tree).size for name, tree in result.sequences.items()}
    d = SimpleNamespace(**sizes, z=sum(sizes.values()))
    assert result.ledger.exchanges == rounds * case.exchanges
    assert result.ledger.floats_up == rounds * cohort * case.up(d)
    assert result.ledger.floats_down == rounds * cohort * case.down(d)
    assert result.ledger.bytes_up == 8 * result.ledger.floats_up
    assert result.ledger.bytes_down <= 8 * result.ledger.floats_down  # indices are of 4 bytes


def order_does_not_matter(case: Case, name: str, cls: type | None = None) -> None:
    """Clients in another order give the same trajectory, with full batches."""
    exact, order = bed(name), [2, 0, 1]
    steps = case.options.get("local_steps", 1)
    unequal = isinstance(steps, rk.FixedSteps)
    turned = {"local_steps": rk.FixedSteps([steps.steps[i] for i in order])} if unequal else {}
    method = case.make(rk.Rates(0.05), cls)
    first = run(exact, method)
    start = jax.tree.map(lambda leaf: leaf + 0.3, exact.start(leaves=2))
    other = rk.run(
        exact.problem,
        case.make(rk.Rates(0.05), cls, **turned),
        exact.clients.subset(order),
        rounds=20,
        precision="float64",
        **start,
    )
    for sequence in exact.problem.shared:
        assert np.abs(flat(first.sequences[sequence]) - flat(other.sequences[sequence])).max() <= 1e-12
    for place, i in enumerate(order):  # local sequences go with their clients
        if exact.problem.local:
            assert np.abs(flat(first.local[i]) - flat(other.local[place])).max() <= 1e-12


def dtype_kept(case: Case, name: str, cls: type | None = None) -> None:
    """Everything stays in the run's precision."""
    for precision in ("float32", "float64"):
        result = run(bed(name), case.make(rk.Rates(0.02), cls), rounds=2, precision=precision, **case.noisy)
        leaves = [leaf for leaf in result.state.leaves if leaf.dtype.kind == "f"]
        assert {leaf.dtype for leaf in leaves} == {np.dtype(precision)}
    assert not cast(Any, jax.config).jax_enable_x64


def seeds_vectorise(case: Case, name: str, cls: type | None = None) -> None:
    """A sweep over seeds and step sizes gives each run's own numbers."""
    exact = bed(name)
    start = jax.tree.map(lambda leaf: leaf + 0.3, exact.start(leaves=2))
    options = case.noisy | {"rounds": 5, "precision": "float64"}
    grid = {"lr.default": [0.01, 0.05], "seed": [3, 4]}
    table = rk.sweep(exact.problem, case.make(rk.Rates(0.02), cls), exact.clients, over=grid, **options, **start)
    assert len({tuple(flat(result.x)) for result in table.results}) == 4
    for row, result in zip(table.rows, table.results):
        own = rk.run(
            exact.problem,
            case.make(rk.Rates(row["lr.default"]), cls),
            exact.clients,
            seed=row["seed"],
            **options,
            **start,
        )
        assert difference(own, result) <= 1e-12
        assert own.ledger == result.ledger
