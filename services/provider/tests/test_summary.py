from __future__ import annotations

from pathlib import Path

import pytest

from services.provider.summary import estimate_tokens, sentences, summarize

TEXT = """Foxes

A fox saw some grapes on a high vine. The fox jumped for the grapes but the grapes hung too high.
It rained in the next valley on that same day. The fox left and said that the grapes were sour."""


def test_the_summary_is_the_sentences_that_say_the_most_in_their_order():
    assert summarize(TEXT) == (
        "The fox jumped for the grapes but the grapes hung too high. "
        "The fox left and said that the grapes were sour."
    )


def test_one_sentence_is_the_one_that_says_the_most():
    assert summarize(TEXT, 1) in sentences(TEXT)


@pytest.mark.parametrize(
    ("text", "expected"), [("", ""), ("\n \n", ""), ("just  some\nwords", "just some words")]
)
def test_a_text_without_sentences_is_its_own_summary(text, expected):
    assert summarize(text) == expected


def test_headings_and_fragments_are_no_sentences():
    assert sentences("A heading\n\nYes. This is a sentence of several words.") == [
        "This is a sentence of several words."
    ]


def test_abbreviations_and_quotes_do_not_break_sentences():
    text = 'Mr. Smith of the U.S. Navy said "come to me at once." Then he left J. K. and the others behind.'
    assert sentences(text) == [
        'Mr. Smith of the U.S. Navy said "come to me at once."',
        "Then he left J. K. and the others behind.",
    ]


def test_tokens_are_a_quarter_of_the_bytes():
    assert [estimate_tokens(text) for text in ("", "abcd", "abcde", "ä" * 4, "\ud800")] == [0, 1, 2, 2, 1]


def test_the_example_documents_have_summaries_shorter_than_themselves():
    folder = Path(__file__).parents[3] / "examples" / "documents"
    documents = [path.read_text(encoding="utf-8") for path in folder.glob("*.txt")]
    assert len(documents) >= 300
    for text in documents:
        assert 0 < len(summarize(text)) < len(text)
        assert summarize(text) == summarize(text)
