"""One contestant of doctor's races: a process that grabs files until none is left.

Run by path, without Holdfast and without site-packages, so that it starts at once:

    python -I -S racer.py rename|link FOLDER NAME COUNT

It says `ready`, waits for a line, then goes through the heats in order, and prints the
numbers of those it won.
"""

import os
import sys

PAYLOAD = b"holdfast " * 455  # about 4 KiB: more than one write could slip through whole


def main(how: str, folder: str, me: str, count: str) -> None:
    os.chdir(folder)
    grab = {"rename": _rename, "link": _link}[how]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    won = [heat for heat in range(int(count)) if grab(heat, me)]
    sys.stdout.write(" ".join(map(str, won)))


def _rename(heat: int, me: str) -> bool:
    """Won: the file is ours alone, and whole."""
    mine = f"won-{heat}-{me}"
    try:
        os.rename(f"heat-{heat}", mine)
    except FileNotFoundError:
        return False
    with open(mine, "rb") as file:
        return file.read() == PAYLOAD


def _link(heat: int, me: str) -> bool:
    try:
        os.link(f"lane-{me}", f"lock-{heat}")
    except FileExistsError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
