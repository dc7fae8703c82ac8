"""LayerSkip's self-speculative decoding (lesson 13): a model drafts with its own first layers, the others verify.

The final norm and the LM head can read the hidden state after any layer, not only after the last one (an early exit).
So the first E of the L layers are a draft model without weights of its own. Nothing that they compute while drafting is
computed again: their keys and values go into the target's own cache, and the states that leave layer E - 1 are kept
(exit states, before the final norm). Verification goes on from the exit states of the root and the d draft tokens: the
target's forward pass runs only layers E to L - 1, over d + 1 tokens. Layers are numbered from 0.

Source: LayerSkip, Elhoushi et al. 2024 (arXiv 2404.16710). Exits of a model that was not trained for them are rarely
right; training/layerskip.py trains them all, training/exit_adapter.py one.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from lessons_lib.caches.cache import Cache
from lessons_lib.decoding.checks import at_least_one, check_integers
from lessons_lib.decoding.draft_tree import ROOT, DraftTree, ModelOutput
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.draft_length import Adaptive, Constant, DraftLength
from lessons_lib.decoding.sampling import Sampling, sample_children, top_tokens
from lessons_lib.models.decoder import Segment
from lessons_lib.models.draft import TrimmedDecoder


class EarlyExit(Proposer):
    """Drafts a chain with the first `exit_layer` layers of the target. Needs a target that offers "layer ranges".

    exit_layer: E, from 1 to the target's number of layers (transformers: assistant_early_exit); or several exits with a
    schedule each, {E: Adaptive(cost.draft, cost.v)} with cost = early_exit_cost(config, E, v) of lessons_lib.measure.
    Then every step drafts from the exit with the highest predicted speed, for as many tokens as its schedule chooses,
    and only that schedule learns. Each speed is for an alpha one standard error above the estimate, and the estimates
    of the other exits age, so that each is tried again.
    draft_tokens: tokens drafted per step (transformers: num_assistant_tokens), or a schedule from draft_length; not
    used with several exits.
    vocabulary: (K,), ids of the only tokens that are drafted, so that the head reads K rows instead of V (Zhao et al.
    2025, arXiv 2502.14856); None: all tokens.
    sampling: draft tokens are sampled from the exit's distribution q after `sampling`; None: its argmax. Both are
    lossless under Greedy and Sampling.
    generator: randomness of the draft. Share the one passed to `generate`, or seed it differently.
    adapter: a module (T, D) -> (T, D) between exit state and final norm, such as models.exits.ExitAdapter.
    """

    needs = frozenset({"layer ranges"})

    def __init__(
        self,
        exit_layer: int | Mapping[int, Adaptive],
        draft_tokens: int | DraftLength = 4,
        vocabulary: Tensor | None = None,
        sampling: Sampling | None = None,
        generator: torch.Generator | None = None,
        adapter: nn.Module | None = None,
    ):
        if isinstance(exit_layer, Mapping):
            self.lengths: dict[int, DraftLength] = dict(exit_layer)
            if not self.lengths or not all(isinstance(of, Adaptive) for of in self.lengths.values()):
                raise TypeError(
                    "several exits need an Adaptive schedule each, such as {6: Adaptive(c6, v6), 9: Adaptive(c9, v9)}"
                )
        else:
            if not isinstance(draft_tokens, DraftLength):
                at_least_one("draft_tokens", draft_tokens)
                draft_tokens = Constant(draft_tokens)
            self.lengths = {exit_layer: draft_tokens}
        for layer in self.lengths:
            check_integers(exit_layer=layer)
            if layer < 1:
                raise ValueError(f"exit_layer must be at least 1, not {layer}")
            if (trained := getattr(adapter, "exit_layer", layer)) != layer:
                raise ValueError(f"this adapter was trained for the exit after {trained} layers, not {layer}")
        self.vocabulary, self.adapter = vocabulary, adapter or nn.Identity()
        self.exit_layer = next(iter(self.lengths))  # of this step
        self.greedy, self.sampling, self.generator = sampling is None, sampling or Sampling(), generator
        self.target = None

    def reset(self, target, prompt: Sequence[int]) -> None:
        """Start a new text. Raises ValueError if the target has fewer layers, or not these tokens."""
        for length in self.lengths.values():
            length.reset()
        if target is self.target:
            return
        decoder = target.decoder
        if max(self.lengths) > decoder.config.num_layers:
            raise ValueError(
                f"exit_layer {max(self.lengths)} is beyond the target's {decoder.config.num_layers} layers; "
                "choose one of them"
            )
        self.target, self.decoder = target, decoder if self.vocabulary is None else trimmed(decoder, self.vocabulary)

    @torch.no_grad()
    def propose(self, ids: Sequence[int], tree: DraftTree) -> None:
        """Add a chain of draft tokens, and the exit states from which the target's forward pass goes on.

        Without room for a draft token nothing is run, and the step is a plain one.
        """
        if len(self.lengths) > 1:
            self.exit_layer = max(self.lengths, key=lambda layer: self.lengths[layer].expected_speed)
        length = self.lengths[self.exit_layer]
        most = min(length.next(), tree.max_depth)
        if most < 1 or not tree.fits(ROOT):
            return
        # 1. Run what is not cached yet through the early layers: the root, after a preemption also the text before it
        states, newest = [self.run_early_layers(ids[tree.cache.length() :], tree.cache)], ROOT
        while len(tree.tokens) < most and tree.fits(newest):
            # 2. Exit: the newest token's state predicts the next draft token
            newest, confidence = self.draft_token(tree, newest, states[-1][-1:])
            # 3. Run it through the early layers. The last one, too: verification needs the exit states of all tokens
            states.append(self.run_early_layers(tree.tokens[newest:], tree.cache))
            tree.draft_calls += 1
            if tree.tokens[newest] in self.target.eos or not length.goes_on(confidence):
                break
        # 4. The target's forward pass starts after the exit
        tree.first_layer, tree.states = self.exit_layer, torch.cat(states)

    def observe(self, tree: DraftTree, path: list[int], tokens: list[int], output: ModelOutput) -> None:
        """Report the result to the schedule. `Cache.keep` has dropped the rejected tokens from all layers already."""
        if tree.tokens:
            self.lengths[self.exit_layer].learn(tree, path, tokens)
            for layer in self.lengths.keys() - {self.exit_layer}:
                self.lengths[layer].observe(0, 0, 0)  # its evidence loses weight, as that of every step does

    def run_early_layers(self, tokens: Sequence[int], cache: Cache) -> Tensor:
        """Run tokens (T,) through the layers before the exit, which append to the cache -> exit states (T, D)."""
        positions = cache.positions(range(len(tokens)), layer=0)  # the later layers do not hold the draft yet
        positions, tokens = torch.tensor([positions, list(tokens)], device=self.target.device)
        return self.decoder(tokens, [Segment(positions, cache)], layers=range(self.exit_layer)).last

    def draft_token(self, tree: DraftTree, parent: int, state: Tensor) -> tuple[int, float]:
        """Add the token that an exit state (1, D) predicts -> its node, its probability in q."""
        logits = self.decoder.logits(self.adapter(state))
        q = self.sampling.probabilities(logits[0])  # 0 outside a short vocabulary, whose other logits are -inf
        if self.greedy:
            node = tree.add(parent, top_tokens(logits)[0])
        else:
            (node,) = sample_children(tree, parent, q, 1, "iid", self.generator)
        return node, float(q[tree.tokens[node]])


def trimmed(decoder, vocabulary: Tensor) -> TrimmedDecoder:
    """The decoder with a head that scores only the tokens of `vocabulary` (K,). All other weights are shared."""
    kept = torch.as_tensor(vocabulary).unique().to(decoder.norm.device)
    if not len(kept) or kept[0] < 0 or kept[-1] >= decoder.config.vocab_size:
        raise ValueError(f"vocabulary must hold ids from 0 to {decoder.config.vocab_size - 1}")
    if not isinstance(decoder.head, nn.Linear):
        raise ValueError("a short vocabulary needs an LM head that is not quantized; leave `vocabulary` out")
    return TrimmedDecoder.of(decoder, kept)
