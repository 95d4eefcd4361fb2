"""Words on the screen while something works that prints nothing itself."""

import threading
import time
from contextlib import contextmanager

from rich.console import Console

EVERY = 5  # seconds between two lines, where the screen is not a terminal
console = Console(highlight=False)


def say(text):
    """Print a line, however wide the screen is."""
    console.print(text, soft_wrap=True)


@contextmanager
def telling(text):
    """Say that silent work goes on, and at the end how long it took."""
    begin = time.perf_counter()
    if console.is_terminal:
        with console.status(text):
            yield
    else:
        say(f"{text} ...")
        with repeated(lambda: say(f"... {time.perf_counter() - begin:.0f} s")):
            yield
    say(f"{text}: {time.perf_counter() - begin:.1f} s")


@contextmanager
def repeated(function):
    """Call a function every few seconds, from a thread."""
    over = threading.Event()

    def loop():
        while not over.wait(EVERY):
            function()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
