"""The measured cycle, which several benchmarks share."""

import shutil
from pathlib import Path
from time import perf_counter

from bench.contender import Card, card_named
from bench.figures import CycleFigures, cpu_seconds, memory_bytes
from bench.session import Session, in_fresh_process

WARM_UP = 100


def filled(session: Session, card: Card, path: Path, count: int) -> Path:
    """Return the folder of a queue with `count` waiting messages, all written out."""
    target = path / "queue"
    if card.one_file:
        shutil.copytree(_template(session, card, count), target)
    else:
        target.mkdir()
        in_fresh_process(fill, card.name, target, count)
    session.arena.settle(path)
    return target


def _template(session: Session, card: Card, count: int) -> Path:
    """Fill a database once and copy it, because those that sync every commit fill slowly."""
    template = session.scratch / f"{card.name}-{count}"
    if not template.exists():
        template.mkdir()
        in_fresh_process(fill, card.name, template, count)
    return template


def fill(name: str, path: Path, count: int) -> None:
    """Fill a queue in a new process."""
    queue = card_named(name).open(path)
    queue.fill(count)
    queue.close()


def run_cycles(name: str, path: Path, count: int, max_seconds: float) -> CycleFigures:
    """Move up to `count` messages through a cycle, but no longer than `max_seconds`."""
    card = card_named(name)
    queue = card.open(path)
    for number in range(max(1, WARM_UP // card.batch)):
        queue.push(queue.payload(10_000_000 + number))
        queue.done(queue.claim())
    count //= card.batch
    payloads = [queue.payload(20_000_000 + number) for number in range(count)]
    pushing = claiming = completing = 0.0
    used = cpu_seconds()
    began = at = perf_counter()
    cycles = 0
    while cycles < count and at - began < max_seconds:
        t0 = at
        queue.push(payloads[cycles])
        t1 = perf_counter()
        claimed = queue.claim()
        t2 = perf_counter()
        queue.done(claimed)
        at = perf_counter()
        pushing, claiming, completing = (
            pushing + t1 - t0,
            claiming + t2 - t1,
            completing + at - t2,
        )
        cycles += 1
    used = cpu_seconds() - used
    queue.close()
    return CycleFigures(
        cycles * card.batch,
        at - began,
        pushing,
        claiming,
        completing,
        memory_bytes("VmHWM"),
        used,
    )
