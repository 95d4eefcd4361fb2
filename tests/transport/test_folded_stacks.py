"""What messages show of a member's stack: the user's lines."""

from __future__ import annotations

import pytensor

from synkhronos._engine import worker
from synkhronos._transport.processes.folded_stacks import folded, place_of
from synkhronos._transport.processes.worker import fork_worker

OURS, THEIRS = worker.__file__, pytensor.__file__
TRACEBACK = f'''Traceback (most recent call last):
  File "{OURS}", line 3, in main
    serve()
    ~~~~~^^
  File "{THEIRS}", line 4, in perform
  File "/home/ada/ops.py", line 12, in outer
    inner()
  File "/home/ada/ops.py", line 7, in inner
    raise ValueError("no")
ValueError: no
a note'''
STACK = f'''Current thread 0x00007f (most recent call first):
  File "/home/ada/ops.py", line 7 in inner
  File "{THEIRS}", line 4 in perform
  File "{OURS}", line 3 in main
  File "{fork_worker.__code__.co_filename}", line 100 in fork_worker
  File "/home/ada/script.py", line 5 in <module>'''


def test_a_traceback() -> None:
    assert folded(TRACEBACK).splitlines() == [
        "Traceback (most recent call last):",
        "  [2 frames of the engine]",
        *TRACEBACK.splitlines()[5:],
    ]
    assert place_of(TRACEBACK) == "ops.py:7, in inner"


def test_a_stack() -> None:
    """Without the line of the script at which the worker was forked."""
    assert folded(STACK).splitlines() == [
        *STACK.splitlines()[:2],
        "  [3 frames of the engine]",
    ]
    assert place_of(STACK) == "ops.py:7, in inner"


def test_without_the_user() -> None:
    """A failure of the engine itself stays whole."""
    text = "\n".join(TRACEBACK.splitlines()[:5])
    assert folded(text) == text
    assert place_of(text) == ""
    waits = "\n".join([STACK.splitlines()[0], *STACK.splitlines()[2:]])
    assert folded(waits) == waits.rpartition("\n")[0]
    assert place_of(waits) == ""
