"""How the nodes of programs are declared: dataclasses whose fields are set once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

__all__ = ["node"]

if TYPE_CHECKING:
    from dataclasses import dataclass as node
else:

    def node(frozen, **options):
        """A frozen dataclass for mypy, which finds whoever sets a field again.

        Python would look after that each time a field is set, for two thirds of the time that it
        takes to make a node; a candidate makes some thousands.
        """
        return dataclass(**options)
