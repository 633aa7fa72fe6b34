"""Every environment variable that tunefarm reads: its type, its default and what it does.

    settings.NUM_THREADS.get()        # the typed value, read now

What is unset comes from the section ``[settings]`` of a file, under the name without TUNEFARM_ in
small letters. A value that cannot be understood raises SettingError, in one sentence that names the
variable or the file.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tunefarm.compiler.errors import TunefarmError

Value = TypeVar("Value")


PREFIX = "TUNEFARM_"
SECTION = "settings"
SANDBOX = ("landlock", "seccomp")
"""What shuts in processes that run candidates."""


class SettingError(TunefarmError):
    """An environment variable, or a line of the file, that cannot be understood."""


@dataclass(frozen=True, slots=True)
class Setting(Generic[Value]):
    """One environment variable; ``default`` is called when it is unset or empty, in the file too.
    ``write`` makes the text of a value that ``parse`` takes. Those that say where things are cannot
    stand in the file (``in_file``)."""

    name: str
    parse: Callable[[str], Value]
    default: Callable[[], Value]
    help: str
    in_file: bool = True
    write: Callable[[Value], str] = str

    def get(self) -> Value:
        """The value now; SettingError if the text does not parse."""
        text = os.environ.get(self.name, "") or self._of_file()
        if not text:
            return self.default()
        try:
            return self.parse(text)
        except ValueError as error:
            raise SettingError(f"{self.source()}={text!r}: {error}") from None

    def text(self) -> str:
        """The value now as one would write it, empty if there is none."""
        value = self.get()
        return "" if value is None else self.write(value)

    def source(self) -> str:
        """Where the value comes from, for people."""
        if os.environ.get(self.name):
            return self.name
        return f"{CONFIG.get()} [{SECTION}] {self.key}" if self._of_file() else "default"

    @property
    def key(self) -> str:
        """The name in the file."""
        return self.name.removeprefix(PREFIX).lower()

    def _of_file(self) -> str:
        return str(config().get(SECTION, {}).get(self.key, "")) if self.in_file else ""


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError("expected a positive whole number")
    return int(text)


def _non_negative(text: str) -> int:
    if not text.isdigit():
        raise ValueError("expected a whole number, zero or more")
    return int(text)


def _switch(text: str) -> bool:
    words = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
    if text.lower() not in words:
        raise ValueError("expected 1 or 0")
    return words[text.lower()]


def _switch_text(value: bool) -> str:
    return str(int(value))


def _cuda_driver(text: str) -> str:
    if not re.fullmatch("nvidia|emulated(:[1-9])?", text):
        raise ValueError("expected nvidia or emulated, or emulated:2 for two devices")
    return text


def _sandbox(text: str) -> tuple[str, ...]:
    parts = () if text == "none" else tuple(text.split("+"))
    if not set(parts) <= set(SANDBOX):
        raise ValueError(f"expected {'+'.join(SANDBOX)}, one of them, or none")
    return parts


def _sandbox_text(parts: tuple[str, ...]) -> str:
    return "+".join(parts) or "none"


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _optional_path(text: str) -> Path | None:
    return _path(text)


def _home() -> Path:
    import platformdirs

    return platformdirs.user_data_path("tunefarm")


def _cache() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("tunefarm")


def _no_path() -> Path | None:
    return None


def _config() -> Path:
    import platformdirs

    return platformdirs.user_config_path("tunefarm") / "config.toml"


CONFIG = Setting(
    "TUNEFARM_CONFIG", _path, _config, "file of defaults, in TOML; it need not exist", in_file=False
)
HOME = Setting("TUNEFARM_HOME", _path, _home, "folder of the database and other lasting files")
CACHE = Setting("TUNEFARM_CACHE", _path, _cache, "folder of object code that can be made again")
CACHE_BYTES = Setting(
    "TUNEFARM_CACHE_BYTES",
    _non_negative,
    lambda: 1 << 30,
    "bytes that the object cache may take; 0 turns it off",
)
NUM_THREADS = Setting(
    "TUNEFARM_NUM_THREADS",
    _positive,
    lambda: len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
    "threads that run a model, the caller's among them; by default the cores one may use",
)
SPIN_MICROSECONDS = Setting(
    "TUNEFARM_SPIN_MICROSECONDS",
    _non_negative,
    lambda: 1500,
    "how long an idle thread of the pool spins before it sleeps",
)
DUMP = Setting(
    "TUNEFARM_DUMP",
    _optional_path,
    _no_path,
    "folder that receives every stage of each build: graphs, loops, LLVM text, assembly",
)
VERIFY = Setting(
    "TUNEFARM_VERIFY",
    _switch,
    lambda: False,
    "1 checks each program of the loop IR before and after it is lowered",
    write=_switch_text,
)
VERIFY_LLVM = Setting(
    "TUNEFARM_VERIFY_LLVM",
    _switch,
    lambda: True,
    "1 has LLVM verify each module but candidates' before it generates code",
    write=_switch_text,
)
CUDA = Setting(
    "TUNEFARM_CUDA",
    _cuda_driver,
    lambda: "nvidia",
    "what runs code for GPUs: nvidia's driver, or emulated, an emulator of PTX: slow, for tests",
)
GPU_SANDBOX = Setting(
    "TUNEFARM_GPU_SANDBOX",
    _sandbox,
    lambda: SANDBOX,
    "what shuts in a worker's processes that run code on GPUs, all of it by default: "
    "landlock+seccomp, one of them, or none, where a driver does not run so",
    write=_sandbox_text,
)
TOKEN = Setting("TUNEFARM_TOKEN", str, str, "secret that lets in at trackers named by HOST:PORT")
TOKEN_FILE = Setting(
    "TUNEFARM_TOKEN_FILE", _optional_path, _no_path, "file of mode 0600 that holds that secret"
)
TLS_CA = Setting(
    "TUNEFARM_TLS_CA",
    str,
    str,
    "PEM file of the CA that signed the tracker's certificate, or the word system",
)
TLS_CERT = Setting(
    "TUNEFARM_TLS_CERT", str, str, "PEM file of one's own certificate, where the tracker asks"
)
TLS_KEY = Setting("TUNEFARM_TLS_KEY", str, str, "PEM file of that certificate's key")

SETTINGS = (
    CONFIG,
    HOME,
    CACHE,
    CACHE_BYTES,
    NUM_THREADS,
    SPIN_MICROSECONDS,
    DUMP,
    VERIFY,
    VERIFY_LLVM,
    CUDA,
    GPU_SANDBOX,
    TOKEN,
    TOKEN_FILE,
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
)


def config() -> Mapping[str, Any]:
    """What the file says; SettingError if it cannot be read, or names a setting there is not."""
    return _read(CONFIG.get())


@functools.cache
def _read(path: Path) -> Mapping[str, Any]:
    import tomllib

    try:
        with path.open("rb") as file:
            said = tomllib.load(file)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is not TOML: {error}") from None
    known = [setting.key for setting in SETTINGS if setting.in_file]
    section = said.get(SECTION, {})
    if not isinstance(section, Mapping):
        raise SettingError(f"{path}: {SECTION} is a section; write [{SECTION}]")
    for key in section:
        if key not in known:
            raise SettingError(
                f"{path}: [{SECTION}] has no {key!r}; it may hold {', '.join(known)}"
            )
    return said
