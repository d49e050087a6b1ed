"""`holdfast` on the package index is another project: no advice installs it over this one."""

import re
import subprocess
from pathlib import Path
from zipfile import ZipFile

import pytest
from tools.other_pythons import OWN, find_python

from support.fresh_environment import FreshEnvironment
from support.paths import ROOT

# A requirement that an index would resolve: `holdfast` with extras or a version, or after
# `install`. A path, such as ./holdfast, is none. The changelog tells what earlier pages said.
FOREIGN = re.compile(
    r"(?<![\w./-])holdfast(?:\[[a-z]|[=~<>!]=)|\binstall(?: -[\w-]+)* ['\"`]?holdfast(?![\w-])"
)
EXEMPT = {"tests/integration/docs/test_install_advice.py"}


def find_foreign(text: str) -> list[str]:
    return [line for line in text.splitlines() if FOREIGN.search(line)]


def test_no_file_of_the_repository_advises_to_install_the_other_project() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True)
    files = [ROOT / name for name in listed.stdout.decode().splitlines() if name not in EXEMPT]
    advice = {
        str(path.relative_to(ROOT)): lines
        for path in files
        if path.is_file() and (lines := find_foreign(path.read_text(errors="replace")))
    }
    assert len(files) > 500
    assert advice == {}


@pytest.mark.parametrize(
    "line",
    [
        "pip install 'holdfast[web]'",
        "pip install -U holdfast",
        'uv pip install --upgrade "holdfast"',
        "needs `holdfast[aws,export]`",
        "holdfast==0.1.0",
    ],
)
def test_the_search_finds_each_form_of_the_advice(line: str) -> None:
    assert find_foreign(line) == [line]


def make_foreign_wheel(folder: Path) -> Path:
    """Make a wheel of another project that is called `holdfast` and has such a package."""
    path, info = folder / "holdfast-9.0-py3-none-any.whl", "holdfast-9.0.dist-info"
    files = {
        "holdfast/__init__.py": "__all__ = ['Contract']\nclass Contract: ...\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: holdfast\nVersion: 9.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with ZipFile(path, "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(name, text)
    return path


def test_another_project_installed_over_holdfast_is_named_with_the_way_out(
    tmp_path: Path,
) -> None:
    python = find_python(OWN)
    assert python is not None
    environment = FreshEnvironment(tmp_path, python, {})
    other = make_foreign_wheel(tmp_path)
    version = environment.wheel.name.split("-")[1]

    def check_works() -> None:
        assert environment.run("holdfast --version") == f"holdfast {version}\n"
        environment.run('python -c "from holdfast import Holdfast"')

    def check_explained() -> None:
        line = environment.run("! holdfast --version")
        assert line.startswith("holdfast: another project's package `holdfast` replaced")
        assert "`pip uninstall -y holdfast holdfast-queue`" in line
        assert len(line.splitlines()) == 1
        text = environment.run('! python -c "from holdfast.jobs import *"')
        assert f"ImportError: {line.removeprefix('holdfast: ')}" in text

    environment.run(f"pip install --quiet {environment.wheel}")
    check_works()
    environment.run(f"pip install --quiet --no-deps {other}")
    check_explained()
    environment.run("pip uninstall --quiet holdfast")  # with it goes `holdfast/__init__.py`
    check_explained()
    environment.run("pip uninstall --quiet -y holdfast holdfast-queue")
    environment.run(f"pip install --quiet {environment.wheel}")
    check_works()
