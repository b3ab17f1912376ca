"""How long engines take, from the shape of the model and the device.

A forward pass of one token costs two operations per multiplied parameter, and its attention four
per attended token, layer and head element; a backward pass twice that (Kaplan et al. 2020, 2.1).
Decoding reads all weights and all KV of a batch in every step; that bounds it, or computing does.
Every trainer rank holds the whole model: it works data parallel, so a swap moves all weights.
"""

from dataclasses import dataclass

from tiderl_jax.core.config import ArchitectureConfig, ExperimentConfig
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.resolve import unknown_name
from tiderl_jax.scheduler.step_costs import StepCosts
from tiderl_jax.simulator.hardware import HARDWARE, Hardware

_BYTES = {"float32": 4, "bfloat16": 2}
_USABLE_MEMORY = 0.9  # the usual setting of serving engines; the rest is for activations
_OPTIMIZER_BYTES_PER_PARAMETER = 28  # AdamW in float32: weight and two moments in and out, gradient
_REQUEST_S = 1e-3  # assumed [1e-4, 1e-2]


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds that the engines of one experiment take."""

    # Of one decode step: per running context token, per turn, per step.
    weights_s: float
    kv_s_per_token: float
    compute_s_per_turn: float
    attention_s_per_token: float
    launch_s: float
    prefill_s_per_token: float
    step: StepCosts
    # Of an update: the reduction within and beyond the domain of the interconnect, the optimizer.
    reduce_s: float
    reduce_far_s: float
    devices_per_domain: int
    optimizer_s: float
    update_overhead_s: float
    publish_s: float  # broadcast of a version, and its load at one rank
    to_rollout_s: float  # a trainer rank puts its weights on the host and becomes a decoder
    to_trainer_s: float  # a decoder rank fetches the scorer's weights from the host
    request_s: float = _REQUEST_S  # bringing tasks, closing an episode

    def decode_step_s(self, n_turns: int, context_tokens: int) -> float:
        """One token for each of `n_turns` turns whose contexts are so long together."""
        memory_s = self.weights_s + self.kv_s_per_token * context_tokens
        compute_s = self.compute_s_per_turn * n_turns + self.attention_s_per_token * context_tokens
        return (memory_s if memory_s > compute_s else compute_s) + self.launch_s

    def update_s(self, n_trainers: int) -> float:
        """Gradients reduced, the optimizer's part of each rank, weights gathered again."""
        reduce_s = self.reduce_s if n_trainers <= self.devices_per_domain else self.reduce_far_s
        moved_share = (n_trainers - 1) / n_trainers
        return moved_share * reduce_s + self.optimizer_s / n_trainers + self.update_overhead_s


def n_parameters(architecture: ArchitectureConfig, vocab_size: int) -> int:
    """All parameters of a model, embeddings included."""
    a = architecture
    attention = a.d_model * a.d_head * (2 * a.n_heads + 2 * a.n_kv_heads)
    layer = attention + 3 * a.d_model * a.d_ff + 2 * a.d_model
    n_tables = 1 if a.tied_embedding else 2
    return a.n_layers * layer + n_tables * vocab_size * a.d_model + a.d_model


def kv_bytes_per_token(architecture: ArchitectureConfig, dtype: str) -> int:
    """Keys and values of all layers."""
    a = architecture
    return 2 * a.n_layers * a.n_kv_heads * a.d_head * _BYTES[dtype]


def forward_flops(
    architecture: ArchitectureConfig, vocab_size: int, attended_tokens: float
) -> float:
    """Of one token that attends to so many others, the head over the vocabulary included."""
    a = architecture
    return (
        2 * _n_multiplied(a, vocab_size) + 4 * a.n_layers * a.n_heads * a.d_head * attended_tokens
    )


def kv_pool_tokens(
    architecture: ArchitectureConfig, vocab_size: int, dtype: str, hardware: Hardware
) -> int:
    """Tokens whose KV fits beside the weights into 90 % of a device's memory.

    Raises:
      ConfigError: the weights alone do not fit.
    """
    weights = n_parameters(architecture, vocab_size) * _BYTES[dtype]
    free = _USABLE_MEMORY * hardware.memory_bytes - weights
    if free <= 0:
        raise ConfigError(
            f"The model's weights, {weights / 1e9:.1f} GB, do not fit a device of "
            f"{hardware.memory_bytes / 1e9:.0f} GB."
        )
    return int(free // kv_bytes_per_token(architecture, dtype))


def cost_model(config: ExperimentConfig) -> CostModel:
    """The costs of an experiment. Attention in training and prefill is that of the longest context.

    Raises:
      ConfigError: the hardware is unknown, or cannot be what the experiment runs on.
    """
    hardware, architecture = _checked(config)
    vocab_size, partition = config.simulation.vocab_size, config.partition
    weights_bytes = n_parameters(architecture, vocab_size) * _BYTES[hardware.dtype]
    memory = hardware.memory_bytes_per_s * hardware.bandwidth_share
    decode = hardware.flops_per_s * hardware.decode_mfu
    prefill = hardware.flops_per_s * hardware.prefill_mfu
    near = hardware.interconnect_bytes_per_s * hardware.link_share
    far = hardware.network_bytes_per_s * hardware.link_share
    host_s = weights_bytes / (hardware.host_bytes_per_s * hardware.link_share)
    is_near = partition.n_rollout_ranks + partition.actor_devices <= hardware.devices_per_domain
    broadcast_s = weights_bytes / (near if is_near or partition.share_devices else far)
    mean_context = config.rollout.max_context_tokens / 2  # causal: a token sees those before it
    score_s = forward_flops(architecture, vocab_size, mean_context) / prefill
    forward_s = score_s * hardware.prefill_mfu / hardware.train_mfu
    has_scorer = config.learner.kl_coefficient > 0
    n_read = _n_multiplied(architecture, vocab_size)
    return CostModel(
        weights_s=n_read * _BYTES[hardware.dtype] / memory,
        kv_s_per_token=kv_bytes_per_token(architecture, hardware.dtype) / memory,
        compute_s_per_turn=forward_flops(architecture, vocab_size, 0) / decode,
        attention_s_per_token=4
        * architecture.n_layers
        * architecture.n_heads
        * architecture.d_head
        / decode,
        launch_s=hardware.launch_s,
        prefill_s_per_token=score_s,
        step=StepCosts(
            score_s_per_token=score_s if has_scorer else 0.0,
            forward_s_per_token=forward_s,
            backward_s_per_token=2 * forward_s,
            swap_s=host_s if has_scorer else 0.0,
            microbatch_s=hardware.microbatch_s,
        ),
        reduce_s=2 * weights_bytes / near,
        reduce_far_s=2 * weights_bytes / far,
        devices_per_domain=hardware.devices_per_domain,
        optimizer_s=_OPTIMIZER_BYTES_PER_PARAMETER
        * n_parameters(architecture, vocab_size)
        / memory,
        update_overhead_s=hardware.update_s,
        publish_s=broadcast_s + weights_bytes / memory + hardware.publish_s,
        to_rollout_s=host_s + hardware.repartition_s,
        to_trainer_s=host_s + hardware.repartition_s,
    )


def _n_multiplied(architecture: ArchitectureConfig, vocab_size: int) -> int:
    """Parameters that a token is multiplied with; an embedding of its own is only looked up."""
    looked_up = 0 if architecture.tied_embedding else vocab_size * architecture.d_model
    return n_parameters(architecture, vocab_size) - looked_up


def _checked(config: ExperimentConfig) -> tuple[Hardware, ArchitectureConfig]:
    name, model, decoder = config.simulation.hardware, config.model, config.decoder
    if name not in HARDWARE:
        raise unknown_name(name, HARDWARE, "simulation.hardware")
    hardware, architecture = HARDWARE[name], model.architecture
    if architecture is None:
        raise ConfigError("A simulation needs model.architecture, not a checkpoint.")
    if model.dtype != hardware.dtype:
        raise ConfigError(
            f"simulation.hardware = {name!r} is rated for model.dtype = {hardware.dtype!r}, "
            f"not {model.dtype!r}."
        )
    if config.partition.actor_tensor_parallel != 1:
        raise ConfigError("A simulated actor is data parallel: set actor_tensor_parallel = 1.")
    pool = decoder.n_pages * decoder.page_tokens
    room = kv_pool_tokens(architecture, config.simulation.vocab_size, model.dtype, hardware)
    if pool > room:
        raise ConfigError(
            f"decoder.n_pages x decoder.page_tokens = {pool} tokens of KV do not fit {name!r}, "
            f"which has room for {room}."
        )
    return hardware, architecture
