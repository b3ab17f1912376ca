"""The learner as its caller sees it: log-probs, steps, accounts, state."""

import jax
import numpy as np
import pytest
from learner_reference import float64, log_probs
from learner_toys import (
    ARCHITECTURE,
    OPTIMIZER,
    TWO_UPDATES,
    VOCAB_SIZE,
    fresh_learner,
    learner,
    learner_config,
    leaves,
    mesh,
    model,
    random_groups,
    random_trajectory,
    sampled,
    trajectory,
)

from tiderl_jax.core.config import WarmStartConfig
from tiderl_jax.core.errors import LearnerFault
from tiderl_jax.core.ids import PolicyVersion
from tiderl_jax.core.segments import Owner, given
from tiderl_jax.core.trajectories import Outcome

TEMPERATURE = 0.7
V0 = PolicyVersion(0)
WARM_START = WarmStartConfig(50, 1, "none", 0.0, OPTIMIZER)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("rows_per_microbatch", [1, 4])
def test_packed_log_probs_equal_those_of_each_trajectory_alone(rng, rows_per_microbatch):
    trajectories = [random_trajectory(rng) for _ in range(9)]
    subject = fresh_learner(learner_config(rows_per_microbatch=rows_per_microbatch))
    together = subject.log_probs(trajectories)
    params = float64(subject.weights())
    for t, logp in zip(trajectories, together, strict=True):
        (alone,) = subject.log_probs([t])
        np.testing.assert_allclose(logp, alone, atol=1e-6)
        np.testing.assert_allclose(logp, log_probs(params, t, ARCHITECTURE, TEMPERATURE), atol=2e-5)


def test_a_step_accounts_for_every_model_token(rng):
    mixed, equal = random_groups(rng, n_groups=2, n_members=3)
    equal = [trajectory(t.segments, 1.0, 1, m) for m, t in enumerate(equal)]
    failed = trajectory(mixed[0].segments, 0.0, 0, 3, Outcome.ENV_ERROR)
    uncaptured = trajectory([given(Owner.ENV, [1, 2])], 0.0, 0, 4)
    subject = fresh_learner()
    report = subject.step([[*mixed, failed, uncaptured], equal], V0)
    assert report.trained_tokens == sum(t.n_model_tokens for t in mixed)
    assert report.context_tokens == sum(len(t.token_ids) for t in mixed)
    assert dict(report.untrained_tokens) == {
        "env_error": failed.n_model_tokens,
        "no_model_tokens": 0,
        "zero_advantage": sum(t.n_model_tokens for t in equal),
    }
    assert report.reward_mean == pytest.approx(4 / 6)
    assert report.lags == (0, 0, 0)
    assert report.n_microbatches == 1


def test_failed_rollouts_do_not_move_their_group_s_mean(rng):
    (group,) = random_groups(rng, n_groups=1)
    failed = trajectory(group[0].segments, -100.0, 0, 9, Outcome.ENGINE_ERROR)
    subject = fresh_learner()
    subject.step([group], V0)
    without = leaves(subject.weights())
    subject = fresh_learner()
    subject.step([[*group, failed]], V0)
    jax.tree.map(np.testing.assert_array_equal, leaves(subject.weights()), without)


def test_a_step_without_any_advantage_reports_and_changes_nothing(rng):
    group = [random_trajectory(rng, 1.0, member=m) for m in range(3)]
    subject = fresh_learner()
    before = leaves(subject.state)
    report = subject.step([group, []], V0)
    jax.tree.map(np.testing.assert_array_equal, leaves(subject.state), before)
    assert report.trained_tokens == 0
    assert report.lags == ()
    assert report.metrics["updates"] == 0
    assert dict(report.untrained_tokens)["zero_advantage"] == sum(t.n_model_tokens for t in group)


def test_groups_of_equal_rewards_count_in_the_denominator(rng):
    mixed, other = random_groups(rng, n_groups=2)
    equal = [trajectory(t.segments, 1.0, 1, m) for m, t in enumerate(other)]
    alone = fresh_learner().step([mixed], V0).metrics["grad_norm"]
    diluted = fresh_learner().step([mixed, equal], V0).metrics["grad_norm"]
    n_mixed, n_equal = (sum(t.n_model_tokens for t in group) for group in (mixed, equal))
    assert diluted == pytest.approx(alone * n_mixed / (n_mixed + n_equal), rel=1e-4)


def test_updates_are_disjoint_and_lags_are_measured_at_use(rng):
    groups = random_groups(rng, n_groups=5)
    report = fresh_learner(TWO_UPDATES).step(groups, PolicyVersion(4))
    assert report.metrics["updates"] == 2
    assert report.lags == (4,) * 20
    assert report.trained_tokens == sum(t.n_model_tokens for group in groups for t in group)
    assert "logp_gap_mean" not in report.metrics  # nothing was sampled by this very version


def test_log_probs_recorded_from_the_policy_itself_leave_no_gap_and_no_clipping(rng):
    subject = fresh_learner()
    params = float64(subject.weights())
    groups = []
    for group in random_groups(rng):
        exact = []
        for t in group:
            logp = log_probs(params, t, ARCHITECTURE, TEMPERATURE)
            cuts = np.cumsum([len(s) for s in t.segments])[:-1]
            segments = [
                sampled(s.token_ids, part) if s.owner is Owner.MODEL else s
                for s, part in zip(t.segments, np.split(logp, cuts), strict=True)
            ]
            exact.append(trajectory(segments, t.reward))
        groups.append(exact)
    metrics = subject.step(groups, V0).metrics
    assert metrics["logp_gap_max"] < 2e-5
    assert metrics["clip_fraction"] == 0
    assert 0 < metrics["entropy"] <= np.log(VOCAB_SIZE)


def test_a_non_finite_gradient_is_skipped_counted_and_leaves_no_trace(rng):
    groups = random_groups(rng)
    subject = fresh_learner()
    subject.step(groups, V0)  # moments that are not 0
    healthy = jax.device_get(subject.state)
    embedding = np.full_like(healthy["params.embedding_VD.value"], np.inf)
    subject.restore({**healthy, "params.embedding_VD.value": embedding})
    before = leaves(subject.state)
    report = subject.step(groups, V0)
    jax.tree.map(np.testing.assert_array_equal, leaves(subject.state), before)
    assert report.trained_tokens == 0
    assert report.lags == ()
    assert report.metrics["skipped_updates"] == 1
    assert dict(report.untrained_tokens) == {
        "non_finite_gradient": sum(t.n_model_tokens for group in groups for t in group)
    }
    subject.restore(healthy)
    assert subject.step(groups, V0).metrics["skipped_updates"] == 0


@pytest.fixture(scope="module")
def life():
    """One learner from its warm start to its second step, and what was seen on the way."""
    rng = np.random.default_rng(1)
    seen = {"compiled": []}

    def listen(event, duration, **_):
        if "backend_compile" in event:
            seen["compiled"].append(event)

    subject = learner(learner_config(kl_coefficient=0.1), WARM_START)
    born = leaves(subject.state)
    subject.warm_up()
    seen["moved_by_warm_up"] = not all(map(np.array_equal, born, leaves(subject.state)))
    shown = [random_trajectory(rng) for _ in range(4)]
    params = float64(subject.weights())
    seen["first_nll"] = -np.concatenate(
        [log_probs(params, t, ARCHITECTURE, 1.0)[t.loss_mask] for t in shown]
    ).mean()
    jax.monitoring.register_event_duration_secs_listener(listen)
    with pytest.raises(LearnerFault, match="has not ended"):
        subject.step(random_groups(rng), V0)
    seen["losses"] = [subject.imitate(shown) for _ in range(30)]
    subject.end_warm_start()
    with pytest.raises(LearnerFault, match="no warm start"):
        subject.imitate(shown)
    groups = random_groups(rng, n_groups=5)
    seen["kl"] = [subject.step(part, V0).metrics["kl"] for part in (groups[:1], groups)]
    subject.weights()
    subject.log_probs(shown)
    jax.monitoring.unregister_event_duration_listener(listen)
    return subject, seen


def test_nothing_compiles_after_the_warm_up_which_changes_nothing(life):
    assert life[1]["compiled"] == []
    assert not life[1]["moved_by_warm_up"]


def test_imitation_lowers_the_negative_log_likelihood_of_what_is_imitated(life):
    losses = life[1]["losses"]
    assert losses[0] == pytest.approx(life[1]["first_nll"], rel=1e-5)
    assert losses[-1] < 0.8 * losses[0]


def test_the_reference_is_the_policy_at_the_end_of_the_warm_start(life):
    first, second = life[1]["kl"]
    assert first == pytest.approx(0, abs=1e-9)
    assert second > 1e-7


def test_a_state_that_lacks_something_is_refused(life):
    subject, _ = life
    state = subject.state
    with pytest.raises(LearnerFault, match=r"does not hold params\.final_norm_D"):
        subject.restore({**state, "params.final_norm_D.value": np.zeros(3)})
    with pytest.raises(LearnerFault, match="does not hold reference"):
        subject.restore({k: v for k, v in state.items() if not k.startswith("reference")})


def test_a_restored_learner_continues_bit_for_bit(rng):
    first, second = random_groups(rng), random_groups(rng)
    original, resumed = fresh_learner(), learner(warm_start=WARM_START)
    original.step(first, V0)
    resumed.restore(jax.device_get(original.state))
    for subject in (original, resumed):
        subject.step(second, V0)
    jax.tree.map(np.testing.assert_array_equal, leaves(original.state), leaves(resumed.state))


def test_weights_given_and_taken_survive_later_steps(rng):
    _, given_weights = model()
    subject = fresh_learner()
    taken = subject.weights()
    before = leaves(taken)
    subject.step(random_groups(rng), V0)
    jax.tree.map(np.testing.assert_array_equal, leaves(given_weights), before)
    jax.tree.map(np.testing.assert_array_equal, leaves(taken), before)
    assert jax.tree.structure(taken) == jax.tree.structure(given_weights)
    assert not all(map(np.array_equal, leaves(subject.weights()), before))


def test_small_updates_of_bfloat16_weights_are_not_lost(rng):
    subject = learner(dtype="bfloat16")
    masters = leaves({k: v for k, v in subject.state.items() if k.startswith("params")})
    report = subject.step(random_groups(rng), V0)
    after = leaves({k: v for k, v in subject.state.items() if k.startswith("params")})
    assert report.metrics["skipped_updates"] == 0
    assert {x.dtype for x in after} == {np.dtype("float32")}
    assert {str(x.dtype) for x in leaves(subject.weights())} == {"bfloat16"}
    moved = np.concatenate([(a - b).ravel() for a, b in zip(after, masters, strict=True)])
    assert (moved != 0).mean() > 0.5


def test_rows_must_split_over_the_data_parallel_devices():
    with pytest.raises(LearnerFault, match="does not split over 8"):
        learner(on=mesh(data=8))
