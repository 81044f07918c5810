"""What a model's ``handler.py`` may raise to say what a failure means. A handler itself is a plain class.

An error that is neither of these is retried as the model's and the job's policy say; ValueError, TypeError and KeyError
in preprocess mean that the input is wrong, and are not.
"""


class Permanent(Exception):
    """This item cannot succeed, however often it is tried."""


class Retry(Exception):
    """Try this item again, not before ``after`` seconds have passed (None: as the policy says)."""

    def __init__(self, message: str = "", after: float | None = None) -> None:
        super().__init__(message)
        self.after = after
