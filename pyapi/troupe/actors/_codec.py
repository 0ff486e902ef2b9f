"""How arguments, results and exceptions of Python become bytes and back.

A payload is a pickle of protocol 5 and its out-of-band buffers: small ones follow it, large ones
are files of the host (``_objects``). Little-endian: magic "TPy1", u8 kind, u8 flags, u16 files, u32
buffers; of each file u64 bytes, u16 length of its name, its name; of each buffer u8 whether it is
a file, u64 bytes; if it refers to something u64 length of the table of that (``_travel``), the
table; u64 length of the pickle; the pickle; the buffers, aligned to 16 bytes; if it has a home the
address whom other hosts ask for the files, u32 length of that. The native part reads the names of
the files, the table and the home (pyapi/actor_calls.cpp).

A pickle and small buffers of over 1 MiB together are a buffer of another pickle that loads them, so
that they lie in a file, too.
"""

from __future__ import annotations

import io
import mmap
import pickle
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import cloudpickle

from troupe import _payload
from troupe.actors import _pulls, _travel
from troupe.actors._objects import THRESHOLD_BYTES, ObjectStore
from troupe.errors import ActorTaskError, SerializationError, task_error

MAGIC = b"TPy1"
VALUE, ERROR, STREAM, SEVERAL, END, ELSEWHERE = 0, 1, 2, 3, 4, 5
_RECEIVER_OWNS, _REFERS, _PINNED, _HAS_HOME = 1, 2, 4, 8
_FLAGS_AT = 5
_HEADER = struct.Struct("<4sBBHI")
_SMALL = struct.Struct("<4sB7sQ")  # Of a payload without flags, files and buffers:
_NOTHING = bytes(7)
_FILE = struct.Struct("<QH")
_BUFFER = struct.Struct("<BQ")
_LENGTH = struct.Struct("<Q")
_HOME = struct.Struct("<I")
_LARGE_PICKLE_BYTES = 1 << 20
_ALIGN = 16
_SMALL_CONTAINER = 64
_SMALL_TEXT = 4096
_ATOMS = frozenset({int, float, str, bytes, bytearray, bool, type(None)})
_SIZED = frozenset({str, bytes, bytearray})
_FLAT = _ATOMS - _SIZED
_TEXTS = frozenset({str, bytes})


class TooLargeError(Exception):
    """A value has more bytes than it may have."""


@dataclass
class Encoded:
    """Bytes to be sent, and the files that they name."""

    payload: bytes
    files: list[str]
    token: int = 0  # Of what it refers to, which is pinned until it is over.
    contents: Optional[_travel.Contents] = None  # Or is kept as long as this.


def encode(
    value: Any,
    *,
    kind: int = VALUE,
    store: Optional[ObjectStore] = None,
    owner: Optional[str] = None,
    refs: Optional[_travel.References] = None,
    to: Optional[str] = "",
    beside: Sequence[Any] = (), most_bytes: Optional[int] = None,
) -> Encoded:
    """Pickles a value; without a store all buffers travel inside.

    Args:
        owner: to whom its files belong (``ObjectStore.owner``); ``None``: to this process.
        refs: who counts what it refers to; ``None``: it is not counted.
        to: the process that it is sent to, "" if that is not known; ``None``: it stays here.
        beside: what it refers to beside what shows when it is pickled.
        most_bytes: it may have.

    Raises:
        Whatever pickling raises; ObjectStoreFullError; TooLargeError: it has more bytes than that.
    """
    if not beside and _small(value) and (small := _of_small(value, kind)):
        return Encoded(small, [])
    blob, buffers, found = _pickled(value, refs is not None, store is not None)
    if most_bytes is not None and sum(b.raw().nbytes for b in buffers) + len(blob) > most_bytes:
        raise TooLargeError
    table, token, contents, refers = b"", 0, None, 0
    if refs is not None and (found is not None or beside):
        found = found or _travel.Found()
        found.items += beside
        if found.items:
            if to is None:
                table, contents = refs.keep(found)
            else:
                table, token = refs.pin(found, to)
            refers = _REFERS | (_PINNED if token else 0)
            table = _LENGTH.pack(len(table)) + table
    if not buffers:
        return Encoded(
            _HEADER.pack(MAGIC, kind, refers, 0, 0) + table + _LENGTH.pack(len(blob)) + blob, [],
            token, contents)
    files: list[str] = []
    file_table: list[bytes] = []
    buffer_table: list[bytes] = []
    inline: list[memoryview] = []
    try:
        for buffer in buffers:
            view = buffer.raw()
            shared = store is not None and view.nbytes >= THRESHOLD_BYTES
            buffer_table.append(_BUFFER.pack(shared, view.nbytes))
            if store is None or not shared:
                inline.append(view)
                continue
            files.append(store.write(view, owner))
            name = files[-1].encode()
            file_table.append(_FILE.pack(view.nbytes, len(name)) + name)
    except BaseException:
        if store is not None:
            store.discard(files)
        if refs is not None:
            refs.over(token)
        raise
    home = store.home if store is not None and files else b""
    flags = refers | (_RECEIVER_OWNS if owner is not None and files else 0)
    flags |= _HAS_HOME if home else 0
    header = _HEADER.pack(MAGIC, kind, flags, len(files), len(buffers))
    parts: list[Any] = [header, *file_table, *buffer_table, table, _LENGTH.pack(len(blob)), blob]
    return Encoded(_joined(parts, inline, home), files, token, contents)


def _joined(parts: list[Any], inline: list[memoryview], home: bytes) -> bytes:
    at = sum(map(len, parts))
    for view in inline:
        padding = -at % _ALIGN
        parts += [b"\0" * padding, view]
        at += padding + view.nbytes
    if home:
        parts += [home, _HOME.pack(len(home))]
    return b"".join(parts)


@dataclass
class Decoded:
    """A payload taken apart; ``load`` makes the value."""

    kind: int
    files: list[tuple[str, int]]
    receiver_owns: bool
    blob: memoryview
    buffers: list[Any]  # memoryview, or the index of a file
    table: Optional[memoryview] = None  # Of what it refers to.
    pinned: bool = False  # Its sender waits until that is held.
    home: bytes = b""  # Whom other hosts ask for its files.

    def load(self, store: Optional[ObjectStore]) -> Any:
        """The value; arrays are read-only views of the payload or of shared files."""
        buffers = []
        for buffer in self.buffers:
            if isinstance(buffer, int):
                if store is None:
                    raise SerializationError(
                        "its large buffers are in shared memory, which this process cannot use; "
                        "see the warning of when it started")
                buffer = _pulls.map_file(store, self.home, *self.files[buffer])
            buffers.append(buffer)
        value = pickle.loads(self.blob, buffers=buffers)
        return _pulls.value_of(value) if self.kind == ELSEWHERE else value

    def elsewhere(self) -> Any:
        """The ref of a value that has stayed with its maker."""
        return pickle.loads(self.blob)


def is_payload(data: bytes) -> bool:
    """Whether these bytes are a payload of Python, not MessagePack of C++."""
    return data[:4] == MAGIC


def take_apart(payload: Any) -> Decoded:
    """Reads the layout of a payload.

    Raises:
        SerializationError: these are other bytes.
    """
    view = memoryview(payload)
    if len(view) >= _SMALL.size:
        magic, kind, counts, length = _SMALL.unpack_from(view, 0)
        if magic == MAGIC and counts == _NOTHING:  # A pickle alone, as of most calls.
            return Decoded(kind, [], False, view[_SMALL.size:_SMALL.size + length], [])
    try:
        magic, kind, flags, file_count, buffer_count = _HEADER.unpack_from(view, 0)
        if magic != MAGIC:
            raise SerializationError("these bytes are no payload of Python")
        at = _HEADER.size
        files = []
        for _ in range(file_count):
            size, length = _FILE.unpack_from(view, at)
            at += _FILE.size
            files.append((str(view[at:at + length], "ascii"), size))
            at += length
        table = [_BUFFER.unpack_from(view, at + i * _BUFFER.size) for i in range(buffer_count)]
        at += buffer_count * _BUFFER.size
        refers = None
        if flags & _REFERS:
            (length,) = _LENGTH.unpack_from(view, at)
            at += _LENGTH.size
            refers = view[at:at + length]
            at += length
        (length,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
    except struct.error as error:
        raise SerializationError(f"a payload that is cut short: {error}") from error
    blob = view[at:at + length]
    at += length
    buffers: list[Any] = []
    next_file = 0
    for shared, size in table:
        if shared:
            buffers.append(next_file)
            next_file += 1
            continue
        at += -at % _ALIGN
        buffers.append(view[at:at + size].toreadonly())
        at += size
    home = b""
    if flags & _HAS_HOME:
        (length,) = _HOME.unpack_from(view, len(view) - _HOME.size)
        home = bytes(view[-_HOME.size - length:-_HOME.size])
    return Decoded(kind, files, bool(flags & _RECEIVER_OWNS), blob, buffers, refers,
                   bool(flags & _PINNED), home)


def is_elsewhere(data: bytes) -> bool:
    """Whether these bytes say where a value is, which has stayed with its maker."""
    return data[:4] == MAGIC and data[4] == ELSEWHERE


def parts_of(data: bytes) -> list[bytes]:
    """The payloads in that of several values; else it alone."""
    if data[:4] != MAGIC or data[4] != SEVERAL:
        return [data]
    return [bytes(part) for part in take_apart(data).load(None)]


def refers(data: bytes) -> bool:
    """Whether a payload refers to something."""
    return data[:4] == MAGIC and bool(data[_FLAGS_AT] & _REFERS)


def unpinned(data: bytes) -> bytes:
    """The payload for another receiver than the one that it was pinned for."""
    if not data[_FLAGS_AT] & _PINNED:
        return data
    return data[:_FLAGS_AT] + bytes([data[_FLAGS_AT] & ~_PINNED]) + data[_FLAGS_AT + 1:]


def rehomed(data: bytes, store: Optional[ObjectStore]) -> bytes:
    """The payload with this process as the one whom other hosts ask, if its files are here."""
    if store is None or not data[_FLAGS_AT] & _HAS_HOME:
        return data
    decoded = take_apart(data)
    if decoded.home == store.home or any(store.here(name) is None for name, _ in decoded.files):
        return data
    end = len(data) - _HOME.size - len(decoded.home)
    return data[:end] + store.home + _HOME.pack(len(store.home))


def _inline_bytes(buffer: pickle.PickleBuffer) -> int:
    size = buffer.raw().nbytes
    return size if size < THRESHOLD_BYTES else 0


class _Whole:
    """A large pickle and all its small buffers, which are one buffer of another pickle."""

    def __init__(self, blob: bytes, buffers: list[pickle.PickleBuffer]) -> None:
        parts: list[Any] = [blob]
        self._places: list[tuple[int, int]] = [(0, len(blob))]  # Of large ones: -1, which.
        self._large: list[pickle.PickleBuffer] = []
        at = len(blob)
        for buffer in buffers:
            view = buffer.raw()
            if view.nbytes >= THRESHOLD_BYTES:
                self._places.append((-1, len(self._large)))
                self._large.append(buffer)
                continue
            padding = -at % _ALIGN
            parts += [b"\0" * padding, view]
            self._places.append((at + padding, view.nbytes))
            at += padding + view.nbytes
        self._joined = b"".join(parts) if len(parts) > 1 else blob

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return _load_whole, (pickle.PickleBuffer(self._joined), self._places, self._large)


def _load_whole(joined: Any, places: list[tuple[int, int]], large: list[Any]) -> Any:
    view = memoryview(joined).toreadonly()
    blob, *buffers = [
        large[size] if at < 0 else view[at:at + size] for at, size in places]
    return pickle.loads(blob, buffers=buffers)


class Resolved:
    """The payload of a ref in place of the ref: its receiver sees the value."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return (load_resolved, (pickle.PickleBuffer(self.payload),))


class Awaited:
    """A ref whose value is not here, and may be lost until it is read: its receiver asks for it."""

    def __init__(self, ref: Any) -> None:
        self.ref = ref

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return (_pulls.value_of, (self.ref,))


def load_resolved(payload: Any) -> Any:
    """What unpickling a :class:`Resolved` gives."""
    from troupe.actors import _session

    return take_apart(payload).load(_session.current_store())


def explain(error: Exception, what: str, values: dict[str, Any]) -> SerializationError:
    """The error of pickling as one that names the argument, or the part of it, that is to blame."""
    for label, value in values.items():
        culprit = _payload._check(value, label, set(), 0)
        if culprit:
            return SerializationError(
                f"cannot send {what}: {culprit} cannot be pickled ({error}). Create such objects "
                "where they are used, or pass what is needed to create them"
            )
    return SerializationError(f"cannot send {what}: it cannot be pickled ({error})")


def encode_error(error: BaseException, skip_frames: int = 0) -> bytes:
    """An exception with its traceback as a payload of kind ERROR."""
    frames = error.__traceback__
    for _ in range(skip_frames):
        if frames is not None and frames.tb_next is not None:
            frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    blob: Optional[bytes]
    try:
        blob = cloudpickle.dumps(error)
        pickle.loads(blob)
    except Exception:
        blob = None
    return encode((message, text, type(error).__name__, blob), kind=ERROR).payload


def decode_error(decoded: Decoded, actor: str, node: str) -> ActorTaskError:
    """The exception that a payload of kind ERROR stands for."""
    message, text, name, blob = decoded.load(None)
    return task_error(message, blob, actor=actor, node=node, remote_traceback=text, exc_type=name)


# ---- pickling ----


def _pickled(
    value: Any, noted: bool, in_files: bool
) -> tuple[bytes, list[pickle.PickleBuffer], Optional[_travel.Found]]:
    """The pickle, its buffers and what was noted. ``in_files``: large buffers will lie in files."""
    buffers: list[pickle.PickleBuffer] = []
    blob, found = _dumps(value, buffers.append, noted)
    if in_files and len(blob) + sum(map(_inline_bytes, buffers)) >= _LARGE_PICKLE_BYTES:
        whole, buffers = _Whole(blob, buffers), []
        blob = pickle.dumps(whole, protocol=5, buffer_callback=buffers.append)
    return blob, buffers, found


def _dumps(
    value: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any], noted: bool
) -> tuple[bytes, Optional[_travel.Found]]:
    """The pickle, and what was noted, if it is to be."""
    large: list[Any] = []
    if _plain(value, large):  # By value, whoever defined it: the C pickler will do.
        lifted = _lifted(value, {}) if large else value
        return pickle.dumps(lifted, protocol=5, buffer_callback=buffer_callback), None
    with io.BytesIO() as file:
        pickler = _Pickler(file, protocol=5, buffer_callback=buffer_callback)
        if not noted:
            pickler.dump(value)
            return file.getvalue(), None
        found = _travel.Found()
        with found.noting():
            pickler.dump(value)
        return file.getvalue(), found


def _small(value: Any) -> bool:
    """Whether it is made of a few small values of these types alone, as most are."""
    kind = type(value)
    if kind is tuple or kind is list or kind is dict:
        if len(value) > _SMALL_CONTAINER:
            return False
        for item in value:
            kind = type(item)
            if kind in _FLAT or (kind in _TEXTS and len(item) < _SMALL_TEXT):
                continue
            if (kind is tuple or kind is list or kind is dict) and not item:
                continue
            if not (kind is tuple and _all_flat(item)):
                return False
        return type(value) is not dict or _all_flat(tuple(value.values()))
    return kind in _FLAT or (kind in _TEXTS and len(value) < _SMALL_TEXT)


def _of_small(value: Any, kind: int) -> bytes:
    """Its payload; none if it is large after all: a number may be."""
    blob = pickle.dumps(value, protocol=5)
    if len(blob) >= _LARGE_PICKLE_BYTES:
        return b""
    return _SMALL.pack(MAGIC, kind, _NOTHING, len(blob)) + blob


def _all_flat(values: tuple[Any, ...]) -> bool:
    if len(values) > _SMALL_CONTAINER:
        return False
    for value in values:
        kind = type(value)
        if kind not in _FLAT and not (kind in _TEXTS and len(value) < _SMALL_TEXT):
            return False
    return True


def _plain(value: Any, large: list[Any], depth: int = 0) -> bool:
    """Whether it is made of these types alone; what has large bytes is added to ``large``."""
    kind = type(value)
    if kind in _ATOMS:
        if kind in _SIZED and len(value) >= THRESHOLD_BYTES:
            large.append(value)
        return True
    if kind.__module__ == "numpy":
        return kind.__name__ == "ndarray" and not value.dtype.hasobject
    if depth > 3 or kind not in (tuple, list, dict) or len(value) > _SMALL_CONTAINER:
        return False
    for item in value:  # Keys, of a dict; no generator: every call comes here.
        if type(item) not in _FLAT and not _plain(item, large, depth + 1):
            return False
    return kind is not dict or all(_plain(item, large, depth + 1) for item in value.values())


class _Lifted:
    """Large bytes, or text, whose pickle has them out of band; what is read is equal to them."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce_ex__(self, protocol: Any) -> tuple:
        if type(self._value) is str:
            data = self._value.encode("utf-8", "surrogatepass")
            return str, (pickle.PickleBuffer(data), "utf-8", "surrogatepass")
        return type(self._value), (pickle.PickleBuffer(self._value),)


def _lifted(value: Any, made: dict[int, Any]) -> Any:
    """A plain value with its large bytes lifted; what it has twice it still has twice."""
    kind = type(value)
    if kind in _SIZED:
        if len(value) < THRESHOLD_BYTES:
            return value
        fresh: Any = _Lifted(value)
    elif kind not in (tuple, list, dict):
        return value
    elif id(value) in made:
        return made[id(value)]
    elif kind is dict:
        fresh = {k: _lifted(v, made) for k, v in value.items()}
    else:
        fresh = kind(_lifted(item, made) for item in value)
    return made.setdefault(id(value), fresh)


class _Pickler(cloudpickle.CloudPickler):
    """cloudpickle, with the memory of CPU tensors out of band."""

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.Tensor and _shareable(torch, obj):
            data = obj.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
            name = str(obj.dtype).rpartition(".")[2]
            raw = pickle.PickleBuffer(data.view(torch.uint8).numpy())
            return _load_tensor, (raw, name, tuple(obj.shape), obj.requires_grad)
        return super().reducer_override(obj)


def _shareable(torch: Any, tensor: Any) -> bool:
    return (tensor.device.type == "cpu" and tensor.layout is torch.strided
            and not tensor.is_quantized and tensor.numel() > 0)


def _load_tensor(raw: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch

    # A tensor cannot be read-only: writing must reach neither the sender nor unmapped memory.
    base = memoryview(raw).obj
    memory = base if isinstance(base, mmap.mmap) else bytearray(raw)
    tensor = torch.frombuffer(memory, dtype=getattr(torch, dtype)).reshape(shape)
    return tensor.requires_grad_() if requires_grad else tensor
