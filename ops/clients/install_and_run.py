"""Each client in an environment of its own, against one server: ops/clients/run URL [NAME...]

Prints a line a client that says what was proven. Exits with the number of clients that got something else.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "ops" / "clients"
HOME = Path(os.environ.get("CLIENTS_HOME", ROOT / ".venv-clients"))
PYTHON: Mapping[str, str] = {
    "anthropic": "with_anthropic",
    "guidellm": "with_guidellm",
    "instructor": "with_instructor",
    "langchain": "with_langchain",
    "litellm": "with_litellm",
    "llm": "with_llm",
    "lm-eval": "with_lm_eval",
    "openai-2": "with_openai",
    "openai-3": "with_openai",
    "pydantic-ai": "with_pydantic_ai",
    "vllm": "with_vllm",
}
"""The module that asks with the client in requirements/NAME.txt."""
NODE = ("ai-sdk", "openai-npm")
"""Folders below node/."""


def main() -> int:
    """Ask with the clients that the command line names, or with all."""
    parser = argparse.ArgumentParser(prog="ops/clients/run", description=__doc__)
    names = sorted([*PYTHON, *NODE])
    parser.add_argument("url", help="of the server, without a path")
    parser.add_argument("name", nargs="*", help=f"one of {', '.join(names)}; all if none")
    parser.add_argument(
        "--together", action="store_true", help="one environment for all of those written in Python"
    )
    options = parser.parse_args()
    chosen = options.name or names
    if unknown := set(chosen) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    python = [name for name in chosen if name in PYTHON]
    shared = install_python("together", python) if options.together and python else None
    failures = 0
    for name in chosen:
        if name in NODE:
            command = node_command(name)
        else:
            command = [str(shared or install_python(name, [name])), "-m", f"ops.clients.{PYTHON[name]}"]
        if subprocess.run([*command, options.url], check=False, cwd=ROOT).returncode:
            print(f"{name}: FAILED", flush=True)
            failures += 1
    return failures


def install_python(environment: str, names: list[str]) -> Path:
    """The Python of a virtual environment with these clients."""
    python = HOME / environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", HOME / environment], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    wanted = [HERE / "requirements" / f"{name}.txt" for name in names]
    subprocess.run([*pip, *(text for file in wanted for text in ("-r", str(file)))], check=True)
    for alone in (file.with_suffix(".no-deps.txt") for file in wanted):
        if alone.exists():
            subprocess.run([*pip, "--no-deps", "-r", str(alone)], check=True)
    return python


def node_command(name: str) -> list[str]:
    """What runs a client for Node, once its packages, one of which is Node itself, are installed."""
    place = HOME / name
    shutil.copytree(HERE / "node", HOME, dirs_exist_ok=True)
    subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=place, check=True)
    return [str(place / "node_modules" / ".bin" / "node"), str(place / "check.mjs")]


if __name__ == "__main__":
    sys.exit(main())
