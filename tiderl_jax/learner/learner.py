"""The learner: holds the trained policy and advances it. For one host thread.

Parameters are split once from their graph; every program is a jitted function of trees.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from tiderl_jax.core.config import LearnerConfig, OptimizerConfig, WarmStartConfig
from tiderl_jax.core.errors import LearnerFault
from tiderl_jax.core.ids import PolicyVersion
from tiderl_jax.core.trajectories import Trajectory
from tiderl_jax.learner import objectives
from tiderl_jax.learner.optimizer import learning_rate, make_optimizer
from tiderl_jax.learner.packing import Packed, Rows, empty_rows, pack
from tiderl_jax.learner.selection import Sample, select
from tiderl_jax.learner.step_report import StepReport, Update, make_report
from tiderl_jax.learner.train_step import (
    Loss,
    Placement,
    Policy,
    Tree,
    accumulate_program,
    apply_program,
    copy_program,
    init_optimizer,
    score_program,
    zeros_program,
)
from tiderl_jax.models.sharding import shardings


def grpo_loss(
    config: LearnerConfig, logp_RT: jax.Array, rows: Rows, denominator: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The clipped ratio, plus the KL to the reference where its coefficient is not 0."""
    mask = rows.loss_mask
    ratio = (logp_RT, rows.old_logp, rows.advantage, mask, config.clip_low, config.clip_high)
    loss_RT = objectives.clipped_ratio(*ratio)
    sums = {"clip_fraction": objectives.is_clipped(*ratio).sum()}
    if config.kl_coefficient > 0:
        kl_RT = objectives.kl_k3(logp_RT, rows.reference_logp, mask)
        loss_RT = loss_RT + config.kl_coefficient * kl_RT
        sums["kl"] = objectives.masked(kl_RT, mask).sum()
    return objectives.global_mean(loss_RT, mask, denominator), sums


def imitation_loss(
    logp_RT: jax.Array, rows: Rows, denominator: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Mean negative log-likelihood of the tokens that the model owns."""
    loss_RT = objectives.imitation(logp_RT, rows.loss_mask)
    return objectives.global_mean(loss_RT, rows.loss_mask, denominator), {}


class _Trainer:
    """One objective with its own optimizer: the reinforcement's, or the warm start's."""

    def __init__(
        self,
        policy: Policy,
        loss: Loss,
        config: OptimizerConfig,
        total_updates: int,
        params: Tree,
        placement: Placement,
    ):
        tx = make_optimizer(config, total_updates)
        self.rate = jax.jit(learning_rate(config, total_updates))
        self.opt_state = init_optimizer(tx, params, placement)
        self.accumulate = accumulate_program(policy, loss, placement)
        self.apply = apply_program(tx, self.opt_state, placement)


class Learner:
    """GRPO on packed sequences, on a mesh of any size.

    Args:
      graphdef, params: a model as `models.transformer.new_model` splits it; copied.
      mesh: with axes ("data", "tensor"); see `models.sharding.make_mesh`.
      temperature: the sampling temperature; log-probs are those of the distribution sampled from.
      total_updates: of reinforcement in the whole run, which the learning rate's decay spans.

    Raises:
      LearnerFault: the mesh's data axis does not divide the rows of a micro-batch.
    """

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        params: nnx.State,
        mesh: Mesh,
        config: LearnerConfig,
        warm_start: WarmStartConfig,
        temperature: float,
        total_updates: int,
    ):
        if config.rows_per_microbatch % mesh.shape["data"]:
            raise LearnerFault(
                f"learner.rows_per_microbatch = {config.rows_per_microbatch} does not split over "
                f"{mesh.shape['data']} data-parallel devices."
            )
        self._config = config
        self._n_updates = 0
        dtype = str(jax.tree.leaves(params)[0].dtype)
        placement = Placement(mesh, shardings(params, mesh))
        self._rows_sharding = placement.rows
        policy = Policy(graphdef, dtype, temperature, config.logp_chunk_tokens)
        params = jax.device_put(params, placement.params)
        self._params = copy_program("float32", placement.params)(params)
        self._copy = copy_program(dtype, placement.params)
        self._zeros = zeros_program(self._params, placement)
        self._score = score_program(policy, placement)
        self._trainer = _Trainer(
            policy,
            partial(grpo_loss, config),
            config.optimizer,
            total_updates,
            self._params,
            placement,
        )
        self._warm_trainer: _Trainer | None = None
        if warm_start.updates > 0:
            own_policy = Policy(graphdef, dtype, 1.0, config.logp_chunk_tokens)
            self._warm_trainer = _Trainer(
                own_policy,
                imitation_loss,
                warm_start.optimizer,
                warm_start.updates,
                self._params,
                placement,
            )
        self._reference: Tree | None = None
        if self._warm_trainer is None:
            self._freeze_reference()

    def warm_up(self) -> None:
        """Compiles every program once, changing nothing: a gradient of NaN updates nothing."""
        config = self._config
        rows = self._place(empty_rows(config.rows_per_microbatch, config.tokens_per_row))
        self.weights()
        jax.block_until_ready(self._score(self._params, rows))
        for trainer in filter(None, (self._trainer, self._warm_trainer)):
            grads, _, _ = trainer.accumulate(self._params, self._zeros(), rows, np.float32(1))
            not_finite = jax.tree.map(lambda x: x * jnp.nan, grads)
            self._apply(trainer, not_finite)
            trainer.rate(0)
        jax.block_until_ready(self._params)

    def step(
        self, groups: Sequence[Sequence[Trajectory]], trainer_version: PolicyVersion
    ) -> StepReport:
        """Advances the policy by up to `updates_per_step` updates on disjoint minibatches.

        Every update divides by the same count: the step's model-owned tokens over
        `updates_per_step`. Groups without an advantage count in it, so leaving them out of the
        computation leaves the gradient as it is. The device is waited for once, at the end.

        Raises:
          LearnerFault: the warm start has not ended, or a trajectory cannot be packed.
        """
        if self._warm_trainer is not None:
            raise LearnerFault("The warm start has not ended: call `end_warm_start` first.")
        n_updates = self._config.updates_per_step
        selection = select(groups, self._config.normalise_by_std)
        denominator = selection.n_candidate_tokens / n_updates
        updates = [
            self._update(self._trainer, samples, denominator)
            for samples in selection.minibatches(n_updates)
        ]
        updates = [self._fetch(update) for update in updates]
        self._n_updates += sum(bool(update.outcome["applied"]) for update in updates)
        rate = float(self._trainer.rate(max(self._n_updates - 1, 0)))
        return make_report(selection, updates, trainer_version, rate)

    def imitate(self, trajectories: Sequence[Trajectory]) -> float:
        """One update of the warm start; returns the mean negative log-likelihood before it.

        It is that of the model at temperature 1, over the tokens that it owns.

        Raises:
          LearnerFault: there is no warm start, or a trajectory cannot be packed.
        """
        if self._warm_trainer is None:
            raise LearnerFault("There is no warm start: warm_start.updates is 0, or it has ended.")
        samples = [Sample(trajectory, 0.0) for trajectory in trajectories]
        n_tokens = sum(trajectory.n_model_tokens for trajectory in trajectories)
        update = self._fetch(self._update(self._warm_trainer, samples, float(n_tokens)))
        return float(sum(sums["loss"] for sums in update.sums))

    def end_warm_start(self) -> None:
        """Frees the warm start's optimizer; the policy as it is now becomes the reference."""
        self._warm_trainer = None
        self._freeze_reference()

    def log_probs(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """float32 [T] of each trajectory, nats, 0 where the model does not own the token."""
        packed = self._pack(trajectories, [0.0] * len(trajectories))
        logp = jax.device_get(
            [self._score(self._params, self._place(rows)) for rows in packed.microbatches]
        )
        return [place.cut(logp) for place in packed.places]

    def weights(self) -> nnx.State:
        """A copy of the policy in the model's dtype, to publish; later steps leave it alone."""
        return self._copy(self._params)

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold: a flat dictionary of arrays; valid until the next update."""
        tree = {"params": self._params, "optimizer": self._trainer.opt_state}
        if self._reference is not None:
            tree["reference"] = self._reference
        return {**_flat(tree), "n_updates": np.asarray(self._n_updates, np.int64)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`; the warm start is over.

        Raises:
          LearnerFault: it is the state of another model or optimizer.
        """
        self.end_warm_start()
        tree = {"params": self._params, "optimizer": self._trainer.opt_state}
        if self._reference is not None:
            tree["reference"] = self._reference
        tree = _filled(tree, state)
        self._params, self._trainer.opt_state = tree["params"], tree["optimizer"]
        self._reference = tree.get("reference")
        self._n_updates = int(state["n_updates"])

    def _freeze_reference(self) -> None:
        if self._config.kl_coefficient > 0:
            self._reference = self._copy(self._params)

    def _pack(self, trajectories: Sequence[Trajectory], advantages: Sequence[float]) -> Packed:
        config = self._config
        return pack(trajectories, advantages, config.rows_per_microbatch, config.tokens_per_row)

    def _place(self, rows: Rows) -> Rows:
        """Rows on the devices: a program that met host arrays would compile again for these."""
        return jax.device_put(rows, self._rows_sharding)

    def _update(self, trainer: _Trainer, samples: list[Sample], denominator: float) -> Update:
        packed = self._pack([s.trajectory for s in samples], [s.advantage for s in samples])
        grads, all_sums, all_logp = self._zeros(), [], []
        for host_rows in packed.microbatches:
            rows = self._place(host_rows)
            if self._reference is not None:
                rows = rows._replace(reference_logp=self._score(self._reference, rows))
            grads, sums, logp_RT = trainer.accumulate(
                self._params, grads, rows, np.float32(denominator)
            )
            all_sums.append(sums)
            all_logp.append(logp_RT)
        return Update(samples, packed, all_sums, all_logp, self._apply(trainer, grads))

    def _apply(self, trainer: _Trainer, grads: Tree) -> dict[str, jax.Array]:
        self._params, trainer.opt_state, outcome = trainer.apply(
            self._params, trainer.opt_state, grads
        )
        return outcome

    def _fetch(self, update: Update) -> Update:
        sums, logp, outcome = jax.device_get((update.sums, update.logp, update.outcome))
        return Update(update.samples, update.packed, sums, logp, outcome)


def _flat(tree: Tree) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _filled(tree: Tree, state: Mapping[str, Any]) -> Tree:
    """The tree with its leaves replaced by those of a flat state, placed as they were."""
    leaves = _flat(tree)
    for name, leaf in leaves.items():
        if name not in state or state[name].shape != leaf.shape:
            raise LearnerFault(f"The state does not hold {name} of shape {leaf.shape}.")
    placed = [jax.device_put(state[name], leaf.sharding) for name, leaf in leaves.items()]
    return jax.tree.unflatten(jax.tree.structure(tree), placed)
