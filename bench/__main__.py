"""Run the benchmarks and write their records: python -m bench [limit] [approximation]."""

from __future__ import annotations

import sys
from pathlib import Path

from bench import approximation, limit

BENCHES = {"limit": limit.run, "approximation": approximation.run}
RECORDS = Path(__file__).parent / "records"


def main() -> None:
    """Run the named benchmarks, all if none is named."""
    for name in sys.argv[1:] or BENCHES:
        if name not in BENCHES:
            raise SystemExit(f"bench must be one of {', '.join(BENCHES)}, got {name!r}.")
        record = BENCHES[name]()
        path = record.save(RECORDS / f"{name}.json")
        for key, value in record.results.items():
            print(f"{name}: {key} = {value}")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
