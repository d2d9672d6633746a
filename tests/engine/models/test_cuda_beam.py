"""The two passes of a search on CUDA, on the CPU: near the eager ones; keys and values where they belong."""

from __future__ import annotations

import pytest
import torch

from engine.models.architecture import Architecture, Rope
from engine.models.beam_decoder import PromptDecoder, StepDecoder
from engine.models.cuda_beam import CudaPromptDecoder, CudaStepDecoder
from engine.models.cuda_weights import prepare_weights
from engine.models.decoder import PackedDecoder
from engine.models.plan import choose_plan
from engine.packed import BatchBounds, pack

BOUNDS = BatchBounds(8, 256, 64)
SAMPLES = [[5, 9, 2], [7] * 40, [1], list(range(30))]
WIDTH, SLOTS, LAYERS, KV_HEADS, DIM = 3, 4, 2, 2, 32


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.float() - want).norm() / want.norm())


@pytest.mark.parametrize("qk_norm", [False, True])
def test_near_the_eager_passes(qk_norm: bool) -> None:
    inv_freq = tuple((1e-4 ** (torch.arange(0, DIM, 2) / DIM)).tolist())
    a = Architecture(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_layers=LAYERS, num_heads=6,
        num_kv_heads=KV_HEADS, head_dim=DIM, norm_eps=1e-6, rope=Rope("default", inv_freq, 1.0),
        qk_norm=qk_norm, qkv_bias=not qk_norm,
    )  # fmt: skip
    torch.manual_seed(0)
    weights = {
        name: (torch.rand(x.shape) + 0.5 if "norm" in name else torch.randn(x.shape) / 8).bfloat16()
        for name, x in PackedDecoder(a, 64).state_dict().items()
    } | {"inv_freq": torch.tensor(inv_freq)}
    plan = choose_plan(a, "bf16", arch=90, static=False)
    positions = BOUNDS.tokens_per_sample + SLOTS
    prepared = prepare_weights(weights, a, plan, max_seqlen=positions)
    prompt, step = (
        kind.from_weights(a, prepared, plan, BOUNDS, positions)
        for kind in (CudaPromptDecoder, CudaStepDecoder)
    )
    wide = {name: x.float() for name, x in weights.items()}
    eager_prompt = PromptDecoder.from_weights(a, wide, 64)
    eager_step = StepDecoder.from_weights(a, wide, 64)
    packed = pack(SAMPLES)
    inputs = (packed.input_ids, packed.positions, packed.cu_seqlens)
    rows, tokens = len(SAMPLES) * WIDTH, len(packed.input_ids)
    keys, values = torch.full((2, LAYERS, 1, tokens, KV_HEADS, DIM), torch.nan).bfloat16()
    suffix = torch.full((2, LAYERS, SLOTS, rows, KV_HEADS, DIM), torch.nan)
    suffix_keys, suffix_values = suffix.bfloat16()
    lengths = (packed.cu_seqlens[1:] - packed.cu_seqlens[:-1]).long().repeat_interleave(WIDTH)
    ancestors = torch.full((SLOTS, rows), -1)
    with torch.inference_mode():
        hidden = prompt(*inputs, keys, values)
        want, want_keys, want_values = eager_prompt(*inputs)
        for got, expected in ((hidden, want), (keys[:, 0], want_keys), (values[:, 0], want_values)):
            assert error(got, expected) < 0.02
        for slot in range(SLOTS):
            ids = torch.randint(0, 64, (rows,))
            given = (ids, lengths + slot, packed.cu_seqlens)
            hidden = step(*given, keys, values, suffix_keys, suffix_values, ancestors, torch.tensor([slot]))
            want, new_keys, new_values = eager_step(*given, want_keys, want_values, *suffix, ancestors)
            suffix[0, :, slot], suffix[1, :, slot] = new_keys, new_values
            assert error(hidden, want) < 0.02
            assert error(suffix_keys[:, slot], new_keys) < 0.02
            assert bool(suffix_values[:, slot + 1 :].isnan().all())
            parents = torch.arange(len(SAMPLES)).repeat_interleave(WIDTH) * WIDTH
            parents += torch.randint(0, WIDTH, (rows,))
            here = torch.arange(SLOTS)[:, None] == slot
            ancestors = torch.where(here, parents, ancestors[:, parents])
