"""Tensors that PyTorch hands to others by DLPack are said to be on a CUDA device: they lie in managed memory.

The offsets are those of DLPack 1.3, dlpack.h: `DLTensor`, `DLManagedTensorVersioned`, `DLPackExchangeAPI`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

_CPU, _CUDA = 1, 2
_VERSION_AND_PREVIOUS, _FUNCTIONS = 16, 5
_TO_OTHERS, _FROM_OTHERS, _VIEW = 1, 2, 3  # among the functions
_DEVICE_OF_VIEW, _DEVICE_OF_VERSIONED = 8, 40
_Give = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
_Look = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_kept: list[Any] = []

_python = ctypes.pythonapi
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_GetName.restype = ctypes.c_char_p
_python.PyCapsule_GetName.argtypes = [ctypes.py_object]
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _set(address: int | None, offset: int, device: int) -> None:
    if address:
        ctypes.c_int32.from_address(address + offset).value = device


def _mark(capsule: Any, device: int) -> Any:
    name = _python.PyCapsule_GetName(capsule)
    versioned = name == b"dltensor_versioned"
    _set(_python.PyCapsule_GetPointer(capsule, name), _DEVICE_OF_VERSIONED if versioned else _DEVICE_OF_VIEW, device)
    return capsule


def install() -> None:
    tensor = torch.Tensor
    give, take = tensor.__dlpack__, torch.from_dlpack

    def given(
        self: Any, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        return _mark(give(self.detach(), max_version=max_version), _CUDA)

    def taken(other: Any, **_: Any) -> Any:
        capsule = other if type(other).__name__ == "PyCapsule" else other.__dlpack__()
        return take(_mark(capsule, _CPU))

    tensor.__dlpack__ = given
    tensor.__dlpack_device__ = lambda self: (_CUDA, 0)
    torch.from_dlpack = torch.utils.dlpack.from_dlpack = taken
    torch.to_dlpack = torch.utils.dlpack.to_dlpack = lambda self: _mark(give(self.detach()), _CUDA)
    if hasattr(tensor, "__dlpack_c_exchange_api__"):
        tensor.__dlpack_c_exchange_api__ = _exchange(tensor.__dlpack_c_exchange_api__)


def _exchange(capsule: Any) -> Any:
    """Returns the table of C functions, with the device changed where a tensor passes."""
    name = _python.PyCapsule_GetName(capsule)
    size = _VERSION_AND_PREVIOUS + 8 * _FUNCTIONS
    table = ctypes.create_string_buffer(ctypes.string_at(_python.PyCapsule_GetPointer(capsule, name), size), size)
    functions = (ctypes.c_void_p * _FUNCTIONS).from_buffer(table, _VERSION_AND_PREVIOUS)
    give, take, look = _Give(functions[_TO_OTHERS]), _Give(functions[_FROM_OTHERS]), _Look(functions[_VIEW])

    def given(tensor: int, result: Any) -> int:
        code = give(tensor, result)
        _set(None if code else result[0], _DEVICE_OF_VERSIONED, _CUDA)
        return code

    def taken(other: int, result: Any) -> int:
        _set(other, _DEVICE_OF_VERSIONED, _CPU)
        return take(other, result)

    def looked(tensor: int, result: int) -> int:
        code = look(tensor, result)
        _set(None if code else result, _DEVICE_OF_VIEW, _CUDA)
        return code

    replaced = {_TO_OTHERS: _Give(given), _FROM_OTHERS: _Give(taken), _VIEW: _Look(looked)}
    for place, function in replaced.items():
        functions[place] = ctypes.cast(function, ctypes.c_void_p)
    _kept.extend([table, functions, *replaced.values(), name])
    return _python.PyCapsule_New(ctypes.addressof(table), name, None)
