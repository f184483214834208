"""Every mutant of every method's file is caught; those that are the same program say so here, with the reason."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pytest

import references
import references_family  # noqa: F401  adds its settings
import references_nested
import rookery as rk
from mutation.mutants import loaded, mutants
from properties import checks
from properties.table import CASES, ONE_EACH, Case
from references import SETTINGS, label
from rookery.algorithms.registry import METHODS

PACKAGE = "rookery.algorithms"


def file_of(name: str) -> str:
    """The file that a method is written in."""
    return METHODS[name].method.__module__.rpartition(".")[2]


# Files that methods share, and the methods whose checks judge them.
HELPERS = {
    "local_steps": ("simfbo", "shrofbo", "fedavg"),
    "storm": ("fedbioacc", "fedbioacclocal"),
    "rounds": ("fednest", "lfednest", "aggitd"),
    "estimators": ("fedbiolocal", "fedbioacclocal"),
    "drift": ("fedbio", "shrofbo", "simfbo"),
    "one_loop": ("fedbio", "shrofbo", "simfbo"),
    "fedvra": ("fedvra", "fedvrau"),
}

# What a shared file promises by itself.
HELPER_CHECKS: dict[str, Callable[[Any], None]] = {
    "local_steps": lambda module: references.work_is_the_norm(module.descend, engine="eager"),
}

# File -> the methods that judge it.
JUDGES: dict[str, tuple[str, ...]] = {
    **{file_of(name): tuple(other for other in METHODS if file_of(other) == file_of(name)) for name in METHODS},
    **HELPERS,
}

# File -> mutants that no check can catch, and why.
_FACTOR = "LFedNest.descend.one_term.term | fresh = client.sample(jax.random.fold_in(key, t + 1), only='lower') | "
_NEXT = (
    "AggITD.aggregate.next_z | return jax.tree.map(lambda new, old, b: jnp.where(t == first, b, jnp.where(t > first, new, "
    "old)), started, z, product) | "
)
_FOLD = "AggITD.product | key = jax.random.fold_in(client.key, 1) | "
_OWN = (
    "FedVRAU.alternate | z_i = client.loop(self.client_steps, own_step, client.enter(z), "
    "jax.random.fold_in(client.key, 1)) | "
)
_VRL = "VRLSGD.round | return state.next(z=cohort.project(state.z + cohort.update_mean('steps', state.z))) | "
_PD = "FedPD.round | return state.next(z=cohort.project(state.z + cohort.update_mean('local_rounds', state.z, rounds))) | "
_CG = "ConjugateGradient.solve | solved = jnp.finfo(client.dtype).eps ** 2 * b.dot(b) | "
_NEXT_P = "ConjugateGradient.solve.iterate | return (v, r, r + jnp.where(rr > solved, new / rr, 0) * p, new) | "
_STEP = (
    "ConjugateGradient.solve.iterate | step = jnp.where(rr > solved, rr / jnp.where(curvature > 0, curvature, jnp.nan), "
    "0) | "
)
_TERM = "Neumann.adjoints.term | fresh = client.sample(jax.random.fold_in(key, k + 1), size, only='lower') | "
_HYPER = "TwoLoop.hypergradient | return client.upper_grad_x(x, y, s) - client.cross(x, y, p, s) | "
_SIGNS = "Sketch.draw | return cls(cells, jnp.where(turned == 1, -1, 1).astype(like.dtype)) | "
_RESIDUAL = "CommFedBiO.residual | return Sequences({'v': client.hvp(x, y, v, s) - client.upper_grad_y(x, y, s)}) | "
_UPPER_STEP = (
    "CommFedBiO.hypergradient | return Sequences({'x': client.upper_grad_x(x, y, s) - client.cross(x, y, v, s)}) | "
)
_SOLVED = "what is solved by then; test_local_and_msa.py looks at what follows"
SURVIVORS: dict[str, dict[str, str]] = {
    "estimators": {
        "ConjugateGradient | iterations: int = count(default=10) | 10 -> 11": "more iterations than y has entries change nothing",
        "ConjugateGradient | iterations: int = count(default=10) | 10 -> 9": "more iterations than y has entries change nothing",
        _CG + "2 -> 1": _SOLVED,
        _CG + "2 -> 3": _SOLVED,
        _CG + "jnp.finfo(client.dtype).eps ** 2 * b.dot(b) -> jnp.finfo(client.dtype).eps ** 2": _SOLVED,
        _CG + "jnp.finfo(client.dtype).eps ** 2 -> jnp.finfo(client.dtype).eps": _SOLVED,
        _NEXT_P + "0 -> -1": _SOLVED,
        _NEXT_P + "0 -> 1": _SOLVED,
        _STEP + "0 -> -1": "curvature is positive here; test_local_and_msa.py has one that is not",
        _STEP + "0 -> -1 [2]": _SOLVED,
        _STEP + "0 -> 1 [2]": _SOLVED,
        _TERM + "1 -> 0": "every factor still has a key of its own",
        _TERM + "1 -> 2": "every factor still has a key of its own",
        _TERM + "k + 1 -> k": "every factor still has a key of its own",
        _TERM + "k + 1 -> k - 1": "every factor still has a key of its own",
        "moves_of | if not fulfils(estimator, Estimator): | it -> left out": "it refuses; test_local_and_msa.py",
    },
    "drift": {
        "Duals | a: Any = amount(default=1.0) | 1.0 -> 0.0": "a default, which the references give themselves",
        "Duals | a: Any = amount(default=1.0) | 1.0 -> 2.0": "a default, which the references give themselves",
        "Duals | gamma: GivenRates = rates(default=Rates(1.0), positive=False) | 1.0 -> 0.0": "a default, which the references give themselves",
        "Duals | gamma: GivenRates = rates(default=Rates(1.0), positive=False) | 1.0 -> 2.0": "a default, which the references give themselves",
    },
    "aggitd": {
        _NEXT + "old -> new": "before Q z and the product are 0",
        _NEXT + "z -> y": "before Q it is not read",
        "AggITD.product | at = lambda: client.upper_grad_y(x, y, client.sample(key, only='upper')) | key -> client.key": (
            "no other upper examples are drawn in that exchange"
        ),
        _FOLD + "1 -> 0": "any number gives a key of its own",
        _FOLD + "1 -> 2": "any number gives a key of its own",
    },
    "commfedbio": {
        _SIGNS + "turned == 1 -> turned != 1": "v is the same with all signs turned around",
        _SIGNS + "1 -> 0": "v is the same with all signs turned around",
        "CommFedBiO | sketch: int = count(default=10, static=True) | 10 -> 11": (
            "of three entries no two share a cell in either, so both are exact"
        ),
        "CommFedBiO.biased | return self.form == 'sketched' | self.form == 'sketched' -> self.form != 'sketched'": (
            "it is what rk.check looks at; test_commfedbio.py"
        ),
        _RESIDUAL + "s -> client.sample(client.key)": "the same key is the same sample",
        _RESIDUAL + "s -> client.sample(client.key) [2]": "the same key is the same sample",
        "CommFedBiO.sketches | return (matrix, second.pack(ravel_pytree(client.upper_grad_y(x, y, s))[0], rows)) | "
        "s -> client.sample(client.key)": "the same key is the same sample",
        _UPPER_STEP + "s -> client.sample(client.key)": "the same key is the same sample",
        _UPPER_STEP + "s -> client.sample(client.key) [2]": "the same key is the same sample",
    },
    "fedvrau": {
        _OWN + "1 -> 0": "any number gives keys of their own",
        _OWN + "1 -> 2": "any number gives keys of their own",
        "FedVRAU.alternate.own_step | return client.project_local(z_i.replace(y=y)) | z_i -> z": "x has not moved yet",
        "FedVRAU.alternate.own_step | return z_i.replace(y=Vector(self.client_set.project(y.tree))) | z_i -> z": (
            "x has not moved yet"
        ),
    },
    "vrlsgd": {
        _VRL + "cohort.update_mean -> cohort.update_average": "all clients take part",
        _VRL + "cohort.update_mean -> cohort.update_sum": "all clients take part",
        "VRLSGD.steps | before = self.lr.at(jnp.maximum(client.round - 1, 0), client.index) | 0 -> -1": (
            "in the first round nothing has moved"
        ),
    },
    "fedpd": {
        _PD + "cohort.update_mean -> cohort.update_average": "all clients take part",
        _PD + "cohort.update_mean -> cohort.update_sum": "all clients take part",
        "geometric | draws = jnp.floor(jnp.log(u) / jnp.log(jnp.maximum(skip, 1e-30))) | 1e-30 -> -1.0": (
            "it is for skip = 0, whose draws are not taken"
        ),
        "geometric | return 1 + jnp.where(skip > 0, draws, 0).astype(jnp.int32) | 0 -> -1": (
            "at skip = 0 the draws are 0 as well"
        ),
    },
    "fedmsa": {
        "FedMSA.spider | steps = jnp.where(client.first, 1, self.local_steps) | 1 -> 0": (
            "a loop of -1 steps is one of none"
        ),
    },
    "fedbioacc_local": {
        "FedBiOAccLocal.iterations | first = lambda: self.hypergradient.fields(client, [z_i], client.key, **size)[0] | "
        "0 -> -1": "the list has one entry",
    },
    "local_steps": {
        "descend | z_i, q, norm = client.loop(work, step, (client.enter(z), nothing, norm), key) | key -> client.key": (
            "only FedPD gives a key; test_family.py looks at its samples"
        ),
    },
    "rounds": {
        _HYPER + "s -> client.sample(client.key)": "the same key is the same sample",
        _HYPER + "s -> client.sample(client.key) [2]": "the same key is the same sample",
    },
    "lfednest": {
        "LFedNest.descend.all_terms | return series.adjoints(client, [Sequences({'x': x_i, 'y': y})], s, key)[0] | 0 -> -1": (
            "there is one"
        ),
        _FACTOR + "t + 1 -> t": "every factor still has a key of its own",
        _FACTOR + "t + 1 -> t - 1": "every factor still has a key of its own",
        _FACTOR + "1 -> 2": "every factor still has a key of its own",
        _FACTOR + "1 -> 0": "the same as t",
    },
}

# Compiled programs take memory maps, of which a process has 65530: they are dropped after so many mutants.
AT_ONCE = 25

Check = Callable[[Any], None]


class Verdict(NamedTuple):
    """What caught a mutant, and what it said."""

    check: str
    said: str


def source_of(file: str) -> str:
    spec = find_spec(f"{PACKAGE}.{file}")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).read_text()


def checks_of(name: str) -> Iterator[tuple[str, Check]]:
    """What judges a method, the most telling and the cheapest first."""
    for setting in [setting for setting in SETTINGS if setting.method == name]:
        yield label(setting), lambda cls, setting=setting: references.agrees(setting, cls, engine="eager")
    for check in references.sampling_checks(name):
        yield f"{name}: samples", lambda cls, check=check: check(cls, engine="eager")
    yield from nested_checks_of(name)
    for case in [case for case in CASES if case.method == name]:
        if case.order is not None:
            yield f"{case.name}: exactness", lambda cls, case=case: checks.exactness(own(case, cls), case.beds[0], cls)
        yield f"{case.name}: counts", lambda cls, case=case: checks.published_counts(own(case, cls), case.beds[0], cls)
        yield (
            f"{case.name}: order",
            lambda cls, case=case: checks.order_does_not_matter(own(case, cls), case.beds[0], cls),
        )
    for case in [case for case in ONE_EACH if case.method == name]:
        yield f"{case.name}: engines", lambda cls, case=case: checks.engines_agree(own(case, cls), case.beds[0], cls)


def own(case: Case, cls: Any) -> Case:
    """The case with options for this class."""
    return dataclasses.replace(case, options=references.options_of(cls, case.options))


def nested_checks_of(name: str) -> list[tuple[str, Check]]:
    """Those of references_nested.py: first the setting that tells the most, then samples, which are the cheapest."""
    trajectories: list[tuple[str, Check]] = []
    for setting in [setting for setting in references_nested.SETTINGS if setting.method == name]:
        # The phases on this bed are few operations, which take less time than compiling them.
        engine = rk.Eager(jit=False) if setting.bed == "field" else "eager"
        check: Check = lambda cls, s=setting, engine=engine: references_nested.agrees(s, cls, engine=engine)
        trajectories.append((references_nested.label(setting), check))
    samples = [(f"{name}: samples", check) for check in references_nested.sampling_checks(name)]
    return [*trajectories[:1], *samples, *trajectories[1:]]


def judge(file: str, source: str) -> Verdict | None:
    """The check that catches this source in the file's place, and how; None when all let it pass."""
    fresh = {f"{PACKAGE}.{file}": source}
    fresh |= {f"{PACKAGE}.{other}": source_of(other) for other in map(file_of, JUDGES[file]) if other != file}
    try:
        with loaded(fresh) as modules:
            classes = {
                name: getattr(modules[f"{PACKAGE}.{file_of(name)}"], METHODS[name].method.__name__)
                for name in JUDGES[file]
            }
    except Exception as raised:
        return Verdict("import", repr(raised))
    # All methods' first checks come before anyone's second.
    columns = [[(what, cls, check) for what, check in checks_of(name)] for name, cls in classes.items()]
    every = [entry for row in itertools.zip_longest(*columns) for entry in row if entry is not None]
    if file in HELPER_CHECKS:
        every.append((f"{file}: its own", modules[f"{PACKAGE}.{file}"], HELPER_CHECKS[file]))
    for what, subject, check in every:
        try:
            check(subject)
        except Exception as raised:
            return Verdict(what, repr(raised))  # the exception itself would keep all that it has seen in memory
    return None


@pytest.mark.full
@pytest.mark.parametrize("file", JUDGES)
def test_every_file_has_mutants(file):
    found = mutants(source_of(file))
    assert len(found) >= 2  # what files share is in their helpers
    assert len({mutant.key for mutant in found}) == len(found)
    assert [mutant.key for mutant in mutants(source_of(file))] == [mutant.key for mutant in found]


@pytest.mark.full
@pytest.mark.parametrize("file", JUDGES)
def test_the_judge_lets_the_file_itself_pass(file):
    """Loaded as mutants are: so what catches a mutant is the mutation."""
    assert judge(file, ast.unparse(ast.parse(source_of(file)))) is None
    jax.clear_caches()


@pytest.mark.full
@pytest.mark.parametrize("file", JUDGES)
def test_every_mutant_is_caught(file, capsys):
    begun = time.perf_counter()
    verdicts = {}
    for number, mutant in enumerate(mutants(source_of(file))):
        verdicts[mutant] = judge(file, mutant.source)
        if verdicts[mutant] is None or number % AT_ONCE == 0:
            jax.clear_caches()
    survivors = {mutant.key for mutant, verdict in verdicts.items() if verdict is None}
    listed = set(SURVIVORS.get(file, {}))
    with capsys.disabled():
        print(summary(file, verdicts, time.perf_counter() - begun))
        for what, keys in (
            ("survives and is not listed", survivors - listed),
            ("is listed, caught", listed - survivors),
        ):
            print(*(f"  {what}: {key}" for key in sorted(keys)), sep="\n")
    assert survivors == listed


def summary(file: str, verdicts: Mapping[Any, Verdict | None], seconds: float) -> str:
    """How many mutants each check caught; those that do not run raise, diverge or are refused."""
    caught: dict[str, int] = {}
    for verdict in verdicts.values():
        what = "nothing" if verdict is None else verdict.check
        caught[what] = caught.get(what, 0) + 1
    crashed = sum(
        verdict is not None and not verdict.said.startswith("AssertionError") for verdict in verdicts.values()
    )
    shown = ", ".join(f"{count} by {what}" for what, count in sorted(caught.items(), key=lambda item: -item[1]))
    return f"\n{file}.py: {len(verdicts)} mutants in {seconds:.0f} s, {crashed} of them do not run; caught {shown}"
