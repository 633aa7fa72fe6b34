"""A kernel that tests its accesses, as a function that tells of those that missed."""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.errors import BoundsError
from tunefarm.compiler.runtime.arrays import Array
from tunefarm.compiler.runtime.kernel import KernelFunction
from tunefarm.compiler.tir.transform.bounds_check import Access


@dataclass(frozen=True, slots=True, eq=False)
class CheckedFunction:
    """``kernel`` with its last output, the report, read after each call. To find mistakes with,
    not to time."""

    kernel: KernelFunction
    accesses: tuple[Access, ...]

    def __call__(self, *inputs: object) -> tuple[Array, ...]:
        """The outputs, fresh arrays. Raises BoundsError for the first access that missed its
        buffer, ShapeError if the inputs do not fit."""
        *results, report = self.kernel(*inputs)
        for access, (missed, index) in zip(self.accesses, report.tolist(), strict=False):
            if missed:
                does = "writes" if access.writes else "reads"
                raise BoundsError(
                    f"{self.kernel.name} {does} {access.buffer} at index {index} of dimension "
                    f"{access.dimension}, which has extent {access.extent}; guard the access or "
                    "change its index"
                )
        return tuple(results)
