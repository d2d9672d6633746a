"""The emulated decoder under plans: float32 is the reference, prefixes stay exact, agreement is measured."""

from __future__ import annotations

from typing import Any

import torch

from engine.packed import pack
from engine.quant.agreement import Answers, answer, compare
from engine.quant.emulation import EmulatedDecoder
from engine.quant.preparation import prepare
from engine.quant.rotation import rotate
from engine.quant.schemes import SCHEMES
from engine.quant.texts import Text, batches, exact_tokens


def test_every_scheme_of_a_whole_decoder_is_measured(make_decoder: Any, texts: list[Text]) -> None:
    architecture, weights = make_decoder(qk_norm=True)
    rotated = rotate(weights, architecture)
    decoder = EmulatedDecoder(architecture, rotated.weights, rotated.unrotate)
    head = weights["embed_tokens.weight"] * 0.1
    shelf = prepare(decoder, pack([text.ids for text in texts]), exact_tokens(texts), SCHEMES)
    reference = answer(decoder, head, texts, {})
    found = {s: compare(reference, answer(decoder, head, texts, shelf[s]), texts) for s in SCHEMES}
    nothing = compare(reference, reference, texts)
    assert (nothing.label_shift, nothing.next_token_kl, nothing.label_agreement) == (0, 0, 1)
    kl = {scheme: each.next_token_kl for scheme, each in found.items()}
    assert 0 < kl["bf16"] < kl["int8_exact"] < kl["e4m3_token"] < 1
    assert all(each.label_shift is not None and each.label_shift > 0 for each in found.values())


def test_prefix_tokens_are_those_of_float32(make_decoder: Any, texts: list[Text]) -> None:
    architecture, weights = make_decoder()
    decoder = EmulatedDecoder(architecture, weights)
    packed = pack([text.ids for text in texts])
    shelf = prepare(decoder, packed, None, ["e4m3_static"])["e4m3_static"]
    whole = [Text(text.ids, (), len(text.ids)) for text in texts]
    with torch.inference_mode():
        expected = decoder.run(packed, {})
        torch.testing.assert_close(decoder.run(packed, shelf, exact_tokens(whole)), expected)
        assert not torch.allclose(decoder.run(packed, shelf), expected, atol=1e-2)


def test_batches_and_their_order_do_not_change_answers(make_decoder: Any, texts: list[Text]) -> None:
    architecture, weights = make_decoder()
    decoder = EmulatedDecoder(architecture, weights)
    head = weights["embed_tokens.weight"]
    assert len(list(batches(texts, 64))) > 5
    assert [each for some, _ in batches(texts, 64) for each in some] == texts
    whole = answer(decoder, head, texts, {}).logits
    alone = torch.cat([answer(decoder, head, [text], {}).logits for text in texts[:3]])
    torch.testing.assert_close(whole[:3], alone, atol=1e-3, rtol=1e-3)


def test_agreement_counts_only_texts_with_a_margin() -> None:
    texts = [Text((1,), (0, 1)), Text((1,), (0, 1)), Text((1,))]
    reference = Answers(torch.tensor([[1.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    found = Answers(torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.1, 0.0], [0.0, 0.0, 1.0]]))
    measured = compare(reference, found, texts)
    assert measured.label_agreement == 0.0
    assert measured.texts == 3
    assert measured.label_shift is not None
    assert measured.label_shift_max is not None
    assert abs(measured.label_shift_max - 1.0) < 1e-6
    unlabelled = compare(reference, found, [Text((1,))] * 3)
    assert unlabelled.label_shift is None
    assert unlabelled.label_agreement is None
