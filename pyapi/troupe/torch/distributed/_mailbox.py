"""Messages between two ranks: any number in flight, in any order, matched by their tags.

Each rank listens; who sends to it connects once and proves that it knows the key of the epoch. A
message is written to the connection as soon as those before it are, whether the receiver waits for
it or not. One that comes before it is asked for is kept, up to a limit in bytes; beyond it the
connection is not read, so that the sender waits.

**Thread:** any; one thread per connection reads or writes. Owns: the sockets, the threads.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import queue
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

from troupe.errors import HorovodInternalError, TroupeError

UNEXPECTED_MAX = 256 << 20  # Bytes of messages that nobody has asked for yet.
_HELLO_S = 30.0  # Who does not prove itself within is cut off; a busy peer may take long.
_STRANGERS_MAX = 64  # Connections that have not proved themselves.
_CONNECT_S = 30.0
_SLICE_S = 0.1
_NONCE = 16
_HEADER = struct.Struct("!QiqQ")  # Channel, source rank, tag, bytes.
_CHUNK = 1 << 20
ANY = -1  # Source of a receive that takes what comes first.

Address = tuple[str, int]


@dataclass(eq=False)
class Receipt:
    """A receive that waits for its message."""

    channel: int
    source: int
    tag: int
    into: memoryview
    done: threading.Event
    error: Optional[Exception] = None
    came_from: int = -1


@dataclass(eq=False)
class Delivery:
    """A message on its way out."""

    header: bytes
    data: memoryview
    done: threading.Event
    error: Optional[Exception] = None


@dataclass(eq=False)
class _Kept:
    channel: int
    source: int
    tag: int
    data: bytearray


class Mailbox:
    """One rank's end of all its connections in an epoch.

    Args:
        host: address to listen at. Nobody is let in before :meth:`set_key`.
    """

    def __init__(self, host: str) -> None:
        self._key = b""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        self.address: Address = self._listener.getsockname()[:2]
        self._lock = threading.Condition()
        self._wanted: list[Receipt] = []
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._outgoing: dict[Address, queue.SimpleQueue[Optional[Delivery]]] = {}
        self._sockets: set[socket.socket] = {self._listener}
        self._closed = False
        self._strangers = 0
        self._threads: list[threading.Thread] = []
        self._start(self._accept, "troupe-p2p-accept")

    def set_key(self, key: bytes) -> None:
        """The key that all ranks of the epoch share, and nobody else knows."""
        with self._lock:
            self._key = key
            self._lock.notify_all()

    # -- what ranks do --------------------------------------------------------------------------

    def send(self, address: Address, channel: int, source: int, tag: int,
             data: memoryview) -> Delivery:
        """Begins to send; ``data`` must not change until the delivery is done."""
        delivery = Delivery(_HEADER.pack(channel, source, tag, data.nbytes), data,
                            threading.Event())
        with self._lock:
            if self._closed:
                raise HorovodInternalError("send: the epoch of this process group is over")
            waiting = self._outgoing.get(address)
            if waiting is None:
                waiting = self._outgoing[address] = queue.SimpleQueue()
                self._start(lambda: self._write(address, waiting), "troupe-p2p-send")
        waiting.put(delivery)
        return delivery

    def receive(self, channel: int, source: int, tag: int, into: memoryview) -> Receipt:
        """Begins to receive; messages of one source and tag come in the order of sending."""
        receipt = Receipt(channel, source, tag, into, threading.Event())
        with self._lock:
            if self._closed:
                raise HorovodInternalError("recv: the epoch of this process group is over")
            for kept in self._kept:
                if _fits(receipt, kept.channel, kept.source, kept.tag):
                    self._kept.remove(kept)
                    self._kept_bytes -= len(kept.data)
                    _fill(receipt, kept)
                    self._lock.notify_all()
                    return receipt
            self._wanted.append(receipt)
            self._lock.notify_all()
        return receipt

    def wait(self, item: Any, limit: float, alive: Callable[[], str]) -> None:
        """Waits for a delivery or a receipt.

        Args:
            limit: seconds.
            alive: says why nothing will come any more, if that is so.

        Raises:
            HorovodInternalError: the peer is gone, or the epoch is over.
            TroupeError: nothing came within ``limit``.
        """
        deadline = time.monotonic() + limit
        while not item.done.wait(_SLICE_S):
            problem = alive()
            if problem:
                raise HorovodInternalError(problem)
            if time.monotonic() > deadline:
                raise TroupeError(
                    f"a message between two ranks was not done after {limit:g} s; does its other "
                    "side call send or recv with the same tag?")
        if item.error is not None:
            raise item.error

    def close(self) -> None:
        """Ends the connections and threads; what is in flight fails. Idempotent."""
        with self._lock:
            self._closed = True
            self._fail(HorovodInternalError("the epoch of this process group is over"))
            for waiting in self._outgoing.values():
                waiting.put(None)
            sockets, threads = list(self._sockets), list(self._threads)
            self._lock.notify_all()
        for one in sockets:
            _end(one)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    # -- threads --------------------------------------------------------------------------------

    def _start(self, body: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=body, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _keep(self, one: socket.socket) -> bool:
        with self._lock:
            if self._closed:
                return False
            self._sockets.add(one)
            return True

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            if not self._keep(peer):
                _end(peer)
                return
            with self._lock:
                if self._strangers >= _STRANGERS_MAX:
                    self._sockets.discard(peer)
                    _end(peer)
                elif not self._closed:
                    self._strangers += 1
                    self._start(functools.partial(self._read, peer), "troupe-p2p-receive")

    def _read(self, peer: socket.socket) -> None:
        sources: set[tuple[int, int]] = set()
        try:
            peer.settimeout(_HELLO_S)
            try:
                if not self._check(peer):
                    return
            finally:
                with self._lock:
                    self._strangers -= 1
            peer.settimeout(None)
            while True:
                header = _read_exactly(peer, bytearray(_HEADER.size))
                channel, source, tag, size = _HEADER.unpack(header)
                sources.add((channel, source))
                self._take(peer, channel, source, tag, size)
        except (OSError, EOFError) as error:
            with self._lock:
                self._fail(HorovodInternalError(f"recv: the connection ended: {error}"), sources)
        finally:
            self._let_go(peer)

    def _check(self, peer: socket.socket) -> bool:
        """Each side proves that it knows the key, with a number that the other has chosen."""
        mine = os.urandom(_NONCE)
        peer.sendall(mine)
        theirs = bytes(_read_exactly(peer, bytearray(_NONCE)))
        proof = bytes(_read_exactly(peer, bytearray(32)))
        with self._lock:  # A peer may know it a moment before this rank does.
            self._lock.wait_for(lambda: self._key or self._closed, _HELLO_S)
        wanted = _proof(self._key, b"sender", mine + theirs)
        if not self._key or not hmac.compare_digest(proof, wanted):
            return False
        peer.sendall(_proof(self._key, b"receiver", mine + theirs))
        return True

    def _take(self, peer: socket.socket, channel: int, source: int, tag: int, size: int) -> None:
        with self._lock:
            while True:
                receipt = next((r for r in self._wanted if _fits(r, channel, source, tag)), None)
                room = self._kept_bytes + size <= UNEXPECTED_MAX or not self._kept
                if receipt is not None or room or self._closed:
                    break
                self._lock.wait()
            if self._closed:
                raise EOFError("closed")
            if receipt is not None:
                self._wanted.remove(receipt)
            else:
                self._kept_bytes += size
        if receipt is None:
            self._store(peer, _Kept(channel, source, tag, bytearray(size)))
            return
        try:
            receipt.came_from = source
            if receipt.into.nbytes != size:
                receipt.error = _wrong_size(receipt.into.nbytes, size, source)
                _read_exactly(peer, bytearray(size))
            else:
                _read_exactly(peer, receipt.into)
        except (OSError, EOFError) as error:
            receipt.error = HorovodInternalError(f"recv: rank {source} is gone: {error}")
            raise
        finally:
            receipt.done.set()

    def _store(self, peer: socket.socket, kept: _Kept) -> None:
        try:
            _read_exactly(peer, kept.data)
        except (OSError, EOFError):
            with self._lock:
                self._kept_bytes -= len(kept.data)
            raise
        with self._lock:
            receipt = next(
                (r for r in self._wanted if _fits(r, kept.channel, kept.source, kept.tag)), None)
            if receipt is None:
                self._kept.append(kept)
                return
            self._wanted.remove(receipt)
            self._kept_bytes -= len(kept.data)
            _fill(receipt, kept)

    def _write(self, address: Address, waiting: queue.SimpleQueue[Optional[Delivery]]) -> None:
        peer: Optional[socket.socket] = None
        problem: Optional[Exception] = None
        while True:
            delivery = waiting.get()
            if delivery is None:
                break
            try:
                if peer is None and problem is None:
                    peer = self._connect(address)
                if peer is not None:
                    peer.sendall(delivery.header)
                    peer.sendall(delivery.data)
            except (OSError, EOFError) as error:
                problem = error
                if peer is not None:
                    self._let_go(peer)
                    peer = None
            if problem is not None:
                delivery.error = HorovodInternalError(f"send: the peer is gone: {problem}")
            delivery.done.set()
        if peer is not None:
            self._let_go(peer)

    def _connect(self, address: Address) -> socket.socket:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        peer = socket.socket(family, socket.SOCK_STREAM)
        if not self._keep(peer):  # From here on close() ends it, in a host that is gone, too.
            _end(peer)
            raise EOFError("closed")
        try:
            peer.settimeout(_CONNECT_S)
            peer.connect(address)
            self._prove(peer)
        except BaseException:
            self._let_go(peer)
            raise
        return peer

    def _prove(self, peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        theirs = bytes(_read_exactly(peer, bytearray(_NONCE)))
        mine = os.urandom(_NONCE)
        peer.sendall(mine + _proof(self._key, b"sender", theirs + mine))
        proof = bytes(_read_exactly(peer, bytearray(32)))
        if not hmac.compare_digest(proof, _proof(self._key, b"receiver", theirs + mine)):
            raise ConnectionError("what listens there does not know this group's key")
        peer.settimeout(None)

    def _let_go(self, peer: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(peer)
        _end(peer)

    def _fail(self, error: Exception, sources: Optional[set[tuple[int, int]]] = None) -> None:
        """Fails what waits for these sources, or for anybody. With the lock held."""
        kept = []
        for receipt in self._wanted:
            if sources is None or (receipt.channel, receipt.source) in sources:
                receipt.error = error
                receipt.done.set()
            else:
                kept.append(receipt)
        self._wanted = kept


def _fits(receipt: Receipt, channel: int, source: int, tag: int) -> bool:
    return (receipt.channel == channel and receipt.tag == tag
            and receipt.source in (ANY, source))


def _fill(receipt: Receipt, kept: _Kept) -> None:
    receipt.came_from = kept.source
    if receipt.into.nbytes != len(kept.data):
        receipt.error = _wrong_size(receipt.into.nbytes, len(kept.data), kept.source)
    else:
        receipt.into[:] = kept.data
    receipt.done.set()


def _wrong_size(wanted: int, came: int, source: int) -> Exception:
    return ValueError(f"recv: rank {source} sent {came} bytes, and the tensor here has {wanted}; "
                      "shape and dtype must be alike on both sides")


def _proof(key: bytes, side: bytes, nonces: bytes) -> bytes:
    return hmac.new(key, side + nonces, hashlib.sha256).digest()


def _read_exactly(peer: socket.socket, into: Any) -> Any:
    view = memoryview(into).cast("B") if memoryview(into).nbytes else memoryview(b"")
    done = 0
    while done < view.nbytes:
        count = peer.recv_into(view[done:done + _CHUNK])
        if count == 0:
            raise EOFError("the other side has closed")
        done += count
    return into


def _end(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    one.close()
