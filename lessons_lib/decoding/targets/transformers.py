"""Any causal LM of transformers as a target (lesson 01). Only this module uses transformers' cache classes.

Pure attention models cache keys and values per token: `TransformersCache` drops and reorders them. All others
(recurrent, hybrid, without a cache) run as in transformers' own `generate`, and `StateCache` rolls back to a copy of
their state. `self_check` tests whether a model computes chains and trees of draft tokens correctly.

In transformers 5.23, `DynamicCache.crop` takes the number of tokens to remove as a negative number, and silently
empties a cache that is shorter. There is no gather along the sequence. A 4-D mask is passed on unchanged; it is bool
for sdpa and additive for eager, which silently adds a bool mask as 0 and 1.
"""

import copy
import inspect
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.cache_utils import DummyLayer, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from lessons_lib.caches.cache import Cache, is_contiguous
from lessons_lib.decoding.draft_tree import ModelInput, ModelOutput, plain_input
from lessons_lib.decoding.targets.decoder import Target, Unsupported
from lessons_lib.decoding.targets.self_check import SelfCheck

CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")
PER_TOKEN = (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer)  # types of cache layers whose entries can be dropped
UNLIMITED = 2**31  # context of a model whose config has no limit
DRAFTS = 64  # draft tokens that the self-check of branches makes room for, at least


class TargetCache(Cache):
    """A cache with a reference to its target. drafted: draft tokens were fed. chains_only: no more branches are fed.

    If the model does not compute branches correctly, the first draft step of a text raises Unsupported. Later in the
    text, or if the check runs out of memory, decoding continues with chains.
    """

    def __init__(self, target: "TransformersTarget"):
        self.target, self.drafted, self.chains_only = target, False, False

    def branches(self, entries: int) -> bool:
        if not self.chains_only:
            try:
                self.target.require_branches(self, entries)
            except (Unsupported, torch.OutOfMemoryError) as problem:
                if isinstance(problem, Unsupported) and not self.drafted:
                    return True  # `run` raises Unsupported
                self.chains_only = True
                warnings.warn(f"decoding goes on with chains: {problem}", stacklevel=2)
        return not self.chains_only


class TransformersCache(TargetCache):
    """Our cache interface over a DynamicCache. Created without a config, it has plain layers, all of one length.

    tokens: expected length of the text.
    """

    def __init__(self, target: "TransformersTarget", tokens: int):
        super().__init__(target)
        self.tokens, self.inner = tokens, DynamicCache()

    def length(self, layer: int = -1) -> int:
        return int(self.inner.get_seq_length())

    def keep(self, prefix: int, then: Sequence[int] = ()) -> None:
        end, length = prefix + len(then), self.length()
        if end > length:
            raise ValueError(f"{end} entries cannot be kept of {length}")
        if is_contiguous(prefix, then):
            if end < length:
                self.inner.crop(end - length)
            return
        index = torch.tensor([*range(prefix), *then], device=self.inner.layers[0].keys.device)
        for layer in self.inner.layers:
            layer.keys, layer.values = layer.keys.index_select(-2, index), layer.values.index_select(-2, index)


class StateCache(TargetCache):
    """The state of a model that cannot drop tokens. Rollback restores an older state and feeds the kept tokens again.

    ids: the tokens that the state covers. state: the arguments that transformers passes from one forward pass to the
    next. The first rollback feeds the whole text again. From then on the state is copied before every pass. Copies
    share keys and values, which are never written in place.
    """

    def __init__(self, target: "TransformersTarget"):
        super().__init__(target)
        self.state = target.new_state()
        self.ids: list[int] = []
        self.copying, self.copies = False, []  # copies: (tokens read, state), oldest first, since the last `keep`

    def length(self, layer: int = -1) -> int:
        return len(self.ids)

    def save(self) -> None:
        """Copy the state, once a rollback has happened in this text."""
        if self.copying:
            layers = [layer for held in self.state.values() for layer in getattr(held, "layers", ())]
            shared = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
            memo = {id(tensor): tensor for tensor in shared if tensor is not None}
            self.copies.append((len(self.ids), copy.deepcopy(self.state, memo)))

    def keep(self, prefix: int, then: Sequence[int] = ()) -> None:
        end = prefix + len(then)
        if end > len(self.ids) or not is_contiguous(prefix, then):
            raise ValueError(f"{prefix} tokens and then {list(then)} cannot be kept of {len(self.ids)}")
        if end < len(self.ids):
            self.target.require_chains()
            # restore the latest copy that is old enough, else start anew
            copy_before = next((saved for saved in reversed(self.copies) if saved[0] <= end), None)
            read, self.state = copy_before or (0, self.target.new_state())
            again, self.ids = self.ids[read:end], self.ids[:read]
            # feed the kept tokens after it again
            if again:
                self.target.forward(plain_input(again, self))
            self.copying = True
        self.copies = []


class TransformersTarget(Target):
    """Runs any causal LM of transformers (network), with one forward pass per sequence.

    Plain decoding works with every such model, as in transformers' `generate`. Unsupported is raised for
    encoder-decoder models; for draft chains, if several tokens at once get other logits than one at a time; and for
    branches and side tokens, if they get other logits than plain text. The last happens in models with unusual
    positions, beyond an attention window, and without keys and values per token.
    """

    offers = frozenset({"states"})

    def __init__(self, network, tokenizer=None):
        self.name, config = type(network).__name__, network.config
        if not hasattr(network, "generate"):
            raise Unsupported(f"{self.name} gives no logits of a next token; load it with AutoModelForCausalLM")
        if config.is_encoder_decoder:
            raise Unsupported(f"{self.name} has an encoder, which this does not run; pass a decoder-only causal model")
        self.network, self.tokenizer, self.device = network.eval(), tokenizer, network.device
        self.text_config = config.get_text_config(decoder=True)
        self.accepts = frozenset(inspect.signature(network.forward).parameters)
        self.per_token = "past_key_values" in self.accepts and caches_per_token(network)
        self.vocab_size = vocabulary(network)
        lengths = (getattr(self.text_config, name, None) for name in CONTEXT_NAMES)
        self.context = next((length for length in lengths if length and length > 0), UNLIMITED)
        self.eos = eos_ids(network, tokenizer)
        self.self_check = SelfCheck(self)

    def new_cache(self, tokens: int) -> Cache:
        """An empty cache; it grows by itself."""
        return TransformersCache(self, tokens) if self.per_token else StateCache(self)

    def run(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        """Run one forward pass per input -> its output.

        Unsupported for draft tokens that fail the self-check, for branches if the attention implementation is neither
        "sdpa" nor "eager", and for hidden states that transformers does not return (after the last layer).
        """
        return [self._run(model_input) for model_input in inputs]

    def _run(self, model_input: ModelInput) -> ModelOutput:
        cache = model_input.cache
        if model_input.mask is not None:
            self.require_branches(cache, model_input.mask.shape[1])
        elif len(model_input.tokens) > 1 and cache.length():
            self.require_chains()
        cache.drafted |= model_input.wanted > 1  # prompts and plain steps need only the last token's logits
        if not self.per_token:
            cache.save()
        return self.forward(model_input)

    def require_branches(self, cache: TargetCache, entries: int) -> None:
        """Raise Unsupported unless branches and side tokens are computed correctly up to `entries` cache entries."""
        if not (self.per_token and self.self_check.reads_branches(entries, self._entries_ahead(cache, entries))):
            raise Unsupported(
                f"{self.name} does not read branches and side tokens as it reads plain text, at least in a text of "
                f"{entries} tokens; use a proposer of chains, such as DraftModel without children"
            )

    def _entries_ahead(self, cache: TransformersCache, entries: int) -> int:
        """Estimate of the entries that the text will need, with draft trees of twice this size or DRAFTS tokens.

        The cache of a draft model knows only the length of the prompt. Once a text is longer than the estimate, we
        assume 1.5 times its length, so that the check does not run at every step.
        """
        whole = cache.tokens + max(2 * (entries - cache.length()), DRAFTS)
        return whole if whole > entries else entries * 3 // 2

    def require_chains(self) -> None:
        """Raise Unsupported unless the model computes several tokens at once correctly and can roll back."""
        if not self.self_check.reads_chains():
            raise Unsupported(
                f"{self.name} reads several tokens at once differently from one at a time, or cannot drop tokens; "
                "decode plainly with this model, without a proposer, and do not draft with it"
            )

    def forward(self, model_input: ModelInput) -> ModelOutput:
        """Run one forward pass over an input, without checks -> its output."""
        out = self._from_keys_and_values(model_input) if self.per_token else self._from_state(model_input)
        if out.logits.shape[1] < model_input.wanted:
            raise Unsupported(f"{self.name} gives logits for fewer tokens than it reads: decode plainly with it")
        return ModelOutput(
            out.logits[0, -model_input.wanted :],
            {name: self._states(out, name, model_input) for name in model_input.after},
        )

    def _from_keys_and_values(self, model_input: ModelInput):
        cache, device, options = model_input.cache, self.device, self._options(model_input)
        if "position_ids" in self.accepts:
            options["position_ids"] = torch.tensor([cache.positions(model_input.offsets)], device=device)
        if model_input.mask is not None:
            implementation = getattr(self.text_config, "_attn_implementation", None)
            options["attention_mask"] = as_attention_mask(
                model_input.mask.to(device), implementation, self.network.dtype
            )
        tokens = torch.tensor([model_input.tokens], device=device)
        return self.network(tokens, past_key_values=cache.inner, use_cache=True, **options)

    @torch.no_grad()  # a state that is part of an autograd graph cannot be copied
    def _from_state(self, model_input: ModelInput):
        """Run one step as transformers' `generate` does: the model itself prepares ids, positions and state."""
        cache, device = model_input.cache, self.device
        first, ids = not cache.ids, torch.tensor([cache.ids + model_input.tokens], device=device)
        positions = {}
        if "position_ids" in self.accepts:
            positions["position_ids"] = self.network._prepare_position_ids_for_generation(ids, {})
        inputs = self.network.prepare_inputs_for_generation(
            ids,
            next_sequence_length=None if first else len(model_input.tokens),
            is_first_iteration=first,
            attention_mask=None,
            use_cache=True,
            **positions,
            **cache.state,
        )
        out = self.network(**inputs | self._options(model_input), return_dict=True)
        cache.state = self.network._update_model_kwargs_for_generation(out, cache.state)
        cache.ids.extend(model_input.tokens)
        return out

    def new_state(self) -> dict:
        """The state that `generate` passes to the first forward pass of a text."""
        state: dict = {}
        self.network._prepare_cache_for_generation(GenerationConfig(), state, None, 1, self.context)
        return state

    def _options(self, model_input: ModelInput) -> dict:
        options = {"logits_to_keep": model_input.wanted} if "logits_to_keep" in self.accepts else {}
        return options | ({"output_hidden_states": True} if model_input.after else {})

    def _states(self, out, name: int | str, model_input: ModelInput) -> Tensor:
        """Hidden states (wanted, D) after a layer, or after the final norm for "final".

        transformers' hidden_states[i] is the output of layer i, but the last one is the output of the final norm.
        """
        layers = len(out.hidden_states) - 1
        if name == layers:
            raise Unsupported(f"transformers gives layer {layers}'s state only after the final norm: ask for 'final'")
        return out.hidden_states[layers if name == "final" else name][0, -model_input.wanted :]


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


def caches_per_token(network) -> bool:
    """Whether every layer of the model caches keys and values per token, or caches nothing."""
    if network._is_stateful or not network._supports_default_dynamic_cache():
        return False
    return all(type(layer) in PER_TOKEN for layer in DynamicCache(config=network.config).layers)


def as_attention_mask(allow: Tensor, implementation: str | None, dtype: torch.dtype) -> Tensor:
    """Convert allow (T, S) bool to the mask (1, 1, T, S) for transformers' "sdpa" (bool) or "eager" (additive).

    Unsupported for other attention implementations.
    """
    if implementation == "sdpa":
        return allow[None, None]
    if implementation != "eager":
        raise Unsupported(f'draft trees need attn_implementation "sdpa" or "eager", not {implementation!r}')
    additive = torch.zeros(allow.shape, dtype=dtype, device=allow.device)
    return additive.masked_fill(~allow, torch.finfo(dtype).min)[None, None]
