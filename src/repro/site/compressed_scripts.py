"""Compression of inline scripts: figures' and tables' code and data are most of a page's bytes."""

import base64
import gzip
import re

# Script that defines `unpack`.
SCRIPT = "unpack.js"
_INLINE = re.compile(r'<script(?: type="text/javascript")?>(.*?)</script>', re.DOTALL)
_MIN_CHARACTERS = 5000


def compress_scripts(body: str) -> str:
    """Compress a page's long inline scripts, and all that use Bokeh; the page must load `SCRIPT`.

    Scripts that use Bokeh have to run after Bokeh's own script, which is compressed as well.
    """
    return _INLINE.sub(_compress_match, body)


def compress_script(script: str) -> str:
    """Return a script that decompresses another and runs it; a page runs them in order."""
    data = base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()
    return f'unpack("{data}")'


def _compress_match(found: re.Match[str]) -> str:
    if len(found[1]) < _MIN_CHARACTERS and "Bokeh" not in found[1]:
        return found[0]
    return f"<script>{compress_script(found[1])}</script>"
