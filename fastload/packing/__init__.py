"""Packing: plan -> write shards -> publish; and what is done with a whole dataset: verify, unpack."""
