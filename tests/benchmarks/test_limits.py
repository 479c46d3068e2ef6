"""The limits: plausible where they can be measured, said to be unknown where not."""

import errno
import time

import numpy as np
import pytest

from benchmarks.harness import pagecache
from benchmarks.harness.contender import Limit
from benchmarks.harness.errors import Unavailable
from benchmarks.harness.limits import decode, disk, memcpy
from tests.benchmarks.support import contender, named, run


@pytest.fixture
def files(tmp_path):
    """Files of several sizes, none of them a whole number of blocks, 11 MB in all."""
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{number}.bin" for number in range(4)]
    for path, size in zip(paths, (5_000_001, 1, 4 << 20, 2_000_000), strict=True):
        path.write_bytes(rng.bytes(size))
    return paths


def turn(job):
    """One turn of a job: seconds and amount."""
    job.prepare()
    start = time.perf_counter()
    amount = job.run()
    return time.perf_counter() - start, amount


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_memcpy(files, threads):
    job = memcpy.open_limit(files=list(map(str, files)), buffer_bytes=1 << 20, threads=threads)
    try:
        seconds, amount = turn(job)
        assert memcpy.LEAST_SECONDS <= seconds < memcpy.LEAST_SECONDS + 5
        assert 1e8 < amount.nbytes / seconds < 1e12
    finally:
        job.finish()


def total(files):
    return sum(path.stat().st_size for path in files)


@pytest.mark.parametrize("direct", [None, False])
def test_disk_reads_every_byte(files, direct):
    job = disk.open_limit(files=list(map(str, files)), direct=direct)
    try:
        for _ in range(2):
            seconds, amount = turn(job)
            assert amount.nbytes == total(files)
            assert 1e6 < amount.nbytes / seconds < 1e12
        notes = job.notes()
        assert ("POSIX_FADV_DONTNEED" if direct is False else "blocks of 4 MiB") in notes["how"]
        assert notes["cold"].split(":")[0] in ("yes", "no", "unknown")
    finally:
        job.finish()


def test_a_file_system_without_direct_reads(files, monkeypatch):
    read = disk._read_block

    def refuse(path, offset, buffer, flags):
        if flags:
            raise OSError(errno.EINVAL, "Invalid argument")
        return read(path, offset, buffer, flags)

    monkeypatch.setattr(disk, "_read_block", refuse)
    job = disk.open_limit(files=list(map(str, files)))
    try:
        assert turn(job)[1].nbytes == total(files)
        assert "buffered after POSIX_FADV_DONTNEED" in job.notes()["how"]
    finally:
        job.finish()


def test_a_kernel_without_cachestat(files, monkeypatch):
    monkeypatch.setattr(pagecache, "_CACHESTAT", 100_000)
    assert pagecache.cached_bytes(files[0]) is None
    assert pagecache.cached_fraction(files) is None
    job = disk.open_limit(files=list(map(str, files)), direct=False)
    try:
        turn(job)
        assert job.notes()["cold"].startswith("unknown")
    finally:
        job.finish()


def test_the_page_cache_is_told(files):
    pagecache.drop_from_cache(files[0])
    if pagecache.cached_bytes(files[0]) is None:
        pytest.skip("this kernel has no cachestat(2)")
    files[0].read_bytes()
    assert pagecache.cached_fraction([files[0]]) == 1.0
    pagecache.drop_from_cache(files[0])
    assert pagecache.cached_fraction([files[0]]) < 0.1


def test_nothing_to_read():
    with pytest.raises(Unavailable):
        disk.open_limit(files=[])


def test_decoding_without_a_decoder(tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "_DECODERS", {"a_decoder_that_nobody_has": decode._pillow})
    with pytest.raises(Unavailable, match="no decoder is installed"):
        decode.open_limit(threads=1)


def test_decoding_counts_images(tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "_DECODERS", {"numpy": lambda: (lambda data: np.zeros((10, 10, 3), np.uint8), bytes)})
    path = tmp_path / "image.jpg"
    path.write_bytes(b"a picture")
    job = decode.open_limit(files=[str(path)] * 5, threads=2)
    try:
        amount = turn(job)[1]
        assert (amount.samples, amount.nbytes) == (5, 1500)
        assert job.notes()["how"] == "numpy, given files"
    finally:
        job.finish()


@pytest.mark.parametrize("name", ["simplejpeg", "PIL"])
def test_decoders(name, monkeypatch):
    pytest.importorskip(name)
    monkeypatch.setattr(decode, "_DECODERS", {name: decode._DECODERS[name]})
    job = decode.open_limit(threads=2)
    try:
        seconds, amount = turn(job)
        assert amount.nbytes == amount.samples * 375 * 500 * 3
        assert 5 < amount.samples / seconds < 1e5
    finally:
        job.finish()


def test_a_limit_that_is_unknown_is_no_failure_and_binds_nobody(tmp_path, capsys):
    limit = Limit("decode", "tests.benchmarks.odd_peers:open_missing", per="samples")
    code, report = run(tmp_path, [contender("reference", "Good")], "--rounds", "1", limits=[limit])
    assert code == 0
    assert named(report["limits"], "decode")["status"] == "unavailable"
    assert report["contenders"][0]["summary"]["to_limit"] is None
    out = capsys.readouterr().out
    assert "decode: unknown: not installed" in out


def test_the_slowest_limit_binds(tmp_path):
    (tmp_path / "bytes").write_bytes(bytes(1000))
    slow = {"files": [str(tmp_path / "bytes")], "queue_depth": 1}
    limits = [
        Limit("fast", "benchmarks.harness.limits.memcpy:open_limit",
              {"files": slow["files"], "buffer_bytes": 1000, "threads": 1}),
        Limit("slow", "benchmarks.harness.limits.disk:open_limit", slow),
        Limit("slower, but not binding", "benchmarks.harness.limits.disk:open_limit", slow, binding=False),
    ]  # fmt: skip
    _, report = run(tmp_path, [contender("reference", "Good")], "--rounds", "3", limits=limits)
    assert report["contenders"][0]["summary"]["limit"] == "slow"
