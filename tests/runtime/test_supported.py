"""What a real run cannot do yet is refused in one sentence, before anything starts."""

from dataclasses import replace

import pytest

from configs import quickstart
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.resolve import resolve
from tiderl_jax.runtime.supported import check_supported


def quickstart_with(**scheduler: str) -> ExperimentConfig:
    config = resolve(quickstart.get_config().to_dict())
    return replace(config, scheduler=replace(config.scheduler, **scheduler))


def test_the_quickstart_is_supported() -> None:
    check_supported(quickstart_with())


@pytest.mark.parametrize(
    ("decision", "name"),
    [("staleness", "trimmed"), ("pipelining", "ra2p"), ("scaling", "ers_guarded")],
)
def test_a_decision_that_only_the_simulator_carries_out_is_named_with_what_to_do(
    decision: str, name: str
) -> None:
    with pytest.raises(ConfigError, match=f"scheduler.{decision} = '{name}' yet: set it to '"):
        check_supported(quickstart_with(**{decision: name}))


def test_ranks_that_should_move_are_refused() -> None:
    config = quickstart_with()
    movable = replace(config, partition=replace(config.partition, max_rollout_ranks=2))
    with pytest.raises(ConfigError, match=r"partition\.max_rollout_ranks to 0"):
        check_supported(movable)
