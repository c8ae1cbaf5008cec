"""Module: a symbol with executors, parameters, an optimizer and a store."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from .. import initializer as init
from .. import optimizer as opt
from ..checkpoint import load_checkpoint, save_checkpoint
from ..context import Context, cpu
from ..errors import MixflowError, ParamError, ShapeError
from ..initializer import InitDesc
from ..io import DataBatch, DataDesc, DataIter
from ..ndarray import NDArray
from ..symbol import Symbol
from . import stores
from .base_module import BaseModule
from .executor_group import ExecutorGroup, described, group_contexts, requests_of, shape_key

Params = dict[str, NDArray]
#: Batch shapes whose executors a module keeps.
_KEPT_GROUPS = 8


class Module(BaseModule):
    """Trains and runs a symbol (MXNet's `Module`).

    Args:
        symbol: network.
        data_names, label_names: its inputs; the other arguments are parameters.
        context: one context, or a list among which each batch is split evenly.
        work_load_list: kept for MXNet programs; only equal loads are supported.
        fixed_param_names: parameters that get no gradient and no update.
        state_names: inputs that keep their value between batches.
        group2ctxs: contexts by name of the group, for model parallelism: one mapping for all
            contexts, a list with one for each, or a mapping of names to lists.
        precision: 'float32', or 'bfloat16' for mixed precision; None = the configuration's at bind.
        placement: of `simple_bind`. With it the contexts share one executor and are not given
            parts of the batch.
        memory_limit: most bytes of internal arrays on each context, as in `simple_bind`.

    Raises:
        ParamError: a name that is no argument of the symbol, or groups that do not fit.
    """

    def __init__(
        self,
        symbol: Symbol,
        data_names: Sequence[str] = ("data",),
        label_names: Sequence[str] | None = ("softmax_label",),
        logger: Any = logging,
        context: Context | Sequence[Context] | None = None,
        work_load_list: Sequence[float] | None = None,
        fixed_param_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
        group2ctxs: Any = None,
        compression_params: Mapping[str, Any] | None = None,
        precision: str | None = None,
        placement: Any = None,
        memory_limit: int | str | None = None,
    ) -> None:
        super().__init__(logger)
        contexts = cpu() if context is None else context
        self._contexts = [contexts] if isinstance(contexts, Context) else list(contexts)
        self._placement = (placement, self._contexts)
        if placement is not None:
            self._contexts = self._contexts[:1]
        self._groups2ctx = group_contexts(group2ctxs, len(self._contexts))
        if work_load_list is not None and len(set(work_load_list)) > 1:
            raise ParamError(f"[Module] expected equal work loads, got {work_load_list}")
        self.symbol = symbol
        self._data_names = list(data_names)
        self._label_names = list(label_names or ())
        self._state_names = list(state_names or ())
        self._fixed = list(fixed_param_names or ())
        self._check_names()
        inputs = {*self._data_names, *self._label_names, *self._state_names}
        self._param_names = [n for n in symbol.list_arguments() if n not in inputs]
        self._aux_names = symbol.list_auxiliary_states()
        self._precision, self._memory_limit = precision, memory_limit
        self._group: ExecutorGroup | None = None
        self._groups: dict[Any, ExecutorGroup] = {}  # by batch shapes; all share the parameters
        self._optimizer: opt.Optimizer | None = None
        self._updater: opt.Updater | None = None
        self._kvstore: Any = None
        self._fused: opt.FusedUpdate | None = None
        self._by_store: stores.Updates | None = None
        self._loaded: tuple[Params, Params] | None = None
        self._preload_states: tuple[str, bool] | None = None  # path, allow_pickle

    def _check_names(self) -> None:
        known = self.symbol.list_arguments()
        for kind, names in (("data", self._data_names), ("fixed_param", self._fixed)):
            for name in names:
                if name not in known:
                    raise ParamError(
                        f"[Module] expected {kind} names among the arguments, got '{name}'; "
                        f"arguments: {known}"
                    )
        self._label_names = [n for n in self._label_names if n in known]

    # -- facts

    @property
    def data_names(self) -> list[str]:
        """Names of the data inputs."""
        return self._data_names

    @property
    def label_names(self) -> list[str]:
        """Names of the label inputs."""
        return self._label_names

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return list(self.symbol.list_outputs())

    @property
    def data_shapes(self) -> list[DataDesc]:
        """Descriptions of the data inputs."""
        return self._executors.data_shapes

    @property
    def label_shapes(self) -> list[DataDesc]:
        """Descriptions of the label inputs."""
        return self._executors.label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """(name, shape) of each output for a whole batch."""
        shapes = {d.name: d.shape for d in (*self.data_shapes, *self.label_shapes)}
        _, out_shapes, _ = self.symbol.infer_shape(**shapes)
        return list(zip(self.output_names, out_shapes, strict=True))

    @property
    def _executors(self) -> ExecutorGroup:
        self._require("binded")
        assert self._group is not None
        return self._group

    # -- binding

    def bind(
        self,
        data_shapes: Sequence[Any],
        label_shapes: Sequence[Any] | None = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Module | None = None,
        grad_req: str | Mapping[str, str] | Sequence[str] = "write",
        memory_limit: int | str | None = None,
        precision: str | None = None,
    ) -> None:
        """Allocates executors for these shapes; parameters keep their values when bound again.

        Args:
            data_shapes, label_shapes: `DataDesc` or (name, shape) pairs of a whole batch.
            for_training: allocate gradients.
            inputs_need_grad: gradients of the data too.
            force_rebind: bind again although bound.
            shared_module: module whose memory is shared.
            grad_req: 'write', 'add' or 'null', for all or by name.
            memory_limit, precision: as of the class; None = what the class was given.

        Raises:
            ShapeError: the shapes do not fit the network; the text names the node.
        """
        if self.binded and not force_rebind:
            return
        kept = self.get_params() if self.params_initialized else None
        data = [described(d) for d in data_shapes]
        labels = [
            described(d) for d in label_shapes or () if described(d).name in self._label_names
        ]
        self._check_shapes(data)
        requests = self._grad_requests(for_training, inputs_need_grad, grad_req)
        shared = shared_module._group if shared_module is not None else None
        limit = self._memory_limit if memory_limit is None else memory_limit
        self._group = self._new_group(data, labels, requests, shared, limit, precision)
        self.binded, self.for_training = True, for_training
        self.inputs_need_grad = inputs_need_grad
        self._groups = {shape_key(data, labels): self._group}
        self._fused = self._by_store = None
        if shared_module is not None and shared_module.params_initialized:
            self.params_initialized = True
        elif kept is not None:
            self._write_params(*kept)
        elif self._loaded is not None:
            self._install_loaded(*self._loaded)

    def _new_group(
        self,
        data: Sequence[DataDesc],
        labels: Sequence[DataDesc],
        requests: Mapping[str, str],
        shared: ExecutorGroup | None,
        limit: int | str | None,
        precision: str | None = None,
    ) -> ExecutorGroup:
        own = self._precision if precision is None else precision
        return ExecutorGroup(
            self.symbol,
            self._contexts,
            data,
            labels,
            requests,
            shared,
            limit,
            shared.precision if shared is not None and precision is None else own,
            self._groups2ctx,
            self._placement,
        )

    def _install_loaded(self, args: Params, auxs: Params) -> None:
        """The parameters of `load`, if they are complete; else `init_params` must fill them up."""
        if {*self._param_names} <= {*args} and {*self._aux_names} <= {*auxs}:
            self.set_params(args, auxs)
            self._loaded = None

    def _check_shapes(self, data: Sequence[DataDesc]) -> None:
        given = [d.name for d in data]
        if sorted(given) != sorted(self._data_names):
            raise ShapeError(f"[Module.bind] expected shapes for {self._data_names}, got {given}")

    def _grad_requests(self, training: bool, inputs: bool, grad_req: Any) -> dict[str, str]:
        trained = set(self._param_names) - set(self._fixed)
        trained |= set(self._data_names) if inputs else set()
        return requests_of(self.symbol.list_arguments(), trained if training else set(), grad_req)

    def reshape(
        self, data_shapes: Sequence[Any], label_shapes: Sequence[Any] | None = None
    ) -> None:
        """Other batch shapes with the same parameters."""
        self._require("binded")
        old = self._executors
        data = [described(d) for d in data_shapes]
        labels = [described(d) for d in label_shapes or ()]
        labels = [d for d in labels if d.name in self._label_names] or old.label_shapes
        key = shape_key(data, labels)
        found = self._groups.pop(key, None)
        if found is None:
            self._check_fit(data, labels)
            found = self._new_group(data, labels, old.grad_req, old, old.memory_limit)
            while len(self._groups) >= _KEPT_GROUPS:
                del self._groups[next(iter(self._groups))]
        self._groups[key] = self._group = found

    def _check_fit(self, data: Sequence[DataDesc], labels: Sequence[DataDesc]) -> None:
        """Other batch shapes must leave the shapes of the parameters as they are."""
        known = set(self.symbol.list_arguments())
        given = {d.name: d.shape for d in (*data, *labels) if d.name in known}
        args, _, auxs = self.symbol.infer_shape(**given)
        for kind, names, shapes in (
            ("arg", self.symbol.list_arguments(), args),
            ("aux", self._aux_names, auxs),
        ):
            for name, shape in zip(names, shapes, strict=True):
                if name not in self._param_names and kind == "arg":
                    continue
                bound = tuple(self._executors.arrays(kind, name)[0].shape)
                if tuple(shape) != bound:
                    raise ShapeError(
                        f"[Module] expected inputs that fit '{name}' of shape {bound}, got "
                        f"{given}, which would make it {tuple(shape)}"
                    )

    # -- parameters

    def init_params(
        self,
        initializer: Any = init.Uniform(0.01),  # noqa: B008 - immutable, MXNet's default
        arg_params: Mapping[str, NDArray] | None = None,
        aux_params: Mapping[str, NDArray] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Gives every parameter a value: a given one, else the initializer's.

        Raises:
            ParamError: a name that the network does not have (without `allow_extra`), or a
                parameter without value and initializer (without `allow_missing`).
            ShapeError: a given array of another shape.
        """
        if self.params_initialized and not force_init:
            return
        self._require("binded")
        if arg_params is None and aux_params is None and self._loaded is not None:
            arg_params, aux_params = self._loaded
        self._check_extra(arg_params, aux_params, allow_extra)
        attributes = self.symbol.attr_dict()
        work = [
            (InitDesc(name, attributes.get(name), initializer), kind, given)
            for kind, names, given in (
                ("arg", self._param_names, arg_params),
                ("aux", self._aux_names, aux_params),
            )
            for name in names
        ]
        for desc, kind, given in work:  # everything is checked before anything is written
            self._check_value(desc, kind, given, initializer, allow_missing)
        for desc, kind, given in work:
            self._fill(desc, self._executors.arrays(kind, desc), given, initializer, allow_missing)
        self.params_initialized = True

    def _check_extra(self, args: Any, auxs: Any, allow_extra: bool) -> None:
        known = {*self._param_names, *self._aux_names, *self._data_names, *self._label_names}
        extra = [n for n in (*(args or ()), *(auxs or ())) if n not in known]
        if extra and not allow_extra:
            raise ParamError(
                f"[Module.init_params] expected parameters of the network, got '{extra[0]}'; "
                "pass allow_extra=True to ignore such names"
            )

    def _check_value(
        self, desc: InitDesc, kind: str, given: Any, initializer: Any, missing: bool
    ) -> None:
        shape = tuple(self._executors.arrays(kind, desc)[0].shape)
        if given is not None and desc in given:
            if tuple(given[desc].shape) != shape:
                raise ShapeError(
                    f"[Module.init_params] expected shape {shape} for '{desc}', got "
                    f"{tuple(given[desc].shape)}"
                )
        elif not missing and (initializer is None or given is not None):
            raise ParamError(
                f"[Module.init_params] expected a value for '{desc}', got none; pass it, or "
                "allow_missing=True with an initializer"
            )

    @staticmethod
    def _fill(
        desc: InitDesc, targets: list[NDArray], given: Any, initializer: Any, missing: bool
    ) -> None:
        first = targets[0]
        if given is not None and desc in given:
            given[desc].astype(first.dtype).copyto(first)
        elif initializer is not None and (given is None or missing):
            initializer(desc, first)
        for other in targets[1:]:
            first.copyto(other)

    def _write_params(self, args: Params, auxs: Params) -> None:
        for kind, params in (("arg", args), ("aux", auxs)):
            for name, value in params.items():
                for target in self._executors.arrays(kind, name):
                    value.copyto(target)

    def get_params(self) -> tuple[Params, Params]:
        """(arg_params, aux_params): copies on cpu(0); moving statistics averaged over contexts.

        After `load` and before `bind`: what the files hold.
        """
        if self._loaded is not None and not self.binded:
            args, auxs = self._loaded
            return {n: a.copy() for n, a in args.items()}, {n: a.copy() for n, a in auxs.items()}
        self._require("binded", "params_initialized")
        home = cpu(0)

        def mean(kind: str, name: str) -> NDArray:
            arrays = self._executors.arrays(kind, name)
            if len(arrays) == 1 or kind == "arg":
                return arrays[0].as_in_context(home).copy()
            total: NDArray = arrays[0].as_in_context(home)
            for other in arrays[1:]:
                total = total + other.as_in_context(home)
            return total / len(arrays)  # type: ignore[return-value]  # methods of the core

        args = {n: mean("arg", n) for n in self._param_names}
        return args, {n: mean("aux", n) for n in self._aux_names}

    # -- optimizer

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Installs an optimizer; gradients are averaged over the batch unless told otherwise.

        Args:
            kvstore: name, store, or None. With one context a name needs no store.
            optimizer, optimizer_params: name or object, and its parameters.

        Raises:
            ParamError: a parameter that the optimizer does not take, or a rate that is not finite.
        """
        self._require("binded", "params_initialized")
        if self.optimizer_initialized and not force_init:
            return
        names = self._trained_names()
        store = stores.find(kvstore, len(self._contexts))
        if isinstance(optimizer, str):
            params = dict(optimizer_params)
            whole = self._executors.batch_size * stores.parts_per_update(store)
            params.setdefault("rescale_grad", 1.0 / whole)
            optimizer = opt.create(
                optimizer, sym=self.symbol, param_idx2name=dict(enumerate(names)), **params
            )
        self._optimizer = optimizer
        self._updater = opt.get_updater(optimizer)
        self._fused = self._by_store = None
        self._kvstore = self._fill_store(store)
        self.optimizer_initialized = True
        if self._preload_states is not None:
            self.load_optimizer_states(*self._preload_states)

    def _fill_store(self, store: Any) -> Any:
        """The store with every trained parameter and the optimizer; its values are ours then."""
        if store is not None:
            group = self._executors
            weights = {i: group.arrays("arg", n) for i, n in enumerate(self._trained_names())}
            stores.fill(store, weights, self._optimizer, self._updater)
        return store

    def _go_on(self, data: DataIter, begin: int, end: int) -> tuple[int, int | None]:
        """See `BaseModule`: where this worker was before it was started again."""
        return stores.go_on(self._kvstore, self, data, begin, end)

    def _step_done(self, train_data: DataIter, epoch: int, batches: int) -> bool:
        """See `BaseModule`: gives the store what its snapshots need."""
        return stores.step_done(self._kvstore, self, train_data, epoch, batches)

    def _trained_names(self) -> list[str]:
        requests = self._executors.grad_req
        return [n for n in self._param_names if requests[n] != "null"]

    def borrow_optimizer(self, shared_module: Module) -> None:
        """Uses another module's optimizer and states."""
        self._optimizer, self._updater = shared_module._optimizer, shared_module._updater
        self._kvstore = shared_module._kvstore
        self._fused = self._by_store = None
        self.optimizer_initialized = True

    def update(self) -> None:
        """Updates the parameters in place: one fused plan, or through the store."""
        self._require("optimizer_initialized")
        if self._kvstore is not None:
            self._by_store = self._by_store or stores.Updates(self._kvstore)
            self._by_store.run(self._executors, self._trained_names)
            return
        names = self._trained_names()
        if len(self._contexts) > 1:
            raise MixflowError("[Module.update] expected a kvstore for several contexts, got None")
        if self._fused is None:
            self._fused = self._make_fused(names)
        if self._fused is not None:
            self._fused.run()
            return
        executor = self._executors.executors[0]
        assert self._updater is not None
        for index, name in enumerate(names):
            self._updater(index, executor.grad_dict[name], executor._args[name])

    def _make_fused(self, names: Sequence[str]) -> opt.FusedUpdate | None:
        executor = self._executors.executors[0]
        weights = [executor._args[n] for n in names]
        grads = [executor.grad_dict[n] for n in names]
        assert self._optimizer is not None
        assert self._updater is not None
        if not weights or not opt.FusedUpdate.usable(self._optimizer, weights):
            return None
        return opt.FusedUpdate(self._updater, range(len(names)), weights, grads)

    # -- running

    def forward(self, data_batch: DataBatch, is_train: bool | None = None) -> None:
        """Computes the outputs of a batch; other shapes than bound are bound on the fly.

        Args:
            data_batch: batch with one array per data (and label) name.
            is_train: training mode; None = as bound.
        """
        self._require("binded", "params_initialized")
        self._fit_shapes(data_batch)
        self._executors.forward(data_batch, self.for_training if is_train is None else is_train)

    def forward_backward(self, data_batch: DataBatch) -> None:
        """Forward in training mode, then backward: one native call per context."""
        own = (Module.forward, Module.backward)
        if (type(self).forward, type(self).backward) != own:  # a subclass has its own
            return super().forward_backward(data_batch)
        self._require("binded", "params_initialized")
        self._fit_shapes(data_batch)
        self._executors.forward_backward(data_batch)

    def _fit_shapes(self, batch: DataBatch) -> None:
        group = self._executors
        shapes = [tuple(a.shape) for a in batch.data]
        if shapes == [d.shape for d in group.data_shapes]:
            return
        data = [
            DataDesc(d.name, s, d.dtype, d.layout)
            for d, s in zip(group.data_shapes, shapes, strict=True)
        ]
        label_arrays = batch.label or []
        labels = [
            DataDesc(d.name, a.shape, d.dtype, d.layout)
            for d, a in zip(group.label_shapes, label_arrays, strict=False)
        ]
        if not labels:
            labels = [
                DataDesc(d.name, (shapes[0][0], *d.shape[1:]), d.dtype, d.layout)
                for d in group.label_shapes
            ]
        self.reshape(data, labels)

    def backward(self, out_grads: Sequence[NDArray] | None = None) -> None:
        """Computes the gradients of the last forward in training mode."""
        self._executors.backward(out_grads)

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Outputs of the last forward, joined over contexts or one list per output."""
        return self._executors.outputs(merge_multi_context)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Gradients of the data inputs; needs ``inputs_need_grad`` at bind."""
        if not self.inputs_need_grad:
            raise MixflowError("[Module] expected bind(inputs_need_grad=True) for input gradients")
        return self._executors.input_grads(merge_multi_context)

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Adds the last outputs to a metric."""
        names = [d.name for d in self.label_shapes] or self._label_names
        by_name = dict(zip(names, labels or (), strict=False))
        eval_metric.update_dict(
            by_name, dict(zip(self.output_names, self.get_outputs(), strict=True))
        )

    def install_monitor(self, mon: Any) -> None:
        """Attaches a Monitor to the executors."""
        for executor in self._executors.executors:
            mon.install(executor)

    # -- files

    def save_optimizer_states(self, fname: str) -> None:
        """Writes the optimizer's states; the file appears whole or not at all."""
        self._require("optimizer_initialized")
        stores.save_states(self._kvstore, self._updater, fname)

    def load_optimizer_states(self, fname: str, allow_pickle: bool = False) -> None:
        """Reads what `save_optimizer_states` wrote.

        Raises:
            FormatError: damaged, or one of MXNet's pickles without `allow_pickle`.
        """
        self._require("optimizer_initialized")
        stores.load_states(self._kvstore, self._updater, fname, allow_pickle)
        self._fused = None

    def save_checkpoint(
        self,
        prefix: str,
        epoch: int,
        save_optimizer_states: bool = False,
        remove_amp_cast: bool = True,
    ) -> None:
        """Writes symbol, parameters and, if asked, ``prefix-%04d.states``."""
        save_checkpoint(prefix, epoch, self.symbol, *self.get_params(), remove_amp_cast)
        if save_optimizer_states:
            path = f"{prefix}-{epoch:04d}.states"
            self.save_optimizer_states(path)
            logging.info('Saved optimizer state to "%s"', path)

    @staticmethod
    def load(
        prefix: str,
        epoch: int,
        load_optimizer_states: bool = False,
        *,
        allow_pickle: bool = False,
        **kwargs: Any,
    ) -> Module:
        """A module from a checkpoint; `bind` installs its parameters.

        Args:
            prefix, epoch: of the checkpoint.
            load_optimizer_states: read ``prefix-%04d.states`` when the optimizer is installed.
            allow_pickle: read states that MXNet wrote. Unpickling runs what the file says: only
                for files that you trust.
            kwargs: of `Module`.

        Raises:
            FormatError: a file is missing or damaged.
        """
        symbol, args, auxs = load_checkpoint(prefix, epoch)
        made = Module(symbol, **kwargs)
        made._loaded = (args, auxs)
        if load_optimizer_states:
            made._preload_states = (f"{prefix}-{epoch:04d}.states", allow_pickle)
        return made
