"""One process of doctor's races, which tries to win each file.

It is run by path, without Holdfast and without site-packages, so that it starts at once:

    python -I -S racer.py rename|link FOLDER NAME COUNT

It prints `ready`, waits for a line, then goes through the heats in order, and prints the
numbers of the heats that it won.
"""

import os
import sys

PAYLOAD = b"holdfast " * 455  # about 4 KiB, so that an incomplete file shows


def main(operation: str, folder: str, racer: str, count: str) -> None:
    """Run all heats, and print the numbers of the heats that this process won."""
    os.chdir(folder)
    try_to_win = {"rename": _rename, "link": _link}[operation]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    won = [heat for heat in range(int(count)) if try_to_win(heat, racer)]
    sys.stdout.write(" ".join(map(str, won)))


def _rename(heat: int, racer: str) -> bool:
    """Return whether this process moved the file and found it complete."""
    target = f"won-{heat}-{racer}"
    try:
        os.rename(f"heat-{heat}", target)
    except FileNotFoundError:
        return False
    with open(target, "rb") as file:
        return file.read() == PAYLOAD


def _link(heat: int, racer: str) -> bool:
    try:
        os.link(f"lane-{racer}", f"lock-{heat}")
    except FileExistsError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
