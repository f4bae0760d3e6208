"""The detokenizer: deltas join to the whole text however the ids are split, and nothing is said too soon."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.detokenizer import Detokenizer
from engine.tokenizer import Tokenizer
from tests.engine.tokenizer_files import byte_level_json, definition, sentencepiece_test_definition

MERGES = [
    ("a", "b"),
    ("ab", "ab"),
    ("Ġ", "P"),
    ("ĠP", "ar"),
    ("a", "r"),
    ("ĠPar", "is"),
    ("i", "s"),
    ("ä", "½"),
]
BYTES = Tokenizer(definition(byte_level_json(MERGES)))
PIECES = Tokenizer(sentencepiece_test_definition(["▁the", "▁there", "here", "▁▁"]))
END = BYTES.special_tokens["<|im_end|>"]


def ids_of(text: str | bytes, tokenizer: Tokenizer = BYTES) -> list[int]:
    """Ids of a text, or one id a byte."""
    if isinstance(text, bytes):
        return [tokenizer.token_bytes.index(bytes([byte])) for byte in text]
    return tokenizer.encode(text, add_special=False, parse_special=True)


def detokenizer(
    tokenizer: Tokenizer = BYTES,
    *,
    prompt: Sequence[int] = (END,),
    stop: tuple[str, ...] = (),
    include_stop: bool = False,
    skip_special: bool = True,
) -> Detokenizer:
    return Detokenizer(
        tokenizer, prompt=prompt, stop=stop, include_stop=include_stop, skip_special=skip_special
    )


def deltas(subject: Detokenizer, ids: Sequence[int]) -> list[str]:
    """What comes out when each id is given alone, and at the end."""
    return [*(subject.add([token_id]) for token_id in ids), subject.finish()]


# --- characters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES])
def test_characters_split_over_tokens_come_whole(tokenizer: Tokenizer) -> None:
    text = "🔥ďábelské 你好 👩‍👩‍👧"
    ids = ids_of(text, tokenizer)
    parts = deltas(detokenizer(tokenizer), ids)
    assert len(ids) > len(text)
    assert "".join(parts) == tokenizer.decode(ids) == text
    assert not any("\ufffd" in part for part in parts)


def test_bytes_that_are_no_character_come_as_in_decode() -> None:
    ids = ids_of(b"a\xff\xe4\xbdb\xf0\x9f\x94")
    assert "".join(deltas(detokenizer(), ids)) == "a\ufffd\ufffdb"  # an unfinished end is dropped
    assert BYTES.decode(ids) == "a\ufffd\ufffdb\ufffd"


def split(ids: Sequence[int], cuts: list[int]) -> list[Sequence[int]]:
    ends = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [ids[start:end] for start, end in pairwise(ends)]


@settings(deadline=None)
@given(text=st.text(), cuts=st.lists(st.integers(0, 1000)))
def test_deltas_join_to_the_text_however_it_is_split(text: str, cuts: list[int]) -> None:
    subject = detokenizer()
    parts = [subject.add(part) for part in split(ids_of(text.encode()), cuts)]
    assert "".join(parts) + subject.finish() == text


@settings(deadline=None)
@given(data=st.binary(), cuts=st.lists(st.integers(0, 1000)))
def test_invalid_text_is_decoded_the_same_however_it_is_split(data: bytes, cuts: list[int]) -> None:
    subject = detokenizer()
    parts = [subject.add(part) for part in split(ids_of(data), cuts)]
    expected = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
    assert "".join(parts) + subject.finish() == expected


# --- the prompt's end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_character_begun_in_the_prompt_comes_whole_and_once(cut: int) -> None:
    fire = "🔥".encode()
    prompt = ids_of(b"Hello world " + fire[:cut])
    assert deltas(detokenizer(prompt=prompt), ids_of(fire[cut:] + b"!"))[-3:] == ["🔥", "!", ""]
    together = detokenizer(prompt=prompt)
    assert together.add(ids_of(fire[cut:] + b"!")) == "🔥!"


@pytest.mark.parametrize("end", [b"\xe4\xbd", b"\xf0\x9f\x94", b"a", b"\xff", b"\xbd\xbd\xbd", "你".encode()])
def test_an_end_of_the_prompt_that_is_not_gone_on_with_stays_in_the_prompt(end: bytes) -> None:
    prompt = ids_of(b"Hello " + end)
    assert "".join(deltas(detokenizer(prompt=prompt), ids_of("abc"))) == "abc"
    assert "".join(deltas(detokenizer(prompt=prompt), ids_of("你"))) == "你"
    assert "".join(deltas(detokenizer(prompt=prompt), [])) == ""


@settings(deadline=None)
@given(text=st.text(min_size=1), at=st.integers(0, 1000), cuts=st.lists(st.integers(0, 1000)))
def test_only_new_text_follows_a_prompt_cut_anywhere(text: str, at: int, cuts: list[int]) -> None:
    data = text.encode()
    at %= len(data) + 1
    subject = detokenizer(prompt=ids_of(data[:at]) or [END])
    parts = [subject.add(part) for part in split(ids_of(data[at:]), cuts)]
    whole_prompt = data[:at].decode(errors="ignore")
    assert "".join(parts) + subject.finish() == text.removeprefix(whole_prompt) * (at < len(data))


# --- the space before the first word -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "text"),
    [("", "the the"), ("here", " the the"), ("here ", " the the")],
)
def test_the_first_space_is_dropped_only_where_the_text_begins(prompt: str, text: str) -> None:
    before = [PIECES.special_tokens["<s>"], *ids_of(prompt, PIECES)]
    output = ids_of("the the", PIECES)
    assert deltas(detokenizer(PIECES, prompt=before), output) == [text.removesuffix(" the"), " the", ""]
    assert PIECES.decode(before + output) == prompt + text


def test_only_one_space_is_dropped() -> None:
    ids = ids_of("  the", PIECES)
    assert "".join(deltas(detokenizer(PIECES, prompt=[1]), ids)) == PIECES.decode(ids) == "  the"


def test_a_shown_special_token_begins_the_text() -> None:
    subject = detokenizer(PIECES, prompt=[1], skip_special=False)
    assert "".join(deltas(subject, ids_of("the", PIECES))) == " the"


# --- special tokens -------------------------------------------------------------------------------------


def test_special_tokens_are_skipped_or_shown() -> None:
    ids = [*ids_of("ab"), END, *ids_of("!")]
    assert deltas(detokenizer(), ids) == ["ab", "", "!", ""]
    assert deltas(detokenizer(skip_special=False), ids) == ["ab", "<|im_end|>", "!", ""]


def test_a_skipped_special_token_does_not_split_a_character() -> None:
    data = "你".encode()
    ids = [*ids_of(data[:2]), END, *ids_of(data[2:])]
    assert "".join(deltas(detokenizer(), ids)) == BYTES.decode(ids) == "你"
    assert "".join(deltas(detokenizer(skip_special=False), ids)) == "\ufffd<|im_end|>\ufffd"


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    assert detokenizer().add([*ids_of("ab"), 100_000]) == "ab"


# --- stop strings ----------------------------------------------------------------------------------------


def test_nothing_of_a_stop_string_is_ever_sent() -> None:
    subject = detokenizer(stop=("DEFGHIJ",))
    assert deltas(subject, ids_of("ABCDEFGHIJ")) == ["A", "B", "C", *[""] * 8]
    assert subject.stopped == "DEFGHIJ"


@pytest.mark.parametrize(
    ("stop", "before"), [("Pari", "in "), ("ari", "in P"), (" ", "in"), ("s", "in Pari")]
)
def test_a_stop_string_is_found_within_a_token(stop: str, before: str) -> None:
    """A09: token by token as in a stream, and all at once."""
    ids = ids_of("in Paris.")
    assert BYTES.token_bytes[ids[2]] == b" Paris"
    for parts in (deltas(detokenizer(stop=(stop,)), ids), [detokenizer(stop=(stop,)).add(ids)]):
        assert "".join(parts) == before


def test_a_tail_that_could_have_become_a_stop_string_is_given_out_at_the_end() -> None:
    subject = detokenizer(stop=("TRE\nAAAA",))
    assert deltas(subject, ids_of("UNO DUE TRE"))[-4:] == ["", "", "", "TRE"]
    assert subject.stopped is None


def test_the_stop_string_is_kept_on_demand() -> None:
    ids = ids_of("abc STOP def")
    subject = detokenizer(stop=("STOP",), include_stop=True)
    assert "".join(deltas(subject, ids)) == "abc STOP"
    assert subject.stopped == "STOP"
    assert subject.add(ids) == ""


def test_text_that_cannot_become_a_stop_string_is_not_delayed() -> None:
    parts = deltas(detokenizer(stop=("xyz", "\n\nUser:")), ids_of("hello x\n, y\n\nyes"))
    assert parts == [*"hello ", "", "x", "\n,", " ", "y", "", "", "\n\ny", "e", "s", ""]


@pytest.mark.parametrize(
    ("text", "stop", "before", "stopped"),
    [
        ("abcd", ("abcd", "bc"), "a", "bc"),  # ends first
        ("abcd", ("cd", "bcd"), "a", "bcd"),  # both end there: the longest
        ("aabaabaaab", ("aabaaa",), "aab", "aabaaa"),  # overlaps itself
        ("aaab", ("aab",), "a", "aab"),
        ("x你好", ("你好",), "x", "你好"),
        ("abab", ("b", "a"), "", "a"),
    ],
)
def test_which_stop_string_wins(text: str, stop: tuple[str, ...], before: str, stopped: str) -> None:
    for ids in (ids_of(text), ids_of(text.encode())):
        subject = detokenizer(stop=stop)
        assert "".join(deltas(subject, ids)) == before
        assert subject.stopped == stopped


def first_stop(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The reference: look at every prefix of the text, shortest first."""
    for end in range(1, len(text) + 1):
        matched = [stop for stop in stops if text[:end].endswith(stop)]
        if matched:
            stop = max(matched, key=len)
            return text[: end - len(stop)], stop
    return text, None


@settings(deadline=None, max_examples=300)
@given(
    text=st.text(alphabet="ab你", max_size=20),
    stops=st.lists(st.text(alphabet="ab你", min_size=1, max_size=6), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 100)),
    include_stop=st.booleans(),
)
def test_stop_strings_against_the_reference(
    text: str, stops: list[str], cuts: list[int], include_stop: bool
) -> None:
    stop = tuple(stops)
    subject = detokenizer(stop=stop, include_stop=include_stop)
    before, stopped = first_stop(text, stop)
    sent = ""
    for part in split(ids_of(text.encode()), cuts):
        sent += subject.add(part)
        assert before.startswith(sent) or subject.stopped
    sent += subject.finish()
    assert subject.stopped == stopped
    assert sent == before + (stopped if include_stop and stopped else "")


@settings(deadline=None, max_examples=300)
@given(
    text=st.text(alphabet="ab", max_size=20),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=6), min_size=1, max_size=3),
)
def test_only_what_could_still_become_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    assume(first_stop(text, tuple(stops))[1] is None)
    subject = detokenizer(stop=tuple(stops))
    sent = ""
    for end in range(1, len(text) + 1):
        sent += subject.add(ids_of(text[end - 1].encode()))
        seen = text[:end]
        could_match = [n for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n])]
        assert sent == seen[: end - max(could_match)]


def test_a_stop_string_is_looked_at_no_further_than_it_matches() -> None:
    looked_at: set[int] = set()

    class Watched(str):
        __slots__ = ()

        def __getitem__(self, at: Any) -> str:
            looked_at.add(at)
            return super().__getitem__(at)

    subject = detokenizer(stop=(Watched("abcabx" * 100),))
    assert "".join(deltas(subject, ids_of("ababcabcab.y"))) == "ababcabcab.y"
    assert looked_at == set(range(6))
