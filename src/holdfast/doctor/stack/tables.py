"""Checks that protect the tables of a stack: recovery to a point in time, and from deletion."""

from collections.abc import Iterator
from functools import partial

from holdfast.core.checks import CheckResult, ok, warn
from holdfast.doctor.runner import Check
from holdfast.doctor.stack.aws_reader import AwsReader
from holdfast.doctor.stores import Table


def check_recovery(reader: AwsReader, table: Table) -> Iterator[CheckResult]:
    """Check that the table can be restored to a point in time."""
    name = table.name
    backups = reader.read("dynamodb", "describe_continuous_backups", name, TableName=name)
    recovery = backups["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
    if recovery.get("PointInTimeRecoveryStatus") == "ENABLED":
        yield ok(f"{name} can be restored to a point in time")
    else:
        yield warn(
            f"{name} cannot be restored to a point in time",
            f"`aws dynamodb update-continuous-backups --table-name {name} "
            "--point-in-time-recovery-specification PointInTimeRecoveryEnabled=true`",
        )


def check_protection(table: Table) -> Iterator[CheckResult]:
    """Check that the table cannot be deleted by mistake."""
    name = table.name
    if table.description.get("DeletionProtectionEnabled"):
        yield ok(f"{name} is protected from deletion")
    else:
        yield warn(
            f"{name} can be deleted with all its rows",
            f"`aws dynamodb update-table --table-name {name} --deletion-protection-enabled`",
        )


def list_recovery_checks(reader: AwsReader) -> tuple[Check[Table], ...]:
    """Return the rows of these checks."""
    return (
        ("recovery", partial(check_recovery, reader)),
        ("protection", check_protection),
    )
