from __future__ import annotations

import fcntl
import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from http import HTTPStatus

import pytest

from perfctl.orchestrator.commands.report import render_reports_and_sweeps_html
from perfctl.orchestrator.report.page.page import compute_calculator_script_digest
from perfctl.orchestrator.report.page.server import MOST_CONNECTIONS, PageServer


@pytest.fixture
def folder(tmp_path):
    """A folder with a page, things that are nobody's business, and ways out of it."""
    inside = tmp_path / "pages"
    (inside / "sub").mkdir(parents=True)
    (inside / "page.html").write_text("<h1>page</h1>")
    (inside / "sub" / "a b#1.html").write_text("<h1>odd name</h1>")
    (inside / "fig.svg").write_text("<svg/>")
    for name in ("perfctl.db", "report.sqlite", "run.json", "stdout.log", ".hidden.html"):
        (inside / name).write_text("private")
    (inside / ".git").mkdir()
    (inside / ".git" / "x.html").write_text("private")
    (tmp_path / "outside.html").write_text("private")
    (inside / "link.html").symlink_to(tmp_path / "outside.html")
    (inside / "up").symlink_to(tmp_path)
    (inside / "alias.html").symlink_to(inside / "perfctl.db")
    (inside / "other.html").symlink_to(inside / "page.html")
    (inside / "second.html").hardlink_to(tmp_path / "outside.html")
    os.mkfifo(inside / "pipe.html")
    return inside


@contextmanager
def running(found):
    with found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield found
        finally:
            found.shutdown()
            thread.join()


@pytest.fixture
def server(folder):
    with running(
        PageServer(folder, "127.0.0.1", 0, lambda: render_reports_and_sweeps_html(folder))
    ) as found:
        yield found


def ask(server, path, method="GET", host="127.0.0.1", headers=()):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
    with closing(connection):
        connection.putrequest(method, path, skip_host=True)
        for name, value in {"Host": host, **dict(headers)}.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


@pytest.mark.parametrize(
    ("method", "path", "kind", "body", "may_run_script"),
    [
        ("GET", "/page.html", "text/html; charset=utf-8", b"<h1>page</h1>", True),
        ("GET", "/other.html", "text/html; charset=utf-8", b"<h1>page</h1>", True),
        ("HEAD", "/page.html", "text/html; charset=utf-8", b"", True),
        ("GET", "/fig.svg", "image/svg+xml", b"<svg/>", False),
    ],
    ids=["a page", "a link to a page inside", "the length of a page", "a drawing"],
)
def test_a_page_is_shown_with_its_type_and_in_a_sandbox_and_may_load_nothing(
    server, method, path, kind, body, may_run_script
):
    status, headers, answer = ask(server, path, method)
    assert (status, headers["Content-Type"], answer) == (200, kind, body)
    assert int(headers["Content-Length"]) == len(body or b"<h1>page</h1>")
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'") and "http" not in policy
    assert ("script-src 'unsafe-inline'" in policy) == may_run_script
    assert ("script-src" in policy) == may_run_script
    assert "sandbox" in policy and "connect-src" not in policy and "same-origin" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize(
    "path",
    [
        "/../outside.html",
        "/%2e%2e/outside.html",
        "/..%2foutside.html",
        "/sub/../../outside.html",
        "//etc/passwd",
        "/link.html",
        "/second.html",
        "/up/outside.html",
        "/alias.html",
        "/pipe.html",
        "/.hidden.html",
        "/.git/x.html",
        "/%2egit/x.html",
        "/perfctl.db",
        "/report.sqlite",
        "/run.json",
        "/stdout.log",
        "/sub",
        "/sub/",
        "/page.html/",
        "/page.html%00",
        "/nothing.html",
        "/page.html%5c",
        "/" + "a" * 5000 + ".html",
        "http://127.0.0.1/outside.html",
    ],
)
def test_nothing_outside_and_nothing_but_pages_is_given(server, path):
    status, _, body = ask(server, path)
    if path == "/page.html/":
        assert status == 200
        return
    assert status == 404
    assert b"private" not in body


def test_a_caller_that_hangs_up_leaves_no_word_and_the_next_is_answered(server, folder, capfd):
    said: list[str] = []
    server.failed = said.append
    (folder / "large.html").write_bytes(b"x" * 20_000_000)
    for path in ("/large.html", "/", "/page.html"):
        with socket.create_connection(("127.0.0.1", server.server_address[1])) as caller:
            caller.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            caller.recv(1)
            # a reset, not an end
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert ask(server, "/page.html")[0] == 200
    assert (capfd.readouterr().err, said) == ("", [])


def test_an_answer_that_fails_is_one_line_and_the_next_is_given(folder, capfd):
    def broken(query):
        raise ValueError(query)

    with running(
        PageServer(folder, "127.0.0.1", 0, lambda: render_reports_and_sweeps_html(folder), broken)
    ) as server:
        said: list[str] = []
        server.failed = said.append
        with pytest.raises(http.client.RemoteDisconnected):
            ask(server, "/calculator.json?a")
        assert ask(server, "/page.html")[0] == 200
    assert (capfd.readouterr().err, said) == ("", ["an answer failed (ValueError: a)"])


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "MADEUP"]
)
def test_only_get_and_head_are_answered(server, method):
    assert ask(server, "/page.html", method)[0] == 405


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:9999", 200),
        ("localhost:8765", 200),
        ("[::1]:8765", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("192.0.2.7", 421),
        ("", 421),
        (None, 421),
        ("[", 421),
        ("localhost.evil.example:8765", 421),
    ],
)
def test_a_name_that_somebody_elses_dns_points_here_is_refused(server, host, status):
    assert ask(server, "/page.html", host=host)[0] == status


def test_the_list_names_pages_that_its_links_lead_to(server):
    status, headers, body = ask(server, "/")
    assert status == 200
    text = body.decode()
    assert 'href="page.html"' in text
    assert 'href="sub/a%20b%231.html"' in text
    assert ask(server, "/sub/a%20b%231.html")[2] == b"<h1>odd name</h1>"
    assert not any(name in text for name in ("hidden.html", "outside", "perfctl.db", "link.html"))
    assert "Content-Security-Policy" in headers


def answering(folder, host="127.0.0.1"):
    return PageServer(folder, host, 0, lambda: "", lambda query: (HTTPStatus.OK, {"asked": query}))


def test_the_calculator_is_answered_in_json_that_runs_nothing(folder):
    with running(answering(folder)) as server:
        status, headers, body = ask(server, "/calculator.json?model=mlp:depth=3")
        assert (status, json.loads(body)) == (200, {"asked": "model=mlp:depth=3"})
        assert headers["Content-Type"] == "application/json"
        assert headers["Content-Security-Policy"].startswith(
            "default-src 'none'"
        ) and "script" not in str(headers)
        assert ask(server, "/calculator.json", "HEAD")[2] == b""
        assert ask(server, "/calculator.json", "POST")[0] == 405
        assert ask(server, "/calculator.json", host="evil.example")[0] == 421
        assert ask(server, "/sub/calculator.json")[0] == 404


def test_only_a_page_of_this_calculator_may_ask_and_runs_no_other_script(folder):
    digest = compute_calculator_script_digest()
    assert digest.startswith("sha256-")
    (folder / "calculator.html").write_text(f"<meta content=\"script-src '{digest}'\">")
    (folder / "old.html").write_text("<meta content=\"script-src 'sha256-abc='\">")
    pages = PageServer(folder, "127.0.0.1", 0, lambda: "", None, digest)
    with running(pages) as server:
        policies = [
            ask(server, f"/{name}.html")[1]["Content-Security-Policy"]
            for name in ("calculator", "old")
        ]
    assert policies[0].endswith(f"connect-src 'self'; script-src '{digest}'")
    assert "connect-src" not in policies[1] and "sandbox" in policies[1]


def test_idle_connections_keep_nobody_out(server, monkeypatch):
    monkeypatch.setattr(server.RequestHandlerClass, "timeout", 600)  # none ends by itself
    address = ("127.0.0.1", server.server_address[1])
    with ExitStack() as stack:
        for _ in range(MOST_CONNECTIONS + 20):
            stack.enter_context(socket.create_connection(address))
        assert ask(server, "/page.html")[0] == 200
        assert len(server.connections) <= MOST_CONNECTIONS


@pytest.mark.parametrize(
    ("site", "status"),
    [("same-origin", 200), ("none", 200), ("cross-site", 403), ("same-site", 403)],
)
def test_the_calculator_answers_no_page_of_another_site(folder, site, status):
    with running(answering(folder)) as server:
        answer = ask(server, "/calculator.json", headers={"Sec-Fetch-Site": site})
        assert answer[0] == status


def test_the_calculator_is_not_answered_where_others_are_let_in_or_without_answers(folder, server):
    assert ask(server, "/calculator.json")[0] == 404
    with running(answering(folder, "0.0.0.0")) as open_server:
        assert ask(open_server, "/page.html")[0] == 200
        assert ask(open_server, "/calculator.json?model=mlp")[0] == 404


def test_a_sweep_that_runs_makes_the_list_refresh_until_it_ends(server, folder, recorded):
    sweep = folder / "perfctl-runs" / "torch-<b>net-1234"
    shutil.copytree(recorded / "torch" / "b16", sweep / "b16")
    (sweep / "b32.part").mkdir()
    (sweep / "sweep.json").write_text(
        json.dumps({"command": "perfctl torch --name '<script>'", "host": "node7"})
    )
    text = ask(server, "/")[2].decode()
    assert 'http-equiv="refresh"' in text
    assert "<td>32</td><td>running</td>" in text
    assert "<td>16</td><td>ok</td>" in text
    assert "<script>" not in text
    assert "<b>net" not in text
    old = time.time() - 3600
    os.utime(sweep / "b32.part", (old, old))
    text = ask(server, "/")[2].decode()
    assert "interrupted" in text
    assert 'http-equiv="refresh"' not in text
    with (sweep / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "<td>32</td><td>running</td>" in ask(server, "/")[2].decode()


def test_a_sweeps_record_that_is_no_record_harms_nothing(server, folder):
    sweep = folder / "perfctl-runs" / "broken"
    (sweep / "b8").mkdir(parents=True)
    (sweep / "sweep.json").write_text("[1,")
    (sweep / "b8" / "run.json").write_text('{"perfctl_run": 1, "status": 5, "duration_ns": "x"}')
    status, _, body = ask(server, "/")
    assert status == 200
    assert b"interrupted" in body


def test_ctrl_c_ends_it_cleanly_and_the_address_is_this_machines_own(folder):
    process = subprocess.Popen(
        [sys.executable, "-m", "perfctl", "serve", str(folder), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "http://127.0.0.1:" in line
    port = int(line.split("127.0.0.1:")[1].split("/")[0])
    with socket.create_connection(("127.0.0.1", port)):
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 0
    assert errors == "ended\n"


def test_a_port_that_is_taken_is_said_in_one_line(folder, capsys):
    from perfctl.orchestrator.cli.main import run_command_line

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert run_command_line(["serve", str(folder), "--port", str(taken.getsockname()[1])]) == 1
    assert "--port" in capsys.readouterr().err
