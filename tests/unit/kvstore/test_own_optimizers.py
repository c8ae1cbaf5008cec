"""Optimizers and schedules that a program defines itself, on servers."""

import base64
import json
import pickle
import threading

import numpy as np
import own_support
import pytest
from store_support import SECRET, job, together

import mixflow as mx
from mixflow.errors import MixflowError, ParamError
from mixflow.kvstore.protocol import policy, program
from mixflow.kvstore.protocol.messages import (
    Configure,
    Failed,
    Gradient,
    Init,
    Place,
    Pull,
    Push,
    PutStates,
)
from mixflow.kvstore.protocol.policy import Part
from mixflow.kvstore.protocol.program import pack
from mixflow.kvstore.protocol.sharding import Directory, Entry, Slice
from mixflow.kvstore.server import snapshot, states
from mixflow.kvstore.server.appliers import Optimizing
from mixflow.kvstore.server.shard import Shard
from mixflow.kvstore.server.slots import Memory
from mixflow.kvstore.server.snapshot import Capture, Snapshot
from mixflow.optimizer.own import is_own

pytest.importorskip("zmq")
pytest.importorskip("cloudpickle")

STEPS = 6
#: The second is cut over both servers.
SHAPES = {3: (4, 5), 7: (30, 10)}


def defined_here():
    """An optimizer that no module has: it travels by value."""

    class Signed(mx.optimizer.Optimizer):
        def update(self, index, weight, grad, state):
            self._update_count(index)
            weight[:] = weight - self._get_lr(index) * mx.nd.sign(grad) - self._get_wd(index)

    return Signed


def made(kind):
    """The optimizer of a case, fresh."""
    options = {"learning_rate": 0.2, "wd": 0.01, "rescale_grad": 0.5}
    if kind == "module":
        found = own_support.Momentum(**options)
    elif kind == "value":
        found = defined_here()(**options)
    else:
        schedule = {
            "function": lambda number: 0.3 / number,
            "object": own_support.Linear(),
            "subclass": own_support.Halving(base_lr=0.4),
        }[kind]
        options = {"wd": 0.01, "momentum": 0.9, "lr_scheduler": schedule}
        found = mx.optimizer.SGD(**options)
    found.set_lr_mult({7: 0.5})
    return found


def gradients(rank, step):
    draw = np.random.default_rng(100 * rank + step)
    return {k: mx.nd.array(draw.normal(size=s), dtype="float32") for k, s in SHAPES.items()}


def trained(store, ranks, optimizer, keys=tuple(SHAPES)):
    """The weights after some steps of one worker, which pushes the gradients of `ranks`."""
    weights = {key: mx.nd.ones(SHAPES[key]) for key in keys}
    for key, weight in weights.items():
        store.init(key, weight)
    store.set_optimizer(optimizer)
    for step in range(STEPS):
        given = [gradients(rank, step) for rank in ranks]
        for key, weight in weights.items():
            store.pushpull(key, [one[key] for one in given], out=weight)
    return {key: weight.asnumpy() for key, weight in weights.items()}


@pytest.mark.parametrize("boards", [True, False])
@pytest.mark.parametrize("kind", ["module", "value", "function", "object", "subclass"])
def test_servers_give_what_one_process_gives(kind, boards):
    local = {}
    for key in SHAPES:  # on servers each slice has an optimizer to itself
        local |= trained(mx.kv.create("local"), [0, 1], made(kind), [key])
    assert is_own(made(kind))
    with job(2, 2, boards=boards) as stores:
        found = together(lambda store: trained(store, [store.rank], made(kind)), stores)
    for one in found:
        for key, values in local.items():
            np.testing.assert_allclose(one[key], values, rtol=1e-6, atol=1e-6)


def test_float32_copies_of_weights_are_kept_on_servers():
    def worker(store):
        weight = mx.nd.ones((300,), dtype="float16")
        store.init(0, weight)
        store.set_optimizer(own_support.Momentum(learning_rate=0.01, multi_precision=True))
        for step in range(STEPS):
            gradient = mx.nd.array(np.random.default_rng(step).normal(size=300), dtype="float16")
            store.pushpull(0, gradient, out=weight)
        return weight.asnumpy()

    local = worker(mx.kv.create("local"))
    with job(1, 2) as (store,):
        np.testing.assert_array_equal(worker(store), local)


def test_a_module_trains_with_an_optimizer_by_its_name():
    @mx.optimizer.register
    class Descent(mx.optimizer.Optimizer):
        def update_rule(self, index):
            self.calls = getattr(self, "calls", 0) + 1
            return mx.optimizer.UpdateRule("sgd_update", {}, self._common(index))

    def fitted(store):
        net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="only")
        module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
        draw = np.random.default_rng(1)
        data = mx.io.NDArrayIter(draw.normal(size=(20, 4)), np.arange(20) % 3, batch_size=5)
        mx.random.seed(3)
        module.fit(data, num_epoch=2, kvstore=store, optimizer="descent")
        return {name: value.asnumpy() for name, value in module.get_params()[0].items()}

    local = fitted(mx.kv.create("local"))
    with job(1) as (store,):
        found = fitted(store)
        assert store._lease is None  # its attributes stay with the servers
    for name, values in local.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-6)


def test_states_are_saved_and_read_by_either_store(tmp_path):
    def saved(store):
        trained(store, [0], own_support.Momentum(learning_rate=0.2))
        store.save_optimizer_states(str(tmp_path / store.type))
        return dict(np.load(tmp_path / store.type))

    local = saved(mx.kv.create("local"))
    with job(1, 2) as (store,):
        found = saved(store)
        store.load_optimizer_states(str(tmp_path / "local"))
        with pytest.raises(MixflowError, match="expected states of shapes"):
            store.set_optimizer(mx.optimizer.create("sgd"))
            store.load_optimizer_states(str(tmp_path / "local"))
    assert found.keys() == local.keys()
    for name, values in local.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("boards", [True, False])
def test_an_error_of_the_program_reaches_every_worker_and_stays(boards):
    text = (
        r"optimizer 'Broken' to update key 'w', got ZeroDivisionError: no sixth one \(update, line "
    )

    def worker(store):
        out = mx.nd.zeros((3,))
        store.init("w", out)
        store.set_optimizer(own_support.Broken())
        with pytest.raises(mx.MXNetError, match=text):
            for _ in range(6):
                store.pushpull("w", mx.nd.ones((3,)), out=out)
                assert out.asnumpy().size
        for _ in range(2):  # not tried again: a part of the update may have been made
            with pytest.raises(mx.MXNetError, match=text):
                store.pull("w", out=out)
                out.wait_to_read()

    with job(2, boards=boards) as stores:
        together(worker, stores)


# -- a shard alone


def shard(rule=None, applier=None, secret=SECRET, every=0, **options):
    """A shard of two workers with one slice."""
    found = Shard(
        "server0",
        rule or policy.Sync(),
        applier or Optimizing(secret=secret),
        workers=2,
        directory=Directory(1),
        capture=Capture(True, every),
        **options,
    )
    if not found.slots:
        found.handle(Place("w0", 1, {"k": (3, "<f4", 4)}), 0)
        found.handle(Init("w0", 2, {"k/0": np.ones(3, "f4")}), 0)
    return found


def push(worker, step):
    values = np.array([1, worker, step], "f4")
    return Push(f"w{worker}", step + 100, {"k/0": Gradient((Part(worker, step),), values)})


def pushed(server, steps):
    """Steps of both workers; their errors."""
    found = [server.handle(push(worker, step), 0) for step in steps for worker in range(2)]
    return failures(message for one in found for message in one)


def value(server):
    return server.slots["k/0"].value.tolist()


def failures(found):
    return [message.text for _, message in found if isinstance(message, Failed)]


def sent(optimizer, number=3, version=0, secret=SECRET):
    """The message that sets an optimizer, as it comes over a wire."""
    text = json.loads(json.dumps(pack(optimizer, secret, version)))
    return Configure("w0", number, "optimizer", text)


def test_an_error_of_an_asynchronous_update_stays_too():
    server = shard(policy.Async())
    server.handle(sent(own_support.Broken()), 0)
    server.handle(Pull("w1", 1, 1, {"k/0": 9}), 0)
    assert not failures([one for step in range(5) for one in server.handle(push(0, step), 0)])
    found = server.handle(push(0, 5), 0)
    assert [to for to, _ in found] == ["w1", "w0"] and len(failures(found)) == 2
    assert "no sixth one" in failures(server.handle(push(1, 0), 0))[0]
    assert "no sixth one" in failures(server.handle(Pull("w0", 9, 0, {"k/0": 2}), 0))[0]


def test_errors_of_other_kinds_name_the_key():
    class Odd(Optimizing):
        def apply(self, *args):
            raise OSError("odd")

    text = "[kvstore server server0] expected an update of key 'k', got OSError: odd"
    assert pushed(shard(applier=Odd(needs_optimizer=True)), [0]) == [text, text]


@pytest.mark.parametrize("state", [{}, 1.0, [np.zeros(3)]])
def test_states_of_other_kinds_are_an_error(state):
    class Strange(mx.optimizer.Optimizer):
        def create_state(self, index, weight):
            return state

    server = shard()
    server.handle(sent(Strange()), 0)
    assert "expected states of dense NDArrays, None, and tuples" in pushed(server, [0])[0]


@pytest.mark.parametrize("kind", ["momentum", "schedule"])
def test_a_restarted_shard_goes_on_exactly(kind):
    """States, counts, and what an update has changed of optimizer and schedule."""
    ledger = Memory(keep=True)
    servers = [shard(), shard(ledger=ledger)]
    for step in range(6):
        if step == 0:
            optimizer = made("subclass" if kind == "schedule" else "module")
            for server in servers:
                server.handle(sent(optimizer), 0)
        if step in (2, 3):
            servers[1] = shard(ledger=ledger, incarnation=step)
        for server in servers:
            assert not pushed(server, [step])
    assert value(servers[0]) == value(servers[1]) != [1, 1, 1]
    kept = servers[1].states("k/0")["kept"]
    assert kept.size % 256 == 0 and json.loads(kept.tobytes()) != [{}, {}]


def test_states_of_other_sizes_are_refused():
    server = shard()
    server.handle(sent(own_support.Momentum()), 0)
    assert not pushed(server, [0])
    before = server.states("k/0")["0"].tolist()
    given = {"k/0|0": np.ones(3, "f4"), "k/0|2": np.ones(3, "f4")}
    found = failures(server.handle(PutStates("w0", 50, given), 0))
    assert "expected 1 values for state 2 of key 'k', got 3" in found[0]
    assert server.states("k/0")["0"].tolist() == before != [1, 1, 1]
    server.handle(PutStates("w0", 51, {"k/0|0": np.full(3, 7, "f4")}), 0)
    assert server.states("k/0")["0"].tolist() == [7, 7, 7]


def test_slices_need_not_have_changed_the_same_attributes():
    pieces = (Slice("k/0", 0, 0, 2), Slice("k/1", 1, 2, 4))
    entry = Entry(4, "<f4", pieces)
    kept = np.zeros(4, np.uint8)  # by chance as long as the key
    found = {"k/0": {"0": np.ones(2)}, "k/1": {"0": np.ones(2), "kept": kept}}
    whole = states.join(entry, found)
    assert whole["kept"] is kept and whole["0"].size == 4
    assert [one["kept"].size for one in states.cut(entry, whole).values()] == [4, 4]


def test_the_same_again_keeps_the_states_and_another_class_does_not():
    kinds = [defined_here(), defined_here()]
    server = shard()
    server.handle(sent(own_support.Momentum()), 0)
    assert not pushed(server, [0])
    server.handle(sent(own_support.Momentum(), 4), 0)
    assert server.states("k/0")["count"] == 1
    for number, (kind, version) in enumerate(zip([kinds[0], *kinds], [0, 0, 1], strict=True), 5):
        server.handle(sent(kind(), number, version), 0)
        count = server.states("k/0").get("count", 0)
        assert count == (number == 6)
        assert not pushed(server, [number - 4])


def test_a_store_tells_classes_of_one_name_apart():
    one, other = defined_here(), defined_here()
    with job(1) as (store,):
        found = [store._described(kind())["own"] for kind in (one, one, other, other, one)]
        rates = [lambda n, r=r: r for r in (0.1, 0.1)]  # of the same code
        schedules = [*rates, lambda n: 2.0 * n]
        for schedule in schedules:
            found.append(store._described(mx.optimizer.SGD(lr_scheduler=schedule))["own"])
    assert found == [0, 0, 1, 1, 2, 3, 3, 4]


def test_settings_reach_every_slice_and_go_with_their_optimizer():
    def configured(name, given):
        server.handle(Configure("w0", 10 + len(done), name, given), 0)
        done.append(name)

    done, ledger = [], Memory(keep=True)
    server = shard(ledger=ledger)
    server.handle(sent(defined_here()(learning_rate=1.0)), 0)
    assert not pushed(server, [0])
    assert value(server) == [0, 0, 1]
    configured("learning_rate", {"value": 0.25})
    configured("multipliers", {"lr_mult": {0: 1.0, "k": 2.0}})
    configured("rescale", {"value": 0.5})
    for _ in range(2):
        assert not pushed(server, [server.slots["k/0"].progress.version])
        server = shard(ledger=ledger, incarnation=len(done))
    assert value(server) == [-1, -1, 0]
    # A rate that was set for one optimizer is none of the next one, nor in the way of a restart.
    server.handle(Configure("w0", 99, "optimizer", mx_sgd()), 0)
    server = shard(ledger=ledger, incarnation=9)
    assert [name for name, _ in server.roster()["settings"]] == ["optimizer"]


def mx_sgd():
    from mixflow.optimizer.describe import describe

    return describe(mx.optimizer.create("sgd", learning_rate=1.0))


# -- trust


class Bomb:
    """Tells when it is unpickled."""

    def __reduce__(self):
        return own_support.ran, ()


def forged(change):
    """A setting with code that nobody of the job has sent."""
    text = pack(own_support.Momentum(), SECRET)
    text["code"] = change(text["code"])
    return text


def with_bomb(secret):
    def change(code):
        python, cloudpickle, path, _ = json.loads(code["body"])
        bomb = base64.b64encode(pickle.dumps(Bomb())).decode()
        body = json.dumps([python, cloudpickle, path, bomb])
        return {"body": body, "seal": program._seal(body, secret) if secret else code["seal"]}

    return change


@pytest.mark.parametrize("secret", ["", "another"])
def test_code_without_the_seal_of_the_job_is_not_run(secret):
    server = shard()
    text = forged(with_bomb(secret))
    assert (
        "with the seal of this job"
        in failures(server.handle(Configure("w0", 9, "optimizer", text), 0))[0]
    )
    assert not own_support.RAN
    # A server without a secret runs none at all, whoever has sealed it.
    text = forged(with_bomb("x"))
    text["code"]["seal"] = program._seal(text["code"]["body"], "")
    with pytest.raises(ParamError, match="it was not run"):
        program.unpack(text, "")
    assert not own_support.RAN
    for code in (None, {}, {"body": ""}):
        with pytest.raises(ParamError, match="expected sealed code of 'Momentum', got none"):
            program.unpack({**text, "code": code}, SECRET)


def test_code_of_the_job_that_is_no_optimizer_is_an_error():
    with pytest.raises(ParamError, match="expected an Optimizer, got NoneType"):
        program.unpack(forged(with_bomb(SECRET)), SECRET)
    assert own_support.RAN.pop()  # so would it have been above


def test_a_snapshot_holds_no_code_and_waits_for_the_program(tmp_path):
    whole, server = shard(), shard(every=3)
    for one in (whole, server):
        one.handle(sent(own_support.Momentum(learning_rate=0.5)), 0)
        one.handle(Configure("w0", 4, "learning_rate", {"value": 0.25}), 0)
        assert not pushed(one, range(3))
    (captured,) = server.capture.done
    snapshot.write_shard(tmp_path, "server0", captured)
    index = {"number": 3, "servers": ["server0"], "workers": [0, 1], "num_workers": 2}
    index |= {"policy": "dist_sync"}
    snapshot.write_index(tmp_path, index)
    code = sent(own_support.Momentum()).value["code"]
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for secret in (code["body"][:200], "seal", "cloudpickle"):
        assert files and not any(secret.encode() in text for text in files)

    def resumed():
        found = Snapshot(tmp_path)
        ledger = Memory(keep=True)
        _, records = found.shard(0, 1, True)
        for key, record in records:
            progress = snapshot.progress_at(record, found.number, True)
            ledger.commit(key, record.value, record.states, progress)
        roster = {**shard().roster(), "members": [(0, 3), (1, 3)], "settings": found.settings}
        ledger.commit_roster(roster)
        return shard(ledger=ledger, incarnation=7)

    assert "expected set_optimizer with 'Momentum' before a push" in pushed(resumed(), [3])[0]
    # The same program goes on as if nothing had been; also when it is cut off again before.
    again = resumed()
    again.handle(sent(own_support.Momentum(learning_rate=0.5)), 0)
    again = shard(ledger=again.ledger, incarnation=8)
    for one in (whole, again):
        assert not pushed(one, range(3, 6))
    assert value(again) == value(whole)
    # Another rate is a new setting: what had been set for the old one is gone. States stay.
    other, same = resumed(), resumed()
    other.handle(sent(own_support.Momentum(learning_rate=0.125)), 0)
    same.handle(sent(own_support.Momentum(learning_rate=0.25)), 0)
    assert other.states("k/0")["count"] == 3
    assert not pushed(other, [3]) and not pushed(same, [3])
    assert value(other) != value(same)
    # A library's optimizer in its place begins without states.
    new = resumed()
    new.handle(Configure("w0", 5, "optimizer", mx_sgd()), 0)
    before = value(new)
    assert not pushed(new, [3])
    np.testing.assert_allclose(value(new), np.subtract(before, [2, 1, 6]), rtol=1e-6)


# -- what can't travel


def test_what_cannot_travel_says_why(monkeypatch):
    held = own_support.Momentum()
    held.lock = threading.Lock()
    with pytest.raises(ParamError, match="that can be pickled, got TypeError: cannot pickle"):
        pack(held, SECRET)
    big = own_support.Momentum()
    big.table = np.zeros(1 << 18)
    with pytest.raises(ParamError, match="expected at most 1048576 bytes, got 2"):
        pack(big, SECRET)
    with pytest.raises(MixflowError, match="expected a job to send the program's own optimizer"):
        pack(held, "")
    text = pack(own_support.Momentum(), SECRET)
    monkeypatch.setattr(program.platform, "python_version", lambda: "3.9.1")
    with pytest.raises(ParamError, match=r"expected Python 3\.9 and cloudpickle .*got 3\.1"):
        program.unpack(text, SECRET)


@pytest.mark.parametrize("text", ["raise OSError('no file')", "raise SystemExit(3)"])
def test_a_module_that_fails_on_the_server_is_an_error(tmp_path, monkeypatch, text):
    monkeypatch.syspath_prepend(tmp_path)
    source = "import mixflow as mx\nclass Late(mx.optimizer.Optimizer):\n    pass\n"
    (tmp_path / "late_module.py").write_text(source)
    import late_module

    message = sent(late_module.Late())
    monkeypatch.delitem(__import__("sys").modules, "late_module")
    (tmp_path / "late_module.py").write_text(f"{text}  # {'-' * 99}\n")
    found = failures(shard().handle(message, 0))
    assert "expected to load the program's optimizer 'Late', got" in found[0]


def test_only_optimizers_are_set():
    with job(1) as (store,), pytest.raises(ParamError, match="expected an Optimizer, got 3"):
        store.set_optimizer(3)


def test_attributes_that_are_arrays_travel_and_are_compared():
    one, other = own_support.Momentum(), own_support.Momentum()
    one.scale, other.scale = mx.nd.ones((2,)), mx.nd.zeros((2,))
    text = pack(one, SECRET)
    assert program.same(text, pack(one, SECRET)) and not program.same(text, pack(other, SECRET))
    assert program.unpack(text, SECRET).scale.asnumpy().tolist() == [1, 1]


def test_multipliers_of_parameters_travel_by_index():
    class Parameter:
        lr_mult, wd_mult = 0.5, 2.0

    given = own_support.Momentum(param_dict={3: Parameter()})
    found = program.unpack(pack(given, SECRET), SECRET)
    assert found._get_lr(3) == given._get_lr(3) == 0.005 and not found.param_dict
    assert found._get_lrs([3, 4]) == [0.005, 0.01] and found._get_wds([3, 4]) == [0.0, 0.0]


def test_rows_are_updated_as_in_one_process():
    class Plain(mx.optimizer.Optimizer):
        def create_state(self, index, weight):
            return mx.nd.zeros(weight.shape), mx.nd.zeros((1,))

        def update(self, index, weight, grad, state):
            assert weight.stype == grad.stype == "row_sparse"
            state[0][:] = state[0] + grad.tostype("default")
            state[1][:] = state[1] + 1
            weight[:] = weight.tostype("default") - state[0] * state[1]

    def worker(store):
        table = mx.nd.ones((8, 2)).tostype("row_sparse")
        store.init("t", table)
        store.set_optimizer(Plain())
        for step in range(3):
            rows = mx.nd.sparse.row_sparse_array((np.ones((2, 2), "f4"), [5, step]), shape=(8, 2))
            store.push("t", rows)
        out = mx.nd.zeros((8, 2))
        store.pull("t", out=out)
        return out.asnumpy()

    local = worker(mx.kv.create("local"))
    with job(1) as (store,):
        np.testing.assert_array_equal(worker(store), local)
