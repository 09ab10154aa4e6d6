"""Client of a server with the Prometheus API. Each error becomes one sentence."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit, urlunsplit

import httpx
import msgspec

from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.format import printable
from llmtop.naming.addresses import PROMETHEUS_EXAMPLE, is_server_url
from llmtop.version import __version__

LIMIT_SECONDS = 8.0
"""For one answer, from the connection to the last byte."""
MAX_BYTES = 32 << 20
"""Limit of one answer: six figures of each of 4,096 GPUs are 5 MiB."""
_WORDS = 200
_OK = 200


class QueryError(Exception):
    """One sentence: why there is no answer to a question."""

    def __init__(self, sentence: str, *, whole: bool) -> None:
        super().__init__(sentence)
        self.whole = whole
        """True if the server did not answer at all, so that it is no use to ask it more now."""


class Credentials(NamedTuple):
    """Credentials of the requests; nothing of them is ever shown."""

    token: str | None = None
    user: str | None = None
    password: str = ""
    ca: str | None = None
    org: str | None = None
    """Tenant of Mimir and similar servers: X-Scope-OrgID."""


class SeriesValue(NamedTuple):
    """One series at an instant."""

    labels: Mapping[str, str]
    value: float


class SeriesRange(NamedTuple):
    """One series over time."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]
    """Unix seconds, and the value."""


class Answer(NamedTuple):
    """Result of a query, and the server's warnings: the result may be partial."""

    samples: tuple[SeriesValue, ...]
    warnings: tuple[str, ...] = ()


class _Series(msgspec.Struct):
    metric: dict[str, str] = {}
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct):
    result: list[_Series] = []


class _Reply(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""
    warnings: list[str] = []


_decoder = msgspec.json.Decoder(_Reply)


class Client:
    """One server. For one thread."""

    def __init__(self, url: str, access: Credentials | None = None, limit: float = LIMIT_SECONDS) -> None:
        """Prepare; nothing is asked yet.

        Args:
            url: of the server, with the path before /api/v1 where it has one.
            access: who asks.
            limit: seconds that one answer may take.

        Raises:
            UnusableInput: no URL of http or https, or a certificate that cannot be read.
        """
        parts = split_url(url)
        access = access or Credentials(user=parts.username, password=parts.password or "")
        headers = {"User-Agent": f"llmtop/{__version__}", "Accept": "application/json"}
        if access.token is not None:
            headers["Authorization"] = f"Bearer {access.token}"
        if access.org is not None:
            headers["X-Scope-OrgID"] = access.org
        netloc = parts.netloc.rpartition("@")[2]
        self._base = urlunsplit((parts.scheme, netloc, parts.path.rstrip("/"), "", ""))
        self.name = printable(netloc + parts.path.rstrip("/"), 60)
        """For people, without what it takes to get in."""
        self._limit = limit
        try:
            self._http = httpx.Client(
                headers=headers,
                auth=None if access.user is None or access.token is not None else (access.user, access.password),
                verify=True if access.ca is None else ssl.create_default_context(cafile=access.ca),
                timeout=httpx.Timeout(limit, connect=min(3.0, limit)),
                follow_redirects=False,
            )
        except (OSError, ValueError) as error:
            raise UnusableInput(f"--ca {access.ca}: no certificate can be read there ({error})") from None

    def close(self) -> None:
        """Hang up."""
        self._http.close()

    def query(self, promql: str, at: float | None = None) -> Answer:
        """Return the result of a query at an instant (unix seconds), or now.

        Raises:
            Unanswered: there is no answer, and why.
        """
        asked = {"query": promql} if at is None else {"query": promql, "time": f"{at:.3f}"}
        reply = self._ask("query", asked)
        found = [
            SeriesValue(one.metric, value)
            for one in _series(reply)
            if one.value is not None and (value := _number(one.value[1])) is not None
        ]
        return Answer(tuple(found), tuple(printable(words, _WORDS) for words in reply.warnings[:4]))

    def range(self, promql: str, start: float, end: float, step: float) -> tuple[SeriesRange, ...]:
        """Return the result of a query over a range of time.

        Raises:
            Unanswered: there is no answer, and why.
        """
        reply = self._ask(
            "query_range",
            {"query": promql, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{max(step, 1.0):.3f}"},
        )
        return tuple(
            SeriesRange(
                one.metric, tuple((at, value) for at, text in one.values if (value := _number(text)) is not None)
            )
            for one in _series(reply)
        )

    def _ask(self, what: str, asked: dict[str, str]) -> _Reply:
        until = time.monotonic() + self._limit
        body = bytearray()
        try:
            with self._http.stream("POST", f"{self._base}/api/v1/{what}", data=asked) as answer:
                for piece in answer.iter_bytes():  # as they come: pieces of one size would be waited for
                    body += piece
                    if len(body) > MAX_BYTES:
                        raise QueryError(
                            f"{self.name} sent an answer of more than {MAX_BYTES >> 20} MiB, which llmtop does "
                            "not read: check the URL",
                            whole=False,
                        )
                    if time.monotonic() > until:
                        raise self._late()
                kind = answer.headers.get("Content-Type", "").partition(";")[0]
                status = answer.status_code
        except httpx.TimeoutException:
            raise self._late() from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise QueryError(
                f"{self.name} cannot be reached: {_failure_text(error)}; check the URL, and that Prometheus runs",
                whole=True,
            ) from None
        return self._checked_reply(bytes(body), status, printable(kind, 40))

    def _late(self) -> QueryError:
        return QueryError(f"{self.name} has not answered within {self._limit:.0f} s", whole=True)

    def _checked_reply(self, body: bytes, status: int, kind: str) -> _Reply:
        try:
            reply = _decoder.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            reply = None
        if status in (401, 403):
            raise QueryError(
                f"{self.name} refuses access ({status}): pass --token-file, --user or --org", whole=True
            )
        if reply is None:
            what = (
                "an incomplete answer"
                if status == _OK and "json" in kind
                else f"an answer that is not from a Prometheus ({kind or status}); check the URL"
            )
            raise QueryError(f"{self.name} sent {what}", whole="json" not in kind)
        if status != _OK or reply.status != "success":
            words = printable(reply.error, _WORDS) or "no reason given"
            raise QueryError(f"{self.name} refused a query of llmtop ({status}): {words}", whole=False)
        return reply


def split_url(url: str) -> SplitResult:
    """Return the parts of a server's URL.

    Raises:
        UnusableInput: no URL of http or https.
    """
    if not is_server_url(url):
        raise UnusableInput(
            f"{printable(redacted_url(url), _WORDS)!r} is not the URL of a Prometheus; pass a URL such as "
            f"{PROMETHEUS_EXAMPLE}"
        )
    return urlsplit(url)


def redacted_url(url: str) -> str:
    """Return a URL without the name and the password in it."""
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://{tail}" if at and "://" in head else url


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        NotPossibleHere: it cannot be read.
        UnusableInput: it is empty, or no token.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise NotPossibleHere(f"{path} cannot be read: {error.strerror}; check its permissions") from None
    except UnicodeDecodeError:
        token = ""
    if not token or not token.isprintable():
        raise UnusableInput(f"{path} is empty: write the bearer token into it")
    return token


def _series(reply: _Reply) -> list[_Series]:
    return reply.data.result if reply.data is not None else []


def _number(text: str) -> float | None:
    """Return the value; None for what is no number (NaN, an infinity), which nothing is drawn of."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def _failure_text(error: Exception) -> str:
    """Return the failure in a few words; httpx has many forms of it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
            return printable(os.strerror(cause.errno), _WORDS)
        cause = cause.__cause__ or cause.__context__
    return printable(str(error) or type(error).__name__, _WORDS)
