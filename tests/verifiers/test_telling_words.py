"""verifiers.telling_words: texts with other numbers, or other signs at them, differ in sense."""

import pytest

from verl_pivot.verifiers.telling_words import have_same_sense


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Send twenty-one boxes to town.", "Send thirty-one boxes to town."),
        ("Send twenty-one boxes to town.", "Send twenty-two boxes to town."),
        ("the ninety-ninth time", "the ninety-first time"),
        ("a one-third share of it", "a two-third share of it"),
        ("It is a two-day trip for all", "It is a ten-day trip for all"),
        ("a five-pack of them", "a six-pack of them"),
    ],
)
def test_another_number_in_words_is_another_sense(text: str, other: str) -> None:
    assert not have_same_sense(text, other)
    assert have_same_sense(text, f"{text} please")


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Alert me at >100 euros.", "Alert me at <100 euros."),
        ("Alert me at > 100 euros.", "Alert me at < 100 euros."),
        ("Alert me at \u2264 100 euros.", "Alert me at \u2265 100 euros."),
        ("Alert me at > $100 today.", "Alert me at < $100 today."),
        ("It costs 5 \u20ac.", "It costs 5 $."),
        ("It costs 5 \u20ac.", "It costs 5."),
        ("Prices grew by 5 %.", "Prices grew by 5."),
        ("Change the sum by - 5 euros.", "Change the sum by 5 euros."),
        ("Change the sum by - 5 euros.", "Change the sum by + 5 euros."),
        ("Change the sum by \u2212 5 euros.", "Change the sum by 5 euros."),
        ("Allow \u00b1 5 grams.", "Allow 5 grams."),
        ("Keep rows where x == 5.", "Keep rows where x != 5."),
        ("Keep rows where x != 5.", "Keep rows where x 5."),
        ("Keep rows where x != 5.", "Keep rows where x = 5."),
        ("She is rated A+ there.", "She is rated A- there."),
    ],
)
def test_another_sign_at_a_number_or_a_short_name_is_another_sense(text: str, other: str) -> None:
    assert not have_same_sense(text, other)
    assert not have_same_sense(other, text)
    assert have_same_sense(text, text.replace("the", "a"))


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Prices grew by 5 %.", "Prices grew by 5%."),
        ("It costs $ 5.", "It costs $5."),
        ("Alert me at > 100.", "Alert me at >100."),
        ("Wow! 5 bags are here.", "Wow, 5 bags are here."),
        ("Two bags \u2014 5 kilograms each", "Two bags, 5 kilograms each"),
        ("Write to <Ann> today.", "Write to Ann today."),
        ("Set it to -5.", "Set it to \u22125."),
    ],
)
def test_another_place_of_the_same_sign_is_the_same_sense(text: str, other: str) -> None:
    assert have_same_sense(text, other)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Pay 50 to Ann, 50 to Bob and 20 to Carl.", "Pay 50 to Ann, 20 to Bob and 50 to Carl."),
        ("Book seat 3 in row 4 and seat 3 in row 3.", "Book seat 3 in row 3 and seat 4 in row 3."),
        ("Refund 100 for it and 100 for that.", "Refund 100 for it and for that."),
        ("Ann owes Bob money, and Bob owes Carl money.", "Ann owes Bob money, and Carl owes Bob money."),
        ("Ann and Bob paid, then Bob left, then Carl.", "Ann and Bob paid, then Carl left, then Bob, then Bob."),
        ("the left one goes right, the right one left", "the left one goes right, the left one right"),
        ("the left one up, that right, the rest left", "the left one up, that left, the rest right"),
        ("the left one right, the rest left", "the left one right, the rest right"),
    ],
)
def test_repeated_words_in_another_order_are_another_sense(text: str, other: str) -> None:
    assert not have_same_sense(text, other)
    assert not have_same_sense(other, text)
    assert have_same_sense(text, f"please, {text}")


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Ask Ann and then Bob.", "Ask Ann, then ask Bob, yes, Bob."),
        ("Turn left here.", "Turn left here, left."),
        ("Take the red or the green one.", "Take the red one, the red or the green one."),
    ],
)
def test_names_and_contraries_may_be_repeated(text: str, other: str) -> None:
    assert have_same_sense(text, other)
    assert have_same_sense(other, text)
