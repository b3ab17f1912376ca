"""Small trajectories, models and learners for the tests of this folder."""

from functools import cache

import jax
import numpy as np

from tiderl_jax.core.config import (
    ArchitectureConfig,
    LearnerConfig,
    OptimizerConfig,
    WarmStartConfig,
)
from tiderl_jax.core.ids import GroupId, Purpose, RolloutId
from tiderl_jax.core.segments import Owner, Segment, given
from tiderl_jax.core.trajectories import Outcome, Task, Trajectory
from tiderl_jax.learner.learner import Learner
from tiderl_jax.models.sharding import make_mesh
from tiderl_jax.models.transformer import ModelSpec, new_model

ARCHITECTURE = ArchitectureConfig(
    n_layers=1,
    d_model=16,
    n_heads=8,
    n_kv_heads=4,
    d_head=4,
    d_ff=32,
    rope_base=100.0,
    norm_epsilon=1e-5,
    tied_embedding=True,
)
VOCAB_SIZE = 24
OPTIMIZER = OptimizerConfig(
    learning_rate=1e-3,
    warmup_updates=0,
    final_share=1.0,
    weight_decay=0.01,
    beta2=0.95,
    max_grad_norm=1.0,
)
NO_WARM_START = WarmStartConfig(0, 1, "none", 0.0, OPTIMIZER)


def sampled(token_ids, logp=None, version=0):
    """A segment that the model sampled."""
    logp = np.full(len(token_ids), -3.0) if logp is None else logp
    return Segment(Owner.MODEL, np.asarray(token_ids), logp, logp, np.full(len(token_ids), version))


def trajectory(segments, reward=0.0, group=0, member=0, outcome=Outcome.FINISHED):
    """A finished rollout of these segments."""
    rollout = RolloutId(GroupId(Purpose.TRAIN, group), member)
    return Trajectory(rollout, Task("toy", group), tuple(segments), reward, outcome, 1)


def random_trajectory(rng, reward=0.0, group=0, member=0, n_turns=2, version=0):
    """A multi-turn rollout of random tokens and random recorded log-probs."""
    segments = []
    for _ in range(n_turns):
        segments.append(given(Owner.ENV, rng.integers(0, VOCAB_SIZE, rng.integers(1, 5))))
        n_sampled = int(rng.integers(1, 4))
        logp = np.log(1 / VOCAB_SIZE) + rng.normal(0, 0.3, n_sampled)
        segments.append(sampled(rng.integers(0, VOCAB_SIZE, n_sampled), logp, version))
    return trajectory(segments, reward, group, member)


def random_groups(rng, n_groups=4, n_members=4):
    """Groups whose rewards differ inside each group."""
    return [
        [random_trajectory(rng, float(member % 2), group, member) for member in range(n_members)]
        for group in range(n_groups)
    ]


def learner_config(**changes):
    """GRPO on rows of 32 tokens, four to a micro-batch."""
    values = {
        "optimizer": OPTIMIZER,
        "updates_per_step": 1,
        "clip_low": 0.2,
        "clip_high": 0.28,
        "kl_coefficient": 0.0,
        "normalise_by_std": True,
        "tokens_per_row": 32,
        "rows_per_microbatch": 4,
        "logp_chunk_tokens": 1024,
    }
    return LearnerConfig(**{**values, **changes})


TWO_UPDATES = learner_config(
    optimizer=OptimizerConfig(
        learning_rate=2e-2,
        warmup_updates=0,
        final_share=1.0,
        weight_decay=0.0,
        beta2=0.95,
        max_grad_norm=1.0,
    ),
    updates_per_step=2,
)


@cache
def model(seed=0, dtype="float32", architecture=ARCHITECTURE):
    """(graphdef, params) of a tiny transformer."""
    return new_model(ModelSpec(architecture, VOCAB_SIZE, dtype), seed)


def mesh(data=1, tensor=1):
    """A mesh of the first virtual devices."""
    return make_mesh(jax.devices()[: data * tensor], tensor)


def learner(config=None, warm_start=NO_WARM_START, on=None, dtype="float32", total_updates=100):
    """A learner of the tiny model."""
    graphdef, params = model(dtype=dtype)
    return Learner(
        graphdef,
        params,
        on or mesh(),
        config or learner_config(),
        warm_start,
        temperature=0.7,
        total_updates=total_updates,
    )


@cache
def _shared(config):
    subject = learner(config)
    return subject, jax.device_get(subject.state)


def fresh_learner(config=None):
    """A learner as it was born; those of one config share their compiled programs."""
    subject, state = _shared(config or learner_config())
    subject.restore(state)
    return subject


def leaves(tree):
    """The arrays of a tree on the host."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
