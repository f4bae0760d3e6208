"""The ways Radish is shipped: a wheel that serves, an image, a cluster's manifests, a systemd unit."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.prometheus_operator.v1 import PodMonitor

from engine.config import Config

ROOT = Path(__file__).parents[2]
OPS = ROOT / "ops"
SHIPPED = ("app", "engine", "grammars", "kernels", "pyproject.toml", "README.md", "LICENSE")


def run(*command: str | Path, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


# -- the wheel -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    options = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--wheel-dir")
    run(sys.executable, "-m", "pip", "wheel", *options, folder, source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_the_wheel_holds_every_file_that_is_needed(wheel: Path) -> None:
    source = wheel.with_name("source")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    needed = {
        str(path.relative_to(source))
        for folder in ("app", "engine", "grammars", "kernels")
        for path in (source / folder).rglob("*")
        if path.is_file()
    }
    assert "app/static/index.html" in needed
    assert needed <= names
    assert all(name in needed or ".dist-info/" in name for name in names)


async def test_the_wheel_serves_from_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    """Its own environment holds nothing but the wheel; the dependencies are borrowed from this one, without
    the link to the source tree that is beside them."""
    clean = tmp_path / "clean"
    venv.create(clean, symlinks=True)
    site = next(clean.glob("lib/python*/site-packages"))
    python = clean / "bin" / "python"
    options = ("--disable-pip-version-check", "--python", python)
    run(sys.executable, "-m", "pip", *options, "install", "--no-deps", wheel)
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{sysconfig.get_path('purelib')}"}
    for name in ("app", "engine", "grammars", "kernels"):
        where = run(python, "-c", f"import {name}; print({name}.__file__)", env=environment, cwd=tmp_path)
        assert Path(where).is_relative_to(site)
    process = await asyncio.create_subprocess_exec(
        *(python, "-m", "app", "serve", "--port", "0", "--kv-memory", "64", "--log-format", "json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    said = re.search(r"http://\S+", (await process.stdout.readline()).decode())
    assert said
    async with httpx.AsyncClient(base_url=said[0], timeout=60) as http:
        assert "<title>Radish</title>" in (await http.get("/")).text
        assert (await http.get("/static/main.js")).status_code == 200
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        body = {"model": model, "prompt": "One, two, three,", "max_tokens": 2, "temperature": 0}
        assert "four" in (await http.post("/v1/completions", json=body)).json()["choices"][0]["text"]
    process.terminate()
    _, errors = await process.communicate()
    assert process.returncode == 0
    lines = [json.loads(line) for line in errors.decode().splitlines()]
    assert [line["path"] for line in lines if "path" in line] == ["/v1/models", "/v1/completions"]


# -- the image -----------------------------------------------------------------------------------------


def test_the_dockerfile_passes_its_linter() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint has no build for this machine")
    run(hadolint, OPS / "Dockerfile")


def test_the_image_runs_as_nobody_in_particular_and_knows_its_health() -> None:
    build, final = re.split(r"(?m)^FROM ", (OPS / "Dockerfile").read_text())[1:]
    assert re.search(r"(?m)^USER 10001:10001$", final)
    assert "/health" in re.search(r"(?ms)^HEALTHCHECK.*?]$", final)[0]  # type: ignore[index]
    copied = set(re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", build))
    sources = {name for line in copied for name in line.split()}
    assert sources == {*SHIPPED, "ops/constraints.txt"}
    ignored = (OPS / "Dockerfile.dockerignore").read_text().split()
    assert {name.removeprefix("!") for name in ignored if name.startswith("!")} == sources
    assert all((ROOT / name).exists() for name in sources)


def test_what_the_build_stage_compiles_can_be_read_by_the_user_that_runs_it(tmp_path: Path) -> None:
    """The cache is its owner's alone, and another user serves: it would find no native step."""
    build, _ = re.split(r"(?m)^FROM ", (OPS / "Dockerfile").read_text())[1:]
    *_, command = re.findall(r"(?m)^RUN ((?:.*\\\n)*.*)$", build)
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\nmkdir -p -m 700 "$XDG_CACHE_HOME/radish/kernels"\n'
        'install -m 700 "$0" "$XDG_CACHE_HOME/radish/kernels/step.so"\n'
    )
    python.chmod(0o755)
    cache = tmp_path / "cache"
    run(
        "bash",
        "-c",
        command,
        env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "XDG_CACHE_HOME": str(cache)},
    )
    assert {path.stat().st_mode & 0o005 for path in cache.rglob("*")} == {0o005}


# -- the cluster ---------------------------------------------------------------------------------------


def manifest(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((OPS / "kubernetes" / f"{name}.yaml").read_text())
    return loaded


@pytest.mark.parametrize("name", ["deployment", "service", "hpa"])
def test_manifests_fit_the_schemas_of_kubernetes(name: str) -> None:
    kubernetes_validate.validate(
        manifest(name), desired_version=kubernetes_validate.latest_version(), strict=True
    )


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
def test_what_kubectl_makes_of_the_folder_is_every_manifest_with_the_common_label() -> None:
    made = {
        item["kind"]: item for item in yaml.safe_load_all(run("kubectl", "kustomize", OPS / "kubernetes"))
    }
    written = [manifest(name) for name in ("deployment", "service", "podmonitor", "hpa")]
    for item in written:
        item["metadata"]["labels"]["app.kubernetes.io/part-of"] = "radish"
    assert made == {item["kind"]: item for item in written}


def test_the_pod_monitor_fits_the_schema_of_the_prometheus_operator() -> None:
    """What the schema does not know is lost on the way through it."""
    written = manifest("podmonitor")
    read = PodMonitor.model_validate(written)
    assert read.model_dump(mode="json", by_alias=True, exclude_unset=True) == written


def test_what_the_image_writes_to_is_mounted() -> None:
    """The pod's root is read-only: all it may write are its volumes."""
    pod = manifest("deployment")["spec"]["template"]["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    (weights,) = re.findall(
        r"(?m)^RUN install -d -o radish -g radish (\S+)$", (OPS / "Dockerfile").read_text()
    )
    assert mounts == {"tmp": "/tmp", "weights": weights}
    assert [volume["name"] for volume in pod["volumes"]] == list(mounts)


def test_manifests_fit_each_other_and_the_server() -> None:
    deployment, service, monitor, hpa = map(manifest, ("deployment", "service", "podmonitor", "hpa"))
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    labels = pod["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == labels
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["spec"]["selector"]["matchLabels"] == labels
    (port,) = container["ports"]
    assert (port["name"], port["containerPort"]) == ("http", Config().port)
    assert [item["targetPort"] for item in service["spec"]["ports"]] == ["http"]
    assert [(item["port"], item["path"]) for item in monitor["spec"]["podMetricsEndpoints"]] == [
        ("http", "/metrics")
    ]
    assert hpa["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    (rule,) = manifest("prometheus-adapter-values")["rules"]["custom"]
    (metric,) = hpa["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    assert rule["seriesQuery"].startswith("vllm:num_requests_waiting{")
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    options = dict(zip(container["args"][::2], container["args"][1::2], strict=True))
    assert {name.removeprefix("--").replace("-", "_") for name in options} <= set(Config.__struct_fields__)
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["spec"]["terminationGracePeriodSeconds"] > int(options["--drain-timeout"]) + pause
    listed = manifest("kustomization")["resources"]
    assert all((OPS / "kubernetes" / name).exists() for name in listed)


# -- systemd -------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_the_unit_is_right_and_confined(tmp_path: Path) -> None:
    text = (OPS / "radish.service").read_text()
    options = re.findall(r"--([a-z-]+)", re.search(r"(?m)^ExecStart=.*$", text)[0])  # type: ignore[index]
    assert {name.replace("-", "_") for name in options} <= set(Config.__struct_fields__)
    unit = tmp_path / "radish.service"
    unit.write_text(text.replace("/opt/radish/bin/radish", str(Path(sys.executable).with_name("radish"))))
    run("systemd-analyze", "verify", unit)
    exposure = re.search(
        r"level for radish.service: ([\d.]+)", run("systemd-analyze", "security", "--offline=true", unit)
    )
    assert exposure
    assert float(exposure[1]) <= 2.5
