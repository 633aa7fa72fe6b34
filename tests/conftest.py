"""Options of the whole suite; programs of the loop IR are verified in all of it."""

import os

import pytest


def pytest_configure() -> None:
    os.environ.setdefault("TUNEFARM_VERIFY", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the printed programs that golden tests compare with",
    )
