"""LLVM text → object code, the object cache, and settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tunefarm.compiler import settings
from tunefarm.compiler.codegen import object_cache
from tunefarm.compiler.codegen.llvm_compile import assembly, cache_key, compile_llvm
from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.target import Target

FMA = """
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
define void @f(ptr %pool, ptr %workspace, ptr %x) {
  %a = load <16 x float>, ptr %x
  %b = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %a, <16 x float> %a)
  store <16 x float> %b, ptr %x
  ret void
}
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNEFARM_CACHE", str(tmp_path))
    return tmp_path / "objects"


def entries(cache: Path) -> list[Path]:
    return [path for path in cache.glob("*/*") if path.is_file()]


def test_the_vector_width_follows_the_target() -> None:
    wide, narrow = Target("llvm -mcpu=znver5"), Target("llvm -mcpu=haswell")
    assert "zmm" in assembly(FMA, wide)
    assert "zmm" not in assembly(FMA, narrow)
    assert "ymm" in assembly(FMA, narrow)


def test_a_second_compile_comes_from_the_cache(cache: Path) -> None:
    target = Target("llvm -mcpu=znver4")
    code = compile_llvm(FMA, target)
    (entry,) = entries(cache)
    assert entry.read_bytes().endswith(code)
    replaced = b"other code"
    object_cache.store(cache_key(FMA, target), replaced)
    assert compile_llvm(FMA, target) == replaced
    assert compile_llvm(FMA, target, cache=False) == code


def test_a_corrupt_entry_is_made_again(cache: Path) -> None:
    target = Target("llvm -mcpu=znver4")
    code = compile_llvm(FMA, target)
    (entry,) = entries(cache)
    for damage in (b"", entry.read_bytes()[:-1], b"\xff" * 200):
        entry.write_bytes(damage)
        assert compile_llvm(FMA, target) == code
        assert entry.read_bytes().endswith(code)


def test_the_key_covers_what_decides_the_code() -> None:
    target = Target("llvm -mcpu=znver5")
    keys = {
        cache_key(FMA, target),
        cache_key(FMA + "\n", target),
        cache_key(FMA, Target("llvm -mcpu=znver4")),
        cache_key(FMA, Target("llvm -mcpu=znver5 -mattr=-avx512vnni")),
        cache_key(FMA, target, optimize=True),
        cache_key(FMA, target, level=3),
    }
    assert len(keys) == 6


def test_a_cache_that_cannot_be_written_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TUNEFARM_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot be written.*TUNEFARM_CACHE") as found:
        codes = [compile_llvm(FMA, Target(f"llvm -mcpu=znver{n}")) for n in (4, 5)]
    assert all(code.startswith(b"\x7fELF") for code in codes)
    assert len(found) == 1


def test_trim_deletes_what_was_unused_for_longest(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for age, name in enumerate(["new", "middle", "old"]):
        object_cache.store(name.ljust(64, "0"), bytes(1000))
        place = cache / name[:2] / name.ljust(64, "0")[2:]
        os.utime(place, (1e9 - age, 1e9 - age))
    size = entries(cache)[0].stat().st_size
    monkeypatch.setenv("TUNEFARM_CACHE_BYTES", str(2 * size))
    assert object_cache.trim() == size
    assert object_cache.load("old".ljust(64, "0")) is None
    assert object_cache.load("new".ljust(64, "0")) == bytes(1000)


def test_wrong_text_is_a_build_error() -> None:
    with pytest.raises(BuildError, match=r"cannot read the module: .*expected"):
        compile_llvm("define void @f() { nonsense }", Target("llvm"))


def test_a_setting_that_does_not_parse_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFARM_NUM_THREADS", "many")
    with pytest.raises(settings.SettingError, match=r"TUNEFARM_NUM_THREADS='many': .*positive"):
        settings.NUM_THREADS.get()
    monkeypatch.setenv("TUNEFARM_NUM_THREADS", "3")
    assert settings.NUM_THREADS.get() == 3


def test_every_setting_is_described() -> None:
    for setting in settings.SETTINGS:
        assert setting.help, setting.name


def test_a_kept_module_is_verified() -> None:
    early = "define i64 @f(i64 %x) {\n  %a = add i64 %b, 1\n  %b = add i64 %x, 1\n  ret i64 %a\n}\n"
    with pytest.raises(BuildError, match=r"LLVM finds the module invalid: .*dominate"):
        compile_llvm(early, Target("llvm -mcpu=znver5"))
