"""The input of `holdfast push`: arguments, files and standard input."""

STDIN = "-"
