"""What is imported is declared, and what is declared is pinned."""

from __future__ import annotations

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ops.setup import CONSTRAINTS, PYPROJECT, ROOT, constraints_for

PACKAGES = ("app", "engine", "grammars", "kernels")
PYPROJECT_TABLES = tomllib.loads(PYPROJECT.read_text())
PROJECT = PYPROJECT_TABLES["project"]
RUNTIME = [Requirement(text) for text in PROJECT["dependencies"]]
OPTIONAL = [Requirement(text) for extra in PROJECT["optional-dependencies"].values() for text in extra]

OF_EXTRAS = {"triton", "opentelemetry"}
"""Modules that are imported only where an extra is asked for."""


def pins(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def imported(path: Path) -> set[str]:
    """Top-level modules that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_every_requirement_is_pinned_within_its_range() -> None:
    pinned = pins(CONSTRAINTS.read_text())
    for requirement in RUNTIME + OPTIONAL:
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement


def test_what_is_imported_is_declared() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    used = set().union(*map(imported, files)) - sys.stdlib_module_names - set(PACKAGES) - OF_EXTRAS
    distributions = {canonicalize_name(name) for module in used for name in packages_distributions()[module]}
    declared = {canonicalize_name(requirement.name) for requirement in RUNTIME}
    assert distributions <= declared


def test_a_torch_of_the_users_own_is_kept() -> None:
    ours = CONSTRAINTS.read_text()
    assert constraints_for(ours, "") == ours
    kept = pins(constraints_for(ours, "2.11.0+cu130"))
    assert kept.pop("torch") == "2.11.0+cu130"
    assert kept == {name: version for name, version in pins(ours).items() if name not in {"torch", "triton"}}


def test_files_that_are_no_code_go_into_the_wheel() -> None:
    patterns = PYPROJECT_TABLES["tool"]["setuptools"]["package-data"]
    packaged = {
        path
        for package, globs in patterns.items()
        for glob in globs
        for path in (ROOT / package.replace(".", "/")).glob(glob)
    }
    files = {path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()}
    assert {path for path in files if path.suffix not in {".py", ".pyc"}} == packaged
