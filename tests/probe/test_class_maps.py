"""Files that say which classes of another test set are which of a head."""

from pathlib import Path

import numpy as np
import pytest
import torch

from probe.class_maps import ClassMap, read_class_map, same_names
from store import BeyondClsError

HEAD, TEST = ["cat", "dog", "crane, bird", "crane"], ["poodle", "cat", "heron"]


def read(folder: Path, text: str) -> ClassMap:
    (folder / "map.csv").write_text(text, encoding="utf-8")
    return read_class_map(folder / "map.csv", HEAD, TEST)


def test_renamed_kept_joined_and_left_out(tmp_path: Path) -> None:
    found = read(tmp_path, '# theirs,ours\npoodle, dog\n\ncat\n"crane, bird"\n')
    assert found.groups == ((1,), (0,), (2,))
    assert found.labels.tolist() == [0, 1, -1]
    assert found.choices_of(4).tolist() == [1, 0, 2, -1]
    assert read(tmp_path, '\ufeffheron,crane,"crane, bird"\ncat').groups == ((3, 2), (0,))


def test_the_highest_logit_of_joined_classes_counts() -> None:
    logits = torch.tensor([[1.0, 5.0, 2.0, 9.0], [-1.0, -5.0, -2.0, -9.0]])
    chosen = ClassMap(((3, 2), (0,)), np.array([0, 1])).choose(logits)
    assert chosen.tolist() == [[9, 1], [-2, -1]]


def test_accents_and_numbers_are_compared_as_they_mean(tmp_path: Path) -> None:
    (tmp_path / "map.csv").write_text("cafe\u0301")
    assert read_class_map(tmp_path / "map.csv", ["caf\u00e9"], ["caf\u00e9"]).labels.tolist() == [0]
    assert same_names(["1", "2"], ["2.0", "1"], np.array([0, 1]), True).labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("poodle,wolf", r"'wolf', which is no class of the head.*'cat', 'dog'.*4 in all"),
        ("wolf,dog", r"'wolf', which is no class of the test set.*'poodle'"),
        ("cat\ncat,dog", r"maps 'cat', a class of the test set, twice"),
        ("poodle,dog\nheron,dog", r"maps 'dog', a class of the head, twice"),
        ("poodle,dog\ndog", r"maps 'dog', a class of the head, twice"),
        ("# nothing\n\n", r"names no class; expected a line for each class"),
    ],
)
def test_a_file_that_says_no_such_thing_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BeyondClsError, match=message):
        read(tmp_path, text)


def test_no_text_and_equal_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "map.csv").write_bytes(b"\xff\xfe")
    for file in (tmp_path / "map.csv", tmp_path / "none.csv"):
        with pytest.raises(BeyondClsError, match=r"is no map of classes .*expected text"):
            read_class_map(file, HEAD, TEST)
    (tmp_path / "map.csv").write_text("cat")
    with pytest.raises(BeyondClsError, match=r"two are called the same"):
        read_class_map(tmp_path / "map.csv", ["cat", "cat "], TEST)


def test_without_a_file_names_are_to_be_those_of_the_head() -> None:
    assert same_names(HEAD, ["crane", "cat", "wolf"], np.array([0, 1]), True).labels.tolist() == [3, 0, -1]
    with pytest.raises(BeyondClsError, match=r"'wolf', which the head lacks; expected .*--map"):
        same_names(HEAD, ["crane", "cat", "wolf"], np.array([0, 2]), True)
    with pytest.raises(BeyondClsError, match=r"3 classes without names"):
        same_names(["0", "1"], ["0", "1", "2"], np.array([0, 1]), False)
