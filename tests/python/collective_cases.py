"""Random collectives and what NumPy says their results are, and such that differ; inside workers.

Every rank makes the inputs of all ranks from the seed, so it knows the right answer by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import troupe.torch as hvd

DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
          torch.bfloat16, torch.float32, torch.float64]
OPS = [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product]
LENGTHS = [0, 1, 3, 64, 257, 4099, 70_001]


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    wide = torch.float64 if tensor.dtype.is_floating_point else torch.int64
    return tensor.detach().to(wide).numpy()


def small(generator: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """Whole numbers so small that every reduction of 8 of them is exact in every dtype."""
    return torch.from_numpy(generator.integers(1, 3, shape)).to(dtype)


def model(op: Any, stack: np.ndarray) -> np.ndarray:
    how = {hvd.Sum: np.sum, hvd.Average: np.sum, hvd.Min: np.min, hvd.Max: np.max,
           hvd.Product: np.prod}[op]
    result = how(stack, axis=0)
    if op != hvd.Average:
        return result
    if np.issubdtype(stack.dtype, np.integer):
        return result // len(stack)
    return result / len(stack)


def expect(got: torch.Tensor, wanted: np.ndarray, what: str) -> None:
    assert tuple(got.shape) == tuple(wanted.shape), what
    if wanted.dtype.kind == "f":
        wanted = to_numpy(torch.from_numpy(np.ascontiguousarray(wanted)).to(got.dtype))
        relative = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(got.dtype, 1e-6)
        assert np.allclose(to_numpy(got), wanted, rtol=relative), what
    else:
        assert np.array_equal(to_numpy(got), wanted), what


def rows_of(rows: int, size: int) -> list[int]:
    return [rows // size + (rank < rows % size) for rank in range(size)]


class Case:
    """One random collective among the ranks of a process set."""

    def __init__(self, seed: int, process_set: Any) -> None:
        self.random = np.random.default_rng(seed)
        self.set = process_set
        self.ranks = process_set.ranks
        self.size, self.me = len(self.ranks), process_set.rank()
        self.dtype = DTYPES[self.random.integers(len(DTYPES))]

    def inputs(self, shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        return [small(self.random, shape, self.dtype) for shape in shapes]

    def allreduce(self) -> None:
        op = OPS[self.random.integers(len(OPS))]
        every = self.inputs([(int(self.random.choice(LENGTHS)),)] * self.size)
        wanted = model(op, np.stack([to_numpy(t) for t in every]))
        what = f"allreduce {op} {self.dtype} {every[0].shape}"
        mine = every[self.me].clone()
        expect(hvd.allreduce(mine, op=op, process_set=self.set), wanted, what)
        assert torch.equal(mine, every[self.me]), f"{what} changed its input"
        expect(hvd.allreduce_(mine, op=op, process_set=self.set), wanted, f"{what} in place")

    def grouped_allreduce(self) -> None:
        shapes = [(int(self.random.integers(0, 50)), 2) for _ in range(4)]
        every = [self.inputs(shapes) for _ in range(self.size)]
        got = hvd.grouped_allreduce(every[self.me], op=hvd.Sum, process_set=self.set)
        for index, tensor in enumerate(got):
            wanted = np.sum([to_numpy(rank[index]) for rank in every], axis=0)
            expect(tensor, wanted, f"grouped allreduce {self.dtype} of {shapes}")

    def reducescatter(self) -> None:
        rows = int(self.random.choice([0, 1, self.size, 3 * self.size + 1, 20_011]))
        every = self.inputs([(rows, 3)] * self.size)
        total = np.sum([to_numpy(t) for t in every], axis=0)
        begin = sum(rows_of(rows, self.size)[:self.me])
        wanted = total[begin:begin + rows_of(rows, self.size)[self.me]]
        got = hvd.reducescatter(every[self.me], op=hvd.Sum, process_set=self.set)
        expect(got, wanted, f"reducescatter {self.dtype} of {rows} rows")

    def allgather(self) -> None:
        shapes = [(int(self.random.integers(0, 900)), 2) for _ in range(self.size)]
        every = self.inputs(shapes)
        got = hvd.allgather(every[self.me], process_set=self.set)
        wanted = np.concatenate([to_numpy(t) for t in every])
        expect(got, wanted, f"allgather {self.dtype} of {shapes}")

    def broadcast(self) -> None:
        root = int(self.random.integers(self.size))
        every = self.inputs([(int(self.random.choice(LENGTHS)), 2)] * self.size)
        got = hvd.broadcast(every[self.me], self.ranks[root], process_set=self.set)
        expect(got, to_numpy(every[root]), f"broadcast {self.dtype} from {root}")

    def alltoall(self) -> None:
        splits = self.random.integers(0, 40, (self.size, self.size))
        every = self.inputs([(int(row.sum()), 3) for row in splits])
        got, received = hvd.alltoall(
            every[self.me], splits=splits[self.me].tolist(), process_set=self.set
        )
        assert received.tolist() == splits[:, self.me].tolist()
        parts = []
        for rank, row in enumerate(splits):
            begin = int(row[:self.me].sum())
            parts.append(to_numpy(every[rank])[begin:begin + int(row[self.me])])
        expect(got, np.concatenate(parts), f"alltoall {self.dtype} of {splits.tolist()}")

    def gather_and_scatter(self) -> None:
        root = int(self.random.integers(self.size))
        rows = int(self.random.integers(0, 60))
        whole = small(self.random, (rows, 2), self.dtype)
        here = self.me == root
        share = hvd.scatter(whole if here else None, self.ranks[root], process_set=self.set)
        begin = sum(rows_of(rows, self.size)[:self.me])
        wanted = to_numpy(whole)[begin:begin + share.shape[0]]
        expect(share, wanted, f"scatter {self.dtype} of {rows} rows from {root}")
        back = hvd.gather(share, self.ranks[root], process_set=self.set)
        assert (back is not None) == here
        if back is not None:
            expect(back, to_numpy(whole), f"gather {self.dtype} of {rows} rows to {root}")

    def reduce(self) -> None:
        root = int(self.random.integers(self.size))
        op = OPS[self.random.integers(len(OPS))]
        every = self.inputs([(int(self.random.choice(LENGTHS)),)] * self.size)
        got = hvd.reduce(every[self.me], self.ranks[root], op=op, process_set=self.set)
        assert (got is not None) == (self.me == root)
        if got is not None:
            expect(got, model(op, np.stack([to_numpy(t) for t in every])), f"reduce {op}")

    def adasum(self) -> None:
        """Ranks with disjoint support add up, equal ranks give what each has."""
        length = int(self.random.choice([self.size, 64, 4099]))
        values = torch.from_numpy(self.random.standard_normal(length)).to(torch.float32)
        apart = torch.zeros(length)
        apart[self.me::self.size] = values[self.me::self.size]
        assert torch.allclose(hvd.allreduce(apart, op=hvd.Adasum, process_set=self.set), values)
        same = hvd.allreduce(values.clone(), op=hvd.Adasum, process_set=self.set)
        assert torch.allclose(same, values, rtol=1e-5)


KINDS = ["allreduce", "grouped_allreduce", "reducescatter", "allgather", "broadcast", "alltoall",
         "gather_and_scatter", "reduce", "adasum"]


def run_cases(seed: int, count: int) -> tuple[int, int]:
    """Runs random cases on the whole group and on a process set; (rank, cases of this rank)."""
    hvd.init()
    size = hvd.size()
    sets = [hvd.global_process_set]
    if size > 2:
        sets.append(hvd.add_process_set(list(range(0, size, 2))))
        sets.append(hvd.add_process_set([size - 2, size - 1]))
    random = np.random.default_rng(seed)
    done = 0
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        chosen = sets[random.integers(len(sets))]
        if chosen.included():
            getattr(Case(seed * 1000 + number, chosen), kind)()
            done += 1
    return hvd.rank(), done


def disagree(case: str, odd: bool) -> None:
    """One of two ranks that do not call the same: the odd one, or one of the others."""
    if case == "shape":
        hvd.allreduce(torch.ones(300 if odd else 400))
    elif case == "dtype":
        hvd.allreduce(torch.ones(3, dtype=torch.float64 if odd else torch.float32))
    elif case == "op":
        hvd.allreduce(torch.ones(3), op=hvd.Min if odd else hvd.Max)
    elif case == "root":
        hvd.broadcast(torch.ones(3), 1 if odd else 0)
    elif case == "bits":
        hvd.broadcast(torch.ones(3, dtype=torch.int32 if odd else torch.float32), 0)
    elif case == "scale":
        hvd.allreduce(torch.ones(3), prescale_factor=2.0 if odd else 1.0)
    elif case == "name":
        hvd.allreduce(torch.ones(3), name="b" if odd else "a")
    elif odd:
        hvd.allgather(torch.ones(3))
    else:
        hvd.broadcast(torch.ones(3), 0)
