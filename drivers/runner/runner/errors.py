"""The two kinds of failure that a person sees, and the exit codes of every command."""

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_TRIALS_FAILED, EXIT_INTERRUPTED = 1, 2, 3, 130


class InputError(Exception):
    """The input is wrong: nothing was started. The command line prints the message and exits with 2."""


class RunError(Exception):
    """Something outside failed (a server, the disk, Ansible). The message says what, and what to do."""
