"""Hooks on parameters: who is told of each gradient that a backward pass has added up."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch


class GradientHooks:
    """Calls a method for each gradient, while its object lives, which is not kept alive."""

    def __init__(self) -> None:
        self._hooks: list[Any] = []
        self._kept_nodes: list[Any] = []

    def add(self, param: torch.Tensor, method: Callable[[torch.Tensor], None]) -> None:
        """Has a bound method called with the parameter, once per backward pass."""
        found = weakref.WeakMethod(method)  # A parameter must not keep a discarded optimizer.

        def fire(*unused: Any) -> None:
            on_gradient = found()
            if on_gradient is not None:
                on_gradient(param)

        register = getattr(param, "register_post_accumulate_grad_hook", None)
        if register is not None:
            self._hooks.append(register(fire))
            return
        # Older torch: the node that accumulates into param.grad; it lives as long as we keep it.
        node: Any = param.expand_as(param).grad_fn
        self._kept_nodes.append(node.next_functions[0][0])
        self._hooks.append(self._kept_nodes[-1].register_hook(fire))

    def remove(self) -> None:
        """Nobody is told any more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._kept_nodes = [], []
