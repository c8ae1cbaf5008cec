"""The time model against sums by hand; and that nothing is shown that was not checked."""

import json
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest

from mixflow import simulate
from mixflow.cli import main
from mixflow.errors import FormatError, MixflowError, ParamError
from mixflow.kvstore.protocol.policy import Async, Backup, Bounded, Sync
from mixflow.kvstore.simulation.cores import Processor
from mixflow.kvstore.simulation.costs import Cost, Costs, Spread, Work, Workload, read
from mixflow.kvstore.simulation.scaling import Scenario, Thread, build
from mixflow.kvstore.simulation.scaling import simulate as run
from mixflow.kvstore.simulation.simulator import Network, World

FREE = Costs()
NET = Network(latency=0.0, bandwidth=1e6)
STEP = Workload("step", 1.0, (400_000,))


def ends_of(costs, *threads, beside=0):
    """When threads (name, begin, work) end on the cores of a host."""
    world, ends = World(Network()), {}
    processor = Processor(world, costs, beside)
    for name, begin, work in threads:
        then = partial(lambda n: ends.update({n: world.now}), name)
        world.at(begin, partial(processor.run, work, then, name))
    world.run(lambda: len(ends) == len(threads), 100.0)
    return ends


def test_threads_of_one_core_take_turns():
    ends = ends_of(Costs(cores=2, slice=0.1, tick=0.1), *((name, 0.0, 1.0) for name in "abc"))
    # The third shares the first one's core, and the other core takes nothing over.
    assert ends == pytest.approx({"b": 1.0, "a": 1.9, "c": 2.0})
    pair = ends_of(Costs(cores=1), ("a", 0.0, 1.0), ("b", 0.0, 1.0))
    assert max(pair.values()) == pytest.approx(2.0)


def test_two_cores_that_are_busy_are_slower():
    costs = Costs(cores=2, speed=(1.0, 0.5))
    assert ends_of(costs, ("a", 0.0, 1.0), ("b", 0.0, 1.0)) == {"a": 2.0, "b": 2.0}


def test_a_name_keeps_to_its_core():
    busy = [("a", 0.0, 1.0), ("a", 0.5, 1.0), ("b", 0.0, 0.1)]
    world, ends = World(Network()), []
    processor = Processor(world, Costs(cores=2, slice=0.1, tick=0.1))
    for name, begin, work in busy:
        then = partial(lambda n: ends.append((n, world.now)), name)
        world.at(begin, partial(processor.run, work, then, name))
    world.run(lambda: len(ends) == 3, 100.0)
    # A name that is busy has another thread, on the same core; that of the other one is idle.
    assert ends[0] == ("b", 0.1) and ends[-1] == ("a", pytest.approx(2.0))
    # What runs all the time comes first.
    beside = ends_of(Costs(cores=2), ("w", 0.0, 1.0), ("s", 0.0, 1.0), beside=1)
    assert beside["w"] == pytest.approx(1.0) and beside["s"] == pytest.approx(2.0, abs=0.01)


def test_a_thread_that_goes_on_keeps_its_core():
    world, ends = World(Network()), []
    processor = Processor(world, Costs(cores=1, slice=0.5, tick=100.0))

    def again(count):
        ends.append(world.now)
        if count:
            processor.run(1.0, partial(again, count - 1), "a")

    processor.run(1.0, partial(again, 2), "a")
    world.at(0.9, lambda: processor.run(0.5, lambda: ends.append("b"), "b"))
    world.run(lambda: len(ends) == 4, 100.0)
    # The other thread had nothing yet: it comes before what is left of the first piece, and then
    # waits for no end of a piece.
    assert ends == ["b", pytest.approx(1.5), pytest.approx(2.5), pytest.approx(3.5)]


def test_a_slice_is_not_cut_short_and_ticks_end_it():
    two = (("a", 0.0, 1.0), ("b", 0.1, 0.1))
    at_once, late = (Costs(slice=s, tick=0.4) for s in (0.05, 0.25))
    assert ends_of(at_once, *two)["b"] == pytest.approx(0.2)
    # Its slice ends at 0.25, and the next tick is at 0.4.
    assert ends_of(late, *two)["b"] == pytest.approx(0.5)


def test_messages_are_slower_in_the_company_of_what_computes():
    costs = Costs(cores=2, company=0.5, shared=0.25)
    alone = ends_of(costs, ("m", 0.0, Work(0.5)), ("n", 0.0, Work(0.5)))
    assert alone == {"m": 0.5, "n": 0.5}
    assert ends_of(costs, ("m", 0.0, Work(0.5)), ("c", 0.0, 2.0))["m"] == 1.0
    # Bytes are moved as fast as ever.
    half = ("m", 0.0, Work(0.25, 0.25))
    assert ends_of(costs, half, ("c", 0.0, 2.0))["m"] == pytest.approx(0.75)
    # On a core that it shares it takes 1 s of that core for 0.25 s of work.
    one = replace(costs, cores=1, slice=1e-3, tick=1e-3)
    ends = ends_of(one, ("m", 0.0, Work(0.25)), ("c", 0.0, 1.0))
    assert list(ends.values()) == [pytest.approx(2.0, abs=0.01)] * 2


def test_a_thread_does_what_is_urgent_first_and_pays_to_wake():
    world, ends = World(Network()), []
    thread = Thread(Processor(world, FREE), wake=0.25)
    for name, urgent in (("one", False), ("two", False), ("now", True)):
        thread.run(Work(1.0), lambda n=name: ends.append((n, world.now)), urgent)
    world.run(lambda: len(ends) == 3, 100.0)
    assert ends == [("one", 1.25), ("now", 2.25), ("two", 3.25)]
    assert thread.used == 3.25


def test_a_step_is_the_sum_of_its_parts():
    costs = Costs(
        worker_send=Cost(0.01, 1e-7),  # 0.05
        server_receive=Cost(0.02, 2e-7),  # 0.10
        server_close=Cost(0.03, 0.0),
        server_send=Cost(0.0, 1e-7),  # 0.04
        worker_receive=Cost(0.01, 0.0),
        hop=0.1,
        cores=4,
    )
    found = run(Scenario(STEP, Sync(), steps=4), costs)
    assert found.step_seconds == pytest.approx(1 + 0.05 + 0.1 + 0.03 + 0.04 + 0.01 + 2 * 0.1)
    assert found.sent_per_host == 0, "worker and server of one host"
    assert found.efficiency == pytest.approx(1 / found.step_seconds)
    assert found.worker_seconds == pytest.approx(0.06, rel=0.3)


def test_confirmations_and_updates_without_rounds_cost_their_own():
    costs = Costs(server_close=Cost(0.5), server_apply=Cost(0.25), cores=4)
    sync, free = (run(Scenario(STEP, p, steps=4), costs).step_seconds for p in (Sync(), Async()))
    assert (sync, free) == (pytest.approx(1.5), pytest.approx(1.25))
    noted = run(Scenario(STEP, Sync(), steps=4), replace(costs, worker_note=0.1, server_note=0.2))
    assert noted.step_seconds > sync + 0.2
    crowded = run(Scenario(STEP, Sync(), steps=4, beside=2), replace(costs, cores=1))
    assert crowded.step_seconds > 2 * sync


def test_bytes_pass_both_links_of_a_server_once_per_worker():
    found = run(Scenario(STEP, Sync(), machines=4, servers=1, network=NET, steps=4), FREE)
    # Three of the four get 0.4 s of bytes from the first host, one after the other; so they push
    # one after the other, and only the last one's bytes are waited for.
    assert found.step_seconds == pytest.approx(1 + 3 * 0.4 + 0.4)
    spread = run(Scenario(STEP, Sync(), machines=4, servers=4, network=NET, steps=4), FREE)
    assert spread.step_seconds < 1 + 4 * 0.4


def test_gradients_that_are_ready_early_travel_during_the_computing():
    late = Workload("late", 1.0, (200_000, 200_000))
    early = replace(late, ready=(1.0, 0.5))
    far = {"machines": 2, "servers": 1, "network": NET, "steps": 4}
    plain, overlapped = (run(Scenario(w, Sync(), **far), FREE).step_seconds for w in (late, early))
    assert plain == pytest.approx(1.8)
    assert overlapped < plain - 0.15


def test_workers_of_a_host_that_push_as_one_send_no_more_than_one():
    many = Scenario(STEP, Sync(), machines=2, workers=4, servers=1, network=NET, steps=4)
    apart, merged = run(many, FREE), run(replace(many, merged=True), FREE)
    costs = {m: build(replace(many, merged=m), FREE, 0) for m in (True, False)}
    for cluster in costs.values():
        cluster.run()
        (slot,) = cluster.servers["server0"].shard.slots.values()
        assert slot.progress.applied == 8 * 4, "each worker's push counts"
        assert slot.progress.version == 4
    assert apart.sent_per_host == pytest.approx(4 * merged.sent_per_host, rel=0.2)
    assert merged.step_seconds < apart.step_seconds


def test_devices_of_a_machine_count_and_wait_for_the_slowest():
    noisy = replace(STEP, spread=Spread(sigma=0.3))
    one, four = (run(Scenario(noisy, Sync(), devices=d, steps=30), FREE) for d in (1, 4))
    assert four.step_seconds > one.step_seconds
    assert 2 < four.throughput / one.throughput < 4
    slow = run(Scenario(STEP, Sync(), devices=4, merge_rate=4e6, steps=4), FREE)
    assert slow.step_seconds == pytest.approx(1 + 2 * 4 * 0.4e6 / 4e6)


def test_stragglers_hold_up_rounds_but_not_backup_or_bounded_staleness():
    slow = replace(STEP, spread=Spread(share=0.1, factor=5.0))
    rates = {}
    for policy in (Sync(), Async(), Bounded(3), Backup(take=8)):
        scenario = Scenario(slow, policy, machines=10, servers=10, steps=30, on_devices=True)
        rates[policy.name] = run(scenario, FREE, seed=1).throughput
    assert rates["dist_sync"] < rates["dist_ssp"] <= rates["dist_async"] * 1.01
    assert rates["dist_sync"] < rates["dist_backup"]


def test_losses_cost_time_and_no_push():
    calm = Scenario(STEP, Sync(), machines=4, servers=4, network=NET, steps=6)
    lossy = replace(calm, network=replace(NET, lose=0.05))
    assert run(lossy, FREE).step_seconds > run(calm, FREE).step_seconds
    made = build(lossy, FREE, 0)
    made.run()
    for server in made.servers.values():
        for slot in server.shard.slots.values():
            assert slot.progress.applied == 4 * 6


def test_few_servers_play_many():
    """The same step time as with every server simulated, at a fraction of the messages."""
    load = Workload("net", 1.0, (4_000_000,))
    net = Network(latency=1e-3, bandwidth=8e6)
    played = Scenario(load, Sync(), machines=16, servers=16, network=net, steps=5)
    whole = replace(load, sizes=(250_000,) * 16, ready=())
    exact = replace(played, workload=whole, exact=True)
    a, b = (run(s, FREE).step_seconds for s in (played, exact))
    assert played.players == 4 and exact.players == 16
    assert a == pytest.approx(b, rel=0.2)


def test_the_same_seed_gives_the_same_outcome():
    noisy = replace(STEP, spread=Spread(0.2, 0.1, 3.0))
    scenario = Scenario(noisy, Bounded(2), machines=5, servers=5, network=NET)
    assert run(scenario, FREE, 3) == run(scenario, FREE, 3) != run(scenario, FREE, 4)


def test_mistakes_have_errors():
    with pytest.raises(ParamError, match="at least 1 machine"):
        Scenario(STEP, Sync(), machines=0)
    with pytest.raises(ParamError, match="never waits for a neighbour"):
        Scenario(STEP, Async(), workers=2, merged=True)
    for wrong in ({"cores": 0}, {"crowded": 0.0}, {"company": -1.0}, {"shared": 0}):
        with pytest.raises(ParamError, match="at least one core and speeds above 0"):
            Costs(**wrong)
    with pytest.raises(ParamError, match=r"at least 1 us, got 0\.0 and"):
        Costs(slice=0.0)
    with pytest.raises(ParamError, match="a factor >= 1"):
        Spread(factor=0.5)
    with pytest.raises(ParamError, match="expected keys and shares"):
        Workload("w", 1.0, ())
    with pytest.raises(FormatError, match="expected costs"):
        Costs.from_json({"cores": 1})
    costs = Costs(worker_send=Cost(1.0, 2.0), server_wake=3.0, cores=2, speed=(1.0, 0.8))
    assert Costs.from_json(json.loads(json.dumps(asdict(costs)))) == costs


# -- the command


def parameters(off=0.1):
    rows = [
        {"policy": policy, "workload": "w", "workers": n, "off": off if n == 3 else 0.01}
        for policy in ("dist_sync",)
        for n in (1, 2, 3)
    ]
    return {
        "costs": Costs(cores=2).to_json(), "limit": 0.15, "check": rows,
        "workloads": {"w": {"seconds": 0.1, "sizes": [4000, 4000], "sigma": 0.0}},
    }  # fmt: skip


@pytest.fixture
def command(tmp_path, capsys):
    def call(content, *more):
        path = tmp_path / "parameters.json"
        path.write_text(json.dumps(content))
        out = ["--out", str(tmp_path / "out")]
        code = main(["simulate", "--parameters", str(path), *out, *more])
        return code, capsys.readouterr(), tmp_path / "out"

    return call


def test_the_command_shows_figures_with_their_premises(command):
    more = ["--workload", "w", "--machines", "1", "5", "--policies", "dist_sync", "dist_backup"]
    code, text, out = command(parameters(), *more)
    assert code == 0
    assert "dist_backup" in text.out and "worker_send: 0 us" in text.out
    assert "within 10 %" in text.out and "10 Gb/s" in text.out
    found = json.loads((out / "scaling.json").read_text())
    assert [row["machines"] for row in found["rows"]] == [1, 5, 1, 5]
    assert found["premises"] and (out / "scaling.png").stat().st_size > 1000


def test_nothing_large_is_shown_of_a_model_that_is_off(command):
    code, text, _ = command(parameters(off=-0.16), "--workload", "w", "--machines", "1", "4")
    assert code == 1
    assert "within 15 %" in text.err and "-16 % for 'w' on 3 workers" in text.err
    code, _, _ = command(parameters(off=-0.16), "--workload", "w", "--machines", "1", "3")
    assert code == 0, "what was measured may be shown"
    code, text, _ = command(parameters(), "--policies", "dist_ssp")
    assert code == 1 and "measured jobs of 2 and 3 workers under 'dist_ssp'" in text.err
    code, text, _ = command(parameters(), "--policies", "dist_ssp", "--machines", "1")
    assert code == 0 and "two and three workers not measured" in text.out


def test_mistakes_of_the_command_are_one_line(command, tmp_path):
    assert "a workload of ['w']" in command(parameters(), "--workload", "x")[1].err
    assert "at least one key" in command(parameters(), "--keys", "0")[1].err
    assert "expected measured parameters" in command({"costs": 3})[1].err
    with pytest.raises(FormatError, match="expected measured parameters"):
        read(__file__)
    for wrong in ({"limit": None}, {"workloads": {"w": {"seconds": 1}}}, {"check": [{"off": 0}]}):
        text = command({**parameters(), **wrong})[1].err
        assert "expected measured parameters" in text and "parameters.json" in text
    with pytest.raises(MixflowError):
        simulate.check({"check": [], "limit": 0.1}, "dist_sync")


def test_the_spread_has_the_mean_that_is_reckoned_with():
    import random

    from mixflow.kvstore.simulation.scaling import mean_seconds

    spread, chance = Spread(0.3, 0.1, 4.0), random.Random(0)
    draws = [spread.draw(chance) for _ in range(20_000)]
    assert np.mean(draws) == pytest.approx(mean_seconds(replace(STEP, spread=spread)), rel=0.02)
