"""Builds the parts of a run from its config: world, tokenizer, model, learner, decoders."""

from dataclasses import dataclass

import jax
from flax import nnx

from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.ids import RankId
from tiderl_jax.decoder.engine import Engine
from tiderl_jax.envs.protocol import World
from tiderl_jax.learner.learner import Learner
from tiderl_jax.models.chat import ChatRenderer
from tiderl_jax.models.checkpoints import load_folder
from tiderl_jax.models.tokenizer import Tokenizer
from tiderl_jax.models.transformer import ModelSpec, graph, new_model
from tiderl_jax.runtime.meshes import Partition, partition
from tiderl_jax.runtime.weights import Published, load


@dataclass(frozen=True, slots=True)
class Model:
    """A policy before training."""

    spec: ModelSpec
    graphdef: nnx.GraphDef
    params: nnx.State
    tokenizer: Tokenizer


def build_model(config: ExperimentConfig, world: World) -> Model:
    """A new model over the world's words, or a checkpoint with its own tokenizer.

    Raises:
      ConfigError: a new model is asked for, but the world speaks open text.
    """
    if config.model.checkpoint:
        tokenizer = Tokenizer.from_folder(config.model.checkpoint)
        spec, params = load_folder(config.model.checkpoint, config.model.dtype)
        return Model(spec, graph(spec), params, tokenizer)
    words = world.words()
    if not words:
        raise ConfigError(
            f"The environment {config.environment.name!r} speaks open text: "
            f"name a model with a tokenizer in model.checkpoint."
        )
    tokenizer = Tokenizer.from_words(words)
    assert config.model.architecture is not None  # a limit of `resolve`
    spec = ModelSpec(config.model.architecture, tokenizer.vocab_size, config.model.dtype)
    return Model(spec, *new_model(spec, config.seed), tokenizer)


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that a run is made of, before any thread is started."""

    world: World
    renderer: ChatRenderer
    model: Model
    partition: Partition
    learner: Learner


def build(config: ExperimentConfig, world: World) -> Parts:
    """Builds all but the decoders, which need the weights that they are to serve."""
    places = partition(config.partition, jax.devices())
    model = build_model(config, world)
    learner = Learner(
        model.graphdef,
        model.params,
        places.actor,
        config.learner,
        config.warm_start,
        config.rollout.temperature,
        total_updates=config.steps * config.learner.updates_per_step,
    )
    return Parts(world, ChatRenderer(model.tokenizer), model, places, learner)


def build_engines(
    config: ExperimentConfig, parts: Parts, published: Published
) -> dict[RankId, Engine]:
    """One decoder per rollout rank, serving a version whose digest has been proved there."""
    return {
        rank: Engine(
            parts.model.graphdef,
            load(published, jax.sharding.SingleDeviceSharding(device)),
            parts.model.spec,
            config.decoder,
            config.rollout.max_context_tokens,
            published.version,
            device,
        )
        for rank, device in parts.partition.rollout.items()
    }
