"""What processes of a job use: sampled, handed in once, added up, drawn, written as scalars."""

import json
import math
import struct
import time
from types import SimpleNamespace

import pytest
from store_support import until

import mixflow as mx
from mixflow.cli import main
from mixflow.errors import ParamError
from mixflow.kvstore import utilisation as use
from mixflow.kvstore.options import StoreOptions
from mixflow.kvstore.transport.rendezvous import Enquirer, Rendezvous, Roll

pytest.importorskip("zmq")
pytest.importorskip("psutil")


def sample(seconds, cpu=50.0, resident=10**8, sent=0, received=0):
    return use.Sample(seconds, cpu, resident, sent, received)


def message(pid, *rows, name="worker0"):
    return {"name": name, "pid": pid, "samples": [list(row) for row in rows]}


def test_a_meter_sees_work_and_memory():
    meter = use.Meter(lambda: (3, 4))
    end = time.process_time() + 0.2
    while time.process_time() < end:
        math.sqrt(2.0)
    found = meter.read()
    # Other jobs may hold this one back; it has had 0.2 s of a core all the same.
    assert found.cpu_percent > 0
    assert found.resident_bytes > 10**6
    assert (found.sent_bytes, found.received_bytes) == (3, 4)


def test_repeated_messages_count_once_and_a_new_life_begins_anew():
    collector, heard = use.Collector(time.monotonic() - 100), []
    collector.listen = lambda name, found: heard.append((name, found.sent_bytes))
    collector.take(message(7, (0, 2.0, 10, 1, 100, 0), (1, 1.0, 10, 1, 200, 0)))
    collector.take(message(7, (1, 1.5, 10, 1, 200, 0), (2, 0.5, 10, 1, 300, 0)))
    collector.take(message(8, (0, 0.1, 10, 1, 40, 0)))
    kept = collector.samples()["worker0"]
    assert [s.sent_bytes for s in kept] == [100, 200, 300, 40]
    assert heard == [("worker0", n) for n in (100, 200, 300, 40)]
    assert kept[0].seconds == pytest.approx(98, abs=0.9)  # its age, on the collector's clock
    assert use.totals(kept)["sent_bytes"] == 340


def test_samples_do_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(use, "MOST_KEPT", 10)
    collector = use.Collector()
    for number in range(100):
        collector.take(message(1, (number, 0.0, 1, 1, number, 0)))
    kept = [s.sent_bytes for s in collector.samples()["worker0"]]
    assert len(kept) <= 10 and kept[0] == 0 and kept[-1] == 99


def test_a_log_that_can_not_be_written_does_not_end_the_job():
    def fail(name, found):
        raise OSError("disk full")

    collector = use.Collector()
    collector.listen = fail
    assert collector.take(message(1, (0, 0.0, 1, 1, 5, 0))) == {}
    assert len(collector.samples()["worker0"]) == 1


def test_the_rendezvous_takes_samples_and_answers_bad_ones_with_an_error():
    collector = use.Collector()
    roll = Roll(1, 1, {}, take_usage=collector.take)
    assert roll.answer({"what": "usage", **message(1, (0, 0.0, 1, 1, 5, 0))}) == {}
    for rows in ([(0, "x")], [(0, math.nan, 1, 1, 1, 1)]):
        assert (
            "expected a whole 'usage'"
            in roll.answer({"what": "usage", **message(1, *rows)})["error"]
        )
    assert Roll(1, 1, {}).answer({"what": "usage"}) == {}


def test_a_sampler_hands_in_what_it_has_seen(monkeypatch):
    monkeypatch.setattr(use, "HAND_IN_SECONDS", 60.0)
    collector, sent = use.Collector(), iter(range(1, 1000))
    rendezvous = Rendezvous(Roll(1, 1, {}, take_usage=collector.take))
    try:
        enquirer = Enquirer(rendezvous.address, rendezvous.token, "server0")
        sampler = use.Sampler(enquirer, "server0", 0.02, lambda: (next(sent), 0))
        until(lambda: len(collector.samples().get("server0", ())) >= 3)
        sampler.close()
        sampler.close()
    finally:
        rendezvous.close()
    counted = [s.sent_bytes for s in collector.samples()["server0"]]
    assert counted == list(range(1, len(counted) + 1)) and len(counted) >= 4


def test_no_period_no_sampler():
    assert use.start_sampler("tcp://nowhere", "", "worker0", 0.0, lambda: (0, 0)) is None
    with pytest.raises(ParamError, match="expected sample_period >= 0"):
        StoreOptions(sample_period=-1.0)


def test_totals_weigh_samples_by_their_time():
    found = use.totals([sample(1, 100.0), sample(2, 100.0, 3 * 10**8), sample(4, 0.0)])
    assert found["cpu_percent_mean"] == 50.0
    assert found["cpu_percent_max"] == 100.0
    assert found["resident_bytes_max"] == 3 * 10**8
    assert use.totals([]) == {}


def test_rates_are_per_second_and_never_negative():
    samples = [sample(1, sent=0), sample(3, sent=400), sample(4, sent=100)]
    assert use.rates(samples, "sent_bytes") == [0.0, 200.0, 0.0]


def report():
    samples = {
        "server0": [sample(0.0), sample(1.0, sent=10**6, received=2 * 10**6)],
        "worker0": [sample(0.5), sample(1.5, 90.0, sent=2 * 10**6)],
    }
    return {"began": 1000.0, "seconds": 2.0, "utilisation": use.to_json(samples, 1.0)}


def test_a_report_comes_back_from_json():
    found = use.from_json(json.loads(json.dumps(report())))
    assert found["worker0"][1] == sample(1.5, 90.0, sent=2 * 10**6)
    assert report()["utilisation"]["processes"]["server0"]["totals"]["sent_bytes"] == 10**6


@pytest.mark.parametrize("bad", [{}, {"utilisation": {"processes": {"a": {"samples": {}}}}}, []])
def test_what_is_no_report_is_refused(bad):
    with pytest.raises(ParamError, match=r"\[utilisation\] expected the report of a job"):
        use.from_json(bad)


def scalars(folder):
    """(tag, step, value, wall time) of every scalar in a folder's event files."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event = event_pb2.Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            found += [
                (v.tag, event.step, v.simple_value, event.wall_time) for v in event.summary.value
            ]
    return found


def test_the_command_draws_and_writes_scalars(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    source, picture = tmp_path / "job.json", tmp_path / "use.svg"
    source.write_text(json.dumps(report()))
    command = ["utilisation", str(source), "--out", str(picture), "--tensorboard", str(tmp_path)]
    assert main(command) == 0
    assert "server0" in capsys.readouterr().out
    assert "<svg" in picture.read_text()
    by_tag = {
        (tag, step): (value, wall) for tag, step, value, wall in scalars(tmp_path / "worker0")
    }
    assert by_tag["utilisation/cpu_percent", 1500] == (90.0, 1001.5)
    assert by_tag["utilisation/sent_MB_per_s", 1500] == (2.0, 1001.5)
    assert main(["utilisation", str(source), "--out", str(tmp_path / "use.xyz")]) == 1
    assert "[pictures] expected a name that ends with one of" in capsys.readouterr().err
    source.write_text("{")
    assert main(["utilisation", str(source)]) == 1
    assert "[utilisation] expected JSON" in capsys.readouterr().err


def test_metrics_of_fit_become_scalars(tmp_path):
    pytest.importorskip("tensorboardX")
    log = mx.contrib.tensorboard.LogMetricsCallback(str(tmp_path), prefix="train")
    metric = mx.metric.create("acc")
    metric.update([mx.nd.array([0, 1])], [mx.nd.array([[1, 0], [1, 0]])])
    log(SimpleNamespace(epoch=3, eval_metric=metric))
    log(SimpleNamespace(epoch=4, eval_metric=None))
    log.summary_writer.close()
    assert [(tag, step, value) for tag, step, value, _ in scalars(tmp_path)] == [
        ("train-accuracy", 3, 0.5)
    ]
