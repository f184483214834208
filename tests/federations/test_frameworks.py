"""Federations on NVFlare and Flower, with processes on this machine and traffic on the loopback device alone."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
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
def test_a_site_of_nvflare_whose_machine_dies_is_dropped(tmp_path_factory, tmp_path):
    """All processes of a site: with fewer clients than the job's min_clients FLARE would end the job after a minute."""
    pytest.importorskip("nvflare", reason="nvflare is not installed")
    work = tmp_path_factory.mktemp("dropped")
    experiment = exact(*CASES["E1a scaffold"], rounds=10, every=1)
    write_job(experiment, tmp_path, SOURCES, OnFailure("drop", deadline=15.0, minimum=2), "dropped")
    history = work / "workspace/rookery/prod_00/localhost/rookery/runs/dropped/history.csv"
    killed: list[int] = []

    def kill() -> None:
        while not (history.is_file() and len(history.read_text().splitlines()) > 3):
            time.sleep(0.05)
        for number in processes(f"{work}/workspace/rookery/prod_00/site-2"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
                killed.append(number)

    thread = threading.Thread(target=kill, daemon=True)
    with running(work, SOURCES) as submit:
        thread.start()
        found = submit(tmp_path / JOB, tmp_path / "server")
        thread.join(10)
    assert len(killed) > 1 and found.status == "done" and found.state.round == 10
    assert {row["client"] for row in found.missing.rows} == {"1"}


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


def listening(group: int) -> set[tuple[str, int]]:
    """The addresses and ports on which the processes of a group listen."""
    sockets = set()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(place.name)) == group:
                sockets |= {os.readlink(fd) for fd in (place / "fd").iterdir()}
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                address, port = fields[1].split(":")
                words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
                found.add((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return found


@contextlib.contextmanager
def superlink_of(folder: Path, secure: bool = True, **more: str):
    """A SuperLink with certificates, its port and what is around it."""
    pytest.importorskip("flwr", reason="flwr is not installed")
    from rookery.experiments.flower import QUIET, superlink, write_keys
    from rookery.experiments.machines import free_ports, patiently

    keys = folder / "keys"
    write_keys(keys, ["site-1"])
    (port,) = free_ports(1)
    around = environment(**more | QUIET, FLWR_HOME=str(folder / "home"))
    with Started(superlink(port, keys if secure else None), folder / "link.log", around, folder) as link:
        patiently(lambda: socket.create_connection(("127.0.0.1", port), 5).close(), 60, "it does not answer")
        yield link, port, keys, around


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's table of sockets")
@pytest.mark.parametrize("secure", [False, True])
def test_a_superlink_listens_on_the_loopback_device_alone(secure, tmp_path):
    """The Control API lets whoever reaches it run code, on the server and at all sites, without a certificate."""
    older = {"FLWR_INTERNAL_GRPC_CONTROL_API": "1", "FLWR_INTERNAL_GRPC_FLEET_API": "1"}
    with superlink_of(tmp_path, secure, **older) as (link, port, _, _):
        assert listening(link.process.pid) == {("127.0.0.1", port)}


def test_the_exported_commands_start_no_superlink_that_other_machines_reach():
    from rookery.experiments.flower import README

    commands = re.findall(r"`(flower-superlink[^`]*)`", README)
    assert len(commands) == 2 and all("--host 127.0.0.1" in command for command in commands)
    assert "rookery.experiments.gate --host HOST" in README and "--superlink HOST:9091" in README


FOREIGN = """[project]
name = "foreign"
version = "0.1.0"
[tool.flwr.app]
publisher = "stranger"
[tool.flwr.app.components]
serverapp = "foreign.code:app"
clientapp = "foreign.code:app"
"""


def test_the_gate_lets_supernodes_through_and_no_foreign_app(tmp_path):
    """The intruder has the CA certificate, as every site has, and a port that sites reach."""
    with superlink_of(tmp_path) as (_, port, keys, around):
        from rookery.experiments.machines import free_ports, patiently

        outside, own = free_ports(2)
        command = [sys.executable, "-m", "rookery.experiments.gate", "--host", "127.0.0.1", "--port", str(outside)]
        command += ["--to", str(port), "--certificate", str(keys / "server.pem"), "--key", str(keys / "server.key")]
        command += ["--authority", str(keys / "ca.pem")]
        (tmp_path / "app/foreign").mkdir(parents=True)
        (tmp_path / "app/pyproject.toml").write_text(FOREIGN)
        (tmp_path / "app/foreign/code.py").write_text("app = None\n")
        (tmp_path / "home").mkdir(exist_ok=True)
        (tmp_path / "home/config.toml").write_text(
            "".join(
                f'[superlink.{name}]\naddress = "127.0.0.1:{at}"\nroot-certificates = "{keys / "ca.pem"}"\n'
                for name, at in (("inside", port), ("gate", outside))
            )
        )

        def flwr(*words: str) -> subprocess.CompletedProcess:
            return subprocess.run(
                ["flwr", *words], env=around, cwd=tmp_path / "app", capture_output=True, text=True, check=False
            )

        with Started(command, tmp_path / "gate.log", around, tmp_path):
            patiently(lambda: socket.create_connection(("127.0.0.1", outside), 5).close(), 60, "it does not answer")
            refused, accepted = flwr("run", ".", "gate"), flwr("run", ".", "inside")
            assert accepted.returncode == 0, accepted  # the same app, where the gate is not between
            assert refused.returncode != 0 and "403" in refused.stdout + refused.stderr, refused
            assert flwr("supernode", "register", str(keys / "site-1.pub"), "gate", "--name", "s").returncode != 0
            assert flwr("supernode", "register", str(keys / "site-1.pub"), "inside", "--name", "s").returncode == 0
            words = ["flower-supernode", "--root-certificates", str(keys / "ca.pem"), "--host", "127.0.0.1"]
            words += ["--superlink", f"127.0.0.1:{outside}", "--port", str(own)]
            with Started([*words, "--auth-supernode-private-key", str(keys / "site-1")], tmp_path / "node.log", around):
                for _ in range(100):
                    if "online" in (said := flwr("supernode", "list", "inside").stdout):
                        break
                    time.sleep(0.3)
                assert "online" in said, (tmp_path / "node.log").read_text()


def test_the_gate_refuses_requests_that_are_not_a_supernodes():
    from rookery.experiments.gate import LARGEST, Gate
    from rookery.experiments.machines import free_ports

    outside, inside = free_ports(2)
    with Gate(("127.0.0.1", outside), inside) as gate:
        threading.Thread(target=gate.serve_forever, daemon=True).start()
        asked = {
            b"POST /v1/control/start-run HTTP/1.1\r\nContent-Length: 0\r\n\r\n": b"403",
            b"POST /v1/fleet/../control/start-run HTTP/1.1\r\nContent-Length: 0\r\n\r\n": b"403",
            b"POST /v1/fleet/%2e%2e/control HTTP/1.1\r\nContent-Length: 0\r\n\r\n": b"403",
            b"POST http://x/v1/fleet/get-run HTTP/1.1\r\nContent-Length: 0\r\n\r\n": b"403",
            b"POST /v1/fleet/get-run HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (LARGEST + 1): b"413",
            b"POST /v1/fleet/get-run HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": b"411",
            b"POST /v1/fleet/get-run HTTP/1.1\r\nContent-Length: 0\r\n\r\n": b"502",  # nobody is inside
            b"GET /docs HTTP/1.1\r\n\r\n": b"501",
        }
        for request, status in asked.items():
            with socket.create_connection(("127.0.0.1", outside), 10) as connection:
                connection.sendall(request)
                assert connection.recv(100).split(b" ")[1] == status, request
        gate.shutdown()


@pytest.mark.full
def test_a_simulation_of_flower_gives_the_numbers_of_one_machine(tmp_path):
    """By the commands of the exported README: another process may have a site's next message, so records count."""
    pytest.importorskip("ray", reason="flwr[simulation] is not installed")
    from rookery.experiments.flower import QUIET
    from rookery.experiments.machines import free_ports, patiently

    run = ["trust", "simfbo", "--method.drift", "control-variates", "--rounds", "3", "--precision", "float64"]
    assert main(["export", *run, "--transport", "flower", "-o", str(tmp_path / "app")]) == 0
    assert "num-supernodes=4" in (tmp_path / "app/README.md").read_text()
    (port,) = free_ports(1)
    around = environment(**QUIET, FLWR_HOME=str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    address = f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (tmp_path / "home/config.toml").write_text(address)
    link = ["flower-superlink", "--insecure", "--simulation", "--disable-runtime-dependency-installation"]
    link += ["--host", "127.0.0.1", "--port", str(port)]
    with Started(link, tmp_path / "link.log", around, tmp_path):
        patiently(lambda: socket.create_connection(("127.0.0.1", port), 5).close(), 60, "it does not answer")
        words = ["flwr", "run", ".", "here", "--stream", "--federation-config", "num-supernodes=4"]
        words += ["-c", f'out="{tmp_path / "out"}"']
        subprocess.run(words, env=around, cwd=tmp_path / "app", capture_output=True, timeout=300, check=True)
    assert main(["run", *run, "--out", str(tmp_path / "alone")]) == 0
    same(Result.load(tmp_path / "out"), Result.load(tmp_path / "alone"))


@pytest.mark.full
def test_a_supernode_that_is_killed_and_returns_changes_no_number(tmp_path):
    """It returns as itself by its key, with the records that it had; the SuperLink refuses it until it has missed two
    of its signs of life."""
    pytest.importorskip("flwr", reason="flwr is not installed")
    options = ["--method.drift", "control-variates", "--rounds", "5", "--clients", "2", "--cohort", "0", "--every", "1"]
    options += ["--precision", "float64"]
    out, returned = tmp_path / "flower", []

    def kill_and_return() -> None:
        history = out / "server/history.csv"
        while not (history.is_file() and len(history.read_text().splitlines()) > 2):
            time.sleep(0.05)
        (node,) = (n for n in processes(f'name="site-2" state="{out}') if os.getpgid(n) == n)
        command = Path(f"/proc/{node}/cmdline").read_bytes().decode().split("\0")[:-1]
        around = dict(e.split("=", 1) for e in Path(f"/proc/{node}/environ").read_bytes().decode().split("\0")[:-1])
        os.killpg(node, signal.SIGKILL)
        for _ in range(30):
            again = Started(command, tmp_path / "returned.log", around).__enter__()
            time.sleep(10.0)
            if again.process.poll() is None:
                returned.append(again)
                return
            again.__exit__()

    thread = threading.Thread(target=kill_and_return, daemon=True)
    thread.start()
    try:
        policy = ["--on-failure", "wait", "--deadline", "60"]
        found = federated(
            ["hyperrep", "simfbo", *options, *policy, "--sites", "2", "--transport", "flower", "--secure"], out
        )
        thread.join(10)
        assert returned
    finally:
        for each in returned:
            each.__exit__()
    assert main(["run", "hyperrep", "simfbo", *options, "--out", str(tmp_path / "alone")]) == 0
    same(found, Result.load(tmp_path / "alone"))


@pytest.mark.full
def test_a_supernode_that_is_not_registered_is_refused(tmp_path):
    pytest.importorskip("flwr", reason="flwr is not installed")
    from rookery.experiments.flower import QUIET, write_keys
    from rookery.experiments.machines import free_ports, patiently

    write_keys(tmp_path / "keys", ["site-1"])
    link, own = free_ports(2)
    keys = {name: str(tmp_path / "keys" / name) for name in ("ca.pem", "server.pem", "server.key", "site-1")}
    command = ["flower-superlink", "--ssl-ca-certfile", keys["ca.pem"], "--ssl-certfile", keys["server.pem"]]
    command += ["--ssl-keyfile", keys["server.key"], "--enable-supernode-auth", "--host", "127.0.0.1"]
    around = environment(**QUIET, FLWR_HOME=str(tmp_path / "home"))
    with Started([*command, "--port", str(link)], tmp_path / "link.log", around):
        patiently(lambda: socket.create_connection(("127.0.0.1", link), 5).close(), 60, "it does not answer")
        words = ["flower-supernode", "--root-certificates", keys["ca.pem"], "--superlink", f"127.0.0.1:{link}"]
        words += ["--auth-supernode-private-key", keys["site-1"], "--host", "127.0.0.1", "--port", str(own)]
        with Started(words, tmp_path / "node.log", around) as node:  # what it started outlives it, hence a log
            assert node.process.wait(120) == 1 and "code: 2004" in (tmp_path / "node.log").read_text()


@pytest.mark.parametrize(
    ("policy", "needed"),
    [
        (OnFailure("wait"), 3),
        (OnFailure("drop"), 1),
        (OnFailure("drop", minimum=2), 2),
        (OnFailure("drop", minimum=9), 3),
    ],
)
def test_an_exported_job_of_nvflare_needs_as_many_sites_as_the_policy(policy, needed, tmp_path):
    """FLARE ends a job with fewer clients than this, whatever the server would do."""
    pytest.importorskip("nvflare", reason="nvflare is not installed")
    write_job(exact(*CASES["E1a scaffold"]), tmp_path, SOURCES, policy, "run")
    assert json.loads((tmp_path / JOB / "meta.json").read_text())["min_clients"] == needed
