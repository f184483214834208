"""Federations on NVFlare and Flower, with processes on this machine and traffic on the loopback device alone."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from federations.conftest import SITES, alone, exact
from federations.test_processes import CASES, owned, same
from rookery.cli import main
from rookery.engines.messaging import OnFailure
from rookery.experiments import nvflare
from rookery.experiments.machines import Started, environment
from rookery.experiments.nvflare import JOB, running, write_job
from rookery.runs.result import Result

# What the frameworks warn of in their own threads would end these.
pytestmark = pytest.mark.filterwarnings("ignore")

SOURCES = dict.fromkeys(SITES)
SHORT = ("E1 simfbo", "E1a scaffold", "E1 aggitd")


def processes(text: str) -> list[int]:
    """The processes that have a text in their command line."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if text.encode() in (place / "cmdline").read_bytes() and int(place.name) != os.getpid():
                found.append(int(place.name))
    return found


def gone(text: str) -> bool:
    """Whether they end, in a while."""
    for _ in range(100):
        if not processes(text):
            return True
        time.sleep(0.2)
    return False


@pytest.fixture(scope="module")
def flare(tmp_path_factory):
    """FLARE's server and three clients, with certificates."""
    pytest.importorskip("nvflare", reason="nvflare is not installed")
    work = tmp_path_factory.mktemp("flare")
    with running(work, SOURCES) as submit:
        yield work, submit
    assert gone(str(work))


@pytest.mark.parametrize("name", [n if n in SHORT else pytest.param(n, marks=pytest.mark.full) for n in CASES])
def test_nvflare_gives_the_numbers_of_one_machine(name, flare, tmp_path):
    work, submit = flare
    experiment = exact(*CASES[name])
    write_job(experiment, tmp_path, SOURCES, OnFailure("wait"), f"run-{time.time_ns()}")
    found, expected = submit(tmp_path / JOB, tmp_path / "server"), alone(experiment)
    same(found, expected)
    (tmp_path / "sites").mkdir()
    for site in SITES:  # what is a site's own stayed in its kit
        (tmp_path / "sites" / site).symlink_to(work / f"workspace/rookery/prod_00/{site}/rookery/site/{site}")
    owned(tmp_path, expected)


@pytest.mark.full
def test_a_site_of_nvflare_that_is_killed_changes_no_number(flare, tmp_path):
    """The site's own process: FLARE's would take the job with it, and the job submitted again goes on."""
    work, submit = flare
    experiment = exact(*CASES["E1a scaffold"], rounds=60)
    write_job(experiment, tmp_path, SOURCES, OnFailure("wait"), run := f"killed-{time.time_ns()}")
    history = work / "workspace/rookery/prod_00/localhost/rookery/runs" / run / "history.csv"

    def kill() -> None:
        while not (history.is_file() and len(history.read_text().splitlines()) > 3):
            time.sleep(0.05)
        for number in processes(f"{work}/workspace/rookery/prod_00/site-2/rookery/site"):
            os.kill(number, signal.SIGKILL)
            killed.append(number)

    killed: list[int] = []
    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    found = submit(tmp_path / JOB, tmp_path / "server")
    thread.join(10)
    assert killed
    same(found, alone(experiment))


@pytest.mark.full
def test_who_has_no_certificate_of_this_federation_is_not_let_in(flare, tmp_path):
    """A kit of another authority, with a name that is known, at the same address."""
    work, _ = flare
    port = (work / "here.yml").read_text().split('"fed_learn_port": ')[1].split("\n")[0]
    around = environment(HOME=str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvflare, "free_ports", lambda number: [int(port)])
        nvflare.provision(tmp_path, {"stranger": None}, around)
    kit = tmp_path / "workspace/rookery/prod_00/stranger"
    log = tmp_path / "stranger.log"
    with Started(["bash", str(kit / "startup/sub_start.sh"), "--once"], log, around, kit):
        for _ in range(60):
            if "Certificate" in log.read_text() or "certificate" in log.read_text():
                break
            time.sleep(0.5)
        assert "ertificate" in log.read_text()
    nvflare.end_all(tmp_path / "workspace/rookery/prod_00")
    assert "stranger" not in (work / "localhost.log").read_text()


def federated(arguments: list[str], out: Path) -> Result:
    assert main(["federate", *arguments, "--out", str(out)]) == 0
    return Result.load(out / "server")


@pytest.mark.parametrize("secure", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", ["simfbo", *(pytest.param(n, marks=pytest.mark.full) for n in ("fedvra", "aggitd"))])
def test_flower_gives_the_numbers_of_one_machine(name, secure, tmp_path, monkeypatch):
    pytest.importorskip("flwr", reason="flwr is not installed")
    task = "classify" if name == "fedvra" else "hyperrep"
    options = ["--rounds", "2", "--clients", "4", "--precision", "float64", "--cohort", "0"]
    found = federated(
        [task, name, *options, "--sites", "2", "--transport", "flower", *(["--secure"] if secure else [])],
        tmp_path / "flower",
    )
    assert main(["run", task, name, *options, "--out", str(tmp_path / "alone")]) == 0
    same(found, Result.load(tmp_path / "alone"))
    assert gone(str(tmp_path / "flower"))


@pytest.mark.full
def test_a_supernode_that_is_not_registered_is_refused(tmp_path):
    pytest.importorskip("flwr", reason="flwr is not installed")
    from rookery.experiments.flower import QUIET, write_keys
    from rookery.experiments.machines import free_ports, patiently

    write_keys(tmp_path / "keys", ["site-1"])
    link, node = free_ports(2)
    keys = {name: str(tmp_path / "keys" / name) for name in ("ca.pem", "server.pem", "server.key", "site-1")}
    command = ["flower-superlink", "--ssl-ca-certfile", keys["ca.pem"], "--ssl-certfile", keys["server.pem"]]
    command += ["--ssl-keyfile", keys["server.key"], "--enable-supernode-auth", "--host", "127.0.0.1"]
    around = environment(**QUIET, FLWR_HOME=str(tmp_path / "home"))
    with Started([*command, "--port", str(link)], tmp_path / "link.log", around):
        patiently(lambda: socket.create_connection(("127.0.0.1", link), 5).close(), 60, "it does not answer")
        words = ["flower-supernode", "--root-certificates", keys["ca.pem"], "--superlink", f"127.0.0.1:{link}"]
        words += ["--auth-supernode-private-key", keys["site-1"], "--host", "127.0.0.1", "--port", str(node)]
        done = subprocess.run(words, env=around, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1 and "2004" in done.stdout + done.stderr
