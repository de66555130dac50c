"""Deterministic simulation of the cluster engine: its own code, under one seeded scheduler.

Coordinator, shards, transport, client, supervisor, launcher and exchange are the real classes. What they touch outside
is replaced: the clock and the threads (`scheduler`, `primitives`), Ray's actors and their calls (`actors`), the network
between them (`network`), the disk and the cluster's store (`storage`). A seed decides which thread runs next, how long
a message takes, and which faults happen (`scenario`); `invariants` says what must hold whatever they are.

    make chaos SEEDS=1000          many seeds
    make chaos SEED=17             one of them, with a trace of what happened
"""
