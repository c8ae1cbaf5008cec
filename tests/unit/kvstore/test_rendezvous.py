"""Where a job's processes meet: what anybody may send, and who is answered."""

import contextlib
import json
import socket
import struct

import pytest

import mixflow as mx
from mixflow.errors import MixflowError
from mixflow.kvstore.transport.doorkeeper import proof
from mixflow.kvstore.transport.rendezvous import Enquirer, Rendezvous, Roll
from mixflow.kvstore.utilisation import Collector

zmq = pytest.importorskip("zmq")
STRAY = [
    b"",
    b"\xff",
    b"[" * 100_000,
    b"[]",
    b'{"what": "servers"}',
    b'{"proof": 1}',
    b'{"proof": "\xc3\xa9"}',
    b'{"proof": "\\ud800"}',
]


@pytest.fixture
def rendezvous():
    made = Rendezvous(Roll(1, 1, {"policy": ["dist_sync", {}]}, take_usage=Collector().take))
    yield made
    made.close()


def test_what_strangers_send_is_dropped_and_the_others_are_answered(rendezvous):
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.connect(rendezvous.address)
        for text in STRAY:
            stranger.send(text)
        # The token itself opens nothing: it is never sent.
        stranger.send(json.dumps({"proof": rendezvous.token, "what": "servers"}).encode())
        request = {"proof": proof(rendezvous.token), "what": "servers"}
        stranger.send(json.dumps(request).encode())
        assert stranger.poll(60_000)
        assert json.loads(stranger.recv()) == {
            "servers": None,
            "missing": ["server0"],
            "number": None,
        }
        assert not stranger.poll(100)
        stranger.setsockopt(zmq.LINGER, 0)


@pytest.mark.parametrize(
    ("what", "fields", "text"),
    [
        ("dance", {}, "expected one of .*'hello'.*, got 'dance'"),
        ("beat", {}, "expected a whole 'beat'"),
        ("beat", {"rank": float("inf"), "step": 1}, "expected a whole 'beat'"),
        ("usage", {"pid": 1, "samples": [[]]}, "expected a whole 'usage'"),
        (
            "hello",
            {"rank": 0, "nonce": "a", "consistency": "dist_async"},
            "expected a store of this job's consistency 'dist_sync', got 'dist_async'",
        ),
    ],
)
def test_a_bad_request_is_answered_by_an_error(rendezvous, what, fields, text):
    enquirer = Enquirer(rendezvous.address, rendezvous.token, "worker0")
    try:
        with pytest.raises(MixflowError, match=text):
            enquirer.ask(what, 60.0, **fields)
        assert enquirer.ask("servers", 60.0)["servers"] is None
    finally:
        enquirer.close()


def test_a_wrong_token_is_no_answer(rendezvous):
    enquirer = Enquirer(rendezvous.address, "another", "worker0")
    try:
        with pytest.raises(MixflowError, match="got nothing; is the launcher alive"):
            enquirer.ask("servers", 0.3)
    finally:
        enquirer.close()


def test_the_token_is_not_sent():
    """It seals code; networks see a proof of it."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as listener:
        listener.setsockopt(zmq.LINGER, 0)
        port = listener.bind_to_random_port("tcp://127.0.0.1")
        enquirer = Enquirer(f"tcp://127.0.0.1:{port}", "the token", "worker0")
        with pytest.raises(MixflowError, match="got nothing"):
            enquirer.ask("servers", 0.1)
        assert listener.poll(20_000)
        sent = listener.recv_multipart()
        enquirer.close()
    assert not any(b"the token" in frame for frame in sent)
    assert json.loads(sent[-1])["proof"] == proof("the token")


def test_nobody_is_sent_to_a_server_that_has_ended():
    roll = Roll(1, 1, {"policy": ["dist_sync", {}]})
    server = {"what": "register", "name": "server0", "address": "tcp://a", "storage": "s"}
    server |= {"incarnation": 0, "version": 0, "saved": [], "late": [], "synced": None}
    roll.answer(server)
    assert roll.answer({"what": "servers"})["servers"] == {"server0": "tcp://a"}
    roll.gone["server0"] = 0
    roll.answer(server)  # a word of it that was on its way
    assert roll.answer({"what": "servers"})["servers"] is None
    roll.answer({**server, "incarnation": 1, "address": "tcp://b"})
    assert roll.answer({"what": "servers"})["servers"] == {"server0": "tcp://b"}


def test_who_waits_for_servers_is_told_which_are_missing():
    roll = Roll(1, 3, {"policy": ["dist_sync", {}]})
    roll.servers["server1"] = (0, "tcp://a", "s")
    made = Rendezvous(roll)
    enquirer = Enquirer(made.address, made.token, "worker0")
    try:
        with pytest.raises(MixflowError, match=r"within 0.2 s, got nothing of server0, server2$"):
            enquirer.wait_for_servers("servers", 0.2)
    finally:
        enquirer.close()
        made.close()


class Broken:
    """Whoever answers with a fault of his own."""

    def answer(self, request):
        raise AssertionError("of ours")


def test_a_fault_of_ours_is_an_answer_and_not_the_end():
    made = Rendezvous(Broken())
    enquirer = Enquirer(made.address, made.token, "worker0")
    try:
        for _ in range(2):
            with pytest.raises(MixflowError, match=r"expected an answer to 'beat', got Assertion"):
                enquirer.ask("beat", 20.0)
    finally:
        enquirer.close()
        made.close()


def test_nothing_that_is_too_long_is_read(rendezvous):
    """ZMTP 3 by hand: a greeting, READY, then the head of a frame of a terabyte."""
    host, port = rendezvous.address.removeprefix("tcp://").split(":")
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    with socket.create_connection((host, int(port))) as stranger:
        stranger.settimeout(20)
        stranger.sendall(greeting + b"\x04" + bytes([len(ready)]) + ready)
        stranger.sendall(b"\x02" + struct.pack(">Q", 1 << 40))
        with contextlib.suppress(ConnectionError):
            while stranger.recv(4096):  # until it is thrown out
                pass


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (
            "DMLC_PS_ROOT_PORT",
            "many",
            "expected the address of a job's rendezvous, got tcp://.*many",
        ),
        ("DMLC_PS_ROOT_URI", "", "got no DMLC_PS_ROOT_URI"),
        ("DMLC_WORKER_ID", "first", "got DMLC_WORKER_ID 'first'"),
        ("DMLC_WORKER_ID", None, "got no DMLC_WORKER_ID"),
    ],
)
def test_names_of_the_environment_that_mean_nothing(monkeypatch, name, value, text):
    known = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9", "DMLC_WORKER_ID": "0"}
    known |= {"MIXFLOW_JOB_TOKEN": "a", name: value}
    for each, given in known.items():
        monkeypatch.delenv(each, raising=False)
        if given is not None:
            monkeypatch.setenv(each, given)
    with pytest.raises(MixflowError, match=text):
        mx.kv.create("dist_sync")


def test_a_host_that_is_not_known_ends_at_the_deadline():
    enquirer = Enquirer("tcp://no-such-host.invalid:9", "a", "worker0")
    try:
        with pytest.raises(MixflowError, match=r"at tcp://no-such-host.invalid:9 to answer"):
            enquirer.ask("servers", 0.3)
    finally:
        enquirer.close()
