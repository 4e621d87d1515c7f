"""Scripts, packed: what draws figures and tables, and from what, is text and most of a page."""

import base64
import gzip
import re

# `unpack` is in it.
SCRIPT = "unpack.js"
_INLINE = re.compile(r'<script(?: type="text/javascript")?>(.*?)</script>', re.DOTALL)
# Shorter scripts stay as they are.
_WORTH_CHARACTERS = 5000


def pack_scripts(body: str) -> str:
    """A page with its long inline scripts packed, and those that ask for Bokeh, which runs when it
    is unpacked; the page has to load `SCRIPT` before."""
    return _INLINE.sub(_packed, body)


def packed(script: str) -> str:
    """A script that unpacks another and runs it: all of a page one after another."""
    data = base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()
    return f'unpack("{data}")'


def _packed(found: re.Match[str]) -> str:
    if len(found[1]) < _WORTH_CHARACTERS and "Bokeh" not in found[1]:
        return found[0]
    return f"<script>{packed(found[1])}</script>"
