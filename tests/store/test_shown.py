"""What is shown of texts of others: no secrets, nothing that steers a terminal, no formulas."""

import csv
import io
import pickle

import pytest

from store.errors import BeyondClsError, BeyondClsWarning, StoreError
from store.shown import csv_cell, escaped, from_csv_cell, redacted, shown

SECRETS = ("hunter2", "abc%2Fdef", "s3cr3t")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://h/x.tar?X-Amz-Signature=s3cr3t&X-Amz-Date=1", "https://h/x.tar?X-Amz-Signature=***&X-Amz-Date=***"),
        ("'https://h/x.tar?sig=abc%2Fdef'; check", "'https://h/x.tar?sig=***'; check"),
        ("ftp://u:hunt@hunter2@h:21/x", "ftp://***@h:21/x"),
        ("s3://key:s3cr3t@bucket/x", "s3://***@bucket/x"),
        ("https://s3cr3t@h", "https://***@h"),
        ("https://h/x?s3cr3t", "https://h/x?***"),
        ("https://h/x#access_token=s3cr3t&a=1", "https://h/x#access_token=***&a=***"),
        ("https://h/go?to=https://u:s3cr3t@i/x&sig=hunter2 now", "https://h/go?to=***://*** now"),
        ("a://b/https://u:s3cr3t@i/x", "a://b/https://***@i/x"),
        ("pipe:curl -H 'Authorization: Bearer s3cr3t' https://h", "pipe:curl -H 'Authorization: ***' https://h"),
    ],
)
def test_secrets(text, expected):
    assert redacted(text) == expected
    assert redacted(expected) == expected
    assert not any(secret in redacted(text) for secret in SECRETS)
    assert str(StoreError(text)) == str(BeyondClsWarning(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s3://bucket/train-0?.tar",
        "https://h/a/b.tar, and https://h/page#L10",
        "a@b.c, x?y=1, a://b, --preset small-sgd",
        "https://h/~user/x@2.tar: 404",
        "abfss://container@account.dfs.core.windows.net/x, sftp://me@h/x",
        "memory://f#1/x",
    ],
)
def test_what_is_no_secret_stays(text):
    assert shown(text) == text


def test_long_texts():
    """In linear time: these have a thousand times the characters of an address."""
    for piece in ("a.", "a://", "http://", "http://a@", "http://a?", "http://a?b=", "?a", "authorization:"):
        redacted(piece * 30_000)


def test_errors_are_as_before():
    error = pickle.loads(pickle.dumps(BeyondClsError("https://h?sig=s3cr3t", 7)))
    assert error.args == ("https://h?sig=***", 7)


@pytest.mark.parametrize(
    "text", ["\x1b[2J", "\x9b2J", "a\rb", "\x07", "\x7f", "\u202egnp.exe", "\u2066x", "\u2028", "\0", "\x1b]0;t\x07"]
)
def test_control_characters(text):
    assert "\\" in escaped(text)
    assert all(c.isprintable() for c in escaped(text))
    assert escaped("näme\t日本 ✓\n[cls]") == "näme\t日本 ✓\n[cls]"


FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "'=1", "''=1", "＝1+1"]
NAMES = [*FORMULAS, "a=b", "'a", "-", "", "name", "-0.5"]


def test_formulas_are_text_and_names_come_back():
    file = io.StringIO()
    csv.writer(file).writerows([[csv_cell(name)] for name in NAMES])
    file.seek(0)
    cells = [row[0] if row else "" for row in csv.reader(file)]
    assert [cell for cell in cells if cell[:1] in tuple("=+-@\t\r＝") and len(cell) > 1] == ["-0.5"]
    assert [from_csv_cell(cell) for cell in cells] == NAMES
    assert all(csv_cell(value) is value for value in (-0.5, 3, None, "-0.5", "+1e-3", "-inf", "-1")), "numbers stay"
