"""Amazon's services. Needs `pip install 'holdfast[aws]'`."""
