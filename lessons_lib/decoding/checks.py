"""Checks of arguments that several modules share, and the name of an argument's type in an error message."""

from numbers import Integral


def whole(value) -> bool:
    """Whether a value is an integer of Python or numpy, but not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_integers(**sizes: int) -> None:
    """Check that every named size is an integer."""
    for name, size in sizes.items():
        if not whole(size):
            raise TypeError(f"{name} must be an integer, not {size!r}")


def at_least_one(name: str, value: int) -> None:
    """Check that the named value is an integer of at least 1."""
    check_integers(**{name: value})
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")


def kind(value) -> str:
    """The type of an argument, or the class if it is one, for error messages."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
