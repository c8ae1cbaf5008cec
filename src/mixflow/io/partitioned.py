"""`PartitionedIter`: batches whose partitions other processes or machines compute ahead."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _rt
from .. import ndarray as nd
from ..arguments import (
    MOST_THREADS,
    a,
    checked,
    choice,
    nbytes,
    number,
    optional,
    seed,
    text,
    whole,
)
from ..errors import FormatError, MixflowError, ParamError
from ..ndarray import NDArray
from ..pipeline.partitions import Computer, Counts, Partition, Pool, Result, Rules
from ..pipeline.partitions.dealing import Stage, checked_members, deal, replay, share, stage_of
from ..pipeline.partitions.partition import canonical
from ..pipeline.partitions.timeline import Timeline
from .base import BatchIter, DataBatch, DataDesc, check_batch

Array = np.ndarray[Any, Any]
_VERSION = 1


class PartitionedIter(BatchIter):
    """Batches of a described source, computed ahead by executors that may be slow or die.

    An epoch is cut into partitions of whole batches, which are dealt to the job's workers. A
    worker's executors compute its partitions: a lost one is computed by another executor, a slow
    one a second time. What comes out, and its order, depend on source, seed, epoch and members
    alone.

    Args:
        source: description of the data; see `mx.pipeline.partitions.open_source`.
        batch_size: samples per batch.
        executors: how many compute.
        where: 'local': processes of this host; 'ray': actors of a Ray cluster.
        seed: of the order and of the augmentation.
        num_parts, part_index: workers of the job, and which of them this is.
        batches_per_partition: at least 1; more than one where a batch is quick to compute.
        last: a rest at an epoch's end is filled up with its last sample ('pad'), or left out
            ('discard').
        memory: most bytes of results that wait, with units K, M, G; at least one partition is
            computed ahead whatever its size.
        deadline: seconds that a batch may take.
        rules: of the executors' schedule.
        data_name, label_name: names in `provide_data` and `provide_label`.
        **options: of the executors; for 'ray': address, cpus.

    Attributes:
        seconds_waited: seconds that `next` has waited for executors, in total.
        ahead: partitions that are computed or wait.
        pool: the executors.

    Raises:
        ParamError, UnknownNameError: a description or parameter that has no meaning.
        FormatError, FileError: files that cannot be used.
    """

    @checked(
        source=a(Mapping),
        batch_size=whole(1),
        executors=whole(1, MOST_THREADS),
        where=text,
        seed=seed,
        num_parts=whole(1),
        part_index=whole(0),
        batches_per_partition=whole(1),
        last=choice("pad", "discard"),
        memory=nbytes,
        deadline=number(above=0),
        rules=optional(a(Rules)),
        data_name=text,
        label_name=text,
    )
    def __init__(
        self,
        source: Mapping[str, Any],
        batch_size: int,
        executors: int = 2,
        where: str = "local",
        seed: int = 0,
        num_parts: int = 1,
        part_index: int = 0,
        batches_per_partition: int = 1,
        last: str = "pad",
        memory: int | str = 256 << 20,
        deadline: float = 300.0,
        rules: Rules | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **options: Any,
    ) -> None:
        super().__init__(batch_size)
        if part_index >= num_parts:
            raise ParamError(
                "[PartitionedIter] expected part_index below num_parts, got "
                f"{part_index} of {num_parts}"
            )
        self._seed, self._last, self._rank = seed, last, part_index
        self._taken, self._offset = 0, 0
        #: Where a store's members are followed: the time with the present ones, the step that
        #: comes next, and whether its changes have been heard of.
        self._timeline: Timeline | None = None
        self._store: Any = None
        self._step, self._heard = 0, -1
        self._heeded: set[Any] = set()
        self._names = data_name, label_name
        self._describe(source, batch_size * batches_per_partition)
        check_batch(type(self).__name__, (*self.provide_data, *self.provide_label))
        self._members = tuple(range(num_parts))
        self.seconds_waited = 0.0
        self.ahead = self._room(int(memory), executors)
        self._pending: deque[tuple[int, int, int]] = deque()  # epoch, partition, number in the pool
        self._result: Result | None = None
        self.pool = Pool(executors, where, rules, deadline, type(self).__name__, **options)
        self._go_to(0, [], 0, 0)

    def _describe(self, source: Mapping[str, Any], size: int) -> None:
        computer = Computer()
        try:
            described = canonical(source)
            self._samples, self._layout = computer.describe(Partition(described, 0, 1, self._seed))
        finally:
            computer.close()
        self.source = {**described, "samples": self._samples}
        self._size = size
        count = self._samples
        if self._last == "discard":
            count -= count % self.batch_size
        if count == 0:
            raise ParamError(
                f"[PartitionedIter] expected at least one batch of {self.batch_size}, got "
                f"{self._samples} samples"
            )
        self._used = count
        self._count = -(-count // size)

    def _room(self, memory: int, executors: int) -> int:
        """Partitions ahead: executors' second copies and memory kept for use count too."""
        sample = sum(
            int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            for shape, dtype in (*self._layout.values(), ((), np.int64))
        )
        fitting = memory // max(1, sample * self._size) - executors - 2
        return max(1, min(fitting, 2 * executors + 2))

    # -- what it gives

    @property
    def provide_data(self) -> list[DataDesc]:
        """Name, shape and dtype of the data of a batch."""
        shape, dtype = self._layout["data"]
        layout = {4: "NCHW", 2: "NC", 1: "N"}.get(len(shape) + 1, "NCHW")
        return [DataDesc(self._names[0], (self.batch_size, *shape), dtype, layout)]

    @property
    def provide_label(self) -> list[DataDesc]:
        """Name, shape and dtype of the labels of a batch."""
        shape, dtype = self._layout["label"]
        layout = "N" if not shape else "NC"
        return [DataDesc(self._names[1], (self.batch_size, *shape), dtype, layout)]

    @property
    def counts(self) -> Counts:
        """What happened to partitions and executors so far."""
        return self.pool.counts

    @property
    def batches_done(self) -> int:
        """Batches of this epoch that this worker has taken since its partitions were dealt."""
        whole = self._taken - (self._result is not None)
        return sum(map(self._batches_of, self._mine[:whole])) + self._offset

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of, from 0."""
        return self._epoch

    def __len__(self) -> int:
        """Batches that this worker has in the current epoch, if the members stay."""
        earlier = replay(self._count, self._epoch, self._stages)[1].get(self._rank, [])
        return sum(self._batches_of(number) for number in [*earlier, *self._mine])

    def next(self) -> DataBatch:
        """The next batch; `index` holds the numbers of its samples.

        Raises:
            StopIteration: the epoch is over.
            MixflowError: data that cannot be used (asking again gives the partition after it), no
                executor that lives, or no result in time.
        """
        self._heed()
        if self._result is None:
            self._take()
        assert self._result is not None
        arrays, first = self._result.arrays, self._offset * self.batch_size
        rows = {k: v[first : first + self.batch_size] for k, v in arrays.items()}
        index = np.resize(rows["index"], self.batch_size)
        pad = self.batch_size - len(rows["index"])
        index[self.batch_size - pad :] = rows["index"][-1]
        data = [self._filled(rows["data"])]
        label = [self._filled(rows["label"])]
        self._offset += 1
        self._step += 1
        if self._offset == self._batches_of(self._mine[self._taken - 1]):
            self._result.release()
            self._result, self._offset = None, 0
        self.current_batch = DataBatch(data, label, pad, index)
        return self.current_batch

    def reset(self) -> None:
        """Next epoch, from its first batch. Before the first batch was taken nothing changes."""
        self.current_batch = None
        if self._taken == len(self._mine) and self._result is None:
            self._begin_epoch(self._epoch + 1, [])
            self._fill_up()
        elif self._timeline is not None:
            if self._taken:
                raise MixflowError(
                    "[PartitionedIter] expected the epoch's end, got a reset before it: an "
                    "iterator that follows a store goes through whole epochs"
                )
        elif self._taken or self._stages:
            self._go_to(self._epoch + 1, [], 0, 0)

    def close(self) -> None:
        """Ends the executors; the iterator cannot be used afterwards."""
        self._result = None
        self.pool.close()

    def __enter__(self) -> PartitionedIter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- members

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks that the partitions are dealt to."""
        return self._timeline.members if self._timeline is not None else self._members

    def redeal(self, members: Sequence[int], done: int | Mapping[int, int] | None = None) -> None:
        """Deals what is left of this epoch, and all that comes, to other workers.

        Call it on every worker that goes on, before the same step and with the same arguments. A
        worker that joins makes an iterator, loads the `state_dict` of another one that has just
        called this, and need not call it. One that is no member any more has nothing left.

        Args:
            members: ranks from now on.
            done: partitions that each of the present members went through since the last deal (or
                the beginning of the epoch), by rank; a number: each as many; None: each as many as
                this worker.

        Raises:
            ParamError: members that are none, or one that `done` lacks.
            MixflowError: in the middle of a partition of several batches.
        """
        if self._result is not None:
            raise MixflowError(
                "[PartitionedIter] expected the end of a partition, got one of which batch "
                f"{self._offset} comes next; call redeal after the others of it"
            )
        if self._timeline is not None:
            raise MixflowError("[PartitionedIter] expected members of its store, got a redeal")
        chosen = checked_members(members)
        left = replay(self._count, self._epoch, self._stages)[0]
        dealt = deal(left, self._epoch, self._members)
        most = {rank: len(numbers) for rank, numbers in dealt.items()}
        ended = stage_of(self._members, self._taken if done is None else done, most)
        self._members = chosen
        self._go_to(self._epoch, [*self._stages, ended], 0, 0)

    def follow(self, store: Any) -> PartitionedIter:
        """From now on the members are those of a job's store: what a worker that is lost or leaves
        had left is dealt to the others, and one that joins takes part. Nothing is to be called
        then; every example of an epoch comes once. Each batch waits until the step before is done
        everywhere.

        Args:
            store: a synchronous one of several workers. This worker is where its steps are: a
                restarted one goes on, one that joins begins among the others.

        Returns:
            This iterator.

        Raises:
            ParamError: several batches per partition.
            MixflowError: a store that is not synchronous, or a batch was taken before.
        """
        if self._size != self.batch_size:
            raise ParamError(
                "[PartitionedIter] expected one batch per partition to follow a store, got "
                f"{self._size // self.batch_size}"
            )
        if self._taken or self._stages or self._epoch:
            raise MixflowError("[PartitionedIter] expected to follow a store from the first batch")
        self._store, self._step = store, int(store.first_step)
        self._timeline = Timeline.start(self._count, range(store.num_workers))
        changes = store.changes_before(self._step, 0)
        for step in sorted({change.before for change in changes}):
            self._timeline = _changed(self._timeline, step, changes)
        self._heard, self._heeded = self._step, set(changes)
        epoch, taken = 0, 0
        if self._rank in self._timeline.at:
            epoch, taken = self._timeline.position(self._rank, self._step)
        self._go_to(epoch, [], taken, 0)
        return self

    @property
    def follows(self) -> bool:
        """Whether its members are those of a store."""
        return self._store is not None

    def _heed(self) -> None:
        """Hears of changes of the store's members before a step, once."""
        if self._store is None or self._heard == self._step:
            return
        self._heard = self._step
        changes = set(self._store.changes_before(self._step)) - self._heeded
        if changes:
            self._heeded |= changes
            assert self._timeline is not None
            self._timeline = _changed(self._timeline, self._step, changes)
            self._go_to(self._timeline.at.get(self._rank, self._epoch), [], 0, 0)

    # -- position

    def state_dict(self) -> dict[str, Any]:
        """The position as plain values (JSON): the batch after the last one given comes next."""
        taken = self._taken - (self._result is not None)
        return {
            "version": _VERSION,
            "epoch": self._epoch,
            "stages": [[list(s.members), list(s.done)] for s in self._stages],
            "members": list(self._members),
            "partitions": taken,
            "batches": self._offset,
            "rank": self._rank,
            "identity": self._identity(),
            "step": self._step,
            "timeline": self._timeline.to_json() if self._timeline is not None else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a saved position: the batches after it are those of the uninterrupted run.

        Raises:
            FormatError: no such state, one of other data, batches or seed, or of another worker in
                the middle of its partitions.
        """
        try:
            epoch, taken, offset, rank = (
                int(state[k]) for k in ("epoch", "partitions", "batches", "rank")
            )
            stages = [Stage(checked_members(m), tuple(map(int, d))) for m, d in state["stages"]]
            members, identity = checked_members(state["members"]), dict(state["identity"])
            if state["version"] != _VERSION or min(epoch, taken, offset) < 0:
                raise ValueError
            mine = share(self._count, epoch, stages, members, self._rank)
            timeline = None
            if state.get("timeline") is not None:
                timeline = Timeline.from_json(self._count, state["timeline"])
                mine = timeline.hand(self._rank, epoch)
            step = int(state.get("step", 0))
        except (KeyError, TypeError, ValueError):
            raise FormatError(
                f"[PartitionedIter] expected a state of state_dict(), got {str(state)[:200]}"
            ) from None
        own = self._identity()
        different = [
            f"{k} {own.get(k)!r} (saved: {identity.get(k)!r})"
            for k in sorted({*own, *identity})
            if own.get(k) != identity.get(k)
        ]
        if rank != self._rank and taken + offset:
            different.append(f"part_index {self._rank} (saved: {rank})")
        if self.follows and timeline is None:
            different.append("members of a store (saved: none)")
        if different:
            raise FormatError(
                "[PartitionedIter] expected the state of the same samples in the same order, got "
                f"{', '.join(different)}"
            )
        if taken + bool(offset) > len(mine):
            raise FormatError(f"[PartitionedIter] expected a position in the epoch, got {taken}")
        self.current_batch = None
        self._members, self._timeline = members, timeline
        self._step = self._heard = step
        self._go_to(epoch, stages, taken, offset)

    def _identity(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "seed": self._seed,
            "batch_size": self.batch_size,
            "partition": self._size,
            "last": self._last,
        }

    # -- inside

    def _batches_of(self, number: int) -> int:
        first = number % self._count * self._size
        return -(-(min(first + self._size, self._used) - first) // self.batch_size)

    def _partition(self, epoch: int, number: int) -> Partition:
        if self._timeline is not None:
            epoch, number = divmod(number, self._count)
        first = number * self._size
        start = epoch * self._samples
        end = min(first + self._size, self._used)
        return Partition(self.source, start + first, start + end, self._seed)

    def _go_to(self, epoch: int, stages: list[Stage], taken: int, offset: int) -> None:
        """Drops what is under way and begins anew at a position."""
        self.pool.cancel()
        self._pending.clear()
        self._result = None
        self._begin_epoch(epoch, stages)
        self._taken = taken
        self._ahead_at = epoch, taken
        self._fill_up()
        if offset:
            self._take()
            self._offset = offset

    def _begin_epoch(self, epoch: int, stages: list[Stage]) -> None:
        self._epoch, self._stages = epoch, stages
        self._mine = self._hand(epoch)
        #: Partitions taken in this stage, the one under way included; batches given of that.
        self._taken, self._offset = 0, 0

    def _hand(self, epoch: int) -> list[int]:
        """This worker's partitions of an epoch from now on; numbered over all epochs where a store
        is followed."""
        if self._timeline is not None:
            return self._timeline.hand(self._rank, epoch)
        stages = self._stages if epoch == self._epoch else []
        return share(self._count, epoch, stages, self._members, self._rank)

    def _fill_up(self) -> None:
        """Has partitions computed up to the bound, also of the next epoch."""
        while len(self._pending) < self.ahead and self._rank in self.members:
            epoch, place = self._ahead_at
            mine = self._mine if epoch == self._epoch else self._hand(epoch)
            if place < len(mine):
                number = self.pool.submit(self._partition(epoch, mine[place]))
                self._pending.append((epoch, mine[place], number))
                self._ahead_at = epoch, place + 1
            elif epoch > self._epoch:
                return
            else:
                self._ahead_at = epoch + 1, 0

    def _take(self) -> None:
        if self._taken == len(self._mine):
            raise StopIteration
        start = time.perf_counter()
        _, _, number = self._pending[0]
        try:
            self._result = self.pool.take(number)
            self._offset = 0
        finally:
            self.seconds_waited += time.perf_counter() - start
            if self.pool.settled(number):
                self._pending.popleft()
                self._taken += 1
                self._fill_up()

    def _filled(self, rows: Array) -> NDArray:
        """A batch's array with these rows; what lacks is filled up with the last one."""
        made = nd.empty((self.batch_size, *rows.shape[1:]), dtype=rows.dtype)
        memory = _rt.core.writable_view(made)
        memory[: len(rows)] = rows
        memory[len(rows) :] = rows[-1]
        return made


def _changed(timeline: Timeline, step: int, changes: Iterable[Any]) -> Timeline:
    """The time that begins with the changes before a step."""
    now = [change for change in changes if change.before == step]
    left = {c.worker: c.step for c in now if not c.joined}
    joined = {c.worker: c.step for c in now if c.joined}
    return timeline.changed(step, left, joined)
