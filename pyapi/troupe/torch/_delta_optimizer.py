"""DistributedOptimizer(op=Adasum): ranks step by themselves, and what they changed is combined.

Adasum is meant for what a step does to the parameters, not for gradients: an optimizer such as Adam
would undo what it makes of them. So ``step()`` notes the parameters, runs the wrapped optimizer
with this rank's gradients, all-reduces the differences, and adds the outcome to what was noted.
Parameters stay alike on all ranks; the optimizer's own state is each rank's.

When a peer dies meanwhile the parameters are as before, but the optimizer's state is not, so the
step cannot be reduced again: the elastic loop goes back to the last commit, which is a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Optional

import torch

from troupe.torch import _context
from troupe.torch._hooks import GradientHooks
from troupe.torch._members import Members
from troupe.torch._operations import Adasum, synchronize
from troupe.torch._reductions import grouped_allreduce_async_
from troupe.torch._tree import copy_into
from troupe.torch.process_sets import ProcessSet


class DeltaReducer:
    """What one optimizer has of the group; the counterpart of ``Reducer``."""

    op = Adasum
    averaged = False  # Gradients stay each rank's own.
    in_flight = False  # Nothing is, outside of step().
    signature = "deltas"

    def __init__(
        self, optimizer: torch.optim.Optimizer, compression: Any, passes: int,
        sparse_as_dense: bool, process_set: ProcessSet,
    ) -> None:
        self.context = _context.current()
        self.optimizer = optimizer
        self.passes = passes
        self.sampler: Any = None
        self.buckets: list[Any] = []
        self.process_set = process_set
        self.members = Members(self.context, process_set, self)
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._hooks = GradientHooks()
        self.rebuild()

    def rebuild(self) -> None:
        """Hooks the optimizer's present parameters."""
        self.close()
        self._fired: dict[int, int] = {}
        self.context.add_reducer(self)
        for param in self._params():
            self._hooks.add(param, self.on_gradient)

    def close(self) -> None:
        """Takes the hooks off the parameters."""
        self._hooks.remove()

    def parameter_ids(self) -> set[int]:
        """Which parameters it has."""
        return {id(p) for p in self._params()}

    def shares_parameters(self, other: Any) -> bool:
        """Whether some parameter belongs to both, of which the other may be a Reducer."""
        return not self.parameter_ids().isdisjoint(other.parameter_ids())

    def on_gradient(self, param: torch.Tensor) -> None:
        """A backward pass has added up a gradient.

        Raises:
            AssertionError: it is one too many.
        """
        fired = self._fired.get(id(param), 0) + 1
        if fired > self.passes:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to "
                "step(). Increase backward_passes_per_step to accumulate gradients locally."
            )
        if not self._fired:
            self.context.steps_begun += 1
        self._fired[id(param)] = fired

    def step(self, local: Callable[[], Any]) -> Any:
        """Runs ``local``, the wrapped optimizer's step, and makes it that of all ranks.

        Raises:
            HorovodInternalError: a peer died; the parameters are as before.
        """
        if self._sparse_as_dense:
            self._densify()
        if not self.members.included or self.members.size == 1:
            result = local()
        else:
            result = self._step_together(local)
        if self.sampler is not None:
            self.sampler.note_step()
        self.abandon()
        return result

    def _step_together(self, local: Callable[[], Any]) -> Any:
        self.context.require_active()
        counts = self.sampler is None or self.sampler.step_weight(self.passes) > 0
        params = [p.detach() for p in self._params()]
        before = [p.clone(memory_format=torch.contiguous_format) for p in params]
        try:
            # Who has no share of the step changes nothing, its optimizer's state neither.
            result = local() if counts else None
            with torch.no_grad():
                deltas = [p - old for p, old in zip(params, before, strict=True)]
                combined = self._combine([delta.contiguous() for delta in deltas])
                copy_into(params, [old + d for old, d in zip(before, combined, strict=True)])
        except BaseException:
            copy_into(params, before)
            raise
        return result

    def _combine(self, deltas: list[torch.Tensor]) -> list[torch.Tensor]:
        if not deltas:
            return []
        pairs = [self._compression.compress(delta) for delta in deltas]
        reduced = synchronize(grouped_allreduce_async_(
            [wire for wire, _ in pairs], name=f"{self.members.label}.deltas", op=Adasum,
            process_set=self.process_set,
        ))
        return [self._compression.decompress(wire, undo)
                for wire, (_, undo) in zip(reduced, pairs, strict=True)]

    def _densify(self) -> None:
        for param in self._params():
            if param.grad is not None and param.grad.is_sparse:
                param.grad = param.grad.to_dense()

    def _params(self) -> list[torch.Tensor]:
        groups = self.optimizer.param_groups
        return [p for group in groups for p in group["params"] if p.requires_grad]

    def agree(self) -> None:
        """Nothing is to be agreed on before a step: its all-reduce says what it is of."""

    def flush(self) -> None:
        """Nothing is begun before ``step()``."""

    def forget_errors(self) -> None:
        """Nothing is kept of steps before."""

    def abandon(self) -> None:
        """Forgets the gradients so far."""
        self._fired.clear()


class _DeltaMethods:
    """What differs from the other DistributedOptimizers."""

    _reducer: DeltaReducer
    _commits: Any
    wrapped_optimizer: Any

    def synchronize(self) -> None:
        """Does nothing: gradients are not reduced."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Is not for this optimizer.

        Raises:
            AssertionError: always; a step without its reduction would part the ranks.
        """
        raise AssertionError(
            "skip_synchronize() does not go with op=Adasum, whose step() is what is reduced")
        yield

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Steps by this rank's gradients, and all ranks together by what the steps changed."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        commits = self._commits
        if commits is not None:
            commits.before_step()
        local: Any = super(self.__class__, self)
        result = self._reducer.step(local.step)
        self.wrapped_optimizer._opt_called = True  # A scheduler made for it looks.
        if commits is not None:
            commits.after_step()
        return loss if closure is not None else result


DELTA_METHODS = {
    name: getattr(_DeltaMethods, name) for name in ("synchronize", "skip_synchronize", "step")
}
