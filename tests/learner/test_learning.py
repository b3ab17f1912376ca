"""Reinforcement learns: a two-turn game whose right answers follow from what is shown."""

import numpy as np
from learner_reference import float64, log_softmax, logits
from learner_toys import ARCHITECTURE, TWO_UPDATES, fresh_learner, sampled, trajectory

from tiderl_jax.core.ids import PolicyVersion
from tiderl_jax.core.segments import Owner, given

TEMPERATURE, N_ANSWERS = 0.7, 4


def play(params, rng, group, member, version):
    """Each turn shows a symbol and asks for an answer; reward is the share of right ones."""
    shown = np.random.default_rng(group).integers(0, N_ANSWERS, 2)
    segments, right = [], 0.0
    for symbol in shown:
        segments.append(given(Owner.ENV, [10 + symbol, 20]))
        so_far = np.concatenate([s.token_ids for s in segments])
        logp_V = log_softmax(logits(params, so_far, ARCHITECTURE)[-1] / TEMPERATURE)
        answer = rng.choice(len(logp_V), p=np.exp(logp_V))
        segments.append(sampled([answer], logp_V[[answer]], version))
        right += float(answer % N_ANSWERS == symbol)
    return trajectory(segments, right / 2, group, member)


def test_grpo_improves_a_two_turn_game_within_a_few_steps():
    rng = np.random.default_rng(0)
    subject = fresh_learner(TWO_UPDATES)
    rewards = []
    for step in range(20):
        params = float64(subject.weights())
        groups = [[play(params, rng, 8 * step + g, m, step) for m in range(8)] for g in range(8)]
        report = subject.step(groups, PolicyVersion(step))
        rewards.append(report.reward_mean)
        assert report.lags == (0,) * len(report.lags)
        assert report.metrics.get("logp_gap_max", 0.0) < 1e-4
    assert np.mean(rewards[:2]) < 0.4
    assert np.mean(rewards[-3:]) > 0.75
