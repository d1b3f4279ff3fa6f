"""The one error that is the user's to mend: printed without a traceback, exit code 2."""


class UsageError(ValueError):
    """A fault in the configuration, the data or the command line.

    The message says what was given, what is allowed and what to do next. `main` prints it and
    exits with code 2; every other exception is a defect of the library and keeps its traceback.
    """
