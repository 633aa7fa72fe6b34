"""The layers: who may import whom, and what must not be loaded early."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {
    "db": {"db"},
    "proto": {"proto", "db.records"},
    "compiler": {"compiler"},
    "dashboard": {"dashboard", "db", "proto"},
    "worker": {"worker", "compiler", "proto", "db.records"},
    "tracker": {"tracker", "db", "proto"},
    "tuner": {"tuner", "compiler", "proto", "db.records"},
}
FOR_ALL = {"notebook", "texts"}
"""How values look: the standard library is all that these import."""
EXCEPTIONS = {
    "compiler/decisions.py": {"compiler", "db"},
    "compiler/dispatch.py": {"compiler", "db"},
    "dashboard/code_child.py": {"compiler"},
}


def imported_modules(path: Path) -> set[str]:
    """Our modules that a file imports, without the leading ``tunefarm.``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.update(f"{node.module}.{a.name}" for a in node.names)
        elif isinstance(node, ast.Import):
            found.update(a.name for a in node.names)
    return {m.removeprefix("tunefarm.") for m in found if m.startswith("tunefarm.")}


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_layers_import_only_what_the_architecture_allows(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        name = str(path.relative_to(ROOT))
        allowed = EXCEPTIONS.get(name, ALLOWED[folder]) | FOR_ALL | {"__version__"}
        for module in imported_modules(path):
            assert any(module == a or module.startswith(f"{a}.") for a in allowed), (
                f"{name} imports tunefarm.{module}"
            )


@pytest.mark.parametrize("name", sorted(FOR_ALL))
def test_what_all_layers_import_stands_alone(name: str) -> None:
    path = ROOT / "tunefarm" / f"{name}.py"
    assert {module.partition(".")[0] for module in imported_modules(path)} <= FOR_ALL
    roots = {
        word.partition(".")[0]
        for node in ast.walk(ast.parse(path.read_text()))
        for word in (
            [a.name for a in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert roots <= {*sys.stdlib_module_names, "tunefarm"}


def run_without(modules: str, code: str) -> None:
    """Run code in a process in which importing the modules fails."""
    blocked = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {modules.split()!r}:\n"
        "            raise ImportError(f'{name} is blocked')\n"
        "sys.meta_path.insert(0, Block())\n"
    )
    done = subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_worker_and_compiler_start_without_xgboost_and_sqlalchemy() -> None:
    run_without(
        "xgboost sqlalchemy onnx torch",
        "import tunefarm.worker.main, tunefarm.compiler.build, tunefarm.compiler.extract",
    )


def test_a_build_needs_no_grpc_and_no_onnx() -> None:
    run_without("grpc sqlalchemy xgboost onnx", "import tunefarm.compiler.build")


def test_importing_the_package_is_light() -> None:
    run_without("numpy llvmlite onnx grpc sqlalchemy xgboost rich typer", "import tunefarm")


def test_every_package_folder_is_in_the_wheel() -> None:
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    listed = set(settings["packages"])
    for folder in (*ALLOWED, "tunefarm"):
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            name = ".".join(parts if parts[0] == "tunefarm" else ("tunefarm", *parts))
            assert name in listed, f"{name} is not in [tool.setuptools] packages"
