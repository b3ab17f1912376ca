"""Every key of an experiment, with its unit or limit. Experiments start from here and edit.

This file is a document, not an experiment: it has no environment and no model of its own.
"""

from ml_collections import ConfigDict


def section(**values: object) -> ConfigDict:
    """A section of a config."""
    return ConfigDict(values)


def optimizer(learning_rate: float) -> ConfigDict:
    """AdamW's settings."""
    return section(
        learning_rate=learning_rate,
        warmup_updates=5,
        final_share=0.1,  # of the learning rate, reached linearly at the last update
        weight_decay=0.0,
        beta2=0.95,
        max_grad_norm=1.0,
    )


def get_config(arg: str | None = None) -> ConfigDict:
    """The defaults of everything that is not particular to one experiment."""
    config = ConfigDict()
    config.name = "base"
    config.seed = 0
    config.steps = 100  # training steps; each mints one policy version

    config.environment = section(
        name="",  # gridworld or textworld
        options=section(),  # the fields of that environment's own options
        max_turns=10,
        latency=section(median_s=0.0, sigma=0.0, cap_s=1.0),  # of one answer; log-normal
        step_deadline_s=30.0,  # an answer later than this is a fault
        idle_lease_s=120.0,  # a session without traffic for longer is reaped
        max_attempts=3,  # of one group member, before its group is dropped
        max_faults=100,  # in the whole run, before it is stopped
    )
    config.model = section(
        checkpoint="",  # a folder in Hugging Face layout; empty: a new model of `architecture`
        architecture=section(
            n_layers=0,
            d_model=0,
            n_heads=0,
            n_kv_heads=0,
            d_head=0,
            d_ff=0,
            rope_base=10_000.0,
            norm_epsilon=1e-5,
            tied_embedding=True,
        ),
        dtype="float32",  # or bfloat16; logits are float32 either way
    )
    config.rollout = section(
        prompts_per_step=32,  # groups that one training step consumes
        min_prompts_per_step=0,  # an elastic scaling may lower a step to so many; 0: never
        samples_per_prompt=8,  # rollouts of a group
        group=section(
            extra_members=0,  # redundancy: so many more start, the first samples_per_prompt count
            deadline_s=0.0,  # of a group, from its first admission; 0: none
            min_members=0,  # that must have ended by then; 0: all
            below_minimum="drop",  # the group; or top_up: replace its late members, once
        ),
        max_tokens_per_turn=8,  # sampled; a turn cut by this ends its rollout
        max_context_tokens=256,  # of a whole rollout
        temperature=1.0,  # of training rollouts
        deadline_s=120.0,  # of a whole rollout
    )
    config.decoder = section(
        n_slots=64,  # turns decoded at the same time
        n_pages=2048,
        page_tokens=16,
        prefill_chunk_tokens=32,  # of one prefill row; a dispatch computes up to n_slots rows
        decode_steps_per_dispatch=4,
        kv_after_update="drop",  # re-prefill with the new weights; or keep_labelled
    )
    config.scheduler = section(
        preset="tiderl",  # names the five decisions; see tiderl_jax.scheduler.presets
        admission="",  # empty: as the preset says; an ablation names exactly one
        batching="",
        staleness="",
        pipelining="",
        scaling="",
        staleness_bound=1,  # k, in policy versions; preset sync has 0
        max_open_groups=64,  # task diversity: groups in flight at once
        max_open_environments=512,
        max_open_rollouts_per_rank=64,  # of admission `request`; 0: no cap
        priority=section(evaluation=8.0, group_completion=4.0, active=2.0, context=1.0),
        elastic=section(
            tau=1.0,  # a ready group older than tau steps is a consumption deficit
            trend_weight=0.5,  # of the newest step in the running means
            confirm_steps=2,  # a deficit counts after so many steps in a row
            trial_steps=4,  # ers_guarded: a move is judged over so many steps
            min_gain=1.0,  # ers_guarded: a move is kept when goodput rose by this ratio
            max_drift=8,  # ers_guarded: ranks away from the starting split
        ),
    )
    config.learner = section(
        optimizer=optimizer(3e-4),
        updates_per_step=1,  # disjoint minibatches of groups
        clip_low=0.2,
        clip_high=0.28,
        kl_coefficient=0.0,  # to the frozen initial policy; 0: no reference is held
        normalise_by_std=True,
        tokens_per_row=256,
        rows_per_microbatch=8,
        logp_chunk_tokens=1024,  # logits exist for this many tokens at a time
    )
    config.warm_start = section(
        updates=0,  # of supervised imitation before reinforcement; 0: none
        episodes_per_update=32,
        player="",
        random_action_share=0.0,
        optimizer=optimizer(1e-3),
    )
    config.evaluation = section(
        split="held_out",  # what is reported; "tune" for every choice that is made by looking
        n_tasks=128,  # each sampled at temperature 1 and played greedily
        every_steps=0,  # besides before the first and after the last; 0: only these
    )
    config.partition = section(
        n_rollout_ranks=1,  # of one device each, at the start
        min_rollout_ranks=0,  # an elastic scaling keeps between these; both 0: n_rollout_ranks
        max_rollout_ranks=0,
        actor_devices=1,
        actor_tensor_parallel=1,
        share_devices=True,  # rollout and actor use the same devices (a laptop)
    )
    config.checkpoint = section(every_steps=20, keep=2)
    config.simulation = section(
        hardware="cpu",  # see tiderl_jax.simulator.hardware
        vocab_size=64,
        profile="game",  # what episodes are like; see tiderl_jax.simulator.profiles
        delay_scale=1.0,  # multiplies the environment's delays
        delay_tail=1.0,  # multiplies the sigma of their logarithm
        turns_scale=1.0,  # multiplies the turns
        faults=section(
            probe=0.0,
            crash=0.0,
            hang=0.0,
            late=0.0,
            engine=0.0,
            duplicate=0.0,
            rank_loss_per_hour=0.0,
            slow_weights=0.0,
            lost_acknowledgement=0.0,
        ),
    )
    return config
