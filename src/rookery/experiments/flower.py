"""A federation on Flower: the two sides of its app, the folder that `flwr run` takes, and all of it on this machine.

Imports experiments and engines; needs `flwr` where an app is made.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rookery.engines.messaging import ClientsFailed, OnFailure
from rookery.errors import InputError
from rookery.experiments.configuration import read_configuration, write_configuration
from rookery.experiments.experiment import Experiment
from rookery.experiments.federation import FEDERATION, Say, Sources, serve
from rookery.experiments.machines import Started, environment, free_ports, own_folder, patiently
from rookery.experiments.site import Site
from rookery.files import slug, write_text
from rookery.runs.compiled import keep_compiled
from rookery.runs.result import Result
from rookery.version import __version__

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray on the loopback device alone
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
PATIENCE = 600.0  # seconds that an exchange may take, and that sites may take to appear
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
    told = {"transport": "flower", "run": run, "sites": dict(sources), "on_failure": vars(on_failure)}
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
        name = str(said[1].get("name"))
        if vouched.get(node) and vouched[node] != name:
            raise InputError(f"site {name}: it is registered as {vouched[node]!r}, and says another name")
        if name not in names:
            raise InputError(f"site {name}: it is no site of this federation, which has {', '.join(names)}")
        if name in found:
            raise InputError(f"site {name}: two SuperNodes say that they are it")
        found[name] = node
    return {name: found[name] for name in names}


_SITES: dict[tuple[str, str], Site] = {}  # of a process that answers more than once


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
        data = node.get("data") or (None if "name" in node else sites[name])
        state = Path(str(node.get("state") or Path(str(context.run_config["state"])) / slug(name))).absolute()

        def receive(body: bytes) -> bytes:
            key = (str(folder), name)
            if key not in _SITES:
                _SITES[key] = Site(folder, state, name, None if data is None else str(data))
            return _SITES[key].receive(body)

        return answer(message, name, receive)

    return app


# All of it on this machine.


def federate(
    experiment: Experiment,
    folder: Path,
    sources: Sources,
    on_failure: OnFailure,
    say: Say = lambda text: None,
) -> Result:
    """Runs an experiment with a SuperLink and a SuperNode for every site on this machine, and ends them all."""
    for program in ("flwr", "flower-superlink", "flower-supernode"):
        if _program(program) is None:
            raise InputError('transport: flower was given, and it is not installed; pip install "rookery[flower]"')
    with own_folder(folder) as out, contextlib.ExitStack() as stack:
        work = out / "flower"
        if not (work / "app").is_dir():
            write_app(
                experiment, work / "app", dict.fromkeys(sources), on_failure, f"{slug(out.name)}-{int(time.time())}"
            )
        ports = free_ports(1 + len(sources))
        start = lambda name, command: stack.enter_context(
            Started(command, work / f"{slug(name)}.log", environment(**QUIET, FLWR_HOME=str(work / slug(name))))
        )
        link = f"127.0.0.1:{ports[0]}"
        listen = lambda port: ["--host", "127.0.0.1", "--port", str(port)]
        alone = ["--insecure", "--disable-runtime-dependency-installation"]
        start("link", ["flower-superlink", *alone, *listen(ports[0])])
        for (name, data), port in zip(sources.items(), ports[1:]):
            own = {"name": name, "state": str(work / "sites" / slug(name))} | ({} if data is None else {"data": data})
            said = " ".join(f"{key}={json.dumps(value)}" for key, value in own.items())
            command = ["flower-supernode", "--insecure", "--superlink", link, *listen(port), "--node-config", said]
            start(name, command)
        write_text(work / "link" / "config.toml", f'[superlink.here]\naddress = "{link}"\ninsecure = true\n')
        patiently(lambda: urllib.request.urlopen(f"http://{link}/health", timeout=5).close(), 60.0)
        say(f"a SuperLink and {len(sources)} SuperNodes; an exchange takes seconds, which are Flower's own")
        where = json.dumps(str(out / "server"))
        run = ["flwr", "run", str(work / "app"), "here", "--stream", "-c", f"out={where}"]
        with open(work / "run.log", "wb") as log:
            around = environment(**QUIET, FLWR_HOME=str(work / "link"))
            subprocess.run(run, env=around, stdout=log, stderr=subprocess.STDOUT, check=False)
        return _ended(out, work / "run.log")


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def _ended(out: Path, log: Path) -> Result:
    """What came of it; the reason, where nothing did."""
    server = out / "server"
    if not (server / "result.json").is_file():
        said = re.findall(r"(?:RuntimeError|Exception|Error): (.*)", log.read_text(errors="replace"))
        why = said[-1] if said else "it does not say why"
        raise InputError(f"run: it did not end as it should: {why}; {str(log)!r} has more")
    return Result.load(server)
