"""Rebuilds `report.html` from the files of a run directory.

python -m experiments.report --workdir runs/x
"""

import argparse
import sys
from pathlib import Path

from tiderl_jax.core.errors import ConfigError
from tiderl_jax.report.html import write_report


def main() -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True, help="the run directory")
    try:
        print(f"Wrote {write_report(parser.parse_args().workdir)}")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
