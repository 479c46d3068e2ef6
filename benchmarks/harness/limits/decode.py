"""The decoding limit: JPEGs in memory decoded to RGB by the fastest decoder that is installed."""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.contender import Amount, Job
from benchmarks.harness.errors import Unavailable

Decode = Callable[[bytes], Any]
MADE_IMAGES = 64
MADE_HEIGHT, MADE_WIDTH = 375, 500
"""ImageNet's usual size."""
MADE_QUALITY = 90
MAX_FILES = 1024


def open_limit(*, files: Sequence[str] = (), threads: int) -> Job:
    """The job of decoding these JPEG files, or made-up images where none are given.

    Raises:
        Unavailable: no decoder is installed.
    """
    name = next((name for name in _DECODERS if importlib.util.find_spec(name)), None)
    if name is None:
        raise Unavailable("no decoder is installed: pip install simplejpeg, or pillow")
    decode, encode = _DECODERS[name]()
    images = [Path(file).read_bytes() for file in files[:MAX_FILES]] or [encode(pixels) for pixels in _pictures()]
    kind = "given files" if files else f"made-up images of {MADE_WIDTH} x {MADE_HEIGHT}"
    return _DecodeAll(images, decode, threads, f"{name}, {kind}")


class _DecodeAll(Job):
    def __init__(self, images: list[bytes], decode: Decode, threads: int, how: str) -> None:
        self._images = images
        self._decode = decode
        self._pool = ThreadPoolExecutor(threads)
        self._how = how

    def run(self) -> Amount:
        sizes = list(self._pool.map(lambda image: np.asarray(self._decode(image)).nbytes, self._images))
        return Amount(samples=len(sizes), nbytes=sum(sizes))

    def notes(self) -> Mapping[str, str]:
        return {"how": self._how}

    def finish(self) -> None:
        self._pool.shutdown()


def _simplejpeg() -> tuple[Decode, Callable[[Any], bytes]]:
    module = importlib.import_module("simplejpeg")
    return module.decode_jpeg, lambda pixels: bytes(module.encode_jpeg(pixels, MADE_QUALITY))


def _pillow() -> tuple[Decode, Callable[[Any], bytes]]:
    image = importlib.import_module("PIL.Image")

    def decode(data: bytes) -> Any:
        with image.open(io.BytesIO(data)) as opened:
            return opened.convert("RGB")

    def encode(pixels: Any) -> bytes:
        out = io.BytesIO()
        image.fromarray(pixels).save(out, "JPEG", quality=MADE_QUALITY)
        return out.getvalue()

    return decode, encode


_DECODERS = {"simplejpeg": _simplejpeg, "PIL": _pillow}


def _pictures() -> list[Any]:
    """Pictures with about the detail of photographs: smooth waves under some noise."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:MADE_HEIGHT, 0:MADE_WIDTH][..., None]
    pictures = []
    for _ in range(MADE_IMAGES):
        a, b, phase = rng.uniform(0.005, 0.2, (3, 3))
        waves = 127 + 80 * np.sin(a * x + b * y + 50 * phase) + rng.normal(0, 8, (MADE_HEIGHT, MADE_WIDTH, 1))
        pictures.append(np.ascontiguousarray(waves.clip(0, 255).astype(np.uint8)))
    return pictures
