"""Local web server of both pages."""

# Panel's functions have no types.
# mypy: disable-error-code="no-untyped-call"

import sys
from io import TextIOWrapper

import panel as pn
from bokeh.server.tornado import DEFAULT_SESSION_TOKEN_EXPIRATION

from repro.errors import ReproError
from repro.explorer import job_page, page


def serve(port: int, show: bool) -> None:
    """Serve the page of iterations at `/` and of a job at `/job` until interrupted.

    Raises
    ------
    ReproError
        The server cannot listen on the port.
    """
    # Panel prints the address; a reader of a pipe should get it at once.
    assert isinstance(sys.stdout, TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)
    pn.extension()
    try:
        pn.serve(
            {"/": page.page, "job": job_page.page},
            port=port,
            show=show,
            title="repro explore",
            address="127.0.0.1",
            # A browser that connects later gets a new session, whose style sheets have other
            # addresses. Hence as long as the page's token is valid; the default of 15 s is too
            # short on a busy machine.
            unused_session_lifetime_milliseconds=1000 * DEFAULT_SESSION_TOKEN_EXPIRATION,
        )
    except OSError as error:
        raise ReproError(
            f"cannot listen on port {port} ({error.strerror}); fix: choose another with --port"
        ) from None
