"""State that follows a joiner while the members train.

A joiner needs parameters and optimizer state when its first ``optimizer.step()`` begins, not
before. So it makes its first step as a *follower*: it has no share of the samples and computes a
ghost, on the parameters it was made with, and what it contributes to the average has the weight
zero. Meanwhile the tensors of the last commit arrive. Before it waits for the gradients of the step
it takes them over, and from there on it is a member like any other: it makes the same step with the
same gradients. The others go on with their forward and backward passes at once; what they wait for
at the end of the step is the longer of the transfer and of their own computing.

    sync: plain values --> ghost step --before synchronize(): tensors--> the same step as the others

The tensors are sent from the copies of the last commit, so that the members may write to the live
ones. The user asks for it (``TorchState(..., joiners_follow=True)``), since only the user knows
whether the training function looks at the model before its step in other ways than to compute
gradients: what a follower would see there is not the group's model. It also needs a program whose
steps are known: ``elastic.batches()`` of one sampler, one averaging DistributedOptimizer, nothing
of the user's in the state but plain values, steps of the shape that allows commits in place, and no
collectives of the user's in the last CALM_COMMITS commits nor between the call of the training
function and the first of them. In all other cases, and for less than LEAST_BYTES, the members wait
until the joiner has the state.

Should they write to the state between ``commit()`` and ``step()`` for the first time in just this
step, the joiner has missed that: it receives model and optimizer once more before the step. A
collective of the user's in this step waits until the state is there.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from troupe.torch import _context
from troupe.torch._tree import flatten, nbytes
from troupe.torch.elastic.handlers import (
    ModelHandler,
    OptimizerHandler,
    SamplerHandler,
    StateDictHandler,
    TreeHandler,
)
from troupe.torch.ops import Average

CALM_COMMITS = 8
LEAST_BYTES = 16 << 20  # less is sent in a few milliseconds


class Habits:
    """What the program has done around its commits so far.

    **Thread:** the one that trains.
    """

    def __init__(self) -> None:
        self._calm = 0
        self._busy_entry = False  # Collectives before the first commit of a view.
        self._entering = True
        self._operations = 0

    def entered(self, operations: int) -> None:
        """The training function is called next; so many collectives were begun up to now."""
        self._entering, self._operations = True, operations

    def committed(self, operations: int, known_step: bool) -> None:
        """A commit. ``known_step``: after one step of the optimizer, with leased samples."""
        quiet = operations == self._operations
        self._busy_entry |= self._entering and not quiet
        self._calm = self._calm + 1 if quiet and known_step else 0
        self._entering, self._operations = False, operations

    @property
    def calm(self) -> bool:
        """Whether the next step will surely be without collectives of the user's."""
        return self._calm >= CALM_COMMITS and not self._busy_entry


class Following:
    """A joiner's state whose tensors are still on their way."""

    def __init__(self, handlers: dict[str, TreeHandler], header: dict[str, Any]) -> None:
        self.version: int = header["version"]
        self.objects: dict[str, Any] = copy.deepcopy(header["objects"])  # As the commit has them.
        self.transfer: Any = None
        self._trees = [
            (handlers[name], skeleton, handlers[name].room(skeleton))
            for name, skeleton in sorted(header["trees"].items())
        ]
        self.buffers = [buffer for _, _, buffers in self._trees for buffer in buffers]

    def prepare(self) -> None:
        """Takes over what a step begins with."""
        for handler, skeleton, _ in self._trees:
            handler.prepare(skeleton)

    def give_up(self) -> None:
        """They will not arrive."""
        for handler, _, _ in self._trees:
            handler.give_up()

    def take(self) -> None:
        """Takes over the tensors, which have arrived."""
        for handler, skeleton, buffers in self._trees:
            handler.take(skeleton, buffers)


def able(handlers: dict[str, TreeHandler]) -> bool:
    """Whether the state is of a kind that can follow."""
    optimizers = [h.value for h in handlers.values() if isinstance(h, OptimizerHandler)]
    samplers = [h.value for h in handlers.values() if isinstance(h, SamplerHandler)]
    reducers = _context.current().reducers()
    return (
        len(samplers) == len(optimizers) == len(reducers) == 1
        and getattr(optimizers[0], "fails_untouched", False)
        and reducers[0].op == Average
        and not any(bucket.sparse for bucket in reducers[0].buckets)
        and reducers[0].sampler is samplers[0]
    )


def written_by_steps(handlers: dict[str, TreeHandler]) -> list[torch.Tensor]:
    """Live tensors that a follower takes over, but for buffers, which forward passes change."""
    tensors = [
        tensor
        for handler in handlers.values()
        for tensor in (
            [] if isinstance(handler, StateDictHandler) else flatten(handler.live_tree())[1])
        if not isinstance(handler, ModelHandler) or isinstance(tensor, torch.nn.Parameter)
    ]
    return [tensor for tensor in tensors if tensor.layout == torch.strided]


def large(handlers: dict[str, TreeHandler]) -> bool:
    """Whether it is worth a ghost step."""
    buffers = [buffer for handler in handlers.values() for buffer in handler.snapshot.buffers]
    return sum(nbytes(buffer) for buffer in buffers) >= LEAST_BYTES
