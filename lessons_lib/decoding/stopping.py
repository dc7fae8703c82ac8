"""Where a text ends besides its end-of-text token: stop texts, found however tokens happen to cut them."""

from collections.abc import Callable, Sequence


def stop_check(tokenizer, stop: str | Sequence[str] | None) -> Callable[[list[int]], bool] | None:
    """-> a function that says whether the new tokens' text contains a stop text, None without any.

    Raises ValueError for an empty stop text, TypeError without a tokenizer.
    """
    texts = as_texts(stop)
    if not texts:
        return None
    if tokenizer is None:
        raise TypeError("stop texts need a tokenizer: use a model from lessons_lib.load, or cut the ids yourself")
    if "" in texts:
        raise ValueError("an empty stop text would end every output before it begins; leave it out")
    # a token is at least one byte, so the newest tokens that can hold a stop text are few; one more for a
    # character that two tokens share
    window = max(len(text.encode()) for text in texts) + 4
    return lambda new: any(text in tokenizer.decode(new[-window:]) for text in texts)


def cut_at(text: str, stop: str | Sequence[str] | None) -> str:
    """The text before the last stop text in it: the one that ended it, earlier ones came before the minimum."""
    ends = [at for at in (text.rfind(one) for one in as_texts(stop)) if at >= 0]
    return text[: max(ends, default=len(text))]


def as_texts(stop: str | Sequence[str] | None) -> list[str]:
    """None, one text or several -> a list."""
    return [] if stop is None else [stop] if isinstance(stop, str) else list(stop)
