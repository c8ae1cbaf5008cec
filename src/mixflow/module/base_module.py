"""BaseModule: the training loop, written over what every module can do."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

from .. import initializer as init
from .. import metric as _metric
from .. import ndarray as nd
from ..callback import BatchEndParam
from ..errors import MixflowError, ParamError
from ..io import DataBatch, DataIter
from ..ndarray import NDArray

Callbacks = Any


def call_all(callbacks: Callbacks, *args: Any) -> None:
    """Calls one callback or each of a list."""
    if callbacks is None:
        return
    for callback in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        callback(*args)


class BaseModule:
    """What is common to all modules.

    A subclass gives bind, init_params, init_optimizer, forward, backward, update, get_outputs,
    update_metric, get_params.
    """

    symbol: Any

    def __init__(self, logger: Any = logging) -> None:
        self.logger = logger
        self.binded = False
        self.for_training = False
        self.inputs_need_grad = False
        self.params_initialized = False
        self.optimizer_initialized = False

    def _require(self, *states: str) -> None:
        needs = {
            "binded": "bind()",
            "params_initialized": "init_params()",
            "optimizer_initialized": "init_optimizer()",
        }
        for state in states:
            if not getattr(self, state):
                raise MixflowError(f"[Module] expected {needs[state]} to be called first")

    def bind(self, *args: Any, **kwargs: Any) -> None:
        """Allocates executors for given shapes."""
        raise NotImplementedError

    def init_params(self, *args: Any, **kwargs: Any) -> None:
        """Gives every parameter a value."""
        raise NotImplementedError

    def init_optimizer(self, *args: Any, **kwargs: Any) -> None:
        """Installs an optimizer."""
        raise NotImplementedError

    def forward(self, data_batch: DataBatch, is_train: bool | None = None) -> None:
        """Computes the outputs of a batch."""
        raise NotImplementedError

    def backward(self, out_grads: Sequence[NDArray] | None = None) -> None:
        """Computes the gradients of the last forward."""
        raise NotImplementedError

    def update(self) -> None:
        """Updates the parameters with the gradients."""
        raise NotImplementedError

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Outputs of the last forward."""
        raise NotImplementedError

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Adds the last outputs to a metric."""
        raise NotImplementedError

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """(arg_params, aux_params) on cpu(0)."""
        raise NotImplementedError

    def forward_backward(self, data_batch: DataBatch) -> None:
        """Forward in training mode, then backward."""
        self.forward(data_batch, is_train=True)
        self.backward()

    def prepare(self, data_batch: DataBatch, sparse_row_id_fn: Any = None) -> None:
        """Hook before a batch; nothing to do with dense parameters."""

    def install_monitor(self, mon: Any) -> None:
        """Attaches a Monitor to the executors."""
        raise NotImplementedError

    def set_params(
        self,
        arg_params: Mapping[str, NDArray] | None,
        aux_params: Mapping[str, NDArray] | None,
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Sets parameters from dictionaries."""
        self.init_params(
            initializer=None,
            arg_params=arg_params,
            aux_params=aux_params,
            allow_missing=allow_missing,
            force_init=force_init,
            allow_extra=allow_extra,
        )

    def save_params(self, fname: str) -> None:
        """Writes all parameters to one ``.params`` file."""
        arg_params, aux_params = self.get_params()
        content = {f"arg:{k}": v for k, v in arg_params.items()}
        content.update({f"aux:{k}": v for k, v in aux_params.items()})
        nd.save(fname, content)

    def load_params(self, fname: str) -> None:
        """Reads what `save_params` wrote.

        Raises:
            FormatError: damaged file.
        """
        loaded = nd.load(fname)
        args = {k[4:]: v for k, v in loaded.items() if k.startswith("arg:")}
        auxs = {k[4:]: v for k, v in loaded.items() if k.startswith("aux:")}
        self.set_params(args, auxs)

    # -- loops

    def score(
        self,
        eval_data: DataIter,
        eval_metric: Any,
        num_batch: int | None = None,
        batch_end_callback: Callbacks = None,
        score_end_callback: Callbacks = None,
        reset: bool = True,
        epoch: int = 0,
        sparse_row_id_fn: Any = None,
    ) -> list[tuple[str, float]]:
        """Metric over an iterator.

        Returns:
            (name, value) pairs.
        """
        self._require("binded", "params_initialized")
        if reset:
            eval_data.reset()
        eval_metric = _metric.create(eval_metric)
        eval_metric.reset()
        done = 0
        for nbatch, batch in enumerate(_first(eval_data, num_batch)):
            self.forward(batch, is_train=False)
            self.update_metric_unpadded(eval_metric, batch)
            call_all(batch_end_callback, BatchEndParam(epoch, nbatch, eval_metric, locals()))
            done += 1
        call_all(score_end_callback, BatchEndParam(epoch, done, eval_metric, locals()))
        found: list[tuple[str, float]] = eval_metric.get_name_value()
        return found

    def update_metric_unpadded(self, eval_metric: Any, batch: DataBatch) -> None:
        """Adds a batch without the samples that only fill it up."""
        if not batch.pad:
            self.update_metric(eval_metric, batch.label)
            return
        outputs = _unpadded(self.get_outputs(), batch.pad)
        eval_metric.update(_unpadded(batch.label or [], batch.pad), outputs)

    def iter_predict(
        self,
        eval_data: DataIter,
        num_batch: int | None = None,
        reset: bool = True,
        sparse_row_id_fn: Any = None,
    ) -> Iterator[tuple[list[NDArray], int, DataBatch]]:
        """(outputs without padding, batch number, batch) for each batch."""
        self._require("binded", "params_initialized")
        if reset:
            eval_data.reset()
        for nbatch, batch in enumerate(_first(eval_data, num_batch)):
            self.forward(batch, is_train=False)
            yield _unpadded(self.get_outputs(), batch.pad or 0), nbatch, batch

    def predict(
        self,
        eval_data: Any,
        num_batch: int | None = None,
        merge_batches: bool = True,
        reset: bool = True,
        always_output_list: bool = False,
        sparse_row_id_fn: Any = None,
    ) -> Any:
        """Outputs over an iterator (or one array), joined along the batch axis.

        Returns:
            One array for a network of one output, else a list; lists per batch without
            `merge_batches`.
        """
        if isinstance(eval_data, NDArray):
            self.forward(DataBatch([eval_data]), is_train=False)
            return self.get_outputs()[0]
        copies = [
            [o.copy() for o in outputs]
            for outputs, _, _ in self.iter_predict(eval_data, num_batch, reset)
        ]
        if not merge_batches or not copies:
            return copies
        joined = [nd.concat(*column, dim=0) for column in zip(*copies, strict=True)]
        return joined[0] if len(joined) == 1 and not always_output_list else joined

    def fit(
        self,
        train_data: DataIter,
        eval_data: DataIter | None = None,
        eval_metric: Any = "acc",
        epoch_end_callback: Callbacks = None,
        batch_end_callback: Callbacks = None,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        eval_end_callback: Callbacks = None,
        eval_batch_end_callback: Callbacks = None,
        initializer: Any = None,
        arg_params: Mapping[str, NDArray] | None = None,
        aux_params: Mapping[str, NDArray] | None = None,
        allow_missing: bool = False,
        force_rebind: bool = False,
        force_init: bool = False,
        begin_epoch: int = 0,
        num_epoch: int | None = None,
        validation_metric: Any = None,
        monitor: Any = None,
        sparse_row_id_fn: Any = None,
    ) -> None:
        """Trains for epochs `begin_epoch` to `num_epoch` (MXNet's `Module.fit`).

        Args:
            train_data, eval_data: iterators; the second may be None.
            eval_metric, validation_metric: metric of training, and of evaluation (the same).
            epoch_end_callback: called (epoch, symbol, arg_params, aux_params).
            batch_end_callback, eval_batch_end_callback, eval_end_callback: called with a
                `BatchEndParam`.
            kvstore: name or store.
            optimizer, optimizer_params: name or object, and its parameters.
            initializer: values of parameters not given in `arg_params`, `aux_params`.
            monitor: Monitor to install.

        Raises:
            ParamError: no `num_epoch`.
        """
        if num_epoch is None:
            raise ParamError("[Module.fit] expected num_epoch, got None")
        self.bind(
            data_shapes=train_data.provide_data,
            label_shapes=train_data.provide_label,
            for_training=True,
            force_rebind=force_rebind,
        )
        if monitor is not None:
            self.install_monitor(monitor)
        self.init_params(
            initializer=initializer or init.Uniform(0.01),
            arg_params=arg_params,
            aux_params=aux_params,
            allow_missing=allow_missing,
            force_init=force_init,
        )
        self.init_optimizer(kvstore, optimizer, optimizer_params)
        train_metric = _metric.create(eval_metric)
        begin_epoch, done = self._go_on(train_data, begin_epoch, num_epoch)
        for epoch in range(begin_epoch, num_epoch):
            began = time.monotonic()
            # An epoch that was under way may have nothing left; else an iterator that was used up
            # before `fit` gives its next epoch.
            batches = _some(train_data) if done is None else train_data
            numbered = enumerate(batches, done or 0)
            done = None
            whole = self._train_epoch(
                train_data, numbered, epoch, train_metric, batch_end_callback, monitor
            )
            if not whole:  # the worker was asked to leave its job
                return
            for name, value in train_metric.get_global_name_value():
                self.logger.info("Epoch[%d] Train-%s=%f", epoch, name, value)
            self.logger.info("Epoch[%d] Time cost=%.3f", epoch, time.monotonic() - began)
            self._end_epoch(epoch, epoch_end_callback)
            if eval_data is not None:
                found = self.score(
                    eval_data,
                    validation_metric or eval_metric,
                    batch_end_callback=eval_batch_end_callback,
                    score_end_callback=eval_end_callback,
                    epoch=epoch,
                )
                for name, value in found:
                    self.logger.info("Epoch[%d] Validation-%s=%f", epoch, name, value)
            train_data.reset()

    def _go_on(self, data: DataIter, begin: int, end: int) -> tuple[int, int | None]:
        """Epoch to begin with, and how many of its batches were done when the process was started
        again (the data are at the next one then); None: it was not under way."""
        return begin, None

    def _step_done(self, train_data: DataIter, epoch: int, batches: int) -> bool:
        """Called after each batch; False ends the training."""
        return True

    def _train_epoch(
        self,
        train_data: DataIter,
        batches: Iterable[tuple[int, DataBatch]],
        epoch: int,
        train_metric: Any,
        callbacks: Callbacks,
        monitor: Any,
    ) -> bool:
        train_metric.reset()
        for nbatch, batch in batches:
            if monitor is not None:
                monitor.tic()
            self.forward_backward(batch)
            self.update()
            self.update_metric(train_metric, batch.label)
            if monitor is not None:
                monitor.toc_print()
            call_all(callbacks, BatchEndParam(epoch, nbatch, train_metric, locals()))
            if not self._step_done(train_data, epoch, nbatch + 1):
                return False
        return True

    def _end_epoch(self, epoch: int, callbacks: Callbacks) -> None:
        if callbacks is not None:
            arg_params, aux_params = self.get_params()
            call_all(callbacks, epoch, self.symbol, arg_params, aux_params)


def _some(data: DataIter) -> Iterator[DataBatch]:
    """What is left of the epoch; where nothing is (it was used up before), the next epoch. A worker
    may have none of its batches, though: then there is nothing to do in it."""
    empty = True
    for batch in data:
        empty = False
        yield batch
    if empty and not (isinstance(data, Sized) and len(data) == 0):
        data.reset()
        yield from data


def _first(batches: Iterable[DataBatch], count: int | None) -> Iterator[DataBatch]:
    for number, batch in enumerate(batches):
        if count is not None and number >= count:
            return
        yield batch


def _unpadded(arrays: Sequence[NDArray], pad: int) -> list[NDArray]:
    return [a[0 : a.shape[0] - pad] if pad else a for a in arrays]
