import struct

import numpy as np
import pytest

from tiderl_jax.core.errors import ConfigError, WeightsFault
from tiderl_jax.models.gguf import read_gguf
from tiderl_jax.models.llama_gguf import half_split

F32, F16, Q4_1, Q8_0, Q6_K = 0, 1, 3, 8, 14


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(tensors: dict[str, tuple[tuple[int, ...], int, bytes]], version: int = 3) -> bytes:
    """A file written by the letter of the format's description."""
    metadata = [
        text("general.alignment") + struct.pack("<II", 4, 64),
        text("name") + struct.pack("<I", 8) + text("ünï"),
        text("eps") + struct.pack("<If", 6, 0.5),
        text("merges") + struct.pack("<IIQ", 9, 8, 2) + text("a b") + text("c d"),
        text("yes") + struct.pack("<I?", 7, True),
    ]
    table, data = b"", b""
    for name, (shape, kind, stored) in tensors.items():
        axes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        table += text(name) + axes + struct.pack("<IQ", kind, len(data))
        data += stored + bytes(-len(stored) % 64)
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    header += b"".join(metadata) + table
    return header + bytes(-len(header) % 64) + data


@pytest.fixture
def write(tmp_path):
    def to_file(content: bytes):
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return path

    return to_file


def test_metadata_of_every_kind_is_read(write) -> None:
    metadata = read_gguf(write(gguf({}))).metadata
    assert metadata["name"] == "ünï"
    assert metadata["eps"] == 0.5
    assert metadata["merges"] == ["a b", "c d"]
    assert metadata["yes"] is True


def test_plain_tensors_keep_their_values_and_have_the_outer_axis_first(write) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    file = read_gguf(
        write(
            gguf(
                {
                    "a": ((2, 3), F32, values.astype("<f4").tobytes()),
                    "b": ((2, 3), F16, values.astype("<f2").tobytes()),
                }
            )
        )
    )
    for name in ("a", "b"):
        np.testing.assert_array_equal(file.tensor(name), values)
        assert file.tensor(name).dtype == np.float32


def test_blocks_are_dequantised_as_a_loop_over_their_definition_does(write) -> None:
    rng = np.random.default_rng(0)
    q8, q4, want8, want4 = b"", b"", [], []
    for _ in range(6):
        scale, low = (float(np.float16(x)) for x in rng.normal(size=2))
        steps = rng.integers(-128, 128, 32)
        q8 += struct.pack("<e32b", scale, *steps)
        want8 += [scale * step for step in steps]
        nibbles = rng.integers(0, 16, 32)
        packed = [int(nibbles[i] + 16 * nibbles[i + 16]) for i in range(16)]
        q4 += struct.pack("<ee16B", scale, low, *packed)
        want4 += [scale * nibble + low for nibble in nibbles]
    file = read_gguf(write(gguf({"q8": ((3, 64), Q8_0, q8), "q4": ((3, 64), Q4_1, q4)})))
    for name, want in (("q8", want8), ("q4", want4)):
        want_64 = np.reshape(np.array(want, np.float64), (3, 64))
        np.testing.assert_allclose(file.tensor(name), want_64, rtol=1e-6, atol=1e-6)


def test_what_cannot_be_read_is_refused_by_name(write, tmp_path) -> None:
    whole = gguf({"a": ((32,), F32, bytes(128)), "k": ((256,), Q6_K, bytes(210))})
    file = read_gguf(write(whole))
    with pytest.raises(WeightsFault, match="no tensor missing"):
        file.tensor("missing")
    with pytest.raises(WeightsFault, match=r"k in .* unsupported GGUF type 14"):
        file.tensor("k")
    with pytest.raises(WeightsFault, match=r"a in .* is cut short"):
        read_gguf(write(gguf({"a": ((32,), F32, bytes(64))}))).tensor("a")
    for content, what in (
        (gguf({}, version=2), "not a GGUF file of version 3"),
        (b"PK" + bytes(100), "not a GGUF file"),
        (whole[:90], "header of .* is broken"),
    ):
        with pytest.raises(ConfigError, match=what):
            read_gguf(write(content))
    with pytest.raises(ConfigError, match="no GGUF file"):
        read_gguf(tmp_path / "absent.gguf")


def test_half_split_rows_give_the_attention_scores_of_interleaved_pairs() -> None:
    n_heads, d_head, d_model = 3, 8, 5
    rng = np.random.default_rng(1)
    w_q, w_k = rng.normal(size=(2, n_heads * d_head, d_model))
    x, y = rng.normal(size=(2, d_model))
    frequency = 100.0 ** (-np.arange(d_head // 2) / (d_head // 2))

    def interleaved(heads: np.ndarray, position: int) -> np.ndarray:
        turned = (heads[:, 0::2] + 1j * heads[:, 1::2]) * np.exp(1j * position * frequency)
        return np.stack([turned.real, turned.imag], -1).reshape(heads.shape)

    def halves(heads: np.ndarray, position: int) -> np.ndarray:
        first, second = np.split(heads, 2, axis=1)
        turned = (first + 1j * second) * np.exp(1j * position * frequency)
        return np.concatenate([turned.real, turned.imag], axis=1)

    def scores(rotate, query: np.ndarray, key: np.ndarray) -> np.ndarray:
        q, k = (v.reshape(n_heads, d_head) for v in (query @ x, key @ y))
        return (rotate(q, 7) * rotate(k, 3)).sum(1)

    want = scores(interleaved, w_q, w_k)
    got = scores(halves, half_split(w_q, n_heads), half_split(w_k, n_heads))
    np.testing.assert_allclose(got, want, rtol=1e-12)
