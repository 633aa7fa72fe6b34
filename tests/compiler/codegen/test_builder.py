"""Value numbering: where instructions land, and how long they are known."""

from __future__ import annotations

from tunefarm.compiler.codegen.builder import FunctionBuilder


def test_a_pure_instruction_leaves_the_frames_that_its_operands_do_not_need() -> None:
    b = FunctionBuilder()
    b.open_frame("loop")
    counter = b.fresh("i")
    b.define(counter)
    outside = b.pure("mul i64 %n, 4", ["%n"])
    inside = b.pure(f"mul i64 {counter}, 4", [counter])
    assert b.frames[0].lines == [f"  {outside} = mul i64 %n, 4"]
    assert b.frames[1].lines == [f"  {inside} = mul i64 {counter}, 4"]


def test_equal_instructions_are_made_once_as_long_as_their_frame_is_open() -> None:
    b = FunctionBuilder()
    b.open_frame("then")
    first = b.here("call float @f()")
    assert b.here("call float @f()") == first
    b.close_frame()
    assert b.here("call float @f()") != first


def test_a_shorter_key_is_forgotten_with_the_value() -> None:
    b = FunctionBuilder()
    b.open_frame("loop")
    b.remember("kept", b.pure("mul i64 %n, 4", ["%n"]))
    b.remember("lost", b.here("call float @f()"))
    b.close_frame()
    assert "kept" in b.known
    assert "lost" not in b.known


def test_a_load_is_made_again_after_a_store_and_after_its_frame() -> None:
    b = FunctionBuilder()
    first = b.load("load float, ptr %p", "buffer")
    assert b.load("load float, ptr %p", "buffer") == first
    b.forget("buffer")
    second = b.load("load float, ptr %p", "buffer")
    assert second != first
    b.open_frame("then")
    inner = b.load("load float, ptr %q", "buffer")
    b.remember_load("buffer", "element 3", inner)
    assert b.loaded("buffer", "element 3") == inner
    b.close_frame()
    assert b.loaded("buffer", "element 3") is None
    assert b.load("load float, ptr %p", "buffer") == second
