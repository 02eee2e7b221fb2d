"""How every command ends: a foreseen failure is one clear text and its exit code, never a traceback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from runner.errors import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INTERRUPTED, InputError, RunError


def call(app: typer.Typer, arguments: list[str] | None = None) -> int:
    """Run a command of `app` (of the command line, or `arguments`) and return its exit code."""
    command: Callable[..., Any] = typer.main.get_command(app)
    try:
        return int(command(args=arguments, standalone_mode=False) or 0)
    except (InputError, RunError) as error:
        typer.echo(str(error), err=True)
        return EXIT_BAD_INPUT if isinstance(error, InputError) else EXIT_FAILED
    except OSError as error:  # a full disk or missing rights while writing results
        typer.echo(f"{error.strerror}: {error.filename or 'results'}; what was recorded is kept", err=True)
        return EXIT_FAILED
    except (typer.Exit, typer.Abort) as error:
        return int(getattr(error, "exit_code", EXIT_INTERRUPTED))
    except Exception as error:
        # Click's usage errors know how to show themselves; anything else is a defect and keeps its traceback.
        show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
        if show is None or code is None:
            raise
        show()
        return int(code)
