"""Steps, versions and evaluations: what the learner trains on, and what the ranks serve.

Order of things. A version goes to the ranks while the learner is idle, so `Publish` always means
the weights that the learner has now. While an evaluation runs, newer versions are held back; the
learner may go on as long as the work of the ranks stays within the staleness bound, but never past
a version that is to be evaluated and has not reached the ranks.
"""

from dataclasses import replace

from tiderl_jax.core.commands import (
    Abort,
    DropReason,
    Feed,
    Finish,
    Microbatch,
    Publish,
    RequestTasks,
    StartStep,
    StepMode,
)
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import RankLost, RankReady, Trained, Updated, WeightsLoaded
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, Role, RolloutId
from tiderl_jax.scheduler.ahead import let_in
from tiderl_jax.scheduler.groups import drop_group
from tiderl_jax.scheduler.microbatches import shape
from tiderl_jax.scheduler.phases import note_idleness, update_evaluable, update_placeable
from tiderl_jax.scheduler.placement import change_role, rebalance, retire, take_role, vacate
from tiderl_jax.scheduler.policies import Move
from tiderl_jax.scheduler.readiness import Window
from tiderl_jax.scheduler.state import Evaluation, State, Step


def trained(move: Move, event: Trained) -> None:
    """A feed of the open step has been trained."""
    step, learner = move.state.learner.step, move.state.learner
    if step is None or event.step != learner.steps_done or event.feed < step.n_trained:
        move.ignore()
        return
    step.n_trained = event.feed + 1
    if step.n_trained == step.n_feeds:
        move.state.readiness.trainer_rests(move.now_ns)


def updated(move: Move, event: Updated) -> None:
    """The open step is done and its version minted."""
    state, learner = move.state, move.state.learner
    step = learner.step
    if step is None or event.step != learner.steps_done:
        move.ignore()
        return
    if event.version != learner.version + 1:
        raise InvariantError(f"The learner minted version {event.version} after {learner.version}.")
    learner.version, learner.digest = event.version, event.digest
    learner.steps_done += 1
    learner.groups_trained += len(step.groups)
    learner.step = None
    state.readiness.trainer_rests(move.now_ns)
    _repartition(move, _close_window(move, event.trained_tokens))


def _close_window(move: Move, trained_tokens: int) -> Window:
    state, ranks = move.state, move.state.with_role(Role.ROLLOUT)
    for rank in ranks:
        if rank.idle_since_ns is not None:
            state.readiness.idle_rank_ns += move.now_ns - rank.idle_since_ns
            rank.idle_since_ns = move.now_ns
    tokens = state.limits.microbatch_tokens
    return state.readiness.close_window(move.now_ns, tokens, len(ranks), trained_tokens)


def begin(move: Move) -> None:
    """The run starts or goes on: the scaling may say which ranks roll out first."""
    _repartition(move, None)


def _repartition(move: Move, window: Window | None) -> None:
    for rank, role in move.policies.scaling.plan(move.state, window):
        change_role(move, rank, role)


def rank_ready(move: Move, event: RankReady) -> None:
    """A rank has its role; one that rolls out gets its weights by the next publication."""
    state, rank = move.state, move.state.ranks.get(event.rank)
    if rank is None or rank.role is not None:
        move.ignore()
        return
    take_role(state, rank, event.role)
    state.n_changing -= 1
    joins_late = event.role is Role.ROLLOUT and state.published != state.learner.version
    if joins_late and _is_served(state):
        vacate(move, rank)  # it gets no weights before the next publication
    update_placeable(state, rank)
    note_idleness(move, rank)
    move.touched[event.rank] = None


def rank_lost(move: Move, event: RankLost) -> None:
    """What a rank rolled out goes on elsewhere, from the last turn that ended."""
    state, rank = move.state, move.state.ranks.get(event.rank)
    if rank is None or rank.role is not Role.ROLLOUT:
        move.ignore()
        return
    state.counters.lost_ranks += 1
    retire(move, rank)
    state.n_changing += event.returns
    vacate(move, rank)
    if not state.with_role(Role.ROLLOUT) and state.n_changing == 0:
        state.over = True
        move.say(Abort(f"Rank {event.rank} was lost, and no rank is left that rolls out."))


def weights_loaded(move: Move, event: WeightsLoaded) -> None:
    """A rank serves the published version, if it proved the digest."""
    state, rank = move.state, move.state.ranks.get(event.rank)
    if rank is None or rank.loading is None or event.version != rank.loading:
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
    joins = rank.version is None
    rank.version, rank.loading = event.version, None
    state.n_serving += 1
    state.n_loading -= 1
    move.reconsider = state.n_loading == 0
    update_placeable(state, rank)
    update_evaluable(state, rank)
    move.touched[event.rank] = None
    if joins and state.n_loading == 0:
        rebalance(move)


def go_on(move: Move) -> None:
    """Publishes, evaluates, trains: whatever may start now."""
    _give_up_evaluation(move)
    _end_evaluation(move.state)
    _publish(move)
    _catch_up(move)
    let_in(move)
    _begin_evaluation(move)
    _start_step(move)
    _take_ready(move)
    _feed(move)
    _drop_stale(move)


def _publish(move: Move) -> None:
    state, learner = move.state, move.state.learner
    if state.evaluation or state.published == learner.version:
        return
    served = _is_served(state)
    if served and (learner.step or not move.policies.staleness.may_publish(state)):
        return
    state.published, state.published_digest = learner.version, learner.digest
    state.published_groups = learner.groups_trained
    state.n_serving = 0
    for rank in state.ranks.values():
        state.n_loading -= rank.loading is not None
        rank.loading = None


def _catch_up(move: Move) -> None:
    """Brings the published version to the ranks that lack it, while the learner still has it."""
    state = move.state
    if state.published is None or state.published != state.learner.version:
        return
    if state.n_serving + state.n_loading == state.n_rollout_ranks:
        return
    ranks = [
        rank
        for rank in state.with_role(Role.ROLLOUT)
        if rank.version != state.published and rank.loading is None
    ]
    for rank in ranks:
        rank.loading = state.published
    state.n_loading += len(ranks)
    move.say(Publish(state.published, tuple(rank.spec.rank for rank in ranks)))


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


def _give_up_evaluation(move: Move) -> None:
    """Nobody serves the pinned version any more, and the learner does not have it."""
    state = move.state
    if state.evaluation is None or state.published == state.learner.version:
        return
    if _is_served(state):
        return
    for group in list(state.groups.values()):
        if group.is_evaluation:
            drop_group(move, group, DropReason.UNFINISHED)


def _is_served(state: State) -> bool:
    """Whether some rank serves the published version, or will."""
    return state.n_serving > 0 or state.n_loading > 0


def _end_evaluation(state: State) -> None:
    if state.evaluation and state.evaluation.n_groups_left == 0:
        state.evaluated_step = state.evaluation.step
        state.n_evaluations += 1
        state.evaluation = None


def _start_step(move: Move) -> None:
    state, learner = move.state, move.state.learner
    if learner.step or learner.steps_done == state.limits.steps or not state.buffer:
        return
    if state.evaluation_due and not state.evaluation:
        return
    held_back = state.published != learner.version
    if held_back and not move.policies.staleness.may_run_ahead(state):
        return
    n_groups = move.policies.scaling.n_groups(state)
    plan = move.policies.pipelining.plan(state, n_groups)
    if plan is None:
        return
    tokens = state.limits.microbatch_tokens
    state.readiness.n_ready_at_start = state.buffer_tokens // tokens
    n_workers = state.n_trainers - plan.n_scorers
    learner.step = Step(plan.mode, plan.n_scorers, n_workers, n_groups, move.now_ns)
    move.say(StartStep(learner.steps_done, plan.mode, plan.n_scorers))


def _take_ready(move: Move) -> None:
    """Complete groups go into the open step until it has enough."""
    state, step = move.state, move.state.learner.step
    if step is None or step.n_missing == 0 or not state.buffer:
        return
    for group_id in _choose(move, step.n_missing):
        group, oldest = state.groups[group_id], _oldest(state, group_id)
        step.groups[group_id] = oldest
        step.unfed[group_id] = None
        step.waiting.update(group.ended)
        state.buffer_tokens -= state.buffer.pop(group_id)
        del state.groups[group_id], state.by_oldest[oldest][group_id]
        if not state.by_oldest[oldest]:
            del state.by_oldest[oldest]


def _choose(move: Move, n_groups: int) -> list[GroupId]:
    """The oldest complete groups; before them those that could not train one version later."""
    state, staleness = move.state, move.policies.staleness
    urgent: list[GroupId] = []
    others: list[GroupId] = []
    for group in state.buffer:
        oldest = _oldest(state, group)
        last_chance = staleness.is_stale(state, oldest, state.learner.version + 1)
        (urgent if last_chance else others).append(group)
    return (urgent + others)[:n_groups]


def _oldest(state: State, group: GroupId) -> PolicyVersion:
    oldest = state.groups[group].oldest_version
    if oldest is None:
        raise InvariantError(f"Group {group} is complete but sampled nothing.")
    return oldest


def _feed(move: Move) -> None:
    state, step = move.state, move.state.learner.step
    while step is not None and step.waiting:
        chosen = move.policies.pipelining.feed(state, step)
        if not chosen:
            return
        rollouts = [(rollout, step.waiting.pop(rollout)) for rollout in chosen]
        step.closed = step.n_missing == 0 and not step.waiting
        microbatches = _shaped(state, step, rollouts)
        groups, step.unfed = tuple(step.unfed), {}
        learner = state.learner
        move.say(Feed(learner.steps_done, step.n_feeds, groups, microbatches, step.closed))
        step.n_feeds += 1
        state.readiness.trainer_works(move.now_ns)


def _shaped(
    state: State, step: Step, rollouts: list[tuple[RolloutId, int]]
) -> tuple[Microbatch, ...]:
    """Microbatches for the workers; a stream goes on with the worker that is next in turn."""
    tokens = state.limits.microbatch_tokens
    shaped = shape(rollouts, tokens, step.n_workers, step.mode, step.closed)
    if step.mode is StepMode.COLOCATED:
        return tuple(shaped)
    first = step.n_streamed
    step.n_streamed += len(shaped)
    return tuple(
        replace(microbatch, worker=(first + i) % step.n_workers)
        for i, microbatch in enumerate(shaped)
    )


def _drop_stale(move: Move) -> None:
    """Drops what cannot train any more, complete or not; the demand replaces it."""
    state, staleness = move.state, move.policies.staleness
    if not staleness.drops:
        return
    for oldest in sorted(state.by_oldest):
        if not staleness.is_stale(state, oldest, state.next_use_version):
            return
        for group in list(state.by_oldest[oldest]):
            drop_group(move, state.groups[group], DropReason.STALE)


def request_training_tasks(move: Move) -> None:
    """Requests what the demand says; one request is outstanding at a time."""
    state = move.state
    if Purpose.TRAIN in state.requested:
        return
    n_ahead = state.limits.prompts_per_step if move.policies.admission.opens_ahead else 0
    n_groups = move.policies.staleness.demand(state, n_ahead)
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
    must_wait = learner.step is not None and learner.step.closed
    if not complete and (not state.stopping or must_wait):
        return
    for group in list(state.groups.values()):
        drop_group(move, group, DropReason.UNFINISHED)
        if not group.is_evaluation:
            state.returning.add(group.id.number)  # a resumed run hands it out again
    state.over = True
    move.say(Finish(complete))
