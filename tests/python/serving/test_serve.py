# SPDX-License-Identifier: Apache-2.0
"""``headway serve`` answers tritonclient with the bits of ``Predictor``, and survives bad requests and lost ranks."""

from __future__ import annotations

import json
import os
import platform
import queue
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click_model import make_tables, request_of
from headway.cli.built_programs import program_path
from headway.cli.serving_ranks import ServingRanks
from headway.serving import Bucket, Manifest, PackageError, Predictor
from headway.serving.package import TABLES_NAME

if not program_path("headway_serve").exists():
    pytest.skip("headway_serve is not built: gRPC was not found", allow_module_level=True)
triton = pytest.importorskip("tritonclient.grpc")

from served_package import Server, input_of, inputs_of, predict, serve, status_of  # noqa: E402

RANKS = 2


@pytest.fixture(scope="module")
def server(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(package, tmp_path_factory.mktemp("serve"), ranks=RANKS) as running:
        yield running
        assert running.stop() == 0, running.log.read_text()


def test_tritonclient_sees_a_ready_server_and_its_model(server: Server) -> None:
    for client in server.clients:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("model", "v1")
        assert not client.is_model_ready("other") and not client.is_model_ready("model", "v2")
        assert client.get_server_metadata().name == "headway"
        model = client.get_model_metadata("model")
        assert list(model.versions) == ["v1"]
        assert {(each.name, each.datatype) for each in model.inputs} == {
            ("item.ids", "INT64"), ("item.lengths", "INT32"), ("shops.ids", "INT64"), ("shops.lengths", "INT32"),
            ("price", "FP32"),
        }  # fmt: skip
        assert [each.name for each in model.outputs] == ["click", "logits"]


def test_replies_have_the_bits_of_the_predictor_on_every_rank(server: Server, predictor: Predictor) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        request = request_of(torch.randint(0, 130, (int(torch.randint(1, 17, (1,), generator=generator)),)))
        expected = predictor.predict(request, bucket=Bucket(16))
        for client in server.clients:
            found = predict(client, request)
            assert set(found) == set(expected)
            for name, wanted in expected.items():
                assert torch.equal(found[name], wanted), name


def test_requests_of_one_moment_share_batches_and_keep_their_bits(server: Server, predictor: Predictor) -> None:
    requests = [request_of(torch.tensor([i, 2 * i])) for i in range(60)]
    replies: list[object] = []
    for i, request in enumerate(requests):
        client = server.clients[i % RANKS]
        client.async_infer(
            "model",
            inputs_of(request),
            callback=lambda result, error, i=i: replies.append((i, result, error)),
            outputs=[triton.InferRequestedOutput("logits")],
        )
    ends = time.monotonic() + 30
    while len(replies) < len(requests):
        assert time.monotonic() < ends
        time.sleep(0.01)
    for i, result, error in replies:  # type: ignore[misc]
        assert error is None
        assert [each.name for each in result.get_response().outputs] == ["logits"]
        expected = predictor.predict(requests[i], bucket=Bucket(16))["logits"]
        np.testing.assert_array_equal(result.as_numpy("logits"), expected.numpy())


GOOD = request_of(torch.tensor([1, 2]))
TWO, ONE = np.ones(2, dtype=np.int32), np.ones(1, dtype=np.int32)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"item.ids": None}, "item.ids is missing"),
        ({"color": np.ones(2, dtype=np.float32)}, "the model has no input color"),
        ({"item.ids": np.ones(2, dtype=np.int32)}, r"item.ids must be INT64 \[N\], not INT32 \[2\]"),
        ({"item.ids": np.ones((2, 1), dtype=np.int64)}, r"item.ids must be INT64 \[N\], not INT64 \[2, 1\]"),
        ({"item.lengths": np.array([3, -1], dtype=np.int32)}, "item.lengths: a number is negative"),
        ({"item.lengths": np.array([1, 2], dtype=np.int32)}, "item.lengths add up to 3, and there are 2 ids"),
        ({"shops.lengths": ONE}, "shops.lengths has 1 numbers, and there are 2 items"),
        ({"price": np.zeros((2, 3), dtype=np.float32)}, r"price must be FP32 \[N, 2\], not FP32 \[2, 3\]"),
        ({"price": np.zeros((3, 2), dtype=np.float32)}, "price has 6 numbers, and 2 rows of 2 are expected"),
    ],
)
def test_a_bad_request_names_the_tensor_and_others_are_served(
    server: Server, change: dict[str, np.ndarray | None], error: str
) -> None:
    inputs = {each.name(): each for each in inputs_of(GOOD)}
    for name, array in change.items():
        if array is None:
            del inputs[name]
        else:
            inputs[name] = input_of(name, array)
    with pytest.raises(triton.InferenceServerException, match=error) as caught:
        server.clients[0].infer("model", list(inputs.values()))
    assert status_of(caught.value) == "INVALID_ARGUMENT"
    assert predict(server.clients[0], GOOD)["click"].shape == (2,)


def test_too_many_rows_and_other_models_are_refused(server: Server) -> None:
    client = server.clients[1]
    with pytest.raises(triton.InferenceServerException, match="the request has 17 items, and the limit is 16"):
        predict(client, request_of(torch.arange(17)))
    with pytest.raises(triton.InferenceServerException, match="there is no model clicks, only model") as caught:
        client.infer("clicks", inputs_of(GOOD))
    assert status_of(caught.value) == "NOT_FOUND"
    with pytest.raises(triton.InferenceServerException, match="version v0 is not served, but v1"):
        client.infer("model", inputs_of(GOOD), model_version="v0")
    with pytest.raises(triton.InferenceServerException, match="the model has no output buy"):
        client.infer("model", inputs_of(GOOD), outputs=[triton.InferRequestedOutput("buy")])


def test_lengths_of_single_ids_may_be_left_out_only_if_each_list_has_one(server: Server) -> None:
    inputs = [each for each in inputs_of(GOOD) if each.name() != "item.lengths"]
    with pytest.raises(triton.InferenceServerException, match=r"item\.lengths is missing"):  # It is no single feature.
        server.clients[0].infer("model", inputs)


def test_a_killed_rank_is_named_replaced_and_serves_again(package: Path, tmp_path: Path, predictor: Predictor) -> None:
    request = request_of(torch.arange(16))
    expected = predictor.predict(request, bucket=Bucket(16))["logits"]
    with serve(package, tmp_path, ranks=RANKS) as server:
        for round_number in range(2):
            os.kill(server.pid_of(1), signal.SIGKILL)
            ends = time.monotonic() + 60
            has_refused = False
            while True:
                assert time.monotonic() < ends, server.log.read_text()
                try:
                    found = predict(server.clients[0], request, timeout_s=5)
                except triton.InferenceServerException as error:
                    assert status_of(error) in ("UNAVAILABLE", "DEADLINE_EXCEEDED"), error
                    assert "rank 1" in str(error), error
                    has_refused = True
                    time.sleep(0.02)
                    continue
                assert torch.equal(found["logits"], expected)
                if has_refused:
                    break
            server.wait_for("rank 1 of 2 serves version", round_number + 2)
            client = triton.InferenceServerClient(f"127.0.0.1:{server.port + 1}")
            assert client.is_server_ready()
            assert torch.equal(predict(client, request)["logits"], expected)
        assert server.stop() == 0, server.log.read_text()


def other_version(package: Path, folder: Path, version: str) -> Path:
    """Copies a package, with twice the embeddings of its rows and another version. The dense part stays as it is."""
    shutil.copytree(package, folder)
    tables = make_tables(rate=1.0)
    shutil.rmtree(folder / TABLES_NAME)
    tables.save(folder / TABLES_NAME)
    replace(Manifest.read(folder), version=version).write(folder)
    return folder


def num_libraries(pid: int) -> int:
    """Libraries of compiled parts that a process has loaded."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return len({line.split()[-1] for line in lines if "aotinductor" in line and ".so" in line})


def point(link: Path, package: Path) -> None:
    """Lets a symbolic link point to a package, at once."""
    new = link.with_suffix(".new")
    new.symlink_to(package)
    new.rename(link)


@pytest.mark.parametrize("fetch", ["pairwise", "ring"])
def test_versions_change_under_load_and_each_reply_is_of_one(package: Path, tmp_path: Path, fetch: str) -> None:
    packages = {"v1": package, "v2": other_version(package, tmp_path / "second", "v2")}
    request = request_of(torch.arange(16))
    expected = {
        version: Predictor(folder).predict(request, bucket=Bucket(16))["logits"].numpy()
        for version, folder in packages.items()
    }
    assert not np.array_equal(expected["v1"], expected["v2"])
    link = tmp_path / "current"
    point(link, package)
    replies: queue.Queue[object] = queue.Queue()
    with serve(link, tmp_path, "--fetch", fetch, ranks=RANKS) as server:
        for version in ("v2", "v1", "v2", "v1"):
            point(link, packages[version])
            num_new = 0
            ends = time.monotonic() + 60
            while num_new < 20:
                assert time.monotonic() < ends, f"{version} did not come: {server.log.read_text()}"
                for client in server.clients * 4:
                    client.async_infer(
                        "model", inputs_of(request), callback=lambda result, error: replies.put((result, error))
                    )
                for _ in range(4 * RANKS):
                    result, error = replies.get(timeout=60)  # type: ignore[misc]
                    assert error is None, error
                    served = result.get_response().model_version
                    np.testing.assert_array_equal(result.as_numpy("logits"), expected[served])
                    num_new += served == version
        # There were five versions. One whose thread had not ended when it was closed goes with a later one.
        most, ends = 3 * len(Manifest.read(package).parts), time.monotonic() + 30
        while num_libraries(server.pid_of(0)) > most:
            found = num_libraries(server.pid_of(0))
            assert time.monotonic() < ends, f"compiled code of old versions stays in memory: {found} libraries"
            time.sleep(0.1)
        broken = tmp_path / "broken"
        shutil.copytree(packages["v2"], broken)
        next(broken.glob("dense_4*.pt2")).write_bytes(b"no code")
        point(link, broken)
        # Under load an earlier version may have been refused, too, since another one had come by then.
        server.wait_for("dense_4_0_0.pt2 was truncated or altered")
        for client in server.clients:
            assert client.infer("model", inputs_of(request)).get_response().model_version == "v1"
        os.kill(server.pid_of(1), signal.SIGKILL)  # The next rank 1 finds the broken package there.
        server.wait_for("rank 1 of 2 serves version v1", 2)
        with triton.InferenceServerClient(f"127.0.0.1:{server.port + 1}") as client:
            assert client.infer("model", inputs_of(request)).get_response().model_version == "v1"
            point(link, packages["v2"])
            ends = time.monotonic() + 60
            while client.infer("model", inputs_of(request)).get_response().model_version != "v2":
                assert time.monotonic() < ends, f"v2 did not come: {server.log.read_text()}"
                time.sleep(0.02)
        assert server.stop() == 0, server.log.read_text()


def test_ranks_drain_for_a_new_version_and_return_if_it_cannot_be_served(package: Path, tmp_path: Path) -> None:
    second = other_version(package, tmp_path / "second", "v2")
    link = tmp_path / "current"
    point(link, package)
    request = request_of(torch.arange(16))
    with serve(link, tmp_path, "--drain-to-reload", ranks=RANKS) as server:
        replies: queue.Queue[object] = queue.Queue()
        accepted = server.clients[0]
        for _ in range(10):
            accepted.async_infer("model", inputs_of(request), callback=lambda result, error: replies.put(error))
        point(link, second)
        server.wait_for("serves version v2", RANKS)
        assert [replies.get(timeout=20) for _ in range(10)] == [None] * 10
        with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            found = predict(client, request)["logits"]
        assert torch.equal(found, Predictor(second).predict(request, bucket=Bucket(16))["logits"])

        damaged = tmp_path / "damaged"
        shutil.copytree(second, damaged)
        next(damaged.glob("dense_4*.pt2")).write_bytes(b"no code")
        point(link, damaged)
        server.wait_for("damaged is refused: ")
        without_rows = tmp_path / "without_rows"
        shutil.copytree(second, without_rows)
        shutil.rmtree(without_rows / TABLES_NAME)
        point(link, without_rows)
        server.wait_for("without_rows is refused, as a rank has ended")
        server.wait_for("serves version v2", 2 * RANKS)
        assert server.stop() == 0, server.log.read_text()


def test_a_rank_that_keeps_dying_is_started_after_pauses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    starts = tmp_path / "starts"
    script = f"echo >> {starts}; kill -KILL $$"
    ranks = ServingRanks(1, lambda rank, package: ["sh", "-c", script], tmp_path, drains=False)
    ends = time.monotonic() + 3
    monkeypatch.setattr(ranks, "_look_at_package", lambda: None)
    take_ended = ranks._take_ended

    def end_later() -> dict[int, int]:
        if time.monotonic() > ends:
            ranks._end()
        return take_ended()

    monkeypatch.setattr(ranks, "_take_ended", end_later)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        ranks.run()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert len(starts.read_text()) == 3  # At 0, 0.5 and 1.5 s; the next would be at 3.5 s.
    assert "signal 9 ended rank 0" in capfd.readouterr().out


def test_a_damaged_package_is_refused_by_name(package: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(package, broken)
    part = next(broken.glob("dense_16*.pt2"))
    part.write_bytes(part.read_bytes()[:-1])
    command = [str(program_path("headway_serve")), "--package", str(broken)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == f"headway_serve: {part} was truncated or altered\n"
    done = subprocess.run([*command[:1], "--package", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "manifest.json cannot be read" in done.stderr


def test_a_package_for_another_machine_is_refused_by_name(package: Path, tmp_path: Path) -> None:
    manifest = Manifest.read(package)
    assert manifest.cpu_features[0] == platform.machine()
    there = [*manifest.cpu_features, "avx9"]
    for name, changed, error in (
        ("cpu", replace(manifest, cpu_features=there), "was compiled for a processor with avx9, which this one lacks"),
        ("cuda", replace(manifest, device="cuda"), "is for a CUDA device"),
    ):
        if name == "cuda" and torch.cuda.is_available():
            continue
        folder = tmp_path / name
        shutil.copytree(package, folder)
        changed.write(folder)
        command = [str(program_path("headway_serve")), "--package", str(folder), "--address", "127.0.0.1:0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and error in done.stderr, done.stderr
        with pytest.raises(PackageError, match=error):
            Predictor(folder)


def test_a_wrong_command_line_is_one_line() -> None:
    for words, error in (
        (["--rows", "3"], "unknown option --rows"),
        (["--max-rows"], "--max-rows needs a value"),
        (["--max-rows", "0"], '--max-rows must be a number from 1, not "0"'),
        ([], "--package is missing"),
        (["--package", "x", "--size", "2"], "several ranks need --store"),
    ):
        done = subprocess.run([str(program_path("headway_serve")), *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert done.stderr == f"headway_serve: {error} (see headway_serve --help)\n"


def sign(folder: Path, name: str, authority: str | None = None) -> None:
    """Makes a key, and a certificate for this host that ``authority`` signs; by default itself."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", "-days", "2"]
    if authority is not None:
        command += ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key"]
        command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates, and is not installed")
def test_only_clients_with_a_certificate_are_served_over_tls(
    package: Path, tmp_path: Path, predictor: Predictor
) -> None:
    for name, authority in (("ca", None), ("server", "ca"), ("client", "ca"), ("stranger", None)):
        sign(tmp_path, name, authority)
    file = {name: str(tmp_path / name) for name in ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")}
    options = ["--tls-certificate", file["server.pem"], "--tls-key", file["server.key"]]
    with serve(package, tmp_path, *options, "--tls-client-ca", file["ca.pem"]) as server:
        address = f"localhost:{server.port}"

        def ask(name: str, ca: str = file["ca.pem"]) -> torch.Tensor:
            key, certificate = str(tmp_path / f"{name}.key"), str(tmp_path / f"{name}.pem")
            client = triton.InferenceServerClient(
                address, ssl=True, root_certificates=ca, private_key=key, certificate_chain=certificate
            )
            return predict(client, GOOD, timeout_s=5)["logits"]

        assert torch.equal(ask("client"), predictor.predict(GOOD, bucket=Bucket(16))["logits"])
        for refused in (lambda: ask("stranger"), lambda: ask("client", ca=str(tmp_path / "stranger.pem"))):
            with pytest.raises(triton.InferenceServerException):
                refused()
        with pytest.raises(triton.InferenceServerException):  # Without TLS.
            predict(server.clients[0], GOOD, timeout_s=5)
        load = [sys.executable, "-m", "headway_launcher", "load", "--package", str(package), "--address", address]
        load += ["--rows", "1:8", "--seconds", "1", "--warmup", "100", "--tls-ca", file["ca.pem"]]
        load += ["--tls-certificate", file["client.pem"], "--tls-key", file["client.key"]]
        done = subprocess.run(load, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "\nOK: " in done.stdout, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates, and is not installed")
def test_a_key_of_another_certificate_is_named(package: Path, tmp_path: Path) -> None:
    for name in ("one", "other"):
        sign(tmp_path, name)
    command = [str(program_path("headway_serve")), "--package", str(package), "--address", "127.0.0.1:0"]
    command += ["--tls-certificate", "one.pem", "--tls-key", "other.key"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 1 and "one.pem and other.key do not belong together" in done.stderr, done.stderr


def test_a_wrong_file_for_tls_is_named(package: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no certificate")
    for options, error in (
        (["--tls-certificate", "a.pem"], "TLS needs a certificate and its key"),
        (["--tls-client-ca", "a.pem"], "certificates of clients are checked with TLS: it needs a certificate"),
        (["--tls-certificate", "text", "--tls-key", "nowhere.key"], "nowhere.key"),
        (["--tls-certificate", "text", "--tls-key", "text"], "text is not a PEM file"),
    ):
        command = [str(program_path("headway_serve")), "--package", str(package), "--address", "127.0.0.1:0", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode in (1, 2) and error in done.stderr, done.stderr


def test_a_taken_port_ends_all_ranks_with_an_error(package: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1] - 1  # Rank 1 has the port that is taken.
        command = [sys.executable, "-m", "headway_launcher", "serve", str(package), "--ranks", "2"]
        done = subprocess.run([*command, "--port", str(port)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and f"127.0.0.1:{port + 1}" in done.stderr, done.stderr


def test_a_trace_shows_batches_of_all_ranks(package: Path, tmp_path: Path) -> None:
    with serve(package, tmp_path, "--trace", str(tmp_path / "trace.json"), ranks=RANKS) as server:
        for _ in range(3):
            for client in server.clients:
                predict(client, request_of(torch.arange(16)))
        server.process.send_signal(signal.SIGUSR1)
        files = [tmp_path / f"trace.rank{rank}.json" for rank in range(RANKS)]
        ends = time.monotonic() + 20
        while not all(file.exists() for file in files):
            assert time.monotonic() < ends
            time.sleep(0.02)
        for _ in range(2):
            predict(server.clients[0], request_of(torch.arange(16)))
        assert server.stop() == 0
    for rank, (file, batches) in enumerate(zip(files, (5, 3), strict=True)):
        events = json.loads(file.read_text())["traceEvents"]
        assert sum(event["name"].startswith("batch ") for event in events if event["ph"] == "X") == batches
        assert sum(event["name"] == f"rows of rank {1 - rank}" for event in events) == batches
        assert {event["pid"] for event in events} == {rank}


@pytest.mark.skipif(not Path("/usr/include/prometheus/exposer.h").exists(), reason="prometheus-cpp is not installed")
def test_prometheus_sees_what_a_rank_did(package: Path, tmp_path: Path) -> None:
    with serve(package, tmp_path, ranks=RANKS, has_metrics=True) as server:
        for _ in range(3):
            predict(server.clients[0], request_of(torch.tensor([1, 2, 3, 4])))
        with pytest.raises(triton.InferenceServerException):
            predict(server.clients[0], request_of(torch.arange(17)))
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port + RANKS}/metrics", timeout=20) as reply:
            lines = reply.read().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values['headway_serving_requests_total{outcome="answered"}']) == 3
    assert float(values['headway_serving_requests_total{outcome="invalid"}']) == 1
    assert float(values["headway_serving_batch_rows_total"]) == 12
    assert float(values['headway_serving_peer_wait_seconds_count{peer="1"}']) == 3
    assert float(values["headway_serving_ready"]) == 1
    assert float(values['headway_serving_batches_in_flight_bucket{le="1"}']) == 3  # Each reply came before the next.
    assert float(values["headway_serving_refused_versions_total"]) == 0
    assert float(values['headway_serving_version_info{version="v1"}']) == 1
    assert float(values['headway_serving_stage_seconds_count{stage="dense"}']) == 3
    total = float(values['headway_serving_stage_seconds_sum{stage="total"}'])
    parts = ("queue", "delay", "fetch", "dense_queue", "dense", "engine")
    assert sum(
        float(values[f'headway_serving_stage_seconds_sum{{stage="{part}"}}']) for part in parts
    ) == pytest.approx(total, rel=1e-3)


def test_the_load_generator_reports_what_it_offered(package: Path, server: Server, tmp_path: Path) -> None:
    addresses = ",".join(f"127.0.0.1:{server.port + rank}" for rank in range(RANKS))
    results = tmp_path / "load.jsonl"
    load = [sys.executable, "-m", "headway_launcher", "load", "--package", str(package), "--address", addresses]
    options = ["--rows", "1:8", "--seconds", "2", "--warmup", "200", "--json", str(results)]
    done = subprocess.run([*load, *options, "--rate", "200"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([*load, *options, "--clients", "2"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    opened, closed = (json.loads(line) for line in results.read_text().splitlines())
    assert 300 < opened["statuses"]["OK"] < 500  # 400 in the mean.
    assert opened["p50_ms"] <= opened["p99_ms"] <= opened["p999_ms"]
    assert closed["statuses"].keys() == {"OK"} and closed["versions"].keys() == {"v1"}


def test_the_load_generator_replays_a_log_at_its_times(package: Path, server: Server, tmp_path: Path) -> None:
    line = {"features": {"item": [[1, 2], [3]], "shops": [[4], []]}, "dense": {"price": [[0.5, 1], [1.5, 2]]}}
    log, results = tmp_path / "log.jsonl", tmp_path / "load.jsonl"
    command = [sys.executable, "-m", "headway_launcher", "load", "--package", str(package), "--log", str(log)]
    command += ["--address", f"127.0.0.1:{server.port}", "--json", str(results)]

    def replay(lines: list[dict[str, object]], *options: str) -> subprocess.CompletedProcess[str]:
        log.write_text("".join(json.dumps(each) + "\n" for each in lines))
        return subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)

    began = time.monotonic()
    done = replay([{**line, "at_ms": 5000 + 100 * i} for i in range(21)], "--speed", "2")
    assert done.returncode == 0, done.stderr
    assert 1 <= time.monotonic() - began < 10
    found = json.loads(results.read_text().splitlines()[-1])
    assert found["statuses"] == {"OK": 21} and found["offered_per_s"] == pytest.approx(21)
    assert replay([line], "--clients", "1", "--seconds", "1").returncode == 0
    for lines, error in (
        ([line], "has no times: --rate or --clients is needed"),
        ([{**line, "at_ms": 2}, {**line, "at_ms": 1}], "line 2: at_ms is before that of the line above"),
        ([{**line, "at_ms": 2}, line], "line 2: either all lines have at_ms, or none"),
        ([{**line, "features": {"item": [[1], [2]]}}], "line 1: "),
        ([], "has no requests"),
    ):
        done = replay(lines)
        assert done.returncode == 2 and error in done.stderr, done.stderr
