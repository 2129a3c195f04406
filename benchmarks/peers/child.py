"""Measure one peer in this process, and print the figures as one line of JSON.

usage: python -m benchmarks.peers.child ADAPTER SECONDS
"""

import sys
from time import perf_counter

__all__ = ["main"]


def main(adapter_name: str, seconds: float) -> None:
    # Nothing else is imported before the peer: what both need is on the peer's bill, as in a user's program.
    start = perf_counter()
    adapter = __import__(adapter_name, fromlist=["Peer"])
    import_ms = (perf_counter() - start) * 1e3

    import asyncio
    import gc
    import json

    from benchmarks.peers.measure import measure_peer, resident_mb
    from benchmarks.peers.site_packages import measure_site_packages

    cells = {"import": {"value": import_ms}, "RSS": resident_mb(), **measure_site_packages()}
    gc.collect()
    gc.freeze()  # so that no peer pays for its imports again and again
    cells |= asyncio.run(measure_peer(adapter.Peer(), seconds))
    print(f"\n{json.dumps(cells)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
