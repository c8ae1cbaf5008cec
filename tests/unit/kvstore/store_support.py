"""Stores of several workers in one process, and the faults of a random schedule's network."""

import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from mixflow.kvstore.dist import DistKVStore
from mixflow.kvstore.options import StoreOptions
from mixflow.kvstore.protocol.compression import decode
from mixflow.kvstore.protocol.sharding import Directory
from mixflow.kvstore.server.appliers import Optimizing
from mixflow.kvstore.server.shard import Shard
from mixflow.kvstore.simulation.simulator import Network
from mixflow.kvstore.transport.zeromq import Server

#: Of a job.
SECRET = "secret"
#: Deadlines that no test measures: a machine may keep any thread waiting for half a minute.
SECONDS = 100.0


def until(what):
    """Waits until something is true. Not by a clock: the machine may stop all of this process."""
    for _ in range(12_000):
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come true")


class Stores(list):
    """The stores of a job, and its servers."""

    servers = ()


def shard_of(number, workers, servers, options, ledger=None):
    """The shard of a job's server, as `serve` makes it."""
    return Shard(
        f"server{number}",
        options.policy,
        Optimizing(needs_optimizer=not options.policy.rounds, secret=SECRET),
        workers=workers,
        directory=Directory(servers, options.bound) if number == 0 else None,
        deadline=options.deadline,
        give_up=options.give_up,
        decode=decode,
        ledger=ledger,
    )


def on_threads(stack, *served):
    """Runs servers and mergers on threads; the end of `stack` stops them all, then waits."""
    for one in served:
        thread = threading.Thread(target=one.run)
        thread.start()
        stack.callback(thread.join, SECONDS)
    for one in served:
        stack.callback(one.stop)


@contextmanager
def job(workers, servers=1, ledgers=(), missed=None, **options):
    """Servers on threads, with ledgers if given, and one store per worker.

    missed: seconds after which a server misses a worker, where a test measures that; the workers
    themselves wait for their servers as long as in other tests.
    """
    pytest.importorskip("zmq")
    options = StoreOptions(**{"deadline": SECONDS, "bound": 100, **options})
    theirs = replace(options, deadline=missed or options.deadline)
    with ExitStack() as stack:
        kept = [*ledgers, *[None] * servers]
        shards = [shard_of(n, workers, servers, theirs, kept[n]) for n in range(servers)]
        made = [Server(shard, "tcp://127.0.0.1:*", options.faults) for shard in shards]
        addresses = {server.shard.name: server.address for server in made}
        on_threads(stack, *made)
        stores = Stores(
            DistKVStore("dist_sync", rank, workers, addresses, options) for rank in range(workers)
        )
        stores.servers = made
        for store in stores:
            store._secret = SECRET
        yield stores
        together(lambda store: store.close(), stores)


def together(body, stores):
    """Runs a worker's program on a thread per store; raises the first error."""
    errors, results = [], [None] * len(stores)

    def run(number, store):
        try:
            results[number] = body(store)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive(), "a worker hangs"
    if errors:
        raise errors[0]
    return results


def network_of(draw):
    """A network with the faults that a seed gives it."""
    return Network(
        latency=0.01,
        bandwidth=draw.choice([0, 1e4]),
        lose=draw.choice([0, 0.1, 0.3]),
        repeat=draw.choice([0, 0.2]),
        delay=draw.choice([0, 0.5]),
        delay_s=2.0,
    )
