"""A federation on NVIDIA FLARE: the two sides of its job, the folder that is submitted, and all of it on this machine.

Imports experiments and engines; needs `nvflare` where a job is made.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rookery.data.catalogue import cache_folder
from rookery.engines.messaging import ClientsFailed, OnFailure
from rookery.engines.nvflare import NVFlare
from rookery.engines.processes import Processes
from rookery.engines.transport import PATIENCE, Request, Seat
from rookery.engines.worker import AGAIN, Refused, refusal
from rookery.errors import InputError
from rookery.experiments.configuration import read_configuration, write_configuration
from rookery.experiments.experiment import CONFIG, Experiment
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
from rookery.experiments.site import site_program
from rookery.federation.wire import Wire
from rookery.files import read_json, slug, write_text
from rookery.own_code import short_name
from rookery.runs.compiled import keep_compiled
from rookery.runs.events import EVENTS, following, printing
from rookery.runs.result import Result
from rookery.version import __version__

JOB, SETTINGS = "job", "rookery.json"  # the folder that is submitted, and a party's own settings, in its local/
SERVER, CLIENT, ANSWER = "rookery_server", "rookery_client", "answer"
ORGANISATION, ADMIN = "federation", "admin@federation.org"

_SERVER = '''"""Rookery's server, as FLARE runs it."""

from nvflare.collab import collab

from rookery.experiments.nvflare import run_server


@collab.main
def server():
    run_server(collab)
'''

_CLIENT = '''"""Rookery's site, as FLARE runs it."""

from nvflare.collab import collab

from rookery.experiments.nvflare import run_site


@collab.publish
def answer(body: bytes) -> bytes:
    return run_site(collab, body)
'''


def write_job(experiment: Experiment, folder: Path, sources: Sources, on_failure: OnFailure, run: str) -> None:
    """Writes the folder that is submitted to FLARE, `folder`/job, and a project to provision, project.yml."""
    check_names(sources)
    with _installed():
        from nvflare.collab import CollabRecipe
    told = {"transport": "nvflare", "run": run, "sites": public(sources), "on_failure": vars(on_failure)}
    with tempfile.TemporaryDirectory() as aside:
        code, files = Path(aside) / "code", Path(aside) / "files"
        code.mkdir()
        (code / f"{SERVER}.py").write_text(_SERVER)
        (code / f"{CLIENT}.py").write_text(_CLIENT)
        write_configuration(experiment, files, {FEDERATION: told})
        sys.path.insert(0, str(code))
        try:
            server, client = (importlib.import_module(name) for name in (SERVER, CLIENT))
            recipe = CollabRecipe(
                job_name=JOB, server=server, client=client, min_clients=needed_clients(len(sources), on_failure)
            )
            recipe.add_server_file(str(files))
            recipe.add_client_file(str(files))
            recipe.export(str(folder))
        finally:
            sys.path.remove(str(code))
            for name in (SERVER, CLIENT):
                sys.modules.pop(name, None)
    write_text(folder / "project.yml", json.dumps(project(list(sources), "localhost", 8002), indent=1))


def needed_clients(sites: int, on_failure: OnFailure) -> int:
    """How many sites FLARE's job needs: with fewer FLARE ends it. (FLARE 2.9 also ends a job whose process at a site
    dies while the site's client runs on.)"""
    return min(sites, on_failure.minimum) if on_failure.policy == "drop" else sites


README = """# A federation on NVIDIA FLARE, made by `rookery export`

Sites: {names}. Everybody installs `pip install "rookery[nvflare]=={version}"`; job/ is what is submitted, and
project.yml what is provisioned (its server is called localhost: put its real name there).

- On one machine, as a simulation: `nvflare simulator job -w simulation -c {commas} -t {number}`
- With certificates, every party on its own machine:
  - whoever leads: `nvflare provision -p project.yml -w workspace`, and gives each party its kit, a folder under
    workspace/rookery/prod_00.
  - a site: writes where its data is into its kit's local/rookery.json, such as `{{"data": "csv:/data/ours.csv"}}`, and
    sets "allow_log_streaming" to false in local/resources.json, which begins as a copy of local/resources.json.default.
  - server and sites: `startup/start.sh`
  - whoever leads: `nvflare job submit -j job --startup-kit workspace/rookery/prod_00/admin@federation.org`

All sites must be connected when the job starts. The job needs {needed} of {number} sites: with fewer FLARE ends it.
FLARE also ends it when its job process of a site dies while the site's client runs on, under every policy, `drop` too.

The results are in the server's kit under rookery/runs/{run}, and events.jsonl there names sites that do not reply. The
same job, submitted again, resumes a run that was stopped; to begin another, export again.
"""


def export(experiment: Experiment, folder: Path, sources: Sources, on_failure: OnFailure) -> None:
    """Writes the job, the project and what each party does with it into a folder."""
    run = new_name(f"{Path(experiment.task_name).stem}-{short_name(experiment.method_name)}")
    write_job(experiment, folder, sources, on_failure, run)
    said = {"names": ", ".join(sources), "commas": ",".join(sources), "number": len(sources), "run": run}
    said["needed"] = needed_clients(len(sources), on_failure)
    write_text(folder / "README.md", README.format(version=__version__, **said))


def project(sites: list[str], host: str, port: int) -> dict[str, Any]:
    """What FLARE provisions: a server, a client for every site, somebody who submits. (json is yaml.)"""
    who = [{"name": host, "type": "server", "org": ORGANISATION, "fed_learn_port": port}]
    who += [{"name": site, "type": "client", "org": ORGANISATION} for site in sites]
    who += [{"name": ADMIN, "type": "admin", "org": ORGANISATION, "role": "project_admin"}]
    made = "nvflare.lighter.impl."
    return {
        "api_version": 3,
        "name": "rookery",
        "description": "A federation with Rookery",
        "participants": who,
        "builders": [
            {"path": f"{made}workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
            {"path": f"{made}static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
            {"path": f"{made}cert.CertBuilder"},
            {"path": f"{made}signature.SignatureBuilder"},
        ],
    }


@contextlib.contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise InputError(
            'transport: nvflare was given, and it is not installed; pip install "rookery[nvflare]"'
        ) from None


# What FLARE runs.


def _places(collab: Any) -> tuple[Path, Path, dict[str, Any]]:
    """Where a job's configuration is, where this party keeps what outlasts a job, and its own settings."""
    workspace, job = collab.workspace, collab.fl_ctx.get_job_id()
    settings = Path(workspace.get_site_config_dir()) / SETTINGS
    own = read_json(settings, "settings") if settings.is_file() else {}
    kept = own.get("folder") or Path(workspace.get_root_dir()) / "rookery"
    return Path(workspace.get_app_custom_dir(job)), Path(kept), own


def run_server(collab: Any) -> None:
    """The server of a job: begins the run, or goes on with it where the same job was submitted before."""
    folder, kept, _ = _places(collab)
    experiment, config = read_configuration(folder)
    told = config[FEDERATION]
    policy, out = OnFailure(**told["on_failure"]), kept / "runs" / slug(told["run"])
    try:
        proxies = {client.name: client for client in collab.clients}
        for name in told["sites"]:
            if name not in proxies:
                raise InputError(f"site {name}: it is not connected; here are {', '.join(sorted(proxies))}")
        if others := sorted(set(proxies) - set(told["sites"])):
            raise InputError(f"site {others[0]}: it is no site of this federation: {', '.join(told['sites'])}")
        keep_compiled()
        transport = NVFlare({name: proxies[name] for name in told["sites"]}, ANSWER, lambda: collab.is_aborted)
        more = {"transport": "nvflare", "run": told["run"]}
        result = serve(out, transport, experiment, policy, more, say=lambda text: print(text, flush=True))
    except (ClientsFailed, InputError) as error:
        write_text(kept / "runs" / f"{slug(told['run'])}.txt", str(error))
        raise RuntimeError(str(error)) from None
    print(f"{result.status} after round {result.state.round}; results in {out}", flush=True)
    shown = Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id())) / "rookery"  # what is downloaded
    shutil.copytree(out, shown, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoints", ".*"))


_BUSY: dict[str, threading.Lock] = {}
_SITES: dict[str, Processes] = {}  # in a simulation sites share a process


def run_site(collab: Any, body: bytes) -> bytes:
    """What a site says to a message. The work is done in a process of its own, which is started again if it ends:
    FLARE would end the whole job with it."""
    folder, kept, own = _places(collab)
    federation, name = read_json(folder / CONFIG, "configuration")[FEDERATION], collab.site_name
    patience = federation["on_failure"]["deadline"] or PATIENCE
    if not _BUSY.setdefault(name, threading.Lock()).acquire(timeout=patience):
        return refusal(Wire(), Refused(f"site {name}: it is busy with another message", AGAIN))
    try:
        if name not in _SITES:
            data = own.get("data") or federation["sites"].get(name)
            _SITES[name] = Processes({name: site_program(kept / "site" / slug(name), name, folder, data)})
        outcome = _SITES[name].ask([Request(Seat(0, -1), body)], patience)
        why = next(iter(outcome.failures.values()), "nothing came back")
        return outcome.replies.get(0) or refusal(Wire(), Refused(f"site {name}: {why}", AGAIN))
    finally:
        _BUSY[name].release()


# All of it on this machine.


def federate(
    experiment: Experiment, folder: Path, sources: Sources, on_failure: OnFailure, say: Say = lambda text: None
) -> Result:
    """Runs an experiment with FLARE's server and a client for every site on this machine, each with its certificate,
    and ends them all. The same again, with the same folder, goes on."""
    with _installed():
        import nvflare  # noqa: F401
    with own_folder(folder) as out:
        work = out / "nvflare"
        if (work / JOB).is_dir():
            refuse_another(next((work / JOB).rglob(CONFIG)).parent, experiment)
        else:
            write_job(experiment, work, sources, on_failure, new_name(out.name))
        with running(work, sources, say) as submit:
            say("the job is submitted")
            return submit(work / JOB, out / "server")


@contextlib.contextmanager
def running(work: Path, sources: Sources, say: Say = lambda text: None) -> Iterator[Callable[[Path, Path], Result]]:
    """FLARE's server and clients on this machine, while the block lasts: what submits a job, waits for its end, and
    copies its result to a folder."""
    with _installed():
        from nvflare.fuel.flare_api.flare_api import new_secure_session
    kits = work / "workspace" / "rookery" / "prod_00"
    around = environment(HOME=str(work / "home"), NVFLARE_SECURE_LOGGING="1", ROOKERY_CACHE=str(cache_folder()))
    with contextlib.ExitStack() as stack:
        if not kits.is_dir():
            (work / "home").mkdir(parents=True, exist_ok=True)
            provision(work, sources, around)
        stack.callback(end_all, kits)
        for party in ("localhost", *sources):
            command = ["bash", str(kits / party / "startup" / "sub_start.sh"), "--once"]
            stack.enter_context(Started(command, work / f"{slug(party)}.log", around, kits / party))
        say(f"FLARE's server and {len(sources)} clients are started, with certificates of their own")
        with contextlib.redirect_stdout(io.StringIO()):  # FLARE says that it connects
            connect = lambda: new_secure_session(ADMIN, str(kits / ADMIN), timeout=5.0)
            session = patiently(
                connect, 60.0, f"FLARE's server does not answer; its log is {str(work)!r}/localhost.log"
            )
        stack.callback(session.close)
        patiently(
            lambda: _all_there(session, list(sources)), 60.0, f"a site does not connect; its log is in {str(work)!r}"
        )

        def submit(job: Path, out: Path) -> Result:
            number = session.submit_job(str(job))
            run = slug(read_json(next(job.rglob(CONFIG)), "job")[FEDERATION]["run"])
            runs = kits / "localhost" / "rookery" / "runs"
            with following(runs / run / EVENTS, printing(say)):
                session.monitor_job(number, timeout=0.0, poll_interval=0.5)
            return _ended(runs, run, work, out)

        yield submit


def provision(work: Path, sources: Sources, around: dict[str, str]) -> None:
    """Makes every party's kit, and gives sites their own settings."""
    port = free_ports(1)[0]
    write_text(work / "here.yml", json.dumps(project(list(sources), "localhost", port), indent=1))
    command = [
        str(Path(sys.executable).parent / "nvflare"),
        "provision",
        "-p",
        "here.yml",
        "-w",
        "workspace",
        "--force",
    ]
    with open(work / "provision.log", "wb") as log:
        done = subprocess.run(
            command, cwd=work, env=around, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        raise InputError(f"transport: nvflare does not provision; {str(work / 'provision.log')!r} says why")
    kits = work / "workspace" / "rookery" / "prod_00"
    for party in ("localhost", *sources):
        local = kits / party / "local"
        text = (local / "resources.json.default").read_text()
        text = text.replace("/tmp/nvflare/", f"{work / 'store'}/")  # one store for all servers of a machine, otherwise
        text = text.replace('"allow_log_streaming": true', '"allow_log_streaming": false')  # a site's log is its own
        (local / "resources.json").write_text(text)
        if sources.get(party) is not None:
            write_text(local / SETTINGS, json.dumps({"data": sources[party]}))


def _all_there(session: Any, sites: list[str]) -> None:
    there = {client.name for client in session.get_system_info().client_info}
    if missing := [site for site in sites if site not in there]:
        raise InputError(f"site {missing[0]}: it did not connect")


def end_all(kits: Path) -> None:
    """Ends what FLARE has started for its jobs, in groups of their own: found by the kits in their command lines."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(place.name) != os.getpid() and f"{kits}/".encode() in (place / "cmdline").read_bytes():
                os.kill(int(place.name), signal.SIGKILL)


def _ended(runs: Path, run: str, work: Path, out: Path) -> Result:
    """What came of it, copied to where it is looked for; the reason, where nothing did."""
    if not (runs / run / "result.json").is_file():
        said = runs / f"{run}.txt"
        why = said.read_text() if said.is_file() else "its server ended"
        raise InputError(f"run: it did not end as it should: {why}; the logs are in {str(work)!r}")
    shutil.copytree(runs / run, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    return Result.load(out)
