"""A Ray that starts slowly: on a busy machine its node is known later than after Ray's own 30 s."""

from __future__ import annotations

import pytest

from easgd.engines.ray import private

services = pytest.importorskip("ray._private.services")


def unknown_for(times, monkeypatch):
    """Let Ray's look-up of a node fail so often, as it does until the node has registered."""
    left = [times]

    def get_node(address, node):
        if left[0] > 0:
            left[0] -= 1
            raise RuntimeError(f"{node} is not known at {address}")
        return {"NodeID": node}

    monkeypatch.setattr(services, "get_node", get_node)
    return get_node


def test_one_look_waits_until_the_node_is_known(monkeypatch):
    """Ray looks again only while its own 30 s last: the look itself must not fail before."""
    own = unknown_for(2, monkeypatch)
    with private.patient_start():
        assert services.get_node("127.0.0.1:1", node="a") == {"NodeID": "a"}
    assert services.get_node is own


def test_a_node_that_never_comes_is_given_up(monkeypatch):
    own = unknown_for(10**9, monkeypatch)
    with private.patient_start(0.0), pytest.raises(RuntimeError, match="a is not known"):
        services.get_node("127.0.0.1:1", node="a")
    assert services.get_node is own
