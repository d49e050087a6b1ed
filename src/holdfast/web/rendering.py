"""Render pages, and send their live parts again while a person looks.

Everything that a template prints is escaped, whatever a message holds. A browser asks for the
live part of a page with `?part`, every two seconds.
"""

import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Protocol
from urllib.parse import quote

from jinja2 import BytecodeCache, ChoiceLoader, Environment, PackageLoader, StrictUndefined
from jinja2.bccache import Bucket
from jinja2.runtime import Macro
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from holdfast.lease.clock import to_utc
from holdfast.listing import Moment
from holdfast.text import (
    format_bytes,
    format_count,
    format_duration,
    strip_control_characters,
)
from holdfast.version import read_version
from holdfast.web.console import Console

CHART_WIDTH, CHART_HEIGHT = 240, 40


class CompiledTemplates(BytecodeCache):
    """The code of the templates, which all consoles of a process share."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], Any] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        """Give a bucket the code that was compiled before, if there is any."""
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep the code of a bucket."""
        self._codes[bucket.key, bucket.checksum] = bucket.code


_COMPILED = CompiledTemplates()


@dataclass(frozen=True, slots=True)
class Page:
    """A template with what it shows. Its block `live` is sent again while a person looks."""

    template: str
    context: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


View = Callable[[Request], Page]
Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


Form = QueryParams  # a form is written as the query of an address is
Action = Callable[[Request, Form], Response | Page]


class ProductPages(Protocol):
    """The pages of one store, which a product adds to the console."""

    section: str
    """The first word of their addresses."""
    title: str
    package: str
    """The package with the folder `templates`."""
    parts: str
    """The template with their macros, if they have any."""
    names: Mapping[str, Any]
    """What the templates may call."""

    def list_views(self) -> Mapping[str, View]:
        """Return the views by their addresses. The first is the start."""

    def list_actions(self) -> Mapping[str, tuple[Action, bool]]:
        """Return the actions by their addresses, and whether each changes anything."""

    def close(self) -> None:
        """Close the store."""


def redirect(request: Request, path: str) -> Response:
    """Return a response that leads to a path of the console, wherever it is mounted."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}{path}", 303)


def wants_part(request: Request) -> bool:
    """Return whether only the live part of a page is asked for."""
    return "part" in request.query_params


class Renderer:
    """Renders pages, and the parts of them that change."""

    def __init__(self, console: Console, sections: Sequence[ProductPages] = ()) -> None:
        self._console = console
        packages = ["holdfast.web", *(section.package for section in sections)]
        self.env = Environment(
            loader=ChoiceLoader([PackageLoader(package) for package in packages]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            bytecode_cache=_COMPILED,
        )
        self.env.filters |= {
            "ago": self._format_ago,
            "bytes": format_bytes,
            "clean": _clean,
            "clean_lines": _clean_lines,
            "duration": _coarse,
            "json": partial(json.dumps, indent=2, ensure_ascii=False),
            "moment": to_utc,
            "number": _format_number,
            "param": quote_value,
            "place": _get_place,
            "short": _get_short_name,
            "since": self._format_since,
            "time": self._format_moment,
            "timestamp": datetime.timestamp,
            "until": self._format_until,
        }
        self.env.globals |= {
            "allow_actions": console.allow_actions,
            "chart": make_chart,
            "format_count": format_count,
            "has_queues": bool(console.queues) or not sections,
            "needs_login": console.sessions.needs_login,
            "sections": sections,
            "show_bodies": console.show_bodies,
            "version": read_version(),
        }
        for section in sections:
            self.env.globals |= section.names
        # As globals, because a block that is rendered alone does not import macros.
        for parts in ("parts.html", *(section.parts for section in sections if section.parts)):
            names = vars(self.env.get_template(parts).module)
            self.env.globals |= {n: v for n, v in names.items() if isinstance(v, Macro)}
        for name in self.env.list_templates():
            self.env.get_template(name)  # compiled now, so that the first view is fast

    def render(self, request: Request, page: Page) -> HTMLResponse:
        """Return the whole page."""
        template = self.env.get_template(page.template)
        return HTMLResponse(template.render(self._make_context(request, page)), page.status)

    def render_live(self, request: Request, page: Page) -> str:
        """Return only the part of the page that changes."""
        template = self.env.get_template(page.template)
        context = template.new_context(self._make_context(request, page))
        return "".join(template.blocks["live"](context))

    def make_endpoint(self, view: View) -> Endpoint:
        """Return an endpoint that answers with the page, or with its live part."""

        async def endpoint(request: Request) -> Response:
            page = await run_in_threadpool(view, request)
            if wants_part(request):
                return HTMLResponse(self.render_live(request, page))
            return self.render(request, page)

        return endpoint

    def _make_context(self, request: Request, page: Page) -> dict[str, Any]:
        return {
            "base": request.scope.get("root_path", ""),
            "now": self._now(),
            "path": request.url.path,
            "section": _find_section(request),
            **page.context,
        }

    def _now(self) -> datetime:
        return to_utc(self._console.clock.time())

    def _format_ago(self, at: datetime) -> Markup:
        return self._format_moment(Moment(at))

    def _format_until(self, at: datetime) -> Markup:
        return self._format_moment(Moment(at, "until"))

    def _format_since(self, at: datetime) -> str:
        return _coarse(max(0.0, (self._now() - at).total_seconds()))

    def _format_moment(self, moment: Moment) -> Markup:
        """Return a time that the script of the page keeps current."""
        at, style = moment.at, "until" if moment.style == "left" else moment.style
        left = (at - self._now()).total_seconds()
        text = _coarse(left) if style == "until" and left > 0 else self._format_since(at)
        if style == "ago" or (style == "until" and left <= 0):
            text = f"{text} ago"
        return _TIME.format(at.isoformat(), style, at.timestamp(), text)


_TIME = Markup('<time datetime="{}" data-{}="{}">{}</time>')


def _coarse(seconds: float) -> str:
    """Return a duration in whole seconds, because a page shows it change."""
    return format_duration(float(int(seconds))) if seconds >= 60 else f"{int(seconds)} s"


def _clean(text: object) -> str:
    return strip_control_characters(str(text))


def _clean_lines(text: str) -> str:
    return "\n".join(strip_control_characters(line) for line in text.split("\n"))


def _format_number(count: float | None) -> str:
    if count is None:
        return "–"
    is_small = isinstance(count, float) and 0 < count < 10
    return f"{count:,.1f}" if is_small else f"{count:,.0f}"


def _get_short_name(queue: str) -> str:
    """Return the end of a queue's URL, which tells it from others: acme/enrich."""
    names: list[str] = []
    for name in reversed(queue.split("/")[-2:]):
        if names and (not name or name.isdecimal() or set(name) & set(".:")):
            break
        names.insert(0, name)
    return "/".join(names)


def _get_place(queue: str) -> str:
    """Return the beginning of a queue's URL, before its short name."""
    return queue.removesuffix(_get_short_name(queue)).rstrip("/")


def parse_number(text: str) -> int | None:
    """Return the whole number that an address holds, or None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None


def quote_value(text: object) -> str:
    """Return a text as a value in an address."""
    return quote(str(text), safe="")


def _find_section(request: Request) -> str:
    """Return the part of the navigation that a page belongs to: the first word of its path."""
    word = request.scope["path"].removeprefix(request.scope.get("root_path", "")).split("/")[1]
    return "queues" if word in ("", "operations") else word


# -- charts


@dataclass(frozen=True, slots=True)
class Chart:
    """The bars and the line of a small chart, in the units of its drawing."""

    bars: Sequence[tuple[float, float, float]]  # x, y, height
    line: str
    area: str  # below the line
    most: int
    deepest: int


def make_chart(
    completed: Sequence[int] | None, depths: Sequence[tuple[datetime, int]], now: datetime
) -> Chart:
    """Return a chart of the last hour: completions as bars, the depth as a line."""
    counts = completed or ()
    most = max(counts, default=0)
    step = CHART_WIDTH / max(1, len(counts))
    bars = [
        (round(step * number, 1), round(CHART_HEIGHT - height, 1), round(height, 1))
        for number, count in enumerate(counts)
        if count and (height := max(1.0, count / most * (CHART_HEIGHT - 2)))
    ]
    deepest = max((depth for _, depth in depths), default=0)
    points = []
    for at, depth in depths:
        x = CHART_WIDTH * (1 - (now - at).total_seconds() / 3600)
        if x >= 0:
            y = CHART_HEIGHT - 1 - depth / max(1, deepest) * (CHART_HEIGHT - 4)
            points.append(f"{min(x, CHART_WIDTH):.1f},{y:.1f}")
    if len(points) < 2:
        return Chart(bars, "", "", most, deepest)
    first, last = points[0].partition(",")[0], points[-1].partition(",")[0]
    area = [f"{first},{CHART_HEIGHT}", *points, f"{last},{CHART_HEIGHT}"]
    return Chart(bars, " ".join(points), " ".join(area), most, deepest)
