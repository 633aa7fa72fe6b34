"""Addresses that end alike: a load that ends in the 12 bits of a store on its way waits for it."""

from __future__ import annotations

from tunefarm.compiler.target import LINE_BYTES, SAME_SET_BYTES


def rows_meet(apart: int, pixel: int) -> bool:
    """True if rows ``apart`` bytes from each other end alike but for two lines, or a pixel more.

    33² of 32 channels, a row of which is 4 KiB and a pixel, waits as 32² does (Zen 4).
    """
    beyond = (apart + SAME_SET_BYTES // 2) % SAME_SET_BYTES - SAME_SET_BYTES // 2
    return min(abs(beyond), abs(beyond - pixel)) < 2 * LINE_BYTES
