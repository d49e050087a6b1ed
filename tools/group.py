"""Print a dependency group of pyproject.toml for pip, because older pips have no --group."""

import sys
import tomllib

with open("pyproject.toml", "rb") as project:
    group = tomllib.load(project)["dependency-groups"][sys.argv[1]]
print(" ".join(requirement.replace(" ", "") for requirement in group))
