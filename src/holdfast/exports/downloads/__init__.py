"""Exports: download, verify and publish one file for each task.

Needs `pip install 'holdfast[export]'`.
"""
