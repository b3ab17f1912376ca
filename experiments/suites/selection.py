"""Which tasks train when some take far longer than others: selection bias, by policy.

    python -m experiments.benchmark --suite selection --workdir runs/benchmark_selection

Profile `mixed`: half of the tasks are fast (4 turns in the mean, answers after 0.2 s), half slow
(12 turns, 6 s). The paper's text setting on 32 H100, a quarter of which rolls out, 20 steps without
evaluations, five seeds. A mix is the share of slow tasks; two of them differ by their total
variation, which between two classes is the difference of the shares:
    whole run    groups trained, against all groups asked for
    first half   the first half of the groups that trained, against as many that were asked first:
                 what is trained late and in the end, is missing here
    within bound model tokens trained no later than the bound allows, against those of `sync`, which
                 trains every task whole (a turn counts by the version that it began under)
Delay is the steps by which a group trains later than in the order asked, slow minus fast. Lengths
are the turns of a trajectory: of all rollouts that ended, and of those that trained. policies.md
has all figures. About three minutes.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs import paper
from experiments.suites.side_by_side import Measured, finished, side_by_side, table
from tiderl_jax.core.commands import Command, Feed
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.events import Event, TasksArrived, TurnEnded, Updated
from tiderl_jax.core.ids import GroupId, PolicyVersion, RolloutId, lag
from tiderl_jax.report.claims import Claim, evaluate, figure
from tiderl_jax.report.run_files import write_text
from tiderl_jax.simulator.draws import Draws

SEEDS = (0, 1, 2, 3, 4)
BASE: Mapping[str, object] = {
    "steps": 20,
    "evaluation.n_tasks": 0,
    "simulation.profile": "mixed",
}
_HOME = paper.split(paper.N_DEVICES // 4, elastic=True)
POLICIES: Mapping[str, Mapping[str, object]] = {
    "sync": paper.policy("sync", paper.shared()),
    **{name: paper.static(name, 0.25) for name in ("one_step_off", "async", "stream")},
    "async, bounded": paper.static("async", 0.25, staleness="bounded"),
    **{name: paper.policy(name, _HOME) for name in paper.OURS},
}
FIGURES = {
    "slow asked": "slow.asked",
    "slow trained": "slow.trained",
    "difference": "distance.whole",
    "slow in the first half": "slow.first_half",
    "difference (first half)": "distance.first_half",
    "slow of tokens within the bound": "slow.tokens",
    "difference (tokens)": "distance.tokens",
    "slow trains later by (steps)": "slow_delay_steps",
    "slow groups dropped": "dropped.slow",
    "fast groups dropped": "dropped.fast",
    "turns sampled": "lengths.sampled_turns",
    "turns trained": "lengths.trained_turns",
    "trained over sampled": "turns_ratio",
    "goodput (tokens/s)": "goodput_tokens_per_s",
}


def run(workdir: Path) -> list[dict[str, Any]]:
    """Measures every policy."""
    policies = {name: {**BASE, **changes} for name, changes in POLICIES.items()}
    measured = side_by_side(policies, SEEDS, measure)
    for runs in measured.values():
        for one, whole in zip(runs, measured["sync"], strict=True):
            one["distance"]["tokens"] = abs(one["slow"]["tokens"] - whole["slow"]["tokens"])
    text = table(measured, FIGURES)
    write_text(workdir / "policies.md", text)
    print(text)
    return evaluate([claim for name in POLICIES for claim in claims_of(name)], measured)


def claims_of(name: str) -> list[Claim]:
    """No policy should lean against slow tasks."""
    parts = {
        "whole": "of groups, whole run",
        "first_half": "of groups, first half",
        "tokens": "of tokens within the bound",
    }
    return [
        *(
            Claim(
                f"{name}: mix {words}, distance from the mix asked",
                figure(f"distance.{part}", name),
                at_most=0.05,
                source="ours",
            )
            for part, words in parts.items()
        ),
        Claim(
            f"{name}: turns trained over turns sampled",
            figure("turns_ratio", name),
            at_least=0.95,
            source="ours",
        ),
    ]


def measure(config: ExperimentConfig) -> Measured:
    """The summary of a run, and who trained."""
    draws = Draws(config.seed, config.simulation, config.rollout, config.environment.max_turns)
    mix = Mix(config.scheduler.staleness_bound)
    done = finished(config, mix.observe)
    summary, tally = done.summary, done.tally.workloads
    trained, asked = mix.trained, mix.asked
    half = len(trained) // 2

    def slow_share(groups: Sequence[GroupId]) -> float:
        return float(np.mean([draws.workload(group) == "slow" for group in groups]))

    tokens: Counter[str] = Counter()
    for group, n_tokens in mix.fresh_tokens.items():
        tokens[draws.workload(group)] += n_tokens
    delays: defaultdict[str, list[float]] = defaultdict(list)
    for group, step in mix.step_of.items():
        expected = group.number // config.rollout.prompts_per_step
        delays[draws.workload(group)].append(step - expected)
    slow = {
        "asked": slow_share(asked),
        "trained": slow_share(trained),
        "first_half": slow_share(trained[:half]),
        "tokens": tokens["slow"] / tokens.total(),
    }
    lengths = summary["lengths"]
    return summary | {
        "slow": slow,
        "distance": {
            "whole": abs(slow["trained"] - slow["asked"]),
            "first_half": abs(slow["first_half"] - slow_share(asked[:half])),
        },
        "slow_delay_steps": float(np.mean(delays["slow"]) - np.mean(delays["fast"])),
        "dropped": {name: tally[name].dropped_groups for name in ("slow", "fast")},
        "turns_ratio": lengths["trained_turns"] / lengths["sampled_turns"],
    }


class Mix:
    """An observer: groups in the order in which they were asked for and trained, and tokens."""

    def __init__(self, staleness_bound: int) -> None:
        self.asked: list[GroupId] = []
        self.trained: list[GroupId] = []
        self.step_of: dict[GroupId, int] = {}
        self.fresh_tokens: Counter[GroupId] = Counter()  # trained within the bound
        self._bound = staleness_bound
        self._turns: defaultdict[RolloutId, list[tuple[PolicyVersion, int]]] = defaultdict(list)
        self._in_step: list[RolloutId] = []

    def observe(self, event: Event | None, commands: Sequence[Command], now_ns: int) -> None:
        """Takes one turn of the event loop."""
        if isinstance(event, TasksArrived):
            self.asked += event.groups
        elif isinstance(event, TurnEnded):
            self._turns[event.rollout].append((event.oldest_version, event.generated_tokens))
        elif isinstance(event, Updated):
            self._update(PolicyVersion(event.version - 1))
        for command in commands:
            if isinstance(command, Feed):
                self.trained += command.groups
                self.step_of.update(dict.fromkeys(command.groups, command.step))
                for microbatch in command.microbatches:
                    self._in_step += microbatch.rollouts

    def _update(self, used_at: PolicyVersion) -> None:
        for rollout in self._in_step:
            self.fresh_tokens[rollout.group] += sum(
                n_tokens
                for version, n_tokens in self._turns.pop(rollout)
                if lag(used_at, version) <= self._bound
            )
        self._in_step.clear()
