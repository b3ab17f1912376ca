import json

import pytest

from tiderl_jax.core import wire
from tiderl_jax.core.errors import StorageFault
from tiderl_jax.core.events import (
    Event,
    RankLost,
    RankReady,
    RolloutEnded,
    StopRequested,
    TasksArrived,
    Trained,
    TurnEnded,
    TurnStop,
    Updated,
)
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, Role, RolloutId
from tiderl_jax.core.trajectories import Outcome

GROUP = GroupId(Purpose.EVALUATE, 3)
ROLLOUT = RolloutId(GROUP, 2, 1)


@pytest.mark.parametrize(
    "event",
    [
        StopRequested(),
        TasksArrived((GROUP, GroupId(Purpose.TRAIN, 0)), 8),
        RolloutEnded(ROLLOUT, Outcome.TRUNCATED_TIME),
        TurnEnded(ROLLOUT, RankId(1), TurnStop.LENGTH, 4, 10, 3, PolicyVersion(7)),
        Updated(
            1, PolicyVersion(2), "ab", 10, 90, (("stale", 4),), 2, (0, 1), ((0, 6), (1, 4)), 0.25
        ),
        Trained(1, 0),
        RankReady(RankId(1), Role.TRAINER),
        RankLost(RankId(1), True),
    ],
)
def test_an_event_survives_the_way_through_json(event: Event) -> None:
    returned = wire.decode(json.loads(json.dumps(wire.encode(event))))
    assert returned == event
    assert repr(returned) == repr(event)


def test_every_kind_of_event_is_known() -> None:
    assert len(wire.KINDS) == 15


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(StorageFault, match="unknown kind"):
        wire.decode({"kind": "Exploded"})
