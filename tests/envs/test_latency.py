import math

import numpy as np

from tiderl_jax.core.config import LatencyConfig
from tiderl_jax.envs.latency import delay_s


def test_a_delay_depends_on_seed_and_identity_alone():
    config = LatencyConfig(median_s=0.02, sigma=1.0, cap_s=2.0)
    assert delay_s(config, 0, 1, 2, 3) == delay_s(config, 0, 1, 2, 3)
    delays = {
        delay_s(config, seed, group, turn)
        for seed in range(3)
        for group in range(3)
        for turn in range(3)
    }
    assert len(delays) == 27


def test_delays_are_log_normal_around_their_median():
    config = LatencyConfig(median_s=0.02, sigma=0.7, cap_s=1e9)
    logs = np.log([delay_s(config, 0, index) for index in range(4000)])
    # Standard errors are 0.014 (median of a normal) and 0.008 (its deviation): four of each.
    assert abs(np.median(logs) - math.log(0.02)) < 0.056
    assert abs(logs.std() - 0.7) < 0.032


def test_no_delay_is_above_the_cap_and_a_heavy_tail_reaches_it():
    config = LatencyConfig(median_s=0.02, sigma=2.0, cap_s=0.1)
    delays = [delay_s(config, 0, index) for index in range(200)]
    assert max(delays) == 0.1
    assert min(delays) > 0


def test_sigma_zero_is_a_constant_delay():
    config = LatencyConfig(median_s=0.02, sigma=0.0, cap_s=2.0)
    assert {delay_s(config, 0, index) for index in range(10)} == {0.02}
