"""Where a job's processes meet: what anybody may send, and who is answered."""

import json

import pytest

from mixflow.errors import MixflowError
from mixflow.kvstore.rendezvous import Enquirer, Rendezvous, Roll
from mixflow.kvstore.utilisation import Collector

zmq = pytest.importorskip("zmq")
STRAY = [
    b"",
    b"\xff",
    b"[" * 100_000,
    b"[]",
    b'{"what": "servers"}',
    b'{"token": 1}',
    b'{"token": "\xc3\xa9"}',
    b'{"token": "\\ud800"}',
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
        stranger.send(json.dumps({"token": rendezvous.token, "what": "servers"}).encode())
        assert stranger.poll(60_000)
        assert json.loads(stranger.recv()) == {"servers": None, "number": None}
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
