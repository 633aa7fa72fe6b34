"""What handlers of pages and of the API ask for alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Query, Request
from sqlalchemy import Connection
from tunefarm.db.store import Store


def _reading(request: Request) -> Iterator[Connection]:
    store: Store = request.app.state.store
    with store.reading() as connection:
        yield connection


Reading = Annotated[Connection, Depends(_reading)]
"""A consistent view of the database, for as long as the request is answered."""
Text = Annotated[str, Query(max_length=200, description="What rows have to mention.")]
Cursor = Annotated[str, Query(max_length=200, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=500, description="Rows of a page.")]
