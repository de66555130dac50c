"""What a worker and a shard of the center say to each other, whatever carries it.

A request names its exchange by (worker, incarnation, fragment, sequence): a shard applies each at most once and answers
a second asking with the first answer. Every fragment of the vector has its own sequence, for a shard is asked only for
those that it has a part of. A reply carries the center's version, its epoch (how often this shard began anew from a
checkpoint) and who lives.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Protocol

from torch import Tensor


class Kind(IntEnum):
    """What a request asks a shard to do."""

    EXCHANGE = 0
    """Apply the message, answer it."""
    PULL = 1
    """Answer x̃, change nothing."""
    PUSH = 2
    """Apply the message, answer nothing."""
    TOGETHER = 3
    """Meet the others in a synchronous round, with a message."""
    MEET = 4
    """Meet the others in a synchronous round, with none."""
    BEGIN_AVERAGE = 5
    """Begin the time average anew, answer nothing."""


class Status(IntEnum):
    """How a shard answered a request."""

    DONE = 0
    PLAIN = 1
    """Done; the answer is x̃ in float32, whatever the compression: the two ends have no common value yet."""
    REFUSED = 2
    """The message is not finite, or too far from the center (`easgd.center.guard`)."""
    ZOMBIE = 3
    """A later incarnation of this worker is in the run, or this one is known to be dead."""
    BLANK = 4
    """The shard has just been restarted and has no value yet; ask again."""
    LOST = 5
    """Applied before the shard went back to a checkpoint; the answer is gone with what came after it."""
    WAIT = 6
    """The synchronous round is not complete; ask again."""
    SEND_IN_FULL = 7
    """Nothing was applied: the message is a change of a value that this shard does not have, send it in float32."""


class Request(NamedTuple):
    """The head of a message to a shard.

    `pace` is what the worker brings where the period sets itself. `codec` packs this worker's messages and answers;
    None is the one that the center was opened with. `in_full` says that this message is in float32 nevertheless, and
    that both ends take changes from it on (see `easgd.compress`).
    """

    center: str
    rank: int
    incarnation: int
    sequence: int
    kind: int
    scale: float
    fragment: int = 0
    pace: float = 0.0
    codec: str | None = None
    in_full: bool = False


class Reply(NamedTuple):
    """The head of a shard's answer.

    `waited` is the time that others' exchanges took on the shard meanwhile, `slowest` the largest pace of all workers,
    after a round of those that met in it. Of a refused message, `update_sqnorm` is the square of its distance, and
    `bound` what it may have been at most.
    """

    status: int
    version: int = 0
    epoch: int = 0
    living: int = 1
    update_sqnorm: float = 0.0
    waited: float = 0.0
    bound: float = 0.0
    slowest: float = 0.0


class ShardLink(Protocol):
    """A way to one shard."""

    def send(self, request: Request, payload: Tensor | None) -> None:
        """Send one request; the payload stays as it is until the reply."""

    def receive(self, seconds: float, into: Tensor) -> tuple[Reply, int]:
        """Wait for the reply; the answer's bytes go into `into`, their number is returned.

        Raises `LinkError` when it does not come: the request may have been applied or not.
        """

    def close(self) -> None:
        """Release the connection."""


class LinkError(Exception):
    """A shard did not answer."""
