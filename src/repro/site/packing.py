"""What interactive figures are drawn from, packed: it is most of their pages, and text."""

import base64
import gzip
import re

# `unpack` is in it.
SCRIPT = "unpack.js"
_INLINE = re.compile(r'<script(?: type="text/javascript")?>(.*?)</script>', re.DOTALL)
# Shorter scripts stay as they are.
_WORTH_CHARACTERS = 5000


def pack_scripts(body: str) -> str:
    """A page with its long inline scripts packed; the page has to load `SCRIPT` before."""
    return _INLINE.sub(_packed, body)


def _packed(found: re.Match[str]) -> str:
    if len(found[1]) < _WORTH_CHARACTERS:
        return found[0]
    data = base64.b64encode(gzip.compress(found[1].encode(), mtime=0)).decode()
    return f'<script>unpack("{data}")</script>'
