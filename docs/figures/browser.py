"""A page of this project in a browser, at any width: its picture, and what a script finds in it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LEAST = 500  # pixels: no window is narrower, so a frame is
HIGH = 6000
_LISTEN = "<script>onmessage = m => {document.body.dataset.found = JSON.stringify(m.data)}</script>"
_TELL = "<script>onload = () => parent.postMessage((() => {%s})(), '*')</script>"


def browser() -> str | None:
    """The path of a browser, if there is one."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def look(page: Path, picture: Path, width: int, scheme: int = 1) -> None:
    """Draw a page; with ``scheme=0`` in dark colours."""
    _run(page, width, f"--screenshot={picture}", f"--blink-settings=preferredColorScheme={scheme}")


def ask(page: Path, width: int, script: str) -> Any:
    """What a script returns once a page has been loaded."""
    asked = page.with_name(f"asked-{page.name}")
    asked.write_text(page.read_text() + _TELL % script)
    found = re.search(r'data-found="(.*?)"', _run(asked, width, "--dump-dom"))
    assert found, f"{page}: it was not loaded"
    return json.loads(html.unescape(found[1]))


def _run(page: Path, width: int, *options: str) -> str:
    frame = page.with_name("frame.html")
    style = f"width: {width}px; height: {HIGH}px; border: 0"
    inner = f'<iframe src="{page.name}" style="{style}"></iframe>'
    frame.write_text(f'<body style="margin: 0">{_LISTEN}{inner}')
    found = browser()
    assert found, f"none of these is installed: {', '.join(BROWSERS)}"
    always = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    window = f"--window-size={max(width, LEAST)},{HIGH}"
    command = [found, *always, *options, window, "--virtual-time-budget=10000"]
    command.append(frame.resolve().as_uri())
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=270)
    return done.stdout
