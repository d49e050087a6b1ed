"""The picture of the demo says what the demo says, and loads nothing from elsewhere."""

import io
import re
from collections.abc import Iterable
from xml.etree import ElementTree

import pytest
from harness import Screen
from queue_act import HANGING_TASK, QueueAct, list_totals
from tools.picture import PICTURE

SOURCE = PICTURE.read_text()
PIECES = ElementTree.fromstring(SOURCE).iter("{http://www.w3.org/2000/svg}text")
SHOWN = " ".join(" ".join(piece.itertext()) for piece in PIECES)


def normalize(text: str) -> str:
    """Write every run of spaces as one space and every number as 0."""
    return re.sub(r"\d+", "0", " ".join(text.split()))


def list_report() -> Iterable[str]:
    """Return the lines of totals that match."""
    screen, done = io.StringIO(), [("a", 1)]
    Screen(screen, "").show_totals(list_totals(["a"], done, [], done), QueueAct.terms)
    return screen.getvalue().strip().splitlines()


@pytest.mark.parametrize(
    "text",
    [
        QueueAct.title.format(tasks=300),
        f"{QueueAct.noun} pid done",
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
