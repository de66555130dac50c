"""Run folders written by hand: the numbers in them are the reader's to check."""

import json

from easgd.training.config import Config

ENVIRONMENT = {"easgd": "0.1.0", "torch": "2.13.0", "python": "3.11.2", "platform": "Linux", "cpus": 2, "git": "abc"}


def evaluations(times, errors, step=10):
    """Lines of evaluations.jsonl: losses are five times the error, to be told apart from it."""
    return [
        {
            "time": t, "steps": i * step, "version": i, "bytes": 1000 * i, "train_loss": 4 * e, "test_loss": 5 * e,
            "test_error": e,
        }
        for i, (t, e) in enumerate(zip(times, errors, strict=True))
    ]  # fmt: skip


def steps(worker, count=20, every=0.5, **more):
    """Steps of one worker: 0.3 s compute, 0.05 s data, 0.1 s communication, 0.05 s waiting; exchange every fifth."""
    return [
        {
            "event": "step", "worker": worker, "clock": i, "time": (i + 1) * every, "compute": 0.3, "data": 0.05,
            "communication": 0.1, "waiting": 0.05, "staleness": 3 if i % 5 == 0 else None,
            "distance": 2.0 if i % 5 == 0 else None, "bytes": 100 if i % 5 == 0 else 0, **more,
        }
        for i in range(count)
    ]  # fmt: skip


def write_run(path, times=(0, 1, 2, 3), errors=(0.9, 0.4, 0.2, 0.1), records=None, state="finished", **settings):
    """Write a whole run folder; settings are those of `Config`."""
    path.mkdir(parents=True)
    config = Config(**{"engine": "simulate", "seconds": 3, **settings}).resolved()
    (path / "config.json").write_text(json.dumps(config.as_dict()))
    (path / "environment.json").write_text(json.dumps(ENVIRONMENT))
    (path / "status.json").write_text(json.dumps({"state": state, "reason": "", "seconds": 1.0}))
    write_lines(path / "evaluations.jsonl", evaluations(times, errors))
    if records is None:
        records = [step for worker in range(config.workers) for step in steps(worker)]
    write_lines(path / "records-simulate.jsonl", records)
    return path


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def comparison(folder):
    """Three methods by hand: MSGD reaches 10 % at 8 s, EASGD at 4 s, EAMSGD at 2 s and alone 5 % at 4 s."""
    write_run(folder / "msgd", (0, 2, 4, 8), (0.9, 0.5, 0.2, 0.1), method="msgd")
    write_run(folder / "easgd", (0, 2, 4, 8), (0.9, 0.3, 0.1, 0.08), method="easgd")
    write_run(folder / "eamsgd", (0, 2, 4, 8), (0.9, 0.1, 0.05, 0.06), method="eamsgd")
    return folder
