"""The checks themselves: a state that was tampered with is found out, with a precise sentence."""

from collections.abc import Callable

import pytest
from hand import Hand, member, train_group

from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, Role
from tiderl_jax.scheduler.explain import explain
from tiderl_jax.scheduler.invariants import check
from tiderl_jax.scheduler.state import Phase, State

RANK = RankId(0)


def busy() -> State:
    """Group 0 trains, 1 is complete, 2 decodes and keeps KV elsewhere, 3 waits for its answer."""
    hand = Hand(prompts=1, bound=3, members=2, n_slots=2, steps=9)
    hand.load_weights()
    hand.bring(0, 1, 2, 3)
    for group in (0, 1):
        for position in (0, 1):
            hand.play(member(group, position))
    hand.ready(member(2, 0))
    hand.ready(member(2, 1))
    hand.turn(member(2, 1))
    check(hand.state)
    return hand.state


def set_phase(state: State, group: int, phase: Phase) -> None:
    state.groups[train_group(group)].members[0].phase = phase


TAMPERINGS: dict[str, Callable[[State], object]] = {
    "counts 0 used tokens": lambda s: setattr(s.ranks[RANK], "used_tokens", 0),
    "needs .* tokens of a pool": lambda s: (
        setattr(s.groups[train_group(2)].members[1], "held_tokens", 500),
        setattr(s.ranks[RANK], "used_tokens", 500 + 20),
    ),
    "has lost the turn": lambda s: (
        s.ranks[RANK].decoding.clear(),
        setattr(s.ranks[RANK], "idle_since_ns", 0),
    ),
    "in 1 slots": lambda s: (
        set_phase(s, 3, Phase.DECODING),
        s.ranks[RANK].decoding.setdefault(member(3, 0)),
        setattr(
            s.ranks[RANK], "spec", s.ranks[RANK].spec.__class__(RANK, Role.ROLLOUT, 1, 400, 10)
        ),
        setattr(s.ranks[RANK], "used_tokens", 60),
    ),
    "wants a turn": lambda s: set_phase(s, 3, Phase.READY),
    "invented a paused rollout": lambda s: set_phase(s, 3, Phase.PARKED_ACTING),
    "pending members": lambda s: s.groups[train_group(3)].pending.append(0),
    "1 members of train/3 ended": lambda s: set_phase(s, 3, Phase.ENDED),
    "in the buffer exactly": lambda s: s.buffer.clear(),
    "trains, and 4 rollouts are on it": lambda s: setattr(s.ranks[RANK], "role", Role.TRAINER),
    "does not roll out, but decodes": lambda s: (
        setattr(s.ranks[RANK], "role", None),
        setattr(s.ranks[RANK], "idle_since_ns", None),
    ),
    "since which it runs no turn": lambda s: setattr(s.ranks[RANK], "idle_since_ns", 3),
    "ranks are owed": lambda s: setattr(s, "n_changing", 1),
    "miscounted: they are 1": lambda s: setattr(s, "n_rollout_ranks", 2),
    "counted as trainers": lambda s: setattr(s, "n_trainer_ranks", 2),
    "counted as loading": lambda s: setattr(s, "n_loading", 1),
    "counted as serving": lambda s: setattr(s, "n_serving", 0),
    "Evaluation could go to": lambda s: s.evaluable.discard(RANK),
    "counted as working": lambda s: setattr(s, "n_working", 9),
    "members are unfinished": lambda s: setattr(s, "n_unfinished_members", 1),
    "The buffer counts 7 tokens": lambda s: setattr(s, "buffer_tokens", 7),
    "A step takes 3 groups": lambda s: setattr(s.learner.step, "n_groups", 3),
    "2 feeds were trained": lambda s: setattr(s.learner.step, "n_trained", 2),
    "environments are counted": lambda s: setattr(s, "n_environments", 0),
    "are allowed": lambda s: setattr(
        s, "limits", s.limits.__class__(**{**as_dict(s.limits), "max_open_environments": 1})
    ),
    "Version 5 was published": lambda s: setattr(s, "published", PolicyVersion(5)),
    "serves 4": lambda s: setattr(s.ranks[RANK], "version", PolicyVersion(4)),
    "trains with lag -1": lambda s: s.learner.step.groups.update(
        {train_group(0): PolicyVersion(1)}
    ),
    "trains with lag 4": lambda s: setattr(s.learner, "version", PolicyVersion(4)),
    "could train again": lambda s: s.returning.add(0),
    "is an evaluation and trains": lambda s: setattr(
        s.learner.step, "groups", {GroupId(Purpose.EVALUATE, 0): PolicyVersion(0)}
    ),
    "A step of 1 groups has 2": lambda s: s.learner.step.groups.update(
        {train_group(99): PolicyVersion(0)}
    ),
    "counted as open": lambda s: setattr(s, "n_open_groups", 0),
    "3 are within the bound": lambda s: setattr(
        s, "limits", s.limits.__class__(**{**as_dict(s.limits), "staleness_bound": 2})
    ),
    "counted as ahead": lambda s: s.ahead.setdefault(train_group(3)),
    "has begun to sample": lambda s: (
        s.ahead.setdefault(train_group(2)),
        setattr(s.groups[train_group(2)], "ahead", True),
    ),
    "waits for its weights": lambda s: s.ranks[RANK].held.setdefault(member(3, 0)),
    "than the steps left can use": lambda s: setattr(
        s, "limits", s.limits.__class__(**{**as_dict(s.limits), "steps": 2})
    ),
}


def as_dict(value: object) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__slots__}


@pytest.mark.parametrize("sentence", TAMPERINGS)
def test_a_broken_rule_is_named(sentence: str) -> None:
    state = busy()
    TAMPERINGS[sentence](state)
    with pytest.raises(InvariantError, match=sentence):
        check(state)


def test_work_that_nobody_owes_an_event_about_is_a_stall() -> None:
    hand = Hand()
    hand.load_weights()
    hand.state.requested.clear()
    with pytest.raises(InvariantError, match="stalled"):
        check(hand.state)


def test_the_state_explains_who_waits_for_what() -> None:
    text = explain(busy())
    assert "the colocated step has 1 of 1 groups for 0.0 s and trains them" in text
    assert "rank 0: serves 0; 4 rollouts open, 1 of 2 slots decode" in text
    assert "1 acting" in text
    assert "train/2/0.0 waits for the engine of rank 0" in text
