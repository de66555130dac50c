"""One exchange more, between two periods, for a worker that was told to end: its steps must not be lost."""

from __future__ import annotations

from easgd.worker.exchange import Exchange


def last_exchange(exchange: Exchange) -> None:
    """Complete what is under way, then let the center have the steps that came after it.

    A synchronous round is left out: the others are not there. A method without messages of its own (ADMM, the
    sequential ones) has told the center of every step.
    """
    state, client, method = exchange.state, exchange.client, exchange.method
    exchange.settle()
    under_way, exchange.in_flight = exchange.in_flight, []
    for flight in under_way:
        if flight.answer is not None and method.delay:
            state.complete(flight.answer, flight.fragment)
    if exchange.schedule == "sync" or method.sequential or not state.clock:
        return
    state.prepare()
    # An exchange of the present step says that the center has seen this very x; else steps were taken since.
    seen = {flight.fragment for flight in under_way if flight.asked == state.clock and not flight.refused}
    scale = method.scale(state.replica.lr, client.living, exchange.workers)
    for fragment in set(range(method.fragments)) - seen:
        message = method.send(state.parts[fragment], state.slots[fragment])
        if message is not None:
            taken = client.exchange(message.clone(), scale, fragment) is not None
            exchange.recorder.event("last exchange" if taken else "refused", f"step {state.clock}")
