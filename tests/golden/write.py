"""Write golden numbers anew: `python -m tests.golden.write [GROUP ...]`.

Run it only when a number is meant to change, and say so in the changelog. With names of
groups only theirs are written. `--fixtures` writes the saved files anew as well; those
stand for what people have on their disks, so that should never be needed.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import warnings

import torch

from tests.golden import pinning
from tests.golden.cases import CASES, FIXTURES, write_fixtures


def numbers_of(name):
    """The numbers of a case as a file would have them."""
    return json.loads(
        json.dumps({n: pinning.pinned(v) for n, v in CASES[name].run().items()})
    )


def main(arguments):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if "--fixtures" in arguments:
        arguments.remove("--fixtures")
        shutil.rmtree(FIXTURES, ignore_errors=True)
        FIXTURES.mkdir()
        write_fixtures(FIXTURES)
    known = {each.group for each in CASES.values()}
    for group in arguments or sorted(known):
        started = time.perf_counter()
        names = [name for name, each in CASES.items() if each.group == group]
        if not names:
            sys.exit(f"no group {group!r}: there are {', '.join(sorted(known))}")
        pinning.write(group, {name: numbers_of(name) for name in names})
        print(f"{group}: {len(names)} cases, {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
