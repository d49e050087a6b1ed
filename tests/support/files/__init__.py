"""Replacements for the file system's calls (`fs=`), and audits of a queue folder."""
