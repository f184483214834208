"""Per-client PyTorch loops of FedNest and AggITD, as the papers' public code runs them.

The network, the data and the sampling of `baseline_torch`, the settings of `baseline_nested_jax`.
This file stands alone: it does not use the library it measures.
"""

import torch

from benchmarks.baseline_nested_jax import ALPHA, BETA, LAM, LOWER_STEPS, UPPER_STEPS, N, T
from benchmarks.baseline_torch import BATCH, CLIENTS, COHORT, EXAMPLES, cross_entropy, lower_loss


def run(method, data, z, rounds, seed=0):
    """(x, y) after so many rounds."""
    lower_x, lower_y, upper_x, upper_y = data
    device = lower_x.device
    random = torch.Generator(device=device).manual_seed(seed)
    x, y = [a.clone().requires_grad_() for a in z[0:2]], [a.clone().requires_grad_() for a in z[2:4]]

    def draw(level, i):
        rows = i * EXAMPLES + torch.randint(EXAMPLES, (BATCH,), generator=random, device=device)
        return (lower_x[rows], lower_y[rows]) if level == "lower" else (upper_x[rows], upper_y[rows])

    def leaves(tensors):
        return [a.detach().requires_grad_() for a in tensors]

    def mean(cohort, phase):
        total = None
        for i in cohort:
            reply = [a.detach() for a in phase(i)]
            total = reply if total is None else [a + b for a, b in zip(total, reply, strict=True)]
        return [a / len(cohort) for a in total]

    def lower_grad(y_, batch):
        return torch.autograd.grad(lower_loss(x, y_, *batch), y_)

    def second(p, batch, of):
        grad = torch.autograd.grad(lower_loss(x, y, *batch), y, create_graph=True)
        return torch.autograd.grad(sum((a * b).sum() for a, b in zip(grad, p, strict=True)), of)

    def correct(q):
        def phase(i):
            y_i = leaves(y)
            for _ in range(LOWER_STEPS):
                b = draw("lower", i)
                new, old = lower_grad(y_i, b), lower_grad(y, b)
                y_i = leaves([p - BETA * (n - o + s) for p, n, o, s in zip(y_i, new, old, q, strict=True)])
            return [a - b for a, b in zip(y_i, y, strict=True)]

        return phase

    def right_hand_side(i):
        return torch.autograd.grad(cross_entropy(x, y, *draw("upper", i)), y)

    def hypergradient(p):
        def phase(i):
            f_x = torch.autograd.grad(cross_entropy(x, y, *draw("upper", i)), x)
            return [a - b for a, b in zip(f_x, second(p, draw("lower", i), x), strict=True)]

        return phase

    def upper(h):
        def phase(i):
            x_i = leaves(x)
            for _ in range(UPPER_STEPS):
                b = draw("upper", i)
                old = torch.autograd.grad(cross_entropy(x, y, *b), x)
                new = torch.autograd.grad(cross_entropy(x_i, y, *b), x_i)
                x_i = leaves([p - ALPHA * (s - o + n) for p, s, o, n in zip(x_i, h, old, new, strict=True)])
            return [a - b for a, b in zip(x_i, x, strict=True)]

        return phase

    def add(a, b):
        return leaves([p + q for p, q in zip(a, b, strict=True)])

    for _ in range(rounds):
        cohort = torch.randperm(CLIENTS, generator=random, device=device)[:COHORT].tolist()
        if method == "fednest":
            for _ in range(N):
                q = mean(cohort, lambda i: lower_grad(y, draw("lower", i)))
                y = add(y, mean(cohort, correct(q)))
            last = int(torch.randint(T, (), generator=random, device=device))
            p = [LAM * T * a for a in mean(cohort, right_hand_side)]
            for t in range(T):
                product = mean(cohort, lambda i, p=p: second(p, draw("lower", i), y))
                p = [a - (LAM if t < last else 0) * b for a, b in zip(p, product, strict=True)]
        else:
            first = int(torch.randint(N + 1, (), generator=random, device=device))
            z_ = [torch.zeros_like(a) for a in y]
            for t in range(N + 1):
                if t == first:
                    z_ = mean(cohort, right_hand_side)
                elif t > first:
                    product = mean(cohort, lambda i, z_=z_: second(z_, draw("lower", i), y))
                    z_ = [a - LAM * b for a, b in zip(z_, product, strict=True)]
                if t < N:
                    q = mean(cohort, lambda i: lower_grad(y, draw("lower", i)))
                    y = add(y, mean(cohort, correct(q)))
            p = [LAM * (N + 1) * a for a in z_]
        h = mean(cohort, hypergradient(p))
        x = add(x, mean(cohort, upper(h)))
    return x, y
