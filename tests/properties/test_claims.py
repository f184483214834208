"""What the papers prove and has no slope: a bound, and an identity, in float64."""

from __future__ import annotations

import numpy as np
import pytest

import rookery as rk


@pytest.mark.parametrize("seed", range(3))
def test_local_adjoints_stay_within_the_bound_of_proposition_1(seed):
    """SimFBO, proposition 1: |v_i^(t, k)| <= (1 + a_max / a_min) r with r = L_f / mu_g at every local step k, from any v
    in the ball of radius r, with sampled Hessians and coefficients a_k. With one client and equal local and server
    rates, a round of k local steps ends at the client's k-th v."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(6, 3, 3))
    hessians = np.stack([root @ root.T for root in roots]) + 0.2 * np.eye(3)
    slopes = rng.normal(size=(6, 3))
    mu, most = min(np.linalg.eigvalsh(h)[0] for h in hessians), max(np.linalg.eigvalsh(h)[-1] for h in hessians)
    radius = np.linalg.norm(slopes, axis=1).max() / mu
    problem = rk.Bilevel(
        upper=lambda x, y, e: e["c"] @ y + 0.5 * x @ x, lower=lambda x, y, e: 0.5 * y @ e["H"] @ y - y[0] * x[0]
    )
    clients = rk.federate([{"H": hessians, "c": slopes}])
    start = rng.normal(size=3)
    start *= radius / np.linalg.norm(start)
    coefficients = rng.uniform(0.5, 2.0, 13)
    rates, seen = rk.Rates(x=0.01, y=0.05, v=0.5 / most), []
    for steps in (1, 2, 3, 5, 8, 13):
        method = rk.SimFBO(lr=rates, server_lr=rates, local_steps=steps, coefficients=coefficients[:steps])
        result = rk.run(
            problem, method, clients, x=np.ones(2), y=np.zeros(3), start={"v": start}, rounds=1, batch_size=1,
            precision="float64", seed=seed,
        )  # fmt: skip
        seen.append(np.linalg.norm(np.asarray(result.sequences["v"])))
    assert max(seen) <= (1 + coefficients.max() / coefficients.min()) * radius
    assert len({round(norm, 12) for norm in seen}) == len(seen)


def test_federated_admm_is_the_variance_reduced_scheme_of_lemma_1():
    """FedVRA's paper, lemma 1: (12), the multipliers are running means of normalised gradients, and (11), a local step
    is one along the corrected gradient, drawn to the weighted mean of the clients' points. Both follow from running the
    identities themselves as a method, which then is FedADMM."""
    rng = np.random.default_rng(1)
    curvature, target = rng.uniform(0.5, 2.0, 3), rng.normal(size=(3, 2))
    weights, eta, gamma, Q, rounds = np.array([0.5, 0.3, 0.2]), 0.1, np.array([0.4, 0.2, 0.7]), 3, 6
    g = lambda i, x: curvature[i] * (x - target[i])
    beta = 1 / (weights @ gamma)

    x_0, points, duals = np.zeros(2), np.zeros((3, 2)), np.zeros((3, 2))
    for _ in range(rounds):
        dual = weights @ duals
        centre = beta * (weights * gamma) @ points  # beta sum_j omega_j gamma_j x_j
        assert np.abs(x_0 - (centre - beta * dual)).max() <= 1e-14  # where a round begins
        ends, gradients = [], []
        for i in range(3):
            x, own = x_0, []
            for _ in range(Q):
                own.append(g(i, x))
                shrink = 1 - gamma[i] * eta  # (11), with the corrected gradient
                x = (
                    shrink * (x - eta / shrink * (own[-1] + gamma[i] * beta * dual - duals[i]))
                    + gamma[i] * eta * centre
                )
            ends.append(x)
            b = np.array([(1 - gamma[i] * eta) ** (Q - 1 - t) for t in range(Q)])
            gradients.append((b.sum(), b @ np.array(own) / b.sum()))
        steps = gamma * eta * np.array([total for total, _ in gradients])
        means = np.array([mean for _, mean in gradients])
        duals = steps[:, None] * means + (1 - steps)[:, None] * duals  # (12)
        points = np.array(ends)
        x_0 = beta * (weights * gamma) @ points - beta * weights @ duals

    problem = rk.Single(lambda x, e: 0.5 * e["a"] * (x - e["t"]) @ (x - e["t"]))
    clients = rk.federate([{"a": curvature[i : i + 1], "t": target[i : i + 1]} for i in range(3)], weights=weights)
    method = rk.FedADMM(lr=eta, gamma=rk.PerClient(gamma), local_steps=Q)
    found = rk.run(problem, method, clients, x=np.zeros(2), rounds=rounds, precision="float64")
    np.testing.assert_allclose(np.asarray(found.x), x_0, atol=1e-13)
