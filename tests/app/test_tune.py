"""`radish tune` where there is nothing to measure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from app.__main__ import main


def test_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["tune"]) == 1
    assert (
        capsys.readouterr().err == "radish tune: this machine has no GPU that the installed torch can use\n"
    )
    assert not list(tmp_path.iterdir())


def test_sizes_of_heads_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tune", "--head-sizes", "64,512"])
    assert "must be at most 256, not 512" in capsys.readouterr().err
