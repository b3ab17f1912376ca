"""The tiny world is built once for all decoder tests."""

import pytest
from decoder_world import TinyWorld, tiny_world


@pytest.fixture(scope="session")
def world() -> TinyWorld:
    """Three versions of one tiny model, and engines that share their compiled programs."""
    return tiny_world()
