"""What `holdfast demo` runs: a queue, an export and a chat, and their totals.

Processes are killed and a handler hangs, in a temporary folder, and in the end the totals
match. `queue_act.py`, `export_act.py` and `chat_act.py` tell the three stories.
"""

import json
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

from chat_act import ChatAct
from export_act import ExportAct
from harness import POLL_SECONDS, Act, Process, Screen, Stage, make_environment
from queue_act import QueueAct

from holdfast import ConfigError

ACTS: Mapping[str, type[Act]] = {"queue": QueueAct, "export": ExportAct, "chat": ChatAct}
# A closed terminal ends the demo as cleanly as Ctrl-C does.
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NEEDS = "needs pycurl: pip install '.[export]' in a clone of Holdfast"


def run(act: str, queue: str, sizes: Mapping[str, int], *, keep: bool, as_json: bool) -> bool:
    """Run one act, or all of them, and return whether all totals match.

    Raises ConfigError if the act cannot run, and KeyboardInterrupt after Ctrl-C.
    """
    names = choose_acts(act)
    check_interrupted = note_signals()
    folder, totals = Path(tempfile.mkdtemp(prefix="holdfast-demo-")), {}
    with ExitStack() as resources:
        if not keep:
            resources.callback(shutil.rmtree, folder, ignore_errors=True)
        stage = Stage(folder, queue, sizes, resources, check_interrupted)
        acts = {name: ACTS[name](stage) for name in names}
        show_in_browser(acts.values(), stage)
        for number, (name, each) in enumerate(acts.items(), 1):
            if keep:
                command = each.inspect.format(folder=folder, url=each.url)
                resources.callback(tell, f"to inspect it: {command}")
            title = f"holdfast demo, {number} of {len(acts)}: {each.title.format_map(sizes)}"
            screen = Screen(sys.stderr if as_json else sys.stdout, f"{title} ({queue} queue)")
            totals[name] = each.run(screen)
            if not as_json:
                screen.show_totals(totals[name], each.terms)
            check_interrupted()
    wrong = {name: any(total.is_wrong for total in totals[name]) for name in totals}
    if as_json:
        counts = {name: {total.key: total.count for total in totals[name]} for name in totals}
        print(json.dumps({k: {**counts[k], "totals_match": not wrong[k]} for k in counts}))
    return not any(wrong.values())


def choose_acts(chosen: str) -> list[str]:
    """Return the names of the acts to run. Raises ConfigError if the chosen one cannot."""
    names = list(ACTS) if chosen == "all" else [chosen]
    try:
        if "export" in names:
            import_module("pycurl")
    except ImportError:
        if chosen == "export":
            raise ConfigError(f"the export scenario {NEEDS}") from None
        tell(f"skipping the export scenario, which {NEEDS}")
        names.remove("export")
    return names


def note_signals() -> Callable[[], None]:
    """Note Ctrl-C from now on, and return a function that raises KeyboardInterrupt after it.

    Only the acts call it, while they wait. So a signal never interrupts the start or the end
    of a process, and none is left behind. Signals are ignored only from then on, because a
    process that is started while they are ignored would ignore them, too.
    """
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        noted.append(number)

    def check() -> None:
        if noted:
            for ignored in END_SIGNALS:
                signal.signal(ignored, signal.SIG_IGN)
            raise KeyboardInterrupt

    for number in END_SIGNALS:
        signal.signal(number, note)
    return check


def show_in_browser(acts: Collection[Act], stage: Stage) -> None:
    """Serve the web console while the demo runs, and say where, or else what it needs."""
    shown = [*(act.url for act in acts), *(x for act in acts for x in act.web_options)]
    env = make_environment(HOLDFAST_DATA_DIR=str(stage.folder))
    command = ("holdfast.cli", "web", *shown, "--port=0")
    console = Process(command, cwd=stage.folder, env=env)
    stage.resources.callback(console.end)
    stage.resources.callback(console.terminate)
    while not console.last_line and console.poll() is None:
        time.sleep(POLL_SECONDS)
    line = console.last_line.removeprefix("holdfast: ")
    address = re.search(r"http://\S+", line)
    tell(f"watch the demo in a browser: {address[0] if address else line}")


def tell(text: str) -> None:
    """Write a line to stderr."""
    print(text, file=sys.stderr, flush=True)
