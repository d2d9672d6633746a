"""The obvious alternative: transformers with one padded batch a request, last position only, made as fast as
it goes without leaving its public API.

Two ways to the last position are offered and the faster one is measured: padding on the left with
logits_to_keep=1, and padding on the right with the last hidden states gathered before the head (which lets
attention stay causal without a mask of its own). Both drop everything but the labels' logits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tools.bench.workload import Request

Run = Callable[[Request], Tensor]


class TransformersPeer:
    """A causal LM; `run` gives log-probabilities over the labels, float32[num_samples, num_labels]."""

    def __init__(self, model: Path, device: str, dtype: torch.dtype, labels: tuple[int, ...]) -> None:
        folder, options = (model.parent, {"gguf_file": model.name}) if model.is_file() else (model, {})
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options)
        self.model = loaded.to(device).eval()
        self.config = loaded.config
        self.device = device
        self.labels = torch.tensor(labels, device=device)

    def ways(self) -> dict[str, Run]:
        """By name; all give the same numbers."""
        return {"left padding, logits_to_keep=1": self.run_left, "right padding, gathered": self.run_right}

    @torch.inference_mode()
    def run_left(self, request: Request) -> Tensor:
        ids, mask, _ = self._padded(request, left=True)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        out = self.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, logits_to_keep=1, use_cache=False
        )
        return self._label_logprobs(out.logits[:, -1])

    @torch.inference_mode()
    def run_right(self, request: Request) -> Tensor:
        """No mask: padding on the right is after every valid token, so causal attention never sees it."""
        ids, _, lengths = self._padded(request, left=False)
        hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
        last = hidden[torch.arange(len(lengths), device=self.device), lengths - 1]
        return self._label_logprobs(self.model.lm_head(last))

    def _label_logprobs(self, logits: Tensor) -> Tensor:
        return logits[:, self.labels].float().log_softmax(-1).cpu()

    def _padded(self, request: Request, *, left: bool) -> tuple[Tensor, Tensor, Tensor]:
        lengths = torch.tensor([len(sample.token_ids) for sample in request])
        ids = torch.zeros(len(request), int(lengths.max()), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, sample in enumerate(request):
            at = slice(ids.shape[1] - len(sample.token_ids), None) if left else slice(len(sample.token_ids))
            ids[row, at] = torch.tensor(sample.token_ids)
            mask[row, at] = 1
        return ids.to(self.device), mask.to(self.device), lengths.to(self.device)
