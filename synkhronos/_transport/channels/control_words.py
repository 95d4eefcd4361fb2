"""What stands where at the head of each member's region. Every word has one writer: its region.

Members read each other's words, and write only their own; so nobody can die holding what others
need. Counters only grow: a command's number is its sequence number, a barrier's is made of the
sequence number and a count, so what an abandoned command left behind can never be mistaken for
something of the next.
"""

from __future__ import annotations

from synkhronos._host.arena import Arena

# First cache line: what the others watch while they wait for this member.
REPORTED = 0  # last command this member has reported on
BARRIER = 1  # last barrier it has reached
ASLEEP = 2  # 1 while it blocks in poll and needs its bell rung
MANIFEST = 3  # number of the arrays it brings to the meeting under way; 0: none
PROGRESS = 4  # whatever a long command counts, beside the command's number
READY = 5  # 1 once it serves
PID = 6
COMPILING = 7  # 1 while it compiles, which may take minutes

# Second cache line: the master's orders.
POSTED = 8  # last command posted
NUMBER = 9  # where members remember this command, 0: nowhere
OFFSET = 10  # of the command's bytes in the arena
LENGTH = 11  # of them; 0: the command that NUMBER remembers
COMMITTED = 12  # last command whose updates stand
ABANDONED = 13  # last command whose updates are undone
STOPPING = 14  # a long command shall return
QUIT = 15  # the group ends

# Third: the ring of printed lines, and (the master's) how far each has been read.
PRINTED = 16
LOST = 17
EXCHANGE_FAILED = 18  # last command in which this member's part of an exchange of GPUs failed
TAILS = 24

RESULTS = 256  # scalars that members answer with
N_RESULTS = 256

MAILBOX = 4096  # bytes: a command or an outcome that fits
MAILBOX_BYTES = 1 << 18
MANIFEST_TABLE = MAILBOX + MAILBOX_BYTES  # manifests: the arrays brought to meetings
MANIFEST_SLOTS = 64
MANIFEST_SLOT_BYTES = 4096
SMALL_BUFFERS = MANIFEST_TABLE + MANIFEST_SLOTS * MANIFEST_SLOT_BYTES  # two slots for small arrays
SMALL_BUFFER_BYTES = 4096 + 64
RING = SMALL_BUFFERS + 2 * SMALL_BUFFER_BYTES
RING_BYTES = 1 << 18

MAX_MEMBERS = RESULTS - TAILS

_COUNT_BITS = 40


def progress_word(number: int, count: int) -> int:
    """What stands under PROGRESS: a count, and the last digits of the command that counts."""
    return (number & (1 << 63 - _COUNT_BITS) - 1) << _COUNT_BITS | count


def progress_of(number: int, word: int) -> int:
    """What the command has counted; nothing while the word is of an earlier one."""
    count = word & (1 << _COUNT_BITS) - 1
    return count if progress_word(number, count) == word else 0


class Words:
    """The heads of all regions, as words and as bytes."""

    def __init__(self, arena: Arena) -> None:
        heads = [arena.head(r) for r in range(arena.regions)]
        self.of = [h[:MAILBOX].cast("q") for h in heads]
        self.reals = [h[:MAILBOX].cast("d") for h in heads]
        self.bytes = heads
