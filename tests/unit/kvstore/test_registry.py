"""Jobs as other terminals find them: names, folders, cards, the control endpoint."""

import argparse
import json
import os
from types import SimpleNamespace

import pytest

from mixflow.cli import main
from mixflow.errors import FileError, FormatError, MixflowError, ParamError, UnknownNameError
from mixflow.kvstore.job import commands, detached, registry
from mixflow.kvstore.job.control import Control, ControlClient, open_control

pytest.importorskip("zmq")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return registry.place()


def card(name, **more):
    return registry.card_of(name, ["a", "b"], control="tcp://127.0.0.1:1", token="t", **more) | {
        "workers": 1,
        "servers": 1,
    }


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "-a", "a" * 65, "é"])
def test_bad_names(name):
    with pytest.raises(ParamError, match="expected a job's name of at most 64 letters"):
        registry.Claim(name)


def test_a_name_is_made_of_the_program():
    assert registry.name_for(["python", "-u", "some/train it.py", "5"]).startswith("train-it-")
    assert registry.name_for(["/bin/true"]).startswith("true-")
    assert registry.name_for(["/"]).startswith("job-")
    registry.checked_name(registry.name_for(["x" * 500]))


def test_a_claim_is_for_one_and_private(place):
    claim = registry.Claim("a")
    assert os.stat(place / "a").st_mode & 0o777 == 0o700
    with pytest.raises(ParamError, match="expected a name that no running job has, got 'a'"):
        registry.Claim("a")
    claim.write(card("a", detached=True))
    assert registry.find(None)["state"] == "running"
    claim.end(keep=True)
    assert registry.find("a")["state"] == "lost"
    again = registry.Claim("a")
    assert not (place / "a" / "job.json").exists()
    again.write(card("a") | {"code": 0})
    again.end(keep=True)
    again.end(keep=True)
    assert registry.find("a")["state"] == "ended"
    registry.Claim("a").end(keep=False)
    assert not (place / "a").exists()


def test_what_a_killed_launcher_has_left_goes(place):
    claim = registry.Claim("a")
    claim.write(card("a"))
    claim.end(keep=True)
    assert registry.known() == [] and not (place / "a").exists()


def test_unknown_jobs_and_which_one():
    with pytest.raises(ParamError, match=r"expected a running job, got none"):
        registry.find(None)
    claims = [registry.Claim(name) for name in ("first", "second")]
    for claim in claims:
        claim.write(card(claim.name))
    with pytest.raises(ParamError, match=r"running jobs \(first, second\)"):
        registry.find(None)
    with pytest.raises(UnknownNameError, match=r"got 'frist'.*first"):
        registry.find("frist")
    for claim in claims:
        claim.end(keep=False)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"name": 3}', '{"name": "a", "control": 1}'])
def test_a_folder_without_a_card_is_no_job(place, content):
    (place / "a").mkdir(parents=True)
    (place / "a" / "job.json").write_text(content)
    assert registry.known() == []
    with pytest.raises(FormatError, match="expected a job in"):
        registry.read(place / "a")


def test_old_jobs_are_forgotten(monkeypatch):
    monkeypatch.setattr(registry, "KEPT", 2)
    for number in range(4):
        claim = registry.Claim(f"job{number}")
        claim.write(card(f"job{number}", detached=True) | {"code": 0, "began": float(number)})
        claim.end(keep=True)
    registry.Claim("other").end(keep=False)
    assert [found["name"] for found in registry.known()] == ["job2", "job3"]


def test_no_place_for_jobs(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(FileError, match="expected a folder for the job 'a'"):
        registry.Claim("a")
    assert main(["launch", "-n", "1", "--name", "a", "true"]) == 1
    assert "expected a folder for the job 'a'" in capsys.readouterr().err


class StoodIn:
    """A job as its control endpoint sees it."""

    def __init__(self, *workers):
        self.workers, self.wanted, self.refused, self.stopped = list(workers), [], "", False

    def status(self):
        made = [{"name": f"worker{r}", "rank": r, "state": s} for r, s in enumerate(self.workers)]
        return {"workers": made, "servers": [], "refused": self.refused, "obeyed": True}

    def scale(self, workers):
        self.wanted.append(workers)

    def stop(self):
        self.stopped = True


@pytest.fixture
def control(tmp_path):
    (tmp_path / "log").write_bytes(b"\xffhello")
    made = Control(StoodIn("at work", "leaving"), "a", tmp_path / "log")
    at = open_control(made, "127.0.0.1")
    made.card = {"name": "a", "control": at.address, "token": at.token}
    yield made
    at.close()


def test_what_a_control_endpoint_answers(control):
    with ControlClient(control.card) as client:
        assert client.ask("status")["state"] == "running"
        found = client.ask("log", offset=1)
        assert found["text"] == "hello" and found["state"] == "running"
        assert client.ask("log", offset=99)["text"] == ""
        for what, fields, text in [
            ("dance", {}, r"\[jobs\] expected one of \['log', 'scale', 'status', 'stop'\]"),
            ("scale", {}, "expected a whole 'scale'"),
            ("scale", {"workers": "x"}, "expected a whole 'scale'"),
            ("log", {"offset": -1}, "expected a whole 'log'"),
        ]:
            with pytest.raises(MixflowError, match=text):
                client.ask(what, **fields)
        assert not control.job.wanted and not control.job.stopped
        with pytest.raises(
            MixflowError, match=r"within 0.1 s, got 1 at work, worker1 leaving; a w"
        ):
            client.scale(2, 0.1)
        assert client.scale(2, 0)["workers"] and control.job.wanted == [2, 2]
        with pytest.raises(ParamError, match="at least one worker, got 0"):
            client.scale(0, 1)
        with pytest.raises(MixflowError, match=r"'a' to end within 0.1 s, got workers \[0, 1\]"):
            client.stop(0.1)
        control.job.refused = "no room"
        with pytest.raises(MixflowError, match="no room"):
            client.scale(3, 1)
        control.job.refused, control.result = "", (3, "")
        with pytest.raises(MixflowError, match="expected a running job, got 'a', which has ended"):
            client.scale(3, 1)
        assert client.stop(1)["code"] == 3 and control.stopped


def test_strangers_get_no_answer(control, monkeypatch):
    monkeypatch.setattr("mixflow.kvstore.job.control.ANSWER_SECONDS", 0.2)
    guess = {**control.card, "token": "guess"}
    with ControlClient(guess) as client, pytest.raises(MixflowError, match="got nothing"):
        client.scale(5, 1)
    assert not control.job.wanted


def test_mistakes_of_the_commands_are_one_line(capsys):
    for words, text in [
        (["scale", "-n", "0"], "expected at least one worker, got 0"),
        (["status"], "expected a running job, got none"),
        (["stop", "nobody"], "'nobody'"),
        (["status", "--address", "auto"], "expected the name of a job on the cluster, got none"),
        (["launch", "-n", "1", "--detach", "--address", "local", "true"], "outlives this terminal"),
        (["launch", "-n", "1", "--name", "a/b", "true"], "expected a job's name"),
    ]:
        assert main(words) == 1
        error = capsys.readouterr().err
        assert text in error and error.count("\n") == 1


def test_the_list_of_jobs_shows_what_runs_and_how_it_ended(capsys):
    claims = [registry.Claim(name) for name in ("runs", "ended")]
    claims[0].write(card("runs", address="auto", detached=True))
    claims[1].write(card("ended", detached=True) | {"code": 7, "said": "it broke"})
    claims[1].end(keep=True)
    assert main(["status", "ended", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["code"], found["said"]) == ("ended", 7, "it broke")
    assert main(["status", "ended"]) == 0
    assert "has ended with code 7 it broke" in capsys.readouterr().out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mixflow.kvstore.job.control.ANSWER_SECONDS", 0.1)
        assert main(["jobs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "runs" in lines[1] and "auto, detached" in lines[1]
    assert "ended (7)" in lines[2]
    claims[0].end(keep=False)


def test_a_command_without_a_name_stays_with_its_job(place):
    """`attach` looks at the job again when it has ended, and another may run by then."""
    claims = [registry.Claim("first")]
    claims[0].write(card("first", detached=True))
    args = argparse.Namespace(job=None, address=None)
    assert commands._card(args)["name"] == "first"
    claims[0].write(card("first", detached=True) | {"code": 0, "said": "", "ended": 1.0})
    claims[0].end(keep=True)
    claims.append(registry.Claim("second"))
    claims[1].write(card("second", detached=True))
    found = commands._card(args)
    assert (found["name"], found["state"], found["code"]) == ("first", "ended", 0)
    claims[1].end(keep=False)


def test_nobody_waits_for_a_coordinator_that_is_gone(monkeypatch):
    monkeypatch.setattr("mixflow.kvstore.job.control.ANSWER_SECONDS", 1e6)
    claim = registry.Claim("a")
    claim.write(card("a", detached=True))
    claim.end(keep=True)
    with (
        ControlClient(registry.find("a")) as client,
        pytest.raises(MixflowError, match="got nothing; is the launcher alive"),
    ):
        client.ask("status")


def test_a_job_that_was_over_before_it_was_asked_has_begun_or_not(monkeypatch):
    monkeypatch.setattr("mixflow.kvstore.job.control.ANSWER_SECONDS", 0.1)
    for begun in (True, False):
        claim = registry.Claim("quick")
        said = {"code": 3, "said": "it broke", "begun": begun}
        claim.write(card("quick", detached=True) | said)
        claim.end(keep=True)
        if begun:
            detached._wait_until_begun(registry.find("quick"), 60.0)
        else:
            with pytest.raises(MixflowError, match="expected job 'quick' to begin, got: it broke"):
                detached._wait_until_begun(registry.find("quick"), 60.0)


def test_newcomers_get_the_part_of_the_data_that_fewest_have():
    from mixflow.kvstore.transport.rendezvous import Roll

    roll = Roll(3, 1, {})
    assert [roll.share_of(rank) for rank in range(3)] == [0, 1, 2]
    roll.deal(3, [0, 2])
    roll.deal(4, [0, 2, 3])
    roll.deal(5, [2, 3, 4])
    assert [roll.share_of(rank) for rank in (3, 4, 5)] == [1, 0, 0]


def test_a_result_is_told_by_a_control_endpoint_only_when_there_is_one():
    made = Control(SimpleNamespace(status=dict), "a")
    assert made.answer({"what": "status"}) == {"name": "a", "state": "running"}
    made.result = (1, "why")
    assert made.answer({"what": "status"})["said"] == "why"
