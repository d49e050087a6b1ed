"""docs/requirements.toml: complete, and consistent with the tests' markers."""

import tomllib

from tools import mutate_requirements, requirements

LAST = {"R000": 85, "R001": 59, "R002": 98, "R003": 48, "R004": 271}
ALL = {f"{part}-{number:03d}" for part, last in LAST.items() for number in range(1, last + 1)}


def decisions() -> dict[str, dict]:
    return tomllib.loads(requirements.DECISIONS.read_text())


def test_every_requirement_has_a_row_and_only_one() -> None:
    rows = [id_ for section in decisions().values() for id_ in section["rows"]]
    assert sorted(rows) == sorted(ALL)


def test_every_requirement_has_a_test_or_a_reason() -> None:
    assert list(requirements.find_problems(decisions(), requirements.proofs())) == []
    replaced = [s.get("replaced", {}) for s in decisions().values()]
    assert all(reason.strip() for reasons in replaced for reason in reasons.values())


def test_every_requirement_has_a_mutant_that_applies_or_a_reason_for_none() -> None:
    """`make mutants` runs them."""
    assert list(mutate_requirements.find_problems(*mutate_requirements.load_table())) == []
