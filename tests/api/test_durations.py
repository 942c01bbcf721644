import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_api.durations import DURATION_MAX_LENGTH, DURATION_PATTERN, format_duration, parse_duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0.0),
        ("500ms", 0.5),
        ("2.5s", 2.5),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("1m30s", 90.0),
        ("1h1m1s1ms", 3661.001),
        ("30s1m", 90.0),
        ("0.001ms", 0.000001),
        ("999999h", 999999 * 3600.0),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float):
    assert parse_duration_s(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "s",
        "-1s",
        "+1s",
        "1 s",
        "1d",
        "1us",
        "1S",
        ".5s",
        "1.s",
        "1e3s",
        "1s\n",
        "1000000s",
        "1.0001s",
        "1s" * 11,
    ],
)
def test_what_is_no_duration_is_refused_with_an_example(text: str):
    with pytest.raises(ValueError, match="such as 500ms or 1m30s"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.025, "25ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (90, "90s"),
        (120, "2m"),
        (7200, "2h"),
        (3600.25, "3600.25s"),
    ],
)
def test_a_duration_is_written_in_the_unit_that_shows_it_shortest(seconds: float, text: str):
    assert format_duration(seconds) == text


@given(st.integers(min_value=0, max_value=999_999 * 1000))
def test_a_duration_of_whole_milliseconds_survives_writing_and_reading(milliseconds: int):
    assert round(parse_duration_s(format_duration(milliseconds / 1000)) * 1000) == milliseconds


@given(st.from_regex(DURATION_PATTERN, fullmatch=True).filter(lambda text: len(text) <= DURATION_MAX_LENGTH))
def test_whatever_matches_the_pattern_is_read_and_fits_64_bit_nanoseconds(text: str):
    assert 0 <= parse_duration_s(text) * 1e9 < 2**63
