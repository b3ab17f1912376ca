"""The shape of a run, as its config says."""

import pytest

from configs import quickstart
from tiderl_jax.core.ids import Role
from tiderl_jax.core.resolve import resolve
from tiderl_jax.report.facts import RunFacts


def run_facts(policy: str | None = None, **partition) -> RunFacts:
    config = quickstart.get_config()
    config.partition.update(partition)
    return RunFacts.of(resolve(config.to_dict()), policy)


def test_dedicated_trainers_come_after_the_rollout_ranks():
    run = run_facts(n_rollout_ranks=2, actor_devices=3, share_devices=False)
    assert run.roles == {i: Role.ROLLOUT if i < 2 else Role.TRAINER for i in range(5)}
    assert (run.n_devices, run.n_shared) == (5, 0)


@pytest.mark.parametrize(("n_rollout", "n_actor"), [(2, 3), (3, 2)])
def test_devices_that_are_shared_count_once(n_rollout, n_actor):
    run = run_facts(n_rollout_ranks=n_rollout, actor_devices=n_actor, share_devices=True)
    assert set(run.roles.values()) == {Role.ROLLOUT}
    assert (len(run.roles), run.n_devices, run.n_shared) == (n_rollout, 3, 2)


def test_a_policy_is_called_as_its_preset_if_nobody_knows_better():
    assert run_facts().policy == quickstart.get_config().scheduler.preset
    assert run_facts("tiderl(scaling=static)").policy == "tiderl(scaling=static)"
