"""Processes that share nothing with the test but what they are given, as with "spawn".

They are forked from one that has done nothing but import torch and the shared memory: that takes seconds, once.
"""

import multiprocessing

FRESH = multiprocessing.get_context("forkserver")
FRESH.set_forkserver_preload(["torch._dynamo", "easgd.engines.local.client"])
