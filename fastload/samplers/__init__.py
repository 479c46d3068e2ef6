"""Samplers: computed orders that are the same for any number of ranks, and can be taken up at any place."""
