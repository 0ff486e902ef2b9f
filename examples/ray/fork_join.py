"""Recursive fork and join, as one writes it for Ray: tasks that start tasks and wait for them.

A merge sort whose halves are tasks, and the queens on a chess board, counted branch by branch. The
tree of tasks is deeper than there are CPUs: who waits for its children lends them its own.
`python fork_join.py [NUMBERS]`; with `import ray` it runs on Ray.
"""

import sys

import numpy as np

import troupe as ray

SMALL = 20_000
BOARD, FORKED_ROWS = 8, 2


@ray.remote
def merge_sort(numbers):
    if len(numbers) <= SMALL:
        return np.sort(numbers)
    middle = len(numbers) // 2
    halves = numbers[:middle], numbers[middle:]
    left, right = ray.get([merge_sort.remote(half) for half in halves])
    places = np.searchsorted(left, right, side="right") + np.arange(len(right))
    merged = np.empty(len(numbers), dtype=numbers.dtype)
    is_right = np.zeros(len(numbers), dtype=bool)
    is_right[places] = True
    merged[is_right], merged[~is_right] = right, left
    return merged


def safe(queens, column):
    return all(column != c and abs(column - c) != len(queens) - row for row, c in enumerate(queens))


@ray.remote
def count_queens(queens=()):
    """In how many ways the rows that are left can be filled."""
    if len(queens) < FORKED_ROWS:
        return sum(ray.get([count_queens.remote((*queens, column)) for column in range(BOARD)
                            if safe(queens, column)]))
    return count_here(queens)


def count_here(queens):
    if len(queens) == BOARD:
        return 1
    return sum(count_here((*queens, column)) for column in range(BOARD) if safe(queens, column))


def main(count):
    ray.init(num_cpus=2)
    numbers = np.random.default_rng(7).integers(0, 1_000_000, size=count)
    merged = ray.get(merge_sort.remote(numbers))
    print("sorted:", len(merged), bool((merged == np.sort(numbers)).all()))
    print(f"queens on a board of {BOARD}:", ray.get(count_queens.remote()))
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
