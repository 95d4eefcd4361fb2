"""The layout of the head of each member's region: control words, mailbox, buffers.

Only the member that owns a region writes its words; all members read them. So a member that dies
holds nothing that others need. Counters only grow: a command's number is its sequence number, and
a barrier's number is made of that and a count. So what an abandoned command left behind is never
mistaken for a part of the next command.
"""

from __future__ import annotations

from synkhronos._host.arena import Arena
from synkhronos._transport.shared_state.ordered_words import ordered

# First cache line: words that the others read while they wait for this member.
REPORTED = 0  # latest command that this member has reported on; a master: waits for reports on
BARRIER = 1  # latest barrier that it has reached
ASLEEP = 2  # 1 while it sleeps in poll, so that a change must be signalled by its eventfd
MANIFEST = 3  # number of its arrays in the exchange under way; 0: none
PROGRESS = 4  # of a long command: see progress_word
READY = 5  # 1 when it waits for commands
PID = 6
COMPILING = 7  # 1 while it compiles, which can take minutes

# Second cache line, in the master's region: the command.
POSTED = 8  # latest command
NUMBER = 9  # under which members keep this command; 0: they do not
OFFSET = 10  # of the command's bytes in the arena
LENGTH = 11  # of these bytes; 0: the command kept under NUMBER
COMMITTED = 12  # latest command whose changes are kept
ABANDONED = 13  # latest command that is left, and undone unless committed
STOPPING = 14  # long command that is asked to return
QUIT = 15  # 1: the group ends

# Third: the output ring, and in the master's region how far each ring has been read.
PRINTED = 16  # bytes written to the ring
LOST = 17  # lines dropped
EXCHANGE_FAILED = 18  # latest command in which this member failed in an exchange of GPUs
TAILS = 24  # plus rank: bytes read

RESULTS = 256  # an outcome that is only floats
N_RESULTS = 256

MAILBOX = 4096  # byte offset: a command or an outcome that fits
MAILBOX_BYTES = 1 << 18
MANIFEST_TABLE = MAILBOX + MAILBOX_BYTES  # offsets of the manifests of arrays
MANIFEST_SLOTS = 64
MANIFEST_SLOT_BYTES = 4096
SMALL_BUFFERS = MANIFEST_TABLE + MANIFEST_SLOTS * MANIFEST_SLOT_BYTES  # two slots for small arrays
SMALL_BUFFER_BYTES = 4096 + 64
RING = SMALL_BUFFERS + 2 * SMALL_BUFFER_BYTES
RING_BYTES = 1 << 18
STATUS = RING + RING_BYTES  # for those who watch from outside: see status.py
STATUS_BYTES = 4096

MAX_MEMBERS = RESULTS - TAILS

_COUNT_BITS = 40


def progress_word(number: int, count: int) -> int:
    """The word PROGRESS: a count, and the low bits of the command's number."""
    return (number & (1 << 63 - _COUNT_BITS) - 1) << _COUNT_BITS | count


def progress_of(number: int, word: int) -> int:
    """The count of a command; 0 if the word belongs to an earlier one."""
    count = word & (1 << _COUNT_BITS) - 1
    return count if progress_word(number, count) == word else 0


class ControlWords:
    """The heads of all regions: by rank, as integers, as floats and as bytes."""

    def __init__(self, arena: Arena) -> None:
        heads = [arena.head(r) for r in range(arena.regions)]
        self.of = [ordered(h[:MAILBOX].cast("q")) for h in heads]
        self.reals = [h[:MAILBOX].cast("d") for h in heads]
        self.bytes = heads
