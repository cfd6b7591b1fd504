"""Masking of passwords and tokens, which do not belong on a screen or in a pasted report."""

import os
import re
from collections.abc import Mapping

HIDDEN = "***"
SHORTEST = 8  # shorter values, such as a 1 that switches something on, would hide harmless words
_NAMES = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_KEY", re.IGNORECASE)
_USER = re.compile(r"://(?:[^\s/@:]*:\S*|[^\s/@]*)@")  # a password may hold slashes and @
_QUERY = re.compile(r"(://[^\s?'\"]*)\?[^\s'\"]+")  # signed addresses


def masked(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """A text without users and passwords of addresses, without their queries, and without secrets of the environment."""
    text = _QUERY.sub(rf"\1?{HIDDEN}", _USER.sub(f"://{HIDDEN}@", text))
    secret = (v for name, v in environment.items() if _NAMES.search(name) and len(v) >= SHORTEST and not v.startswith("/"))
    for value in sorted(secret, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text
