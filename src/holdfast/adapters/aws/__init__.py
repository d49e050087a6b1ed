"""Adapters for Amazon's services. They need `pip install 'holdfast[aws]'`."""
