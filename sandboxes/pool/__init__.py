"""The pool of a node: which sandboxes it has, in which state, and what gives way when there is no room.

Enters: specs of sandboxes that somebody wants. Leaves: directories of living ones, or a `PoolFull`. Start
reading at `states.py` (what may follow what), then `pool.py`.
"""
