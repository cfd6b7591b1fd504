"""Parameter files that no one would write by hand: each is a message at once, whatever it would become in memory."""

from pathlib import Path

import pytest

from pipelines.parameters.params import read_params
from store import BeyondClsError


def nested(of: str, n: int = 9) -> str:
    """Nine levels, each of which has nine times the one before it by aliases."""
    lines = (f"a{level}: &a{level} {of.format(*[f'*a{level - 1}'] * n)}" for level in range(1, 10))
    return "\n".join(("a0: &a0 {x: 1}", *lines))


LISTS = nested("[{}, {}, {}, {}, {}, {}, {}, {}, {}]")
MAPPINGS = nested("{{a: {}, b: {}, c: {}, d: {}, e: {}, f: {}, g: {}, h: {}, i: {}}}")
MERGED = nested("{{<<: [{}, {}, {}, {}, {}, {}, {}, {}, {}]}}")
CHAIN = "\n".join(("a0: &a0 [x]", *(f"a{level}: &a{level} [*a{level - 1}]" for level in range(1, 60))))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "more than 100,000 values or 50 levels.*line 6") for text in (LISTS, MAPPINGS, MERGED)),
        (CHAIN, "more than 100,000 values or 50 levels.*line 50"),
        ("a: " + "[" * 60 + "]" * 60, "more than 100,000 values or 50 levels"),
        ("a: " + "{a: " * 5_000 + "}" * 5_000, "more than 50 levels"),
        *(
            (text, "an alias stands for what it is in")
            for text in ("a: &a [*a]", "&a\nb: *a", "a: &a {<<: *a}", "a: &a {b: [*a]}")
        ),
        *((f"a: {number}", "more than 100 digits") for number in ("9" * 5_000, "0x" + "f" * 5_000, "1" + ":59" * 5_000)),
        *((text, "'b' appears 2 times.*line 1") for text in ("a: {b: 1, b: 2}", "{b: 1, c: 2, 'b': 3}")),
        *(
            (f"a: {value}", "a value cannot be read")
            for value in ("2024-99-99", "!!int x", "!!int ''", "!!bool x", "!!timestamp x")
        ),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: b\0c", "special characters are not allowed"),
        (b"a: \xff\xfe", "'utf-8' codec can't decode"),
        ("a: 1".encode("utf-16"), "'utf-8' codec can't decode"),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else None,
)
def test_what_cannot_be_read(text: str | bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BeyondClsError, match=rf"(?s)params.yaml is not YAML; correct it, or name another file: .*{message}"):
        read_params(tmp_path / "params.yaml")


def test_large_files(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("# " + "x" * (1 << 18))
    with pytest.raises(BeyondClsError, match=r"params.yaml has more than 262,144 bytes, expected a parameter file"):
        read_params(tmp_path / "params.yaml")


def test_aliases_and_merges_as_people_use_them(tmp_path: Path) -> None:
    text = "a: &a {x: 1, y: &y [1, 2]}\nb: &b {<<: *a, x: 2}\nc: {<<: *b, y: *y}\nd: {<<: [*a, *b], z: 3}\ne: [*a, *a]\n"
    (tmp_path / "params.yaml").write_text(text)
    params = read_params(tmp_path / "params.yaml")
    assert params["c"] == {"x": 2, "y": [1, 2]}
    assert params["d"] == {"x": 1, "y": [1, 2], "z": 3}
    assert params["e"] == [params["a"]] * 2
