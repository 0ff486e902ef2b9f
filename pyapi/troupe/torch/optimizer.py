"""DistributedOptimizer: averages gradients over the group while backward still runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Optional, Union

import torch

from troupe.torch._buckets import Groups
from troupe.torch._delta_optimizer import DELTA_METHODS, DeltaReducer
from troupe.torch._reducer import AnyCompression, Reducer
from troupe.torch.compression import Compression, GradientCompressor, check_compression
from troupe.torch.ops import Adasum, Average, ReduceOp, Sum, resolve_op
from troupe.torch.process_sets import ProcessSet, global_process_set

NamedParameters = Iterable[tuple[str, torch.Tensor]]


class _DistributedOptimizer(torch.optim.Optimizer):
    """Mixed into a subclass of the wrapped optimizer's class; see :func:`DistributedOptimizer`."""

    _reducer: Any  # A Reducer, or a DeltaReducer.
    _synchronized: bool
    _should_synchronize: bool
    _commits: Any
    wrapped_optimizer: torch.optim.Optimizer  # It has the same groups and state.

    # Names of the parameters, those that were given or their places; the arguments as they were.
    _parameter_names: dict[torch.Tensor, str]
    op: ReduceOp
    process_set: ProcessSet
    gradient_predivide_factor: float
    sparse_as_dense: bool

    @property
    def backward_passes_per_step(self) -> int:
        """How many backward passes make one step."""
        return int(self._reducer.passes)

    @property
    def alike(self) -> bool:
        """Whether all ranks of the group step alike."""
        return self.process_set.process_set_id == 0

    @property
    def fails_untouched(self) -> bool:
        """Whether a step that fails has written to nothing, so that commits may stay in place."""
        return self.op != Adasum and self.alike

    def synchronize(self) -> None:
        """Waits for the gradients of this step.

        ``backward()`` has done so when every parameter had its gradient in it. Where some had none,
        call it by hand before gradients are clipped or unscaled.
        """
        if not self._reducer.averaged:
            self._reducer.check_unchanged()
            self.synchronize_gradients()
        self._synchronized = True

    def synchronize_gradients(self) -> None:
        """Makes the gradients of the parameters those of all ranks."""
        if self._commits is not None:
            self._commits.before_synchronize()
        self._reducer.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it ``step()`` does not synchronize, because that was done by hand."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Waits for the averaged gradients and steps. A closure is evaluated once, before that."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() was called after optimizer.synchronize(); use "
                    "`with optimizer.skip_synchronize(): optimizer.step()`",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = self._reducer.averaged = False
        commits = self._commits
        if commits is not None:
            commits.before_step()
        result = super(self.__class__, self).step()
        self.wrapped_optimizer._opt_called = True  # A scheduler made for it looks.
        if commits is not None:
            commits.after_step()
        return loss if closure is not None else result

    def zero_grad(self, *args: Any, **kwargs: Any) -> Any:
        """Zeroes gradients; not while some of a step are still being averaged."""
        if self._reducer.in_flight:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(). This is prohibited as it can cause "
                "a race condition."
            )
        self._synchronized = self._reducer.averaged = False
        return super(self.__class__, self).zero_grad(*args, **kwargs)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes how many backward passes make one step; between steps only."""
        _check_passes(passes)
        self._reducer.abandon()
        self._reducer.passes = passes

    def load_state_dict(self, state_dict: Any) -> None:
        """Loads the state and drops gradients in flight, which belong to the state before."""
        self._reducer.abandon()
        self._reducer.forget_errors()
        self._synchronized = False
        if self._commits is not None:
            self._commits.before_load()
        # Loading makes new containers; schedulers may know them by way of the wrapped optimizer.
        me: Any = self
        groups, state = me.param_groups, me.state
        super(self.__class__, self).load_state_dict(state_dict)
        loaded = dict(me.state)
        groups[:] = me.param_groups
        state.clear()
        state.update(loaded)
        me.param_groups, me.state = groups, state

    def set_param_groups(self, groups: list[dict[str, Any]]) -> None:
        """Has these groups and no others; between steps only, and on all ranks alike."""
        self.param_groups[:] = groups
        kept = {id(p) for group in groups for p in group["params"]}
        for param in [p for p in self.state if id(p) not in kept]:
            del self.state[param]
        self._reducer.abandon()
        self._reducer.rebuild()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters; between steps only, and on all ranks alike."""
        super(self.__class__, self).add_param_group(param_group)
        if hasattr(self, "_reducer"):
            self._reducer.abandon()
            self._reducer.rebuild()

    def attach_sampler(self, sampler: Any) -> None:
        """Weights each rank's gradient by the samples that ``sampler`` counted for its step."""
        self._reducer.sampler = sampler

    def attach_commits(self, commits: Any) -> None:
        """Has ``commits`` told before each wait, and before and after each change of parameters."""
        self._commits = commits

    def abandon_step(self) -> None:
        """Forgets a step that will not be finished."""
        self._reducer.abandon()
        self._synchronized = False


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Optional[NamedParameters] = None,
    compression: AnyCompression = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    bucket_bytes: Union[int, str, None] = None,
) -> torch.optim.Optimizer:
    """Wraps an optimizer so that ``step()`` uses gradients averaged over all ranks.

    When ``backward()`` returns they are: clip and unscale them as with one process. If a parameter
    had no gradient, ``step()`` or ``synchronize()`` waits for them.

    Args:
        optimizer: any optimizer but LBFGS.
        named_parameters: checked for completeness; naming is not needed.
        compression: how gradients travel: a pair of functions such as ``Compression.bf16``, or an
            object such as ``Compression.powersgd(rank=4)`` (see :class:`GradientCompressor`).
        backward_passes_per_step: local gradient accumulation before a reduction.
        op: Average, Sum, Min, Max or Product of the gradients; or Adasum: every rank steps with its
            own gradients, and what the steps have changed is combined by Adasum.
        gradient_predivide_factor: splits the averaging: gradients times 1/f before, f/size after.
        num_groups: deprecated, use ``groups``.
        groups: gradients that travel as one bucket: a list of lists of parameters, or a number of
            groups of equal length. Without it ``bucket_bytes`` decides, and does for the rest.
        sparse_as_dense: densify sparse gradients. Otherwise those of all ranks are gathered, and
            ``param.grad`` is sparse afterwards (with Average and Sum).
        process_set: the ranks that reduce gradients; on others ``step()`` is the wrapped one's.
        bucket_bytes: gradients reduced at once, equal on all ranks; 0: each by itself; "auto": what
            the first 32 steps find best. Default: TROUPE_BUCKET_BYTES, else 25 MiB (1 MiB first).

    With an ``ElasticSampler`` attached (``TorchState`` does it) the average is over the samples
    that were counted, whatever each rank's share; without one it is over ranks.

    A contiguous CPU parameter's ``grad`` then is a view of its bucket; a later step writes to it.

    In ``elastic.run`` a step that a death interrupts is reduced again by the others. With a process
    set or Adasum it is begun again from the last commit.

    Raises:
        ValueError: not initialised, or an argument does not fit.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("DistributedOptimizer does not support LBFGS, which evaluates repeatedly")
    _check_process_set(process_set)
    reduce_op = _check_op(op, gradient_predivide_factor, compression)
    check_compression(compression, gradient_predivide_factor)
    _check_passes(backward_passes_per_step)
    fused = _check_groups(optimizer, num_groups, groups)
    wrapped = _wrap(optimizer, reduce_op == Adasum)
    wrapped._parameter_names = _names_of(optimizer, named_parameters)
    wrapped.op, wrapped.process_set = reduce_op, process_set
    wrapped.gradient_predivide_factor = gradient_predivide_factor
    wrapped.sparse_as_dense, wrapped._compression = sparse_as_dense, compression
    if reduce_op == Adasum:
        wrapped._reducer = DeltaReducer(
            wrapped, compression, backward_passes_per_step, sparse_as_dense, process_set)
    else:
        wrapped._reducer = Reducer(
            wrapped, reduce_op, compression, backward_passes_per_step, gradient_predivide_factor,
            sparse_as_dense, bucket_bytes, fused, process_set,
        )
    return wrapped


def _wrap(optimizer: torch.optim.Optimizer, delta: bool) -> Any:
    """An optimizer of the same groups and state whose class derives from the given one's."""
    base = optimizer.__class__
    methods = dict(_DistributedOptimizer.__dict__)
    if delta:
        methods.update(DELTA_METHODS)
    cls: Any = type(base.__name__, (base,), methods)
    wrapped = cls.__new__(cls)
    # `step` may be a scheduler's wrapper of the original's method.
    wrapped.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k != "step"})
    wrapped._synchronized, wrapped._should_synchronize = False, True
    wrapped._commits, wrapped.wrapped_optimizer = None, optimizer
    return wrapped


def _check_process_set(process_set: Any) -> None:
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set must be a ProcessSet, not {type(process_set).__name__}")
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set!r} is not registered; pass it to add_process_set() first")


def _check_op(op: int, gradient_predivide_factor: float, compression: Any) -> ReduceOp:
    reduce_op = resolve_op(None, op)
    if gradient_predivide_factor != 1.0 and reduce_op != Average:
        raise ValueError("gradient_predivide_factor is supported with op=Average only")
    if not gradient_predivide_factor > 0:
        raise ValueError(f"gradient_predivide_factor must be positive: {gradient_predivide_factor}")
    if isinstance(compression, GradientCompressor) and reduce_op not in (Average, Sum):
        raise ValueError(
            f"{type(compression).__name__} sums gradients, so op must be Average or Sum, not "
            f"{reduce_op.name}"
        )
    return reduce_op


def _check_passes(passes: Any) -> None:
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise ValueError(f"backward_passes_per_step must be an int of at least 1, not {passes!r}")


def _check_groups(
    optimizer: torch.optim.Optimizer, num_groups: Any, groups: Any
) -> Optional[Groups]:
    if num_groups:
        warnings.warn("num_groups is deprecated, use groups", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None:
        return None
    if isinstance(groups, int) and not isinstance(groups, bool) and groups >= 0:
        return groups or None
    if not isinstance(groups, list) or not all(
        isinstance(g, list) and all(isinstance(t, torch.Tensor) for t in g) for g in groups
    ):
        raise ValueError(
            f"groups must be a number of groups or a list of lists of tensors, not {groups!r}")
    members = [id(t) for group in groups for t in group]
    if len(set(members)) != len(members):
        raise ValueError("a parameter may be in one of the groups only, and once")
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not known.issuperset(members):
        raise ValueError("groups has a tensor that is no parameter of the optimizer")
    return groups


def _names_of(
    optimizer: torch.optim.Optimizer, named: Optional[NamedParameters]
) -> dict[torch.Tensor, str]:
    if named is None:
        return {param: f"allreduce.noname.{i}.{j}"
                for i, group in enumerate(optimizer.param_groups)
                for j, param in enumerate(group["params"])}
    pairs = list(named)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError(
            "named_parameters must be a sequence of (name, parameter) tuples, such as "
            "model.named_parameters()"
        )
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"parameter names must be unique; given twice: {', '.join(twice)}")
    known = {id(p) for _, p in pairs}
    missing = [p for g in optimizer.param_groups for p in g["params"] if id(p) not in known]
    if missing:
        raise ValueError(
            f"named_parameters lacks {len(missing)} of the optimizer's parameters; give all or none"
        )
    return {param: name for name, param in pairs}
