"""mixflow: declared graphs and imperative tensors on one engine (``import mixflow as mx``)."""

from . import (
    autograd,
    callback,
    config,
    context,
    initializer,
    io,
    kvstore,
    lr_scheduler,
    metric,
    model,
    models,
    module,
    ndarray,
    operator,
    optimizer,
    random,
    symbol,
    visualization,
)
from . import binding as _binding  # noqa: F401 - installs Symbol.bind and its kind
from .attribute import AttrScope
from .context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from .errors import MixflowError, MXNetError
from .executor import Executor
from .initializer import Xavier
from .name import NameManager, Prefix
from .ndarray import NDArray, waitall
from .symbol import Symbol

__version__ = "0.1.0"

#: MXNet's short names.
nd, sym, mod, init = ndarray, symbol, module, initializer
kv, opt, viz = kvstore, optimizer, visualization

__all__ = [
    "AttrScope",
    "Context",
    "Executor",
    "MXNetError",
    "MixflowError",
    "NDArray",
    "NameManager",
    "Prefix",
    "Symbol",
    "Xavier",
    "autograd",
    "callback",
    "config",
    "context",
    "cpu",
    "cpu_pinned",
    "current_context",
    "gpu",
    "init",
    "initializer",
    "io",
    "kv",
    "kvstore",
    "lr_scheduler",
    "metric",
    "mod",
    "model",
    "models",
    "module",
    "nd",
    "ndarray",
    "num_gpus",
    "operator",
    "opt",
    "optimizer",
    "random",
    "sym",
    "symbol",
    "visualization",
    "viz",
    "waitall",
]
