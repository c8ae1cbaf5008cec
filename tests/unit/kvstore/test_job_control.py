"""Commands on jobs in bad moments: lookers, cards of others, coordinators that do not answer."""

import threading

import pytest
from test_registry import StoodIn, card

from mixflow.cli import main
from mixflow.errors import FormatError, MixflowError
from mixflow.files import lock, unlock
from mixflow.kvstore.job import detached, registry, running
from mixflow.kvstore.job.control import Control, ControlClient, open_control

pytest.importorskip("zmq")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return registry.place()


def test_somebody_who_looks_does_not_keep_a_job_from_its_name(place):
    (place / "a").mkdir(parents=True)
    with open(place / "a" / "lock", "ab") as looker:
        assert lock(looker)
        threading.Timer(0.2, unlock, [looker]).start()
        registry.Claim("a").end(keep=False)


def test_what_a_dead_job_has_left_is_not_removed_from_under_a_new_one(place, monkeypatch):
    """A job begins between a look at what an earlier one of its name has left and its removal."""
    old = registry.Claim("a")
    old.write(card("a"))
    old.end(keep=True)
    read, claims = registry.read, []

    def slow(folder):
        found = read(folder)
        if not claims:
            claims.append(registry.Claim("a"))
            claims[0].write(card("a"))
        return found

    monkeypatch.setattr(registry, "read", slow)
    registry.known()
    assert (place / "a" / "job.json").exists()
    claims[0].end(keep=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", 3),
        ("name", "other"),
        ("control", None),
        ("token", []),
        ("command", "text"),
        ("command", [1]),
        ("began", "now"),
        ("began", 1e300),
        ("began", float("nan")),
        ("workers", None),
        ("servers", {}),
        ("code", "none"),
    ],
)
def test_cards_that_are_none_do_not_end_the_commands(place, capsys, name, value):
    claim = registry.Claim("a")
    claim.write(card("a", detached=True) | {name: value})
    with pytest.raises(FormatError, match="expected a job in"):
        registry.read(place / "a")
    assert main(["jobs"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    claim.end(keep=False)


class Silent:
    """A coordinator that is there and says nothing: stopped, or swapped out."""

    def __init__(self):
        self.claim = registry.Claim("a")
        self.at = open_control(Control(StoodIn(), "a"), "127.0.0.1")
        self.claim.write(card("a", detached=True) | {"control": self.at.address, "token": "other"})


@pytest.fixture
def silent(monkeypatch):
    monkeypatch.setattr("mixflow.kvstore.job.control.ANSWER_SECONDS", 0.2)
    made = Silent()
    yield made
    made.at.close()
    made.claim.end(keep=False)


def test_a_coordinator_that_does_not_answer_is_not_taken_for_stopped(silent, capsys):
    assert main(["stop", "a", "--deadline", "1"]) == 1
    assert "expected the job's rendezvous" in capsys.readouterr().err
    assert main(["attach", "a"]) == 1
    assert "expected the coordinator of 'a' to answer, got nothing" in capsys.readouterr().err


class Mute(Control):
    """One that stops answering when it was told to stop its job."""

    def answer(self, request):
        if self.stopped:
            raise AttributeError  # no answer
        return super().answer(request)


def test_a_job_that_is_asked_to_stop_has_ended_when_its_coordinator_has(place, monkeypatch):
    monkeypatch.setattr("mixflow.kvstore.job.control.ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(
        "mixflow.kvstore.transport.rendezvous.Rendezvous._answer", lambda s, r: s.roll.answer(r)
    )
    claim = registry.Claim("a")
    at = open_control(Mute(StoodIn(), "a"), "127.0.0.1")
    claim.write(card("a") | {"control": at.address, "token": at.token})
    with ControlClient(registry.read(place / "a")) as client:
        with pytest.raises(
            MixflowError, match="expected job 'a' to end within 1 s, got its coordina"
        ):
            client.stop(1.0)
        claim.end(keep=True)
        client._enquirer.ask = lambda *a, **k: (_ for _ in ()).throw(MixflowError("gone"))
        with pytest.raises(MixflowError, match="gone"):
            client.stop(1.0)  # it could not even be asked
    at.close()


def test_the_second_of_two_jobs_of_a_name_is_not_told_that_it_runs(place, monkeypatch):
    def other(*words, **options):
        claims.append(registry.Claim("a", clear=False))
        claims[0].write(card("a", detached=True))  # of this process, not of the child
        return popen(
            [words[0][0], "-c", "import sys; print('a name in use'); sys.exit(1)"], **options
        )

    claims, popen = [], detached.subprocess.Popen
    monkeypatch.setattr(detached.subprocess, "Popen", other)
    with pytest.raises(MixflowError, match="got its end with code 1: a name in use"):
        detached._start_here("a", {})
    claims[0].end(keep=False)


def test_a_report_that_cannot_be_written_is_found_before_the_job_runs(tmp_path, capsys):
    for name in ("--events", "--report"):
        words = [
            "launch",
            "-n",
            "1",
            name,
            str(tmp_path / "none" / "x"),
            "touch",
            str(tmp_path / "ran"),
        ]
        assert main(words) == 1
        assert f"expected a folder for {name}" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_a_job_whose_report_has_no_room_has_ended_all_the_same(tmp_path, monkeypatch, capsys):
    events = tmp_path / "events"
    monkeypatch.setattr(running, "_write_report", _full)
    assert main(["launch", "-n", "1", "--events", str(events), "true"]) == 1
    assert "No space left" in capsys.readouterr().err


def _full(*_):
    from mixflow.errors import FileError

    raise FileError("[files] expected to write it, got: No space left on device")
