"""How the nodes of programs are declared: dataclasses whose fields are set once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

__all__ = ["node", "short_repr"]


def short_repr(self: object) -> str:
    """One line of the printer's text. A dataclass's own would write what nodes share at each use,
    which doubles its length with every addition of a value to itself."""
    from tunefarm.compiler.tir.printer import print_short

    return f"<{type(self).__name__} {print_short(self)}>"


if TYPE_CHECKING:
    from dataclasses import dataclass as node
else:

    def node(frozen, **options):
        """A frozen dataclass for mypy, which finds whoever sets a field again.

        Python would look after that each time a field is set, for two thirds of the time that it
        takes to make a node; a candidate makes some thousands.
        """

        def declare(kind):
            kind.__repr__ = short_repr
            return dataclass(**options)(kind)

        return declare
