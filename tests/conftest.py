"""Options of the whole suite; programs of the loop IR are verified in all of it."""

import os
import signal

import pytest
from hypothesis import settings

# The same examples in every run: a landing must not depend on luck.
settings.register_profile("tunefarm", derandomize=True, database=None, deadline=None)


def pytest_configure() -> None:
    os.environ.setdefault("TUNEFARM_VERIFY", "1")
    settings.load_profile("tunefarm")
    # A background job of a script ignores Ctrl-C, and what it starts would: the tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the printed programs that golden tests compare with",
    )
