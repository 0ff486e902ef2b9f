"""The gradient path of one optimizer, from the hooks on its parameters to the averaged gradients.

A hook on each parameter notes its gradient; when a bucket is full its all-reduce starts, strictly
in bucket order, so that all ranks issue the same sequence. It reads the gradients where they are
and writes into memory of the bucket, whose views become the gradients at the end of the step. Until
all buckets have arrived the gradients stay as they are: when a peer dies the model and the local
gradients are untouched and the reduction can be done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Union

import torch

from troupe import _native
from troupe.errors import HorovodInternalError
from troupe.torch import _context, _sparse, _timeline
from troupe.torch._buckets import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    Bucket,
    Groups,
    bucket_limits,
    layout_hash,
    plan_buckets,
    plan_groups,
)
from troupe.torch._context import DTYPE_NAMES
from troupe.torch._devices import Place, host_place, place_of
from troupe.torch._hooks import GradientHooks
from troupe.torch._members import Members
from troupe.torch._operations import CORE_OPS
from troupe.torch._rounds import Rounds
from troupe.torch._tree import copy_into, nbytes
from troupe.torch._tuning import BucketTuning
from troupe.torch.compression import Compressor, GradientCompressor, NoneCompressor
from troupe.torch.ops import Average, ReduceOp, Sum
from troupe.torch.process_sets import ProcessSet

_HALF = (torch.float16, torch.bfloat16)

AnyCompression = Union[type[Compressor], GradientCompressor]


class Reducer:
    """The gradient path of one optimizer: hooks, buckets, all-reduces in flight."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        op: ReduceOp,
        compression: AnyCompression,
        passes: int,
        predivide: float,
        sparse_as_dense: bool,
        bucket_bytes: Union[int, str, None],
        groups: Optional[Groups],
        process_set: ProcessSet,
    ) -> None:
        self.context = _context.current()
        self.optimizer = optimizer
        self.op = op
        self.passes = passes
        self.predivide = predivide
        self.sparse_as_dense = sparse_as_dense
        self.groups = groups
        self.members = Members(self.context, process_set, self)
        limits = bucket_limits(bucket_bytes, not isinstance(compression, GradientCompressor))
        self.bucket_limits = limits or ()
        self._tuning = BucketTuning() if limits is None else None
        self.sampler: Any = None
        self._rounds: Optional[Rounds] = None
        self._pair: type[Compressor] = NoneCompressor
        if isinstance(compression, GradientCompressor):
            if self._tuning is not None:
                raise ValueError(
                    'bucket_bytes="auto" does not go with a GradientCompressor, which keeps what '
                    "it has not sent by bucket; give a number of bytes"
                )
            self._rounds = Rounds(self.context, compression, lambda: process_set.team)
        else:
            self._pair = compression
        self._hooks = GradientHooks()
        self.buckets: list[Bucket] = []
        self._gathered: list[_sparse.Gathered] = []
        self._flushing = False
        self.averaged = False  # The gradients are the result, and the step is still to come.
        self._local: dict[int, int] = {}  # How often gradients were written when they were there.
        self.rebuild()

    # -- layout -----------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Lays the buckets out for the optimizer's present parameters and hooks them."""
        self.close()
        self._fired: dict[int, int] = {}
        self._arrived: dict[int, float] = {}  # On the timeline's clock.
        self._issued: list[tuple[int, list[torch.Tensor]]] = []  # and the memory in use
        self._undo: dict[int, tuple[torch.Tensor, Any]] = {}  # by bucket: the wire, how to unpack
        self._failure: Optional[HorovodInternalError] = None
        params = self._lay_out()
        self.context.add_reducer(self)
        for param in params if self.members.included else []:
            self._hooks.add(param, self.on_gradient)

    def _lay_out(self) -> list[torch.Tensor]:
        """Makes the buckets; between steps, or before the first one of a step is launched."""
        params = [
            p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad
        ]
        if self.groups is None:
            plans = plan_buckets(params, *self.bucket_limits)
        else:
            plans = plan_groups(params, self.groups, self.bucket_limits)
        self._counts_apart = (
            not plans
            or self._rounds is not None
            or self._pair is not NoneCompressor
            or plans[-1].dtype in _HALF
            or not plans[-1].dtype.is_floating_point
        )
        last = len(plans) - 1
        known = [sparse for bucket in self.buckets for sparse in bucket.sparse]
        self.buckets = [
            Bucket(
                plan, params, 1 if i == last and not self._counts_apart else 0,
                self._place_of([params[k] for k in plan.indices]),
            )
            for i, plan in enumerate(plans)
        ]
        self._count_buffer = torch.zeros(1, dtype=torch.float64)
        self.signature = str(layout_hash(params, plans))
        if any(bucket.place.kind == "cuda" for bucket in self.buckets):
            self.signature += " on cuda"
        if self._rounds is not None:
            self._rounds.compressor.reset()
            self.signature += f" {self._rounds.compressor.signature()}"
        self._place = {id(p): b for b in self.buckets for p in b.params}
        for bucket in self.buckets:
            bucket.leave_out([s for s in known if self._place.get(id(s.param)) is bucket])
            bucket.missing -= sum(self._fired.get(id(p), 0) >= self.passes for p in bucket.every())
        return params

    def _cut_as_tuned(self) -> None:
        """Lays the buckets out anew if the tuning has moved on."""
        assert self._tuning is not None
        number = self._tuning.bucket_bytes
        limits = min(FIRST_BUCKET_BYTES, number), number
        if limits != (self.bucket_limits or (FIRST_BUCKET_BYTES, BUCKET_BYTES)):
            self.bucket_limits = limits
            self._lay_out()

    def _place_of(self, params: list[torch.Tensor]) -> Place:
        """Where a bucket of these is reduced; what a compressor does, it does in host memory."""
        return host_place() if self._rounds is not None else place_of(self.context.group, params)

    def close(self) -> None:
        """Takes the hooks off the parameters."""
        self._hooks.remove()

    def parameter_ids(self) -> set[int]:
        """Which parameters it has."""
        return set(self._place)

    def shares_parameters(self, other: Any) -> bool:
        """Whether some parameter belongs to both, of which the other may be a DeltaReducer."""
        return not self.parameter_ids().isdisjoint(other.parameter_ids())

    # -- during backward ----------------------------------------------------------------------

    def on_gradient(self, param: torch.Tensor) -> None:
        """A backward pass has added up a gradient.

        Raises:
            AssertionError: it is one too many.
        """
        fired = self._fired.get(id(param), 0) + 1
        if fired > self.passes or (self.averaged and self._is_result(param)):
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to "
                "step(). Increase backward_passes_per_step to accumulate gradients locally; after "
                "a step that was left out call optimizer.zero_grad()."
            )
        timeline = _timeline.of(self.context)
        if not self._fired:
            self.context.steps_begun += 1
            if timeline is not None and timeline.mark_cycles:
                timeline.instant("CYCLE_START")
        self._fired[id(param)] = fired
        if fired < self.passes:
            return
        if timeline is not None:
            self._arrived[id(param)] = timeline.now()
        bucket = self._place[id(param)]
        bucket.missing -= 1
        if param.grad is not None:
            self._local[_writes_of(param.grad)] = param.grad._version
        if bucket.missing == 0:
            self._launch_ready()
            if all(other.missing == 0 for other in self.buckets):
                engine: Any = torch.autograd.Variable._execution_engine
                engine.queue_callback(self._end_of_backward)

    def _is_result(self, param: torch.Tensor) -> bool:
        bucket = self._place[id(param)]
        return any(p is param and p.grad is view
                   for p, view in zip(bucket.params, bucket.views, strict=True))

    def _end_of_backward(self) -> None:
        """Every gradient is there: what the user sees of them is the average.

        So clipping, unscaling and logging need no call of ``synchronize()``. Where some parameter
        has had no gradient more may come, from another backward pass; then ``step()`` waits.
        """
        if self._fired:
            self.optimizer.synchronize_gradients()

    def check_unchanged(self) -> None:
        """Before gradients are averaged that the user has had in hand.

        Raises:
            RuntimeError: they were clipped, unscaled or otherwise changed.
        """
        for param in (p for bucket in self.buckets for p in bucket.every()):
            grad = param.grad
            if grad is not None and self._local.get(_writes_of(grad), grad._version) != (
                    grad._version):
                raise RuntimeError(
                    "gradients were changed, as by clipping, between backward() and step(), and "
                    "were not averaged yet, since some parameter of the optimizer has had no "
                    "gradient: call optimizer.synchronize() before they are changed"
                )

    def _launch_ready(self) -> None:
        """Starts full buckets, never one before its predecessor."""
        if self.buckets[0].missing == 0:
            self._compare_tuning()
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
        """Starts what is left of a begun step, before the user's own collectives.

        With rounds or sparse gradients it ends as well, as on ranks where backward() ended it.
        """
        if not self.pass_complete or self._flushing:
            return
        if self._rounds is None:
            self._launch_all()
            if not any(bucket.sparse for bucket in self.buckets):
                return
        self._flushing = True
        try:
            self.check_unchanged()
            self.optimizer.synchronize_gradients()
        finally:
            self._flushing = False

    def _compare_tuning(self) -> None:
        """Before the first bucket of a step: the ranks agree on the buckets, where they must."""
        if self._tuning is None or self.buckets[0].launched or self._failure is not None:
            return
        try:
            if self._tuning.due(self.context, self.members.size):
                self.context.require_active()
                self._tuning.compare(
                    self.context, f"tuning of {self.members.label}", self.members.team)
                self._cut_as_tuned()
        except HorovodInternalError as error:
            self._failure = error

    def _launch_all(self) -> None:
        if self.buckets:
            self._compare_tuning()
        for bucket in self.buckets:
            if not bucket.launched and self._failure is None:
                self._launch(bucket)

    def agree(self) -> None:
        """Checks that all ranks have the same buckets, once per epoch."""
        self.members.agree(
            f"gradients of {self.members.label}: {len(self.buckets)} buckets, "
            f"layout {self.signature}"
        )

    # -- one bucket -----------------------------------------------------------------------------

    def _launch(self, bucket: Bucket) -> None:
        context = self.context
        bucket.launched = True
        context.operations += 1
        if self.members.size == 1:
            return
        try:
            context.require_active()
            if bucket is self.buckets[0]:
                self.agree()
                if self._rounds is not None:
                    self._rounds.enter(f"{self.members.label}.enter")
            weight = self.weight
            if not self.sparse_as_dense:
                bucket.drop_sparse()
            bucket.choose_flat()
            if bucket.flat.numel():
                self._reduce(bucket, weight)
            if bucket is self.buckets[-1] and self.sampler is not None and self._counts_apart:
                self._count_buffer.fill_(weight)
                self._issue(
                    -1, [self._count_buffer], self._count_buffer, "average", 1.0, 1.0, host_place()
                )
        except HorovodInternalError as error:
            # Raised here it would pass through autograd's threads; step() raises it instead.
            self._failure = error

    def _reduce(self, bucket: Bucket, weight: float) -> None:
        index = self.buckets.index(bucket)
        op, before, after = self._arithmetic(bucket, weight)
        if self._rounds is not None:
            bucket.pack(weight, before)
            self._rounds.start(bucket, index, f"{self.members.label}.{index}")
            self._show(bucket.params, "ALLREDUCE", self._rounds.handles)
            return
        if self._pair is not NoneCompressor:
            bucket.pack(weight, before)
            wire, undo = self._pair.compress(bucket.flat)
            place = bucket.place if bucket.in_place(wire) else host_place()
            self._issue(index, [wire], wire, op, 1.0, after, place)
            self._undo[index] = (wire, undo)
            return
        grads = bucket.direct() if weight else None
        if grads is not None:
            bucket.extra.fill_(1.0)  # becomes the weight as the gradients do
            self._issue(index, [*grads, bucket.extra], bucket.flat, op, before, after, bucket.place)
            return
        bucket.pack(weight, 1.0)
        if bucket.extra.numel():
            bucket.flat[-1] = 1.0 if weight else 0.0
        self._issue(
            index, [bucket.flat], bucket.flat, op, before if weight else 1.0, after, bucket.place
        )

    def _arithmetic(self, bucket: Bucket, weight: float) -> tuple[str, float, float]:
        """The core's operation, and the factors before and after it."""
        if self.op != Average:
            return CORE_OPS[self.op], 1.0, 1.0
        size = self.members.size
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
        after: float, place: Place,
    ) -> None:
        name = f"{self.members.label}.{'count' if index < 0 else index}"
        if index >= 0 and self.buckets[index].sparse:
            name += f" without {len(self.buckets[index].sparse)} sparse gradients"
        with _native.collective_errors(name):
            handle = self.context.group.allreduce(
                [(t.data_ptr(), nbytes(t)) for t in ins if t.numel()],
                [(out.data_ptr(), nbytes(out))],
                out.numel(), DTYPE_NAMES[out.dtype], op, before, after, name, self.members.team,
                place.memory, self.sampler is not None,
            )
        self._issued.append((int(handle), [*ins, out]))
        if index >= 0:
            self._show(self.buckets[index].params, "ALLREDUCE", [int(handle)], bucket=name,
                       bytes=nbytes(out))

    def _show(self, params: Sequence[torch.Tensor], what: str, handles: Sequence[int],
              **more: Any) -> None:
        """Writes to the timeline that these gradients are on their way."""
        names = getattr(self.optimizer, "_parameter_names", {})
        _timeline.show(self.context, [names.get(p, "gradient") for p in params], what, handles,
                       [self._arrived.get(id(p)) for p in params], **more)

    @property
    def weight(self) -> float:
        """This rank's share in the average: its counted samples over the nominal batch size."""
        if self.sampler is None or self.op != Average:
            return 1.0
        return float(self.sampler.step_weight(self.passes))

    # -- step -----------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Waits for all buckets and sets ``param.grad`` to the reduced gradients.

        Raises:
            HorovodInternalError: the step has no result; gradients and model are untouched.
        """
        if not self.members.included:
            self._note_step()
            return
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
        if self.members.size > 1:
            self._hand_over()
        self.reset()
        self._note_step()
        if self._tuning is not None:
            self._tuning.step_done()
            self._cut_as_tuned()

    def _note_step(self) -> None:
        if self.sampler is not None:
            self.sampler.note_step()
        self.averaged = True

    def _reduce_all(self) -> None:
        """Brings the result of all buckets into their memory; alone the gradients are the result.
        """
        self._launch_all()
        if self._failure is not None:
            raise self._failure
        if self.members.size > 1:
            self._wait_all()

    def _gather_sparse(self) -> None:
        """Starts what is not in the buckets."""
        params = [sparse for bucket in self.buckets for sparse in bucket.sparse]
        self._gathered = []
        if not params:
            return
        if self.op not in (Average, Sum):
            raise ValueError(
                f"op={self.op.name} does not go with sparse gradients, of which a rank has some "
                "rows only; pass sparse_as_dense=True to DistributedOptimizer")
        self._gathered = _sparse.gather(
            self.context, self.members.team, self.members.label, params, self.weight, self._issued)
        handles = [handle for handle, _ in self._issued]
        self._show([p.param for p in params], "ALLGATHER", handles)

    def _wait_all(self) -> None:
        with _native.collective_errors("gradient all-reduce"):
            if self._rounds is not None:
                self._rounds.finish()
            self._wait_issued()
            self._gather_sparse()  # After what says whether the ranks have the same buckets.
            self._wait_issued()
        for index, (wire, undo) in self._undo.items():
            flat = self.buckets[index].flat
            if wire.data_ptr() != flat.data_ptr():
                flat.copy_(self._pair.decompress(wire, undo))
        if self._rounds is not None:
            self._rounds.compressor.commit()

    def _wait_issued(self) -> None:
        while self._issued:
            self.context.group.wait(self._issued[0][0], self.context.timeout_s)
            self._issued.pop(0)

    def _hand_over(self) -> None:
        """Makes the result the parameters' gradients."""
        mean = self._mean_weight()
        targets, sources = [], []
        with torch.no_grad():
            for bucket in self.buckets:
                scale = 1.0 / mean if mean > 0.0 else 0.0
                summed = self._rounds is not None and self.op == Average
                if summed and bucket.flat.dtype not in _HALF:
                    scale /= self.members.size
                if scale != 1.0:
                    bucket.flat.mul_(scale)
                for param, view in zip(bucket.params, bucket.views, strict=True):
                    if bucket.in_place(param) and param.is_contiguous():
                        param.grad = view
                        continue
                    if param.grad is None or param.grad.is_sparse:
                        param.grad = torch.empty_like(param)
                    targets.append(param.grad)
                    sources.append(view)
            copy_into(targets, sources)
            share = 1.0 / mean if mean > 0.0 else 0.0
            if self.op == Average:
                share /= self.members.size
            for gathered in self._gathered:
                gathered.param.grad = gathered.gradient(share)
            self._gathered = []

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
        self._gathered = []
        self._undo = {}
        self._failure = None
        self._fired.clear()
        self._arrived.clear()
        self._local.clear()
        self.averaged = False
        for bucket in self.buckets:
            bucket.reset()

    @property
    def in_flight(self) -> bool:
        """Whether all-reduces of this step have started and were not waited for."""
        return bool(self._issued) or (self._rounds is not None and self._rounds.in_flight)


def _writes_of(grad: torch.Tensor) -> int:
    """Names what counts the writes to a gradient: views of one tensor count together."""
    return id(grad._base) if grad._is_view() else id(grad)
