"""Collectives of torch.distributed, done alike by two backends in the same processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

DTYPES = ("float32", "float64", "float16", "bfloat16", "uint8", "int8", "int32", "int64", "bool")
# What Gloo cannot be asked for is compared with what it is defined as.
NUMBERS = ("float32", "float64", "int32", "int64")


def tensor(dtype: str, rank: int, rows: int = 4, columns: int = 3) -> Any:
    """Small whole numbers, so that sums of them are exact in every dtype."""
    import torch

    values = torch.arange(rows * columns).reshape(rows, columns) % 3 + rank
    return (values % 2 if dtype == "bool" else values).to(getattr(torch, dtype))


class Case:
    """One collective in one group, as the rank ``me`` of ``n`` calls it."""

    def __init__(self, group: Any, ranks: list[int], dtype: str, later: bool) -> None:
        import torch.distributed as dist

        self.dist, self.group, self.ranks, self.dtype, self.later = dist, group, ranks, dtype, later
        self.n, self.me = len(ranks), dist.get_rank(group)

    def mine(self, rows: int = 4) -> Any:
        return tensor(self.dtype, self.me, rows)

    def empty(self, rows: int = 4) -> Any:
        return tensor(self.dtype, 0, rows).zero_()

    def done(self, call: Callable[..., Any], *args: Any, **more: Any) -> None:
        """Calls it, and waits if it is asynchronous."""
        work = call(*args, group=self.group, async_op=self.later, **more)
        if self.later:
            work.wait()
            assert work.is_completed() or self.dist.get_backend(self.group) == "gloo"

    # Each returns the tensors that hold its result.

    def all_reduce(self, op: str) -> list[Any]:
        x = self.mine()
        self.done(self.dist.all_reduce, x, op=getattr(self.dist.ReduceOp, op))
        return [x]

    def reduce(self, op: str) -> list[Any]:
        x = self.mine()
        root = self.n - 1
        self.done(self.dist.reduce, x, self.ranks[root], op=getattr(self.dist.ReduceOp, op))
        return [x] if self.me == root else []  # What others hold afterwards is not defined.

    def broadcast(self) -> list[Any]:
        x = self.mine()
        self.done(self.dist.broadcast, x, self.ranks[self.n - 1])
        return [x]

    def all_gather(self) -> list[Any]:
        outs = [self.empty() for _ in range(self.n)]
        self.done(self.dist.all_gather, outs, self.mine())
        return outs

    def all_gather_into_tensor(self) -> list[Any]:
        out = self.empty(4 * self.n)
        self.done(self.dist.all_gather_into_tensor, out, self.mine())
        return [out]

    def gather(self) -> list[Any]:
        outs = [self.empty() for _ in range(self.n)] if self.me == 0 else None
        self.done(self.dist.gather, self.mine(), outs, dst=self.ranks[0])
        return outs or []

    def scatter(self) -> list[Any]:
        out = self.empty()
        blocks = [tensor(self.dtype, r + 1) for r in range(self.n)] if self.me == 0 else None
        self.done(self.dist.scatter, out, blocks, src=self.ranks[0])
        return [out]

    def reduce_scatter(self, op: str) -> list[Any]:
        out = self.empty()
        blocks = [tensor(self.dtype, self.me + r) for r in range(self.n)]
        self.done(self.dist.reduce_scatter, out, blocks, op=getattr(self.dist.ReduceOp, op))
        return [out]

    def reduce_scatter_tensor(self, op: str) -> list[Any]:
        out = self.empty()
        self.done(self.dist.reduce_scatter_tensor, out, self.mine(4 * self.n),
                  op=getattr(self.dist.ReduceOp, op))
        return [out]

    def all_to_all(self) -> list[Any]:
        outs = [self.empty() for _ in range(self.n)]
        blocks = [tensor(self.dtype, 2 * self.me + r) for r in range(self.n)]
        self.done(self.dist.all_to_all, outs, blocks)
        return outs

    def all_to_all_single(self, uneven: bool) -> list[Any]:
        sends = [r + 1 for r in range(self.n)] if uneven else [2] * self.n
        receives = [self.me + 1] * self.n if uneven else [2] * self.n
        out = self.empty(sum(receives))
        splits = (receives, sends) if uneven else (None, None)
        self.done(self.dist.all_to_all_single, out, self.mine(sum(sends)), *splits)
        return [out]


REDUCTIONS = ("SUM", "PRODUCT", "MIN", "MAX")
BITWISE = ("BAND", "BOR", "BXOR")


def calls(dtype: str) -> list[tuple[str, tuple[Any, ...]]]:
    """Methods of Case with their arguments, as far as they are for this dtype."""
    import torch

    numbers = torch.zeros(1, dtype=getattr(torch, dtype))
    found: list[tuple[str, tuple[Any, ...]]] = []
    if dtype in NUMBERS:
        found += [(name, (op,)) for name in (
            "all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")
            for op in REDUCTIONS]
    elif dtype != "bool":
        found += [("all_reduce", (op,)) for op in ("SUM", "MIN", "MAX")]
    if not numbers.dtype.is_floating_point and dtype != "bool":
        found += [("all_reduce", (op,)) for op in BITWISE]
    found += [(name, ()) for name in (
        "broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter", "all_to_all")]
    return [*found, ("all_to_all_single", (True,)), ("all_to_all_single", (False,))]


def defined(name: str, args: tuple[Any, ...], case: Case) -> list[Any]:
    """What a collective is to give, from the inputs of all ranks."""
    import torch

    def reduced(blocks: list[Any], op: str) -> Any:
        fold = {"SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum,
                "MAX": torch.maximum, "BAND": torch.bitwise_and, "BOR": torch.bitwise_or,
                "BXOR": torch.bitwise_xor}[op]
        total = blocks[0]
        for block in blocks[1:]:
            total = fold(total, block)
        return total

    n, me, dtype = case.n, case.me, case.dtype
    everybody = range(n)
    if name in ("all_reduce", "reduce"):
        kept = name == "all_reduce" or me == n - 1
        return [reduced([tensor(dtype, r) for r in everybody], args[0])] if kept else []
    if name == "reduce_scatter":
        return [reduced([tensor(dtype, r + me) for r in everybody], args[0])]
    if name == "reduce_scatter_tensor":
        whole = reduced([tensor(dtype, r, 4 * n) for r in everybody], args[0])
        return [whole[4 * me:4 * me + 4]]
    if name == "broadcast":
        return [tensor(dtype, n - 1)]
    if name == "all_gather" or (name == "gather" and me == 0):
        return [tensor(dtype, r) for r in everybody]
    if name == "gather":
        return []
    if name == "scatter":
        return [tensor(dtype, me + 1)]
    if name == "all_gather_into_tensor":
        return [torch.cat([tensor(dtype, r) for r in everybody])]
    if name == "all_to_all":
        return [tensor(dtype, 2 * r + me) for r in everybody]
    if name == "all_to_all_single":
        sends = [r + 1 for r in everybody] if args[0] else [2] * n
        parts = [tensor(dtype, r, sum(sends)).split(sends)[me] for r in everybody]
        return [torch.cat(parts)]
    raise AssertionError(f"Gloo knows {name}")


def compare(case: Case, gloo: Case, name: str, args: tuple[Any, ...]) -> Optional[str]:
    """What is wrong with the result of a collective; None if nothing is."""
    import torch

    results = getattr(case, name)(*args)
    try:
        wanted = getattr(gloo, name)(*args)
    except (RuntimeError, ValueError, NotImplementedError):  # Not with this backend.
        wanted = defined(name, args, case)
    for index, (got, want) in enumerate(zip(results, wanted)):
        if got.dtype != want.dtype or not torch.equal(got, want):
            return (f"{name}{args} {case.dtype} of ranks {case.ranks}, async {case.later}: output "
                    f"{index} of rank {case.me} is {got.tolist()}, not {want.tolist()}")
    if len(results) != len(wanted):
        return f"{name}: {len(results)} results, not {len(wanted)}"
    return None


def table() -> dict[str, Any]:
    """All of them, in the whole group and in a part of it; what is wrong, and how many there were.
    """
    import torch.distributed as dist

    dist.init_process_group("troupe")
    me, size = dist.get_rank(), dist.get_world_size()
    wrong: list[str] = []
    count = 0
    groups = [(list(range(size)), dist.group.WORLD, dist.new_group(backend="gloo"))]
    part = [size - 1, 0]  # In an order of its own where torch keeps it.
    groups.append((sorted(part), dist.new_group(part), dist.new_group(part, backend="gloo")))
    for ranks, ours, theirs in groups:
        for dtype in DTYPES if me in ranks else ():
            for name, args in calls(dtype):
                for later in (False, True):
                    case = Case(ours, ranks, dtype, later)
                    problem = compare(case, Case(theirs, ranks, dtype, later), name, args)
                    wrong += [problem] if problem else []
                    count += 1
    dist.barrier()
    dist.destroy_process_group()
    return {"wrong": wrong, "count": count, "rank": me}
