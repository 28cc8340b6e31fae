"""Blocks of bytes that outlive the process: KV cache of any engine, in a folder.

    with Store("/var/cache/blocks") as store:
        store.put(key, [layer0, layer1], namespace="tenant", parent=before)
        store.commit()                                    # durable and known from here on
        lease = store.match([key, next_key], namespace="tenant")
        for index in range(len(lease)):                   # the longest prefix there is
            parts = lease.get(index)                      # verified; Damaged is a miss

The store knows keys and bytes and nothing of models. Keys are 16 bytes: a wide hash of everything the bytes depend on, chained over
the prefix. Any number of threads may use a store; put, commit and get let others run meanwhile.

It loads libgalley_store.so (C interface: galley/store.h): the one beside this file, or that of the variable GALLEY_STORE_LIBRARY, or the
system's.
"""

import ctypes
import ctypes.util
import os

__all__ = ["Damaged", "Lease", "LeaseOver", "Refused", "Store", "StoreError", "Unavailable"]

_ABI = 1
_PARTS_MAX = 1024
_MISSES = (None, "unknown", "layout", "numerics", "expired")


class StoreError(Exception):
    """What the store says when it cannot do what was asked."""


class Refused(StoreError):
    """A budget is used up, too much waits to be written, or another process writes to this folder."""


class LeaseOver(StoreError):
    """The lease of the block is over: match again."""


class Damaged(StoreError):
    """The block did not verify and is forgotten: a miss."""


class Unavailable(StoreError):
    """The disk failed or the store is read-only: try later."""


_ERRORS = {5: Refused, 8: LeaseOver, 9: Damaged, 10: Unavailable}


class _Error(ctypes.Structure):
    _fields_ = [("message", ctypes.c_char * 256)]


class _Class(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("life_s", ctypes.c_int64), ("bytes_max", ctypes.c_uint64)]


class _Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("folder", ctypes.c_char_p), ("classes", ctypes.POINTER(_Class)),
        ("class_count", ctypes.c_size_t), ("bytes_max", ctypes.c_uint64), ("namespace_bytes_max", ctypes.c_uint64),
        ("segment_bytes", ctypes.c_uint64), ("group_bytes", ctypes.c_uint64), ("read_only", ctypes.c_int32),
        ("buffered", ctypes.c_int32), ("lease_s", ctypes.c_int32),
    ]


class _Key(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 16)]


class _Part(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class _Block(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("key", _Key), ("parent", _Key),
        ("layout", ctypes.c_uint64), ("numerics", ctypes.c_uint64), ("approximate", ctypes.c_int32),
        ("retention", ctypes.c_uint32), ("parts", ctypes.POINTER(_Part)), ("part_count", ctypes.c_size_t),
    ]


class _Query(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("layout", ctypes.c_uint64), ("keys", ctypes.c_char_p),
        ("key_count", ctypes.c_size_t), ("exact_only", ctypes.c_int32), ("numerics", ctypes.c_uint64),
    ]


class _Place(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_size_t), ("size", ctypes.c_size_t)]


class _Got(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("parent", _Key), ("numerics", ctypes.c_uint64), ("approximate", ctypes.c_int32),
        ("part_count", ctypes.c_size_t),
    ]


_STATS = (
    "keys", "segments", "bytes", "index_bytes", "puts", "puts_known", "puts_refused", "put_bytes", "written_bytes", "copied_bytes",
    "refreshed_bytes", "lost_blocks", "keys_asked", "keys_hit", "reads", "damaged_blocks", "expired_segments", "evicted_segments",
)


class _Stat(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in _STATS] + [("read_only", ctypes.c_int32)]


def _load():
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libgalley_store.so")
    path = os.environ.get("GALLEY_STORE_LIBRARY") or (beside if os.path.exists(beside) else ctypes.util.find_library("galley_store"))
    if not path:
        raise ImportError("libgalley_store.so is neither beside galley.store nor installed")
    library = ctypes.CDLL(path)
    if library.galley_store_abi_version() != _ABI:
        raise ImportError(f"{path} has another version of the interface than galley.store")
    pointer, error = ctypes.c_void_p, ctypes.POINTER(_Error)
    for name, arguments in {
        "open": [ctypes.POINTER(_Options), ctypes.POINTER(pointer), error],
        "close": [pointer, error],
        "maintain": [pointer, error],
        "purge": [pointer, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64), error],
        "put": [pointer, ctypes.POINTER(_Block), ctypes.POINTER(ctypes.c_int32), error],
        "commit": [pointer, error],
        "match": [pointer, ctypes.POINTER(_Query), ctypes.POINTER(pointer), error],
        "get": [pointer, pointer, ctypes.c_size_t, pointer, ctypes.c_size_t, ctypes.POINTER(_Place), ctypes.c_size_t,
                ctypes.POINTER(_Got), error],
        "stats": [pointer, ctypes.POINTER(_Stat), error],
    }.items():
        function = getattr(library, "galley_store_" + name)
        function.argtypes, function.restype = arguments, ctypes.c_int32
    library.galley_store_lease_free.argtypes, library.galley_store_lease_free.restype = [pointer], None
    library.galley_store_lease_size.argtypes, library.galley_store_lease_size.restype = [pointer], ctypes.c_size_t
    library.galley_store_lease_miss.argtypes, library.galley_store_lease_miss.restype = [pointer], ctypes.c_int32
    library.galley_store_lease_bytes.argtypes = [pointer, ctypes.c_size_t]
    library.galley_store_lease_bytes.restype = ctypes.c_size_t
    return library


_library = _load()


def _call(name, *arguments):
    error = _Error()
    code = getattr(_library, "galley_store_" + name)(*arguments, ctypes.byref(error))
    if code == 12:
        raise MemoryError
    if code != 0:
        message = error.message.decode(errors="replace")
        raise ValueError(message) if code in (1, 4) else _ERRORS.get(code, StoreError)(message)


def _key(value):
    if len(value) != 16:
        raise ValueError(f"a key has 16 bytes, not {len(value)}")
    return _Key((ctypes.c_uint8 * 16).from_buffer_copy(value))


def _text(value):
    data = value.encode()
    if b"\0" in data:
        raise ValueError("a name holds a NUL")
    return data


class Store:
    """A folder of blocks. One process writes to it; `read_only` looks at what is there now.

    classes: names to lives in seconds, or to (life, bytes_max); a block's class is one of these names.
    """

    def __init__(self, folder, *, classes=None, bytes_max=0, namespace_bytes_max=0, segment_bytes=0, group_bytes=0, lease_s=0,
                 read_only=False, buffered=False):
        self._handle = None
        classes = dict(classes or {"agent": 3 * 24 * 3600, "chat": 7 * 24 * 3600})
        self._classes = list(classes)
        rows = (_Class * len(classes))()
        for row, (name, life) in zip(rows, classes.items()):
            row.name = _text(name)
            row.life_s, row.bytes_max = life if isinstance(life, tuple) else (life, 0)
        options = _Options(
            struct_size=ctypes.sizeof(_Options), folder=os.fsencode(folder), classes=rows, class_count=len(rows), bytes_max=bytes_max,
            namespace_bytes_max=namespace_bytes_max, segment_bytes=segment_bytes, group_bytes=group_bytes, read_only=read_only,
            buffered=buffered, lease_s=lease_s)
        handle = ctypes.c_void_p()
        _call("open", ctypes.byref(options), ctypes.byref(handle))
        self._handle = handle

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None):
            _library.galley_store_close(self._handle, None)

    def _open(self):
        if not self._handle:
            raise ValueError("the store is closed")
        return self._handle

    def close(self):
        """Commits what waits. Leases end with it."""
        handle, self._handle = self._handle, None
        if handle:
            _call("close", handle)

    def put(self, key, parts, *, namespace="", parent=bytes(16), layout=0, numerics=0, exact=True, retention=None):
        """Copies a block, an iterable of bytes-like parts. False when the store has it already. It is known after commit()."""
        views = [memoryview(part).cast("B") for part in parts]
        if len(views) > _PARTS_MAX:
            raise ValueError(f"a block has at most {_PARTS_MAX} parts")
        kept, rows = [], (_Part * max(len(views), 1))()
        for row, view in zip(rows, views):
            # Memory that may not be written cannot be borrowed by ctypes, but a bytes object can.
            data = view.obj if view.readonly and isinstance(view.obj, bytes) and len(view.obj) == len(view) else None
            if data is None:
                data = bytes(view) if view.readonly else (ctypes.c_uint8 * len(view)).from_buffer(view)
            kept.append(data)
            row.data = ctypes.cast(data if not isinstance(data, bytes) else ctypes.c_char_p(data), ctypes.c_void_p)
            row.size = len(view)
        block = _Block(
            struct_size=ctypes.sizeof(_Block), name=_text(namespace), key=_key(key), parent=_key(parent), layout=layout,
            numerics=numerics, approximate=not exact, retention=0 if retention is None else self._classes.index(retention), parts=rows,
            part_count=len(views))
        known = ctypes.c_int32()
        _call("put", self._open(), ctypes.byref(block), ctypes.byref(known))
        return not known.value

    def commit(self):
        """Makes durable what was put."""
        _call("commit", self._open())

    def maintain(self):
        """Expiry, refreshes, budgets: every few seconds."""
        _call("maintain", self._open())

    def purge(self, namespace):
        """Forgets and erases every block of a namespace; how many."""
        count = ctypes.c_uint64()
        _call("purge", self._open(), _text(namespace), ctypes.byref(count))
        return count.value

    def match(self, keys, *, namespace="", layout=0, exact_only=False, numerics=0):
        """A Lease on the longest run of known keys from the first on."""
        keys = list(keys)
        if any(len(key) != 16 for key in keys):
            raise ValueError("a key has 16 bytes")
        query = _Query(
            struct_size=ctypes.sizeof(_Query), name=_text(namespace), layout=layout, keys=b"".join(bytes(key) for key in keys),
            key_count=len(keys), exact_only=exact_only, numerics=numerics)
        lease = ctypes.c_void_p()
        _call("match", self._open(), ctypes.byref(query), ctypes.byref(lease))
        return Lease(self, lease)

    def stat(self):
        """Figures by name: what there is now, and what happened since it was opened."""
        out = _Stat(struct_size=ctypes.sizeof(_Stat))
        _call("stats", self._open(), ctypes.byref(out))
        return {name: getattr(out, name) for name in _STATS} | {"read_only": bool(out.read_only)}


class Lease:
    """Blocks that can be read until the lease is over, whatever the store does but for a purge."""

    def __init__(self, store, handle):
        self._store, self._handle = store, handle

    def __del__(self):
        _library.galley_store_lease_free(self._handle)

    def __len__(self):
        return _library.galley_store_lease_size(self._handle)

    @property
    def miss(self):
        """Why it ends where it ends: None, "unknown", "layout", "numerics" or "expired"."""
        return _MISSES[_library.galley_store_lease_miss(self._handle)]

    def bytes_needed(self, index):
        """Memory that get_into() of this block needs at most."""
        return _library.galley_store_lease_bytes(self._handle, index)

    def get_into(self, index, buffer):
        """Reads and verifies a block into a writable buffer; the parts as views of it, without a copy.

        A buffer that begins at a multiple of 4096 is written by the disk itself; pinned memory is fine."""
        view = memoryview(buffer).cast("B")
        memory = (ctypes.c_uint8 * len(view)).from_buffer(view)
        places = (_Place * _PARTS_MAX)()
        got = _Got(struct_size=ctypes.sizeof(_Got))
        _call("get", self._store._open(), self._handle, index, ctypes.addressof(memory), len(view), places, len(places),
              ctypes.byref(got))
        return [view[place.offset:place.offset + place.size] for place in places[:got.part_count]]

    def get(self, index):
        """The parts of a block, as bytes."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return [bytes(part) for part in self.get_into(index, bytearray(self.bytes_needed(index)))]
