"""Run commands of the command line, in this process or as real ones."""
