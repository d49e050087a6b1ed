"""A product is a folder: without it, the rest still works."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli.commands import clean_env
from support.paths import ROOT

# What goes with a product's folder: the public modules that only name it.
PRODUCTS = {
    "chat": [
        "chat",
        *(f"lambdas/{name}.py" for name in ("messaging", "staging", "sweeping")),
    ],
    "exports": ["exports", "jobs.py"],
}
# With few examples, because what fails without a product does not depend on the example.
ENGINE = [
    *("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--hypothesis-profile=few"),
    *(f"tests/unit/{room}" for room in ("lease", "queue", "worker", "process")),
]

IMPORT_ALL = """
import importlib, pkgutil, holdfast
for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
OPEN_CONSOLE = """
from starlette.testclient import TestClient
from holdfast.web import web_app
with TestClient(web_app(["work"]), base_url="http://127.0.0.1") as browser:
    page = browser.get("/")
assert page.status_code == 200 and "work" in page.text, page.text
"""


@pytest.fixture(params=PRODUCTS)
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of the source, with its compiled files, without one product."""
    shutil.copytree(ROOT / "src", tmp_path / "src")
    for path in PRODUCTS[request.param]:
        gone = tmp_path / "src/holdfast" / path
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    return tmp_path


def run(copy: Path, *words: str, cwd: Path | None = None) -> str:
    """Run Python with the copy, and return what it printed."""
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=cwd or copy,
        env={**clean_env(), "PYTHONPATH": str(copy / "src")},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_without_a_product_the_rest_works(copy: Path) -> None:
    run(copy, "-c", IMPORT_ALL)
    holdfast = ("-m", "holdfast.cli")
    listed = run(copy, *holdfast, "--help")
    groups = {name for name in ("chat", "export") if f" {name} " in listed}
    assert len(groups) == 1
    run(copy, *holdfast, "push", "work", "{}")
    assert "1" in run(copy, *holdfast, "status", "work")
    run(copy, *holdfast, "doctor", "work")
    run(copy, "-c", OPEN_CONSOLE)
    run(copy, *ENGINE, cwd=ROOT)
