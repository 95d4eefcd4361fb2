"""Connections between the summing processes of nodes: TCP, opened for one another only.

No other folder opens sockets. A key that is new for each group of connections travels by MPI; each
end proves that it has the key before it is heard. Then bytes of gradients travel, with the number
of their chunk. Both ends know its size and its place.

================  ==========================================================
``listener``      where a node can be called: its port and its addresses
``handshake``     the words by which both ends prove that they have the key
``connecting``    connects a node with all others
``link``          one end of a connection: sends and receives chunks
================  ==========================================================
"""

from synkhronos._transport.communicators.links.connecting import connect_all
from synkhronos._transport.communicators.links.handshake import KEY_BYTES
from synkhronos._transport.communicators.links.link import PART, SUM, Link, LinkFailed
from synkhronos._transport.communicators.links.listener import Listener, Place

__all__ = ["KEY_BYTES", "PART", "SUM", "Link", "LinkFailed", "Listener", "Place", "connect_all"]
