"""What a worker process does with one export task: download, check, publish.

Needs `pip install 'holdfast[export]'`.
"""
