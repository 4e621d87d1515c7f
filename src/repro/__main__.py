"""Entry of the command line: Ctrl-C while modules are loaded ends it without a traceback."""

import signal


def main() -> None:
    """Load the command line and run it."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from repro.cli import main as run

    signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
