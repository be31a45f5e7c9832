"""Everything that is a Ray actor, the cluster they live on, and the command line.

Actors hold little logic: each wires the rooms `firehose`, `leases`, `sandboxes` and `games` together and
keeps a loop running. Nothing is exported: the way in is the command `skylease` (`actors.cli`).
"""

__all__: list[str] = []
