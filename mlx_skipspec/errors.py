"""The one error people see."""


class SkipSpecError(ValueError):
    """Something the person can put right: the message says what was got, what is needed and what to do.

    The command line turns this class, and nothing else, into one line without a traceback and exit code 2.
    """
