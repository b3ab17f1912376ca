"""The executor between a fake decoder, a fake environment pool and a fake learner."""

import numpy as np
import pytest

from tiderl_jax.core.commands import (
    Admit,
    DropGroup,
    DropReason,
    DropRollout,
    EndRollout,
    Feed,
    Migrate,
    Probe,
    RunTurn,
    StartStep,
    StepEnvironment,
    StepMode,
)
from tiderl_jax.core.config import EvaluationConfig, GroupConfig, RolloutConfig
from tiderl_jax.core.events import (
    EnvironmentReady,
    Event,
    ProbeMeasured,
    RolloutEnded,
    RolloutFailed,
)
from tiderl_jax.core.ids import GroupId, Purpose, RankId, RolloutId
from tiderl_jax.core.segments import Owner, Segment
from tiderl_jax.core.trajectories import Outcome, Task, Trajectory
from tiderl_jax.decoder.turns import TurnRequest
from tiderl_jax.envs.protocol import Answer, Split
from tiderl_jax.learner.selection import select
from tiderl_jax.models.chat import ChatRenderer
from tiderl_jax.models.tokenizer import Tokenizer
from tiderl_jax.runtime.episodes import Episodes
from tiderl_jax.runtime.executor import Executor, TurnRules
from tiderl_jax.runtime.inbox import Report
from tiderl_jax.runtime.tasks import TaskSource

RANK = RankId(0)


class FakeWorld:
    def task(self, split: Split, index: int) -> Task:
        return Task(split.value, index)


class FakePool:
    """Remembers what is open and what was played."""

    def __init__(self) -> None:
        self.open_sessions: dict[RolloutId, Task] = {}
        self.played: list[tuple[RolloutId, str]] = []
        self.paused: list[RolloutId] = []

    def open(self, rollout: RolloutId, task: Task) -> None:
        self.open_sessions[rollout] = task

    def step(self, rollout: RolloutId, action: str) -> None:
        self.played.append((rollout, action))

    def pause(self, rollout: RolloutId) -> None:
        self.paused.append(rollout)

    def resume(self, rollout: RolloutId) -> None:
        self.paused.remove(rollout)

    def is_open(self, rollout: RolloutId) -> bool:
        return rollout in self.open_sessions

    def close(self, rollout: RolloutId) -> None:
        self.open_sessions.pop(rollout, None)


class FakeDecoder:
    def __init__(self) -> None:
        self.requests: list[TurnRequest] = []
        self.released: list[RolloutId] = []

    def run_turn(self, request: TurnRequest) -> None:
        self.requests.append(request)

    def release(self, rollout: RolloutId) -> None:
        self.released.append(rollout)


class FakeLearner:
    def __init__(self) -> None:
        self.steps: list[tuple[int, list[list[Trajectory]]]] = []

    def start(self, step: int, groups: list[list[Trajectory]]) -> None:
        self.steps.append((step, groups))


class FakeInbox:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def post(self, event: Event) -> None:
        self.events.append(event)

    def deliver(self, report: Report) -> None:
        if (event := report()) is not None:
            self.events.append(event)


class Scene:
    def __init__(self, max_turns: int = 2) -> None:
        limits = RolloutConfig(
            prompts_per_step=1,
            min_prompts_per_step=0,
            samples_per_prompt=2,
            group=GroupConfig(0, 0.0, 0, "drop"),
            max_tokens_per_turn=4,
            max_context_tokens=64,
            temperature=0.7,
            deadline_s=10.0,
        )
        self.renderer = ChatRenderer(Tokenizer.from_words(["left", "right", "wall"]))
        self.inbox, self.episodes = FakeInbox(), Episodes()
        self.trajectories: list[Trajectory] = []
        self.pool, self.decoder, self.learner = FakePool(), FakeDecoder(), FakeLearner()
        self.executor = Executor(
            TurnRules(limits, max_turns, seed=3),
            self.inbox,
            TaskSource(FakeWorld(), 2, EvaluationConfig(5, 0, "held_out")),
            self.episodes,
            self.renderer,
            self.trajectories.append,
        )
        self.executor.connect(self.pool, {RANK: self.decoder}, self.learner)

    def do(self, *commands: object) -> None:
        for command in commands:
            self.executor.execute(command, now_ns=0)

    def begin(self, rollout: RolloutId) -> None:
        self.do(Admit(rollout, RANK))
        self.executor.started(rollout, self.pool.open_sessions[rollout], "wall left")

    def say(self, rollout: RolloutId, word: str) -> None:
        """What a decoder does at the end of a turn."""
        token_ids = np.array(self.renderer.turn(word))
        zeros = np.zeros(len(token_ids))
        episode = self.episodes.find(rollout)
        episode.append([Segment(Owner.MODEL, token_ids, zeros, zeros, zeros)])
        episode.n_turns += 1
        self.do(StepEnvironment(rollout))

    @property
    def last(self) -> Event:
        return self.inbox.events[-1]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def rollout(member: int = 0, purpose: Purpose = Purpose.TRAIN) -> RolloutId:
    return RolloutId(GroupId(purpose, 0), member)


def test_the_environment_gets_text_and_the_decoder_gets_the_very_ids_it_sampled(
    scene: Scene,
) -> None:
    scene.begin(rollout())
    prompt = scene.episodes.find(rollout()).context_ids.tolist()
    assert scene.last == EnvironmentReady(rollout(), len(prompt))
    scene.say(rollout(), "right")
    assert scene.pool.played == [(rollout(), "right")]
    scene.executor.answered(rollout(), Answer("wall", 0.0, done=False))
    scene.do(RunTurn(rollout(), RANK))
    context = scene.decoder.requests[-1].context_ids.tolist()
    said = scene.renderer.turn("right")
    assert context[: len(prompt) + len(said)] == prompt + said
    assert scene.last == EnvironmentReady(rollout(), len(context) - len(prompt) - len(said))


def test_a_probed_environment_waits_paused_and_is_used_again(scene: Scene) -> None:
    scene.do(Probe(rollout().group))
    scene.executor.started(rollout(), scene.pool.open_sessions[rollout()], "wall left")
    n_tokens = len(scene.episodes.find(rollout()).context_ids)
    assert scene.last == ProbeMeasured(rollout().group, n_tokens)
    assert scene.pool.paused == [rollout()]
    scene.do(Admit(rollout(), RANK))
    assert scene.last == EnvironmentReady(rollout(), n_tokens)
    assert scene.pool.paused == []


def test_rewards_add_up_and_the_end_hands_the_group_to_the_learner(scene: Scene) -> None:
    for member, last_reward in ((0, 1.0), (1, 0.0)):
        scene.begin(rollout(member))
        scene.say(rollout(member), "left")
        scene.executor.answered(rollout(member), Answer("wall", 0.25, done=False))
        scene.say(rollout(member), "right")
        scene.executor.answered(rollout(member), Answer("", last_reward, done=True))
        assert scene.last == RolloutEnded(rollout(member), Outcome.FINISHED)
    scene.do(StartStep(0, StepMode.COLOCATED, 0), Feed(0, 0, (rollout().group,), (), last=True))
    step, (group,) = scene.learner.steps[0]
    assert step == 0
    assert [trajectory.reward for trajectory in group] == [1.25, 0.25]
    assert [trajectory.n_turns for trajectory in group] == [2, 2]


def test_the_turn_limit_truncates_after_the_last_answer(scene: Scene) -> None:
    scene.begin(rollout())
    for _ in range(2):
        scene.say(rollout(), "left")
        scene.executor.answered(rollout(), Answer("wall", 0.0, done=False))
    assert scene.last == RolloutEnded(rollout(), Outcome.TRUNCATED_TURNS)


def test_a_rollout_without_captured_tokens_is_failed_and_never_a_reward_of_zero(
    scene: Scene,
) -> None:
    """Case C14."""
    scene.begin(rollout())
    scene.do(EndRollout(rollout(), Outcome.TRUNCATED_TIME))
    assert isinstance(scene.last, RolloutFailed)
    assert scene.trajectories == []
    assert scene.episodes.n_kept == 0


def test_a_rollout_that_is_ended_twice_is_reported_once(scene: Scene) -> None:
    scene.begin(rollout())
    scene.say(rollout(), "left")
    scene.executor.answered(rollout(), Answer("", 1.0, done=True))
    n_events = len(scene.inbox.events)
    scene.do(EndRollout(rollout(), Outcome.TRUNCATED_TIME))
    assert len(scene.inbox.events) == n_events
    assert len(scene.trajectories) == 1


def test_a_dropped_group_frees_everything_and_its_late_answers_are_ignored(scene: Scene) -> None:
    scene.begin(rollout())
    scene.do(DropGroup(rollout().group, DropReason.STALE))
    assert scene.pool.open_sessions == {}
    assert scene.decoder.released == [rollout()]
    n_events = len(scene.inbox.events)
    scene.executor.answered(rollout(), Answer("wall", 0.0, done=False))
    assert len(scene.inbox.events) == n_events


def test_a_dropped_member_frees_what_it_holds_and_leaves_the_rest_of_its_group(
    scene: Scene,
) -> None:
    scene.begin(rollout(0))
    scene.begin(rollout(1))
    scene.do(DropRollout(rollout(0), DropReason.LATE))
    assert list(scene.pool.open_sessions) == [rollout(1)]
    assert scene.decoder.released == [rollout(0)]
    scene.say(rollout(1), "left")
    scene.executor.answered(rollout(1), Answer("", 1.0, done=True))
    assert [t.rollout for t in scene.episodes.take(rollout().group)] == [rollout(1)]


def test_the_reward_of_a_member_that_was_dropped_is_no_part_of_its_groups_baseline(
    scene: Scene,
) -> None:
    """S5 of the users' cases: also when it had just ended. There is no setting that keeps it."""
    for member, reward in ((0, 1.0), (1, 1.0), (2, 0.0)):
        scene.begin(rollout(member))
        scene.say(rollout(member), "left")
        scene.executor.answered(rollout(member), Answer("", reward, done=True))
    scene.do(DropRollout(rollout(0), DropReason.REDUNDANT))
    scene.do(StartStep(0, StepMode.COLOCATED, 0), Feed(0, 0, (rollout().group,), (), last=True))
    (samples,) = select(scene.learner.steps[0][1], normalise_by_std=False).groups
    assert {s.trajectory.rollout.member: s.advantage for s in samples} == {1: 0.5, 2: -0.5}


def test_a_rollout_that_migrates_gives_up_its_pages_on_the_other_ranks() -> None:
    scene, other = Scene(), FakeDecoder()
    scene.executor.connect(scene.pool, {RANK: scene.decoder, RankId(7): other}, scene.learner)
    scene.do(Migrate(rollout(), RANK))
    assert (scene.decoder.released, other.released) == ([], [rollout()])


def test_evaluation_is_sampled_at_temperature_one_and_greedily(scene: Scene) -> None:
    temperatures = {}
    for purpose in Purpose:
        scene.begin(rollout(purpose=purpose))
        scene.do(RunTurn(rollout(purpose=purpose), RANK))
        temperatures[purpose] = scene.decoder.requests[-1].sampling.temperature
    assert temperatures == {
        Purpose.TRAIN: 0.7,
        Purpose.EVALUATE: 1.0,
        Purpose.EVALUATE_GREEDY: 0.0,
    }


def test_evaluation_trajectories_are_scored_and_not_kept(scene: Scene) -> None:
    judged = rollout(purpose=Purpose.EVALUATE)
    scene.begin(judged)
    scene.say(judged, "left")
    scene.executor.answered(judged, Answer("", 1.0, done=True))
    assert [trajectory.reward for trajectory in scene.trajectories] == [1.0]
    assert scene.episodes.n_kept == 0


def test_the_key_of_a_sample_depends_on_who_samples_and_not_on_when(scene: Scene) -> None:
    def keys(order: tuple[int, ...]) -> dict[int, tuple[int, int]]:
        fresh = Scene()
        for member in order:
            fresh.begin(rollout(member))
            fresh.do(RunTurn(rollout(member), RANK))
        return {r.rollout.member: r.sampling.key for r in fresh.decoder.requests}

    assert keys((0, 1)) == keys((1, 0))
    assert len(set(keys((0, 1)).values())) == 2
