"""The local engine's own code, simulated: processes of one machine over one run directory, which is a real one.

Client, rounds, snapshot lock, control words, ranks, history and launcher are the classes of the product. The kernel's
record locks are a table (`kernel`), and every access to a shared word is a point at which another process may run or
this one is killed (`memory`). A killed process stops where it is: not even a `finally` runs, and its locks fall open.
"""
