"""A product is a folder: without it, the rest still works."""

import os
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
COMMANDS = {"chat": "chat", "exports": "export"}
# With few examples, because what fails without a product does not depend on the example.
ENGINE = [
    *("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--hypothesis-profile=few"),
    *(f"tests/unit/{room}" for room in ("lease", "queue", "worker", "process")),
]

# One process, because each would spend most of its time on imports. All modules are imported
# last, so that the parts before import what they need by themselves.
USE_THE_REST = """
import contextlib, importlib, io, pkgutil
import holdfast
from holdfast.cli.main import run

def call(*words):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert run(list(words)) == 0, words
    return printed.getvalue()

listed = call("--help")
call("push", "work", "{}")
assert "1" in call("status", "work")
call("doctor", "work")

from starlette.testclient import TestClient
from holdfast.web import web_app
with TestClient(web_app(["work"]), base_url="http://127.0.0.1") as browser:
    page = browser.get("/")
assert page.status_code == 200 and "work" in page.text, page.text

for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(listed)
"""


def copy_without(folder: Path, *products: str) -> Path:
    """Return a copy of the source, with its compiled files, without these products."""
    shutil.copytree(ROOT / "src", folder / "src", copy_function=os.symlink)
    for path in (path for product in products for path in PRODUCTS[product]):
        gone = folder / "src/holdfast" / path
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    return folder


def run(copy: Path, *words: str, cwd: Path) -> str:
    """Run Python with the copy, and return what it printed."""
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**clean_env(), "PYTHONPATH": str(copy / "src")},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("product", PRODUCTS)
def test_without_a_product_the_rest_works(tmp_path: Path, product: str) -> None:
    listed = run(copy_without(tmp_path, product), "-c", USE_THE_REST, cwd=tmp_path)
    groups = {name for name, command in COMMANDS.items() if f" {command} " in listed}
    assert groups == set(PRODUCTS) - {product}


@pytest.mark.parametrize(
    "products",
    [
        pytest.param([*PRODUCTS], id="without any product"),
        *(pytest.param([name], id=name, marks=pytest.mark.nightly) for name in PRODUCTS),
    ],
)
def test_the_engine_passes_its_tests(tmp_path: Path, products: list[str]) -> None:
    """A test that needs one product fails without both, so every day both are gone at once."""
    run(copy_without(tmp_path, *products), *ENGINE, cwd=ROOT)
