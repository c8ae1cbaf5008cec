"""mixflow: declared graphs and imperative tensors on one engine (``import mixflow as mx``)."""

from typing import TYPE_CHECKING

from . import (
    amp,
    autograd,
    base,
    callback,
    config,
    context,
    contrib,
    image,
    initializer,
    io,
    kvstore,
    libinfo,
    lr_scheduler,
    metric,
    model,
    models,
    module,
    monitor,
    ndarray,
    operator,
    optimizer,
    pipeline,
    random,
    recordio,
    symbol,
    visualization,
)
from . import binding as _binding  # noqa: F401 - installs Symbol.bind and its kind
from .attribute import AttrScope
from .context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from .errors import MixflowError, MXNetError
from .executor import Executor
from .extras import late as _late
from .initializer import Xavier
from .libinfo import __version__
from .monitor import Monitor
from .name import NameManager, Prefix
from .ndarray import NDArray, waitall
from .symbol import Symbol

if TYPE_CHECKING:
    from . import placement
else:
    __getattr__ = _late(__name__, {"placement": ".placement"})

#: MXNet's short names.
nd, sym, mod, init = ndarray, symbol, module, initializer
img = image
kv, opt, viz = kvstore, optimizer, visualization
rnd, mon = random, monitor

__all__ = [
    "AttrScope",
    "Context",
    "Executor",
    "MXNetError",
    "MixflowError",
    "Monitor",
    "NDArray",
    "NameManager",
    "Prefix",
    "Symbol",
    "Xavier",
    "__version__",
    "amp",
    "autograd",
    "base",
    "callback",
    "config",
    "context",
    "contrib",
    "cpu",
    "cpu_pinned",
    "current_context",
    "gpu",
    "image",
    "img",
    "init",
    "initializer",
    "io",
    "kv",
    "kvstore",
    "libinfo",
    "lr_scheduler",
    "metric",
    "mod",
    "model",
    "models",
    "module",
    "mon",
    "monitor",
    "nd",
    "ndarray",
    "num_gpus",
    "operator",
    "opt",
    "optimizer",
    "pipeline",
    "placement",
    "random",
    "recordio",
    "rnd",
    "sym",
    "symbol",
    "visualization",
    "viz",
    "waitall",
]
