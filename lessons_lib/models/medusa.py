"""Medusa heads (lesson 09): small heads on a model's final state guess the tokens behind the next one.

Cai et al. 2024 (arXiv 2401.10774). The state at position t, after the final norm, is what the model's own head reads
to choose token t + 1; head k = 1, 2, ... reads it too and guesses token t + k + 1. Untrained, every head equals the
model's own. When the heads guess, token t + 1 has been chosen; they may read it, too, as in Hydra (Ankner et al. 2024,
arXiv 2402.05109), whose heads know every token before theirs, where these know the first.

Here stand the heads and their files; trees and the proposer are in decoding/proposers/medusa.py.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from lessons_lib.models import trained
from lessons_lib.models.draft import scatter
from lessons_lib.models.hub import LanguageModel
from lessons_lib.models.store import ModelUnavailable


def shared_parameters(count: int, width: int, blocks: int = 1, root_rank: int = 0) -> int:
    """K (R (D^2 + D) + 2 r D): parameters of `count` heads that all end in the model's own LM head."""
    return count * (blocks * (width**2 + width) + 2 * root_rank * width)


def own_parameters(count: int, width: int, vocab_size: int, blocks: int = 1, root_rank: int = 0) -> int:
    """V D more for each head: parameters of heads as published, each with an LM head of its own."""
    return shared_parameters(count, width, blocks, root_rank) + count * vocab_size * width


class ResidualBlock(nn.Linear):
    """x + silu(W x + b + more), (..., D) -> (..., D); W and b begin at zero, so at first it changes nothing.

    The authors' code leaves b as it was drawn, and so does not start from the model's own head.
    """

    def __init__(self, width: int):
        super().__init__(width, width)

    def reset_parameters(self) -> None:
        """The start; `nn.Linear` calls it."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, more: Tensor | float = 0.0) -> Tensor:
        """x and more (..., D) -> (..., D)."""
        return x + F.silu(super().forward(x) + more)


def root_reader(width: int, rank: int, seed: int) -> nn.Sequential:
    """A map (..., D) -> (..., D) of so low a rank, zero at first: its second matrix is."""
    down, up = (skip_init(nn.Linear, *sizes, bias=False) for sizes in ((width, rank), (rank, width)))
    nn.init.normal_(down.weight, std=width**-0.5, generator=torch.Generator().manual_seed(seed))
    nn.init.zeros_(up.weight)
    return nn.Sequential(down, up)


class MedusaHeads(nn.Module):
    """lm_head (V, D): the model's own head. count: heads (K). blocks: residual blocks of each (R).

    own: each head gets a trainable copy of the LM head, as published. Otherwise all share the model's, which is not
    trained and not a parameter: the rows of all heads go through it in one product. Weights have its device and dtype.
    root_rank: r, rank of the map by which a head's first block also reads the token that was chosen from the state,
    as the LM head's row of it, of root mean square 1 (0: heads read the state alone, as published).
    ValueError for counts below 1.
    """

    def __init__(self, lm_head: Tensor, count: int = 4, blocks: int = 1, own: bool = False, root_rank: int = 0):
        super().__init__()
        if count < 1 or blocks < 1:
            raise ValueError(f"at least one head of one block is needed, not {count} of {blocks}")
        self.vocab_size, self.width = lm_head.shape
        self.count, self.blocks, self.root_rank = count, blocks, root_rank
        lm_head = lm_head.detach()
        stacks = [nn.Sequential(*(ResidualBlock(self.width) for _ in range(blocks))) for _ in range(count)]
        self.stacks = nn.ModuleList(stacks).to(lm_head.device, lm_head.dtype)
        readers = [root_reader(self.width, root_rank, seed) for seed in range(count if root_rank else 0)]
        self.roots = nn.ModuleList(readers).to(lm_head.device, lm_head.dtype)
        self.own = nn.ParameterList(nn.Parameter(lm_head.clone()) for _ in range(count if own else 0))
        self.register_buffer("lm_head", lm_head, persistent=False)
        self.register_buffer("rows", lm_head, persistent=False)  # those of the tokens that are scored
        self.register_buffer("kept", None, persistent=False)

    def trim(self, kept: Tensor) -> None:
        """Score the tokens `kept` (K,) alone from now on: fewer rows to read (Zhao et al. 2025, arXiv 2502.14856).

        ValueError for heads with LM heads of their own, which are scored whole.
        """
        if self.own:
            raise ValueError("only heads that share the model's LM head can be trimmed")
        self.kept = kept.to(self.lm_head.device, torch.long)
        self.rows = self.lm_head[self.kept]

    @property
    def scored(self) -> int:
        """How many tokens the heads choose among."""
        return len(self.rows)

    def states(self, final: Tensor, count: int | None = None, chosen: Sequence[int] | Tensor | None = None) -> Tensor:
        """(T, D) after the final norm -> (T, K, D): what the first `count` heads make of it; else as `forward`."""
        read = self._read(chosen)
        return torch.stack(
            [through(stack, final, more) for stack, more in zip(self.stacks[:count], read, strict=False)], dim=1
        )

    def _read(self, chosen: Sequence[int] | Tensor | None) -> Iterator[Tensor | float]:
        """What every head's first block is told of the chosen tokens, (T, D) each; 0 if heads do not read them."""
        if not self.roots:
            return repeat(0.0)
        if chosen is None:
            raise ValueError(
                "these heads also read the tokens that were chosen from the states; give chosen=, (T,) ids"
            )
        rows = self.lm_head[torch.as_tensor(chosen, device=self.lm_head.device)]
        rows = F.rms_norm(rows, (self.width,))
        return (root(rows) for root in self.roots)

    def forward(self, final: Tensor, count: int | None = None, chosen: Sequence[int] | Tensor | None = None) -> Tensor:
        """(T, D) after the final norm -> scores (T, K, V) of the first `count` heads (None: of all).

        Trimmed heads score the other tokens -inf. chosen (T,): the token that was chosen from each state, for heads
        that read it (else it is ignored). ValueError if it is missing.
        """
        scores = self.scores(final, count, chosen)
        return scores if self.kept is None else scatter(scores, self.kept, self.vocab_size)

    def top_tokens(self, final: Tensor, ranks: int, count: int | None = None, chosen=None) -> Tensor:
        """As `forward`, but -> the most probable tokens (T, K, ranks), best first; at most `scored` of them."""
        best = self.scores(final, count, chosen).topk(ranks).indices
        return best if self.kept is None else self.kept[best]

    def scores(self, final: Tensor, count: int | None = None, chosen=None) -> Tensor:
        """As `forward`, but -> (T, K, scored): of the tokens `kept` alone, in their order."""
        states = self.states(final, count, chosen)
        if not self.own:
            return F.linear(states, self.rows)
        pairs = zip(states.unbind(1), self.own, strict=False)  # the first `count` of them
        return torch.stack([F.linear(rows, head) for rows, head in pairs], dim=1)


def through(stack: nn.Sequential, x: Tensor, more: Tensor | float) -> Tensor:
    """x (..., D) -> (..., D): a head's blocks one after another; the first is told more (..., D)."""
    first, *rest = stack
    x = first(x, more)
    for block in rest:
        x = block(x)
    return x


def save_heads(heads: MedusaHeads, folder: Path, base: str, **card) -> None:
    """Write the parameters and a card that names the model they belong to; card: what else it says.

    fp16 rather than bf16: weights this small need no wide exponent, and rounding is eight times finer.
    """
    tensors = {name: value.to(torch.float16) for name, value in heads.named_parameters()}
    if heads.kept is not None:
        tensors["kept"] = heads.kept.to(torch.int32)
    sizes = {name: getattr(heads, name) for name in ("count", "blocks", "root_rank", "width", "vocab_size")}
    trained.write(folder, tensors, base=base, **sizes, own=bool(heads.own), kept=heads.scored, **card)


def load_heads(name: str | Path, model: LanguageModel, count: int | None = None) -> MedusaHeads:
    """The stored heads of this name or folder, on the model's device and in its dtype.

    count: how many heads are expected (None: as many as there are). ModelUnavailable if there are none; ValueError
    for heads of another model or number.
    """
    if not (card := trained.read_card(name)):
        raise ModelUnavailable(f"{name} holds no heads; train some with `python -m lessons_lib.training heads`.")
    lm_head = model.network.get_output_embeddings().weight
    check_fits(card, name, model.name, tuple(lm_head.shape), count)
    heads = MedusaHeads(lm_head, card["count"], card["blocks"], card["own"], card["root_rank"])
    tensors = trained.read_weights(name)
    kept = tensors.pop("kept", None)
    heads.load_state_dict(tensors)
    if kept is not None:
        heads.trim(kept)
    return heads.eval().requires_grad_(False)


def check_fits(card: dict, name: str | Path, base: str, shape: tuple[int, int], count: int | None) -> None:
    """Raise ValueError unless the card is of heads for this model (name, LM head of shape (V, D)) and of this count."""
    theirs = card["vocab_size"], card["width"]
    if card["base"] != base or theirs != shape:
        raise ValueError(
            f"{name} holds heads of {card['base']!r} (vocabulary {theirs[0]}, width {theirs[1]}), not of {base!r} "
            f"({shape[0]}, {shape[1]}); load that model, or train heads for this one"
        )
    if count not in (None, card["count"]):
        raise ValueError(f"{name} holds {card['count']} heads, not {count}; ask for {card['count']} or train others")
