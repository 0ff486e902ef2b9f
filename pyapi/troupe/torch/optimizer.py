"""DistributedOptimizer: averages gradients over the group while backward still runs.

A hook on each parameter notes its gradient; when a bucket is full its all-reduce starts, strictly
in bucket order, so that all ranks issue the same sequence. It reads the gradients where they are
and writes into memory of the bucket; ``step()`` waits and makes views of that memory the gradients.
Until all buckets have arrived the gradients stay as they are: when a peer dies the model and the
local gradients are untouched and the reduction can be done again.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Optional, Union

import torch

from troupe import _native
from troupe.errors import HorovodInternalError
from troupe.torch import _context
from troupe.torch._buckets import Bucket, bucket_limits, layout_hash, plan_buckets
from troupe.torch._context import DTYPE_NAMES
from troupe.torch._rounds import Rounds
from troupe.torch._tree import copy_into, nbytes
from troupe.torch.compression import (
    Compression,
    Compressor,
    GradientCompressor,
    NoneCompressor,
    check_compression,
)
from troupe.torch.ops import Average, ReduceOp, Sum, resolve_op
from troupe.torch.process_sets import ProcessSet, check_process_set, global_process_set

_HALF = (torch.float16, torch.bfloat16)

NamedParameters = Iterable[tuple[str, torch.Tensor]]
AnyCompression = Union[type[Compressor], GradientCompressor]


class _Reducer:
    """The gradient path of one optimizer: hooks, buckets, all-reduces in flight."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        op: ReduceOp,
        compression: AnyCompression,
        passes: int,
        predivide: float,
        sparse_as_dense: bool,
        bucket_bytes: Optional[int],
    ) -> None:
        self.context = _context.current()
        self.optimizer = optimizer
        self.op = op
        self.passes = passes
        self.predivide = predivide
        self.sparse_as_dense = sparse_as_dense
        self.bucket_limits = bucket_limits(bucket_bytes)
        self.sampler: Any = None
        self._rounds: Optional[Rounds] = None
        self._pair: type[Compressor] = NoneCompressor
        if isinstance(compression, GradientCompressor):
            self._rounds = Rounds(self.context, compression)
        else:
            self._pair = compression
        self._hooks: list[Any] = []
        self._kept_nodes: list[Any] = []
        self.rebuild()

    # -- layout -----------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Lays the buckets out for the optimizer's present parameters and hooks them."""
        self.close()
        params = [
            p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad
        ]
        plans = plan_buckets(params, *self.bucket_limits)
        self._counts_apart = (
            not plans
            or self._rounds is not None
            or self._pair is not NoneCompressor
            or plans[-1].dtype in _HALF
            or not plans[-1].dtype.is_floating_point
        )
        last = len(plans) - 1
        self.buckets = [
            Bucket(plan, params, extra=1 if i == last and not self._counts_apart else 0)
            for i, plan in enumerate(plans)
        ]
        self._count_buffer = torch.zeros(1, dtype=torch.float64)
        self.signature = str(layout_hash(params, plans))
        if self._rounds is not None:
            self._rounds.compressor.reset()
            self.signature += f" {self._rounds.compressor.signature()}"
        self._place = {id(p): b for b in self.buckets for p in b.params}
        self.context.add_reducer(self)
        self._fired: dict[int, int] = {}
        self._issued: list[tuple[int, list[torch.Tensor]]] = []  # and the memory in use
        self._undo: dict[int, tuple[torch.Tensor, Any]] = {}  # by bucket: the wire, how to unpack
        self._failure: Optional[HorovodInternalError] = None
        for param in params:
            self._hook(param)

    def close(self) -> None:
        """Takes the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._kept_nodes = [], []

    def shares_parameters(self, other: _Reducer) -> bool:
        """Whether some parameter belongs to both."""
        return not self._place.keys().isdisjoint(other._place.keys())

    def _hook(self, param: torch.Tensor) -> None:
        me = weakref.ref(self)  # a parameter must not keep a discarded optimizer alive

        def fire(*unused: Any) -> None:
            reducer = me()
            if reducer is not None:
                reducer._on_gradient(param)

        register = getattr(param, "register_post_accumulate_grad_hook", None)
        if register is not None:
            self._hooks.append(register(fire))
            return
        # Older torch: the node that accumulates into param.grad; it lives as long as we keep it.
        node = param.expand_as(param).grad_fn.next_functions[0][0]
        self._kept_nodes.append(node)
        self._hooks.append(node.register_hook(fire))

    # -- during backward ----------------------------------------------------------------------

    def _on_gradient(self, param: torch.Tensor) -> None:
        fired = self._fired.get(id(param), 0) + 1
        if fired > self.passes:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to "
                "step(). Increase backward_passes_per_step to accumulate gradients locally."
            )
        self._fired[id(param)] = fired
        if fired < self.passes:
            return
        bucket = self._place[id(param)]
        bucket.missing -= 1
        if bucket.missing == 0:
            self._launch_ready()

    def _launch_ready(self) -> None:
        """Starts full buckets, never one before its predecessor."""
        for bucket in self.buckets:
            if bucket.launched:
                continue
            if bucket.missing > 0 or self._failure is not None:
                return
            self._launch(bucket)

    @property
    def pass_complete(self) -> bool:
        """Whether some gradient of this step has had all its backward passes."""
        return any(count >= self.passes for count in self._fired.values())

    def flush(self) -> None:
        """Starts what is left of a begun step, before the user's own collectives."""
        if self.pass_complete:
            self._launch_all()

    def _launch_all(self) -> None:
        for bucket in self.buckets:
            if not bucket.launched and self._failure is None:
                self._launch(bucket)

    # -- one bucket -----------------------------------------------------------------------------

    def _launch(self, bucket: Bucket) -> None:
        context = self.context
        bucket.launched = True
        if context.size == 1:
            return
        try:
            context.require_active()
            if bucket is self.buckets[0]:
                context.agree(
                    f"gradients of optimizer {context.ordinal(self)}: {len(self.buckets)} buckets, "
                    f"layout {self.signature}"
                )
                if self._rounds is not None:
                    self._rounds.enter(f"optimizer.{context.ordinal(self)}.enter")
            weight = self.weight
            bucket.choose_flat()
            self._reduce(bucket, weight)
            if bucket is self.buckets[-1] and self.sampler is not None and self._counts_apart:
                self._count_buffer.fill_(weight)
                self._issue(-1, [self._count_buffer], self._count_buffer, "average", 1.0, 1.0)
        except HorovodInternalError as error:
            # Raised here it would pass through autograd's threads; step() raises it instead.
            self._failure = error

    def _reduce(self, bucket: Bucket, weight: float) -> None:
        index = self.buckets.index(bucket)
        op, before, after = self._arithmetic(bucket, weight)
        if self._rounds is not None:
            self._pack(bucket, weight, before)
            self._rounds.start(bucket, index, f"optimizer.{self.context.ordinal(self)}.{index}")
            return
        if self._pair is not NoneCompressor:
            self._pack(bucket, weight, before)
            wire, undo = self._pair.compress(bucket.flat)
            self._issue(index, [wire], wire, op, 1.0, after)
            self._undo[index] = (wire, undo)
            return
        grads = bucket.direct() if weight else None
        if grads is not None:
            bucket.extra.fill_(1.0)  # becomes the weight as the gradients do
            self._issue(index, [*grads, bucket.extra], bucket.flat, op, before, after)
            return
        self._pack(bucket, weight, 1.0)
        if bucket.extra.numel():
            bucket.flat[-1] = 1.0 if weight else 0.0
        self._issue(index, [bucket.flat], bucket.flat, op, before if weight else 1.0, after)

    def _arithmetic(self, bucket: Bucket, weight: float) -> tuple[str, float, float]:
        """The core's operation, and the factors before and after it."""
        if self.op != Average:
            return "sum", 1.0, 1.0
        size = self.context.size
        if self.sampler is None:
            if self._rounds is not None:
                return "sum", 1.0 / size if bucket.flat.dtype in _HALF else 1.0, 1.0
            if self.predivide != 1.0:
                return "sum", 1.0 / self.predivide, self.predivide / size
            return "average", 1.0, 1.0
        if bucket.flat.dtype in _HALF:
            return "sum", weight / size, 1.0  # the sum must stay in a narrow range
        return ("sum" if self._rounds is not None else "average"), weight, 1.0

    def _issue(
        self, index: int, ins: list[torch.Tensor], out: torch.Tensor, op: str, before: float,
        after: float,
    ) -> None:
        name = f"optimizer.{self.context.ordinal(self)}.{'count' if index < 0 else index}"
        with _native.collective_errors(name):
            handle = self.context.group.allreduce(
                [(t.data_ptr(), nbytes(t)) for t in ins if t.numel()],
                [(out.data_ptr(), nbytes(out))],
                out.numel(), DTYPE_NAMES[out.dtype], op, before, after, name,
            )
        self._issued.append((int(handle), [*ins, out]))

    @property
    def weight(self) -> float:
        """This rank's share in the average: its counted samples over the nominal batch size."""
        if self.sampler is None or self.op != Average:
            return 1.0
        return float(self.sampler.step_weight(self.passes))

    def _pack(self, bucket: Bucket, weight: float, factor: float) -> None:
        """Copies the gradients times ``factor`` into the flat; zeros for those without."""
        views, grads = [], []
        with torch.no_grad():
            for param, view in zip(bucket.params, bucket.views, strict=True):
                grad = param.grad
                if grad is None or weight == 0.0:
                    view.zero_()
                    continue
                if grad.is_sparse:
                    if not self.sparse_as_dense:
                        raise ValueError(
                            "a gradient is sparse; pass sparse_as_dense=True to "
                            "DistributedOptimizer, or make the layer's gradients dense"
                        )
                    grad = grad.to_dense()
                views.append(view)
                grads.append(grad.detach())
            copy_into(views, grads)
            if factor not in (0.0, 1.0):
                bucket.flat.mul_(factor)

    # -- step -----------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Waits for all buckets and sets ``param.grad`` to the reduced gradients.

        Raises:
            HorovodInternalError: the step has no result; gradients and model are untouched.
        """
        try:
            try:
                self._reduce_all()
            except HorovodInternalError as error:
                replay = self.context.replay
                if replay is None or not replay.finish(self, self._reduce_all, error):
                    raise
        except BaseException:
            self.abandon()
            raise
        if self.context.size > 1:
            self._hand_over()
        if self.sampler is not None:
            self.sampler.note_step()
        self.reset()

    def _reduce_all(self) -> None:
        """Brings the result of all buckets into their memory; alone the gradients are the result.
        """
        self._launch_all()
        if self._failure is not None:
            raise self._failure
        if self.context.size > 1:
            self._wait_all()

    def _wait_all(self) -> None:
        with _native.collective_errors("gradient all-reduce"):
            if self._rounds is not None:
                self._rounds.finish()
            while self._issued:
                self.context.group.wait(self._issued[0][0], self.context.timeout_s)
                self._issued.pop(0)
        for index, (wire, undo) in self._undo.items():
            flat = self.buckets[index].flat
            if wire.data_ptr() != flat.data_ptr():
                flat.copy_(self._pair.decompress(wire, undo))
        if self._rounds is not None:
            self._rounds.compressor.commit()

    def _hand_over(self) -> None:
        """Makes the result the parameters' gradients."""
        mean = self._mean_weight()
        targets, sources = [], []
        with torch.no_grad():
            for bucket in self.buckets:
                scale = 1.0 / mean if mean > 0.0 else 0.0
                summed = self._rounds is not None and self.op == Average
                if summed and bucket.flat.dtype not in _HALF:
                    scale /= self.context.size
                if scale != 1.0:
                    bucket.flat.mul_(scale)
                for param, view in zip(bucket.params, bucket.views, strict=True):
                    if param.device.type == "cpu" and param.is_contiguous():
                        param.grad = view
                        continue
                    if param.grad is None or param.grad.is_sparse:
                        param.grad = torch.empty_like(param)
                    targets.append(param.grad)
                    sources.append(view)
            copy_into(targets, sources)

    def _mean_weight(self) -> float:
        """The mean of all ranks' weights, by which what the core made is too small."""
        if self.sampler is None or self.op != Average:
            return 1.0
        counts = self._count_buffer if self._counts_apart else self.buckets[-1].flat[-1:]
        return float(counts.item())

    def abandon(self) -> None:
        """Drops the step: waits out what is in flight and forgets it."""
        handles = [handle for handle, _ in self._issued]
        keep: list[Any] = [self._issued, self.buckets, self._count_buffer]
        if self._rounds is not None:
            more, memory = self._rounds.abandon()
            handles, keep = handles + more, keep + memory
        self.context.wait_out(handles, keep)
        self.reset()

    def forget_errors(self) -> None:
        """Drops what a compressor has kept of steps before."""
        if self._rounds is not None:
            self._rounds.compressor.forget_errors()

    def reset(self) -> None:
        """Ready for the next step."""
        self._issued = []
        self._undo = {}
        self._failure = None
        self._fired.clear()
        for bucket in self.buckets:
            bucket.reset()

    @property
    def in_flight(self) -> bool:
        """Whether all-reduces of this step have started and were not waited for."""
        return bool(self._issued) or (self._rounds is not None and self._rounds.in_flight)


class _DistributedOptimizer(torch.optim.Optimizer):
    """Mixed into a subclass of the wrapped optimizer's class; see :func:`DistributedOptimizer`."""

    _reducer: _Reducer
    _synchronized: bool
    _should_synchronize: bool

    def synchronize(self) -> None:
        """Waits for the gradients of this step; call it by hand to clip them before ``step()``."""
        self._reducer.synchronize()
        self._synchronized = True

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
                    "optimizer.step() was called after optimizer.synchronize(), which reduces the "
                    "gradients twice; use `with optimizer.skip_synchronize(): optimizer.step()`",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = False
        result = super(self.__class__, self).step()
        return loss if closure is not None else result

    def zero_grad(self, *args: Any, **kwargs: Any) -> Any:
        """Zeroes gradients; not between ``backward()`` and ``step()``."""
        if self._reducer.in_flight:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(). This is prohibited as it can cause "
                "a race condition."
            )
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
        super(self.__class__, self).load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters; between steps only, and on all ranks alike."""
        super(self.__class__, self).add_param_group(param_group)
        if hasattr(self, "_reducer"):
            self._reducer.abandon()
            self._reducer.rebuild()

    def attach_sampler(self, sampler: Any) -> None:
        """Weights each rank's gradient by the samples that ``sampler`` counted for its step."""
        self._reducer.sampler = sampler

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
    bucket_bytes: Optional[int] = None,
) -> torch.optim.Optimizer:
    """Wraps an optimizer so that ``step()`` uses gradients averaged over all ranks.

    Args:
        optimizer: any optimizer but LBFGS.
        named_parameters: checked for completeness; naming is not needed.
        compression: how gradients travel: a pair of functions such as ``Compression.bf16``, or an
            object such as ``Compression.powersgd(rank=4)`` (see :class:`GradientCompressor`).
        backward_passes_per_step: local gradient accumulation before a reduction.
        op: Average or Sum.
        gradient_predivide_factor: splits the averaging: gradients times 1/f before, f/size after.
        num_groups, groups: accepted for compatibility; buckets fuse gradients anyway.
        sparse_as_dense: densify sparse gradients.
        process_set: the global one.
        bucket_bytes: gradients that are reduced at once; 0 reduces each by itself. Equal on all
            ranks. Default: the environment's TROUPE_BUCKET_BYTES, else 25 MiB (1 MiB first).

    With an ``ElasticSampler`` attached (``TorchState`` does it) the average is over the samples
    that were counted, whatever each rank's share; without one it is over ranks.

    After ``step()`` or ``synchronize()`` a contiguous CPU parameter's ``grad`` is another tensor
    than before: a view of its bucket, as with ``gradient_as_bucket_view`` of
    DistributedDataParallel. Do not hold on to gradients across steps: a later one overwrites them.

    Raises:
        ValueError: not initialised, or an argument does not fit.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("DistributedOptimizer does not support LBFGS, which evaluates repeatedly")
    check_process_set(process_set)
    reduce_op = resolve_op(None, op)
    if reduce_op not in (Average, Sum):
        raise ValueError(f"DistributedOptimizer supports Average and Sum, not {reduce_op.name}")
    if gradient_predivide_factor != 1.0 and reduce_op != Average:
        raise ValueError("gradient_predivide_factor is supported with op=Average only")
    if not gradient_predivide_factor > 0:
        raise ValueError(f"gradient_predivide_factor must be positive: {gradient_predivide_factor}")
    check_compression(compression, gradient_predivide_factor)
    _check_passes(backward_passes_per_step)
    _check_groups(num_groups, groups)
    _check_names(optimizer, named_parameters)
    base = optimizer.__class__
    cls: Any = type(base.__name__, (base,), dict(_DistributedOptimizer.__dict__))
    wrapped = cls.__new__(cls)
    # Shares state and param_groups; `step` may be a scheduler's wrapper of the original's method.
    wrapped.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k != "step"})
    wrapped._synchronized = False
    wrapped._should_synchronize = True
    wrapped._reducer = _Reducer(
        wrapped, reduce_op, compression, backward_passes_per_step, gradient_predivide_factor,
        sparse_as_dense, bucket_bytes,
    )
    return wrapped


def _check_passes(passes: Any) -> None:
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise ValueError(f"backward_passes_per_step must be an int of at least 1, not {passes!r}")


def _check_groups(num_groups: Any, groups: Any) -> None:
    if num_groups:
        warnings.warn("num_groups has no effect", DeprecationWarning, stacklevel=3)
    if groups is None or (isinstance(groups, int) and not isinstance(groups, bool) and groups > 0):
        return
    if isinstance(groups, list) and all(
        isinstance(g, list) and all(isinstance(t, torch.Tensor) for t in g) for g in groups
    ):
        return
    raise ValueError("groups must be a positive int or a list of lists of tensors")


def _check_names(optimizer: torch.optim.Optimizer, named: Optional[NamedParameters]) -> None:
    if named is None:
        return
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
