"""Headway: a ``torch.distributed`` backend with bounded-lag all-to-all exchanges.

Importing this module registers the backend::

    import torch.distributed as dist, headway

    dist.init_process_group("headway")                       # torchrun, mpirun, srun or spawn
    lagging = dist.new_group(backend="headway", pg_options=headway.Options(max_lag=2))
"""

from headway._environment import check_environment

check_environment()

from headway import _exit, slots  # noqa: E402 - check_environment() must report a bad variable first
from headway._extension import HeadwayBackend, Options  # noqa: E402
from headway.backend import register  # noqa: E402
from headway.collectives import all_to_all_single  # noqa: E402
from headway.flight_recorder import dump_flight_records, flight_records  # noqa: E402
from headway.groups import backend_of, set_max_lag  # noqa: E402
from headway.lag_queue import LagQueue  # noqa: E402
from headway.launchers import adopt_launcher_environment  # noqa: E402
from headway.memory import empty, mem_pool  # noqa: E402
from headway.shrinking import ShrunkGroup, shrink  # noqa: E402
from headway.statistics import reset_stats, stats  # noqa: E402
from headway.torchrec_shim import install as _install_torchrec_shim  # noqa: E402
from headway.tracing import trace  # noqa: E402

__all__ = [
    "HeadwayBackend",
    "LagQueue",
    "Options",
    "ShrunkGroup",
    "adopt_launcher_environment",
    "all_to_all_single",
    "backend_of",
    "dump_flight_records",
    "empty",
    "flight_records",
    "mem_pool",
    "reset_stats",
    "set_max_lag",
    "shrink",
    "slots",
    "stats",
    "trace",
]

register()
_exit.register()
adopt_launcher_environment()
_install_torchrec_shim()
