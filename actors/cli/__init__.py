"""The command line `skylease`: stdout is the answer, stderr the progress, an error is one line.

Exit codes: 0 done, 1 failed, 2 wrong use, 3 the thing asked for does not exist, 4 refused, 130 interrupted.
"""

from actors.cli.main import main

__all__ = ["main"]
