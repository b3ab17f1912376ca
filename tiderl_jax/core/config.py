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
class GroupConfig:
    """When a group is complete without all of its rollouts."""

    extra_members: int  # redundancy: so many more start; the first samples_per_prompt to end count
    deadline_s: float  # from the admission of its first member; 0: none
    min_members: int  # that must have ended at the deadline; 0: all
    below_minimum: str  # then "drop" the group, or "top_up": replace its late members, once


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """Sizes of a step and limits of a rollout."""

    prompts_per_step: int  # B_ideal of TideRL, in groups
    min_prompts_per_step: int  # B_min: an elastic scaling may lower a step to it
    samples_per_prompt: int
    group: GroupConfig
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
class ElasticConfig:
    """ERS: when ranks change their role (TideRL gives no values, these are ours)."""

    tau: float  # consumption deficit: the oldest ready group is older than tau x a step's time
    trend_weight: float  # of the newest step in the running means
    confirm_steps: int  # a deficit counts after so many steps in a row
    trial_steps: int  # ers_guarded: a move is judged over so many steps
    min_gain: float  # ers_guarded: a move is kept when goodput rose by this ratio
    max_drift: int  # ers_guarded: ranks away from the split that the run started with


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
    max_open_rollouts_per_rank: int  # of admission `request`; 0: no cap
    priority: PriorityWeights
    elastic: ElasticConfig


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

    n_rollout_ranks: int  # of one device each, at the start
    min_rollout_ranks: int  # an elastic scaling keeps between these; both 0: n_rollout_ranks
    max_rollout_ranks: int
    actor_devices: int
    actor_tensor_parallel: int  # the rest of the actor's devices are data parallel (fsdp)
    share_devices: bool  # rollout and actor use the same devices in turn (a laptop)


@dataclass(frozen=True, slots=True)
class FaultConfig:
    """Probability of each injected fault, per opportunity; 0 everywhere is a world without them."""

    probe: float  # a probe fails
    crash: float  # an environment crashes instead of answering
    hang: float  # an environment never answers
    late: float  # an answer comes a second time, after the deadline of its step
    engine: float  # a turn's tokens are lost
    duplicate: float  # an event arrives twice
    rank_loss_per_hour: float  # of one rank, in virtual time
    slow_weights: float  # a rank takes ten times as long to load a version
    lost_acknowledgement: float  # of loaded weights; it is sent again


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """The world that stands in for engines and environments in virtual time."""

    hardware: str  # a key of tiderl_jax.simulator.hardware
    vocab_size: int  # of the simulated model
    profile: str  # a key of tiderl_jax.simulator.profiles
    delay_scale: float  # multiplies the profile's environment delays
    delay_tail: float  # multiplies the sigma of the log of these delays
    turns_scale: float  # multiplies the profile's turns
    faults: FaultConfig


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
    simulation: SimulationConfig
