"""Conditions on the tags of devices: what they mean, and what is no condition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tunefarm.db.records import Device
from tunefarm.tracker.selector import compare_versions, parse_selector, tags_of

H200 = Device(
    "cuda-1", "cuda", "NVIDIA H200", "cuda -arch=sm_90 -num-cores=132", "w1",
    {"host": "lab3", "driver": "550.54.14"}, compiler_version="0.1.0+abc",
)  # fmt: skip
MI300 = Device("rocm-1", "rocm", "MI300X", "rocm -arch=gfx942", "w2", {"host": "lab4"})
XEON = Device("llvm-1", "llvm", "Xeon 8581C 2 cores", "llvm -mcpu=emeraldrapids -num-cores=2", "w3")
DEVICES = (H200, MI300, XEON)


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("", {"cuda-1", "rocm-1", "llvm-1"}),
        (" , ", {"cuda-1", "rocm-1", "llvm-1"}),
        ("kind=cuda arch>=sm_90 host!=lab3", set()),
        ("kind=cuda arch>=sm_90 host!=lab4", {"cuda-1"}),
        ("kind=cuda,arch>=sm_80,  host = lab3", {"cuda-1"}),
        ("kind==cuda", {"cuda-1"}),
        ("arch>=sm_90", {"cuda-1"}),
        ("arch>sm_90", set()),
        ("arch<sm_100", {"cuda-1"}),
        ("arch<=gfx942", {"rocm-1"}),
        ("num-cores>=2", {"cuda-1", "llvm-1"}),
        ("num-cores<10", {"llvm-1"}),
        ("driver>=550.9", {"cuda-1"}),
        ("driver>=550.100", set()),
        ("host!=lab3", {"rocm-1", "llvm-1"}),
        ("host=lab3|lab4", {"cuda-1", "rocm-1"}),
        ("host!=lab3|lab4", {"llvm-1"}),
        ("host=lab*", {"cuda-1", "rocm-1"}),
        ("host!=*", {"llvm-1"}),
        ("model=*8581C*cores", {"llvm-1"}),
        ("model='Xeon 8581C 2 cores'", {"llvm-1"}),
        ('model="Xeon 8581C*"', set()),
        ("worker=w1 device=cuda-1 compiler=0.1.0+abc", {"cuda-1"}),
        ("Kind=cuda", set()),
    ],
)
def test_conditions_select_devices(text: str, selected: set[str]) -> None:
    selector = parse_selector(text)
    assert {d.id for d in DEVICES if selector.selects(d)} == selected
    assert parse_selector(str(selector)) == selector


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("fast", "'fast' is no condition; a device is selected by NAME=VALUE, with =, !=, <, <="),
        ("kind=cuda fast", "'fast' is no condition"),
        ("=cuda", "'=cuda' is no condition"),
        ("3d=yes", "'3d=yes' is no condition"),
        ("kind=", "'kind=' lacks its value"),
        ("kind= , host=a", "'kind= , host=a' is no condition|'kind=' is no condition"),
        ("kind=a=b", "'kind=a=b' is no condition"),
        ("arch=>sm_90", "'arch=>sm_90' is no condition"),
        ("kind:cuda", "'kind:cuda' is no condition"),
        ("model='a b", "has a quote that does not end"),
        ("model='a'b", "has a quote that does not end, or more after it"),
        ("host>=lab", "'host>=lab': >= compares numbers and versions, such as 8, 3.10 or sm_90"),
        ("arch>=sm_9*", r"\* and \| stand in values of = and != only, not of >="),
        ("host=a||b", "'host=a||b' has an empty alternative".replace("|", r"\|")),
        ("x=" + 1000 * "y", "has 1002 characters; 1000 are allowed"),
    ],
)
def test_what_is_no_condition_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        parse_selector(text)
    assert "\n" not in str(caught.value)


def test_what_the_farm_knows_cannot_be_told_otherwise() -> None:
    liar = Device("d", "cuda", "m", "cuda -arch=sm_90", "w", {"kind": "sim", "arch": "sm_100"})
    known = {"device": "d", "kind": "cuda", "model": "m", "worker": "w", "compiler": ""}
    assert tags_of(liar) == {"arch": "sm_100", **known}


@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        ("8", "08", 0),
        ("9", "10", -1),
        ("3.9", "3.10", -1),
        ("sm_90a", "sm_90", 1),
        ("sm_90", "gfx90", None),
        ("90", "sm_90", None),
        ("9" * 5000, "9" * 4999, 1),
        ("", "1", -1),
    ],
)
def test_versions_are_compared_by_their_numbers(left: str, right: str, order: int | None) -> None:
    assert compare_versions(left, right) == order
    assert compare_versions(right, left) == (None if order is None else -order)


versions = st.lists(st.integers(0, 20), min_size=1, max_size=4)


@given(versions, versions)
def test_versions_are_ordered_as_lists_of_numbers(left: list[int], right: list[int]) -> None:
    order = compare_versions(".".join(map(str, left)), ".".join(map(str, right)))
    assert order == (left > right) - (left < right)


@given(st.text(max_size=60))
def test_any_text_is_a_selector_or_refused_in_one_sentence(text: str) -> None:
    try:
        selector = parse_selector(text)
    except ValueError as error:
        sentence = str(error)
        assert len(sentence.splitlines()) == 1
        return
    for device in DEVICES:
        selector.selects(device)
    assert parse_selector(str(selector)) == selector
