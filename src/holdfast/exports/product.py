"""What exports add to the frames."""

from holdfast.products import Product

PRODUCT = Product(
    group="export",
    help="Download many files, check them, and store them in a folder or an S3 bucket.",
    panel="Export",
    commands={
        "run": ("holdfast.exports.commands.run:run", "Work"),
        "serve": ("holdfast.exports.commands.serve:serve", "Work"),
        "list": ("holdfast.exports.commands.inspect:list_", "Inspect"),
        "show": ("holdfast.exports.commands.inspect:show", "Inspect"),
        "tables": ("holdfast.exports.commands.inspect:tables", "Maintain"),
        "doctor": ("holdfast.exports.commands.inspect:doctor", "Maintain"),
    },
    settings=(
        "holdfast.exports.settings:ExportSettings",
        "holdfast.exports.settings:HeartbeatSettings",
    ),
    store="jobs",
    store_kind="holdfast.exports.checks:JOB_STORE",
    checks={
        "exports?": "holdfast.exports.checks:examine_exports",
        "s3://.*": "holdfast.exports.target_check:examine_target",
        r"arn:.*:states:.*|.*\.json": "holdfast.exports.checks:examine_machine",
    },
    pages="holdfast.exports.pages:JobPages",
    metrics="holdfast.exports.metrics:METRICS",
)
