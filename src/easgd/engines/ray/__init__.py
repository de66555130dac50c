"""The Ray engine: workers and the center's shards are actors of a cluster; one machine or many.

Ray schedules, watches, restarts, authenticates; what is ours is the center and the exchange. Nothing here is imported
before it is asked for: `import easgd` does not need Ray.
"""
