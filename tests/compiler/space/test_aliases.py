"""Which rows have addresses that end alike."""

from __future__ import annotations

import pytest
from tunefarm.compiler.space.aliases import rows_meet


@pytest.mark.parametrize(
    ("size", "channels", "meet"),
    [
        (32, 32, True), (33, 32, True), (34, 32, False), (31, 32, False), (56, 128, True),
        (28, 256, True), (28, 192, False), (14, 512, True), (14, 576, False), (7, 1024, True),
        (7, 960, False), (7, 512, False),
    ],
)  # fmt: skip
def test_rows_of_images_that_meet(size: int, channels: int, meet: bool) -> None:
    pixel = channels * 4
    assert rows_meet(size * pixel, pixel) == meet


def test_every_other_row_may_meet() -> None:
    assert rows_meet(2 * 7 * 512 * 4, 512 * 4)
    assert not rows_meet(2 * 14 * 576 * 4, 576 * 4)


def test_rows_two_lines_off_do_not_meet() -> None:
    assert [rows_meet(4096 + off, 512) for off in (64, 127, 128, -64, -128, 512, 640)] == [
        True, True, False, True, False, True, False,
    ]  # fmt: skip
