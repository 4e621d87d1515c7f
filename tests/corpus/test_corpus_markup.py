"""What is left of wiki markup: by the scanner, by the parser, and that they agree."""

import contextlib
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.corpus.markup.parsed import UnreadableMarkup, parsed_text
from repro.corpus.markup.plain import plain_text
from repro.corpus.markup.scanned import scanned_text

_CASES = [
    ("'''Bold''' and ''italic''", "Bold and italic"),
    ("a [[link]] and [[Target|shown ''text'']]", "a link and shown text"),
    ("a{{cite|x={{y|z}}}} b<ref name=q>no {{n}}</ref> c<ref name=q /> d", "a b c d"),
    ('one\n{| class="wikitable"\n! h\n|-\n| cell || {{x}}\n|}\ntwo', "one\ntwo"),
    ("one\n{|\n| a\n{|\n| b\n|}\n|}\ntwo", "one\ntwo"),
    ("one\n{|\n|{\n|-\n|[[b|}]]\n{|\n|b {x}\n |}\n|}\ntwo {x}", "one\ntwo {x}"),
    ("a<ref name=q><cite>no <small>{{n}}</ref> b<ref>no<br>{{n}}</ref>", "a b"),
    ("[[File:A.jpg|thumb|caption with [[link]]]]text", "text"),
    ("[[Category:Cats]][[fr:Chat]][[zh-min-nan:X]]text", "text"),
    ("see [[:Category:Cats]]", "see Category:Cats"),
    ("the [[pipe trick|]] and [[a|b|c]]", "the pipe trick and b|c"),
    ("see [https://e.org the site] [https://e.org]", "see the site"),
    ("<!-- no --> yes &mdash; &lt;b&gt;&nbsp;5&#x2009;kg &unknown;", "yes — <b> 5 kg &unknown;"),
    ("line<br />break", "line\nbreak"),
    ("* one\n** two\n# three", "one\ntwo\nthree"),
    ("; Term : what it is\n: more", "Term what it is\nmore"),
    ("Aristotle ({{lang|el|X}}; 384 BC) and Lincoln ({{x}})", "Aristotle (384 BC) and Lincoln"),
    ("so<math>x^2 < y</math>, <code>f()</code> <nowiki>x</nowiki>", "so, f() x"),
    ("a<small>b<sup>2</sup></small><br>c", "ab2\nc"),
    ("__NOTOC__\n\n\ntext\n\n\n\nmore", "text\nmore"),
    ("3 < 4 and [sic] {x}", "3 < 4 and [sic] {x}"),
    ("", ""),
    ("{{only}}\n----\n", ""),
    (
        "Lead.\n== History ==\nOld.\n=== Early ===\nOlder.\n"
        "== ''References'' ==\nno\n=== Notes on them ===\nno\n== Legacy ==\nNew.\n"
        "== External links ==\n* no",
        "Lead.\nOld.\nOlder.\nNew.",
    ),
]


@pytest.mark.parametrize(("markup", "expected"), _CASES)
def test_well_formed_markup_is_scanned(markup: str, expected: str) -> None:
    assert scanned_text(markup) == expected
    assert parsed_text(markup) == expected


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("see https://e.org", "see"),
        ("<nowiki>[[x]]</nowiki>", "[[x]]"),
        ("a {{b", "a {{b"),
        ("a [[b", "a [[b"),
        ("a <ref>b", "a <ref>b"),
        ("a <!-- b", "a <!-- b"),
        ("a <b>c</i>", "a <b>c</i>"),
        ("[[a [[b]] c]]", "[[a b c]]"),
        ("a&#1;b", "ab"),
    ],
)
def test_other_markup_is_parsed(markup: str, expected: str) -> None:
    assert scanned_text(markup) in (None, expected)
    assert plain_text(markup) == expected


def test_a_number_that_is_no_character_is_dropped() -> None:
    plain_text("a&#xD800;b &#x110000; c").encode("utf-8")


def test_templates_deeper_than_the_parser_goes_are_no_text() -> None:
    deep = "a " + "{{x|" * 30 + "y" + "}}" * 30 + " b"
    assert plain_text(deep) == "a b"


_PIECES = [
    *("{{", "}}", "{{{", "}}}", "{{a|", "{{a\n|b=", "[[", "]]", "[[a|", "[[a]]", "[[File:b|"),
    *("[[fr:c]]", "[", "]", "[http://e.org ", "http://e.org", "[//e.org]", "|", "||", "{|"),
    *("\n{|\n|", "\n|}", "|}", "\n|-\n", "\n! ", "<ref>", "</ref>", "<ref name=a />", "<b>"),
    *("</b>", "<br>", "<br/>", "<nowiki>", "</nowiki>", "<nowiki/>", "<math>", "</math>"),
    *("<!--", "-->", "<!-- c -->", "<", ">", "\n", "\n\n", "\n== ", " ==\n", "\n==References=="),
    *(
        "=",
        "''",
        "'''",
        "\n* ",
        "\n; ",
        ": ",
        ":",
        "\n----",
        "&nbsp;",
        "&lt;",
        "&",
        "; ",
        "__TOC__",
    ),
    *("word", "two words", " ", "(", ")", ",", "é", '"', "#", "/", "!", "-"),
]
# Constructs that are whole, nested in each other: what pages are mostly made of.
_WHOLE = st.recursive(
    st.sampled_from(["word", "two words", "\n", " ", "é", "&nbsp;", "<br>", "'''", "(", ")", "."]),
    lambda inner: st.tuples(
        st.sampled_from(
            [
                *("{{{{a|{0}|b={1}}}}}", "[[a|{0}]]", "<b>{0}</b>{1}", "<ref>{0}</ref>{1}"),
                *("\n{{|\n| {0}\n|}}\n{1}", "{0}<!-- x -->{1}", "[http://e.org {0}]{1}", "{0}{1}"),
                *("\n== h ==\n{0}{1}", "\n* {0}\n{1}", "[[File:b|thumb|{0}]]{1}", "{0} {1}"),
            ]
        ),
        inner,
        inner,
    ).map(lambda made: made[0].format(*made[1:])),
    max_leaves=12,
)


@settings(max_examples=600, deadline=None)
@given(_WHOLE)
def test_the_scanner_agrees_with_the_parser_on_well_formed_markup(markup: str) -> None:
    scanned = scanned_text(markup)
    if scanned is not None:
        assert scanned == parsed_text(markup)
        assert not re.search("[\x01-\x08]", scanned)


def test_on_broken_markup_the_text_seldom_differs_from_the_parser() -> None:
    # docs/reports/corpus.md lists the differences.
    source = random.Random(1)
    count = {True: 0, False: 0}
    differ = {True: 0, False: 0}
    for _ in range(6000):
        markup = "".join(source.choices(_PIECES, k=source.randint(1, 12)))
        taken = scanned_text(markup) is not None
        count[taken] += 1
        differ[taken] += plain_text(markup) != parsed_text(markup)
    assert min(count.values()) > 500
    assert all(differ[taken] < 0.005 * count[taken] for taken in count)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(st.text(max_size=400), st.lists(st.sampled_from(_PIECES), max_size=40).map("".join))
)
def test_any_text_is_taken(text: str) -> None:
    plain_text(text)


@pytest.mark.parametrize(
    "unit",
    [
        *(
            "{{",
            "}}",
            "{{a|",
            "[[",
            "[[a|",
            "<ref>",
            "<b>",
            "<!--",
            "<math>",
            "\n{|\n",
            "[http://a",
        ),
        *(
            "\n==a",
            "&amp",
            "{{a}}",
            "[[a]]",
            "<ref>b</ref>",
            "\n;a",
            "'''",
            "<br>",
            "(",
            "{|",
            "a:",
        ),
        *("<a b='", '<a b="{{', "{{{", "[[[", "\n|-\n|a", "=", "</b>", "<li>", "''[[", "http://a"),
    ],
)
def test_a_page_of_one_thing_a_hundred_thousand_times_ends(unit: str) -> None:
    # The parser would take hours over many of these.
    with contextlib.suppress(UnreadableMarkup):
        plain_text(unit * (200_000 // len(unit)))
