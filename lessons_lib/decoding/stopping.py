"""Where a text ends besides its end-of-text token (every lesson): stop texts, however tokens happen to cut them."""

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


def cut_at(text: str, stop: str | Sequence[str] | None, since: int = 0) -> str:
    """The text before the first complete stop text in it, the one that begins first: "b" within "ab" is not it.

    since: stop texts that end within so many characters are text: they came before the minimum length.
    """
    found = [text.find(one, max(0, since - len(one) + 1)) for one in as_texts(stop)]
    return text[: min((at for at in found if at >= 0), default=len(text))]


def as_texts(stop: str | Sequence[str] | None) -> list[str]:
    """None, one text or several -> a list."""
    return [] if stop is None else [stop] if isinstance(stop, str) else list(stop)
