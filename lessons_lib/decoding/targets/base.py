"""What the loop asks of a target (lessons 01, 06)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from lessons_lib.caches.cache import Cache
from lessons_lib.decoding.draft_tree import ModelInput, ModelOutput


class Unsupported(ValueError):
    """A proposer needs what this target does not offer."""


class Target(ABC):
    """Runs blocks and says what it thinks of them; its caches keep or forget entries.

    offers: abilities a proposer may need: "states" (hidden states beside logits), "rows" (several rows in one
    forward; without it they run one after another). tokenizer may be None.
    context: the most tokens a text may have. eos: ids that end a text.
    """

    offers: frozenset[str] = frozenset()
    tokenizer = None
    vocab_size: int
    context: int
    eos: tuple[int, ...]

    @abstractmethod
    def new_cache(self, tokens: int) -> Cache:
        """An empty cache of one row for a text of so many tokens, new ones included."""

    @abstractmethod
    def run(self, blocks: Sequence[ModelInput]) -> list[ModelOutput]:
        """Feed every block -> its Scores; its cache holds all its tokens afterwards, until `keep` drops those rejected.

        A ValueError (Unsupported, CacheFullError) for a block that this target cannot run; a LookupError, or the
        device's own, for ids, positions and layers beyond the model's.
        """

    def check(self, proposer) -> None:
        """Raise Unsupported if the proposer needs what is not offered."""
        if missing := proposer.needs - self.offers:
            raise Unsupported(
                f"{type(proposer).__name__} needs {', '.join(sorted(missing))}, which {type(self).__name__} does not "
                'offer; use model.target(kind="decoder")'
            )


def eos_ids(network, tokenizer) -> tuple[int, ...]:
    """Ids that end a text, from the model's generation config, else its tokenizer, else none.

    Ids that the model has no logit for are left out, since it never writes them: -1 switches the end off.
    """
    eos = getattr(getattr(network, "generation_config", None), "eos_token_id", None)
    eos = eos if eos is not None else getattr(tokenizer, "eos_token_id", None)
    ids = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
    return tuple(token for token in ids if 0 <= token < vocabulary(network))


def vocabulary(network) -> int:
    """How many tokens a model of transformers gives logits for."""
    head = network.get_output_embeddings()
    return network.config.get_text_config(decoder=True).vocab_size if head is None else head.weight.shape[0]
