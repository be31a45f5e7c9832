"""An embedded AT Protocol network: XRPC calls come in; commits, DID documents and an event stream go out.

Imported explicitly (`from firehose.network import Network`): it needs a web server, which agents do not.
Start reading at `network.py`, then `pds.py`.
"""

from firehose.network.network import Network

__all__ = ["Network"]
