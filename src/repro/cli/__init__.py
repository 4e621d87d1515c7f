"""Command line: a short function per pipeline stage, and commands for users' questions."""

import os
import signal
import sys
import threading
import warnings
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from repro.cli import corpus, judging, measuring, planning, predicting, showing
from repro.cli.options import JsonOption
from repro.cli.output import print_json
from repro.errors import ReproError
from repro.extras import DISTRIBUTION, missing_part
from repro.testbed.kernel import die_with_parent

# Python has left the callback after this delay.
_RESEND_DELAY_S = 0.01


class _Interruptible(TyperGroup):
    """Group of commands that reports an interruption; typer alone exits silently."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("repro: interrupted; run the same command again to resume", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(cls=_Interruptible, pretty_exceptions_enable=False)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"repro {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Measure and predict what the network costs in distributed LLM training."""
    if context.invoked_subcommand is None:
        from repro.welcome import next_steps

        typer.echo(next_steps())


@app.command(rich_help_panel="This machine")
def doctor(as_json: JsonOption = False) -> None:
    """Print what this machine supports, one line per capability, with a fix for what is missing."""
    from repro.doctor import connections, examine

    found, matrix = examine(), connections()
    if as_json:
        print_json({"capabilities": [asdict(one) for one in found], "connections": matrix})
        return
    for line in (*found, *(f"     {one}" for one in matrix)):
        typer.echo(line)


app.add_typer(showing.app)
app.add_typer(planning.app)
app.add_typer(predicting.app)
app.add_typer(judging.app)
app.add_typer(measuring.app)
app.add_typer(corpus.app, name="corpus", no_args_is_help=True, rich_help_panel=measuring.PANEL)


def send_again(lost: "sys.UnraisableHookArgs") -> None:
    """Send SIGINT again if a callback that cannot raise swallowed it, as in Python's own imports.

    Python's default hook reports every other exception.
    """
    if lost.exc_type is KeyboardInterrupt:
        main_thread = threading.main_thread().ident
        resend = threading.Timer(_RESEND_DELAY_S, signal.pthread_kill, (main_thread, signal.SIGINT))
        resend.start()
    else:
        sys.__unraisablehook__(lost)


def main() -> None:
    """Run a command; an error that the user can fix is one line on stderr and its exit status."""
    # Megatron-Core warns about every optional accelerated package that is not installed.
    warnings.filterwarnings("ignore", category=UserWarning, module="megatron")
    sys.unraisablehook = send_again
    # A stage must not measure on beside the next run of a DVC that was killed.
    if "DVC_STAGE" in os.environ:
        die_with_parent(signal.SIGTERM)
    try:
        app(standalone_mode=True)
    except ReproError as error:
        # Names in a user's file may have line breaks.
        typer.echo(f"repro: {' '.join(str(error).splitlines())}", err=True)
        sys.exit(error.exit_status)
    except ModuleNotFoundError as error:
        if part := missing_part(error.name or ""):
            sys.exit(f"repro: {part}")
        raise
