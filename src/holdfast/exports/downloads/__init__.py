"""Exports: download, verify and publish one file for each task.

Needs the extra `export`.
"""
