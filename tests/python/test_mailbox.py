"""Messages between two ranks: order, tags, limits, and peers that are none."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from troupe.errors import HorovodInternalError, TroupeError

pytest.importorskip("torch")

from troupe.torch.distributed import _mailbox
from troupe.torch.distributed._mailbox import ANY, Mailbox

KEY = b"k" * 32
LIMIT_S = 20.0


def nobody_left() -> str:
    return ""


@pytest.fixture
def pair() -> Iterator[tuple[Mailbox, Mailbox]]:
    threads = threading.active_count()
    boxes = (Mailbox("127.0.0.1"), Mailbox("127.0.0.1"))
    for box in boxes:
        box.set_key(KEY)
    yield boxes
    for box in boxes:
        box.close()
        box.close()
    assert threading.active_count() == threads


def send(source: Mailbox, target: Mailbox, text: bytes, tag: int = 0, channel: int = 7) -> None:
    delivery = source.send(target.address, channel, 0, tag, memoryview(text))
    source.wait(delivery, LIMIT_S, nobody_left)


def receive(box: Mailbox, size: int, tag: int = 0, source: int = 0, channel: int = 7) -> bytes:
    room = bytearray(size)
    box.wait(box.receive(channel, source, tag, memoryview(room)), LIMIT_S, nobody_left)
    return bytes(room)


def test_messages_of_one_tag_keep_their_order(pair: tuple[Mailbox, Mailbox]) -> None:
    first, second = pair
    for number in range(50):
        send(first, second, b"%03d" % number, tag=number % 2)
    assert [receive(second, 3, tag=1) for _ in range(25)] == [b"%03d" % n for n in range(1, 50, 2)]
    assert [receive(second, 3, tag=0) for _ in range(25)] == [b"%03d" % n for n in range(0, 50, 2)]


def test_groups_and_sources_do_not_mix(pair: tuple[Mailbox, Mailbox]) -> None:
    first, second = pair
    send(first, second, b"one", channel=1)
    send(first, second, b"two", channel=2)
    assert receive(second, 3, channel=2) == b"two"
    waits = second.receive(2, ANY, 0, memoryview(bytearray(5)))
    assert not waits.done.is_set()
    send(first, second, b"three", channel=2)
    second.wait(waits, LIMIT_S, nobody_left)
    assert waits.came_from == 0


def test_a_sender_waits_when_too_much_was_not_asked_for(
    pair: tuple[Mailbox, Mailbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_mailbox, "UNEXPECTED_MAX", 1 << 20)
    first, second = pair
    size = 600_000  # Two of them are too many; a socket holds less than the rest.
    data = [bytes([n]) * size for n in range(30)]
    sent = [first.send(second.address, 7, 0, 0, memoryview(d)) for d in data]
    time.sleep(0.3)
    assert not sent[-1].done.is_set()
    assert second._kept_bytes <= 1 << 20
    assert [receive(second, size)[:1] for _ in data] == [d[:1] for d in data]
    first.wait(sent[-1], LIMIT_S, nobody_left)


def test_a_peer_that_is_gone_ends_a_receive(pair: tuple[Mailbox, Mailbox]) -> None:
    first, second = pair
    send(first, second, b"x")
    assert receive(second, 1) == b"x"
    waits = second.receive(7, 0, 0, memoryview(bytearray(1)))
    first.close()
    with pytest.raises(HorovodInternalError, match="the connection ended"):
        second.wait(waits, LIMIT_S, nobody_left)


def test_nothing_is_waited_for_without_end(pair: tuple[Mailbox, Mailbox]) -> None:
    waits = pair[0].receive(7, 1, 0, memoryview(bytearray(1)))
    with pytest.raises(TroupeError, match=r"not done after 0\.2 s"):
        pair[0].wait(waits, 0.2, nobody_left)
    with pytest.raises(HorovodInternalError, match="members have changed"):
        pair[0].wait(waits, LIMIT_S, lambda: "the members have changed")


def test_whoever_does_not_know_the_key_is_not_heard(
    pair: tuple[Mailbox, Mailbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_mailbox, "_HELLO_S", 0.5)
    target = pair[0]
    stranger = Mailbox("127.0.0.1")
    stranger.set_key(b"another" * 4)
    try:
        delivery = stranger.send(target.address, 7, 0, 0, memoryview(b"evil"))
        with pytest.raises(HorovodInternalError, match="the peer is gone"):
            stranger.wait(delivery, LIMIT_S, nobody_left)
    finally:
        stranger.close()
    with socket.create_connection(target.address) as silent:  # One that says nothing.
        silent.settimeout(LIMIT_S)
        assert len(silent.recv(16)) == 16
        assert silent.recv(1) == b""
    waits = target.receive(7, ANY, 0, memoryview(bytearray(4)))
    assert not waits.done.is_set()


def test_a_target_that_knows_another_key_is_not_told_anything() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        box = Mailbox("127.0.0.1")
        box.set_key(KEY)
        try:
            delivery = box.send(server.getsockname()[:2], 7, 0, 0, memoryview(b"secret"))
            peer, _ = server.accept()
            with peer:
                peer.settimeout(LIMIT_S)
                peer.sendall(b"n" * 16)
                hello = b""
                while len(hello) < 48:
                    hello += peer.recv(48)
                peer.sendall(b"p" * 32)
                assert peer.recv(64) == b""
            with pytest.raises(HorovodInternalError, match="does not know this group's key"):
                box.wait(delivery, LIMIT_S, nobody_left)
        finally:
            box.close()


def test_the_end_does_not_wait_for_a_host_that_does_not_answer() -> None:
    with contextlib.ExitStack() as held:
        silent = held.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1))
        for _ in range(4):  # Until the kernel answers nobody any more.
            one = held.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(silent.getsockname())
        box = Mailbox("127.0.0.1")
        box.set_key(KEY)
        delivery = box.send(silent.getsockname()[:2], 7, 0, 0, memoryview(b"x"))
        assert not delivery.done.wait(0.3)
        began = time.monotonic()
        box.close()
        assert time.monotonic() - began < _mailbox._CONNECT_S / 3
        with pytest.raises(HorovodInternalError, match="the peer is gone"):
            box.wait(delivery, LIMIT_S, nobody_left)
