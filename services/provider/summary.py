"""Extractive summaries: the sentences whose words say most of what the text says. Pure, deterministic."""

from __future__ import annotations

import re
from collections import Counter

_APOSTROPHES = "'\u2019"
_OPENING = "\"'(\\[\u201c\u2018"
_CLOSING = "\"')\\]\u201d\u2019"
_WORD = re.compile(rf"[^\W\d_]+(?:[{_APOSTROPHES}][^\W\d_]+)?")
_PARAGRAPH = re.compile(r"\n\s*\n")
_BREAK = re.compile(rf"(?<=[.!?])([{_CLOSING}]*)\s+(?=[{_OPENING}]?[A-Z0-9])")
_TITLES = "Mr|Mrs|Ms|Dr|St|Prof|Gen|Lt|Col|Sen|No|vs|ca"
_ABBREVIATION = re.compile(rf"\b(?:[A-Z]|{_TITLES}|e\.g|i\.e)\.$")
_END = re.compile(rf"[.!?][{_CLOSING}]*$")
_COMMON = """
    a about after again against all also although an and any are as at be because been before being
    between both but by can could did do does during each even few for from further had has have he
    her here him his how i if in into is it its itself just may me might more most much must my no
    nor not now of on once one only or other our out over own same several shall she should since so
    some such than that the their them then there these they this those though through to too under
    until up upon us very was we well were what when where whether which while who whom why will
    with within without would you your
"""
_STOPWORDS = frozenset(_COMMON.split())
_SHORTEST = 6  # words; less is a heading or a fragment


def summarize(text: str, most: int = 2) -> str:
    """At most so many sentences of the text, in its order; the whole text if it has no sentence.

    Each pick is the sentence with the highest mean word frequency; the words of a pick then count less, so
    that the next one says something else. Ties go to the earlier sentence.
    """
    pool = sentences(text)
    if not pool:
        return " ".join(text.split())
    words = [_content_words(sentence) for sentence in pool]
    weight = _frequencies(words)
    left = list(range(len(pool)))
    picked: list[int] = []
    while left and len(picked) < most:
        best = max(left, key=lambda i: _mean(words[i], weight))  # the first of equals
        left.remove(best)
        picked.append(best)
        for word in set(words[best]):
            weight[word] **= 2
    return " ".join(pool[i] for i in sorted(picked))


def sentences(text: str) -> list[str]:
    """The sentences of a text, headings and fragments left out."""
    found: list[str] = []
    for paragraph in _PARAGRAPH.split(text):
        started = ""
        for piece in _pieces(" ".join(paragraph.split())):
            started = f"{started} {piece}".strip()
            if not _ABBREVIATION.search(started):
                found.append(started)
                started = ""
        found.append(started)
    return [s for s in found if _END.search(s) and len(s.split()) >= _SHORTEST]


def estimate_tokens(text: str) -> int:
    """About how many tokens a language model would count: a quarter of the bytes, rounded up."""
    return -(-len(text.encode(errors="replace")) // 4)


def _pieces(line: str) -> list[str]:
    parts = [*_BREAK.split(line), ""]  # text, closing quotes, text, closing quotes, ...
    return [text + closing for text, closing in zip(parts[::2], parts[1::2], strict=True)]


def _content_words(sentence: str) -> list[str]:
    words = (word.lower() for word in _WORD.findall(sentence))
    return [word for word in words if len(word) > 1 and word not in _STOPWORDS]


def _frequencies(words: list[list[str]]) -> dict[str, float]:
    counts = Counter(word for sentence in words for word in sentence)
    total = counts.total() or 1
    return {word: count / total for word, count in counts.items()}


def _mean(words: list[str], weight: dict[str, float]) -> float:
    return sum(weight[word] for word in words) / max(len(words), _SHORTEST)
