"""Plans that were made for a graph, found again when it is bound again.

Hazard: a plan must not keep its graph alive, nor be found for another graph at the same address:
heads are held by weak references, which compare by identity while they live.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence

from ..ir import Node, Value
from .plan import CompiledPlan

_plans: weakref.WeakKeyDictionary[Node, dict[Hashable, CompiledPlan]] = weakref.WeakKeyDictionary()


def cached_plan(
    heads: Sequence[Value], key: Hashable, make: Callable[[], CompiledPlan]
) -> CompiledPlan:
    """The plan of these heads and this key, made at the first call.

    Args:
        heads: at Symbol level, at least one.
        key: everything else that the plan depends on.
        make: compiles it.
    """
    table = _plans.setdefault(heads[0].node, {})
    whole = (tuple((weakref.ref(v.node), v.index) for v in heads), key)
    found = table.get(whole)
    if found is None:
        found = table[whole] = make()
    return found
