"""Randomness as a function of identity, never a stream: order of scheduling changes no sample."""

import hashlib

import numpy as np


def key_words(seed: int, purpose: str, *identity: int) -> tuple[int, int]:
    """Two 32-bit words that depend on nothing but the arguments.

    `purpose` names the use ("sample", "delay", "map", ...), `identity` who it is for (group,
    member, turn, ...). The words seed a JAX threefry key or a NumPy generator.
    """
    text = ":".join([str(seed), purpose, *(str(int(part)) for part in identity)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def generator(seed: int, purpose: str, *identity: int) -> np.random.Generator:
    """A NumPy generator for one identity (see `key_words`)."""
    return np.random.Generator(np.random.Philox(key=list(key_words(seed, purpose, *identity))))
