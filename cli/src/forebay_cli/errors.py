"""Expected failures of the commands; each is told as a sentence.

- CliError
  - NotReadyError: something did not become ready in time
"""


class CliError(Exception):
    """A failure that the user can act on; the text says how."""


class NotReadyError(CliError):
    """Something did not become ready in time; the text says what was last seen."""
