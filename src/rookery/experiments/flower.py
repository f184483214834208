"""A federation on Flower: the two sides of its app, the folder that `flwr run` takes, and all of it on this machine.

Imports experiments and engines; needs `flwr` where an app is made.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rookery.engines.messaging import ClientsFailed, OnFailure
from rookery.engines.transport import PATIENCE
from rookery.errors import InputError, cleaned
from rookery.experiments.configuration import read_configuration, write_configuration
from rookery.experiments.experiment import Experiment
from rookery.experiments.federation import (
    FEDERATION,
    Say,
    Sources,
    check_names,
    new_name,
    public,
    refuse_another,
    serve,
)
from rookery.experiments.machines import Started, environment, free_ports, own_folder, patiently
from rookery.experiments.site import Site
from rookery.files import slug, write_folder, write_text
from rookery.own_code import short_name
from rookery.runs.compiled import keep_compiled
from rookery.runs.events import EVENTS, following, printing
from rookery.runs.result import Result
from rookery.version import __version__

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray on the loopback device alone
    "FLWR_INTERNAL_GRPC_CONTROL_API": "0",  # older forms of its APIs, which listen on all addresses
    "FLWR_INTERNAL_GRPC_FLEET_API": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
APP = "rookery_app"

_PYPROJECT = """[project]
name = "{name}"
version = "0.1.0"
description = "A federation with Rookery"
license = "Apache-2.0"
dependencies = ["rookery[flower]=={version}"]

[tool.flwr.app]
publisher = "rookery"

[tool.flwr.app.components]
serverapp = "{app}.server:app"
clientapp = "{app}.client:app"

[tool.flwr.app.config]
out = "runs/{name}"
state = "sites"
"""


def write_app(experiment: Experiment, folder: Path, sources: Sources, on_failure: OnFailure, run: str) -> None:
    """Writes the folder that `flwr run` takes; `sources` are the sites, with their data in a simulation."""
    check_names(sources)
    told = {"transport": "flower", "run": run, "sites": public(sources), "on_failure": vars(on_failure)}
    write_configuration(experiment, folder, {FEDERATION: told})
    lost = [path for path in (folder / "own").rglob("*.py") if re.fullmatch(r"test_.*|.*_test\.py", path.name)]
    if lost:
        raise InputError(f"task: Flower leaves out files called {lost[0].name!r}; call it something else")
    name = slug(f"{Path(experiment.task_name).stem}-{experiment.method_name.rpartition(':')[2]}".lower())
    write_text(folder / "pyproject.toml", _PYPROJECT.format(name=name, app=APP, version=__version__))
    for side in ("server", "client"):
        text = (
            f'"""Rookery\'s {side}, as Flower runs it."""\n\nfrom pathlib import Path\n\n'
            f"from rookery.experiments.flower import {side}_app\n\n"
            f"app = {side}_app(Path(__file__).resolve().parent.parent)\n"
        )
        write_text(folder / APP / f"{side}.py", text)
    write_text(folder / APP / "__init__.py", "")


README = """# A federation on Flower, made by `rookery export`

Sites: {names}. Everybody installs `pip install "rookery[flower]=={version}"` (for a simulation also
`pip install "flwr[simulation]"`), and sets FLWR_TELEMETRY_ENABLED=0. This folder is the app.

- The server: `flower-superlink --insecure --disable-runtime-dependency-installation --host 127.0.0.1 --port 9090`; with
  certificates, in the place of --insecure: `--ssl-ca-certfile ca.pem --ssl-certfile server.pem --ssl-keyfile server.key
  --enable-supernode-auth`, and for every site `flwr supernode register SITE.pub here --name SITE`. The server's
  certificate names HOST, localhost and 127.0.0.1. **Leave the SuperLink on 127.0.0.1**: whoever reaches its port runs
  code on the server and at every site, also where SuperNodes have keys (Flower 1.41).
- Beside it, the gate that sites reach: `python -m rookery.experiments.gate --host HOST --port 9091 --to 9090`; with
  certificates also `--certificate server.pem --key server.key --authority ca.pem`. It passes on what SuperNodes say,
  and refuses everything else.
- A site: `flower-supernode --insecure --superlink HOST:9091 --node-config 'name="SITE" data="csv:/data/ours.csv"
  state="/var/rookery"'`; with certificates: `--root-certificates ca.pem --auth-supernode-private-key SITE`. Each
  further site on the same machine needs its own port as well: `--port 9095` (9094 is the first one's).
- Whoever leads, on the server's machine: `flwr run . here --stream -c 'out="/abs/results"'`, where
  $FLWR_HOME/config.toml has `[superlink.here]` with `address = "127.0.0.1:9090"` and `insecure = true`, or
  `root-certificates = "/abs/ca.pem"`.
  **`flwr run` exits with status 0 even if a site is missing or the run fails.** Run `rookery resume /abs/results` on
  the server afterwards: it shows the result of a run that has ended, and exits with status 2 otherwise. `events.jsonl`
  in that folder names the sites that did not reply.
- On one machine, as a simulation: `flower-superlink --insecure --simulation --disable-runtime-dependency-installation
  --host 127.0.0.1 --port 9090`, then `flwr run . here --stream --federation-config "num-supernodes={number}"`.

An exchange takes seconds, whatever is in it. The results are in the folder that `out` names, on the server. The same
again, with the same folder, goes on with a run that was stopped.
"""


def export(experiment: Experiment, folder: Path, sources: Sources, on_failure: OnFailure) -> None:
    """Writes the app and what each party does with it into a folder."""
    run = new_name(f"{Path(experiment.task_name).stem}-{short_name(experiment.method_name)}")
    write_app(experiment, folder, sources, on_failure, run)
    said = {"names": ", ".join(sources), "number": len(sources)}
    write_text(folder / "README.md", README.format(version=__version__, **said))


# What Flower runs.


def server_app(folder: Path) -> Any:
    """Flower's ServerApp for the configuration in a folder."""
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        from rookery.engines.flower import Flower

        experiment, config = read_configuration(folder)
        told = config[FEDERATION]
        policy = OnFailure(**told["on_failure"])
        out = Path(str(context.run_config["out"])).expanduser().absolute()
        try:
            nodes = _nodes(grid, list(told["sites"]), policy.deadline or PATIENCE)
            keep_compiled()
            result = serve(
                out, Flower(grid, nodes), experiment, policy, {"transport": "flower", "run": told["run"]}, say=print
            )
        except (ClientsFailed, InputError) as error:
            raise RuntimeError(str(error)) from None  # Flower shows the text
        print(f"{result.status} after round {result.state.round}; results in {out}", flush=True)

    return app


def _nodes(grid: Any, names: Sequence[str], patience: float) -> dict[str, int]:
    """The numbers of the sites' SuperNodes, by the sites' names, when all of them are there."""
    from rookery.engines.flower import exchange

    end = time.monotonic() + patience
    while len(there := sorted(grid.get_node_ids())) < len(names):
        if time.monotonic() > end:
            raise InputError(f"sites: {len(there)} of {len(names)} SuperNodes are there after {patience:g} s")
        time.sleep(0.5)
    vouched = {node.node_id: node.name for node in grid.get_nodes()}
    found: dict[str, int] = {}
    for node, said in exchange(grid, {node: [] for node in there}, max(1.0, end - time.monotonic())).items():
        if isinstance(said, str):
            raise InputError(f"sites: a SuperNode does not say who it is: {said}")
        name = cleaned(said[1].get("name"))
        if vouched.get(node) and vouched[node] != name:
            raise InputError(f"site {name}: it is registered as {vouched[node]!r}, and says another name")
        if name not in names:
            raise InputError(f"site {name}: it is no site of this federation, which has {', '.join(names)}")
        if name in found:
            raise InputError(f"site {name}: two SuperNodes say that they are it")
        found[name] = node
    return {name: found[name] for name in names}


def client_app(folder: Path) -> Any:
    """Flower's ClientApp for the configuration in a folder.

    A SuperNode says with --node-config who it is: `name`, `data` (its own data, unless it takes a share of what
    everybody has) and `state` (the folder of what is its own). In a simulation sites are taken in their order.
    """
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query("rookery")
    def query(message: Any, context: Any) -> Any:
        from rookery.engines.flower import answer

        keep_compiled()
        node, sites = context.node_config, read_configuration(folder)[1][FEDERATION]["sites"]
        name = str(node.get("name") or list(sites)[int(node["partition-id"])])
        data = node.get("data") or sites.get(name)
        state = Path(str(node.get("state") or Path(str(context.run_config["state"])) / slug(name))).absolute()

        # Of this message alone: in a simulation another process may have the site's next, and its record is on disk.
        site = Site(folder, state, name, None if data is None else str(data))
        return answer(message, name, site.receive)

    return app


# All of it on this machine.


def federate(
    experiment: Experiment,
    folder: Path,
    sources: Sources,
    on_failure: OnFailure,
    say: Say = lambda text: None,
    secure: bool = False,
) -> Result:
    """Runs an experiment with a SuperLink and a SuperNode for every site on this machine, and ends them all; `secure`
    with certificates, and SuperNodes that are registered by their keys. The same again, with the same folder, goes on.
    """
    for program in ("flwr", "flower-superlink", "flower-supernode"):
        if shutil.which(program, path=environment()["PATH"]) is None:
            raise InputError('transport: flower was given, and it is not installed; pip install "rookery[flower]"')
    with own_folder(folder) as out, contextlib.ExitStack() as stack:
        work = out / "flower"
        if (work / "app").is_dir():
            refuse_another(work / "app", experiment)
        else:
            name = new_name(out.name)
            write_folder(work / "app", lambda aside: write_app(experiment, aside, sources, on_failure, name))
        keys = work / "keys"
        if secure and not keys.is_dir():
            write_keys(keys, list(sources))
        ports = free_ports(1 + len(sources))
        around = lambda name: environment(**QUIET, FLWR_HOME=str(work / slug(name)))
        start = lambda name, command: stack.enter_context(Started(command, work / f"{slug(name)}.log", around(name)))
        link = f"127.0.0.1:{ports[0]}"
        listen = lambda port: ["--host", "127.0.0.1", "--port", str(port)]
        start("link", superlink(ports[0], keys if secure else None))
        trusted = f'root-certificates = "{keys / "ca.pem"}"' if secure else "insecure = true"
        write_text(work / "link" / "config.toml", f'[superlink.here]\naddress = "{link}"\n{trusted}\n')
        there = lambda: socket.create_connection(("127.0.0.1", ports[0]), 5.0).close()
        patiently(there, 60.0, f"the SuperLink does not answer; its log is {str(work / 'link.log')!r}")
        with open(work / "run.log", "wb") as log:
            call = lambda *words: subprocess.run(
                ["flwr", *words], env=around("link"), stdout=log, stderr=subprocess.STDOUT, check=False
            )
            for (name, data), port in zip(sources.items(), ports[1:]):
                how = ["--insecure"]
                if secure:
                    registered = ("supernode", "register", str(keys / f"{slug(name)}.pub"), "here", "--name", name)
                    said = f"site {name} cannot be registered; {str(work / 'run.log')!r} says why"
                    patiently(lambda words=registered: call(*words).check_returncode(), 60.0, said)
                    how = ["--root-certificates", str(keys / "ca.pem")]
                    how += ["--auth-supernode-private-key", str(keys / slug(name))]
                own = {"name": name, "state": str(work / "sites" / slug(name))}
                own |= {} if data is None else {"data": data}
                said = " ".join(f"{key}={json.dumps(value)}" for key, value in own.items())
                start(name, ["flower-supernode", *how, "--superlink", link, *listen(port), "--node-config", said])
            say(f"a SuperLink and {len(sources)} SuperNodes; an exchange takes seconds, which are Flower's own")
            with following(out / "server" / EVENTS, printing(say)):
                call("run", str(work / "app"), "here", "--stream", "-c", f"out={json.dumps(str(out / 'server'))}")
        return _ended(out, work / "run.log")


def superlink(port: int, keys: Path | None = None) -> list[str]:
    """The command of a SuperLink that listens on this machine's loopback device alone.

    One port of Flower 1.41 serves the Fleet API, for SuperNodes, and the Control API, which runs the code of anybody
    who reaches it. SuperNode authentication does not protect the Control API. `rookery.experiments.gate` therefore
    stands between the SuperLink and other machines.

    Args:
      port: Port to listen on.
      keys: Folder that `write_keys` made; None: without certificates.
    """
    command = ["flower-superlink", "--disable-runtime-dependency-installation", "--host", "127.0.0.1"]
    command += ["--port", str(port)]
    if keys is None:
        return [*command, "--insecure"]
    command += ["--ssl-ca-certfile", str(keys / "ca.pem"), "--ssl-certfile", str(keys / "server.pem")]
    return [*command, "--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"]


def write_keys(folder: Path, names: Sequence[str]) -> None:
    """Makes an authority, a certificate of the server at this machine's loopback device, and a key for every site."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    made = lambda: ec.generate_private_key(ec.SECP384R1())
    called = lambda text: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
    pem, bare = forms.Encoding.PEM, forms.NoEncryption()
    now = datetime.datetime.now(datetime.UTC)

    def certificate(who: str, key: Any, signer: Any, extensions: Sequence[tuple[Any, bool]]) -> bytes:
        built = x509.CertificateBuilder().subject_name(called(who)).issuer_name(called("authority"))
        built = built.public_key(key.public_key()).serial_number(x509.random_serial_number())
        built = built.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=30))
        for extension, critical in extensions:
            built = built.add_extension(extension, critical)
        return built.sign(signer, hashes.SHA384()).public_bytes(pem)

    authority, server = made(), made()
    here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    files = {
        "ca.pem": certificate(
            "authority", authority, authority, [(x509.BasicConstraints(True, None), True), (signs, True)]
        ),
        "server.pem": certificate(
            "localhost",
            server,
            authority,
            [(x509.SubjectAlternativeName(here), False), (x509.BasicConstraints(False, None), False)],
        ),
        "server.key": server.private_bytes(pem, forms.PrivateFormat.TraditionalOpenSSL, bare),
    }
    for name in names:
        key = made()
        files[slug(name)] = key.private_bytes(pem, forms.PrivateFormat.OpenSSH, bare)
        public_key = key.public_key().public_bytes(forms.Encoding.OpenSSH, forms.PublicFormat.OpenSSH)
        files[f"{slug(name)}.pub"] = public_key + b"\n"
    folder.mkdir(parents=True, mode=0o700)
    for name, content in files.items():
        (folder / name).touch(mode=0o600)
        (folder / name).write_bytes(content)


def _ended(out: Path, log: Path) -> Result:
    """What came of it; the reason, where nothing did."""
    server = out / "server"
    if not (server / "result.json").is_file():
        said = re.findall(r"(?:RuntimeError|Exception|Error): (.*)", log.read_text(errors="replace"))
        why = cleaned(said[-1]) if said else "it does not say why"
        raise InputError(f"run: it did not end as it should: {why}; {str(log)!r} has more")
    return Result.load(server)
