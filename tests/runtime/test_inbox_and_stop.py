import io
import os
import signal
import threading

import pytest
from rich.console import Console

from tiderl_jax.core.events import ProbeMeasured, StopRequested, TimerFired
from tiderl_jax.core.ids import GroupId, Purpose
from tiderl_jax.runtime.inbox import Inbox
from tiderl_jax.runtime.progress import ProgressDisplay
from tiderl_jax.runtime.stop import StopFlag
from tiderl_jax.runtime.threads import supervised

EVENT = ProbeMeasured(GroupId(Purpose.TRAIN, 0), 4)


def test_events_come_in_the_order_of_arrival() -> None:
    inbox = Inbox()
    inbox.post(EVENT)
    inbox.post(StopRequested())
    assert [inbox.next()[0], inbox.next()[0]] == [EVENT, StopRequested()]


def test_a_report_is_run_by_the_thread_that_takes_it() -> None:
    inbox, threads = Inbox(), []

    def report() -> ProbeMeasured:
        threads.append(threading.current_thread())
        return EVENT

    worker = threading.Thread(target=inbox.deliver, args=(report,))
    worker.start()
    worker.join()
    assert inbox.next()[0] == EVENT
    assert threads == [threading.current_thread()]


def test_a_report_without_an_event_is_passed_over() -> None:
    inbox = Inbox()
    inbox.deliver(lambda: None)
    inbox.post(EVENT)
    assert inbox.next()[0] == EVENT


def test_a_timer_fires_at_its_time_and_events_go_first() -> None:
    inbox = Inbox(start_ns=1000)
    inbox.set_timer(0)  # long past
    inbox.post(EVENT)
    first, second = inbox.next(), inbox.next()
    assert first[0] == EVENT
    assert second[0] == TimerFired(0)
    assert 1000 <= first[1] <= second[1]


def test_a_dead_worker_ends_the_run_with_its_own_error() -> None:
    """H7 of the users' cases: whatever thread it was, nothing hangs and the cause is named."""
    inbox = Inbox()

    def work() -> None:
        raise ValueError("broken on purpose")

    supervised("decoder 3", work, inbox).join()
    with pytest.raises(ValueError, match="broken on purpose") as caught:
        inbox.next()
    assert caught.value.__notes__ == ["in the thread 'decoder 3'"]


def test_the_first_signal_asks_and_the_second_one_would_kill() -> None:
    stop, heard = StopFlag(), []
    stop.then(lambda: heard.append("asked"))
    before = signal.getsignal(signal.SIGTERM)
    with stop.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
        assert heard == ["asked"]
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) == before


def test_who_comes_after_the_request_is_told_at_once() -> None:
    stop, heard = StopFlag(), []
    stop.request()
    stop.then(lambda: heard.append("asked"))
    assert heard == ["asked"]


def test_a_person_sees_step_reward_goodput_waiting_and_evaluations() -> None:
    text = io.StringIO()
    with ProgressDisplay(Console(file=text, width=80)) as display:
        display.phase("training", 10)
        display.row(
            {
                "train/step": 3,
                "rollout/reward_mean": 0.25,
                "perf/goodput_tokens_per_s": 120.5,
                "timing_s/step": 2.0,
                "idle/rollout_share": 0.1,
                "idle/trainer_share": None,
                "staleness/lag_mean": 1.0,
                "kv/hit_rate": 0.5,
            }
        )
        display.row({"train/step": 3, "eval/sampled_success": 0.5, "eval/sampled_episodes": 8})
    lines = text.getvalue().splitlines()
    assert any("step    3  reward 0.250  goodput  120.5 tok/s" in line for line in lines)
    assert any("rollout  10% trainer -" in line for line in lines)
    assert any("success 50.0% of 8 tasks" in line for line in lines)
