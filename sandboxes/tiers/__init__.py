"""The kinds of isolation: one file per tier, and the parts that they are put together from."""
