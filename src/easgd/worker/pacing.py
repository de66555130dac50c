"""How a worker of a real run comes to its period where `period="auto"`: see `easgd.worker.period`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from easgd.worker.in_flight import InFlight

if TYPE_CHECKING:
    from easgd.worker.exchange import Exchange


def set_period(exchange: Exchange, completed: list[InFlight]) -> None:
    """At the end of a step: measure it and the exchanges that it completed; change the period if they ask for it.

    In synchronous rounds every worker brings the period that it would take, and all take the longest of a round.
    """
    controller = exchange.state.controller
    if controller is None or exchange.state.alone:
        return
    client = exchange.client
    controller.hidden = exchange.hides and not exchange.moves
    controller.follows = exchange.schedule == "async" and exchange.method.delay > 0
    controller.workers = client.living
    controller.stepped(exchange.recorder.worked())
    for flight in completed:
        # Where gradients are a device's, the processor is free.
        controller.exchanged(flight.seconds, flight.work if exchange.replica.params[0].device.type == "cpu" else 0.0)
    if controller.fresh:
        controller.assess()
    change = None
    if exchange.schedule == "sync":
        if controller.last == exchange.state.clock - 1:  # the step began with a round
            change = controller.adopt(round(client.slowest) or controller.period)
        client.pace = controller.proposal()
    elif completed:
        client.pace = controller.interval
        change = controller.adopt(controller.proposal(client.slowest))
    if change is not None:
        exchange.recorder.event("period", change)
