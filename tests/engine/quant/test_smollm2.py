"""A real model, few prompts, weights rounded to nearest: rotation is exact, int8 loses less than e4m3."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.models.checkpoint import load_checkpoint
from engine.packed import pack
from engine.quant.agreement import answer, compare
from engine.quant.emulation import EmulatedDecoder
from engine.quant.preparation import prepare
from engine.quant.rotation import rotate
from engine.quant.schemes import Scheme
from engine.quant.texts import Text, exact_tokens

PRODUCTS = ("Waterproof Trail Shoe, EU 42", "USB-C cable, 2 m", "Trail running shoes for women", "Desk lamp")
PROMPT = "Query: trail running shoes\nProduct: {}\nQuestion: Is the product a trail running shoe?\nAnswer:"


def test_rotation_is_exact_and_int8_keeps_more_than_e4m3(smollm2_gguf: Path) -> None:
    checkpoint = load_checkpoint(smollm2_gguf, max_tokens=128)
    assert checkpoint.tokenizer is not None
    assert checkpoint.lm_head is not None
    labels = tuple(checkpoint.tokenizer(each).input_ids[0] for each in (" relevant", " different"))
    texts = [
        Text(tuple(checkpoint.tokenizer(PROMPT.format(product)).input_ids), labels, 2) for product in PRODUCTS
    ]
    plain = EmulatedDecoder(checkpoint.architecture, checkpoint.weights)
    rotated = rotate(checkpoint.weights, checkpoint.architecture)
    turned = EmulatedDecoder(checkpoint.architecture, rotated.weights, rotated.unrotate)
    head = checkpoint.lm_head
    reference = answer(plain, head, texts, {})
    difference = answer(turned, head, texts, {}).logprobs - reference.logprobs
    assert difference.abs().max() < 2e-3  # of 49,152 log-probabilities down to -30
    with torch.inference_mode():
        theirs = [checkpoint.reference(torch.tensor([text.ids])).logits[0, -1] for text in texts[:2]]
    assert (reference.logprobs[:2] - torch.stack(theirs).log_softmax(-1)).abs().max() < 2e-3

    packed, exact = pack([text.ids for text in texts]), exact_tokens(texts)
    kl = {}
    schemes: tuple[tuple[Scheme, EmulatedDecoder], ...] = (("int8_exact", turned), ("e4m3_static", plain))
    for scheme, decoder in schemes:
        matrices = prepare(decoder, packed, exact, [scheme], compensated=False)[scheme]
        found = compare(reference, answer(decoder, head, texts, matrices), texts)
        kl[scheme] = found.next_token_kl
        assert found.label_shift is not None
        assert found.label_shift < 0.6
    assert 0 < kl["int8_exact"] < 0.5 * kl["e4m3_static"]
