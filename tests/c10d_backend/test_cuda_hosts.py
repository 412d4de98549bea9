# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors between hosts. The ranks run on this host and pretend to be on several.

``hosts`` has a letter for each rank; ranks with the same letter are on one host. A far peer is on another host.
"""

from __future__ import annotations

import time
from datetime import timedelta

import headway
import pytest
import torch
import torch.distributed as dist
from cuda_ranks import NEEDS_GPU, run_on_gpus, take_device
from rank_processes import DIED
from test_cuda import (
    MIB,
    exchange,
    exchange_all,
    exchange_unlike_sizes,
    move_otherwise,
    run_ahead,
    send_around,
    use_streams,
)
from test_cuda_failure import lose_a_peer, wait_in_vain

pytestmark = NEEDS_GPU


@pytest.mark.parametrize("hosts", ["ab", "aab", "abc"])
def test_blocks_arrive_whole_from_hosts_near_and_far(hosts: str) -> None:
    size = len(hosts)
    some = (3, 70_000, 2_000_000, 0)
    mixed = [[some[(source + 2 * destination) % 4] for destination in range(size)] for source in range(size)]
    even = [[MIB] * size for _ in range(size)]
    cases = [(even, torch.int64), (mixed, torch.float32), (mixed, torch.uint8), (even, torch.bfloat16)] * 4
    run_on_gpus(exchange_all, size, cases, 16 * MIB, hosts=hosts)


def exchange_over_shm(rank: int) -> None:
    device = take_device(rank)
    group = dist.new_group(backend="headway", pg_options=headway.Options(transport="shm"))
    for number, lengths in enumerate([[[MIB] * 2] * 2, [[3, 70_000], [0, 2_000_000]]] * 3):
        output, expected, _ = exchange(rank, lengths, device, torch.int32, number, group=group)
        torch.testing.assert_close(output.cpu(), expected, rtol=0, atol=0, msg=f"exchange {number}")


def test_messages_may_go_through_shared_memory_all_the_same() -> None:
    run_on_gpus(exchange_over_shm, 2, hosts="ab")


def test_results_are_those_of_one_host_under_any_bound() -> None:
    expected = run_on_gpus(run_ahead, 2, 0, 12)
    for max_lag in (0, 3):
        assert run_on_gpus(run_ahead, 2, max_lag, 12, hosts="ab") == expected


@pytest.mark.parametrize("max_lag", [0, 2])
def test_several_far_peers_share_a_stream_under_any_bound(max_lag: int) -> None:
    run_on_gpus(exchange_unlike_sizes, 3, max_lag, 20, hosts="abc")


@pytest.mark.parametrize("hosts", ["aba", "abc"])
def test_all_movements_go_between_hosts(hosts: str) -> None:
    run_on_gpus(move_otherwise, 3, hosts=hosts)


def test_streams_and_first_messages_are_as_on_one_host() -> None:
    run_on_gpus(use_streams, 2, hosts="ab")
    assert run_on_gpus(send_around, 3, hosts="aab") == [[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]


def count_copies(rank: int) -> int:
    device = take_device(rank)
    output, source = torch.empty(2 * MIB, device=device), torch.ones(2 * MIB, device=device)
    dist.all_to_all_single(output, source)
    torch.cuda.synchronize()
    return int(headway.stats()["cuda"]["local_copy_bytes"])


def test_only_a_ranks_own_block_is_copied_inside_its_device() -> None:
    assert run_on_gpus(count_copies, 2, hosts="ab") == [4 * MIB, 4 * MIB]


@pytest.mark.parametrize("length", [1, 1_000_000])
def test_the_loss_of_a_far_peer_ends_every_wait(length: int) -> None:
    results = run_on_gpus(lose_a_peer, 3, length, may_die=True, hosts="aba")
    assert results[1] is DIED
    for text, seconds in (results[0], results[2]):
        assert "rank 1" in text and seconds < 5, (text, seconds)


def test_a_far_peer_that_does_not_come_is_named() -> None:
    text, seconds = run_on_gpus(wait_in_vain, 2, hosts="ab")[0]
    assert "timed out" in text and "rank 1" in text, text
    assert 2.5 < seconds < 6


def make_slots(rank: int) -> str:
    device = take_device(rank)
    group = dist.new_group(backend="headway", timeout=timedelta(seconds=20))
    try:
        headway.slots.Ring(capacity=1024, dtype=torch.uint8, device=device, group=group)
    except ValueError as error:
        text = str(error)
    output, source = torch.empty(3, device=device), torch.ones(3, device=device)
    dist.all_to_all_single(output, source, group=group)
    assert output.tolist() == [1, 1, 1], "the group goes on"
    return text


def test_slots_between_hosts_are_refused_on_all_ranks() -> None:
    for rank, text in enumerate(run_on_gpus(make_slots, 3, hosts="aba")):
        assert f"rank {1 if rank != 1 else 0} is on another host" in text, text


def disagree(rank: int, what: str) -> str:
    device = take_device(rank)
    tensor = torch.ones(2_000_000 if what == "tag" or rank == 0 else 1_500_000, device=device)
    try:
        for _ in range(2):
            dist.send(tensor, 1, tag=1) if rank == 0 else dist.recv(tensor, 0, tag=2 if what == "tag" else 1)
            torch.cuda.synchronize()
            time.sleep(1)
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("what", ["size", "tag"])
def test_ranks_that_disagree_across_hosts_get_no_data(what: str) -> None:
    for text in run_on_gpus(disagree, 2, what, hosts="ab"):
        assert "rank 0 sends 8000000 bytes" in text and "which expects" in text, text
