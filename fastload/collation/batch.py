"""A batch, and the tensors that it is made of: arrays are copied once, into their final place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import get_worker_info

Array: TypeAlias = NDArray[Any] | Tensor
Place: TypeAlias = Any
"""An index, or a tuple of them, that gives a view: slices, never a lone number."""

_CPU = torch.device("cpu")
_INT64 = np.iinfo(np.int64)
_UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})
# By kind and item size, so that byte order plays no part. torch has hardly any kernels for uint16, uint32
# and uint64: they become the next wider signed type (uint64: int64, where its values fit).
_TORCH_DTYPES = {
    "b1": torch.bool,
    "u1": torch.uint8,
    "u2": torch.int32,
    "u4": torch.int64,
    "u8": torch.int64,
    "i1": torch.int8,
    "i2": torch.int16,
    "i4": torch.int32,
    "i8": torch.int64,
    "f2": torch.float16,
    "f4": torch.float32,
    "f8": torch.float64,
    "c8": torch.complex64,
    "c16": torch.complex128,
}


class Batch(dict[str, Any]):
    """A dict of tensors (and lists of tensors or names) that can be moved as a whole."""

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Batch:
        """A new batch with all tensors on `device`, those in lists too; anything else is shared."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """A new batch with all tensors in page-locked memory; torch's DataLoader calls it."""
        return self._map(lambda tensor: tensor.pin_memory())

    def copy(self) -> Batch:
        """A new batch of the same values, as `dict.copy` gives them."""
        return type(self)(self)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return type(self)({name: _map_tensors(value, change) for name, value in self.items()})


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(change(item) if isinstance(item, Tensor) else item for item in value)
    return value


def as_array(value: object) -> Array | None:
    """A sample's value as something to copy from; None for what torch has no tensor for (text, objects, masks, ...).

    Never a copy of an array, and never part of an autograd graph: a batch is data.
    """
    if isinstance(value, Tensor):
        return _as_plain_tensor(value)
    if isinstance(value, np.ma.MaskedArray):
        return None  # as an array it would show the values that its mask hides
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        return array if _dtype_key(array) in _TORCH_DTYPES else None
    if isinstance(value, int) and not isinstance(value, bool):
        # numpy itself would make uint64 or object of a large one, and int32 on some systems
        return np.asarray(value, np.int64) if _INT64.min <= value <= _INT64.max else None
    return np.asarray(value) if isinstance(value, (bool, float, complex)) else None


def torch_dtype(array: Array) -> torch.dtype:
    """The dtype that an array has in a batch: its own, but for unsigned integers of 2 to 8 bytes."""
    return array.dtype if isinstance(array, Tensor) else _TORCH_DTYPES[_dtype_key(array)]


def fits(array: Array) -> bool:
    """Whether the values survive: only those of uint64 may be too large for int64."""
    if isinstance(array, Tensor) or _dtype_key(array) != "u8" or array.size == 0:
        return True
    return bool(array.max() <= _INT64.max)


def common_device(arrays: Sequence[Array]) -> torch.device:
    """Where joined arrays belong: the device that all of them are on, else the CPU."""
    devices = {array.device if isinstance(array, Tensor) else _CPU for array in arrays}
    return devices.pop() if len(devices) == 1 else _CPU


def new_tensor(shape: Sequence[int], dtype: torch.dtype, device: torch.device = _CPU) -> Tensor:
    """A tensor without values, on the CPU unless told otherwise, whatever torch's default device is.

    In a worker process of torch's DataLoader its memory is shared from the start: written once where the
    parent reads it, instead of being copied there when it is sent (1.6 instead of 0.8-1.3 GB/s, 2 workers).
    """
    tensor = torch.empty(tuple(shape), dtype=dtype, device=device)
    if tensor.numel() and tensor.device.type == "cpu" and get_worker_info() is not None:
        tensor.untyped_storage().share_memory_()
    return tensor


def write(target: Tensor, pieces: Iterable[tuple[Place, Array]]) -> None:
    """Copy each array to its place in `target`, converting dtype and byte order on the way.

    numpy does it: it takes read-only memory, negative strides and any byte order as they are, and hands the
    interpreter lock to other threads only for large copies, where each torch call does, for up to 5 ms.
    """
    view = _numpy_view(target)
    for place, array in pieces:
        if view is None or isinstance(array, Tensor):
            target[place].copy_(torch.as_tensor(array, device=target.device))
        else:
            np.copyto(view[place], array, casting="unsafe")


def _as_plain_tensor(tensor: Tensor) -> Array | None:
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return None
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return None  # made of several others: a MaskedTensor, for example
    tensor = tensor.detach()
    if tensor.dtype in _UNSIGNED:
        tensor = tensor.cpu()
    view = _numpy_view(tensor)
    return tensor if view is None else view


def _numpy_view(tensor: Tensor) -> NDArray[Any] | None:
    """The tensor's memory as an array; None on other devices and for dtypes that numpy lacks."""
    if tensor.device.type != "cpu":
        return None
    try:
        view: NDArray[Any] = tensor.resolve_conj().resolve_neg().numpy()
    except TypeError:  # bfloat16, for example
        return None
    return view


def _dtype_key(array: NDArray[Any]) -> str:
    return f"{array.dtype.kind}{array.dtype.itemsize}"
