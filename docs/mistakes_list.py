"""The directive ``mistakes``: the list of tests/support/mistakes.py, as a table for each group."""

from __future__ import annotations

import sys
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

LIST = Path(__file__).parents[1] / "tests" / "support" / "mistakes.py"
sys.path.append(str(LIST.parent))


class Mistakes(Directive):
    """What was written, and the message; each is run by the tests."""

    def run(self) -> list[nodes.Node]:
        import mistakes

        self.state.document.settings.env.note_dependency(str(LIST))
        text = ["Each begins with these lines:", "", *code(mistakes.BEFORE), ""]
        for title, group in mistakes.GROUPS.items():
            text += [f".. rubric:: {title}", "", ".. list-table::", "   :header-rows: 1"]
            text += ["   :widths: 45 55", "", "   * - mistake", "     - message"]
            for each in group:
                text += ["   * - .. code-block:: python", ""]
                text += [f"          {line}" for line in each.code.splitlines()]
                [first, *more] = [f"| ``{line.strip()}``" for line in each.message.splitlines()]
                text += ["", f"     - {first}", *[f"       {line}" for line in more]]
            text.append("")
        found = nodes.Element()
        self.state.nested_parse(StringList(text, source=str(LIST)), 0, found)
        return list(found.children)


def code(text: str) -> list[str]:
    """A block of Python."""
    return [".. code-block:: python", "", *[f"   {line}" for line in text.splitlines()]]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("mistakes", Mistakes)
    return {"parallel_read_safe": True}
