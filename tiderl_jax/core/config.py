"""The resolved experiment: frozen, typed, checked. Every field has a unit or a limit.

`configs/*.py` are the documents that people edit; `core/resolve.py` turns one into these values
once, at the edge. Deep code receives the section it needs and never looks anything up by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatencyConfig:
    """The environment's answering time: log-normal, seeded by identity, capped."""

    median_s: float
    sigma: float  # of the log; 0 is a constant delay
    cap_s: float


@dataclass(frozen=True, slots=True)
class EnvironmentConfig:
    """Which world is played, and how it behaves as a tool."""

    name: str  # a key of tiderl_jax.envs.registry
    options: Mapping[str, object]  # the fields of that environment's own options
    max_turns: int
    latency: LatencyConfig
    step_deadline_s: float  # an answer later than this is a fault (its clock stops while parked)
    idle_lease_s: float  # a session without traffic for longer is reaped (same clock)
    max_attempts: int  # of one group member, before its group is dropped
    max_faults: int  # in the whole run, before it is stopped with a table


@dataclass(frozen=True, slots=True)
class ArchitectureConfig:
    """A decoder-only transformer of the Llama family. The vocabulary comes from the tokenizer."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_ff: int
    rope_base: float
    norm_epsilon: float
    tied_embedding: bool


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Either a checkpoint folder (Hugging Face layout) or the shape of a new model."""

    checkpoint: str  # empty: a new model
    architecture: ArchitectureConfig | None  # None: as the checkpoint says
    dtype: str  # of weights and activations: float32 or bfloat16; logits are always float32


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """Sizes of a step and limits of a rollout."""

    prompts_per_step: int
    samples_per_prompt: int
    max_tokens_per_turn: int  # model-owned; a turn cut by this ends its rollout
    max_context_tokens: int  # of a whole rollout
    temperature: float
    deadline_s: float  # of a whole rollout; later it is truncated at its next event


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """One decoder replica (rank)."""

    n_slots: int  # turns decoded at the same time
    n_pages: int
    page_tokens: int
    prefill_chunk_tokens: int  # of one prefill row; a dispatch computes up to n_slots rows
    decode_steps_per_dispatch: int
    kv_after_update: str  # "drop" (re-prefill with the new weights) or "keep_labelled"


@dataclass(frozen=True, slots=True)
class PriorityWeights:
    """w1..w4 of CTB's P(t) (TideRL section on CTB; the paper gives no values, these are ours)."""

    evaluation: float
    group_completion: float
    active: float
    context: float


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """A preset and its five decisions. An ablation changes exactly one of the five.

    An empty decision means: as the preset says (`scheduler.presets.resolve_preset`).
    """

    preset: str
    admission: str
    batching: str
    staleness: str
    pipelining: str
    scaling: str
    staleness_bound: int  # k, in versions
    max_open_groups: int  # task diversity: groups in flight at once
    max_open_environments: int
    priority: PriorityWeights


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """AdamW with warm-up, linear decay to a final share, and clipping by the global norm."""

    learning_rate: float
    warmup_updates: int
    final_share: float  # of the learning rate, reached at the last update
    weight_decay: float
    beta2: float
    max_grad_norm: float


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """GRPO on packed sequences."""

    optimizer: OptimizerConfig
    updates_per_step: int  # optimizer updates (disjoint group minibatches) in one step
    clip_low: float  # the ratio is clipped to [1 - clip_low, 1 + clip_high]
    clip_high: float
    kl_coefficient: float  # of the k3 estimate to the frozen initial policy; 0: none is held
    normalise_by_std: bool  # advantages divided by the group's standard deviation
    tokens_per_row: int
    rows_per_microbatch: int
    logp_chunk_tokens: int  # logits exist for this many tokens at a time


@dataclass(frozen=True, slots=True)
class WarmStartConfig:
    """Supervised imitation of scripted play before reinforcement; it teaches the format."""

    updates: int  # 0: no warm start
    episodes_per_update: int
    player: str  # a scripted player of the environment
    random_action_share: float
    optimizer: OptimizerConfig


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """Tasks that never train, each sampled at temperature 1 and played greedily."""

    n_tasks: int
    every_steps: int  # besides before the first and after the last step; 0: only these two
    split: str  # held_out for what is reported; tune for every choice that is made by looking


@dataclass(frozen=True, slots=True)
class PartitionConfig:
    """Which devices hold which role."""

    n_rollout_ranks: int  # of one device each
    actor_devices: int
    actor_tensor_parallel: int  # the rest of the actor's devices are data parallel (fsdp)
    share_devices: bool  # rollout and actor use the same devices in turn (a laptop)


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """When a run commits, and how many commits it keeps."""

    every_steps: int
    keep: int


@dataclass(frozen=True, slots=True)
class ExperimentConfig:
    """One experiment, whole."""

    name: str
    seed: int
    steps: int
    environment: EnvironmentConfig
    model: ModelConfig
    rollout: RolloutConfig
    decoder: DecoderConfig
    scheduler: SchedulerConfig
    learner: LearnerConfig
    warm_start: WarmStartConfig
    evaluation: EvaluationConfig
    partition: PartitionConfig
    checkpoint: CheckpointConfig
