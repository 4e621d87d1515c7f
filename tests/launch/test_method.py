"""The digest of the measurement method changes with code, and not with words."""

from repro.launch.method import normalised

_CODE = '''
"""Module."""

def share(used: float) -> float:
    """Return a share."""
    return used / 2  # half
'''


def test_words_do_not_count() -> None:
    other = _CODE.replace("Module", "A module").replace("# half", "").replace("Return", "Give")
    assert normalised(other) == normalised(_CODE)


def test_code_counts() -> None:
    assert normalised(_CODE.replace("/ 2", "/ 3")) != normalised(_CODE)
    assert normalised(_CODE.replace("used: float", "used: int")) != normalised(_CODE)


def test_a_string_that_is_used_counts() -> None:
    assert normalised('x = "one"') != normalised('x = "two"')
