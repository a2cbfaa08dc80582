"""The cache of compiled artefacts: what is damaged is found, what is shared stays right, nothing raises."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autofusion.jit import cache as cache_module
from autofusion.jit.cache import Cache, CacheWarning, Problem, Stats, default_cache, key_of, source_hash

LIMIT = 1 << 20
META = {"target": "x86_64:skylake-avx512", "kernel": "softmax"}
PAYLOAD = bytes(range(256)) * 3
KEY = key_of({"kernel": "softmax"})
HEADER = cache_module._HEADER.size
HANG_SECONDS = 120
SOURCE = Path(cache_module.__file__).resolve().parents[2]


def file_of(folder: Path, key: str = KEY) -> Path:
    return folder / f"{key}.afc"


def temps(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(".tmp")]


def never() -> bytes:
    raise AssertionError("built again")


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    try:
        out, err = process.communicate(timeout=HANG_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder that holds one entry, KEY."""
    Cache(tmp_path, LIMIT).put(KEY, PAYLOAD, META)
    return tmp_path


# Keys


def test_key_does_not_depend_on_order_and_is_stable() -> None:
    assert key_of({"a": "x", "b": 1}) == key_of({"b": 1, "a": "x"})
    text = b"1:as1:x" + b"1:bi1:1"
    assert key_of({"a": "x", "b": 1}) == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": "1"}, {"a": 1}),
        ({"a": "1"}, {"a": b"1"}),
        ({"a": "bc"}, {"ab": "c"}),
        ({"a": "x", "b": "y"}, {"a": "x1:bs1:y"}),
        ({"a": ""}, {}),
        ({"a": 1}, {"a": -1}),
        ({"a": "é"}, {"a": "e\u0301"}),
    ],
)
def test_different_parts_have_different_keys(one: dict[str, str], other: dict[str, str]) -> None:
    assert key_of(one) != key_of(other)


PARTS = st.dictionaries(st.text(max_size=3), st.one_of(st.text(max_size=3), st.binary(max_size=3), st.integers()))


@settings(deadline=None)
@given(PARTS, PARTS)
def test_keys_are_equal_where_parts_are(one: dict[str, str], other: dict[str, str]) -> None:
    assert (key_of(one) == key_of(other)) == (one == other)


def test_key_refuses_other_types() -> None:
    with pytest.raises(TypeError, match="'tile' is a float: expected str, bytes or int"):
        key_of({"tile": 1.5})  # type: ignore[dict-item]


def test_source_hash_is_one_digest_a_process() -> None:
    assert len(source_hash()) == 64
    assert source_hash() == source_hash()


def test_tree_hash_sees_text_names_and_new_files(tmp_path: Path) -> None:
    def digest() -> str:
        return cache_module._tree_hash(tmp_path, time.time_ns() + 10**12)

    (tmp_path / "room").mkdir()
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "room" / "b.c").write_text("2")
    seen = [digest()]
    (tmp_path / "notes.txt").write_text("not source")
    assert digest() == seen[0]
    (tmp_path / "a.py").write_text("3")
    seen.append(digest())
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    seen.append(digest())
    (tmp_path / "d.h").write_text("")
    seen.append(digest())
    assert len(set(seen)) == 4


def test_tree_hash_shares_nothing_when_code_may_differ_from_its_source(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text("1")
    os.utime(source, ns=(10**18, 10**18))
    assert cache_module._tree_hash(tmp_path, 10**18) == cache_module._tree_hash(tmp_path, 10**18)
    assert cache_module._tree_hash(tmp_path, 10**18 - 1) != cache_module._tree_hash(tmp_path, 10**18 - 1)
    empty = tmp_path / "empty"
    assert cache_module._tree_hash(empty, 0) != cache_module._tree_hash(empty, 0)


# What is kept


def test_memory_only() -> None:
    cache = Cache(None, LIMIT)
    assert cache.get(KEY) is None
    cache.put(KEY, PAYLOAD, META)
    assert cache.get(KEY) == PAYLOAD
    assert (cache.folder, cache.entries(), cache.verify()) == (None, [], [])
    assert cache.stats == Stats(hits=1, misses=1, puts=1)
    assert cache.clear() == 1
    assert cache.get(KEY) is None


def test_another_process_finds_it_on_disk(written: Path) -> None:
    cache = Cache(written, LIMIT)
    assert cache.get(KEY, {"target": META["target"]}) == PAYLOAD
    file_of(written).unlink()
    assert cache.get(KEY, META) == PAYLOAD, "then from memory"
    assert cache.stats == Stats(hits=2)


@pytest.mark.parametrize("payload", [b"", b"\0", os.urandom(300_000)], ids=len)
def test_any_payload_and_meta(tmp_path: Path, payload: bytes) -> None:
    meta = {"target": "ü\n\0", "": ""}
    Cache(tmp_path, LIMIT).put(KEY, payload, meta)
    assert Cache(tmp_path, LIMIT).get(KEY, meta) == payload
    assert Cache(tmp_path, LIMIT).entries()[0].meta == meta


def test_put_replaces(written: Path) -> None:
    cache = Cache(written, LIMIT)
    cache.put(KEY, b"new", META)
    assert cache.get(KEY) == Cache(written, LIMIT).get(KEY) == b"new"


def test_memory_is_bounded_but_keeps_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MEMORY_BYTES", 10)
    cache = Cache(None, LIMIT)
    keys = [key_of({"n": n}) for n in range(4)]
    for key in keys[:3]:
        cache.put(key, b"12345", META)
    assert [cache.get(key) is not None for key in keys[:3]] == [False, True, True]
    assert cache.get(keys[1]) is not None
    cache.put(keys[0], b"12345", META)
    assert [cache.get(key) is not None for key in keys[:3]] == [True, True, False], "the last used stay"
    cache.put(keys[3], b"x" * 100, META)
    assert [cache.get(key) is not None for key in keys] == [False, False, False, True]
    cache.put(keys[0], b"12345", META)
    assert [cache.get(key) is not None for key in keys] == [True, False, False, False]


@pytest.mark.parametrize("key", ["", "../evil", KEY.upper(), KEY[:-1], KEY + "\n"])
def test_a_key_is_a_digest(tmp_path: Path, key: str) -> None:
    cache = Cache(tmp_path, LIMIT)
    for call in (lambda: cache.get(key), lambda: cache.put(key, b"", {}), lambda: cache.get_or_build(key, never, {})):
        with pytest.raises(ValueError, match="expected 64 hexadecimal digits"):
            call()


def test_meta_is_strings(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'tile': 8: expected strings"):
        Cache(tmp_path, LIMIT).put(KEY, b"", {"tile": 8})  # type: ignore[dict-item]


# Damage


def assert_damaged(folder: Path, key: str = KEY) -> None:
    """The entry is found damaged and removed by `verify`, by `get`, and built again by `get_or_build`."""
    data = file_of(folder, key).read_bytes()
    problems = Cache(folder, LIMIT).verify()
    assert [(problem.key, problem.removed) for problem in problems] == [(key, True)]
    assert problems[0].reason
    assert not file_of(folder, key).exists()
    file_of(folder, key).write_bytes(data)
    cache = Cache(folder, LIMIT)
    assert cache.get(key) is None
    assert not file_of(folder, key).exists()
    assert cache.stats == Stats(misses=1, rebuilt=1)
    file_of(folder, key).write_bytes(data)
    cache = Cache(folder, LIMIT)
    assert cache.get_or_build(key, lambda: PAYLOAD, META) == (PAYLOAD, False)
    assert cache.stats == Stats(misses=1, rebuilt=1, puts=1)
    assert Cache(folder, LIMIT).get(key, META) == PAYLOAD


NOTE = HEADER + len(b'{"kernel": "softmax", "target": "x86_64:skylake-avx512"}')
BOUNDARIES = [0, 8, 12, 16, 24, 32, 64, HEADER, NOTE, NOTE + len(PAYLOAD)]
CUTS = sorted({cut for edge in BOUNDARIES for cut in (edge - 1, edge, edge + 1) if 0 <= cut < BOUNDARIES[-1]})


@pytest.mark.parametrize("cut", CUTS)
def test_truncated(written: Path, cut: int) -> None:
    data = file_of(written).read_bytes()
    assert len(data) == BOUNDARIES[-1]
    file_of(written).write_bytes(data[:cut])
    assert_damaged(written)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_bit_flips(written: Path, data: st.DataObject) -> None:
    whole = bytearray(file_of(written).read_bytes())
    # Time of writing and digest differ from run to run: what is drawn is the position.
    position = data.draw(st.one_of(st.integers(0, HEADER - 1), st.integers(0, len(whole) - 1)))
    whole[position] ^= 1 << data.draw(st.integers(0, 7))
    file_of(written).write_bytes(whole)
    assert_damaged(written)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes(tmp_path: Path, data: bytes, headed: bool) -> None:
    head = cache_module._HEADER.pack(b"AFCACHE\n", 1, 0, len(data), 0, bytes.fromhex(KEY), bytes(32))
    file_of(tmp_path).write_bytes(head + data if headed else data)
    assert_damaged(tmp_path)


@pytest.mark.parametrize("extra", [b"\0", PAYLOAD])
def test_trailing_bytes(written: Path, extra: bytes) -> None:
    file_of(written).write_bytes(file_of(written).read_bytes() + extra)
    assert_damaged(written)


def test_renamed(written: Path) -> None:
    other = key_of({"kernel": "gelu"})
    file_of(written).rename(file_of(written, other))
    assert_damaged(written, other)


@pytest.mark.parametrize(("name", "value"), [("_VERSION", 2), ("_MAGIC", b"AFCACHE2")])
def test_other_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(cache_module, name, value)
        Cache(tmp_path, LIMIT).put(KEY, PAYLOAD, META)
    assert_damaged(tmp_path)


@pytest.mark.parametrize("note", [b"{", b"[]", b'{"target": 1}', b"\xff", b"[" * 100_000])
def test_meta_that_is_no_table_of_strings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, note: bytes) -> None:
    class Dumped(str):
        def encode(self, *_: object) -> bytes:  # type: ignore[override]
            return note

    with monkeypatch.context() as patch:
        patch.setattr("json.dumps", lambda *_, **__: Dumped())
        Cache(tmp_path, LIMIT).put(KEY, PAYLOAD, META)
    assert_damaged(tmp_path)


def test_foreign_target_on_disk(written: Path) -> None:
    cache = Cache(written, LIMIT)
    assert cache.get(KEY, {"target": "aarch64:neoverse-v1"}) is None
    assert cache.stats == Stats(misses=1, rebuilt=1)
    assert not file_of(written).exists()


def test_foreign_target_is_built_again(written: Path) -> None:
    mine = {**META, "target": "aarch64:neoverse-v1"}
    cache = Cache(written, LIMIT)
    assert cache.get_or_build(KEY, lambda: b"neon", mine) == (b"neon", False)
    assert cache.stats == Stats(misses=1, rebuilt=1, puts=1)
    assert Cache(written, LIMIT).get_or_build(KEY, never, mine) == (b"neon", True)


def test_foreign_target_in_memory(written: Path) -> None:
    cache = Cache(written, LIMIT)
    assert cache.get(KEY) == PAYLOAD
    assert cache.get(KEY, {"target": "aarch64:neoverse-v1"}) is None
    assert cache.get(KEY) is None


def test_missing_meta_is_not_as_expected(written: Path) -> None:
    assert Cache(written, LIMIT).get(KEY, {"features": "+avx2"}) is None


def link(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("change", [link, pipe])
def test_not_a_regular_file(written: Path, change: Callable[[Path], None]) -> None:
    change(file_of(written))
    cache = Cache(written, LIMIT)
    assert cache.get_or_build(KEY, lambda: b"new", META) == (b"new", False)
    assert cache.stats.rebuilt == 1
    assert Cache(written, LIMIT).get(KEY) == b"new"


def test_a_folder_in_an_entry_s_place(tmp_path: Path) -> None:
    file_of(tmp_path).mkdir()
    cache = Cache(tmp_path, LIMIT)
    with pytest.warns(CacheWarning, match="cannot write"):
        assert cache.get_or_build(KEY, lambda: b"new", META) == (b"new", False)
    assert cache.get(KEY) == b"new"
    assert cache.verify() == [Problem(KEY, "not a regular file", removed=False)]


# Folders that cannot be used


def assert_memory_only(folder: Path) -> None:
    """Works, says so once, and leaves nothing half written."""
    cache = Cache(folder, LIMIT)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for n in range(3):
            key = key_of({"n": n})
            assert cache.get_or_build(key, lambda: PAYLOAD, META) == (PAYLOAD, False)
            assert cache.get_or_build(key, never, META) == (PAYLOAD, True)
        assert (cache.entries(), cache.verify(), cache.clear()) == ([], [], 3)
    assert [warning.category for warning in said] == [CacheWarning]
    assert str(folder) in str(said[0].message)


def test_a_file_in_the_folder_s_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_memory_only(tmp_path / "file")
    assert_memory_only(tmp_path / "file" / "below")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc, a folder in which even root creates nothing")
def test_a_folder_that_cannot_be_made() -> None:
    assert_memory_only(Path("/proc/autofusion"))


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.ENOENT])
@pytest.mark.parametrize("step", ["tempfile.mkstemp", "os.replace"])
def test_each_step_of_a_write_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, code: int) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(step, fail)
    assert_memory_only(tmp_path)
    assert list(tmp_path.iterdir()) == []


READ_ONLY = """
import os, sys, warnings
from pathlib import Path
from autofusion.jit.cache import Cache
folder, key, other = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
os.chdir(folder)
if os.geteuid() == 0:
    os.setuid(65534)  # root may write anywhere
cache = Cache(Path("/proc/self/cwd"), 1 << 20)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    print(len(cache.get(key)), cache.stats.hits, len(said))
    cache.put(other, b"x", {})
    print(len(cache.get(other)), len(cache.entries()), len(said))
"""


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="no /proc, by which another user reaches tmp_path")
def test_read_only_folder_still_serves(written: Path) -> None:
    file_of(written).chmod(0o444)
    written.chmod(0o555)
    try:
        out = finish(start(READ_ONLY, written, KEY, key_of({"n": 1})))
    finally:
        written.chmod(0o755)
    assert out.split() == [str(len(PAYLOAD)), "1", "0", "1", "1", "1"]


FULL_DISK = """
import resource, signal, sys, warnings
from pathlib import Path
from autofusion.jit.cache import Cache
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
cache = Cache(Path(sys.argv[1]), 1 << 20)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    cache.put(sys.argv[2], b"x" * 20000, {})
assert len(cache.get(sys.argv[2])) == 20000
print(*[w.category.__name__ for w in said])
"""


def test_a_write_that_stops_half_way_leaves_nothing(tmp_path: Path) -> None:
    assert finish(start(FULL_DISK, tmp_path, KEY)).split() == ["CacheWarning"]
    assert list(tmp_path.iterdir()) == []


def test_unreadable_entry(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    cache = Cache(written, LIMIT)
    with monkeypatch.context() as patch:
        patch.setattr("os.open", fail)
        with pytest.warns(CacheWarning, match="cannot read .*Permission denied"):
            assert cache.get(KEY) is None
        assert (cache.verify(), cache.entries()) == ([], [])
    assert cache.get(KEY) == PAYLOAD


def test_deleted_folder_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "cache"
    cache = Cache(folder, LIMIT)
    assert (cache.get(KEY), cache.entries(), cache.verify(), cache.clear()) == (None, [], [], 0)
    assert not folder.exists()
    cache.put(KEY, PAYLOAD, META)
    file_of(folder).unlink()
    folder.rmdir()
    assert cache.get(KEY) == PAYLOAD
    cache.put(KEY, PAYLOAD, META)
    assert Cache(folder, LIMIT).get(KEY) == PAYLOAD


def test_the_folder_is_its_owner_s(tmp_path: Path) -> None:
    Cache(tmp_path / "new", LIMIT).put(KEY, PAYLOAD, META)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert file_of(tmp_path / "new").stat().st_mode & 0o777 == 0o600


def test_relative_folder_outlives_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = Cache(Path("kernels"), LIMIT)
    monkeypatch.chdir("/")
    cache.put(KEY, PAYLOAD, META)
    assert file_of(tmp_path / "kernels").exists()


# The bound


def size_of_entries(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each look at the clock is a second later, so that the order of uses is certain."""
    ticks = iter(range(10**9, 2 * 10**9))
    monkeypatch.setattr(time, "time_ns", lambda: next(ticks) * 10**9)
    yield


def test_the_least_recently_used_goes(tmp_path: Path, clock: None) -> None:
    keys = [key_of({"n": n}) for n in range(5)]
    Cache(tmp_path, LIMIT).put(keys[0], PAYLOAD, META)
    one = size_of_entries(tmp_path)
    cache = Cache(tmp_path, 4 * one + one // 2)
    for key in keys[1:4]:
        cache.put(key, PAYLOAD, META)
    assert cache.stats.evictions == 0
    assert Cache(tmp_path, LIMIT).get(keys[0]) == PAYLOAD, "which makes it the last used"
    cache.put(keys[4], PAYLOAD, META)
    assert {path.stem for path in tmp_path.iterdir()} == {keys[0], keys[3], keys[4]}
    assert cache.stats.evictions == 2
    assert [entry.key for entry in cache.entries()] == [keys[4], keys[0], keys[3]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(st.integers(200, 4000), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1500)), max_size=30))
def test_the_limit_holds_after_every_put(tmp_path: Path, limit: int, puts: list[tuple[int, int]]) -> None:
    Cache(tmp_path, limit).clear()
    cache = Cache(tmp_path, limit)
    for n, length in puts:
        payload, key = bytes(length), key_of({"n": n})
        cache.put(key, payload, META)
        assert size_of_entries(tmp_path) <= limit
        fits = NOTE + length <= limit
        assert not fits or Cache(tmp_path, limit).get(key) == payload, "the newest stays"
    assert cache.verify() == []


def test_an_entry_beyond_the_limit_stays_in_memory(tmp_path: Path) -> None:
    for limit in (0, NOTE + len(PAYLOAD) - 1):
        cache = Cache(tmp_path, limit)
        cache.put(KEY, PAYLOAD, META)
        assert cache.get(KEY) == PAYLOAD
        assert list(tmp_path.iterdir()) == []


def test_the_limit_holds_with_many_small_entries(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 16_000)
    for n in range(200):
        cache.put(key_of({"n": n}), bytes(100), META)
        assert size_of_entries(tmp_path) <= 16_000
    assert size_of_entries(tmp_path) > 13_000, "and no more goes than an eighth"


def test_what_others_write_is_counted(tmp_path: Path) -> None:
    one, others = Cache(tmp_path, 16_000), Cache(tmp_path, LIMIT)
    one.put(KEY, PAYLOAD, META)
    for n in range(40):
        others.put(key_of({"n": n}), bytes(1000), META)
    one.put(key_of({"last": 1}), PAYLOAD, META)
    one.put(key_of({"last": 2}), PAYLOAD, META)
    assert size_of_entries(tmp_path) <= 16_000
    assert one.stats.evictions > 20


def test_a_put_does_not_scan_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scans = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scans.append(path) or scandir(path))
    cache = Cache(tmp_path, 1 << 30)
    for n in range(50):
        cache.put(key_of({"n": n}), PAYLOAD, META)
    assert len(scans) == 1


# Looking after it


def test_entries(tmp_path: Path, clock: None) -> None:
    cache = Cache(tmp_path, LIMIT)
    cache.put(KEY, PAYLOAD, META)
    cache.put(key_of({"n": 1}), b"", {})
    last, first = cache.entries()
    assert (first.key, first.meta, first.bytes) == (KEY, META, file_of(tmp_path).stat().st_size)
    assert (last.meta, last.bytes) == ({}, HEADER + 2)
    assert first.age > last.age > 0
    assert first.used == file_of(tmp_path).stat().st_mtime < last.used


def test_entries_leaves_a_damaged_header_to_verify(written: Path) -> None:
    whole = file_of(written).read_bytes()
    for data in (whole[:-1], whole + b"\0", b"AFCACHE\n"):
        file_of(written).write_bytes(data)
        assert Cache(written, LIMIT).entries() == []
    assert Cache(written, LIMIT).verify() == [Problem(KEY, "8 bytes are less than a header", removed=True)]


def test_verify_keeps_what_is_right_and_the_order_of_uses(tmp_path: Path, clock: None) -> None:
    keys = [key_of({"n": n}) for n in range(3)]
    cache = Cache(tmp_path, LIMIT)
    for key in keys:
        cache.put(key, PAYLOAD, META)
    before = cache.entries()
    file_of(tmp_path, keys[1]).write_bytes(b"")
    assert [problem.key for problem in cache.verify()] == [keys[1]]
    assert [(entry.key, entry.used) for entry in cache.entries()] == [
        (entry.key, entry.used) for entry in before if entry.key != keys[1]
    ]


def test_clear_leaves_other_files(written: Path) -> None:
    for name in ("notes.txt", ".mine.tmp", "short.afc", f"{KEY}.afc.bak"):
        (written / name).write_text("mine")
    cache = Cache(written, LIMIT)
    cache.put(key_of({"n": 1}), b"", {})
    assert cache.clear() == 2
    assert cache.get(KEY) is None
    assert len(list(written.iterdir())) == 4


def test_default_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOFUSION_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("AUTOFUSION_CACHE_BYTES", "1000")
    first = default_cache()
    assert (first.folder, first.limit_bytes) == (tmp_path, 1000)
    assert default_cache() is first
    monkeypatch.setenv("AUTOFUSION_CACHE_DIR", "")
    assert default_cache().folder is None
    monkeypatch.setenv("AUTOFUSION_CACHE_BYTES", "2000")
    assert default_cache().limit_bytes == 2000


def test_stats_are_a_copy() -> None:
    cache = Cache(None, LIMIT)
    before = cache.stats
    cache.get(KEY)
    assert (before.misses, cache.stats.misses) == (0, 1)
    assert dataclasses.asdict(before).keys() == {"hits", "misses", "rebuilt", "puts", "evictions"}


# Threads


def run_threads(count: int, target: Callable[[], None]) -> None:
    threads = [threading.Thread(target=target, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
        assert not thread.is_alive()


def test_threads_build_one_key_once(tmp_path: Path) -> None:
    cache = Cache(tmp_path, LIMIT)
    ready, builds, results = threading.Barrier(8), [], []

    def build() -> bytes:
        builds.append(threading.get_ident())
        time.sleep(0.1)  # the others come to ask meanwhile
        return PAYLOAD

    def ask() -> None:
        ready.wait()
        results.append(cache.get_or_build(KEY, build, META))

    run_threads(8, ask)
    assert len(builds) == 1
    assert sorted(results) == [(PAYLOAD, False)] + [(PAYLOAD, True)] * 7
    assert cache.stats == Stats(hits=7, misses=1, puts=1)
    assert len(cache._flights) == 0


def test_different_keys_build_side_by_side() -> None:
    cache = Cache(None, LIMIT)
    both = threading.Barrier(2, timeout=HANG_SECONDS)
    keys = iter([key_of({"n": 0}), key_of({"n": 1})])

    def build() -> bytes:
        both.wait()
        return PAYLOAD

    run_threads(2, lambda: [cache.get_or_build(next(keys), build, META)].clear())
    assert cache.stats.puts == 2


def test_a_failed_build_leaves_the_next_caller_to_build() -> None:
    cache = Cache(None, LIMIT)
    waiting, outcomes = threading.Barrier(2, timeout=HANG_SECONDS), []

    def fail() -> bytes:
        waiting.wait()
        raise KeyboardInterrupt

    def first() -> None:
        try:
            cache.get_or_build(KEY, fail, META)
        except KeyboardInterrupt:
            outcomes.append("interrupted")

    thread = threading.Thread(target=first, daemon=True)
    thread.start()
    waiting.wait()
    assert cache.get_or_build(KEY, lambda: PAYLOAD, META) == (PAYLOAD, False)
    thread.join(HANG_SECONDS)
    assert outcomes == ["interrupted"]


def test_a_build_may_build_other_keys() -> None:
    cache = Cache(None, LIMIT)
    inner = key_of({"n": 1})

    def build() -> bytes:
        return cache.get_or_build(inner, lambda: b"in", META)[0] + b"out"

    assert cache.get_or_build(KEY, build, META) == (b"inout", False)


# Processes

START_TOGETHER = """
import random, sys
from pathlib import Path
from autofusion.jit.cache import Cache, key_of
print("ready", flush=True)
sys.stdin.readline()
cache = Cache(Path(sys.argv[1]), int(sys.argv[2]))
order = list(range(40))
random.Random(int(sys.argv[3])).shuffle(order)
for n in order:
    payload = bytes([n]) * 5000
    got, _ = cache.get_or_build(key_of({"n": n}), lambda: payload, {"target": "t"})
    assert got == payload
    assert Cache(Path(sys.argv[1]), int(sys.argv[2])).get(key_of({"n": n})) in (payload, None)
print(cache.stats.rebuilt)
"""


@pytest.mark.parametrize("limit", [LIMIT, 60_000], ids=["roomy", "evicting"])
def test_eight_processes_on_one_empty_cache(tmp_path: Path, limit: int) -> None:
    folder = tmp_path / "cache"
    processes = [start(START_TOGETHER, folder, limit, n) for n in range(8)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [finish(process).strip() for process in processes] == ["0"] * 8
    cache = Cache(folder, limit)
    assert cache.verify() == []
    assert temps(folder) == []
    assert len(cache.entries()) == 40 or limit < LIMIT
    cache.put(KEY, PAYLOAD, META)
    assert size_of_entries(folder) <= limit


WRITE_FOR_EVER = """
import itertools, sys
from pathlib import Path
from autofusion.jit.cache import Cache, key_of
cache = Cache(Path(sys.argv[1]), 1 << 24)
for n in itertools.count():
    cache.put(key_of({"n": n % 5}), bytes([n % 5]) * 400_000, {"target": "t"})
    print(n, flush=True)
"""


def test_killed_while_writing(tmp_path: Path) -> None:
    for seed in range(6):
        process = start(WRITE_FOR_EVER, tmp_path)
        assert process.stdout is not None
        for _ in range(3 + seed):
            assert process.stdout.readline()
        time.sleep(random.Random(seed).random() * 0.005)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        cache = Cache(tmp_path, 1 << 24)
        assert cache.verify() == []
        assert temps(tmp_path) == []
        for n in range(5):
            payload = bytes([n]) * 400_000
            assert cache.get_or_build(key_of({"n": n}), lambda payload=payload: payload, {"target": "t"})[0] == payload
        assert cache.stats.rebuilt == 0
        cache.clear()


DIE_AT = """
import os, signal, sys
from pathlib import Path
from autofusion.jit import cache
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "half":
    class File:
        def __init__(self, handle): self.handle = handle
        def __enter__(self): return self
        def __exit__(self, *_): pass
        def write(self, data): os.write(self.handle, data[: len(data) // 2]); die()
    cache.open = lambda handle, mode: File(handle)
elif sys.argv[3] == "before":
    os.replace = die
else:
    cache.Cache._bound = die
cache.Cache(Path(sys.argv[1]), 1 << 20).put(sys.argv[2], b"new" * 1000, {"target": "t"})
"""


@pytest.mark.parametrize(("moment", "left"), [("half", 1), ("before", 1), ("after", 0)])
def test_killed_at_each_moment_of_a_write(written: Path, moment: str, left: int) -> None:
    process = start(DIE_AT, written, KEY, moment)
    process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == -signal.SIGKILL
    assert len(temps(written)) == left
    cache = Cache(written, LIMIT)
    assert cache.get(KEY) == (PAYLOAD if left else b"new" * 1000)
    cache.put(key_of({"n": 1}), b"", {})
    assert temps(written) == []
    assert cache.verify() == []


def test_temporary_files_of_the_living_stay_for_an_hour(tmp_path: Path) -> None:
    place = cache_module._place()
    assert place, "these tests run where /proc is"
    mine, far = f".{place}-{os.getpid()}-a.tmp", f".{'0' * 16}-{2**40}-b.tmp"
    dead = f".{place}-{2**40}-c.tmp"
    for name in (mine, far, dead):
        (tmp_path / name).write_text("")
    cache = Cache(tmp_path, LIMIT)
    assert cache.verify() == []
    assert sorted(temps(tmp_path)) == sorted([mine, far])
    for name in (mine, far):
        os.utime(tmp_path / name, (time.time() - 4000, time.time() - 4000))
    cache.put(KEY, PAYLOAD, META)
    assert temps(tmp_path) == []


def test_without_proc_only_age_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_place", lambda: "")
    (tmp_path / f".-{2**40}-c.tmp").write_text("")
    assert Cache(tmp_path, LIMIT).verify() == []
    assert len(temps(tmp_path)) == 1


FORK = """
import os, signal, sys, threading
from pathlib import Path
from autofusion.jit.cache import Cache, key_of
cache = Cache(Path(sys.argv[1]), 1 << 20)
key, building, done = key_of({"n": 1}), threading.Event(), threading.Event()
cache.put(key_of({"n": 0}), b"zero", {})
def build():
    building.set()
    done.wait()
    return b"parent"
thread = threading.Thread(target=lambda: cache.get_or_build(key, build, {}))
thread.start()
building.wait()
cache._lock.acquire()  # as if another thread were at it
child = os.fork()
if child == 0:
    signal.alarm(60)  # a hang fails the test
    assert cache.get(key_of({"n": 0})) == b"zero"
    assert cache.get_or_build(key, lambda: b"child", {}) == (b"child", False)
    os._exit(0)
cache._lock.release()
status = os.waitpid(child, 0)[1]
done.set()
thread.join()
assert cache.get(key) == b"parent"
print(os.waitstatus_to_exitcode(status))
"""


def test_fork_while_another_thread_builds(tmp_path: Path) -> None:
    assert finish(start(FORK, tmp_path)).strip() == "0"
