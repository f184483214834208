"""Reports: what the page holds, what is refused, and the page itself in a real browser."""

from __future__ import annotations

import csv
import html
import json
import math
import os
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.runs.report import falling, short_names, write_report

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><!--"
ROUNDS = 10


def make_run(
    folder: Path,
    name: str = "simfbo",
    seed: int = 0,
    rounds: int = ROUNDS,
    exchanges: int = 2,
    status: str | None = "done",
    divergence: dict | None = None,
    metrics: dict | None = None,
    **config,
) -> Path:
    """A run folder whose numbers are simple functions of the round and the seed."""
    if metrics is None:
        metrics = {"loss": lambda t: 2 - 0.1 * t + 0.1 * seed, "accuracy": lambda t: 0.1 * seed + 0.05 * t}
    costs = {
        "round": lambda t: t,
        "exchanges": lambda t: exchanges * t,
        "floats_up": lambda t: 250_000 * t,
        "floats_down": lambda t: 500_000 * t,
        "bytes_up": lambda t: 1_000_000 * t,
        "bytes_down": lambda t: 2_000_000 * t,
        "samples": lambda t: 100 * t,
        "gradients": lambda t: 300 * t,
        "seconds": lambda t: (0.5 + 0.1 * seed) * t,
    }
    folder.mkdir(parents=True)
    settings = {"task_name": "hyperrep", "task": {"hidden": 64}, "method_name": name}
    settings |= {"method": {"lr": {"x": 0.2, "y": 0.2}}, "rounds": ROUNDS, "seed": seed, "out": str(folder)} | config
    (folder / "config.json").write_text(json.dumps(settings))
    if status is not None:
        (folder / "result.json").write_text(json.dumps({"format": 1, "status": status, "divergence": divergence}))
    with open(folder / "history.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*costs, *metrics])
        writer.writerows([value(t) for value in (costs | metrics).values()] for t in range(rounds + 1))
    return folder


def make_comparison(root: Path) -> Path:
    """Three seeds of one method, one run that diverged, one that is not over, and a hostile one."""
    for seed in (0, 1, 2):
        make_run(root / f"simfbo-{seed}", seed=seed)
    diverged = {"round": 6, "sequences": ["x"]}
    make_run(root / "fedbio", "fedbio", rounds=5, exchanges=3, status="diverged", divergence=diverged)
    make_run(root / "going", "fedavg", rounds=4, exchanges=1, status=None, method={"lr": {"x": 0.3, "y": 0.2}})
    make_run(root / "hostile", HOSTILE, partition=HOSTILE)
    return root


def page_of(runs, path: Path, **options) -> str:
    return write_report(runs, path, **options).read_text(encoding="utf-8")


def data_of(page: str) -> dict:
    """The data inside a page, as a browser finds it: everything up to the first end of a script."""
    return json.loads(page.split('<script type="application/json" id="data">')[1].split("</script>")[0])


def report(runs, tmp_path: Path, **options) -> dict:
    return data_of(page_of(runs, tmp_path / "report.html", **options))


# What the page holds.


def test_the_data_of_a_run(tmp_path):
    data = report([make_run(tmp_path / "one", seed=1)], tmp_path)
    assert (data["title"], data["version"]) == ("Runs of hyperrep", rk.__version__)
    assert data["axes"] == ["exchanges", "bytes", "samples", "gradients", "seconds", "round"]
    assert data["metrics"] == [{"name": "accuracy", "falling": False}, {"name": "loss", "falling": True}]
    (run,) = data["runs"]
    assert (run["name"], run["method"], run["status"], run["seed"]) == ("one", "simfbo", "done", "1")
    assert run["costs"]["bytes"] == [3_000_000 * t for t in range(11)]
    assert run["metrics"]["accuracy"] == [0.1 + 0.05 * t for t in range(11)]
    assert run["totals"]["samples"] == 1000 and run["totals"]["bytes_down"] == 20_000_000
    assert run["final"] == {"accuracy": 0.6, "loss": pytest.approx(1.1)}


def test_the_best_of_a_falling_metric_is_its_lowest(tmp_path):
    turning = {name: lambda t: abs(t - 4) + 1 for name in ("purity", "distance", "test_loss")}
    (run,) = report([make_run(tmp_path / "one", metrics=turning)], tmp_path)["runs"]
    assert run["best"] == {"purity": 7, "distance": 1, "test_loss": 1}
    assert all(map(falling, ("loss", "distance", "objective", "error", "upper_loss", "Loss", "test error")))
    assert not any(map(falling, ("accuracy", "losses", "lossless", "closeness", "error_free")))


def test_a_run_of_the_library_is_read(tmp_path):
    clients = rk.federate([{"a": np.array([1.0])}, {"a": np.array([3.0])}])
    problem = rk.Single(lambda x, e: 0.5 * e["a"] * (x - 1) ** 2)
    metrics = lambda z: {"distance": jnp.abs(z.x - 1)}
    result = rk.run(problem, rk.FedAvg(lr=0.1), clients, x=0.0, rounds=6, metrics=metrics)
    result.save(tmp_path / "saved")  # without a configuration
    data = report([tmp_path / "saved"], tmp_path)
    assert data["title"] == "Rookery runs" and [g["label"] for g in data["groups"]] == ["saved"]
    assert data["runs"][0]["metrics"]["distance"] == result.history["distance"].tolist()
    assert data["runs"][0]["costs"]["exchanges"] == result.history["exchanges"].tolist()
    assert data["config"] == {"differing": [], "equal": []}


def test_the_main_metric_comes_first(tmp_path):
    both = dict.fromkeys(("objective", "accuracy", "purity"), float)
    names = [metric["name"] for metric in report([make_run(tmp_path / "a", metrics=both)], tmp_path)["metrics"]]
    assert names == ["accuracy", "objective", "purity"]
    known = make_run(tmp_path / "b", metrics=both, main_metric="purity")
    names = [metric["name"] for metric in report([known], tmp_path)["metrics"]]
    assert names == ["purity", "objective", "accuracy"]


def test_cells_that_are_no_finite_numbers_are_empty(tmp_path):
    values = [1.0, math.nan, math.inf, -math.inf, "", "word", 1e301, 3.0, math.nan]
    run = make_run(tmp_path / "one", rounds=8, metrics={"loss": lambda t: values[t]})
    page = page_of([run], tmp_path / "report.html")
    (run,) = data_of(page)["runs"]
    assert run["metrics"]["loss"] == [1, None, None, None, None, None, None, 3, None]
    assert run["best"] == {"loss": 1} and run["final"] == {"loss": None}


def test_a_row_that_is_just_being_written_is_left_out(tmp_path):
    folder = make_run(tmp_path / "one", status=None, rounds=3)
    with open(folder / "history.csv", "a", newline="") as file:
        file.write("4,8,1000000,2")
    (run,) = report([folder], tmp_path)["runs"]
    assert run["costs"]["round"] == [0, 1, 2, 3] and run["status"] == "running or interrupted"
    (folder / "history.csv").write_text("")
    data = report([folder], tmp_path)
    assert data["metrics"] == data["axes"] == [] and data["runs"][0]["totals"] == {}


def test_how_runs_ended(tmp_path):
    data = report([make_comparison(tmp_path / "all")], tmp_path)
    status = {run["name"]: run["status"] for run in data["runs"]}
    assert status["simfbo-0"] == "done"
    assert status["fedbio"] == "diverged in round 6"
    assert status["going"] == "running or interrupted"


def test_long_runs_are_thinned_but_counted_whole(tmp_path):
    peak = {"accuracy": lambda t: 1.0 if t == 1234 else t / 10_000}
    folder = make_run(tmp_path / "one", rounds=4000, metrics=peak)
    data = report([folder], tmp_path)
    (run,) = data["runs"]
    rounds = run["costs"]["round"]
    assert data["thinned"] and len(rounds) == 1000 and (rounds[0], rounds[-1]) == (0, 4000)
    assert max(np.diff(rounds)) <= 5 and 1234 not in rounds
    assert run["best"]["accuracy"] == 1.0 and run["final"]["accuracy"] == 0.4


# Grouping, names and differences.


def test_runs_that_differ_only_in_their_seed_are_one_group(tmp_path):
    data = report([make_comparison(tmp_path / "all")], tmp_path)
    groups = {group["label"]: [data["runs"][number]["name"] for number in group["runs"]] for group in data["groups"]}
    assert groups == {
        "fedbio": ["fedbio"],
        "fedavg": ["going"],
        HOSTILE: ["hostile"],
        "simfbo": ["simfbo-0", "simfbo-1", "simfbo-2"],
    }
    assert [data["groups"][run["group"]]["label"] for run in data["runs"]][-3:] == ["simfbo"] * 3


def test_seeds_are_folded_into_a_mean_and_a_spread(tmp_path):
    for seed in range(3):
        make_run(tmp_path / "all" / str(seed), seed=seed, lr=0.1 + 0.2)
    data = report([tmp_path / "all"], tmp_path)
    (group,) = data["groups"]
    assert group["final"]["accuracy"]["mean"] == pytest.approx(0.6)
    assert group["final"]["accuracy"]["spread"] == pytest.approx(np.std([0.5, 0.6, 0.7], ddof=1))
    assert group["ended"] == ["3 done"] and group["costs"]["exchanges"]["spread"] == 0
    assert {"key": "lr", "value": "0.3"} in data["config"]["equal"], "a number with a binary tail"


def test_the_same_seed_twice_is_no_second_seed(tmp_path):
    folders = [make_run(tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 1), ("c", 0))]
    data = report(folders, tmp_path)
    assert [group["runs"] for group in data["groups"]] == [[0, 1], [2]]
    assert [group["label"] for group in data["groups"]] == ["simfbo, seed 0, 1", "simfbo, seed 0"]


def test_groups_of_one_method_are_named_by_what_sets_them_apart(tmp_path):
    for rate in (0.1, 0.2):
        for seed in (0, 1):
            make_run(tmp_path / "all" / f"{rate}-{seed}", seed=seed, method={"lr": {"x": rate, "y": 0.2}})
    make_run(tmp_path / "all" / "fedbio", "fedbio")
    labels = [group["label"] for group in report([tmp_path / "all"], tmp_path)["groups"]]
    assert labels == ["simfbo, lr.x 0.1", "simfbo, lr.x 0.2", "fedbio"]


def test_groups_that_differ_in_much_are_named_by_their_folder(tmp_path):
    much = [dict.fromkeys("abcd", value) for value in (1, 2)]
    folders = [make_run(tmp_path / name, **settings) for name, settings in zip(("p", "q"), much)]
    assert [group["label"] for group in report(folders, tmp_path)["groups"]] == ["simfbo p", "simfbo q"]
    longer = [make_run(tmp_path / name, partition=name * 70) for name in ("r", "s")]
    assert [group["label"] for group in report(longer, tmp_path)["groups"]] == ["simfbo r", "simfbo s"]


def test_names_are_as_short_as_tells_them_apart():
    assert short_names([Path("x/a"), Path("y/b")]) == ["a", "b"]
    assert short_names([Path("x/a"), Path("y/a"), Path("y/b")]) == ["x/a", "y/a", "y/b"]


def test_differences_are_apart_from_what_is_equal(tmp_path):
    make_run(tmp_path / "all" / "a", seed=0, partition="iid", method={"lr": {"x": 0.1}, "steps": 5, "set": None})
    make_run(tmp_path / "all" / "b", seed=1, partition="iid", method={"lr": {"x": 0.2}, "set": None})
    config = report([tmp_path / "all"], tmp_path)["config"]
    assert config["differing"] == [  # what only some have is last; where it was written is no setting
        {"key": "method.lr.x", "values": ["0.1", "0.2"]},
        {"key": "seed", "values": ["0", "1"]},
        {"key": "method.steps", "values": ["5", None]},
    ]
    equal = {row["key"]: row["value"] for row in config["equal"]}
    assert equal["partition"] == "iid" and equal["method.set"] == "none" and equal["task.hidden"] == "64"


def test_the_seeds_of_a_group_are_one_setting(tmp_path):
    config = report([make_run(tmp_path / f"{seed}", seed=seed) for seed in (3, 4)], tmp_path)["config"]
    assert config["differing"] == [] and {"key": "seed", "value": "3, 4"} in config["equal"]


# Folders.


def test_parent_folders_are_searched_two_levels_down(tmp_path):
    root = tmp_path / "root"
    for place in ("run-10", "run-2", "deep/er", "too/deep/for/it", ".run-3.aside"):
        make_run(root / place)
    make_run(root / "run-2" / "inner")  # a run is a run, and what is in it belongs to it
    names = [run["name"] for run in report([root], tmp_path)["runs"]]
    assert names == ["er", "run-2", "run-10"]


def test_a_folder_given_twice_is_there_once(tmp_path):
    run = make_run(tmp_path / "root" / "one")
    assert len(report([run, tmp_path / "root", str(run) + "/../one"], tmp_path)["runs"]) == 1


def test_what_is_no_run_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    path = tmp_path / "report.html"
    for given in ("empty", "missing"):
        with pytest.raises(rk.InputError, match=rf"runs: '.*{given}' holds no history.csv; a run folder, or one with"):
            write_report([make_run(tmp_path / f"fine-{given}"), tmp_path / given], path)
    for given in (str(tmp_path), tmp_path, [], None):
        with pytest.raises(rk.InputError, match=r"runs: .* was given; a list of run folders is needed"):
            write_report(given, path)  # type: ignore[arg-type]
    with pytest.raises(rk.InputError, match="runs: 3 was given; the path of a run folder is needed"):
        write_report([3], path)  # type: ignore[list-item]
    assert not path.exists()


def test_files_that_cannot_be_read_are_refused(tmp_path):
    folder = make_run(tmp_path / "one")
    (folder / "config.json").write_text("{")
    with pytest.raises(rk.InputError, match=r"runs: config.json in '.*' is damaged: Expecting"):
        write_report([folder], tmp_path / "report.html")
    (folder / "config.json").write_text("[1]")
    with pytest.raises(rk.InputError, match=r"runs: config.json in '.*' is damaged: it holds a list and no object"):
        write_report([folder], tmp_path / "report.html")


def test_places_that_cannot_be_written_are_refused(tmp_path):
    run = make_run(tmp_path / "one")
    with pytest.raises(rk.InputError, match=r"path: '.*one' is a folder; the path of a file such as report.html"):
        write_report([run], run)
    with pytest.raises(rk.InputError, match=r"path: '.*config.json/report.html' cannot be written: .*"):
        write_report([run], run / "config.json" / "report.html")


def test_the_page_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    run = make_run(tmp_path / "one")
    place = tmp_path / "new" / "report.html"
    assert write_report([run], place, title="first") == place
    before = place.read_bytes()

    def broken(source, target):
        assert Path(source).read_bytes().endswith(b"</html>\n") and Path(source).parent == place.parent
        raise OSError("no more room")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="no more room"):
        write_report([run], place, title="second")
    assert place.read_bytes() == before and list(place.parent.iterdir()) == [place]
    monkeypatch.undo()
    assert "<title>second</title>" in page_of([run], place, title="second")
    assert place.stat().st_mode & 0o777 == 0o644


# Safety of the page.


def test_hostile_names_stay_text(tmp_path):
    run = make_run(tmp_path / "one", HOSTILE, partition=HOSTILE, metrics={HOSTILE: float})
    plain = page_of([make_run(tmp_path / "plain")], tmp_path / "plain.html", title="plain")
    page = page_of([run], tmp_path / "report.html", title=HOSTILE + "{{data}}")
    assert HOSTILE not in page and "<img" not in page
    assert page.count("<script") == plain.count("<script") and page.count("</script") == plain.count("</script")
    assert f"<title>{html.escape(HOSTILE)}{{{{data}}}}</title>" in page
    data = data_of(page)
    assert data["runs"][0]["method"] == HOSTILE and data["title"] == HOSTILE + "{{data}}"


def test_the_page_needs_nothing_from_outside():
    page = resources.files("rookery.runs").joinpath("report.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert set(re.findall(r"https?://[^\"' )]+", page)) == {"http://www.w3.org/2000/svg"}  # the name of SVG
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|@import|url\(|<link|src=", page)


# The page in a browser.

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium is installed: chromium, chromium-browser, google-chrome"
)

# The page is looked at inside a frame, because a window has a least width; what the script sees is sent out of it.
FRAME = """<!doctype html><body style="margin:0"><pre id="seen"></pre>
<script>addEventListener("message", (event) => { document.getElementById("seen").textContent = event.data; });</script>
<iframe src="page.html" style="border:0;width:%dpx;height:%dpx"></iframe>"""
WATCH = """<script>
const errors = [];
addEventListener("error", (event) => errors.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => errors.push(`${event.violatedDirective} ${event.blockedURI}`));
</script>"""
TOOLS = """
const find = (query) => document.querySelector(query);
const all = (query) => [...document.querySelectorAll(query)];
const text = (query) => find(query).textContent;
const choose = (query, value) => { find(query).value = value; find(query).dispatchEvent(new Event("change")); };
const hover = (share, type = "pointermove", pointerType = "mouse") => {
  const box = find("#plot").getBoundingClientRect();
  const place = { clientX: box.left + box.width * share, clientY: box.top + 100, bubbles: true, pointerType };
  find("#plot").dispatchEvent(new PointerEvent(type, place));
};
const press = (key) => find("#plot").dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const tip = () => find("#tip").hidden ? null : {
  caption: text("#tip caption"),
  rows: all("#tip tr").map((row) => [...row.children].slice(1).map((cell) => cell.textContent)),
};
const overflows = () => document.documentElement.scrollWidth > innerWidth;
const curve = (group) => find(`.run[data-group="${group}"] .mean`)?.getAttribute("d");
"""


def look(page: Path, script: str, folder: Path, width: int = 1440, height: int = 1000, dark: bool = False) -> dict:
    """What a script sees that is put at the end of a copy of the page, opened at some width."""
    folder.mkdir()
    ask = (
        f"<script>{TOOLS}const seen = {{}};{script};seen.errors = errors;parent.postMessage(JSON.stringify(seen), '*')"
    )
    content = page.read_text(encoding="utf-8").replace("<head>", f"<head>{WATCH}", 1)
    (folder / "page.html").write_text(content.replace("</body>", f"{ask}</script></body>"), encoding="utf-8")
    (folder / "frame.html").write_text(FRAME % (width, height))
    command = [
        str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic",
        "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000", f"--window-size={max(width, 800)},{height}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", (folder / "frame.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.search(r'<pre id="seen">(.+?)</pre>', done.stdout, re.DOTALL)
    assert found, f"the page said nothing; chromium: {done.stderr[-2000:]}"
    seen = json.loads(html.unescape(found[1]))
    assert seen.pop("errors") == []
    return seen


SCRIPT = """
seen.made = text("#made");
seen.title = [document.title, text("h1")];
seen.images = all("img").length;
seen.metrics = all("#metric option").map((option) => option.textContent);
seen.axes = all("#axis option").map((option) => option.value);
seen.overflow = overflows();
seen.methods = all("#methods tr").map((row) => [...row.children].map((cell) => cell.textContent));
seen.drawn = all(".run").map((run) => [run.querySelectorAll(".mean").length, run.querySelectorAll(".seed").length, run.querySelectorAll(".band").length]);

const before = [text("#x-label"), curve(0)];
seen.labels = {};
for (const axis of seen.axes) { choose("#axis", axis); seen.labels[axis] = text("#x-label"); }
choose("#axis", "bytes");
seen.moved = curve(0) !== before[1];
seen.ticks = all(".axis text").map((element) => element.textContent);
choose("#axis", "exchanges");
seen.back = text("#x-label") === before[0] && curve(0) === before[1];
choose("#metric", 1);
seen.loss = text("#y-label");
choose("#metric", 0);

hover(0.5);
seen.hover = tip();
seen.legend = all("#legend .entry").map((entry) => [...entry.children].slice(1).map((part) => part.textContent));
seen.dots = all(".cross circle").length;
find("#plot").dispatchEvent(new PointerEvent("pointerleave", { pointerType: "mouse" }));
seen.left = tip();
seen.finals = all("#legend .value").map((value) => value.textContent);
find("#plot").focus();
press("End");
seen.end = tip();
press("ArrowLeft");
seen.previous = tip().caption;
press("Escape");
seen.escaped = tip();
choose("#axis", "seconds");
hover(0.3);
seen.seconds = tip();
choose("#axis", "exchanges");

find("#log-y").click();
seen.log = [text("#y-label"), text("#notes"), curve(3)];
find("#log-y").click();
find("#log-x").click();
seen.logx = [text("#x-label"), all(".axis text").map((element) => element.textContent)];
find("#log-x").click();

const entry = all("#legend .entry")[3];
seen.pressed = [entry.tagName, entry.getAttribute("aria-pressed"), all(".run").length];
entry.click();
seen.unpressed = [entry.getAttribute("aria-pressed"), all(".run").length, curve(3) ?? null];
find("#none").click();
seen.none = [all(".run").length, text("#plot")];
find("#all").click();
seen.all = [all(".run").length, entry.getAttribute("aria-pressed")];

const names = () => all("#summary tbody th").map((cell) => cell.textContent);
const heading = (title) => all("#summary thead th").find((cell) => cell.textContent === title);
seen.headings = all("#summary thead th").map((cell) => cell.textContent);
seen.cells = all("#summary tbody tr").map((row) => [...row.children].map((cell) => cell.textContent));
seen.orders = [];
for (const title of ["final accuracy", "final accuracy", "run"]) {
  heading(title).querySelector("button").click();
  seen.orders.push([names(), all("#summary thead th").map((cell) => cell.getAttribute("aria-sort")).filter((sort) => sort !== "none")]);
}
seen.stars = all(".top").map((cell) => [cell.closest("tr").firstChild.textContent, cell.textContent]);

seen.differing = all(".differs tbody tr").map((row) => [...row.children].map((cell) => cell.textContent));
seen.mark = getComputedStyle(find(".differs tbody th"), "::before").content;
seen.details = [find("details").open, text("summary"), all("details tr").length];
"""

# The contrast of every visible piece of text against what is behind it, and the colours of curves against their card.
CONTRAST = """
const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
const luminance = (colour) => {
  const [r, g, b] = channels(colour).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ratio = (a, b) => {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};
const behind = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = getComputedStyle(e).backgroundColor;
    if (colour !== "rgba(0, 0, 0, 0)") return colour;
  }
};
const contrasts = () => all("body *").filter((e) => !e.closest("script, noscript") && e.checkVisibility()
  && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())).map((e) => {
    const style = getComputedStyle(e);
    return [ratio(e.closest("svg") ? style.fill : style.color, behind(e)), e.textContent.slice(0, 40)];
  }).sort((a, b) => a[0] - b[0]);
const strokes = () => all(".swatch line").map((e) => ratio(getComputedStyle(e).stroke, behind(e))).sort((a, b) => a - b);
const ground = () => getComputedStyle(document.body).backgroundColor;
find("details").open = true;
hover(0.5);
all("#legend .entry")[1].click();
seen.first = { text: contrasts().slice(0, 3), curves: strokes()[0], ground: ground(), button: text("#theme"), overflow: overflows() };
find("#theme").click();
seen.second = { text: contrasts().slice(0, 3), curves: strokes()[0], ground: ground(), button: text("#theme") };
seen.kept = sessionStorage.length === 1 && localStorage.length === 0;
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return write_report([make_comparison(folder / "all")], folder / "report.html", title=f"Six runs {HOSTILE}")


@pytest.fixture(scope="module")
def seen(page, tmp_path_factory):
    return look(page, SCRIPT, tmp_path_factory.mktemp("browser") / "look")


@browser
def test_the_page_says_what_it_is(seen):
    assert seen["title"] == [f"Six runs {HOSTILE}"] * 2 and seen["images"] == 0
    assert re.fullmatch(
        rf"Made \d{{4}}-\d\d-\d\d \d\d:\d\d [+-]\d{{4}} by Rookery {re.escape(rk.__version__)}, from 6 runs of 4 configurations",
        seen["made"],
    )
    assert seen["metrics"] == ["accuracy", "loss"]
    assert seen["axes"] == ["exchanges", "bytes", "samples", "gradients", "seconds", "round"]
    assert not seen["overflow"]


@browser
def test_methods_have_a_row_each_with_the_metric_first(seen):
    head, first, *_ = seen["methods"]
    assert head[:4] == ["method", "accuracy", "loss", "seeds"]
    assert first[:2] == ["simfbo", "0.6000 \u00b1 0.0816"] and first[-1] == "3 done"


@browser
def test_seeds_are_drawn_as_a_mean_a_band_and_thin_lines(seen):
    assert seen["drawn"] == [[1, 0, 0], [1, 0, 0], [1, 0, 0], [1, 3, 1]]


@browser
def test_the_axis_can_be_switched(seen):
    assert seen["labels"] == {
        "exchanges": "exchanges",
        "bytes": "bytes, up and down",
        "samples": "samples",
        "gradients": "gradients",
        "seconds": "seconds",
        "round": "rounds",
    }
    assert seen["moved"] and seen["back"]
    assert [tick.replace("\u202f", " ") for tick in seen["ticks"]][:3] == ["0", "5 MB", "10 MB"]
    assert seen["loss"] == "loss, lower is better"


@browser
def test_the_crosshair_shows_every_run(seen):
    exchanges = int(seen["hover"]["caption"].removeprefix("exchanges "))
    assert 10 <= exchanges <= 18
    at = lambda slope, each: f"{slope * exchanges / each:.4g}"
    rows = {label: (float(value.lstrip("≈\u202f")), more) for label, value, *more in seen["hover"]["rows"]}
    spread = [f"{0.025 * exchanges:.4g}", f"{0.2 + 0.025 * exchanges:.4g}"]
    assert rows["simfbo"][0] == pytest.approx(0.1 + 0.025 * exchanges, abs=1e-4)
    assert [float(part) for part in rows["simfbo"][1][0].split(" to ")] == pytest.approx(
        list(map(float, spread)), abs=1e-4
    )
    assert rows["fedbio"][0] == pytest.approx(float(at(0.05, 3)), abs=1e-3)
    assert rows["fedavg"] == (0.2, ["ended at 4"])
    values = [value for value, _ in rows.values()]
    assert values == sorted(values, reverse=True) and len(rows) == 4
    assert {label: float(value.lstrip("≈\u202f")) for label, value, _ in seen["legend"]} == {
        label: value for label, (value, _) in rows.items()
    }
    assert seen["left"] is None


@browser
def test_values_between_evaluations_are_marked(seen):
    assert re.fullmatch(r"seconds [\d.]+\u202fs", seen["seconds"]["caption"])
    assert any(value.startswith("≈") for _, value, *_ in seen["seconds"]["rows"])


@browser
def test_the_crosshair_follows_keys(seen):
    assert seen["end"]["caption"] == "exchanges 20" and seen["previous"] == "exchanges 18" and seen["escaped"] is None
    ends = {label: (value, *more) for label, value, *more in seen["end"]["rows"]}
    assert ends["simfbo"] == ("0.6000", "0.5000 to 0.7000")
    assert ends["fedbio"] == ("0.2500", "ended at 15") and ends["fedavg"] == ("0.2000", "ended at 4")
    assert seen["finals"] == ["0.2500", "0.2000", "0.5000", "0.6000"]


@browser
def test_log_scales(seen):
    label, notes, curve = seen["log"]
    assert label == "accuracy, log scale" and "NaN" not in curve and "Infinity" not in curve
    assert "What is not above zero has no place on a log axis and is left out." in notes
    assert seen["logx"] == ["exchanges, log scale", ["1", "2", "5", "10", "20"]]


@browser
def test_the_legend_shows_and_hides_runs(seen):
    assert seen["pressed"] == ["BUTTON", "true", 4] and seen["unpressed"] == ["false", 3, None]
    assert seen["none"] == [0, "All runs are hidden; choose some in the legend."]
    assert seen["all"] == [4, "true"]


@browser
def test_the_summary_has_every_run_and_can_be_sorted(seen):
    assert seen["headings"] == [
        "run", "method", "seed", "status", "rounds", "exchanges", "MB up", "MB down", "samples", "gradients", "seconds",
        "final accuracy", "highest accuracy", "final loss", "lowest loss",
    ]  # fmt: skip
    cells = {row[0]: row for row in seen["cells"]}
    assert cells["simfbo-2"][1:11] == ["simfbo", "2", "done", "10", "20", "10.0", "20.0", "1,000", "3,000", "7.00"]
    assert cells["simfbo-2"][11:] == ["0.7000", "0.7000", "1.200", "1.200"]
    assert cells["going"][3:5] == ["running or interrupted", "4 of 10"]
    (rising, up), (dropping, down), (named, again) = seen["orders"]
    assert rising[:2] == ["going", "fedbio"] and rising[-2:] == ["simfbo-1", "simfbo-2"]
    assert dropping[:2] == ["simfbo-2", "simfbo-1"] and dropping[-1] == "going"
    assert named == sorted(named) and (up, down, again) == (["ascending"], ["descending"], ["ascending"])
    assert ["simfbo-2", "0.7000"] in seen["stars"]
    assert {name for name, value in seen["stars"] if value == "1.000"} == {"hostile", "simfbo-0"}


@browser
def test_differing_settings_are_marked_and_equal_ones_folded(seen):
    rows = {key: values for key, *values in seen["differing"]}
    assert rows["method_name"] == ["fedbio", "fedavg", HOSTILE, "simfbo"]
    assert rows["method.lr.x"] == ["0.2", "0.3", "0.2", "0.2"] and rows["partition"] == ["–", "–", HOSTILE, "–"]
    assert "≠" in seen["mark"]
    is_open, says, count = seen["details"]
    assert not is_open and says == f"{count} settings equal in all"


@browser
@pytest.mark.parametrize(("width", "dark"), [(390, True), (1440, False)])
def test_both_themes_can_be_read_at_both_widths(page, tmp_path, width, dark):
    seen = look(page, CONTRAST, tmp_path / "look", width=width, dark=dark)
    assert not seen["first"]["overflow"] and seen["kept"]
    for theme in (seen["first"], seen["second"]):
        assert theme["text"][0][0] >= 4.5, theme["text"]
        assert theme["curves"] >= 3
    grounds = [seen["first"]["ground"], seen["second"]["ground"]]
    assert len(set(grounds)) == 2 and (min(grounds, key=brightness) == grounds[0]) == dark
    assert [seen["first"]["button"], seen["second"]["button"]] == ["Light theme", "Dark theme"][:: 1 if dark else -1]


def brightness(colour: str) -> int:
    return sum(map(int, re.findall(r"\d+", colour)))


@browser
def test_sixty_runs_on_a_phone(tmp_path):
    for number in range(60):
        metrics = {"distance": lambda t: (number + 1) * 10.0 ** (-t)}
        name = f"2026-01-01_00-00-{number:02d}_hyperrep_a_method_with_a_long_name_{number}"
        make_run(tmp_path / "all" / name, f"a_long_method_name_{number}", metrics=metrics, tag="x" * 300 + str(number))
    page = write_report([tmp_path / "all"], tmp_path / "report.html")
    script = """
    find("#log-y").click();
    hover(0.5, "pointerdown", "touch");
    seen.tip = [tip().rows.length, text("#tip p")];
    seen.inside = [0.1, 0.4, 0.6, 0.98].map((share) => {
      hover(share);
      const { left, right } = find("#tip").getBoundingClientRect();
      return left >= 0 && right <= innerWidth;
    });
    seen.scrolled = all(".wide").filter((box) => box.checkVisibility()).map((box) => {
      box.scrollLeft = 10000;
      return box.scrollLeft > 0 && box.getBoundingClientRect().right <= innerWidth;
    });
    seen.legend = all("#legend .value").filter((value) => value.textContent !== "–").length;
    seen.ticks = all(".grid text").map((element) => element.textContent);
    seen.looks = new Set(all(".run .mean").map((line) => getComputedStyle(line).stroke + line.getAttribute("stroke-dasharray"))).size;
    seen.overflow = overflows();
    """
    seen = look(page, script, tmp_path / "look", width=390)
    shown, more = seen["tip"]
    assert 5 <= shown < 60 and more == f"and {60 - shown} more, in the legend"
    assert seen["inside"] == [True] * 4 and seen["scrolled"] == [True] * 2
    assert seen["legend"] == 60 and seen["looks"] == 28 and not seen["overflow"]
    assert "10⁻⁶" in seen["ticks"]


@browser
def test_gaps_and_single_points_are_drawn(tmp_path):
    gaps = {"loss": lambda t: math.nan if t in (3, 4) else 5.0, "x": lambda t: 7.0 if t == 2 else math.nan}
    page = write_report([make_run(tmp_path / "one", metrics=gaps)], tmp_path / "report.html")
    script = """
    seen.strokes = curve(0).match(/M/g).length;
    seen.numbers = /NaN|Infinity/.test(curve(0));
    choose("#metric", 1);
    seen.points = all(".run circle").length;
    seen.final = text("#legend .value");
    seen.config = [text("#config-says"), find("details").open];
    """
    seen = look(page, script, tmp_path / "look")
    assert seen == {"strokes": 2, "numbers": False, "points": 1, "final": "–", "config": ["", True]}


@browser
def test_runs_without_metrics_get_a_sentence(tmp_path):
    page = write_report([make_run(tmp_path / "one", metrics={})], tmp_path / "report.html")
    script = "seen.plot = text('#plot'); seen.controls = find('#controls').checkVisibility(); seen.rows = all('#summary tbody tr').length; hover(0.5); press('End');"
    seen = look(page, script, tmp_path / "look")
    sentence = "These runs recorded no metrics, so there are no curves to draw."
    assert seen == {"plot": sentence, "controls": False, "rows": 1}
