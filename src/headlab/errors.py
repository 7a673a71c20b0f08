"""The one exception Headlab raises on purpose: a sentence for the user."""


class HeadlabError(Exception):
    """What was given, what was expected, what to do. The command line prints it as it is."""
