"""Sharing accelerators out to workers: literal cases that a reader can check by hand."""

from __future__ import annotations

import pytest

from easgd.launch.accelerators import Accelerators, share


def shares(devices, workers, per_worker=None):
    names = [str(k) for k in range(devices)]
    return ["".join(share(names, workers, rank, per_worker)) for rank in range(workers)]


@pytest.mark.parametrize(
    ("devices", "workers", "per_worker", "expected"),
    [
        (4, 4, None, ["0", "1", "2", "3"]),
        (4, 2, None, ["01", "23"]),
        (5, 2, None, ["01", "23"]),
        (2, 4, None, ["0", "1", "0", "1"]),
        (2, 3, None, ["0", "1", "0"]),
        (1, 3, None, ["0", "0", "0"]),
        (4, 2, 1, ["0", "1"]),
        (4, 2, 2, ["01", "23"]),
        (4, 3, 2, ["01", "23", "01"]),
        (3, 3, 2, ["01", "20", "12"]),
        (2, 2, 8, ["01", "01"]),
        (2, 4, 0.5, ["0", "0", "1", "1"]),
        (4, 2, 0, ["", ""]),
        (0, 2, None, ["", ""]),
        (0, 2, 1, ["", ""]),
    ],
)
def test_shares(devices, workers, per_worker, expected):
    assert shares(devices, workers, per_worker) == expected


@pytest.mark.parametrize("devices", range(1, 9))
@pytest.mark.parametrize("workers", range(1, 20))
def test_no_device_has_two_workers_more_than_another(devices, workers):
    seen = "".join(shares(devices, workers))
    counts = [seen.count(str(k)) for k in range(devices)]
    assert max(counts) - min(counts) <= 1
    assert all(shares(devices, workers)), "each worker sees a device"


def test_a_worker_that_joins_later_shares():
    assert share(["0", "1"], 2, rank=2) == ["0"]
    assert share(["0", "1"], 2, rank=3) == ["1"]


@pytest.mark.parametrize(
    ("kind", "variable"),
    [
        ("cuda", "CUDA_VISIBLE_DEVICES"),
        ("hip", "HIP_VISIBLE_DEVICES"),
        ("npu", "ASCEND_RT_VISIBLE_DEVICES"),
        ("xpu", "ZE_AFFINITY_MASK"),
    ],
)
def test_each_kind_has_its_variable(kind, variable):
    four = Accelerators(kind, 4, 2, None, {})
    assert [four.environment(rank) for rank in (0, 1)] == [{variable: "0,1"}, {variable: "2,3"}]
    assert four.sharing() is None


def test_nothing_is_set_without_an_accelerator():
    assert Accelerators(None, 0, 2, 1, {}).environment(0) == {}
    assert Accelerators("cuda", 0, 2, 1, {}).environment(0) == {}
    assert Accelerators(None, 0, 2, 1, {}).sharing() is None


@pytest.mark.parametrize("variable", ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_a_variable_that_the_user_has_set_stays(variable):
    mine = Accelerators("hip", 4, 2, None, {variable: "2,3"})
    assert mine.environment(0) == {}
    assert mine.sharing() is None


def test_asked_for_by_number_the_users_devices_are_shared_out():
    mine = Accelerators("cuda", 8, 2, 1, {"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b"})
    assert [mine.environment(rank)["CUDA_VISIBLE_DEVICES"] for rank in (0, 1)] == ["GPU-a", "GPU-b"]


def test_sharing_is_said_in_one_line():
    line = Accelerators("cuda", 2, 4, None, {}).sharing()
    assert line == "4 workers share 2 accelerators (CUDA_VISIBLE_DEVICES)"
    assert Accelerators("cuda", 2, 4, 0.5, {}).sharing() is not None
    assert Accelerators("cuda", 2, 4, 0, {}).sharing() is None
