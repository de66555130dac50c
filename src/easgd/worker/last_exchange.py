"""One exchange more, between two periods, for a worker that was told to end: its steps must not be lost."""

from __future__ import annotations

from easgd.worker.exchange import Exchange


def last_exchange(exchange: Exchange) -> None:
    """Complete what is under way, then let the center have the steps that came after it.

    A synchronous round is left out: the others are not there. A method without messages of its own (ADMM, the
    sequential ones) has told the center of every step.
    """
    state, client = exchange.state, exchange.client
    exchange.settle()
    answer, exchange.answer = exchange.answer, None
    if answer is not None and not state.method.waits:
        state.method.finish(state.replica, state.slots, answer)
    # An answer says that the center has seen this very x; else steps were taken since.
    if answer is not None or exchange.schedule == "sync" or state.method.sequential or not state.clock:
        return
    state.prepare()
    if (message := state.message()) is None:
        return
    scale = state.method.scale(state.replica.lr, client.living, exchange.workers)
    taken = client.exchange(message.clone(), scale) is not None
    exchange.recorder.event("last exchange" if taken else "refused", f"step {state.clock}")
