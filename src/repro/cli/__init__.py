"""The command line: one short function per stage of the pipeline, and the questions users ask."""

import signal
import sys
import threading
import warnings
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from repro.cli import corpus, measuring, predicting, showing
from repro.errors import ReproError

# Until Python is out of a callback.
_SOON_S = 0.01


class _Interruptible(TyperGroup):
    """Says what an interruption means; typer by itself ends without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("repro: interrupted; the same command goes on from here", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(cls=_Interruptible, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"repro {version('repro')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print it, and end."
        ),
    ] = False,
) -> None:
    """The wind tunnel for LLM interconnects."""
    if context.invoked_subcommand is None:
        from repro.welcome import next_steps

        typer.echo(next_steps())


@app.command(rich_help_panel="This machine")
def doctor() -> None:
    """Say what this machine can do, one line each, with the mend where it cannot."""
    from repro.doctor import examine

    for finding in examine():
        typer.echo(finding)


app.add_typer(showing.app)
app.add_typer(predicting.app)
app.add_typer(measuring.app)
app.add_typer(corpus.app, name="corpus", no_args_is_help=True, rich_help_panel=measuring.PANEL)


def send_again(lost: "sys.UnraisableHookArgs") -> None:
    """Interrupt once more where an interruption was lost, as in callbacks of Python's own imports,
    which can raise nothing; of anything else Python's own words."""
    if lost.exc_type is KeyboardInterrupt:
        main_thread = threading.main_thread().ident
        threading.Timer(_SOON_S, signal.pthread_kill, (main_thread, signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(lost)


def main() -> None:
    """Run a command; what the user can mend is one line on stderr and exit status 1."""
    # Megatron-Core names every accelerated package that it does without.
    warnings.filterwarnings("ignore", category=UserWarning, module="megatron")
    sys.unraisablehook = send_again
    try:
        app(standalone_mode=True)
    except ReproError as error:
        sys.exit(f"repro: {error}")
