"""`rk.check`: every method of the library passes, and methods that are broken in one place do not."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.algorithms.registry import METHODS
from rookery.cli import main

QUICK = ["fedvrau"]  # one level; the others have many problems, or long programs, and are for the full tests


@pytest.mark.parametrize("name", QUICK)
def test_methods_of_the_library_hold(name):
    findings = rk.check(METHODS[name].method)
    assert findings, str(findings)
    assert "everything holds" in str(findings) and len(findings.rows) >= 10


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in METHODS if name not in QUICK])
def test_all_methods_of_the_library_hold(name):
    findings = rk.check(METHODS[name].method)
    assert findings, str(findings)


class Base:
    """A method for one level: what the broken ones below have in common."""

    kinds = ("single",)
    lr: rk.Rates

    def round(self, state, cohort):
        return state.next(z=state.z + cohort.mean("steps", state.z))

    def steps(self, client, z):
        return rk.descend(client, z, client.at(self.lr), 1).moved


@rk.method
class WrongSolution(Base):
    """Its clients decay their weights, so it rests elsewhere."""

    lr: rk.Rates

    def steps(self, client, z):
        return rk.descend(client, z, client.at(self.lr), 1, correct=lambda d, x: d + 0.5 * x).moved


@rk.method
class Forgetful(Base):
    """It counts the clients in Python, where the compiled program counts once."""

    lr: rk.Rates
    seen = []  # noqa: RUF012

    def steps(self, client, z):
        self.seen.append(None)
        return rk.descend(client, z, client.at(self.lr), 1).moved * (1 + 1e-3 * len(self.seen))


@rk.method
class ByPlace(Base):
    """It gives the first client a weight of its own."""

    lr: rk.Rates

    def steps(self, client, z):
        return rk.descend(client, z, client.at(self.lr), 1).moved * jnp.where(client.index == 0, 2.0, 1.0)


@rk.method
class Structural(Base):
    """Its step size is structure: every other number is another program."""

    lr: rk.Rates = rk.static(default=rk.Rates(0.1))

    def steps(self, client, z):
        return rk.descend(client, z, self.lr, 1).moved


@rk.method
class Nothing(Base):
    """Its round gives nothing back."""

    lr: rk.Rates

    def round(self, state, cohort):
        cohort.mean("steps", state.z)


BROKEN = {
    WrongSolution: ("fixed point", "it rests off the solution by"),
    Forgetful: ("engines agree", "it is another run"),
    ByPlace: ("order of clients", "clients in another order give another run"),
    Structural: ("compiles once", "other step sizes and another seed compile"),
    Nothing: ("runs", "Nothing: its round gives NoneType"),
}


@pytest.mark.parametrize("cls", BROKEN, ids=lambda cls: cls.__name__)
def test_a_broken_method_is_found(cls):
    what, sentence = BROKEN[cls]
    findings = rk.check(cls)
    assert not findings and what in {row.what for row in findings.failed}, str(findings)
    assert sentence in next(row.seen for row in findings.failed if row.what == what)
    assert "do not hold" in str(findings)


def test_the_command_checks_a_file(tmp_path, capsys):
    text = "import rookery as rk\n\n\n@rk.method\nclass Mine:\n    lr: rk.Rates\n    kinds = ('single',)\n\n"
    text += (
        "    def round(self, state, cohort):\n        return state.next(z=state.z + cohort.mean('steps', state.z))\n\n"
    )
    text += "    def steps(self, client, z):\n        return rk.descend(client, z, client.at(self.lr), 1).moved\n"
    (tmp_path / "mine.py").write_text(text)
    assert main(["check", f"{tmp_path / 'mine.py'}:Mine"]) == 0
    assert "Mine: everything holds" in capsys.readouterr().out
    (tmp_path / "mine.py").write_text(text.replace("return state.next(z", "state.next(z"))
    assert main(["check", f"{tmp_path / 'mine.py'}:Mine"]) == 1
    assert main(["check"]) == 2


def test_what_is_no_method_is_refused():
    with pytest.raises(rk.InputError, match="method: ndarray was given, which is no method"):
        rk.check(np.zeros(3))
