"""Deterministic simulation of the engines: their own code, under one seeded scheduler.

`chaos.local` is the engine of one machine; the rest of this package is the cluster's, and what both use (`scheduler`,
`carriers`, `primitives`, `training`, `outcome`).

On the cluster, coordinator, shards, transport, client, supervisor, launcher and exchange are the real classes. What
they touch outside is replaced: the clock and the threads (`scheduler`, `primitives`), Ray's actors and their calls
(`actors`), the network between them (`network`), the disk and the cluster's store (`storage`). A seed decides which
thread runs next, how long a message takes, and which faults happen (`scenario`); `invariants` says what must hold
whatever they are.

    make chaos SEEDS=1000                many seeds of both engines
    make chaos ENGINE=local SEED=17      one of them, with a trace of what happened
"""
