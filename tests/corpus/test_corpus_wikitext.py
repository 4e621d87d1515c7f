"""What is left of wiki markup."""

import pytest

from repro.corpus.wikitext import plain_text


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("'''Bold''' and ''italic''", "Bold and italic"),
        ("a [[link]] and [[Target|shown ''text'']]", "a link and shown text"),
        ("a{{cite|x={{y|z}}}} b<ref name=q>no {{n}}</ref> c<ref name=q /> d", "a b c d"),
        ('one\n{| class="wikitable"\n! h\n|-\n| cell || {{x}}\n|}\ntwo', "one\ntwo"),
        ("[[File:A.jpg|thumb|caption with [[link]]]]text", "text"),
        ("[[Category:Cats]][[fr:Chat]][[zh-min-nan:X]]text", "text"),
        ("see [[:Category:Cats]]", "see Category:Cats"),
        ("see [https://e.org the site] https://e.org", "see the site"),
        ("<!-- no --> yes &mdash; &lt;b&gt;&nbsp;5&#x2009;kg", "yes — <b> 5 kg"),
        ("line<br />break", "line\nbreak"),
        ("* one\n** two\n# three", "one\ntwo\nthree"),
        ("Aristotle ({{lang|el|X}}; 384 BC) and Lincoln ({{x}})", "Aristotle (384 BC) and Lincoln"),
        ("so<math>x^2</math>, <code>f()</code> <nowiki>[[x]]</nowiki>", "so, f() [[x]]"),
        ("__NOTOC__\n\n\ntext\n\n\n\nmore", "text\nmore"),
        ("", ""),
        ("{{only}}\n----\n", ""),
    ],
)
def test_markup(markup: str, expected: str) -> None:
    assert plain_text(markup) == expected


def test_sections_become_paragraphs_and_lists_of_sources_go() -> None:
    markup = (
        "Lead.\n== History ==\nOld.\n=== Early ===\nOlder.\n"
        "== ''References'' ==\nno\n=== Notes on them ===\nno\n== Legacy ==\nNew.\n"
        "== External links ==\n* no"
    )
    assert plain_text(markup) == "Lead.\nOld.\nOlder.\nNew."


def test_a_number_that_is_no_character_is_dropped() -> None:
    plain_text("a&#xD800;b &#x110000; c").encode("utf-8")
