"""The compiled twin of the verifier's hot path, where the package was built with a C compiler.

`fast` has the functions of `firehose/_fast.c`, or is None. Each has a twin in Python that says the same, and
has the last word on all that the compiled one does not take.
"""

import contextlib
from importlib import import_module
from typing import Any, Final, TypeVar

# Of the functions, as _fast.c has it: what was built from an older checkout lacks some, and is not used.
VERSION: Final = 3

T = TypeVar("T")

fast: Any = None
with contextlib.suppress(ImportError):  # no compiler where this was built: slower, and the same answers
    fast = import_module("firehose._fast")
    if getattr(fast, "VERSION", 1) != VERSION:
        fast = None


def hasher() -> Any:
    """`fast` where it hashes as fast as OpenSSL, with the processor's own instructions; else None."""
    return fast if fast is not None and fast.HAS_SHA else None


def make(of: type[T], *values: Any) -> T:
    """An instance of a frozen dataclass with slots, its fields in their order; in a quarter of the time."""
    if fast is None:
        return of(**dict(zip(of.__slots__, values, strict=True)))  # type: ignore[attr-defined]
    made: T = fast.make(of, values)
    return made
