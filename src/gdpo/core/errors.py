"""The one exception users see."""

from __future__ import annotations


class Error(Exception):
    """Base of every error that gdpo raises on purpose.

    The message is one sentence that names the offending value, what was expected and the way out. The command line
    prints it on one line and exits with status 2.
    """
