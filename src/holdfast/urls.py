"""The parser of Holdfast's URLs: queues, stores and targets.

    QUEUES    enrich, acme/enrich?lease_seconds=30, file:/srv/work/acme/enrich,
              sqlite:work.db, sqlite:/srv/work.db/acme/enrich,
              sqs:enrich, https://sqs.eu-west-1.amazonaws.com/1234/enrich, memory:
    STORES    jobs.db, sqlite:/srv/jobs.db, dynamodb:acme-
    TARGETS   out, s3://bucket/prefix

Text without a scheme is a path. A scheme has at least two characters.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qsl, unquote

from holdfast.errors import ConfigError, InvalidName, StoreUnavailable

_MAX_LENGTH = 4096  # no path is longer
_MAX_SHOWN = 90  # characters of a bad name in an error's text
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DATABASE_ENDINGS = (".db", ".sqlite", ".sqlite3")


@dataclass(frozen=True, slots=True)
class Url:
    """A URL of Holdfast. `scheme` is the canonical one, for example sqs for https://."""

    scheme: str
    path: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UrlKind:
    """The URLs that one thing may have.

    `schemes` maps each known scheme to its canonical one, and `default` is that of a path.
    `marker` matches a scheme. `thing` and `forms` are for people. With `full_syntax`, the URL
    may have options, percent-encoding and a scheme in any case. Stores and targets have none
    of these, because a file or an object may have any name.
    """

    thing: str
    forms: str
    schemes: Mapping[str, str]
    default: str
    marker: str = r"(?P<scheme>[^\W_]{2,}):"
    full_syntax: bool = False


QUEUES = UrlKind(
    "queue",
    "a path, file:ROOT/CAMPAIGN/QUEUE, sqlite:FILE.db/QUEUE, sqs:NAME, the URL of an SQS "
    "queue, or memory:",
    {
        "file": "file",
        "sqlite": "sqlite",
        "sqs": "sqs",
        "http": "sqs",
        "https": "sqs",
        "memory": "memory",
    },
    default="file",
    full_syntax=True,
)
STORES = UrlKind(
    "store",
    "a path, sqlite:PATH or dynamodb:PREFIX",
    {"sqlite": "sqlite", "file": "sqlite", "dynamodb": "dynamodb"},
    default="sqlite",
)
TARGETS = UrlKind(
    "target",
    "a folder, or s3://BUCKET/PREFIX",
    {"s3": "s3"},
    default="file",
    marker=r"(?P<scheme>[\w+.-]{2,})://",
)


def parse_url(text: str, kind: UrlKind) -> Url:
    """Parse a URL of that kind. The path of an http(s) URL is the URL without its options.

    Raises ConfigError with one line for an unknown scheme, an option that is repeated, control
    characters, and a URL that is too long. The text contains no more of the URL than that
    scheme or option, because settings may hold private addresses.
    """
    if len(text) > _MAX_LENGTH:
        raise ConfigError(f"the URL of a {kind.thing} has at most {_MAX_LENGTH} characters")
    marker = re.match(kind.marker, text)
    scheme = marker["scheme"] if marker else ""
    if kind.full_syntax:
        scheme = scheme.lower()
    if scheme and scheme not in kind.schemes:
        shown = scheme[:_MAX_SHOWN]
        raise ConfigError(f"no {kind.thing} for {shown}: URLs; use {kind.forms}")
    path = text[marker.end() :] if marker else text
    options: list[tuple[str, str]] = []
    if kind.full_syntax:
        path, _, query = path.partition("?")
        path = unquote(path) if scheme else path
        options = parse_qsl(query, keep_blank_values=True)
    if scheme in ("http", "https"):
        path = f"{scheme}:{path}"
    if any(map(_CONTROL.search, (path, *chain.from_iterable(options)))):
        raise ConfigError(f"the URL of a {kind.thing} must not have control characters")
    for name, count in Counter(name for name, _ in options).items():
        if count > 1:
            raise ConfigError(f"?{name[:_MAX_SHOWN]}= is repeated in the URL; give it once")
    return Url(kind.schemes.get(scheme, kind.default), path, dict(options))


def split_database_path(path: str) -> tuple[Path, str]:
    """Return the file in the path of a sqlite: queue, and the queue's name in that file.

    The file ends with the first component that ends in .db, .sqlite or .sqlite3. The name is
    what follows, QUEUE or CAMPAIGN/QUEUE, or else "default". Raises ConfigError if there is
    no such component, and InvalidName.
    """
    while path.startswith("//"):  # sqlite:///srv/work.db
        path = path[1:]
    parts = PurePosixPath(path).parts
    ends = [number for number, part in enumerate(parts, 1) if part.endswith(_DATABASE_ENDINGS)]
    if not ends:
        raise ConfigError(
            f"sqlite:{path[:_MAX_SHOWN]} names no database: the file must end in .db, .sqlite "
            "or .sqlite3, as in sqlite:work.db or sqlite:work.db/enrich"
        )
    names = parts[ends[0] :] or ("default",)
    if len(names) > 2:
        raise ConfigError(
            f"sqlite:{path[:_MAX_SHOWN]} has {len(names)} names after the database: give "
            "QUEUE or CAMPAIGN/QUEUE"
        )
    kinds = ("campaign", "queue")[-len(names) :]
    name = "/".join(check_name(kind, name) for kind, name in zip(kinds, names, strict=True))
    return Path(*parts[: ends[0]]), name


def check_name(kind: str, name: str) -> str:
    """Return a campaign or queue name that is safe as a folder name, or raise InvalidName."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise InvalidName(
            f"{kind} name {name[:80]!r} cannot be used: it must be 1 to 64 letters, digits, "
            "'.', '_' or '-', starting with a letter or digit, without '..'"
        )
    return name


def find_store_file(url: str) -> Path | None:
    """Return the path of a store's file, or None for a DynamoDB store. Raises ConfigError."""
    store = parse_url(url, STORES)
    return Path(store.path) if store.scheme == "sqlite" else None


def require_store(url: str, missing: str, remedy: str) -> str:
    """Return the URL of a store. Raises StoreUnavailable if its file does not exist.

    What only reads never creates the store. `missing` begins the error's text.
    """
    file = find_store_file(url)
    if file is not None and not file.exists():
        raise StoreUnavailable(f"{missing} {str(file)!r}: {remedy}")
    return url
