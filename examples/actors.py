"""Actors and tasks in Python: the quick start of docs/actors.md."""
import numpy as np

import troupe


@troupe.remote
class Account:
    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.balance = 0

    def pay_in(self, amount: int) -> int:
        if amount <= 0:
            raise ValueError(f"{amount} is no amount")
        self.balance += amount
        return self.balance

    def history(self, months: int):
        for month in range(months):
            yield month, self.balance


@troupe.remote
def total(array: np.ndarray) -> float:
    return float(array.sum())


def main() -> None:
    account = Account.remote("Ada")  # In a process of its own.
    refs = [account.pay_in.remote(amount) for amount in (10, 20, 30)]
    print("balances:", troupe.get(refs))
    try:
        troupe.get(account.pay_in.remote(-5))
    except ValueError as error:  # What the method raised, with its traceback.
        print("refused:", error.__cause__)
    for ref in account.history.remote(2):  # As they come.
        month, balance = troupe.get(ref)
        print("month", month, "balance", balance)
    data = troupe.put(np.ones(1_000_000))  # Written once, read in place by both.
    print("totals:", troupe.get([total.remote(data), total.options(num_cpus=0.5).remote(data)]))
    Account.options(name="savings", lifetime="detached").remote("Ada")  # Nobody need hold it.
    print("by name:", troupe.get(troupe.get_actor("savings").pay_in.remote(1)))


if __name__ == "__main__":
    main()
