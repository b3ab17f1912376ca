"""Steps, versions and evaluations: what the learner trains on, and what the ranks serve.

Order of things. A version goes to the ranks while the learner is idle, so `Publish` always means
the weights that the learner has now. While an evaluation runs, newer versions are held back; the
learner may go on as long as the work of the ranks stays within the staleness bound, but never past
a version that is to be evaluated and has not reached the ranks.
"""

from tiderl_jax.core.commands import Abort, DropReason, Finish, Publish, RequestTasks, StartStep
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import Updated, WeightsLoaded
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose
from tiderl_jax.scheduler.groups import drop_group
from tiderl_jax.scheduler.phases import update_placeable
from tiderl_jax.scheduler.policies import Move
from tiderl_jax.scheduler.state import Evaluation, State


def updated(move: Move, event: Updated) -> None:
    """The running step is done and its version minted."""
    learner = move.state.learner
    if not learner.training or event.step != learner.steps_done:
        move.ignore()
        return
    if event.version != learner.version + 1:
        raise InvariantError(f"The learner minted version {event.version} after {learner.version}.")
    learner.version, learner.digest = event.version, event.digest
    learner.steps_done += 1
    learner.training = {}


def weights_loaded(move: Move, event: WeightsLoaded) -> None:
    """A rank serves the published version, if it proved the digest."""
    state, rank = move.state, move.state.ranks.get(event.rank)
    if rank is None or event.version != state.published or rank.version == event.version:
        move.ignore()
        return
    if state.published_digest is None:
        state.published_digest = event.digest
    if event.digest != state.published_digest:
        state.over = True
        move.say(
            Abort(
                f"Rank {event.rank} loaded weights of version {event.version} with digest "
                f"{event.digest} instead of {state.published_digest}."
            )
        )
        return
    rank.version = event.version
    state.n_loading -= 1
    update_placeable(state, rank)
    move.touched[event.rank] = None


def go_on(move: Move) -> None:
    """Publishes, evaluates, trains: whatever may start now."""
    _end_evaluation(move.state)
    _publish(move)
    _begin_evaluation(move)
    _start_step(move)
    _drop_stale(move)


def _publish(move: Move) -> None:
    state, learner = move.state, move.state.learner
    if learner.training or state.evaluation or state.published == learner.version:
        return
    ranks = move.policies.scaling.rollout_ranks(state)
    state.published, state.published_digest = learner.version, learner.digest
    state.n_loading = len(ranks)
    move.say(Publish(learner.version, ranks))


def _begin_evaluation(move: Move) -> None:
    state, learner = move.state, move.state.learner
    if state.evaluation or not state.evaluation_due:
        return
    if state.n_loading or state.published != learner.version:
        return
    n_tasks = state.limits.n_evaluation_tasks
    state.evaluation = Evaluation(learner.steps_done, learner.version, 2 * n_tasks)
    for purpose in (Purpose.EVALUATE, Purpose.EVALUATE_GREEDY):
        state.requested[purpose] = n_tasks
        move.say(RequestTasks(purpose, n_tasks))


def _end_evaluation(state: State) -> None:
    if state.evaluation and state.evaluation.n_groups_left == 0:
        state.evaluated_step = state.evaluation.step
        state.n_evaluations += 1
        state.evaluation = None


def _start_step(move: Move) -> None:
    state, learner, limits = move.state, move.state.learner, move.state.limits
    if learner.training or learner.steps_done == limits.steps:
        return
    if len(state.buffer) < limits.prompts_per_step:
        return
    if state.evaluation_due and not state.evaluation:
        return
    held_back = state.published != learner.version
    if held_back and not move.policies.staleness.may_run_ahead(state):
        return
    mode = move.policies.pipelining.mode(state)
    chosen = _choose(move)
    for group in chosen:
        learner.training[group] = _leave_for_training(state, group)
    move.say(StartStep(learner.steps_done, tuple(chosen), mode))


def _choose(move: Move) -> list[GroupId]:
    """The oldest complete groups; before them those that could not train one version later."""
    state, staleness = move.state, move.policies.staleness
    urgent: list[GroupId] = []
    others: list[GroupId] = []
    for group in state.buffer:
        oldest = _oldest(state, group)
        last_chance = staleness.is_stale(state, oldest, state.learner.version + 1)
        (urgent if last_chance else others).append(group)
    return (urgent + others)[: state.limits.prompts_per_step]


def _oldest(state: State, group: GroupId) -> PolicyVersion:
    oldest = state.groups[group].oldest_version
    if oldest is None:
        raise InvariantError(f"Group {group} is complete but sampled nothing.")
    return oldest


def _leave_for_training(state: State, group: GroupId) -> PolicyVersion:
    oldest = _oldest(state, group)
    del state.buffer[group], state.groups[group], state.by_oldest[oldest][group]
    if not state.by_oldest[oldest]:
        del state.by_oldest[oldest]
    return oldest


def _drop_stale(move: Move) -> None:
    """Drops what cannot train any more, complete or not; the demand replaces it."""
    state, staleness = move.state, move.policies.staleness
    for oldest in sorted(state.by_oldest):
        if not staleness.is_stale(state, oldest, state.next_use_version):
            return
        for group in list(state.by_oldest[oldest]):
            drop_group(move, state.groups[group], DropReason.STALE)


def request_training_tasks(move: Move) -> None:
    """Requests what the demand says; one request is outstanding at a time."""
    state = move.state
    n_groups = 0 if Purpose.TRAIN in state.requested else move.policies.staleness.demand(state)
    if n_groups > 0:
        state.requested[Purpose.TRAIN] = n_groups
        move.say(RequestTasks(Purpose.TRAIN, n_groups))


def finish(move: Move) -> None:
    """Ends the run when all is done, or when a stop was requested and the learner is idle."""
    state, learner = move.state, move.state.learner
    complete = (
        learner.steps_done == state.limits.steps
        and not state.evaluation_due
        and state.published == learner.version
        and state.n_loading == 0
    )
    if not complete and (not state.stopping or learner.training):
        return
    for group in list(state.groups.values()):
        drop_group(move, group, DropReason.UNFINISHED)
        if not group.is_evaluation:
            state.returning.add(group.id.number)  # a resumed run hands it out again
    state.over = True
    move.say(Finish(complete))
