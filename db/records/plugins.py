"""Plug-ins and compilers as devices' tags say which have them."""

from __future__ import annotations

import re
from collections.abc import Iterable

COMPILER_TAG = "compiler"
"""The attribute of a device whose code another compiler makes than that of its worker's others."""
PLUGIN_TAG = "plugin."
"""Before the name of a package: the tag of devices whose worker has that plug-in."""


def plugin_tags(plugins: Iterable[str]) -> dict[str, str]:
    """The tags of a device whose worker has these plug-ins (``package==version``)."""
    pairs = (plugin.partition("==") for plugin in plugins)
    return {f"{PLUGIN_TAG}{package}": version for package, _, version in pairs}


def plugin_conditions(plugins: Iterable[str]) -> str:
    """The selector of devices whose workers have these plug-ins."""
    return " ".join(f'{name}="{version}"' for name, version in plugin_tags(plugins).items())


def plugins_in(selector: str) -> tuple[str, ...]:
    """The plug-ins (``package==version``) that a selector asks for."""
    found = _PLUGIN_CONDITION.findall(selector)
    return tuple(f"{package}=={version}" for package, version in found)


_PLUGIN_CONDITION = re.compile(re.escape(PLUGIN_TAG) + r"([\w.-]+)=\"([^\"]*)\"")
