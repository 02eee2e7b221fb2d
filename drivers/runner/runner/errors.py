"""The two kinds of failure that a person sees."""


class InputError(Exception):
    """The input is wrong: nothing was started. The command line prints the message and exits with 2."""


class RunError(Exception):
    """Something outside failed (a server, the disk, Ansible). The message says what, and what to do."""
