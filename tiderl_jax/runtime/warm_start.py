"""The supervised warm start: scripted play, written as the token records that imitation trains."""

from collections.abc import Callable, Iterator

import numpy as np

from tiderl_jax.core.config import WarmStartConfig
from tiderl_jax.core.ids import GroupId, Purpose, RolloutId
from tiderl_jax.core.segments import Owner, Segment
from tiderl_jax.core.trajectories import Outcome, Task, Trajectory
from tiderl_jax.envs.protocol import ScriptedEpisode, Split, World
from tiderl_jax.learner.learner import Learner
from tiderl_jax.models.chat import ChatRenderer

FIRST_TASK = 1_000_000
"""Scripted play uses training tasks that reinforcement does not reach."""


def imitate(
    learner: Learner,
    world: World,
    renderer: ChatRenderer,
    config: WarmStartConfig,
    stop_requested: Callable[[], bool],
) -> Iterator[float]:
    """Makes one update after the other; yields the loss (nats per token) of each."""
    for update in range(config.updates):
        if stop_requested():
            return
        first = FIRST_TASK + update * config.episodes_per_update
        tasks = [
            world.task(Split.TRAIN, first + episode)
            for episode in range(config.episodes_per_update)
        ]
        yield learner.imitate([_demonstration(world, renderer, config, task) for task in tasks])


def _demonstration(
    world: World, renderer: ChatRenderer, config: WarmStartConfig, task: Task
) -> Trajectory:
    episode = world.play(task, config.player, config.random_action_share)
    return Trajectory(
        rollout=RolloutId(GroupId(Purpose.TRAIN, 0), 0),
        task=task,
        segments=tuple(_segments(renderer, episode)),
        reward=episode.reward,
        outcome=Outcome.FINISHED,
        n_turns=len(episode.actions),
    )


def _segments(renderer: ChatRenderer, episode: ScriptedEpisode) -> Iterator[Segment]:
    for turn, (observation, action) in enumerate(
        zip(episode.observations, episode.actions, strict=True)
    ):
        yield from renderer.first(observation) if turn == 0 else renderer.next(observation)
        token_ids = renderer.turn(action)
        zeros = np.zeros(len(token_ids))
        yield Segment(Owner.MODEL, token_ids, zeros, zeros, zeros)
