# SPDX-License-Identifier: Apache-2.0
"""Options of a group: values, copies, the environment, and rejected values.

A bound is the ``max_lag`` of a group: how many exchanges a rank may run ahead of the slowest peer. A slot is the
receive buffer of one block.
"""

from __future__ import annotations

import copy
import pathlib
import time
from datetime import timedelta

import headway
import numpy as np
import pytest
import torch
import torch.distributed as dist
from headway.comm.options import complete_options
from listening import listening_addresses
from rank_processes import run_ranks


def test_options_have_the_documented_defaults() -> None:
    options = headway.Options()
    assert (options.max_lag, options.max_lag_limit, options.num_channels, options.transport) == (0, -1, 1, "auto")
    assert (options.rdma_rails, options.rdma_cache_bytes) == (1, 4 << 30)
    assert options.timeout is None and not options.has_secret
    assert isinstance(options, torch._C._distributed_c10d.Backend.Options)


def test_a_deep_copy_is_equal_and_independent() -> None:
    options = headway.Options(max_lag=2, max_lag_limit=3, slot_bytes=512, num_channels=4, timeout=timedelta(seconds=9))
    twin = copy.deepcopy(options)
    twin.transport = "tcp"
    assert options.transport == "auto"
    assert (twin.max_lag, twin.max_lag_limit, twin.slot_bytes, twin.num_channels) == (2, 3, 512, 4)
    assert twin.timeout == timedelta(seconds=9)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_lag": -1}, "max_lag must be at least 0, not -1"),
        ({"max_lag": 3, "max_lag_limit": 2}, "max_lag_limit must be -1"),
        ({"max_lag": "many"}, "max_lag must be a number or 'auto', not 'many'"),
        ({"slot_bytes": 0}, "slot_bytes must be above 0"),
        ({"num_channels": 65}, "num_channels must be 1 to 64"),
        ({"rdma_rails": 0}, "rdma_rails must be 1 to 8, not 0"),
        ({"rdma_rails": 9}, "rdma_rails must be 1 to 8, not 9"),
        ({"cuda_slot_bytes": 65535}, "cuda_slot_bytes must be at least 65536, not 65535"),
        ({"rdma_cache_bytes": -1}, "rdma_cache_bytes must be at least 0, not -1"),
        ({"transport": "rdma"}, "transport must be auto, shm, tcp or verbs, not 'rdma'"),
        ({"timeout": timedelta(0)}, "timeout must be above 0"),
    ],
)
def test_values_that_mean_nothing_are_refused_in_one_line(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        headway.Options(**wrong)
    assert "\n" not in str(caught.value)


def test_settings_of_rdma_are_kept() -> None:
    options = copy.deepcopy(headway.Options(rdma_device="rxe0", rdma_rails=8, rdma_cache_bytes=0))
    assert (options.rdma_device, options.rdma_rails, options.rdma_cache_bytes) == ("rxe0", 8, 0)


def test_ranks_may_be_kept_from_reading_each_others_memory() -> None:
    assert headway.Options().allow_get
    assert not copy.deepcopy(headway.Options(allow_get=False)).allow_get


def test_former_names_of_options_work_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="engine is deprecated.*use transport"):
        options = headway.Options(engine="shm")
    assert options.transport == "shm"
    with pytest.warns(DeprecationWarning, match="engine is deprecated.*use transport"):
        options.engine = "tcp"
    with pytest.warns(DeprecationWarning, match="engine is deprecated.*use transport"):
        assert options.engine == "tcp"
    with pytest.warns(DeprecationWarning, match="allow_pull is deprecated.*use allow_get"):
        options = headway.Options(allow_pull=False)
    with pytest.warns(DeprecationWarning, match="allow_pull is deprecated.*use allow_get"):
        assert not options.allow_pull


def complete(given: headway.Options | None, **environ: str) -> headway.Options:
    return complete_options(given, timeout=timedelta(seconds=7), group_name="g", global_ranks=[], environ=environ)


def test_the_former_name_of_the_transport_variable_works_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="HEADWAY_ENGINE is deprecated.*use HEADWAY_TRANSPORT"):
        options = complete(None, HEADWAY_ENGINE="tcp")
    assert options.transport == "tcp"


def test_the_environment_fills_what_the_caller_left_open() -> None:
    options = complete(
        None,
        HEADWAY_TRANSPORT="tcp",
        HEADWAY_RDMA_DEVICE="mlx5_0:1",
        HEADWAY_SLOT_BYTES="4096",
        HEADWAY_INTERFACE="eth1",
        HEADWAY_GROUP_SECRET="eight letters or more",
    )
    assert (options.transport, options.rdma_device, options.slot_bytes) == ("tcp", "mlx5_0:1", 4096)
    assert options.interface == "eth1"
    assert options.has_secret
    assert options._timeout == timedelta(seconds=7)
    given = headway.Options(
        transport="shm",
        rdma_device="rxe0",
        slot_bytes=64,
        timeout=timedelta(seconds=3),
        secret="mine and long enough",
        interface="10.0.0.1",
    )
    options = complete(
        given,
        HEADWAY_TRANSPORT="tcp",
        HEADWAY_RDMA_DEVICE="mlx5_0:1",
        HEADWAY_SLOT_BYTES="4096",
        HEADWAY_INTERFACE="eth1",
    )
    assert options.interface == "10.0.0.1"
    assert (options.transport, options.rdma_device, options.slot_bytes) == ("shm", "rxe0", 64)
    assert options._timeout == timedelta(seconds=3)


def test_short_secrets_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="secret must have at least 8 bytes, not 7"):
        headway.Options(secret="7 bytes")
    assert headway.Options(secret="8 bytes.").has_secret
    with pytest.raises(ValueError, match="HEADWAY_GROUP_SECRET: secret must have at least 8 bytes, not 1;"):
        complete(None, HEADWAY_GROUP_SECRET="s")
    (tmp_path / "secret").write_text("short\n")
    with pytest.raises(ValueError, match="HEADWAY_GROUP_SECRET_FILE: secret must have at least 8 bytes, not 5"):
        complete(None, HEADWAY_GROUP_SECRET_FILE=str(tmp_path / "secret"))


def test_wrong_variables_are_refused() -> None:
    with pytest.raises(ValueError, match="transport must be"):
        complete(None, HEADWAY_TRANSPORT="ib")
    with pytest.raises(ValueError, match="HEADWAY_SLOT_BYTES must be a number"):
        complete(None, HEADWAY_SLOT_BYTES="many")
    with pytest.raises(ValueError, match="not both"):
        complete(None, HEADWAY_GROUP_SECRET="a", HEADWAY_GROUP_SECRET_FILE="/nowhere")
    with pytest.raises(ValueError, match="HEADWAY_GROUP_SECRET_FILE"):
        complete(None, HEADWAY_GROUP_SECRET_FILE="/nowhere")
    with pytest.raises(TypeError, match=r"must be headway\.Options, not dict"):
        complete_options({}, timeout=timedelta(1), group_name="", global_ranks=[])  # type: ignore[arg-type]


def change_the_bound(rank: int) -> None:
    group = dist.new_group(backend="headway", pg_options=headway.Options(max_lag=1, max_lag_limit=3))
    headway.set_max_lag(3, group=group)
    assert headway.backend_of(group).max_lag() == 3
    with pytest.raises(ValueError):
        headway.set_max_lag(4, group=group)
    with pytest.raises(ValueError, match="not a headway group"):
        headway.set_max_lag(0, group=dist.new_group(backend="gloo"))
    dist.barrier()


def test_the_bound_may_change_up_to_its_limit() -> None:
    run_ranks(change_the_bound, 2)


def follow_the_group(rank: int) -> tuple[list[int], list[float]]:
    """Exchanges while each rank is late at random, then stops following.

    Returns:
        the queue's bound after each exchange, and the mean of each result.
    """
    group = dist.new_group(backend="headway", pg_options=headway.Options(max_lag="auto", max_lag_limit=3))
    random = np.random.default_rng(rank)
    queue: headway.LagQueue[torch.Tensor] = headway.LagQueue(group)
    bounds: list[int] = []
    results: list[torch.Tensor] = []
    for step in range(96):
        time.sleep(random.uniform(0.0, 0.004))
        received = torch.empty(2)
        work = dist.all_to_all_single(received, torch.full((2,), float(step)), group=group, async_op=True)
        results += queue.push(work, received)
        assert len(queue) <= queue.max_lag
        bounds.append(queue.max_lag)
    results += queue.drain()
    assert headway.backend_of(group).options.max_lag == "auto"
    queue.max_lag = 0  # Setting a bound stops the queue from following the group.
    queue.push(dist.all_to_all_single(torch.empty(2), torch.zeros(2), group=group, async_op=True), torch.empty(0))
    assert queue.max_lag == 0
    return bounds, [tensor.mean().item() for tensor in results]


def test_a_queue_follows_a_group_whose_bound_adapts() -> None:
    for bounds, results in run_ranks(follow_the_group, 2):
        assert bounds[0] == 3, "the limit, until something is known"
        assert 0 < bounds[-1] <= 3
        assert results == [float(step) for step in range(96)]


def refuse_to_follow(rank: int) -> None:
    with pytest.raises(ValueError, match=r"needs a group made with headway\.Options\(max_lag='auto'\)"):
        headway.LagQueue(dist.new_group(backend="headway"), max_lag="auto")
    with pytest.raises(ValueError, match="needs a group made with"):
        headway.LagQueue(max_lag="auto")


def test_only_a_group_that_measures_can_be_followed() -> None:
    run_ranks(refuse_to_follow, 1)


def test_the_limit_of_a_bound_that_adapts() -> None:
    assert headway.Options(max_lag="auto").max_lag_limit == 8
    assert headway.Options(max_lag="auto", max_lag_limit=2).max_lag_limit == 2
    assert "max_lag='auto'" in repr(headway.Options(max_lag="auto"))


def connect_with_different_slots(rank: int) -> str:
    try:
        options = headway.Options(slot_bytes=1024 * (rank + 1), connect_timeout=timedelta(seconds=10))
        dist.new_group(backend="headway", pg_options=options)
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


def test_ranks_with_different_options_are_told_what_differs() -> None:
    messages = run_ranks(connect_with_different_slots, 2)
    assert any("slot_bytes" in message for message in messages), messages
    assert "no error" not in messages


def connect_with_different_access(rank: int) -> str:
    try:
        options = headway.Options(allow_get=rank == 0, connect_timeout=timedelta(seconds=10))
        dist.new_group(backend="headway", pg_options=options)
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


def test_ranks_agree_on_whether_memory_may_be_read() -> None:
    messages = run_ranks(connect_with_different_access, 2)
    assert any("allow_get is " in message for message in messages), messages
    assert "no error" not in messages


def connect_with_different_secrets(rank: int) -> str:
    try:
        options = headway.Options(secret=f"a zebra with {rank} stripes", connect_timeout=timedelta(seconds=5))
        dist.new_group(backend="headway", pg_options=options)
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


def test_a_rank_with_another_secret_is_refused() -> None:
    messages = run_ranks(connect_with_different_secrets, 2)
    assert "no error" not in messages
    assert any("secret" in message for message in messages), messages
    assert not any("zebra" in message for message in messages), "secrets are never shown"


def reduce_over(rank: int, interface: str, transport: str) -> set[str]:
    before = listening_addresses()
    options = headway.Options(interface=interface, transport=transport, connect_timeout=timedelta(seconds=20))
    group = dist.new_group(backend="headway", pg_options=options)
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    assert total.item() == 2
    dist.all_to_all_single(torch.empty(2), torch.ones(2), group=group)
    listening = listening_addresses() - before
    dist.barrier(group)
    return listening


def test_an_interface_serves_exchanges_and_reductions() -> None:
    assert run_ranks(reduce_over, 2, "lo", "tcp") == [{"127.0.0.1"}] * 2
    assert run_ranks(reduce_over, 2, "127.0.0.1", "tcp") == [{"127.0.0.1"}] * 2


def test_reductions_within_a_host_are_not_reachable_from_others() -> None:
    assert run_ranks(reduce_over, 2, "", "auto") == [{"127.0.0.1"}] * 2


def give_a_wrong_interface(rank: int) -> str:
    options = headway.Options(interface="eth77", transport="tcp", connect_timeout=timedelta(seconds=20))
    with pytest.raises(ValueError) as caught:
        dist.new_group(backend="headway", pg_options=options)
    return str(caught.value)


def test_an_interface_that_is_not_there_is_named_beside_those_that_are() -> None:
    (message,) = set(run_ranks(give_a_wrong_interface, 2))
    assert "interface is 'eth77', which is no interface of this host" in message
    assert "lo (127.0.0.1)" in message
