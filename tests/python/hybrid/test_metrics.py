# SPDX-License-Identifier: Apache-2.0
"""Metrics and status: every batch ends once, for a named cause, and no id is in any of them."""

from __future__ import annotations

import gc
import json
import re
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import headway.hybrid.metrics
import prometheus_client
import pytest
import torch
from headway import hybrid
from headway.cli.hybrid import main
from hybrid_cases import batch_of, connect, loader_of
from parameter_servers import embedding_workers, parameter_servers

from benchmarks.harness.served_dlrm import free_ports

PLANTED = 0x1A2B3C4D5E6F7081


def config_of(servers: list[str], workers: list[str], **settings: Any) -> hybrid.HybridConfig:
    sections = {"servers": {"addresses": servers}, "workers": {"addresses": workers}, "job": {"timeout_s": 30}}
    return hybrid.HybridConfig.of({"mode": "hybrid", **sections, **settings})


def page_of(port: int) -> dict[str, float]:
    """Metrics of a page, by name with labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as reply:
        assert reply.headers["Content-Type"].startswith("text/plain")
        lines = reply.read().decode().splitlines()
    for line in lines:
        assert re.fullmatch(r'# (HELP|TYPE) .*|[a-zA-Z_:]+(\{([a-z_]+="[^"]*",?)+\})? \S+', line), line
    return {name: float(value) for name, value in (each.rsplit(" ", 1) for each in lines if each[0] != "#")}


def losses_of(page: dict[str, float], name: str) -> dict[str, float]:
    prefix = f'headway_hybrid_{name}{{cause="'
    return {each.removeprefix(prefix)[:-2]: value for each, value in page.items() if each.startswith(prefix) and value}


def step(tables: hybrid.HybridTables, batch: Any, factor: float = 1.0) -> None:
    (factor * sum(each.sum() for each in tables(batch).values())).backward()
    tables.optimizer.step()


def run_out(tables: hybrid.HybridTables, references: list[Any]) -> None:
    """Ends batches in all ways: trained, dropped by the trainer, by a scaler and by servers, read, without samples."""
    step(tables, references[0])
    step(tables, references[1], float("nan"))
    tables.begin(references[2])
    tables.skip()
    tables(references[3])["city"].sum().backward()
    tables.optimizer.found_inf = torch.ones(())  # A GradScaler that finds inf does this.
    tables.optimizer.step()
    del tables.optimizer.found_inf
    tables.eval()
    tables(references[4])
    tables.train()
    tables.begin(None if isinstance(references[0], hybrid.BatchRef) else batch_of(0, 0).empty().features)
    tables.skip()
    step(tables, references[5])
    tables.finish()


def test_each_batch_ends_once_for_a_named_cause() -> None:
    server_port, worker_port = free_ports(2)
    with (
        parameter_servers(1, "--metrics", f"127.0.0.1:{server_port}") as servers,
        embedding_workers(1, servers, "--metrics", f"127.0.0.1:{worker_port}") as workers,
    ):
        config = config_of(servers, workers, staleness=1)
        tables, loader = connect(config), loader_of(config)
        references = [loader.submit(batch_of(number, 0).features) for number in range(8)]
        run_out(tables, references)
        counts = tables.counts()
        assert (counts.begun, counts.trained, counts.empty, counts.in_flight) == (6, 2, 1, 0)
        assert counts.lost == {"not_finite": 1, "skipped": 1, "overflow": 1}
        assert counts.begun == counts.trained + counts.empty + sum(counts.lost.values())

        tables.begin(references[6])
        connect(config)  # Another trainer, which may fetch the batch in flight again. At servers it is lost.
        page = page_of(worker_port)
        losses = losses_of(page, "lost_batches_total")
        assert losses == {"not_finite": 1, "skipped": 1, "overflow": 1}
        assert page["headway_hybrid_trained_batches_total"] == 2
        assert page["headway_hybrid_read_batches_total"] == 1
        assert page['headway_hybrid_batches{state="buffered"}'] == 2
        submitted = page["headway_hybrid_submitted_batches_total"]
        held = sum(value for name, value in page.items() if name.startswith("headway_hybrid_batches{"))
        ended = sum(page[f"headway_hybrid_{each}_batches_total"] for each in ("trained", "read"))
        assert submitted == 8 == held + ended + sum(losses.values())

        page = page_of(server_port)
        assert losses_of(page, "lost_parts_total") == {**losses, "no_batch": 1, "generation": 1}
        assert page["headway_hybrid_parts_total"] == 2
        assert page["headway_hybrid_samples_total"] == 6 * 6, "without the batch of eval()"
        # Ids of city are drawn from 30, and each of the 6 samples has one.
        assert 1 / 6 <= page['headway_hybrid_alpha{table="city"}'] < 1
        assert page['headway_hybrid_rows{table="city"}'] > 0
        assert page['headway_hybrid_bytes_total{request="lookup",direction="received"}'] >= 6 * 1024
        assert page['headway_hybrid_message_bytes_total{content="ids",form="sent"}'] > 0
        assert page["headway_hybrid_staleness_steps_count"] == page["headway_hybrid_lookups_total"]


def test_counts_of_a_dense_worker_that_asks_servers_itself() -> None:
    with parameter_servers(2) as servers:
        tables = connect(config_of(servers, [], staleness=1))
        run_out(tables, [batch_of(number, 0).features for number in range(6)])
        counts = tables.counts()
        assert (counts.begun, counts.trained, counts.empty, counts.in_flight) == (6, 2, 1, 0)
        assert counts.lost == {"not_finite": 1, "skipped": 1, "overflow": 1}
        assert [name.split(" at ")[0] for name, _ in tables.waits()] == ["parameter server 0", "parameter server 1"]
        assert all(seconds > 0 for _, seconds in tables.waits())
        registry = prometheus_client.CollectorRegistry()
        headway.hybrid.metrics.register(tables, registry=registry)
        page = prometheus_client.generate_latest(registry).decode()
        assert 'headway_hybrid_dense_trained_batches_total{rank="0"} 2.0' in page
        assert 'headway_hybrid_dense_lost_batches_total{cause="overflow",rank="0"} 1.0' in page
        assert page.count("headway_hybrid_dense_wait_seconds_total{") == 2
        del tables
        gc.collect()
        assert prometheus_client.generate_latest(registry) == b""


def test_no_id_is_in_a_log_a_status_or_a_metric(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_LOG", "debug")
    server_port, worker_port = free_ports(2)
    seen = ""
    with (
        parameter_servers(1, "--metrics", f"127.0.0.1:{server_port}") as servers,
        embedding_workers(1, servers, "--metrics", f"127.0.0.1:{worker_port}") as workers,
    ):
        config = config_of(servers, workers, staleness=1)
        tables, loader = connect(config), loader_of(config)

        def planted(number: int) -> dict[str, Any]:
            features = batch_of(number, 0).features
            return {name: (torch.full_like(ids, PLANTED), lengths) for name, (ids, lengths) in features.items()}

        run_out(tables, [loader.submit(planted(number)) for number in range(6)])
        errors: list[str] = []
        wrong = planted(0)
        wrong["history"] = (torch.tensor([PLANTED]), torch.tensor([2, -1, 0, 0, 0, 0]))
        for call in (
            lambda: loader.submit(wrong),
            lambda: tables(hybrid.BatchRef(workers[0], 1, 1)),
        ):
            with pytest.raises(RuntimeError) as error:
                call()
            errors.append(str(error.value))
        tables.forget_ahead()
        file = tmp_path / "job.toml"
        file.write_text(f"[servers]\naddresses = {list(servers)}\n[workers]\naddresses = {list(workers)}\n")
        for options in (["--json"], []):
            assert main(["status", str(file), "--interval", "0", *options]) == 0
        for port in (server_port, worker_port):
            seen += urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read().decode()
        seen += "\n".join([*errors, repr(tables), repr(tables.counts())])
        workers.kill(0)  # Servers log the lost link.
    out, err = capfd.readouterr()
    seen += out + err
    assert "alpha" in seen and "headway.hybrid" in seen and "a length is wrong" in seen
    for form in forms_of(PLANTED):
        assert form not in seen.lower(), form


def forms_of(number: int) -> list[str]:
    """A 64-bit number in decimal, signed and not, and in hexadecimal, in both byte orders."""
    forms = []
    for order in ("little", "big"):
        same = int.from_bytes(number.to_bytes(8, "big"), order)
        forms += [str(same), str(same - (1 << 64) if same >> 63 else same), f"{same:x}"]
        forms += [" ".join(f"{each:02x}" for each in same.to_bytes(8, "big"))]
    return forms


def test_status_shows_losses_rates_and_shares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with parameter_servers(2) as servers, embedding_workers(1, servers) as workers:
        config = config_of(servers, workers, staleness=1, compression={"ids": True, "values": True})
        tables, loader = connect(config), loader_of(config)
        run_out(tables, [loader.submit(batch_of(number, 0).features) for number in range(6)])
        file = tmp_path / "job.toml"
        file.write_text(f"[servers]\naddresses = {list(servers)}\n[workers]\naddresses = {list(workers)}\n")
        assert main(["status", str(file), "--json", "--interval", "0.05"]) == 0
        first, second, worker = (json.loads(line) for line in capsys.readouterr().out.splitlines())
        assert (first["server"], second["server"], worker["worker"]) == (0, 1, 0)
        for each in (first, second):
            assert each["lost"]["skipped"] == each["lost"]["not_finite"] == 1
            assert each["samples_per_s"] == 0 and set(each["alpha"]) == {"user", "item", "city"}
        assert sum(each["rows"] for each in first["tables"].values()) == first["rows"]
        for each in (first, second, worker):
            assert 0 < each["sent_id_bytes"] != each["plain_id_bytes"] > 0
            assert 0 < each["sent_value_bytes"] != each["plain_value_bytes"] > 0
        assert worker["trained"] == 2 and worker["servers"][1]["bytes_sent"] > 0
        assert main(["status", str(file), "--interval", "0"]) == 0
        text = capsys.readouterr().out
        assert "lost: no_batch 1, skipped 1, overflow 1, not_finite 1" in text and "_per_s" not in text
        workers.kill(0)
        assert main(["status", str(file), "--interval", "0"]) == 1
        assert "worker 0 at" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            main(["status", str(file), "--interval", "-1"])


def test_a_page_survives_hostile_requests() -> None:
    (port,) = free_ports(1)
    with parameter_servers(1, "--metrics", f"127.0.0.1:{port}"):
        before = page_of(port)["process_resident_memory_bytes"]
        silent = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(6)]  # More than its threads.
        started = time.monotonic()
        for payload in (b"GET / HTTP/1.1\r\nX: " + b"a" * (4 << 20), b"\0" * 65536, b"POST /metrics HTTP/1.1\r\n"
                        b"Content-Length: 99999999999\r\n\r\n" + b"x" * 65536):  # fmt: skip
            with socket.create_connection(("127.0.0.1", port), timeout=60) as hostile:
                try:
                    hostile.sendall(payload)
                    hostile.shutdown(socket.SHUT_WR)
                    while hostile.recv(4096):
                        pass
                except OSError:
                    pass
        for each in silent:
            each.close()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/other", timeout=60)
        assert page_of(port)["process_resident_memory_bytes"] < before + (16 << 20)
        assert time.monotonic() - started < 120
