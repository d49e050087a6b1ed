"""Write docs/scale.md from the results of the study."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.scale.chats import CHANNEL_SHARES
from bench.scale.deployment import Deployment, read_templates
from bench.scale.exports import FILES, SAMPLE
from bench.scale.latencies import LATENCIES
from bench.scale.measuring import read_measurements
from bench.scale.prices import AS_OF, PRICES, REGION
from bench.scale.quotas import QUOTAS
from bench.scale.study import (
    ACTIVE_JOBS,
    JOB_SECONDS,
    MESSAGE_SECONDS,
    MESSAGES_PER_DAY,
    TURN_SECONDS,
    TURNS_PER_MINUTE,
    size_deployment,
)
from bench.scale.validating import MARGIN

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
_PARTS = {"work": "work queue", "export": "exports", "chat": "conversations"}
_UNITS = {"work": "messages", "export": "jobs", "chat": "turns"}
_PARTITION_WRITES = QUOTAS["dynamodb.index_write"].limit
_AT_ONCE_SECONDS = 20  # the resolution of the watch is 10 s


def render(results: Mapping[str, Any]) -> str:
    """Return the page."""
    sections = [
        _write_summary(results),
        _write_load(),
        _write_model(results),
        _write_settings(),
        _write_week(results),
        _write_failures(results["week"]),
        _write_quotas(results),
        _write_variants(results),
    ]
    return "\n".join("\n".join(section) + "\n" for section in sections)


# -- sections


def _write_summary(results: Mapping[str, Any]) -> list[str]:
    week, templates = results["week"], read_templates()
    costs = {part: sum(week["costs"][part].values()) for part in _PARTS}
    slowest = max(week["faults"], key=lambda fault: max(fault["recovered"].values()))
    slowest_seconds = max(slowest["recovered"].values())
    twice = sum(week["final"][part]["counted_twice"] for part in _PARTS)
    lost = sum(week["final"][part]["lost"] for part in _PARTS)
    order = _sort_quotas(results["multiples"]["reached"])
    first, second = order[0], order[1]
    reached = results["multiples"]["reached"]
    writes = _flow("turn")["dynamodb.write"]
    return [
        "# Scale study",
        "",
        f"`make scale` simulates the whole deployment of `infra/` for a week of virtual time, "
        f"with failures of every component, and writes this page in "
        f"{week['cpu_seconds'] / 60:.0f} minutes.",
        "",
        f"- **Nothing is lost and nothing is counted twice** in {len(week['faults'])} "
        f"failures: {lost:,} of {_total(week, 'sent'):,} messages, jobs and turns are lost, "
        f"{twice:,} are counted twice.",
        f"- **A week costs {_money(sum(costs.values()))}**: "
        + ", ".join(f"{_money(costs[part])} for {name}" for part, name in _PARTS.items())
        + ".",
        f"- **The longest recovery takes {_duration(slowest_seconds)}**, after this failure: "
        f"{slowest['name']}.",
        f"- **The first quota is {QUOTAS[first].name}**, whose default is reached at "
        f"{reached[first]:g} × the load, so it must be raised before the first day. "
        f"The next one is {QUOTAS[second].name}, at {reached[second]:g} × the load.",
        "- **The templates' defaults do not carry this load**: "
        + _describe_defaults(templates)
        + " [Settings](#settings) says what to change.",
        "- **Listing the jobs limits the exports.** Each task reads every active job twice in "
        "an interval, to notice jobs whose task has died. So reads grow with tasks times "
        f"jobs, and cost {_money(week['costs']['export']['dynamodb.read'])} of the "
        f"{_money(costs['export'])} for exports ([at a shorter interval](#what-if)).",
        f"- **A turn writes {writes:g} units to DynamoDB**, because its row, with the recent "
        "history, is written five times. That is "
        f"{_money(week['costs']['chat']['dynamodb.write'])} of the "
        f"{_money(costs['chat'])} for conversations.",
    ]


def _write_load() -> list[str]:
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
            f"{LATENCIES['model'].seconds:g} s; "
            + ", ".join(
                f"{share * 100:.0f} % {name}" for name, share in CHANNEL_SHARES.items()
            ),
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


def _write_model(results: Mapping[str, Any]) -> list[str]:
    return [
        "## What is real, and what is a model",
        "",
        "Leases, the keeper, backoff and settings are the package's own, on virtual time; so "
        f"is the schedule of heartbeats, for one job in {SAMPLE} and one {SAMPLE}th of the "
        "quota. Tasks, scaling, concurrency, timeouts and alarms are read from `infra/*.yaml`. "
        "The calls of a turn, a job, a file, a listing and a sweep are counted in the "
        "package's code on moto. AWS, the model's API and Twilio are models: a time for each "
        "call (`bench/scale/latencies.py`), quotas, and failures. `make chaos` compares the "
        f"calls with those of a real worker, and fails beyond {MARGIN * 100:.0f} %.",
        "",
        f"The week has {results['week']['events']:,} events. Not simulated are claiming "
        "ahead, two turns of one customer at the same time, FIFO queues, several regions, "
        "files that fail, and the calls for the second message of a retried execution.",
    ]


def _write_settings() -> list[str]:
    _, changes = size_deployment()
    rows = [
        (change.setting, change.template, change.study, change.reason) for change in changes
    ]
    return [
        "## Settings",
        "",
        "The study deploys the templates with these changes. All others are the defaults.",
        "",
        *_table(("setting", "template", "study", "reason"), rows),
    ]


def _write_week(results: Mapping[str, Any]) -> list[str]:
    week = results["week"]
    days = week["days"]
    throughput = [
        (
            name,
            f"{week['final'][part]['counted']:,} {_UNITS[part]}",
            f"{week['final'][part]['counted'] / days / 86400:.1f}",
            _duration(week[part]["wait_p50"]),
            _duration(week[part]["wait_p99"]),
            _duration(week[part]["wait_p99_failing"]),
            f"{_count_calls(week, part) / week['final'][part]['counted']:.1f}",
        )
        for part, name in _PARTS.items()
    ]
    return [
        "## The week",
        "",
        *_table(
            (
                "", "counted", "a second", "wait p50", "wait p99", "p99 in failures",
                "calls of AWS for each",
            ),
            throughput,
            numbers=True,
        ),
        "",
        "The wait of a turn is that from the customer's last message to the reply. Messages "
        "wait because a task is added only when 100 messages wait for each one for three "
        "minutes: a lower `TargetValue`, or more `MinTasks`, buys shorter waits.",
        "",
        *_write_costs(week),
    ]  # fmt: skip


def _count_calls(week: Mapping[str, Any], part: str) -> float:
    beats: float = week["export"]["heartbeats"] if part == "export" else 0.0
    return sum(week["calls"][part].values()) + beats


def _write_costs(week: Mapping[str, Any]) -> list[str]:
    names = [name for name in PRICES if any(name in week["costs"][part] for part in _PARTS)]
    rows = [
        (
            PRICES[name].unit,
            *(
                f"{_count(week['units'][part].get(name, 0.0))} "
                f"({_money(week['costs'][part].get(name, 0.0))})"
                if name in week["costs"][part]
                else "–"
                for part in _PARTS
            ),
        )
        for name in names
    ]
    totals = {part: sum(week["costs"][part].values()) for part in _PARTS}
    rows.append(("**a week**", *(f"**{_money(totals[part])}**" for part in _PARTS)))
    rows.append(
        (
            "a million messages, jobs or turns",
            *(_money(totals[part] / week["final"][part]["counted"] * 1e6) for part in _PARTS),
        )
    )
    return [
        *_table(("units, and their price", *_PARTS.values()), rows, numbers=True),
        "",
        f"Prices of {REGION} as published in {AS_OF}, without free tiers. Not included: logs "
        "and metrics, alarms, traffic, S3 storage, NAT, the model and Twilio.",
    ]


def _write_failures(week: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            fault["name"],
            *(_describe_part(fault, part) for part in _PARTS),
            _describe_consequences(fault["changes"]),
            ", ".join(_list_alarms(fault)) or "–",
        )
        for fault in week["faults"]
    ]
    refused = week["chat"]["refused"]
    functions = read_templates().functions
    return [
        "## Failures",
        "",
        "Each cell has the time until nothing waits any more that was there when the failure "
        "ended, and how much waited at most. “–” means that the part was not delayed.",
        "",
        *_table(("failure", *_PARTS.values(), "what else happened", "alarms"), rows),
        "",
        "- **Killed workers** cost one lease (60 s) and the start of a task (60 s here).",
        "- **While SQS does not respond**, every lease runs out, and running work is done "
        "again from its last counted state. Turns without a trigger wait for the sweeper. "
        + _describe_failed_starts(),
        "- **While DynamoDB does not respond**, webhooks get 503, and new jobs use up their "
        "five attempts in about a minute. The state machine retries their executions.",
        "- **While the model or Twilio is down**, each trigger is dead-lettered after five "
        "attempts. The messages stay staged, and the sweeper sends new triggers, one "
        "conversation after another, for up to "
        f"{functions.sweeping_timeout_seconds:g} s in each sweep.",
        "- **A deployment that fails every message** makes five attempts at each, and a "
        "backlog of good messages grows behind them. `holdfast dead redrive` moves dead "
        "letters back at up to 500 a second.",
        "- **The export service seldom shrinks**, because a task is protected while it holds a "
        f"job: {_compute_mean_tasks(week):.0f} tasks run on average where "
        f"{size_deployment()[0].exports.min_tasks} suffice. So keep `MaxTasks` little above "
        "`MinTasks`.",
        f"- **Not accepted is not lost.** {refused:,} messages of customers got 503. Twilio "
        "logs them, and calls the fallback URL if there is one. "
        f"{week['export']['refused']:,} executions failed at their first step, and "
        f"{week['final']['export']['failed']:,} gave up after three timeouts.",
    ]


def _describe_part(fault: Mapping[str, Any], part: str) -> str:
    seconds, waiting = fault["recovered"].get(part), fault["peak_waiting"].get(part, 0)
    if seconds is None:
        return f"not recovered; {waiting:,}"
    if seconds <= _AT_ONCE_SECONDS and waiting < 300:
        return "–"
    return f"{_duration(seconds)}; {waiting:,}"


_CONSEQUENCES = {
    "work.lost_leases": "leases of messages lost: {:,.0f}",
    "work.dead": "dead letters, redriven: {:,.0f}",
    "export.lost_leases": "leases of jobs lost: {:,.0f}",
    "export.failed_starts": "executions that failed at their start: {:,.0f}",
    "export.timeouts": "executions that timed out: {:,.0f}",
    "export.dead": "messages of jobs dead-lettered: {:,.0f}",
    "chat.dead": "triggers dead-lettered: {:,.0f}",
    "chat.refused": "webhooks that got 503: {:,.0f}",
    "chat.sweeps_cut": "sweeps that failed or were cut off: {:,.0f}",
}


def _describe_consequences(changes: Mapping[str, float]) -> str:
    texts = [
        text.format(changes[name]) for name, text in _CONSEQUENCES.items() if name in changes
    ]
    if refused := changes.get("export.beats_refused"):
        texts.append(f"{100 * refused / changes['export.beats']:.0f} % of heartbeats refused")
    return "; ".join(texts) or "–"


def _list_alarms(fault: Mapping[str, Any]) -> list[str]:
    """Return the alarms of the templates that ring."""
    alarms, changes = read_templates().alarms, fault["changes"]
    oldest, beats = fault["oldest_seconds"], changes.get("export.beats", 0)
    percent = 100 * changes.get("export.beats_refused", 0) / beats if beats else 0.0
    rings = {
        "work-OldestMessage": oldest.get("work", 0) > alarms.work_age_seconds,
        "work-DeadLetters": changes.get("work.dead", 0) > 0,
        "work-LostLeases": changes.get("work.lost_leases", 0) > 0,
        "export-OldestMessage": oldest.get("export", 0) > alarms.export_age_seconds,
        "export-DeadLetters": changes.get("export.dead", 0) > 0,
        "export-LostLeases": changes.get("export.lost_leases", 0) > 0,
        "export-HeartbeatFailureRate": percent > alarms.heartbeat_failure_percent,
        "export-StepFunctionsTimeouts": changes.get("export.timeouts", 0) > 0,
        "chat-DeadLetters": changes.get("chat.dead", 0) > 0,
        "chat-SweeperErrors": changes.get("chat.sweeps_cut", 0) > 0,
        "chat-WebhookFailures": changes.get("chat.refused", 0) > 0,
    }
    return [name for name, does_ring in rings.items() if does_ring]


def _describe_failed_starts() -> str:
    if read_templates().heartbeats.send_retry_seconds:
        return "Executions that start meanwhile repeat their `SendMessage`."
    return (
        "Executions that start meanwhile fail at once, because the state machine does not "
        "retry a failed `SendMessage`."
    )


def _write_variants(results: Mapping[str, Any]) -> list[str]:
    sweeper, senders = results["sweeper"], results["short_interval"]
    rows = [
        (
            f"the sweeping function may take {seconds} s",
            "the model's API is down for 30 min",
            f"the backlog is gone after {_duration(recovered)}",
        )
        for seconds, recovered in sorted(sweeper.items(), key=lambda item: float(item[0]))
    ]
    rows.append(
        (
            f"heartbeats every {senders['interval_seconds']:g} s, as in the templates",
            "no failure",
            f"{senders['sent_per_second']:,.0f} heartbeats a second, of which "
            f"{senders['refused_share'] * 100:.1f} % are refused; "
            f"{senders['timeouts_per_hour']:,.0f} executions time out in an hour; "
            f"{senders['reads_per_second']:,.0f} read units a second to list the jobs",
        )
    )
    retried = results["retried"]
    rows.append(
        (
            f"a TimeoutSeconds of {_duration(retried['times_out_after'])}, so that "
            f"{retried['retried']:,} executions time out while their job is at work",
            "no failure",
            f"{retried['failed']:,} jobs failed, {retried['completed']:,} of "
            f"{retried['jobs']:,} completed. The old token of {retried['found_closed']:,} jobs "
            "was found closed before the Retry sent the new one; a job that failed at once "
            "would have been lost each time",
        )
    )
    return [
        "## What if",
        "",
        *_table(("setting", "in this situation", "result"), rows),
    ]


def _write_quotas(results: Mapping[str, Any]) -> list[str]:
    reached = results["multiples"]["reached"]
    use, in_week = results["multiples"]["use"], results["week"]["quotas"]
    rows = [
        (
            QUOTAS[name].name + (" (fixed)" if QUOTAS[name].fixed else ""),
            f"{QUOTAS[name].limit:,.0f} {QUOTAS[name].unit}",
            _figure(use[name]["1"]),
            _mark(_figure(in_week[name]), in_week[name] >= QUOTAS[name].limit),
            f"**{multiple:g} ×**",
            QUOTAS[name].remedy,
        )
        for name in _sort_quotas(reached)
        if (multiple := reached[name]) is not None
    ]
    far = [QUOTAS[name].name for name in _sort_quotas(reached) if reached[name] is None]
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
        f"{_PARTITION_WRITES / _flow('job_file')['dynamodb.write']:.0f} files a second, "
        "counted one by one, and a single "
        f"conversation to {_PARTITION_WRITES / _flow('turn')['dynamodb.write']:.0f} turns a "
        "second. The sources of the limits are in `bench/scale/quotas.py`.",
    ]


# -- figures


def _describe_defaults(templates: Deployment) -> str:
    jobs = templates.exports.max_tasks * templates.exports.concurrency
    limits = templates.functions.max_concurrency
    turns = min(limits[name] / share for name, share in CHANNEL_SHARES.items()) / TURN_SECONDS
    slots = templates.workers.max_tasks * templates.workers.concurrency
    messages = slots / MESSAGE_SECONDS * 86_400
    return (
        f"they carry {messages / 1e6:.1f} million messages a day, {jobs:,} active jobs and "
        f"{turns * 60:,.0f} turns a minute."
    )


def _mark(text: str, is_reached: bool) -> str:
    return f"**{text}**" if is_reached else text


def _compute_mean_tasks(week: Mapping[str, Any]) -> float:
    """Return the tasks of the exports in the mean of the week."""
    hours: float = week["units"]["export"]["fargate.vcpu_hour"]
    return hours / read_templates().exports.vcpu / (24 * week["days"])


def _sort_quotas(reached: Mapping[str, float | None]) -> list[str]:
    return sorted(reached, key=lambda name: reached[name] or 99.0)


def _flow(name: str) -> Mapping[str, float]:
    flow: Mapping[str, float] = read_measurements()["flows"][name]
    return flow


def _total(week: Mapping[str, Any], field: str) -> int:
    return sum(week["final"][part][field] for part in _PARTS)


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
