"""Templates, and the formats that they use."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from tunefarm.dashboard import formats

from tunefarm import __version__

STATIC = Path(__file__).resolve().parent / "static"
_TEMPLATES = STATIC.with_name("templates")


@cache
def environment() -> Environment:
    """Everything is escaped; an unknown name is an error."""
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in (
        "latency", "span", "count", "counted", "ratio", "percent", "scaled", "age", "stamp", "iso",
        "knobs", "words",
    ):  # fmt: skip
        made.filters[name] = getattr(formats, name)
    made.filters["short"] = lambda text: text[:8]
    made.globals["version"] = __version__
    return made


def render(request: Request, template: str, status: int = 200, **context: object) -> HTMLResponse:
    """A page, or its changing part alone for htmx (``?part=…`` of the page's own template)."""
    page = environment().get_template(template)
    shown = {
        "request": request,
        "status": status,
        "path": request.url.path,
        "database": request.app.state.store.name,
        "holder": getattr(request.state, "holder", None),
        "with_query": lambda **changes: with_query(request, **changes),
        **context,
    }
    part = request.query_params.get("part", "")
    if part and part in page.blocks:
        made = page.new_context(shown)
        return HTMLResponse("".join(page.blocks[part](made)), status)
    return HTMLResponse(page.render(shown), status)


def with_query(request: Request, **changes: object) -> str:
    """The present address with other parameters; empty ones go, and the page's part too."""
    kept = [(k, v) for k, v in request.query_params.multi_items() if k not in ("part", *changes)]
    kept += [(k, str(v)) for k, v in changes.items() if v not in ("", None)]
    return f"{request.url.path}?{urlencode(kept)}" if kept else request.url.path
