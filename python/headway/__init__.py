# SPDX-License-Identifier: Apache-2.0
"""Headway: a ``torch.distributed`` backend with bounded-lag all-to-all exchanges.

With ``max_lag=k`` a rank may run up to k exchanges ahead of the slowest peer. ``headway.slots`` exchanges CUDA tensors
without copies inside a device.
Importing this module registers the backend and does nothing else::

    import torch.distributed as dist, headway

    dist.init_process_group("headway")                       # torchrun or spawn; headway.init() under mpirun and srun
    lagging = dist.new_group(backend="headway", pg_options=headway.Options(max_lag=2))
"""

from headway import slots
from headway.comm._extension import HeadwayBackend, Options
from headway.comm.backend import register
from headway.comm.collectives import all_to_all_single
from headway.comm.flight_recorder import dump_flight_records, flight_records
from headway.comm.groups import backend_of, set_max_lag
from headway.comm.initialization import init
from headway.comm.lag_queue import LagQueue
from headway.comm.launchers import adopt_launcher_environment
from headway.comm.memory import empty, mem_pool
from headway.comm.shrinking import ShrunkGroup, shrink
from headway.comm.statistics import reset_stats, stats
from headway.comm.tracing import trace

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
    "init",
    "mem_pool",
    "reset_stats",
    "set_max_lag",
    "shrink",
    "slots",
    "stats",
    "trace",
]

register()
