"""The picture of the demo says what the demo says, and loads nothing from elsewhere."""

import io
import re
from collections.abc import Iterable
from dataclasses import asdict
from xml.etree import ElementTree

import pytest
from tools.picture import PICTURE

from holdfast.demo.act import DemoSizes
from holdfast.demo.queue_act import Attempt, QueueAct, make_report
from holdfast.demo.queue_tasks import HANGING_TASK
from holdfast.demo.screen import DemoScreen

SOURCE = PICTURE.read_text()
PIECES = ElementTree.fromstring(SOURCE).iter("{http://www.w3.org/2000/svg}text")
SHOWN = " ".join(" ".join(piece.itertext()) for piece in PIECES)


def normalize(text: str) -> str:
    """Write every run of spaces as one space and every number as 0."""
    return re.sub(r"\d+", "0", " ".join(text.split()))


def list_report() -> Iterable[str]:
    """Return the lines of a report whose totals match."""
    done = [Attempt("a", 1)]
    screen = io.StringIO()
    DemoScreen(screen, "").show_report(make_report(["a"], done, [], done))
    return screen.getvalue().strip().splitlines()


@pytest.mark.parametrize(
    "text",
    [
        QueueAct.title.format_map(asdict(DemoSizes())),
        " ".join([QueueAct.noun, "pid", *QueueAct.columns]),
        "killed with SIGKILL, holding company-000",
        QueueAct.story["child_killed"].format(message_id=HANGING_TASK, reason="stalled"),
        "other workers have taken over its tasks",
        *list_report(),
    ],
)
def test_the_picture_has_the_text_of_the_demo(text: str) -> None:
    assert normalize(text) in normalize(SHOWN)


def test_the_picture_has_no_addresses_and_no_paths_and_is_small() -> None:
    assert set(re.findall(r"\w+://[^\"]*", SOURCE)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|@font-face|<image|/(tmp|home|root|work|var)\b", SOURCE)
    assert len(SOURCE.encode()) < 60_000
