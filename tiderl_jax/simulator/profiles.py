"""What episodes are like: turns, tokens and delays of the workloads that are simulated.

Sources: TideRL's set-up where it says one; TraceLab, NeMo-RL, BFCL and miles figures where they
are named. All else is `assumed`, with the range that a sensitivity sweep should cover in brackets
(of a median, unless it says otherwise); `simulation.delay_scale`, `delay_tail` and `turns_scale`
sweep delays and turns. What a limit of the experiment cuts, it cuts: `max_turns` ends an episode,
`max_tokens_per_turn` shortens a turn, `max_context_tokens` ends an episode.
"""

from dataclasses import dataclass, replace

from tiderl_jax.simulator.distributions import (
    Clipped,
    Counts,
    Delays,
    Geometric,
    LogNormal,
    Mixture,
    UniformInts,
)

_by = LogNormal.of_percentiles


@dataclass(frozen=True, slots=True)
class Workload:
    """Episodes of one kind. Every probability is of one opportunity."""

    name: str
    turns: Counts  # until the environment says that the episode is done
    prompt_tokens: Counts  # of the first prompt, which all members of a group share
    generated_tokens: Counts  # of a turn
    observation_tokens: Counts  # net growth of the context by the answer to a turn
    start_s: Delays  # until the environment is ready
    answer_s: Delays  # of the environment, to one turn
    success: float  # probability of reward 1
    never_ends: float = 0.0  # probability that only a limit ends the episode
    cut_turn: float = 0.0  # probability that a turn runs into its token limit


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of episodes, or several in equal shares, drawn per group."""

    workloads: tuple[Workload, ...]
    alternate_groups: int = 0  # so many groups are slow, then as many not, and so on; 0: none
    alternate_factor: float = 1.0  # by which answers of slow groups take longer


# The paper: 20 turns, 8192 tokens. No verified latencies of WebShop exist.
_WEBSHOP = Workload(
    "webshop",
    turns=Clipped(_by(8, 18), 2, 50),  # assumed [4, 15]
    prompt_tokens=UniformInts(500, 900),  # assumed [200, 1500]
    generated_tokens=Clipped(_by(120, 300), 16, 1024),  # assumed [50, 300]
    observation_tokens=Clipped(_by(220, 500), 30, 1200),  # assumed [100, 350]
    start_s=Delays(LogNormal(0.5, 0.7), 30),  # assumed [0.1, 5]
    answer_s=Delays(LogNormal(0.5, 1.0), 30),  # assumed [0.05, 3], sigma [0.5, 2]
    success=0.5,  # assumed [0.2, 0.8]
)

# The paper: 20 turns, 8192 tokens.
_ALFWORLD = Workload(
    "alfworld",
    turns=Clipped(_by(12, 26), 3, 50),  # assumed [8, 20]; 50 is the usual limit
    prompt_tokens=UniformInts(300, 700),  # assumed [200, 1500]
    generated_tokens=Clipped(_by(90, 220), 16, 1024),  # assumed [40, 250]
    observation_tokens=Clipped(_by(110, 220), 20, 600),  # assumed [50, 250]
    start_s=Delays(LogNormal(1.0, 0.7), 30),  # assumed [0.2, 10]
    answer_s=Delays(LogNormal(0.2, 1.0), 20),  # assumed [0.02, 1], sigma [0.5, 2]
    success=0.6,  # assumed [0.3, 0.9]
)

# The paper: 50 turns, the last five screenshots of 1280 x 720 are kept. One is about 900 tokens
# (32 x 32 pixels each, as Qwen3-VL merges them), so the window stands in the prompt and an answer
# grows the context by text alone. That a window which moves also breaks the KV behind it, is left
# out: KV hit rates of these two are upper bounds.
_OSWORLD = Workload(
    "osworld",
    turns=Clipped(_by(18, 45), 3, 100),  # assumed [10, 30]
    prompt_tokens=UniformInts(5200, 6200),  # assumed: 5 x 900 and [500, 2000] of text
    generated_tokens=Clipped(_by(150, 350), 20, 1024),  # assumed [60, 400]
    observation_tokens=UniformInts(15, 60),  # assumed [10, 200]
    start_s=Delays(LogNormal(20, 0.6), 180),  # assumed [5, 60]: a machine put back to a snapshot
    answer_s=Delays(LogNormal(2.5, 0.6), 60),  # assumed [1, 6]: OSWorld waits 2 s by default
    success=0.3,  # assumed [0.1, 0.6]
)

_SCIENCEBOARD = replace(
    _OSWORLD,
    name="scienceboard",
    turns=Clipped(_by(20, 50), 3, 100),  # assumed [10, 35]
    start_s=Delays(LogNormal(30, 0.6), 240),  # assumed [10, 90]: larger programs
    answer_s=Delays(LogNormal(4.0, 0.8), 120),  # assumed [1.5, 10]
    success=0.2,  # assumed [0.05, 0.5]
)

# Peers' game settings: 5 to 10 turns, 64 to 512 tokens, 1 to 50 ms.
_GAME = Workload(
    "game",
    turns=UniformInts(5, 10),
    prompt_tokens=UniformInts(150, 400),  # assumed [50, 1000]
    generated_tokens=UniformInts(64, 512),
    observation_tokens=UniformInts(30, 120),  # assumed [10, 300]
    start_s=Delays(LogNormal(0.01, 1.0), 0.5),  # assumed [0.001, 0.5]
    answer_s=Delays(LogNormal(0.007, 0.98), 0.05),  # 1 to 50 ms: two sigma each way
    success=0.5,  # assumed [0.2, 0.8]
)

# BFCL v4 multi-turn: 5.7 calls per episode, p90 8, at most 10. TraceLab: median of a call 0.3 s.
_TOOLCALL = Workload(
    "toolcall",
    turns=Clipped(_by(5.6, 8), 1, 10),
    prompt_tokens=UniformInts(1000, 3000),  # assumed [500, 6000]: function descriptions
    generated_tokens=Clipped(_by(60, 160), 8, 1024),  # assumed [30, 300]
    observation_tokens=Clipped(_by(80, 300), 5, 2000),  # assumed [30, 500]
    start_s=Delays(LogNormal(0.1, 1.0), 10),  # assumed [0.01, 2]
    answer_s=Delays(LogNormal(0.3, 1.0), 60),  # sigma assumed [0.5, 3]
    success=0.5,  # assumed [0.2, 0.8]
)

# NeMo-RL replay of 610 coding sessions: turns p50 29, p90 56, at least 5, at most 99.
# TraceLab: tool calls p50 0.3 s, p90 13.6 s, 4 % above a minute; output p50 214, p90 under 1.7k;
# appended p50 875.
_SWE = Workload(
    "swe",
    turns=Clipped(_by(29, 56), 5, 99),
    prompt_tokens=UniformInts(2000, 6000),  # assumed [1000, 12000]
    generated_tokens=Clipped(_by(214, 1700), 8, 8192),
    observation_tokens=Clipped(LogNormal(875, 1.0), 10, 10_000),  # sigma assumed [0.5, 1.5]
    start_s=Delays(LogNormal(5, 1.0), 120),  # assumed [0.5, 60]: cold starts differ up to 110x
    answer_s=Delays(_by(0.3, 13.6), 600),  # the cap is assumed [60, 3600]
    success=0.4,  # assumed [0.1, 0.7]
)

# miles on terminal-bench-2: 5.9 minutes mean. TraceLab: 4 % of calls last over a minute and hold
# about 85 % of the time; tool calls as two log-normals, which meet its p50 and p99.
_TERMINAL = Workload(
    "terminal",
    turns=Clipped(_by(16, 36), 2, 150),  # assumed [8, 30]
    prompt_tokens=UniformInts(800, 2000),  # assumed [500, 5000]
    generated_tokens=Clipped(_by(214, 1200), 8, 8192),  # TraceLab; p90 assumed [600, 1700]
    observation_tokens=Clipped(LogNormal(400, 1.2), 5, 10_000),  # assumed [100, 900]
    start_s=Delays(LogNormal(5, 1.0), 120),  # assumed [0.5, 60]
    answer_s=Delays(Mixture(LogNormal(0.2, 1.6), LogNormal(60, 1.2), 0.08), 600),
    success=0.4,  # assumed [0.1, 0.7]
    never_ends=0.02,
)

# Peers' visual games: 5 to 10 turns, an image of 256 tokens each.
_VLM = Workload(
    "vlm",
    turns=UniformInts(5, 10),
    prompt_tokens=UniformInts(400, 700),  # 256 and assumed text [100, 800]
    generated_tokens=UniformInts(64, 512),  # as the text games
    observation_tokens=UniformInts(276, 316),  # 256 and assumed text [10, 100]
    start_s=Delays(LogNormal(0.2, 1.0), 10),  # assumed [0.01, 5]
    answer_s=Delays(LogNormal(0.05, 1.0), 2),  # assumed [0.01, 0.5]: rendering
    success=0.5,  # assumed [0.2, 0.8]
)

# configs/quickstart.py: its latency, limits and tokenizer (every observation is 9 tokens, every
# action 2). Turns and success are those of its scripted novice with 15 % random moves.
_GRIDWORLD = Workload(
    "gridworld",
    turns=Clipped(_by(3.6, 6.6), 1, 10),
    prompt_tokens=UniformInts(9, 9),
    generated_tokens=UniformInts(2, 2),
    observation_tokens=UniformInts(9, 9),
    start_s=Delays(LogNormal(0.02, 1.2), 2),
    answer_s=Delays(LogNormal(0.02, 1.2), 2),
    success=0.6,
)

# For selection bias: tasks that differ in how long they take, in turns and in answers.
_FAST = replace(
    _WEBSHOP,
    name="fast",
    turns=Geometric(4),  # assumed [2, 8]
    answer_s=Delays(LogNormal(0.2, 0.8), 10),  # assumed [0.05, 1]
)
_SLOW = replace(
    _WEBSHOP,
    name="slow",
    turns=Geometric(12),  # assumed [8, 20]
    answer_s=Delays(LogNormal(6.0, 0.8), 120),  # assumed [2, 20]
)

PROFILES = {
    **{
        workload.name: Profile((workload,))
        for workload in (
            _WEBSHOP,
            _ALFWORLD,
            _OSWORLD,
            _SCIENCEBOARD,
            _GAME,
            _TOOLCALL,
            _SWE,
            _TERMINAL,
            _VLM,
            _GRIDWORLD,
        )
    },
    "mixed": Profile((_FAST, _SLOW)),
    # Slow and fast phases of ten steps of 32 groups; the factor is assumed [3, 30].
    "alternating": Profile((_WEBSHOP,), alternate_groups=320, alternate_factor=10.0),
}
"""By the name that `simulation.profile` gives."""
