"""Both pages on this machine, until interrupted."""

# Panel's functions have no types.
# mypy: disable-error-code="no-untyped-call"

import sys
from io import TextIOWrapper

import panel as pn
from bokeh.server.tornado import DEFAULT_SESSION_TOKEN_EXPIRATION

from repro.errors import ReproError
from repro.explorer import designs, page


def serve(port: int, show: bool) -> None:
    """Serve what the network costs at `/`, and GPUs that do not exist at `/designs`.

    Raises
    ------
    ReproError
        The port cannot be had.
    """
    # Whoever reads this from a pipe waits to be told the address; panel prints it.
    assert isinstance(sys.stdout, TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)
    pn.extension()
    pages = {"/": page.page, "designs": designs.page}
    try:
        pn.serve(
            pages,
            port=port,
            show=show,
            title="repro explore",
            address="127.0.0.1",
            # A browser that connects later than this is given another session than its page's, and
            # that one's style sheets are elsewhere: it is as long as a page may connect. The usual
            # 15 s are not enough on a busy machine.
            unused_session_lifetime_milliseconds=1000 * DEFAULT_SESSION_TOKEN_EXPIRATION,
        )
    except OSError as error:
        raise ReproError(
            f"port {port}: cannot be had ({error.strerror}); take another one with --port"
        ) from None
