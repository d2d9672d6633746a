"""Eight bits that keep the answer: schemes with plain oracles, an emulated decoder, the choice."""
