"""Write docs/scale.md from the results of the study."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.scale.chats import CHANNEL_SHARES, TURN_SECONDS
from bench.scale.deployment import list_changes, read_templates
from bench.scale.exports import FILES, JOB_SECONDS, SAMPLE
from bench.scale.latencies import LATENCIES
from bench.scale.measuring import read_measurements
from bench.scale.prices import AS_OF, PRICES, REGION
from bench.scale.quotas import QUOTAS
from bench.scale.service import MESSAGE_SECONDS
from bench.scale.study import (
    ACTIVE_JOBS,
    MESSAGES_PER_DAY,
    TURNS_PER_MINUTE,
    merge_quotas,
    size_deployment,
)

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
_PARTS = {"work": "work queue", "export": "exports", "chat": "conversations"}
_UNITS = {"work": "messages", "export": "jobs", "chat": "turns"}
_AT_ONCE_SECONDS = 20  # the resolution of the watch is 10 s
_FEW_WAITING = 300

Results = Mapping[str, Any]


def render(results: Results) -> str:
    """Return the page."""
    week = results["week"]
    sections = [
        _write_summary(week, results["multiples"]["reached"]),
        _write_load(),
        _write_model(week),
        _write_settings(),
        _write_week(week),
        _write_failures(week),
        _write_quotas(results["multiples"], merge_quotas(week)),
        _write_variants(results),
    ]
    return "\n".join("\n".join(section) + "\n" for section in sections)


# -- sections


def _write_summary(week: Results, reached: Results) -> list[str]:
    costs = {part: sum(week[part]["costs"].values()) for part in _PARTS}
    recovered = {
        fault["name"]: fault["recovered"] for part in _PARTS for fault in week[part]["faults"]
    }
    for part in _PARTS:
        for fault in week[part]["faults"]:
            name = fault["name"]
            recovered[name] = max(recovered[name], fault["recovered"])
    slowest = max(recovered, key=lambda name: recovered[name])
    first, second = _sort_quotas(reached)[:2]
    lost, twice, sent = (_total(week, name) for name in ("lost", "counted_twice", "sent"))
    return [
        "# Scale study",
        "",
        "`make scale` simulates the deployment of `infra/` for a week of virtual time, with "
        "failures of every component, and writes this page.",
        "",
        f"- **Nothing is lost and nothing is counted twice** in {len(recovered)} failures: "
        f"{lost:,} of {sent:,} messages, jobs and turns are lost, {twice:,} are counted twice.",
        f"- **A week costs {_money(sum(costs.values()))}**: "
        + ", ".join(f"{_money(costs[part])} for {name}" for part, name in _PARTS.items())
        + ".",
        f"- **The longest recovery takes {_duration(recovered[slowest])}**, after this "
        f"failure: {slowest}.",
        f"- **The first quota is {QUOTAS[first].name}**, whose default is reached at "
        f"{reached[first]:g} × the load, so it must be raised before the first day. "
        f"The next one is {QUOTAS[second].name}, at {reached[second]:g} × the load.",
        f"- **The templates' defaults do not carry this load**: {_describe_defaults()} "
        "[Settings](#settings) says what to change.",
        "- **Listing the jobs limits the exports.** Each task reads every active job twice in "
        "an interval, to notice jobs whose task has died. So reads grow with tasks times "
        f"jobs, and cost {_money(week['export']['costs']['dynamodb.read'])} of the "
        f"{_money(costs['export'])} for exports ([at a shorter interval](#what-if)).",
        f"- **A turn writes {_flow('turn')['dynamodb.write']:g} units to DynamoDB**, and a "
        f"renewal of its lock {_flow('lock_renewal')['dynamodb.write']:g}. Writes are "
        f"{_money(week['chat']['costs']['dynamodb.write'])} of the {_money(costs['chat'])} for "
        "conversations.",
    ]


def _write_load() -> list[str]:
    shares = ", ".join(f"{share * 100:.0f} % {name}" for name, share in CHANNEL_SHARES.items())
    rows = [
        (
            "messages",
            f"{MESSAGES_PER_DAY:,} a day",
            "99 % take a median of 0.8 s, 1 % take 30 to 300 s; one in 1,000 attempts fails",
        ),
        (
            "jobs",
            f"{ACTIVE_JOBS:,} active at any time",
            f"{FILES} files each, {JOB_SECONDS / 60:.0f} minutes on average",
        ),
        (
            "conversations",
            f"{TURNS_PER_MINUTE:,} turns a minute",
            "3 messages on average, about 3 s apart; a reply takes the model a median of "
            f"{LATENCIES['model']:g} s; {shares}",
        ),
    ]
    return [
        "## The load",
        "",
        *_table(("", "how many", "how long"), rows),
        "",
        "Messages and conversations follow the day: 40 % of the mean at midnight, 160 % at "
        "noon. Jobs do not. The failures happen at busy hours.",
    ]


def _write_model(week: Results) -> list[str]:
    events = sum(week[part]["events"] for part in _PARTS)
    return [
        "## What is real, and what is a model",
        "",
        "Tasks, scaling, concurrency and timeouts are read from `infra/*.yaml`, settings and "
        "backoff from the package. The calls of a turn, a job, a file, a listing "
        "and a sweep are counted in the package's code on moto. Heartbeats follow the "
        f"package's own schedule, for one job in {SAMPLE} and one {SAMPLE}th of the quota. "
        "Leases follow its rules, which `make chaos` checks with real processes. AWS, the "
        "model's API and Twilio are models: a time for each call (`bench/scale/latencies.py`), "
        "quotas, and failures.",
        "",
        f"The week has {events:,} events. Not simulated are claiming ahead, calls that "
        "messages share, two turns of one customer at the same time, FIFO queues, several "
        "regions, files that fail, and the second message of a retried execution.",
    ]


def _write_settings() -> list[str]:
    return [
        "## Settings",
        "",
        "The study deploys the templates with these changes. All others are the defaults.",
        "",
        *_table(
            ("setting", "template", "study", "reason"),
            list_changes(read_templates(), size_deployment()),
        ),
    ]


def _write_week(week: Results) -> list[str]:
    rows = [
        (
            name,
            f"{week[part]['counted']:,} {_UNITS[part]}",
            f"{week[part]['counted'] / 7 / 86400:.1f}",
            *(
                _duration(week[part][wait])
                for wait in ("wait_p50", "wait_p99", "wait_p99_failing")
            ),
            f"{week[part]['calls'] / week[part]['counted']:.1f}",
        )
        for part, name in _PARTS.items()
    ]
    columns = ("", "counted", "a second", "wait p50", "wait p99", "p99 in failures", "calls of "
               "AWS for each")  # fmt: skip
    return [
        "## The week",
        "",
        *_table(columns, rows, numbers=True),
        "",
        "A turn waits from the customer's last message to the reply. Messages wait because a "
        "task is added only when 100 wait for each one for three minutes: a lower "
        "`TargetValue`, or more `MinTasks`, buys shorter waits.",
        "",
        *_write_costs(week),
    ]


def _write_costs(week: Results) -> list[str]:
    rows: list[Sequence[str]] = [
        (PRICES[name].unit, *(_describe_cost(week[part], name) for part in _PARTS))
        for name in PRICES
    ]
    totals = {part: sum(week[part]["costs"].values()) for part in _PARTS}
    millions = (_money(totals[part] / week[part]["counted"] * 1e6) for part in _PARTS)
    rows.append(("**a week**", *(f"**{_money(totals[part])}**" for part in _PARTS)))
    rows.append(("a million messages, jobs or turns", *millions))
    return [
        *_table(("units, and their price", *_PARTS.values()), rows, numbers=True),
        "",
        f"Prices of {REGION} as published in {AS_OF}, without free tiers. Not included: logs "
        "and metrics, alarms, traffic, S3 storage, NAT, the model and Twilio.",
    ]


def _describe_cost(figures: Results, name: str) -> str:
    if name not in figures["costs"]:
        return "–"
    return f"{_count(figures['units'][name])} ({_money(figures['costs'][name])})"


def _write_failures(week: Results) -> list[str]:
    rows = []
    for number, fault in enumerate(week["work"]["faults"]):
        of_parts = [week[part]["faults"][number] for part in _PARTS]
        marks = {name: n for each in of_parts for name, n in each["marks"].items()}
        cells = [_describe_part(each) for each in of_parts]
        rows.append((fault["name"], *cells, _describe_marks(marks)))
    templates, tasks = read_templates(), _compute_mean_tasks(week["export"])
    refused = week["chat"]["marks"].get("chat.refused", 0)
    not_started = week["export"]["marks"].get("export.failed_starts", 0)
    return [
        "## Failures",
        "",
        "Each cell has the time until nothing waits any more that was there when the failure "
        "ended, and how much waited at most. “–” means that the part was not delayed.",
        "",
        *_table(("failure", *_PARTS.values(), "what else happened"), rows),
        "",
        "- **While SQS does not respond**, every lease runs out, and work is done again from "
        "its last counted state. Turns without a trigger wait for the sweeper.",
        "- **While DynamoDB does not respond**, webhooks get 503, and new jobs use up their "
        "attempts in about a minute. The state machine retries their executions.",
        "- **While the model or Twilio is down**, triggers are dead-lettered after five "
        "attempts. The messages stay staged, and the sweeper sends new triggers for up to "
        f"{templates.sweeping_timeout_seconds:g} s in each sweep.",
        f"- **The export service seldom shrinks**: {tasks:.0f} tasks run on average where "
        f"{size_deployment().exports.min_tasks} suffice, because a task is protected while it "
        "holds a job. So keep `MaxTasks` little above `MinTasks`.",
        f"- **Not accepted is not lost.** {refused:,} messages of customers got 503, which "
        f"Twilio logs. {not_started:,} executions failed at their first step, and "
        f"{week['export']['failed']:,} gave up after three timeouts.",
    ]


def _describe_part(fault: Results) -> str:
    seconds, waiting = fault["recovered"], fault["peak_waiting"]
    if seconds is None:
        return f"not recovered; {waiting:,}"
    if seconds <= _AT_ONCE_SECONDS and waiting < _FEW_WAITING:
        return "–"
    return f"{_duration(seconds)}; {waiting:,}"


# What a failure changes.
_MARKS = {
    "work.lost_leases": "leases of messages lost",
    "work.dead": "dead letters, redriven",
    "export.lost_leases": "leases of jobs lost",
    "export.failed_starts": "executions that failed at their start",
    "export.timeouts": "executions that timed out",
    "export.dead": "messages of jobs dead-lettered",
    "chat.dead": "triggers dead-lettered",
    "chat.refused": "webhooks that got 503",
    "chat.sweeps_cut": "sweeps that failed or were cut off",
}


def _describe_marks(marks: Results) -> str:
    texts = [f"{text}: {marks[name]:,}" for name, text in _MARKS.items() if name in marks]
    if refused := marks.get("export.beats_refused"):
        texts.append(f"{100 * refused / marks['export.beats']:.0f} % of heartbeats refused")
    return "; ".join(texts) or "–"


def _write_quotas(multiples: Results, in_week: Mapping[str, float]) -> list[str]:
    reached, use = multiples["reached"], multiples["use"]
    order = _sort_quotas(reached)
    rows = [
        (
            QUOTAS[name].name + (" (fixed)" if QUOTAS[name].fixed else ""),
            f"{QUOTAS[name].limit:,.0f} {QUOTAS[name].unit}",
            _figure(use[name]),
            f"**{_figure(in_week[name])}**"
            if in_week[name] >= QUOTAS[name].limit
            else _figure(in_week[name]),
            f"**{reached[name]:g} ×**",
            QUOTAS[name].remedy,
        )
        for name in order
        if reached[name] is not None
    ]
    far = [QUOTAS[name].name for name in order if reached[name] is None]
    partition_writes = QUOTAS["dynamodb.index_write"].limit
    return [
        "## Quotas",
        "",
        "The load was multiplied until each quota was reached, for the busiest quarter of an "
        "hour. “In failures” is the highest use in the week.",
        "",
        *_table(("quota", "limit", "use at noon", "in failures", "reached at", "remedy"), rows),
        "",
        f"Not reached at 10 ×: {', '.join(far)}.",
        "",
        "Reads of the jobs' table grow with the square of the load, because each task lists "
        "all active jobs. A single job is limited by the partition of its rows, to about "
        f"{partition_writes / _flow('job_file')['dynamodb.write']:.0f} files a second, counted "
        "one by one, and a single conversation to "
        f"{partition_writes / _flow('turn')['dynamodb.write']:.0f} turns a second. The sources "
        "of the limits are in `bench/scale/quotas.py`.",
    ]


def _write_variants(results: Results) -> list[str]:
    short = results["short_interval"]
    rows = [
        (
            f"the sweeping function may take {float(seconds):g} s",
            "the model's API is down for 30 min",
            f"the backlog is gone after {_duration(recovered)}",
        )
        for seconds, recovered in results["sweeper"].items()
    ]
    rows.append(
        (
            f"heartbeats every {short['interval_seconds']:g} s, as in the templates",
            "no failure",
            f"{short['sent_per_second']:,.0f} heartbeats a second, of which "
            f"{short['refused_share'] * 100:.1f} % are refused; "
            f"{short['timeouts_per_hour']:,.0f} executions time out in an hour; "
            f"{short['reads_per_second']:,.0f} read units a second to list the jobs",
        )
    )
    return ["## What if", "", *_table(("setting", "in this situation", "result"), rows)]


# -- figures


def _describe_defaults() -> str:
    given = read_templates()
    jobs = given.exports.max_tasks * given.exports.concurrency
    slots = given.workers.max_tasks * given.workers.concurrency
    messages = slots / MESSAGE_SECONDS * 86_400
    limits = (given.max_concurrency[name] / share for name, share in CHANNEL_SHARES.items())
    turns = min(limits) / TURN_SECONDS * 60
    return (
        f"they carry {messages / 1e6:.1f} million messages a day, {jobs:,} active jobs and "
        f"{turns:,.0f} turns a minute."
    )


def _compute_mean_tasks(figures: Results) -> float:
    hours: float = figures["units"]["fargate.vcpu_hour"]
    return hours / read_templates().exports.vcpu / (24 * 7)


def _sort_quotas(reached: Mapping[str, float | None]) -> list[str]:
    return sorted(reached, key=lambda name: reached[name] or 99.0)


def _flow(name: str) -> Mapping[str, float]:
    flow: Mapping[str, float] = read_measurements()["flows"][name]
    return flow


def _total(week: Results, field: str) -> int:
    return sum(week[part][field] for part in _PARTS)


def _duration(seconds: float) -> str:
    if seconds < 0.1:
        return "0 s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _money(dollars: float) -> str:
    return f"${dollars:,.0f}" if dollars >= 10 else f"${dollars:.2f}"


def _count(number: float) -> str:
    return f"{number / 1e6:,.1f} million" if number >= 1e6 else f"{number:,.0f}"


def _figure(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = False
) -> list[str]:
    rule = "---:" if numbers else "---"
    lines = [columns, ["---"] + [rule] * (len(columns) - 1), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]
