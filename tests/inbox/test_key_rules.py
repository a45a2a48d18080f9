"""Which headers are keys, what a request is known by, and which responses are kept. Nothing here waits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiesce.errors import KeyRefused, SettingsError
from quiesce.inbox.idempotency_key import MAX_KEY, parse_key
from quiesce.inbox.kept_response import ResponseRules
from quiesce.inbox.keyed_request import Fingerprint, KeyedRequest, storable_scope

PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=MAX_KEY)


@settings(deadline=None)
@given(PRINTABLE)
def test_every_printable_key_in_quotes_is_itself(key: str) -> None:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    assert parse_key([f' "{escaped}"; a=1;b '.encode()]) == key


@pytest.mark.parametrize("header", ["8e03978e-40d5-43e8-bc93-6894a57f9324", "k_1.2~:/+=", "12345"])
def test_a_key_without_quotes_is_the_same_key_where_that_is_allowed(header: str) -> None:
    assert parse_key([header.encode()]) == parse_key([f'"{header}"'.encode()]) == header
    with pytest.raises(KeyRefused, match="takes one string of 1 to 255 printable ASCII characters in double quotes"):
        parse_key([header.encode()], bare=False)


@pytest.mark.parametrize(
    "values",
    [
        *(
            [value]
            for value in (b"", b'""', b'"a', b'a"b', b"a, b", b'"a", "b"', b"a b", b'"a\\b"', b'"caf\xe9"', b"caf\xe9")
        ),
        *([value] for value in (b'"a"x', b'"a";', b'"a\tb"', b'"' + b"k" * 256 + b'"', b"k" * 256)),
        [b'"a"', b'"a"'],
        [],
    ],
    ids=repr,
)
def test_what_is_no_key_is_refused_with_what_it_takes(values: list[bytes]) -> None:
    with pytest.raises(KeyRefused, match=r"^got .*, takes one string"):
        parse_key(values)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=5))
def test_K44_a_fingerprint_does_not_depend_on_how_the_body_came(pieces: list[bytes]) -> None:
    streamed, whole = (Fingerprint("POST", b"/orders", b"") for _ in range(2))
    for piece in pieces:
        streamed.body(piece)
    whole.body(b"".join(pieces))
    assert streamed.digest() == whole.digest()


def test_K42_nothing_moves_from_one_part_of_a_fingerprint_into_the_next() -> None:
    def of(method: str, path: bytes, query: bytes, body: bytes) -> bytes:
        fingerprint = Fingerprint(method, path, query)
        fingerprint.body(body)
        return fingerprint.digest()

    different = {
        of("POST", b"/orders", b"", b""),
        of("PATCH", b"/orders", b"", b""),
        of("POST", b"/order", b"s", b""),
        of("POST", b"/orders", b"x", b""),
        of("POST", b"/orders", b"", b"x"),
        of("POST", b"", b"/orders", b""),
    }
    assert len(different) == 6
    assert of("post", b"/orders", b"", b"") in different


def test_a_scope_that_no_row_can_hold_is_refused_and_not_shown() -> None:
    for scope in ("s" * 256, "secret\0"):
        with pytest.raises(ValueError, match="takes up to 255 without NUL") as refused:
            KeyedRequest(scope, "k", b"")
        assert "secret" not in str(refused.value)


def test_K41_a_scope_of_any_length_and_content_is_stored_and_no_two_are_one() -> None:
    assert storable_scope("alice") == "alice"
    long = storable_scope("s" * 256)
    scopes = [long, storable_scope("s" * 257), storable_scope("a\0"), storable_scope("\ud800"), storable_scope(long)]
    assert len({*scopes, "alice"}) == 6
    for scope in scopes:
        KeyedRequest(scope, "k", b"")
        scope.encode()


def test_K40_what_is_kept_by_status_and_effect() -> None:
    rules = ResponseRules(kept_4xx={402})
    kept = {
        status: (rules.keeps(status, False), rules.keeps(status, True))
        for status in (200, 204, 303, 307, 308, 402, 404, 422, 500, 503)
    }
    assert kept == {
        **dict.fromkeys((200, 204, 303, 402), (True, True)),
        # A client follows 307 and 308 with the same key.
        **dict.fromkeys((307, 308, 404, 422), (False, True)),
        **dict.fromkeys((500, 503), (False, False)),
    }


def test_K43_headers_are_kept_by_name_and_those_of_one_caller_cannot_be() -> None:
    headers = [(b"Location", b"/1"), (b"Set-Cookie", b"a=b"), (b"X-Mine", b"1"), (b"Content-Length", b"3")]
    assert ResponseRules(headers=["location", "X-MINE"]).response(201, headers, b"").headers == (
        (b"location", b"/1"),
        (b"x-mine", b"1"),
    )
    with pytest.raises(SettingsError, match="Set-Cookie"):
        ResponseRules(headers=["Set-Cookie"])
    with pytest.raises(SettingsError, match="takes statuses from 400 to 499"):
        ResponseRules(kept_4xx={500})
    with pytest.raises(SettingsError, match="max_response_bytes"):
        ResponseRules(max_bytes=-1)
