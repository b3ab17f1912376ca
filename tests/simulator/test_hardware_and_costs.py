"""Costs against counts of real models, bounds written out by hand, and the real transformer."""

import math
from dataclasses import replace

import jax
import pytest
from flax import nnx

from configs import base, quickstart, shapes
from configs.shapes import QWEN3_VL_4B, QWEN25_7B, QWEN25_14B, QWEN35_9B, Shape
from tiderl_jax.core.config import ArchitectureConfig, ExperimentConfig
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.resolve import resolve
from tiderl_jax.models.transformer import ModelSpec, Transformer
from tiderl_jax.simulator.costs import (
    cost_model,
    forward_flops,
    kv_bytes_per_token,
    kv_pool_tokens,
    n_parameters,
)
from tiderl_jax.simulator.hardware import HARDWARE


def architecture(shape: Shape) -> ArchitectureConfig:
    fields = shape._asdict()
    del fields["vocab_size"]
    return ArchitectureConfig(**fields)


def experiment(shape: Shape = QWEN25_7B, **changes: object) -> ExperimentConfig:
    """24 rollout ranks and 8 trainers of H100, with a reference, contexts of 8192 tokens."""
    config = base.get_config()
    values = {
        **shape.keys(),
        "simulation.hardware": "h100",
        "learner.kl_coefficient": 0.001,
        "learner.tokens_per_row": 8192,
        "rollout.max_context_tokens": 8192,
        "partition.share_devices": False,
        "partition.n_rollout_ranks": 24,
        "partition.actor_devices": 8,
        **changes,
    }
    config.update_from_flattened_dict(values)
    return resolve(config.to_dict())


@pytest.mark.parametrize(
    ("shape", "billions", "tolerance"),
    [
        (QWEN25_7B, 7.616, 0.001),  # as published: 7.61e9
        (QWEN25_14B, 14.77, 0.001),  # as published: 14.7e9
        (QWEN3_VL_4B, 4.02, 0.01),  # Qwen3-4B as published: 4.0e9
        (QWEN35_9B, 9.0, 0.15),  # assumed shape, without gates and linear attention
    ],
)
def test_models_have_the_parameters_that_are_published(
    shape: Shape, billions: float, tolerance: float
) -> None:
    count = n_parameters(architecture(shape), shape.vocab_size)
    assert count == pytest.approx(billions * 1e9, rel=tolerance)


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_count_is_that_of_the_real_transformer(is_tied: bool) -> None:
    a = ArchitectureConfig(3, 24, 6, 2, 4, 40, 1e4, 1e-5, is_tied)
    spec = ModelSpec(a, 17, "float32")
    params = jax.eval_shape(lambda: nnx.state(Transformer(spec, nnx.Rngs(0)), nnx.Param))
    assert n_parameters(a, 17) == sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def test_kv_of_a_token_has_the_known_size() -> None:
    assert kv_bytes_per_token(architecture(QWEN25_7B), "bfloat16") == 56 * 1024
    assert kv_bytes_per_token(architecture(QWEN25_7B), "float32") == 112 * 1024


def test_a_pool_is_what_weights_leave_of_nine_tenths_of_the_memory() -> None:
    tokens = kv_pool_tokens(architecture(QWEN25_7B), 152_064, "bfloat16", HARDWARE["h100"])
    assert tokens == int((72e9 - 2 * 7_615_487_488) // 57_344)


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"29\.5 GB, do not fit a device of 32 GB"):
        kv_pool_tokens(architecture(QWEN25_14B), 152_064, "bfloat16", HARDWARE["v6e"])


def test_a_forward_pass_costs_two_operations_per_parameter_and_four_per_attended_element() -> None:
    a = architecture(QWEN25_7B)
    looked_up = 152_064 * 3584
    assert forward_flops(a, 152_064, 0) == 2 * (n_parameters(a, 152_064) - looked_up)
    more = forward_flops(a, 152_064, 4096) - forward_flops(a, 152_064, 0)
    assert more == 4 * 28 * 28 * 128 * 4096
    tied = replace(a, tied_embedding=True)
    assert forward_flops(tied, 152_064, 0) == 2 * n_parameters(tied, 152_064)


def test_few_turns_decode_at_the_speed_of_the_memory_and_many_at_that_of_computing() -> None:
    costs = cost_model(experiment())
    weights_s = 2 * (7_615_487_488 - 152_064 * 3584) / (0.7 * 3.35e12)
    one = costs.decode_step_s(1, 0)
    assert one == pytest.approx(weights_s + 3e-3)
    with_kv = costs.decode_step_s(64, 64 * 4000)
    assert with_kv - one == pytest.approx(64 * 4000 * 57_344 / (0.7 * 3.35e12))
    many = costs.decode_step_s(4000, 0)
    assert many == pytest.approx(4000 * 14.141e9 / (0.5 * 989e12) + 3e-3, rel=1e-3)


def test_training_costs_six_operations_per_parameter_and_token() -> None:
    costs = cost_model(experiment())
    step = costs.step
    flops = forward_flops(architecture(QWEN25_7B), 152_064, 4096)
    assert step.forward_s_per_token == pytest.approx(flops / (0.4 * 989e12))
    assert step.backward_s_per_token == pytest.approx(2 * step.forward_s_per_token)
    assert step.score_s_per_token == pytest.approx(flops / (0.5 * 989e12))
    assert costs.prefill_s_per_token == pytest.approx(flops / (0.5 * 989e12))


def test_a_swap_moves_all_weights_over_the_host_link() -> None:
    costs = cost_model(experiment())
    assert costs.step.swap_s == pytest.approx(15.231e9 / (0.7 * 64e9), rel=1e-3)
    assert costs.to_rollout_s == pytest.approx(costs.step.swap_s + 2.0)
    assert costs.to_trainer_s == costs.to_rollout_s


def test_without_a_reference_nothing_is_scored_or_swapped_but_a_move_still_costs() -> None:
    costs = cost_model(experiment(**{"learner.kl_coefficient": 0.0}))
    assert costs.step.score_s_per_token == costs.step.swap_s == 0
    assert costs.to_rollout_s > 2.0


def test_weights_and_gradients_take_the_network_only_beyond_one_node() -> None:
    far = cost_model(experiment())
    near = cost_model(experiment(**{"partition.n_rollout_ranks": 6, "partition.actor_devices": 2}))
    saved_s = 15.231e9 / 0.7 * (1 / 50e9 - 1 / 450e9)
    load_s = 15.231e9 / (0.7 * 3.35e12)
    assert far.publish_s == pytest.approx(15.231e9 / (0.7 * 50e9) + load_s + 0.1, rel=1e-3)
    assert far.publish_s - near.publish_s == pytest.approx(saved_s, rel=1e-3)
    moved_s = [cost.reduce_s for cost in (far, near)]
    assert moved_s[0] == moved_s[1] == pytest.approx(2 * 15.231e9 / (0.7 * 450e9), rel=1e-3)
    assert far.update_s(9) - far.update_s(8) > 0.3
    assert far.update_s(1) == pytest.approx(28 * 7.6155e9 / (0.7 * 3.35e12) + 0.1, rel=1e-3)


def test_a_faster_device_is_faster_where_its_data_sheet_says_so() -> None:
    h100, h200 = (cost_model(experiment(**{"simulation.hardware": n})) for n in ("h100", "h200"))
    assert h200.step == h100.step
    ratio = (h100.decode_step_s(8, 8000) - 3e-3) / (h200.decode_step_s(8, 8000) - 3e-3)
    assert ratio == pytest.approx(4.8 / 3.35)


def test_the_quickstart_on_a_cpu_costs_what_was_measured_in_quiet_to_busy_runs() -> None:
    costs = cost_model(resolve(quickstart.get_config().to_dict()))
    assert 3.8e-3 < costs.decode_step_s(64, 64 * 40) < 7.7e-3
    assert 2.0e-5 < costs.prefill_s_per_token < 3.6e-5
    train_s = costs.step.forward_s_per_token + costs.step.backward_s_per_token
    assert 1.29e-4 < train_s < 2.36e-4
    assert 0.025 < costs.update_s(1) < 0.38


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"simulation.hardware": "h10"}, "Unknown simulation.hardware 'h10': did you mean 'h100'"),
        ({"simulation.hardware": "cpu"}, "rated for model.dtype = 'float32', not 'bfloat16'"),
        ({"partition.actor_tensor_parallel": 2}, "set actor_tensor_parallel = 1"),
        ({"decoder.n_pages": 70_000}, "do not fit 'h100', which has room for 989973"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_a_sentence(
    changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        cost_model(experiment(**changes))


def test_every_device_has_every_figure() -> None:
    for name, hardware in HARDWARE.items():
        assert hardware.name == name
        assert hardware.memory_bytes_per_s > 0 < hardware.flops_per_s
        for share in ("train_mfu", "prefill_mfu", "decode_mfu", "bandwidth_share", "link_share"):
            assert 0 < getattr(hardware, share) <= 1, (name, share)


def test_a_shape_sets_every_key_of_the_model_it_stands_for() -> None:
    config = experiment(shapes.QWEN3_VL_4B)
    assert config.model.architecture == architecture(QWEN3_VL_4B)
    assert config.simulation.vocab_size == 151_936
