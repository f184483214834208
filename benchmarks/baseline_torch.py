"""The per-client PyTorch loop of SimFBO, the yardstick for what the papers' public code does.

Python loops over the clients of a round and over their local steps; torch.autograd.grad with
create_graph=True gives the Hessian product and the cross term from one graph, as the gradient of
<grad_y g, v> with respect to (x, y). Same model, sizes, sampling and step sizes as baseline_jax.py.

This file stands alone: it does not use the library it measures.
"""

import argparse
import statistics
import time

import numpy as np

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = None

CLIENTS = 100  # how many clients there are
COHORT = 10  # how many of them a round draws
EXAMPLES = 300  # examples per client, in the lower set and again in the upper set
BATCH = 64  # examples per minibatch, one lower and one upper minibatch per local step
INPUTS, HIDDEN, CLASSES = 784, 200, 10
RIDGE = 0.01  # weight of 0.5 |y|^2 in the lower loss
ETA, GAMMA = 0.05, 0.05  # client and server step sizes


def available():
    """Whether torch can be imported."""
    return torch is not None


def make_data(seed=0, device="cpu"):
    """Flat tensors of all clients' examples: lower inputs and labels, upper inputs and labels."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, INPUTS))
    parts = []
    for _ in ("lower", "upper"):
        labels = rng.integers(0, CLASSES, CLIENTS * EXAMPLES)
        inputs = 0.1 * (centres[labels] + 3.0 * rng.normal(size=(CLIENTS * EXAMPLES, INPUTS)))
        parts += [torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels)]
    return [a.to(device) for a in parts]


def make_point(seed=1, device="cpu"):
    """A starting point z = [W1, b1, W2, b2, V, c]: x is the first two, y the next two, v = (V, c)."""
    rng = np.random.default_rng(seed)
    w1 = rng.normal(size=(INPUTS, HIDDEN)) / np.sqrt(INPUTS)
    w2 = rng.normal(size=(HIDDEN, CLASSES)) / np.sqrt(HIDDEN)
    parts = [w1, np.zeros(HIDDEN), w2, np.zeros(CLASSES), np.zeros((HIDDEN, CLASSES)), np.zeros(CLASSES)]
    return [torch.tensor(a, dtype=torch.float32, device=device) for a in parts]


def cross_entropy(x, y, inputs, labels):
    """Mean cross entropy of the network with hidden layer x and head y: the upper loss f."""
    hidden = F.relu(torch.addmm(x[1], inputs, x[0]))
    return F.cross_entropy(torch.addmm(y[1], hidden, y[0]), labels)


def lower_loss(x, y, inputs, labels):
    """Mean cross entropy plus a ridge on the head: the lower loss g."""
    return cross_entropy(x, y, inputs, labels) + 0.5 * RIDGE * sum((a * a).sum() for a in y)


def direction(z, lower, upper):
    """D at z on one lower and one upper minibatch, as a list like z; x and y must require gradients."""
    x, y, v = z[0:2], z[2:4], z[4:6]
    grad_y = torch.autograd.grad(lower_loss(x, y, *lower), y, create_graph=True)
    along_v = sum((a * b).sum() for a, b in zip(grad_y, v, strict=True))
    second = torch.autograd.grad(along_v, x + y)
    cross, hvp = second[:2], second[2:]
    first = torch.autograd.grad(cross_entropy(x, y, *upper), x + y)
    f_x, f_y = first[:2], first[2:]
    d_x = [a - b for a, b in zip(f_x, cross, strict=True)]
    d_v = [a - b for a, b in zip(hvp, f_y, strict=True)]
    return d_x + [a.detach() for a in grad_y] + d_v


def run(data, z, rounds, tau, eta, gamma, seed=0):
    """z after `rounds` rounds of SimFBO; z itself is left as it was."""
    lower_x, lower_y, upper_x, upper_y = data
    device = lower_x.device
    random = torch.Generator(device=device).manual_seed(seed)
    z = [a.clone() for a in z]
    for _ in range(rounds):
        total = [torch.zeros_like(a) for a in z]
        for i in torch.randperm(CLIENTS, generator=random, device=device)[:COHORT].tolist():
            z_i = [a.clone().requires_grad_(n < 4) for n, a in enumerate(z)]
            for _ in range(tau):
                a = i * EXAMPLES + torch.randint(EXAMPLES, (BATCH,), generator=random, device=device)
                b = i * EXAMPLES + torch.randint(EXAMPLES, (BATCH,), generator=random, device=device)
                d = direction(z_i, (lower_x[a], lower_y[a]), (upper_x[b], upper_y[b]))
                with torch.no_grad():
                    for p, q, step in zip(z_i, total, d, strict=True):
                        p.sub_(step, alpha=eta)
                        q.add_(step)
        for p, q in zip(z, total, strict=True):
            p.sub_(q, alpha=gamma / COHORT)
    return z


def measure(tau=1, rounds=5, repeats=5, device="cpu"):
    """Median milliseconds per round over `repeats` runs of `rounds` rounds, after a warm-up."""
    data, z = make_data(device=device), make_point(device=device)
    wait = torch.cuda.synchronize if str(device).startswith("cuda") else lambda: None
    run(data, z, 2, tau, ETA, GAMMA)
    times = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        end = run(data, z, rounds, tau, ETA, GAMMA)
        wait()
        times.append(1e3 * (time.perf_counter() - start) / rounds)
    if not all(bool(torch.isfinite(a).all()) for a in end):
        raise FloatingPointError("the run diverged, so its time means nothing")
    return statistics.median(times)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="SimFBO as a PyTorch loop, milliseconds per round")
    parser.add_argument("--tau", type=int, nargs="*", default=[1, 10])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if not available():
        raise SystemExit("torch is not installed")
    for tau in args.tau:
        ms = measure(tau, max(2, 10 // tau), args.repeats, args.device)
        print(f"torch {args.device} tau={tau:<3d} {ms:8.2f} ms per round", flush=True)
