"""Measures this machine for `tiderl_jax.simulator.hardware`, with the quickstart's model.

    python -m experiments.suites.calibrate_cpu

Every cost is the slope or the difference of two sizes, each the best of several repetitions, so
that what is fixed and what grows are told apart. Takes about two minutes.
"""

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from configs import quickstart
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RolloutId
from tiderl_jax.core.resolve import resolve
from tiderl_jax.core.segments import Owner, Segment, given
from tiderl_jax.core.trajectories import Outcome, Task, Trajectory
from tiderl_jax.decoder.engine import Engine
from tiderl_jax.decoder.turns import Sampling, TurnRequest
from tiderl_jax.envs.registry import world
from tiderl_jax.learner.learner import Learner
from tiderl_jax.models.sharding import make_mesh
from tiderl_jax.runtime.assembly import Model, build_model
from tiderl_jax.simulator.costs import forward_flops

N_REPEATS = 9


def best_s(action: Callable[[], object]) -> float:
    """The shortest time that the action took, after once for warming up."""
    times = []
    for _ in range(1 + N_REPEATS):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def machine() -> dict[str, float]:
    """Peaks: a large matrix product, and reading and writing an array."""
    n = 2048
    square = jnp.ones((n, n), jnp.float32)
    product = jax.jit(lambda x: x @ x)
    array = jnp.ones(2**26, jnp.float32)
    add = jax.jit(lambda x: x + 1)
    return {
        "flops_per_s": 2 * n**3 / best_s(lambda: product(square).block_until_ready()),
        "memory_bytes_per_s": 2 * array.nbytes / best_s(lambda: add(array).block_until_ready()),
    }


class Decoding(NamedTuple):
    """Seconds of one decode step, of one more turn in it, and of a prefilled token."""

    step_s: float
    turn_s: float
    prefill_s: float
    publish_s: float


def decoding(config: ExperimentConfig, model: Model, load_s: Callable[[Engine], float]) -> Decoding:
    """Times waves of turns that differ in one number each."""
    context_limit = config.rollout.max_context_tokens
    engine = Engine(
        model.graphdef,
        model.params,
        model.spec,
        config.decoder,
        context_limit,
        PolicyVersion(0),
        jax.devices()[0],
    )
    engine.warm_up()
    draw = np.random.default_rng(0)

    def wave(n_turns: int, n_context: int, n_sampled: int) -> Callable[[], None]:
        def action() -> None:
            rollouts = [RolloutId(GroupId(Purpose.TRAIN, 0), member) for member in range(n_turns)]
            for rollout in rollouts:
                context = draw.integers(0, model.spec.vocab_size, n_context, np.int32)
                sampling = Sampling(1.0, (0, rollout.member), n_sampled, stop_token_id=-1)
                engine.run_turn(TurnRequest(rollout, context, sampling))
            while engine.n_active:
                engine.step()
            for rollout in rollouts:
                engine.cancel(rollout)

        return action

    n_slots, n_steps, n_more = config.decoder.n_slots, 32, 72
    step_s = {
        n_turns: (best_s(wave(n_turns, 13, 2 + n_steps)) - best_s(wave(n_turns, 13, 2))) / n_steps
        for n_turns in (1, n_slots)
    }
    turn_s = (step_s[n_slots] - step_s[1]) / (n_slots - 1)
    longer_s = best_s(wave(n_slots, 13 + n_more, 2)) - best_s(wave(n_slots, 13, 2))
    return Decoding(step_s[1] - turn_s, turn_s, longer_s / (n_slots * n_more), load_s(engine))


class Training(NamedTuple):
    """Seconds of a trained token, of a scored token, and of an update without tokens."""

    train_s: float
    score_s: float
    update_s: float


def groups(config: ExperimentConfig, vocab_size: int, n_groups: int) -> list[list[Trajectory]]:
    """Groups of rollouts of six turns (66 tokens) with both rewards, as the grid world has them."""
    draw = np.random.default_rng(1)

    def rollout(group: int, member: int) -> Trajectory:
        segments = []
        for _ in range(6):
            token_ids = draw.integers(0, vocab_size, 11)
            logp = np.full(2, -1.0)
            segments.append(given(Owner.ENV, token_ids[:9]))
            segments.append(Segment(Owner.MODEL, token_ids[9:], logp, logp, np.zeros(2)))
        rollout = RolloutId(GroupId(Purpose.TRAIN, group), member)
        task, reward = Task("gridworld", group), float(member % 2)
        return Trajectory(rollout, task, tuple(segments), reward, Outcome.FINISHED, 6)

    n_members = config.rollout.samples_per_prompt
    return [[rollout(group, member) for member in range(n_members)] for group in range(n_groups)]


def training(config: ExperimentConfig, learner: Learner, vocab_size: int) -> Training:
    """Times steps of two sizes."""
    n_updates = config.learner.updates_per_step
    few, many = groups(config, vocab_size, 16), groups(config, vocab_size, 48)
    n_tokens = [66 * len(batch) * config.rollout.samples_per_prompt for batch in (few, many)]
    step_s = [best_s(lambda b=b: learner.step(b, PolicyVersion(0))) for b in (few, many)]
    score_s = [
        best_s(lambda b=b: learner.log_probs([t for group in b for t in group]))
        for b in (few, many)
    ]
    n_more = n_tokens[1] - n_tokens[0]
    train_s = (step_s[1] - step_s[0]) / n_more
    update_s = (step_s[0] - train_s * n_tokens[0]) / n_updates
    return Training(train_s, (score_s[1] - score_s[0]) / n_more, update_s)


def main() -> int:
    """Prints the fields of `Hardware`."""
    config = resolve(quickstart.get_config().to_dict())
    warm_start = dataclasses.replace(config.warm_start, updates=0)
    model = build_model(config, world(config.environment.name, config.environment.options))
    mesh = make_mesh(jax.devices()[:1], 1)
    learner = Learner(
        model.graphdef, model.params, mesh, config.learner, warm_start, 1.0, total_updates=1000
    )
    learner.warm_up()

    def load_s(engine: Engine) -> float:
        return best_s(lambda: engine.load_weights(learner.weights(), PolicyVersion(1)))

    peaks = machine()
    decode = decoding(config, model, load_s)
    train = training(config, learner, model.spec.vocab_size)
    attended_tokens = config.rollout.max_context_tokens / 2
    flops = forward_flops(model.spec.architecture, model.spec.vocab_size, attended_tokens)
    decode_flops = forward_flops(model.spec.architecture, model.spec.vocab_size, 0)
    for name, value in {
        **peaks,
        "train_mfu": 3 * flops / train.train_s / peaks["flops_per_s"],
        "prefill_mfu": flops / decode.prefill_s / peaks["flops_per_s"],
        "decode_mfu": decode_flops / decode.turn_s / peaks["flops_per_s"],
        "launch_s": decode.step_s,
        "update_s": train.update_s,
        "publish_s": decode.publish_s,
    }.items():
        print(f"{name:20s} {value:.4g}")
    for name, value in {**decode._asdict(), **train._asdict()}.items():
        print(f"# {name:18s} {value:.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
