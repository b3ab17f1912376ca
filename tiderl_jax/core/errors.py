"""What can go wrong, attributed to one boundary each. Every message is one sentence to act on."""


class TiderlError(Exception):
    """Base of all errors that this package raises on purpose."""


class ConfigError(TiderlError):
    """The user asked for something impossible; raised before JAX starts (exit code 2)."""


class InvariantError(TiderlError):
    """A rule that no policy may break was broken; always a defect of this package."""


class EnvironmentFault(TiderlError):
    """An environment crashed, hung or answered garbage; its rollout never trains."""


class EngineFault(TiderlError):
    """The decoder could not do what it was asked for; its rollout never trains."""


class LearnerFault(TiderlError):
    """The update could not be made, for example because a gradient was not finite."""


class WeightsFault(TiderlError):
    """Weights do not match their manifest and are refused."""


class StorageFault(TiderlError):
    """A checkpoint or journal cannot be written, or does not verify."""
