"""The interface of a target (lessons 01, 06): the model that the decoding loop runs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from lessons_lib.caches.cache import Cache
from lessons_lib.decoding.draft_tree import ModelInput, ModelOutput


class Unsupported(ValueError):
    """The target lacks an ability that a proposer needs."""


class Target(ABC):
    """Runs forward passes over model inputs and returns their logits.

    offers: optional abilities: "states" (returns hidden states beside logits), "layer ranges" (runs the first layers
    alone, and inputs that enter at a later layer). tokenizer: may be None.
    context: maximum number of tokens of a text. eos: ids of the end tokens.
    """

    offers: frozenset[str] = frozenset()
    tokenizer = None
    vocab_size: int
    context: int
    eos: tuple[int, ...]

    @abstractmethod
    def new_cache(self, tokens: int) -> Cache:
        """An empty cache of one sequence, for a text of `tokens` tokens including the new ones."""

    @abstractmethod
    def run(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        """Run a forward pass over all inputs -> the output of each.

        Appends the keys and values of all input tokens to the caches. `Cache.keep` then drops the rejected tokens.
        Unsupported or CacheFullError, both ValueErrors, if this target cannot run an input.
        """

    def check(self, proposer) -> None:
        """Raise Unsupported if the proposer needs an ability that the target does not offer."""
        if missing := proposer.needs - self.offers:
            raise Unsupported(
                f"{type(proposer).__name__} needs {', '.join(sorted(missing))}, which {type(self).__name__} does not "
                'offer; use model.target(kind="decoder")'
            )


def eos_ids(network, tokenizer) -> tuple[int, ...]:
    """Ids of the end tokens, from the model's generation config, else from its tokenizer.

    Ids without a logit are left out, because the model never generates them (-1 disables the end token).
    """
    eos = getattr(getattr(network, "generation_config", None), "eos_token_id", None)
    eos = eos if eos is not None else getattr(tokenizer, "eos_token_id", None)
    ids = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
    return tuple(token for token in ids if 0 <= token < vocabulary(network))


def vocabulary(network) -> int:
    """Number of tokens that a transformers model has logits for. It may differ from the tokenizer's."""
    head = network.get_output_embeddings()
    return network.config.get_text_config(decoder=True).vocab_size if head is None else head.weight.shape[0]
