"""The one error people see."""


class SkipSpecError(ValueError):
    """Something the person can put right: the message says what was got, what is needed and what to do.

    The command line turns this class, and nothing else, into one line without a traceback and exit code 2.
    """


def one_line(error: BaseException) -> str:
    """A library's message as one line, short enough to stand inside one of ours."""
    text = " ".join(str(error).split()).rstrip(". ") or type(error).__name__
    return text if len(text) <= 160 else f"{text[:160].rpartition(' ')[0] or text[:160]} …"
