"""Identifiers. Small types of their own, so that one int is never taken for another."""

from enum import Enum, IntEnum
from typing import NamedTuple, NewType

PolicyVersion = NewType("PolicyVersion", int)
"""Minted by the learner at each update; monotone for ever, also across restarts."""

RankId = NewType("RankId", int)
"""The smallest group of devices that can hold a role."""


class Role(Enum):
    """What a rank does for the run. The mode of a step says how trainer ranks share its work."""

    ROLLOUT = "rollout"
    TRAINER = "trainer"


class Purpose(IntEnum):
    """Why a group is rolled out. Only `TRAIN` groups ever reach the learner."""

    TRAIN = 0
    EVALUATE = 1
    EVALUATE_GREEDY = 2

    @property
    def is_evaluation(self) -> bool:
        """True for groups that pin a policy version and are only scored."""
        return self is not Purpose.TRAIN


class GroupId(NamedTuple):
    """A group: the rollouts of one task. `number` counts the groups of one purpose from 0."""

    purpose: Purpose
    number: int

    def __str__(self) -> str:
        return f"{self.purpose.name.lower()}/{self.number}"


class RolloutId(NamedTuple):
    """One attempt of one member of a group at its task."""

    group: GroupId
    member: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.group}/{self.member}.{self.attempt}"


def lag(trainer: PolicyVersion, oldest: PolicyVersion) -> int:
    """Versions between the trainer at the moment of use and a trajectory's oldest trained token."""
    return trainer - oldest
