"""The pages of one folder over HTTP, to read them from another machine through a tunnel. Standard
library only.

Only GET and HEAD; only what a page or a paper needs (PAGES), never a store, a report or a log;
nothing outside the folder, whatever links lead there, and no file with a second name (a hard link);
only to callers that named this machine (a name that somebody else's DNS points here is refused).
A page may run its own inline script and load nothing. Someone else may have made it, so it is
sandboxed: it is of another origin than its neighbours, and cannot read them. Only a page whose
script is this version's calculator may ask this server, and runs no other script.

The one address without a file is ``/calculator.json``: the answer of ``answers`` to its query, as
JSON. It computes, so only callers on this machine are answered, and only where the server listens
on this machine's own address.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import socket
import stat
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

PAGES = {
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".pdf": "application/pdf",
    ".csv": "text/csv; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
}
"""Ending -> content type of a file that may be served."""
ANSWERS = "/calculator.json"
Answers = Callable[[str], tuple[HTTPStatus, Mapping[str, Any]]]
_LOCKED = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_PAGE = f"{_LOCKED}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
_POLICY = {
    "text/html; charset=utf-8": (
        f"{_PAGE}sandbox allow-scripts allow-downloads; script-src 'unsafe-inline'"
    ),
    "image/svg+xml": f"{_LOCKED}; style-src 'unsafe-inline'; sandbox",
}
_CALCULATOR = _PAGE + "connect-src 'self'; script-src "
_HEAD_BYTES = 1024
"""Where a page of perfctl states the digest of its script."""
MOST_CONNECTIONS = 100
"""Open connections; the next closes the oldest."""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class PageServer(ThreadingHTTPServer):
    """Serves ``folder``; ``listing`` gives the HTML of its list of pages and sweeps, ``answers``
    those of ``ANSWERS``; ``calculator`` is the digest of the calculator's script.

    Raises OSError when the address is taken or is not this machine's.
    """

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS
    failed: Callable[[str], None] = staticmethod(lambda problem: None)
    """Called, from any thread, with one line about a page that could not be made."""

    def __init__(
        self,
        folder: Path,
        host: str,
        port: int,
        listing: Callable[[], str],
        answers: Answers | None = None,
        calculator: str = "",
    ) -> None:
        self.connections: deque[socket.socket] = deque()
        self.folder = folder.resolve()
        self.listing = listing
        self.local = _is_loopback_host(host)
        self.answers = answers if self.local else None
        self.calculator = calculator
        self.names = {"localhost", host.lower()} | (
            set() if self.local else {socket.gethostname().lower()}
        )
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _PageHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; close the oldest of too many connections."""
        self.connections.append(request)
        if len(self.connections) > MOST_CONNECTIONS:
            with suppress(OSError, IndexError):
                self.connections.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with suppress(ValueError, IndexError):
            self.connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One line, where it is not the caller who hung up."""
        error = sys.exception()
        if not isinstance(error, OSError):
            self.failed(f"an answer failed ({type(error).__name__}: {error})")

    @property
    def url(self) -> str:
        host = str(self.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_address[1]}/"

    def is_allowed_host_header(self, host: str | None) -> bool:
        """Is ``host`` (the request's Host) a name of this machine? The port may be that of
        a tunnel."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
            return name in self.names or ipaddress.ip_address(name).is_loopback or not self.local
        except ValueError:
            return False

    def find_servable_file(self, path: str) -> Path | None:
        """The file at this path of an address; None if it cannot be a page."""
        try:
            file = self.folder.joinpath(unquote(path).lstrip("/")).resolve(strict=True)
            parts = file.relative_to(self.folder).parts
        except (OSError, ValueError, RuntimeError):
            return None
        is_hidden = any(part.startswith(".") for part in parts)
        return (
            file
            if is_regular_file_without_hard_links(file.lstat())
            and not is_hidden
            and file.suffix.lower() in PAGES
            else None
        )


class _PageHandler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "perfctl", ""
    timeout = 20

    def do_GET(self) -> None:
        if not self.server.is_allowed_host_header(self.headers.get("Host")):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "This is another machine's name")
            return
        path = self.path.partition("?")[0].partition("#")[0]
        file, answers = self.server.find_servable_file(path), self.server.answers
        if file is not None:
            self._send_file(file)
        elif path in ("/", "/index.html"):
            text = self.server.listing().encode("utf-8", "replace")
            self._send_text(HTTPStatus.OK, PAGES[".html"], text)
        elif path == ANSWERS and answers is not None and _is_loopback_host(self.client_address[0]):
            self._send_calculator_answer(answers)
        else:
            self.send_error(HTTPStatus.NOT_FOUND, "There is no such page in this folder")

    do_HEAD = do_GET

    def _send_calculator_answer(self, answers: Answers) -> None:
        if self.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            self.send_error(HTTPStatus.FORBIDDEN, "Only pages of this server are answered")
            return
        status, answer = answers(self.path.partition("?")[2])
        self._send_text(
            status, "application/json", json.dumps(answer, separators=(",", ":")).encode()
        )

    def _send_file(self, file: Path) -> None:
        try:
            handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            self.send_error(HTTPStatus.NOT_FOUND, "The page cannot be read")
            return
        with os.fdopen(handle, "rb") as content:
            about = os.fstat(handle)
            if not is_regular_file_without_hard_links(about):
                self.send_error(HTTPStatus.NOT_FOUND, "There is no such page in this folder")
                return
            calculator = f"script-src '{self.server.calculator}'".encode()
            is_calculator = self.server.calculator and calculator in content.read(_HEAD_BYTES)
            content.seek(0)
            policy = f"{_CALCULATOR}'{self.server.calculator}'" if is_calculator else ""
            self._send_headers(HTTPStatus.OK, PAGES[file.suffix.lower()], about.st_size, policy)
            if self.command != "HEAD":
                shutil.copyfileobj(content, self.wfile)

    def _send_text(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self._send_headers(status, kind, len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_headers(self, status: HTTPStatus, kind: str, length: int, policy: str = "") -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", policy or _POLICY.get(kind, _LOCKED))
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """In one line of plain text; a method other than GET and HEAD is 405."""
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status, message = HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD"
        body = f"{status.value} {message or status.phrase}\n".encode("ascii", "replace")
        self._send_text(status, "text/plain; charset=utf-8", body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: addresses in requests are the text of others."""


def is_regular_file_without_hard_links(status: os.stat_result) -> bool:
    """Return whether it is of a file that has this one name: nobody can say that another name of
    it is not outside of the folder."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _is_loopback_host(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
