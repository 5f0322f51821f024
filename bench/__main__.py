"""Run the benchmarks and write their records.

python -m bench [NAME...], all if none is named; `peers --quick` writes nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench import (
    approximation,
    bayesify,
    bayestune,
    paths,
    peers,
    ramp,
    reliability,
    samples,
    ssvi,
    zoo,
)
from bench.cost import classes, growth, limit, lora, startup, tokens, warm
from bench.serving import compared

BENCHES = {
    "limit": limit.run,
    "growth": growth.run,
    "classes": classes.run,
    "lora": lora.run,
    "startup": startup.run,
    "tokens": tokens.run,
    "warm": warm.run,
    "approximation": approximation.run,
    "bayesify": bayesify.run,
    "bayestune": bayestune.run,
    "ramp": ramp.run,
    "peers": peers.run,
    "reliability": reliability.run,
    "paths": paths.run,
    "samples": samples.run,
    "serve": compared.run,
    "ssvi": ssvi.run,
    "zoo": zoo.run,
}
RECORDS = Path(__file__).parent / "records"


def main() -> None:
    """Run the named benchmarks, all if none is named."""
    names = [each for each in sys.argv[1:] if each != "--quick"]
    if "--quick" in sys.argv:
        if names != ["peers"]:
            raise SystemExit("--quick goes with peers only: python -m bench peers --quick.")
        print(peers.run(quick=True).to_json())
        return
    for name in names or BENCHES:
        if name not in BENCHES:
            raise SystemExit(f"bench must be one of {', '.join(BENCHES)}, got {name!r}.")
        record = BENCHES[name]()
        path = record.save(RECORDS / f"{name}.json")
        for key, value in record.results.items():
            print(f"{name}: {key} = {value}")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
