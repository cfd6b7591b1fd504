"""Order of the tests; `--no-loadscope-reorder` keeps it where several processes share them."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: in the end no process waits for another that has just begun one."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
