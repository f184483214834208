"""The TensorBoard callback: what it writes is read back with tensorboard's own reader."""

from __future__ import annotations

import math
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.runs.tensorboard import TensorBoard

# What tensorboard, protobuf and grpc warn of on import is theirs to mend.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

ROW = {"round": 3, "exchanges": 6, "bytes_up": 4 * 10**12, "seconds": 0.5, "accuracy": 0.75, "loss": math.nan}


@pytest.fixture
def reader():
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    def read(folder):
        events = EventAccumulator(str(folder)).Reload()
        return {
            tag: [(event.step, float(make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)]
            for tag in events.Tags()["tensors"]
        }

    return read


def test_every_metric_and_cost_of_a_run_is_logged_against_the_round(tmp_path, reader):
    clients = rk.federate([{"a": np.array([1.0])}, {"a": np.array([3.0])}])
    problem = rk.Single(lambda x, e: 0.5 * e["a"] * (x - 1) ** 2)
    with TensorBoard(tmp_path / "logs") as log:
        result = rk.run(
            problem,
            rk.FedAvg(lr=0.1),
            clients,
            x=0.0,
            rounds=6,
            every=2,
            metrics=lambda z: {"distance": jnp.abs(z.x - 1)},
            callbacks=[log],
        )
    logged = reader(tmp_path / "logs")
    history = result.history
    assert set(logged) == {
        "metrics/distance",
        *(f"costs/{name}" for name in history if name not in ("round", "distance")),
    }
    for tag, points in logged.items():
        assert [step for step, _ in points] == history["round"].tolist() == [0, 2, 4, 6]
        np.testing.assert_allclose([value for _, value in points], history[tag.split("/")[1]], rtol=1e-6)


def test_rows_can_be_read_while_the_run_goes(tmp_path, reader):
    log = TensorBoard(tmp_path)
    log(3, ROW)
    logged = reader(tmp_path)
    assert logged["metrics/accuracy"] == [(3, 0.75)] and logged["costs/exchanges"] == [(3, 6.0)]
    assert logged["costs/bytes_up"][0][1] == pytest.approx(4e12)
    assert math.isnan(logged["metrics/loss"][0][1]) and "costs/round" not in logged
    log.close()


def test_a_value_too_large_for_the_file_is_infinite_there(tmp_path, reader):
    with TensorBoard(str(tmp_path)) as log:
        log(0, ROW | {"loss": 1e60})
    assert reader(tmp_path)["metrics/loss"] == [(0, math.inf)]


def test_a_closed_log_says_so(tmp_path, reader):
    log = TensorBoard(tmp_path)
    log.close()
    log.close()
    with pytest.raises(rk.InputError, match=r"callbacks: the log in .* is closed; make a new TensorBoard for this run"):
        log(0, ROW)


def test_folders_that_cannot_be_are_refused(tmp_path, reader):
    (tmp_path / "file").write_text("")
    with pytest.raises(rk.InputError, match=r"folder: '.*file/logs' cannot be written: Not a directory"):
        TensorBoard(tmp_path / "file" / "logs")
    with pytest.raises(rk.InputError, match="folder: 3 was given; the path of a folder is needed"):
        TensorBoard(3)  # type: ignore[arg-type]


def test_without_tensorboard_there_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    with pytest.raises(rk.InputError, match="tensorboard is not installed; install it with pip install tensorboard"):
        TensorBoard(tmp_path)


def test_neither_tensorflow_nor_torch_is_imported(tmp_path, reader):
    code = (
        "import sys\n"
        "sys.modules.update(tensorflow=None, torch=None)\n"
        "from rookery.runs.tensorboard import TensorBoard\n"
        "assert not any(name.split('.')[0] == 'tensorboard' for name in sys.modules)\n"
        f"with TensorBoard({str(tmp_path)!r}) as log: log(1, {{'round': 1, 'accuracy': 0.5}})\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert reader(tmp_path) == {"metrics/accuracy": [(1, 0.5)]}
