"""A calibrated cost model of one forward (lessons 00-02): what the roofline leaves out, measured and added.

Matrix products of exactly this model's sizes are timed without the model; attention and cache are computed
from the hardware's rates; what launching takes is measured with a narrow twin (decoding.timing.twin), and what
each further token of a prompt costs comes from one short prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lessons_lib.measure import kernels, roofline
from lessons_lib.measure.config import ELEMENT_BYTES, ModelConfig
from lessons_lib.measure.hardware import Hardware


@dataclass(frozen=True)
class CostModel:
    """Seconds of forwards of one model in one dtype.

    prompts: {rows T: seconds of the products of a prefill}; steps: {batch b: of a decode step}, 1 among them.
    launches: {batch: seconds of launching a step}, none until `with_launches`; a prefill launches as batch 1 does.
    per_token: overhead of a prefill's token in seconds, 0 until `fitted`. KeyError of its methods for a dtype that
    the hardware or ELEMENT_BYTES lacks.
    """

    shape: ModelConfig
    hardware: Hardware
    dtype: str
    prompts: dict[int, float]
    steps: dict[int, float]
    launches: dict[int, float] = field(default_factory=dict)
    per_token: float = 0.0

    @classmethod
    def measure(
        cls, shape: ModelConfig, hardware: Hardware, dtype: str, prompts: Sequence[int], batches: Sequence[int]
    ) -> CostModel:
        """Time the products for these prompt lengths and batches on hardware.device, all twice: the faster counts."""

        def products(rows: int, head_rows: int) -> float:
            return min(kernels.linears(shape, dtype, hardware.device, rows, head_rows) for _ in range(2))

        steps = {b: products(b, b) for b in sorted({1, *batches})}
        return cls(shape, hardware, dtype, {t: products(t, 1) for t in prompts}, steps)

    def decode(self, batch: int = 1, cached: int = 0) -> float:
        """Seconds of a decode step of `batch` requests with `cached` tokens each. KeyError for a batch not timed."""
        cache = batch * self.shape.kv_elements(cached) * roofline.cache_element_bytes(self.dtype)
        return self.steps[batch] + cache / self.hardware.read_bandwidth + self.launches.get(batch, 0.0)

    def prefill(self, tokens: int) -> float:
        """Seconds of a prefill of so many tokens. KeyError for a length not timed."""
        attention = 4 * self.shape.num_heads * self.shape.head_dim * self.shape.attended(tokens)
        products = self.prompts[tokens] + attention / self.hardware.matmul_flops[self.dtype]
        return products + self.launches.get(1, 0.0) + self.per_token * tokens

    def request(self, prompt: int, output: int) -> tuple[float, float]:
        """(time to first token, time of all later tokens) in seconds, for `output` tokens after `prompt`.

        KeyError for a prompt of a length not timed.
        """
        return self.prefill(prompt), sum(self.decode(1, prompt + i) for i in range(1, output))

    def with_launches(self, launches: dict[int, float]) -> CostModel:
        """With the seconds that a step of each batch takes where bytes and FLOPs vanish."""
        return replace(self, launches=dict(launches))

    def fitted(self, tokens: int, seconds: float) -> CostModel:
        """With the overhead per token that explains a prefill of so many tokens in so many seconds.

        KeyError as `prefill`.
        """
        bare = replace(self, per_token=0.0)
        return replace(self, per_token=max(0.0, (seconds - bare.prefill(tokens)) / tokens))

    @property
    def bandwidth(self) -> float:
        """Bytes/s at which one-row products read this model's weights."""
        return self.shape.weights * ELEMENT_BYTES[self.dtype] / self.steps[1]

    @property
    def flop_rate(self) -> float:
        """FLOP/s of the products with the most rows that were timed. ValueError if no prompt was."""
        most = max(self.prompts)
        return 2 * (self.shape.layer_weights * most + self.shape.head_weights) / self.prompts[most]
