"""Where weights come from: a server of our own stands in for the hub."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pipelines.doctor import hub, weights
from pipelines.doctor.machine import Machine
from tests.pipelines.doctor.said import says


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_ENDPOINT", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server():
    """Address of a server whose answer is its status."""
    made = []

    def make(status):
        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self):
                asked.append(self.path)
                self.send_response(status)
                self.end_headers()

            def log_message(self, *arguments):
                pass

        asked = []
        made.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=made[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{made[-1].server_port}", asked

    yield make
    for one in made:
        one.shutdown()
        one.server_close()


@pytest.mark.parametrize("status", [200, 403, 503])
def test_an_answer_is_enough(server, monkeypatch, status):
    address, asked = server(status)
    monkeypatch.setenv("HF_ENDPOINT", address)
    finding = hub.check(Machine())
    assert finding.state == "ok"
    assert asked == ["/"] or asked == [""]


@pytest.fixture
def silent(monkeypatch):
    """A socket that the hub is said to be; nobody listens yet."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{bound.getsockname()[1]}")
        yield bound


def test_nobody_there(monkeypatch, silent):
    monkeypatch.setenv("HF_HOME", "/data/hf")
    finding = hub.check(Machine())
    says(finding, "note", "cannot be reached: [Errno 111] Connection refused", "copy /data/hf (HF_HOME)", "--checkpoint FILE")


def test_no_answer_in_time(monkeypatch, silent):
    monkeypatch.setattr(hub, "SECONDS", 0.2)
    silent.listen()
    says(hub.check(Machine()), "note", "cannot be reached")


def test_proxy(server, monkeypatch):
    address, asked = server(200)
    monkeypatch.setenv("http_proxy", address)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    assert hub.check(Machine()).state == "ok"
    assert asked == ["http://hub.invalid/"] or asked == ["http://hub.invalid"]
    address, _ = server(407)
    monkeypatch.setenv("http_proxy", address.replace("//", "//me:hunter2@"))
    says(hub.check(Machine()), "note", "the proxy wants a password")


def test_proxy_is_named_when_it_may_be_at_fault(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://me:hunter2@proxy.invalid:1")
    monkeypatch.setattr(hub, "reached", lambda address: "no route")
    finding = hub.check(Machine())
    assert "the environment names a proxy" in finding.remedy
    assert "hunter2" not in finding.found + finding.remedy


def test_certificates(monkeypatch):
    monkeypatch.setattr(hub, "reached", lambda address: "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed")
    assert "SSL_CERT_FILE" in hub.check(Machine()).remedy


def test_address_that_is_none(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "hub")
    assert "cannot be reached: unknown url type: 'hub'" in hub.check(Machine()).found


@pytest.mark.parametrize("value", ["1", "TRUE"])
def test_offline_by_the_environment(monkeypatch, value):
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    monkeypatch.setattr(hub, "reached", lambda address: pytest.fail("asked"))
    says(hub.check(Machine()), "note", f"HF_HUB_OFFLINE={value}: timm takes weights from ~/.cache/huggingface only → ")


def test_official_weights(server, monkeypatch):
    monkeypatch.setattr(weights, "SERVER", server(403)[0])
    assert weights.check(Machine()).state == "ok"
    monkeypatch.setattr(weights, "SERVER", "http://127.0.0.1:1")
    says(weights.check(Machine()), "note", "--checkpoint FILE")
