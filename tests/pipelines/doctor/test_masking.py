"""No finding holds a password or a token."""

import pytest

from pipelines.doctor.finding import Finding
from pipelines.doctor.masking import masked


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://user:hunter2@example.org/a", "https://***@example.org/a"),
        ("https://user:hun/te@r2@example.org/a", "https://***@example.org/a"),
        ("https://ghp_hunter2@example.org/a", "https://***@example.org/a"),
        ("ssh://me@example.org:22/a", "ssh://***@example.org:22/a"),
        ("azure://box/a?sig=hunter2&se=1", "azure://box/a?***"),
        ("https://u:p@h/a?sig=hunter2", "https://***@h/a?***"),
        ("s3://bucket/folder", "s3://bucket/folder"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("https://example.org:8080/a", "https://example.org:8080/a"),
        ("pip install 'beyondcls[s3]'; why? because", "pip install 'beyondcls[s3]'; why? because"),
    ],
)
def test_addresses(address, shown):
    assert masked(f"remote {address} and more", {}) == f"remote {shown} and more"


def test_several_addresses_in_one_text():
    assert masked("a https://u:p@one/x, b https://v:q@two/y", {}) == "a https://***@one/x, b https://***@two/y"


def test_secrets_of_the_environment():
    environment = {
        "HF_TOKEN": "hf_abcdefgh",
        "AWS_SECRET_ACCESS_KEY": "abc/def+ghi",
        "TOKENIZERS_PARALLELISM": "1",
        "HOME": "/home/me",
    }
    text = "sent hf_abcdefgh and abc/def+ghi to 1 host from /home/me"
    assert masked(text, environment) == "sent *** and *** to 1 host from /home/me"
    assert (
        masked("the file /run/secrets/key", {"AWS_WEB_IDENTITY_TOKEN_FILE": "/run/secrets/key"}) == "the file /run/secrets/key"
    )


def test_findings_are_masked(monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "abcdefghijk")
    finding = Finding("dvc remote", "ok", "up https://user:hunter2@example.org", "use abcdefghijk")
    assert finding.found == "up https://***@example.org"
    assert finding.remedy == "use ***"
