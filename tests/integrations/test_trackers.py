"""Trackers take the same call; importing easgd loads none of the packages behind them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import easgd
from easgd.integrations import trackers

METRICS = [{"easgd/distance": 2.0, "loss": 1.0}, {"easgd/distance": 1.0, "loss": 0.5}]


def log(tracker: trackers.Tracker) -> None:
    for step, metrics in enumerate(METRICS):
        tracker.log(metrics, step)


def test_tensorboard(tmp_path: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tracker = trackers.TensorBoard(tmp_path)
    log(tracker)
    tracker.close()
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("easgd/distance")] == [(0, 2.0), (1, 1.0)]


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb", reason="needs easgd[wandb]")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracker = trackers.WandB("digits", mode="offline", dir=str(tmp_path))
    log(tracker)
    tracker.close()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("mlflow", reason="needs easgd[mlflow]")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the small package has no database, and a test no server
    folder = tmp_path.as_uri()
    tracker = trackers.MLflow("digits", tracking_uri=folder)
    log(tracker)
    history = tracker.client.get_metric_history(tracker.run_id, "easgd/distance")
    assert [(m.step, m.value) for m in history] == [(0, 2.0), (1, 1.0)]
    tracker.close()
    assert trackers.MLflow("digits", tracking_uri=folder).run_id != tracker.run_id


@pytest.mark.parametrize(
    ("make", "package"),
    [
        (lambda: trackers.TensorBoard("events"), "tensorboard"),
        (lambda: trackers.WandB("digits"), "wandb"),
        (lambda: trackers.MLflow("digits"), "mlflow"),
    ],
)
def test_a_missing_package_is_one_line(make, package, monkeypatch):
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        easgd.SettingError, match=rf"^the .* tracker needs {package}, .*; pip install 'easgd\[{package}\]'$"
    ):
        make()


@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_a_missing_framework_is_one_line(framework):
    code = f"import sys; sys.modules[{framework!r}] = None; import easgd.integrations.{framework}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith(f"pip install 'easgd[{framework}]'")


def test_importing_easgd_loads_none_of_the_extras():
    code = (
        "import sys, easgd; easgd.attach, easgd.run, easgd.simulate, easgd.EASGD\n"
        "print({'ray', 'lightning', 'transformers', 'accelerate', 'wandb', 'mlflow', 'tensorboard'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr
