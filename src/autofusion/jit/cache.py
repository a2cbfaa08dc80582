"""Compiled artefacts by content: first in memory, then in a folder that any number of processes share.

A key is the hash of everything that the artefact depends on (`key_of`), so an entry is never out of date, only right
or damaged. Nothing read from the folder is trusted: each entry is checked in full, and one that does not pass is
removed and built again. That finds accidents, not malice: whoever may write to the folder may run code, which is why
it is created for its owner alone.

No lock is held between processes. A writer replaces an entry in one step, a reader keeps what it has opened, and
whoever loses a race does the work once more. A folder that cannot be used costs the disk's benefit and one
`CacheWarning`, never an error.

    folder/KEY.afc                    header (magic … digest) | meta as JSON | payload
    folder/.PLACE-PID-RANDOM.tmp      an entry being written, or what a killed writer left; never read
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import json
import os
import re
import stat
import struct
import tempfile
import threading
import time
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from autofusion import config

MEMORY_BYTES = 256 << 20
"""What one cache holds in memory; the newest entry stays, whatever its size."""

_MAGIC = b"AFCACHE\n"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQ32s32s")
_DIGEST_BYTES = 32
_KEY = re.compile(r"[0-9a-f]{64}")
_ENTRY = re.compile(r"([0-9a-f]{64})\.afc")
_TEMP = re.compile(r"\.([0-9a-f]{0,16})-([0-9]{1,18})-.*\.tmp", re.ASCII)
_ABANDONED_SECONDS = 3600.0
_LOADED = time.time_ns()


class CacheWarning(RuntimeWarning):
    """The cache's folder cannot be used as it should: compiled code is kept in memory only."""


@dataclass
class Stats:
    """Counts of one cache since it was made. `rebuilt`: damaged entries found on disk; `evictions`: from disk."""

    hits: int = 0
    misses: int = 0
    rebuilt: int = 0
    puts: int = 0
    evictions: int = 0


@dataclass(frozen=True)
class Entry:
    """One entry on disk: `bytes` of its file, `age` in seconds since written, `used` in seconds since the epoch."""

    key: str
    bytes: int
    age: float
    meta: Mapping[str, str]
    used: float


@dataclass(frozen=True)
class Problem:
    """A damaged entry that `verify` found, and whether it could be removed."""

    key: str
    reason: str
    removed: bool


# Keys


def key_of(parts: Mapping[str, str | bytes | int]) -> str:
    """The SHA-256, in hex, of named parts. Independent of their order; names, types and bounds of values count."""
    digest = hashlib.sha256()
    for name in sorted(parts):
        tag, data = _encoded(name, parts[name])
        label = name.encode("utf-8", "surrogatepass")
        digest.update(b"%d:%b%b%d:" % (len(label), label, tag, len(data)))
        digest.update(data)
    return digest.hexdigest()


def _encoded(name: str, value: object) -> tuple[bytes, bytes]:
    match value:
        case str():
            return b"s", value.encode("utf-8", "surrogatepass")
        case bytes():
            return b"b", value
        case int():
            return b"i", b"%d" % value
    raise TypeError(f"cache key part {name!r} is a {type(value).__name__}: expected str, bytes or int")


@functools.cache
def source_hash() -> str:
    """The hash of this package's own sources, read once a process: other code, other keys."""
    return _tree_hash(Path(__file__).resolve().parents[1], _LOADED)


def _tree_hash(root: Path, loaded: int) -> str:
    """Hash the sources under `root`, by relative path.

    Where they cannot tell which code is running (unreadable, or edited after `loaded`, in ns since the epoch), the
    hash is a random one: such a process shares no entry with any other.
    """
    digest = hashlib.sha256()
    try:
        names = _sources(root)
        edited = not names
        for name in names:
            path = root / name
            edited |= loaded < path.stat().st_mtime_ns <= time.time_ns()
            digest.update(key_of({"name": name, "text": path.read_bytes()}).encode())
    except OSError:
        edited = True
    if edited:
        digest.update(os.urandom(32))
    return digest.hexdigest()


def _sources(root: Path) -> list[str]:
    found = (
        Path(folder, name).relative_to(root).as_posix()
        for folder, _, names in os.walk(root)
        for name in names
        if name.endswith((".py", ".c", ".h"))
    )
    return sorted(found)


# The form of an entry


class _Damage(Exception):
    """An entry is not what its name says; the argument is the reason."""


class _Header(NamedTuple):
    magic: bytes
    version: int
    meta_bytes: int
    payload_bytes: int
    made: int
    key: bytes
    digest: bytes


def _pack(key: str, payload: bytes, meta: Mapping[str, str]) -> bytes:
    note = json.dumps(dict(meta), sort_keys=True).encode()
    sealed = _HEADER.pack(
        _MAGIC, _VERSION, len(note), len(payload), time.time_ns(), bytes.fromhex(key), bytes(_DIGEST_BYTES)
    )[:-_DIGEST_BYTES]
    return b"".join((sealed, hashlib.sha256(sealed + note + payload).digest(), note, payload))


def _read_header(file: BinaryIO, key: str, size: int) -> tuple[bytes, _Header]:
    """The header, after every check that it allows by itself: what is read next has plausible lengths."""
    raw = file.read(_HEADER.size)
    if len(raw) < _HEADER.size:
        raise _Damage(f"{size} bytes are less than a header")
    header = _Header(*_HEADER.unpack(raw))
    if header.magic != _MAGIC:
        raise _Damage("not a cache entry")
    if header.version != _VERSION:
        raise _Damage(f"format version {header.version}, expected {_VERSION}")
    if header.key != bytes.fromhex(key):
        raise _Damage(f"holds key {header.key.hex()}")
    expected = _HEADER.size + header.meta_bytes + header.payload_bytes
    if size != expected:
        raise _Damage(f"{size} bytes, its header says {expected}")
    return raw, header


def _read_meta(note: bytes) -> dict[str, str]:
    try:
        meta = json.loads(note)
    except (ValueError, RecursionError):
        raise _Damage("meta is not JSON") from None
    if not isinstance(meta, dict) or not all(isinstance(value, str) for value in meta.values()):
        raise _Damage("meta is not a table of strings")
    return meta


def _read_entry(file: BinaryIO, key: str, size: int) -> tuple[bytes, dict[str, str]]:
    """Payload and meta of an entry that is right in every byte, else `_Damage`."""
    raw, header = _read_header(file, key, size)
    body = file.read(size - _HEADER.size)
    digest = hashlib.sha256(raw[:-_DIGEST_BYTES])
    digest.update(body)
    if digest.digest() != header.digest:
        raise _Damage("contents do not match their digest")
    return body[header.meta_bytes :], _read_meta(body[: header.meta_bytes])


def _check_meta(meta: Mapping[str, str], expect: Mapping[str, str]) -> None:
    for name, value in expect.items():
        if meta.get(name) != value:
            raise _Damage(f"{name} is {meta.get(name)!r}, expected {value!r}")


# The folder


class _Found(NamedTuple):
    used: int
    key: str
    size: int


class _Folder:
    """The entries on disk. Methods raise `_Damage` for a bad entry and OSError for a bad folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, key: str) -> tuple[bytes, dict[str, str]]:
        """Payload and meta, checked. FileNotFoundError where there is none."""
        with self._opened(key) as (file, status):
            return _read_entry(file, key, status.st_size)

    def touch(self, key: str) -> None:
        """Mark an entry as just used, where that is allowed."""
        with contextlib.suppress(OSError):
            os.utime(self._file(key), ns=(now := time.time_ns(), now))

    def store(self, key: str, data: bytes) -> None:
        """Write an entry's file in one step.

        There is no fsync, which costs more than the rest of the write: a power cut may leave an entry short, and a
        short entry is found and built again.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{_place()}-{os.getpid()}-", suffix=".tmp", dir=self.path)
        try:
            with open(handle, "wb") as file:
                file.write(data)
            os.utime(name, ns=(now := time.time_ns(), now))
            os.replace(name, self._file(key))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def remove(self, key: str) -> bool:
        try:
            self._file(key).unlink()
        except OSError:
            return False
        return True

    def describe(self, found: _Found) -> Entry:
        """What the header and the meta say, without reading the payload."""
        with self._opened(found.key) as (file, status):
            _, header = _read_header(file, found.key, status.st_size)
            meta = _read_meta(file.read(header.meta_bytes))
        age = max(0.0, (time.time_ns() - header.made) / 1e9)
        return Entry(found.key, found.size, age, meta, found.used / 1e9)

    def scan(self) -> list[_Found]:
        """Every entry, the longest unused first. Removes what killed writers left."""
        found = []
        try:
            items = os.scandir(self.path)
        except FileNotFoundError:
            return []
        with items:
            for item in items:
                with contextlib.suppress(OSError):  # gone by now, or not ours to remove
                    status = item.stat(follow_symlinks=False)
                    if entry := _ENTRY.fullmatch(item.name):
                        found.append(_Found(status.st_mtime_ns, entry[1], status.st_size))
                    elif _abandoned(item.name, status):
                        os.unlink(item.path)
        return sorted(found)

    def trim(self, limit: int, newest: str) -> tuple[int, int]:
        """Remove the longest unused entries, but not `newest`, if all take more than `limit` bytes.

        Makes some room to spare, so that a full cache is not scanned at each put. Returns the bytes that are left and
        the number of entries removed.
        """
        found = self.scan()
        total = sum(entry.size for entry in found)
        removed = 0
        if total > limit:
            for entry in found:
                if total <= limit - limit // 8:
                    break
                if entry.key != newest:
                    removed += self.remove(entry.key)
                    total -= entry.size
        return total, removed

    def _file(self, key: str) -> Path:
        return self.path / f"{key}.afc"

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[tuple[BinaryIO, os.stat_result]]:
        """The entry's file, if it is a regular file: opening a pipe must not wait, nor a link be followed."""
        try:
            handle = os.open(self._file(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise _Damage("not a regular file") from None
            raise
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            os.close(handle)
            raise _Damage("not a regular file")
        with open(handle, "rb") as file:
            yield file, status


def _place() -> str:
    """Where this process's number means something: a boot of one machine, one PID namespace. Empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        return hashlib.sha256(boot + b"%d" % os.stat("/proc/self/ns/pid").st_ino).hexdigest()[:16]
    except OSError:
        return ""


def _abandoned(name: str, status: os.stat_result) -> bool:
    """Whether this is a temporary file whose writer is dead, or must be, after so long."""
    temp = _TEMP.fullmatch(name)
    if temp is None or not stat.S_ISREG(status.st_mode):
        return False
    if time.time() - status.st_mtime > _ABANDONED_SECONDS:
        return True
    return temp[1] != "" and temp[1] == _place() and not _alive(int(temp[2]))


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


# The cache


class _Flight:
    """One key being built: whoever waits for the lock then finds the payload, or builds in its turn.

    The table of flights refers to it weakly, so it goes with the last that builds or waits, however they end.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()


class Cache:
    """Payloads by key, in memory and, unless `folder` is None, on disk.

    `limit_bytes` bounds the entries on disk, the least recently used going first (processes that write at the same
    moment may pass it by a sixteenth each); an entry larger than the bound is not written. Safe to use from any
    number of threads and processes, and after a fork. Only programming errors raise (a key that `key_of` did not
    make, meta that is not strings); what is wrong with the folder warns once, as `CacheWarning`.
    """

    def __init__(self, folder: Path | None, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._folder = None if folder is None else _Folder(_absolute(folder))
        self._memory: OrderedDict[str, tuple[bytes, dict[str, str]]] = OrderedDict()
        self._memory_bytes = 0
        self._flights: weakref.WeakValueDictionary[str, _Flight] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()  # held for a few steps in memory, never over files or a build
        self._stats = Stats()
        self._disk_bytes: int | None = None  # by the last scan, and what was written since
        self._unscanned = 0
        self._warned = False
        _revive_after_fork(self)

    @property
    def folder(self) -> Path | None:
        """Where the entries are, or None: memory only."""
        return self._folder.path if self._folder else None

    @property
    def stats(self) -> Stats:
        """The counts so far, as a copy."""
        with self._lock:
            return dataclasses.replace(self._stats)

    def get(self, key: str, expect: Mapping[str, str] | None = None) -> bytes | None:
        """The payload under `key`, or None.

        An entry is damaged where its meta differs from `expect` too (a `target` that is another CPU's, say).
        """
        _check_key(key)
        payload = self._recall(key, expect or {})
        if payload is None:
            payload = self._load(key, expect or {})
        with self._lock:
            if payload is None:
                self._stats.misses += 1
            else:
                self._stats.hits += 1
        return payload

    def put(self, key: str, payload: bytes, meta: Mapping[str, str]) -> None:
        """Keep `payload` under `key`, in place of what was there."""
        _check_key(key)
        _check_strings(meta)
        self._remember(key, payload, meta)
        with self._lock:
            self._stats.puts += 1
        if self._folder is None or len(data := _pack(key, payload, meta)) > self.limit_bytes:
            return
        try:
            self._folder.store(key, data)
            self._bound(self._folder, key, len(data))
        except OSError as error:
            self._complain("write", error)

    def get_or_build(self, key: str, build: Callable[[], bytes], meta: Mapping[str, str]) -> tuple[bytes, bool]:
        """The payload, and whether it was there: False where this call built it.

        Threads that ask for one key at once build it once; if `build` raises, its caller gets the exception and the
        next one builds. Where `meta` has a `target`, an entry of another target is damaged.
        """
        _check_key(key)
        _check_strings(meta)
        expect = {name: meta[name] for name in ("target",) if name in meta}
        with self._lock:
            flight = self._flights.setdefault(key, _Flight())
        with flight.lock:
            found = self.get(key, expect)
            if found is not None:
                return found, True
            built = build()
            self.put(key, built, meta)
            return built, False

    def entries(self) -> list[Entry]:
        """The entries on disk, the last used first. One whose header is damaged is left to `verify`."""
        if self._folder is None:
            return []
        listed = []
        for found in reversed(self._scan(self._folder)):
            with contextlib.suppress(_Damage, OSError):
                listed.append(self._folder.describe(found))
        return listed

    def verify(self) -> list[Problem]:
        """Read every entry on disk, and remove the damaged ones."""
        if self._folder is None:
            return []
        problems = []
        for found in self._scan(self._folder):
            if reason := self._fault(self._folder, found):
                problems.append(Problem(found.key, reason, self._folder.remove(found.key)))
        return problems

    def clear(self) -> int:
        """Forget every entry, in memory and on disk, and return how many there were. Other files stay."""
        with self._lock:
            gone = set(self._memory)
            self._memory.clear()
            self._memory_bytes = 0
            self._disk_bytes = None
        if self._folder is not None:
            for found in self._scan(self._folder):
                if self._folder.remove(found.key):
                    gone.add(found.key)
        return len(gone)

    # Memory

    def _recall(self, key: str, expect: Mapping[str, str]) -> bytes | None:
        with self._lock:
            if key not in self._memory:
                return None
            payload, meta = self._memory[key]
            if any(meta.get(name) != value for name, value in expect.items()):
                self._forget(key)
                return None
            self._memory.move_to_end(key)
            return payload

    def _remember(self, key: str, payload: bytes, meta: Mapping[str, str]) -> None:
        with self._lock:
            self._forget(key)
            self._memory[key] = payload, dict(meta)
            self._memory_bytes += len(payload)
            while self._memory_bytes > MEMORY_BYTES and len(self._memory) > 1:
                self._forget(next(iter(self._memory)))

    def _forget(self, key: str) -> None:
        if key in self._memory:
            self._memory_bytes -= len(self._memory.pop(key)[0])

    # Disk

    def _load(self, key: str, expect: Mapping[str, str]) -> bytes | None:
        if self._folder is None:
            return None
        try:
            payload, meta = self._folder.load(key)
            _check_meta(meta, expect)
        except FileNotFoundError:
            return None
        except _Damage:
            self._folder.remove(key)
            with self._lock:
                self._stats.rebuilt += 1
            return None
        except OSError as error:
            self._complain("read", error)
            return None
        self._folder.touch(key)
        self._remember(key, payload, meta)
        return payload

    def _bound(self, folder: _Folder, key: str, written: int) -> None:
        """Count what was written; scan where the limit may be passed, or others may have written as much."""
        with self._lock:
            self._unscanned += written
            if self._disk_bytes is not None:
                self._disk_bytes += written
                if self._disk_bytes <= self.limit_bytes and self._unscanned <= self.limit_bytes // 16:
                    return
        total, removed = folder.trim(self.limit_bytes, key)
        with self._lock:
            self._disk_bytes, self._unscanned = total, 0
            self._stats.evictions += removed

    def _scan(self, folder: _Folder) -> list[_Found]:
        try:
            return folder.scan()
        except OSError as error:
            self._complain("list", error)
            return []

    def _fault(self, folder: _Folder, found: _Found) -> str:
        """Why an entry is damaged; empty where it is right, gone by now, or cannot be read."""
        try:
            folder.load(found.key)
        except _Damage as damage:
            return str(damage)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._complain("read", error)
        return ""

    def _complain(self, action: str, error: OSError) -> None:
        if self._warned:
            return
        self._warned = True
        reason = error.strerror or str(error)
        warnings.warn(
            f"cannot {action} the kernel cache in {self.folder} ({reason}): compiled code is kept in memory only; "
            "set AUTOFUSION_CACHE_DIR to a folder that can be written, or to nothing for no disk cache",
            CacheWarning,
            stacklevel=4,
        )

    def _revive(self) -> None:
        """In the child of a fork: the other threads are gone, and with them whoever held a lock or was building."""
        self._lock = threading.Lock()
        self._flights = weakref.WeakValueDictionary()
        self._memory_bytes = sum(len(payload) for payload, _ in self._memory.values())


def _revive_after_fork(cache: Cache) -> None:
    reference = weakref.ref(cache)

    def revive() -> None:
        survivor = reference()
        if survivor is not None:
            survivor._revive()

    os.register_at_fork(after_in_child=revive)


def _absolute(folder: Path) -> Path:
    try:
        return folder.absolute()
    except OSError:  # the working directory was deleted
        return folder


def _check_key(key: str) -> None:
    if not _KEY.fullmatch(key):
        raise ValueError(f"cache key {key!r}: expected 64 hexadecimal digits, as key_of makes them")


def _check_strings(meta: Mapping[str, str]) -> None:
    for name, value in meta.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"cache meta {name!r}: {value!r}: expected strings")


_DEFAULT: dict[tuple[Path | None, int], Cache] = {}


def default_cache() -> Cache:
    """The process's cache, as `AUTOFUSION_CACHE_DIR` and `AUTOFUSION_CACHE_BYTES` say now."""
    wanted = config.cache_dir(), config.cache_bytes()
    cache = _DEFAULT.get(wanted)
    if cache is None:
        cache = _DEFAULT.setdefault(wanted, Cache(*wanted))
        for other in [key for key in list(_DEFAULT) if key != wanted]:
            _DEFAULT.pop(other, None)
    return cache
