"""One run from start to end: build, warm up, warm start, loop, report. The same call resumes."""

from pathlib import Path

from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.resolve import derived_numbers
from tiderl_jax.envs.protocol import World
from tiderl_jax.runtime.assembly import Parts, build
from tiderl_jax.runtime.compiles import CompileCounter
from tiderl_jax.runtime.progress import ProgressDisplay
from tiderl_jax.runtime.reinforcement import Reinforcement
from tiderl_jax.runtime.run_folder import RunFolder
from tiderl_jax.runtime.stop import StopFlag
from tiderl_jax.runtime.warm_start import imitate


def train(config: ExperimentConfig, world: World, workdir: Path) -> bool:
    """Runs or resumes an experiment; True when its last step and evaluation are done.

    Raises:
      TiderlError: the run cannot start or cannot go on; what was committed stays.
    """
    stop = StopFlag()
    with RunFolder(workdir, config) as folder, ProgressDisplay() as display, stop.listening():
        manifest = folder.commits.newest()
        if manifest is not None and manifest.complete:
            display.say(f"This run is complete: see {folder.path / 'report.html'}.")
            return True
        for name, value in derived_numbers(config):
            display.say(f"{name:<42}{value}")
        compiles = CompileCounter()
        parts = build(config, world)
        with display.timed("the learner's programs are compiled"):
            parts.learner.warm_up()
        if manifest is None:
            if not _warm_start(config, parts, display, stop):
                return False
        else:
            display.say(f"resuming after step {manifest.step}")
            state = folder.commits.load_arrays(manifest, parts.learner.state)
            parts.learner.restore(state)
        run = Reinforcement(config, parts, folder, display, compiles, manifest)
        return run.to_end(stop)


def _warm_start(
    config: ExperimentConfig, parts: Parts, display: ProgressDisplay, stop: StopFlag
) -> bool:
    """Supervised imitation; False if a stop was requested meanwhile."""
    settings = config.warm_start
    if settings.updates:
        display.phase("warm start", settings.updates)
        with display.timed(f"warm start: {settings.updates} updates by imitation"):
            for loss in imitate(parts.learner, parts.world, parts.renderer, settings, stop):
                display.advance(f"loss {loss:.3f}")
    parts.learner.end_warm_start()
    return not stop.requested
