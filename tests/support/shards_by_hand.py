"""Shards of the center in this process, and requests to them, for tests."""

from __future__ import annotations

import torch

import easgd
from easgd.compress import Float32
from easgd.engines.ray.messages import Kind, Request, Status
from easgd.engines.ray.shard import Shard

N = 3000
ELASTIC = easgd.EASGD(period=1, moving_rate=0.5)


def ask(shard, rank, sequence, vector=None, kind=Kind.EXCHANGE, incarnation=0, scale=0.5, pace=0.0):
    in_full = shard.codec.coarse and shard.center.method.is_elastic
    codec = Float32() if in_full else shard.codec
    message = None if vector is None else codec.encode(vector).clone()
    request = Request("center", rank, incarnation, sequence, kind, scale, 0, pace, in_full=in_full)
    reply, answer = shard.exchange(request, message)
    return Status(reply.status), reply, answer


def floats(answer):
    return answer.view(torch.float32)


def enroll(shard, members, dead):
    shard.enroll(shard.serial + 1, members, dead)


def make(method=ELASTIC, codec=None, start=None):
    shard = Shard(method, codec, method.center_slots(torch.zeros(N) if start is None else start))
    enroll(shard, [0, 1], {})
    return shard


def settled(method=ELASTIC, members=(0, 1, 2)):
    """A guarded shard on which all workers are at a distance of about 1."""
    shard = Shard(method, None, method.center_slots(torch.ones(N)), guard=30.0)
    enroll(shard, list(members), {})
    for sequence in range(3):
        for rank in members:
            near = shard.center.x + N**-0.5 if method is ELASTIC else torch.full((N,), N**-0.5)
            assert ask(shard, rank, sequence, near, scale=0.1)[0] == Status.DONE
    return shard
