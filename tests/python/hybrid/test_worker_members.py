# SPDX-License-Identifier: Apache-2.0
"""Embedding workers that come and go while a job trains. The DNS of these tests is in their process."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from headway import hybrid
from headway._hybrid import query_worker_status
from headway.config_files import ConfigError
from headway.embedding import LOCAL
from hybrid_cases import STEPS, Model, batch_of, collection, connect, loader_of, train
from parameter_servers import Addresses, embedding_workers, parameter_servers

from benchmarks.harness.served_dlrm import free_ports

PORT = free_ports(1)[0]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Addresses of DNS names. A test changes them."""
    found: dict[str, list[str]] = {"workers.test": []}
    plain = socket.getaddrinfo

    def resolve(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if host not in found:
            return plain(host, port, *arguments, **options)
        if not found[host]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port))) for address in found[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return found


@pytest.fixture
def servers() -> Iterator[Addresses]:
    with parameter_servers(2) as addresses:
        yield addresses


@contextlib.contextmanager
def worker_at(host: str, servers: list[str], *options: str) -> Iterator[subprocess.Popen[str]]:
    with embedding_workers(1, servers, "--address", f"{host}:{PORT}", *options) as workers:
        yield workers.processes[0]


def config_of(servers: list[str], mode: str = "sync", **workers: Any) -> hybrid.HybridConfig:
    of_workers = {"discover": f"workers.test:{PORT}", "refresh_s": 0.001, **workers}
    job = {"timeout_s": 30, "connect_timeout_s": 3}
    return hybrid.HybridConfig.of(
        {"mode": mode, "servers": {"addresses": servers}, "workers": of_workers, "job": job, "staleness": 2}
    )


def submit(loader: hybrid.Loader, step: int) -> hybrid.Batch:
    batch = batch_of(step, 0)
    return hybrid.Batch(loader.submit(batch.features), batch.dense, batch.labels)


def hosts_of(batches: list[hybrid.Batch]) -> list[str]:
    return [batch.features.worker.split(":")[0] for batch in batches]


def expected_losses(num_steps: int) -> list[float]:
    return train(collection(process_group=LOCAL), [batch_of(step, 0) for step in range(num_steps)])


def test_workers_come_and_leave_and_no_batch_is_lost(servers: list[str], names: dict[str, list[str]]) -> None:
    config = config_of(servers)
    with worker_at("127.0.0.2", servers) as first:
        names["workers.test"] = ["127.0.0.2"]
        tables, loader = connect(config), loader_of(config)
        source = [submit(loader, step) for step in range(3)]
        with worker_at("127.0.0.3", servers) as second:
            assert hosts_of(source) == ["127.0.0.2"] * 3
            names["workers.test"] = ["127.0.0.2", "127.0.0.3"]
            while "127.0.0.3" not in hosts_of(source):  # A busy host may take longer than one look.
                source.append(submit(loader, len(source)))
            source += [submit(loader, step) for step in range(len(source), len(source) + 2)]
            assert sorted(hosts_of(source[-2:])) == ["127.0.0.2", "127.0.0.3"]
            first.send_signal(signal.SIGTERM)  # It has batches, which it keeps.
            while "127.0.0.2" in hosts_of([batch := submit(loader, len(source))]):
                source.append(batch)  # The signal had not arrived.
            source.append(batch)
            names["workers.test"] = ["127.0.0.3"]
            source += [submit(loader, step) for step in range(len(source), STEPS)]
            assert hosts_of(source[-1:]) == ["127.0.0.3"] and first.poll() is None
            assert train(tables, source) == expected_losses(len(source))
            assert first.wait(timeout=20) == 0, "it ends once its batches are trained"
            assert second.poll() is None
            tables.eval()
            tables(submit(loader, 99).features)
            status = query_worker_status(f"127.0.0.3:{PORT}", job="hybrid", timeout_s=10)
            assert status.trained == hosts_of(source).count("127.0.0.3") > 0 and status.read == 1
        assert tables.counts().trained == len(source)


def test_a_job_may_begin_before_its_workers(servers: list[str], names: dict[str, list[str]]) -> None:
    config = config_of(servers)
    with pytest.raises(RuntimeError, match=r"no embedding worker can be reached: workers.test:\d+ has no address"):
        loader_of(config).submit(batch_of(0, 0).features)
    names["workers.test"] = ["127.0.0.2"]
    with pytest.raises(RuntimeError, match=r"no embedding worker can be reached: .*127\.0\.0\.2"):
        connect(config)
    with worker_at("127.0.0.2", servers):
        assert loader_of(config).submit(batch_of(0, 0).features).worker == f"127.0.0.2:{PORT}"


def test_a_worker_that_is_lost_without_batches_is_replaced(
    servers: list[str], names: dict[str, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(servers, "hybrid")
    names["workers.test"] = ["127.0.0.2", "127.0.0.3"]
    with worker_at("127.0.0.2", servers) as first, worker_at("127.0.0.3", servers):
        tables, loader = connect(config), loader_of(config)
        train_all(tables, [submit(loader, step) for step in range(4)])
        tables.drain()
        first.kill()
        first.wait(timeout=20)
        source = [submit(loader, step) for step in range(4, 7)]
        assert set(hosts_of(source)) == {"127.0.0.3"} and "other embedding workers get its batches" in caplog.text
        train_all(tables, source)
        with worker_at("127.0.0.2", servers):
            later = [submit(loader, step) for step in range(7, 11)]
            while "127.0.0.2" not in hosts_of(later):
                later.append(submit(loader, 7 + len(later)))
            assert "127.0.0.3" in hosts_of(later)
            train_all(tables, later)
            tables.drain()
        assert (tables.counts().trained, tables.counts().lost) == (7 + len(later), {})


def train_all(tables: hybrid.HybridTables, source: list[hybrid.Batch]) -> None:
    """Trains batches without an end of the generation, as a loop that is not at its end."""
    model = Model()
    for batch in source:
        model(tables(batch.features), batch.dense).sum().backward()
        tables.optimizer.step()


def test_a_worker_that_is_lost_with_batches_is_named(servers: list[str], names: dict[str, list[str]]) -> None:
    config = config_of(servers)
    names["workers.test"] = ["127.0.0.2", "127.0.0.3"]
    with worker_at("127.0.0.2", servers), worker_at("127.0.0.3", servers) as second:
        tables, loader = connect(config), loader_of(config)
        source = [submit(loader, step) for step in range(4)]
        second.kill()
        second.wait(timeout=20)
        lost = next(each for each in source if each.features.worker.startswith("127.0.0.3"))
        with pytest.raises(RuntimeError, match=r"embedding worker at 127\.0\.0\.3"):
            tables(lost.features)


def test_a_step_without_a_batch_needs_no_particular_worker(servers: list[str], names: dict[str, list[str]]) -> None:
    config = config_of(servers)
    names["workers.test"] = ["127.0.0.2", "127.0.0.3"]
    with worker_at("127.0.0.2", servers) as first, worker_at("127.0.0.3", servers):
        tables = connect(config)
        for _ in range(2):
            tables(tables.begin(None))
            tables.skip()
            first.kill()
            first.wait(timeout=20)
        tables.drain()
        assert [each.num_applied for each in tables.status()] == [2, 2]
        assert tables.counts().empty == 2


def test_batches_that_nobody_fetches_are_told_at_the_end(servers: list[str], names: dict[str, list[str]]) -> None:
    config = config_of(servers)
    names["workers.test"] = ["127.0.0.2"]
    with worker_at("127.0.0.2", servers, "--leave-timeout", "300") as first:
        loader = loader_of(config)
        loader.submit(batch_of(0, 0).features)
        begin = time.monotonic()
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=20) == 1 and time.monotonic() - begin < 10
    with worker_at("127.0.0.2", servers) as again:
        loader = loader_of(config)
        loader.submit(batch_of(0, 0).features)
        again.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            again.wait(timeout=2)
        again.send_signal(signal.SIGTERM)  # A second one does not wait for batches.
        assert again.wait(timeout=5) == 0


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ({"addresses": ["127.0.0.1:1"]}, "workers.discover contradicts workers.addresses"),
        ({"discover": "workers.test"}, 'workers.discover must be "NAME:PORT", not "workers.test"'),
        ({"refresh_s": 0}, "workers.refresh_s must be above 0"),
    ],
)
def test_settings_are_checked(workers: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(["127.0.0.1:1"], **workers)
