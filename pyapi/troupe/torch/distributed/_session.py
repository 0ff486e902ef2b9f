"""The process groups of one epoch: the default one, what the others share with it, their ends."""

from __future__ import annotations

import datetime
import secrets
import socket
import struct
import time
import weakref
from collections.abc import Sequence
from typing import Any, Optional

import torch.distributed as dist

from troupe import _native, _runtime
from troupe._torchrun import listening_address
from troupe.errors import HorovodInternalError, TroupeError
from troupe.torch import _context
from troupe.torch.distributed import _rendezvous
from troupe.torch.distributed._mailbox import Address, Mailbox
from troupe.torch.distributed._process_group import BACKEND, ProcessGroup
from troupe.torch.distributed._seat import Seat
from troupe.torch.distributed._work import Completer

_CARD = struct.Struct("!16sqq32s")  # Address, its kind, port, key: 8 numbers of 8 bytes.
_NUMBERS = struct.Struct("!8q")
_CONNECT_SLICE_S = 5.0  # After which a rank that waits for rank 0 looks whether that is there.


class JoinFirst(HorovodInternalError):
    """This worker has no rank, or not any more: it joins the next view, and begins again."""


class Session:
    """What the process groups of an epoch have in common."""

    def __init__(self, context: _context.Context) -> None:
        self.context = context
        self.epoch = int(context.view["epoch"])
        self.completer = Completer()
        self.mailbox: Optional[Mailbox] = None
        self.addresses: list[Address] = []
        self.groups: list[weakref.ref[ProcessGroup]] = []
        self.teams: list[int] = []  # Of subgroups.
        self.closed = False
        if context.size > 1:
            self._meet()

    def _meet(self) -> None:
        """Every rank learns where the others take messages, and the first one's key."""
        host = listening_address()
        key = secrets.token_bytes(32)
        # The key is told to members alone, over connections that are proven already.
        mailbox = Mailbox(host)
        try:
            kind = 6 if ":" in mailbox.address[0] else 4
            family = socket.AF_INET6 if kind == 6 else socket.AF_INET
            packed = socket.inet_pton(family, mailbox.address[0]).ljust(16, b"\0")
            card = _CARD.pack(packed, kind, mailbox.address[1], key)
            rows = self.context.gather_ints(
                _NUMBERS.unpack(card), "torch.distributed: addresses for messages")
            cards = [_CARD.unpack(_NUMBERS.pack(*row)) for row in rows]
            mailbox.set_key(cards[0][3])
        except BaseException:
            mailbox.close()
            raise
        self.mailbox = mailbox
        for address, family_number, port, _ in cards:
            six = family_number == 6
            self.addresses.append((
                socket.inet_ntop(socket.AF_INET6 if six else socket.AF_INET,
                                 address[:16] if six else address[:4]), port))

    def the_mailbox(self) -> Mailbox:
        """For messages between two ranks."""
        if self.mailbox is None:
            raise ValueError("a group of one has nobody to send to")
        return self.mailbox

    def store(self, timeout_s: float) -> dist.Store:
        """A store that all ranks of the epoch see, served by rank 0."""
        context, mine = self.context, None
        host = listening_address()
        limit = datetime.timedelta(seconds=timeout_s)
        if context.rank == 0:
            mine = dist.TCPStore(host, 0, context.size, True, limit, False)
        port = 0 if mine is None else int(mine.port)
        rows = context.gather_ints([port], "torch.distributed: the store of rank 0")
        return mine if mine is not None else self._store_of_others(rows[0][0], timeout_s)

    def _store_of_others(self, port: int, timeout_s: float) -> dist.Store:
        """The same, from a rank that may die at any moment: torch tries until the time limit."""
        deadline = time.monotonic() + timeout_s
        while True:
            slice_s = min(_CONNECT_SLICE_S, max(0.1, deadline - time.monotonic()))
            try:
                store = dist.TCPStore(self.addresses[0][0], port, self.context.size, False,
                                      datetime.timedelta(seconds=slice_s), False)
            except RuntimeError as error:
                if self.context.group.over():
                    raise HorovodInternalError(f"the store of rank 0: {error}") from None
                if time.monotonic() > deadline:
                    raise
                continue
            store.set_timeout(datetime.timedelta(seconds=timeout_s))
            return store

    def over(self) -> bool:
        """Whether the epoch is over."""
        return (self.epoch != int(self.context.view["epoch"]) or bool(self.broken())
                or bool(self.context.group.over()))

    def broken(self) -> str:
        """Why the epoch is over, if a process group has heard of it."""
        alive = (ref() for ref in self.groups)
        return next((group.broken for group in alive if group is not None and group.broken), "")

    def close(self) -> None:
        """Ends threads and connections. Idempotent."""
        if self.closed:
            return
        self.closed = True
        for team in self.teams:
            self.context.group.drop_team(team)
        if self.mailbox is not None:
            self.mailbox.close()
        self.completer.close()


_session: Optional[Session] = None


def current() -> Optional[Session]:
    """That of the present default group; None if none was made here."""
    return _session


def end() -> None:
    """Ends the session and with it all process groups, whatever state they are in."""
    global _session
    session, _session = _session, None
    if session is not None:
        session.close()


def begin() -> Session:
    """The session of the view that this worker is in, which all its ranks begin.

    Raises:
        JoinFirst: it is in none yet. HorovodInternalError: a member has died.
    """
    global _session
    end()
    _context.init()
    context = _context.current()
    if context.provisional:
        raise JoinFirst("this worker joins a group that trains already, and has no rank in it yet")
    try:
        _session = session = Session(context)
    except HorovodInternalError as error:
        raise JoinFirst(str(error)) from None  # No session will tell that this was the epoch.
    return session


def present() -> bool:
    """Whether this process is in a group of Troupe's now."""
    return _session is not None and not _session.closed


def register() -> None:
    """Makes the backend known to torch.distributed; harmless when it is."""
    if not dist.is_available() or BACKEND.upper() in getattr(dist.Backend, "_plugins", {}):
        return
    _rendezvous.replace(_meet_by_environment)
    _rendezvous.replace_barrier(present)
    try:
        dist.Backend.register_backend(BACKEND, create, extended_api=True,
                                      devices=["cpu", "cuda"])
    except TypeError:  # torch before 2.1 has no devices there.
        dist.Backend.register_backend(BACKEND, create, extended_api=True)


def create(options: Any, backend_options: Any = None) -> ProcessGroup:
    """Makes a process group; torch.distributed calls it.

    Args:
        options: torch's description of the group: its ranks, this one's, its name and time limit.
        backend_options: ``pg_options`` of the caller; there are none.

    Raises:
        ValueError: rank or size are not those of this worker, or options are given.
        TroupeError: this worker joins a running group, and nothing here can wait for that.
    """
    if backend_options is not None:
        raise ValueError(f"the backend {BACKEND!r} has no pg_options")
    ranks = [int(rank) for rank in options.global_ranks_in_group]
    timeout_s = options.timeout.total_seconds()
    if not ranks:
        return _create_default(int(options.group_rank), int(options.group_size), timeout_s)
    return _create_subgroup(ranks, timeout_s, str(options.group_id))


def _meet_by_environment(timeout_s: float) -> Optional[tuple[dist.Store, int, int]]:
    """The store of ``init_method="env://"`` in a worker: rank 0's, found through the group.

    So no port has to be free beforehand, and nobody waits for a member that has died meanwhile.

    Returns:
        Store, rank and size; None in a process that is no worker of several.
    """
    runtime = _runtime.current()
    if runtime is None or not runtime.own_process:
        return None
    session = begin()
    return session.store(timeout_s), session.context.rank, session.context.size


def _create_default(rank: int, size: int, timeout_s: float) -> ProcessGroup:
    session = current()
    if session is None or session.groups or session.closed or session.over():
        session = begin()
    context = session.context
    if (rank, size) != (context.rank, context.size):  # With another init_method.
        problem = f"this worker is rank {context.rank} of {context.size}, not {rank} of {size}"
        if context.runtime is not _runtime.current() and context.group_name is None:
            problem = (f"this process is no worker of Troupe's and alone, not rank {rank} of "
                       f"{size}; start the script with `troupe run`, or in an Executor")
        raise ValueError(problem)
    seat = Seat(context, 0, list(range(size)), rank, timeout_s, session.completer)
    group = _finish(session, seat, "default")
    group._end = session.close
    return group


def _create_subgroup(ranks: Sequence[int], timeout_s: float, name: str) -> ProcessGroup:
    session = current()
    if session is None or session.closed:
        raise TroupeError("the default process group of this backend is gone; call "
                          "init_process_group() first")
    context = session.context
    team = 0
    if 1 < len(ranks) < context.size:
        with _native.collective_errors("new_group"):
            handle = context.group.add_team(sorted(ranks), True)
            team = int(context.group.wait(handle, timeout_s))
        session.teams.append(team)
    seat = Seat(context, team, list(ranks), list(ranks).index(context.rank), timeout_s,
                session.completer)
    return _finish(session, seat, name)


def _finish(session: Session, seat: Seat, name: str) -> ProcessGroup:
    group = ProcessGroup(seat, session.the_mailbox, lambda: session.addresses, name)
    session.groups.append(weakref.ref(group))
    return group
