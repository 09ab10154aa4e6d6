"""How numbers and names are written."""

import pytest

from llmtop import format as fmt


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0.0, "0 s"),
        (808e-6, "808 µs"),
        (0.0601, "60.1 ms"),
        (0.9999, "1.00 s"),
        (1.624, "1.62 s"),
        (54.3, "54.3 s"),
        (91, "1m 31s"),
        (200, "3m 20s"),
        (7500, "2h 05m"),
        (200_000, "2d 07h"),
    ],
)
def test_durations_keep_three_digits_and_name_their_unit(seconds: float | None, text: str) -> None:
    assert fmt.duration(seconds) == text


def test_an_absent_value_is_a_dash_and_never_zero() -> None:
    assert {fmt.percent(None), fmt.watts(None), fmt.size(None), fmt.rate(None), fmt.count(None)} == {"–"}
    assert fmt.percent(0) == "0%"
    assert (fmt.percent_text(83.4), fmt.percent_text(None)) == ("83 %", "–"), "a sentence has the space"
    assert fmt.overhead(12e-6, 0.06) == "12.0 µs per step (0.02 %)"
    assert fmt.percent(-0.0) == fmt.percent(-0.2) == "0%"
    assert fmt.figure(-0.0) == "0"
    assert (fmt.figure(10980.0), fmt.figure(8.854e-05)) == ("10980", "0.00008854")
    assert (fmt.flop_rate(4.975e12), fmt.flop_rate(8.854e7)) == ("4.975 TFLOP/s", "88.5 MFLOP/s")


def test_sizes_move_to_the_next_unit_before_they_need_four_digits() -> None:
    assert fmt.size(0) == "0 B"
    assert fmt.size(1023.9) == "1.00 KiB"
    assert fmt.size(150_754_820_096) == "140 GiB"
    assert (fmt.rate(8.3e9), fmt.short_rate(8.3e9)) == ("8.30 GB/s", "8.3G")
    assert fmt.count(63_474) == "63.5k"


def test_nothing_that_a_terminal_obeys_gets_through() -> None:
    assert fmt.printable("\x1b[31mred\x07\u202e\n") == "·[31mred···"
    assert fmt.printable("a" * 20, 5) == "aaaa…"


def test_a_number_beyond_any_float_is_absent() -> None:
    assert fmt.count(10**400) == fmt.count(None)


def test_a_cell_is_filled_by_what_a_terminal_shows_of_it() -> None:
    for text, cells in (("abc", 3), ("学習", 4), ("é", 1), ("e\u0301", 1), ("", 0)):
        assert fmt.width_of(text) == cells
        assert fmt.pad(text, 6) == text + " " * (6 - cells)
        assert fmt.pad(text, 6, right=True) == " " * (6 - cells) + text
    assert fmt.pad("too long", 3) == "too long"


def test_numbers_for_programs_keep_five_digits_however_small() -> None:
    assert [fmt.round_significant(value) for value in (0.00123456789, 98.7654321, 8.3123456e9)] == [
        0.0012346,
        98.765,
        8.3123e9,
    ]


def test_so_many_times_keep_three_digits() -> None:
    assert [fmt.times(value) for value in (1.378, 12.74, 957.2, 0.724, 0.0, None, float("inf"))] == [
        "1.38x", "12.7x", "957x", "0.72x", "0.00x", "–", "–",
    ]  # fmt: skip


def test_the_largest_floats_are_numbers() -> None:
    assert float(fmt.plain(1.7976e308, 4)) == 1.7976e308
