"""DLPack's capsules against NumPy and torch, with memory of the host."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from tunefarm.compiler.errors import ShapeError, TargetError
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.runtime import dlpack
from tunefarm.compiler.runtime.cuda.arrays import to_device
from tunefarm.compiler.runtime.cuda.driver import open_device

CPU = (1, 0)


class Owner:
    """Lends an array as if it lay on the host."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU

    def __dlpack__(self, **options: object) -> object:
        tensor = TensorType(self.array.shape, self.array.dtype.name)
        return dlpack.lend(self.array.ctypes.data, tensor, CPU, self)


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "float64", "int8", "uint8", "int64", "bool"]
)
def test_numpy_reads_what_is_lent(dtype: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    seen = np.from_dlpack(Owner(array))
    assert seen.dtype == array.dtype
    np.testing.assert_array_equal(seen, array)
    assert np.shares_memory(seen, array)


def test_torch_reads_what_is_lent() -> None:
    torch = pytest.importorskip("torch")
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    seen = torch.from_dlpack(Owner(array))
    assert seen.tolist() == array.tolist()
    array[0, 0] = 7
    assert seen[0, 0] == 7


def test_an_owner_lives_as_long_as_what_it_lent() -> None:
    owner = Owner(np.zeros(3, np.float32))
    alive = weakref.ref(owner)
    seen = np.from_dlpack(owner)
    unused = owner.__dlpack__()
    del owner
    gc.collect()
    assert alive() is not None
    del seen
    gc.collect()
    assert alive() is not None
    del unused
    gc.collect()
    assert alive() is None
    assert not dlpack._LENT


@pytest.mark.parametrize(
    ("view", "contiguous"),
    [
        (lambda a: a, True),
        (lambda a: a[1:], True),
        (lambda a: a[:, 1:], False),
        (lambda a: a.T, False),
        (lambda a: a[:1].T, True),
        (lambda a: a[:0, ::2], True),
        (lambda a: a[0, 0], True),
    ],
)
def test_what_is_borrowed_is_read_as_it_lies(view: object, contiguous: bool) -> None:
    array = view(np.arange(12, dtype=np.int32).reshape(3, 4))[...]  # type: ignore[operator]
    borrowed = dlpack.borrow(array.__dlpack__(), "x")
    assert borrowed.type == TensorType(array.shape, "int32")
    assert borrowed.contiguous == contiguous
    assert borrowed.contiguous == array.flags.c_contiguous
    assert borrowed.ordinal == 0
    if array.size:
        assert borrowed.address == array.ctypes.data


def test_bfloat16_and_what_no_kernel_takes() -> None:
    torch = pytest.importorskip("torch")
    ones = torch.ones(2, 2, dtype=torch.bfloat16)
    assert dlpack.borrow(ones.__dlpack__(), "x").type == TensorType((2, 2), "bfloat16")
    with pytest.raises(ShapeError, match="x has elements of DLPack's type 5 with 1 lanes"):
        dlpack.borrow(torch.ones(2, dtype=torch.complex64).__dlpack__(), "x")


def test_no_library_is_given_the_memory_of_an_emulator() -> None:
    tensor = TensorType((3,), "float32")
    array = to_device(open_device(), np.arange(3, dtype=np.float32), tensor, "x")
    assert array.__dlpack_device__() == (dlpack.CUDA, 0)
    for lend in (array.__dlpack__, lambda: array.__cuda_array_interface__):
        with pytest.raises(TargetError, match=r"in the memory of an emulator.*numpy\(\) copies it"):
            lend()
    assert array.dtype == np.float32
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(array, copy=False)
