"""What is a secret in command lines and texts, and what is not (T12)."""

from __future__ import annotations

import pytest

from synkhronos._host.secrets import is_telling, without_secrets, words_without_secrets


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("train --token abc --rate 0.1", "train --token *** --rate 0.1"),
        ("train --hub-token=a=b x", "train --hub-token=*** x"),
        (
            "--password p --api_key k --secret --verbose",
            "--password *** --api_key *** --secret --verbose",
        ),
        (
            "AWS_SECRET_ACCESS_KEY=x data.batch=3 monkey=1",
            "AWS_SECRET_ACCESS_KEY=*** data.batch=3 monkey=1",
        ),
        ("--key=value -k 3 token", "--key=value -k 3 token"),
        ("data.train=s3://b/x.h5?sig=1", "data.train=s3://b/x.h5?***"),
    ],
)
def test_words(words: str, wanted: str) -> None:
    assert words_without_secrets(words.split()) == wanted.split()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("https://me:p@ss@host/x", "https://***@host/x"),
        ("https://host/x.npy?X-Amz-Signature=a&b=c#d, twice", "https://host/x.npy?***#d, twice"),
        ("filecache::https://u@h/a::zip://b?c", "filecache::https://***@h/a::zip://b?***"),
        ("'postgresql://u:p@h/db' and s3://bucket/x", "'postgresql://***@h/db' and s3://bucket/x"),
        ("me@host: no URL? none.", "me@host: no URL? none."),
        ("C://x", "C://x"),
    ],
)
def test_texts(text: str, wanted: str) -> None:
    assert without_secrets(text) == wanted


def test_names() -> None:
    telling = "token HF_TOKEN password passwd dbSecret aws_secret_access_key API-KEY credentials"
    assert all(map(is_telling, telling.split()))
    assert not any(map(is_telling, ["key", "keyboard", "monkeys", "path", "pass_through", "rate"]))
