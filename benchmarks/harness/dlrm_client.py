# SPDX-License-Identifier: Apache-2.0
"""A Python client of ranks that serve the DLRM: messages of requests, and a check of the answers.

Messages are those of the Open Inference Protocol, by ``tritonclient``.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness.dlrm_requests import DlrmRequest, IdLaw, RowLaw, draw_requests
from benchmarks.harness.errors import BenchmarkError
from dlrm_examples.dlrm_inference.model import DlrmConfig

MODEL_NAME, DENSE, OUTPUT = "model", "dense", "click"
INFER_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_START_S, _CALL_S = 120, 10
_TOLERANCE = 1e-5


def message_types() -> ModuleType:
    """The module with the messages of the protocol.

    Raises:
        BenchmarkError: tritonclient is not installed.
    """
    try:
        from tritonclient.grpc import service_pb2
    except ImportError:
        raise BenchmarkError('tritonclient is not installed: pip install "tritonclient[grpc]"') from None
    found: ModuleType = service_pb2
    return found


def make_message(request: DlrmRequest, messages: ModuleType) -> Any:
    """The ``ModelInferRequest`` of a request."""
    message = messages.ModelInferRequest(model_name=MODEL_NAME)
    for table, ids_N in enumerate(request.ids_TN):
        message.inputs.add(name=f"table_{table}.ids", datatype="INT64", shape=[len(ids_N)])
        message.raw_input_contents.append(ids_N.tobytes())
    message.inputs.add(name=DENSE, datatype="FP32", shape=list(request.dense_NF.shape))
    message.raw_input_contents.append(request.dense_NF.tobytes())
    return message


def check_answers(addresses: Sequence[str], config: DlrmConfig, *, num_ids: int) -> None:
    """Waits until each rank takes connections, and compares its predictions with those of the model in eager mode.

    Args:
        addresses: those of all ranks.
        config: sizes and seed of the served model.
        num_ids: ids are below it; those without a row count as zeros.
    Raises:
        BenchmarkError: a rank does not answer in time, or wrongly.
    """
    import grpc  # Comes with tritonclient.

    messages = message_types()
    [request] = draw_requests(
        1, rows=RowLaw((50,)), ids=IdLaw(num_ids), num_tables=config.num_tables, num_dense=config.num_dense, seed=7
    )
    expected_N = predict_eagerly(request, config)
    for address in addresses:
        with grpc.insecure_channel(address) as channel:
            try:
                grpc.channel_ready_future(channel).result(_START_S)
                infer = channel.unary_unary(
                    INFER_METHOD, lambda each: each.SerializeToString(), messages.ModelInferResponse.FromString
                )
                answer = infer(make_message(request, messages), timeout=_CALL_S)
            except (grpc.RpcError, grpc.FutureTimeoutError) as error:
                raise BenchmarkError(f"{address} does not answer: {error!r}") from None
        answered_N = np.frombuffer(answer.raw_output_contents[0], dtype=np.float32)
        if answered_N.shape != expected_N.shape or np.abs(answered_N - expected_N).max() > _TOLERANCE:
            raise BenchmarkError(f"the predictions of {address} are not those of the model")


def predict_eagerly(request: DlrmRequest, config: DlrmConfig) -> npt.NDArray[np.float32]:
    """(N,) predictions of the model in eager mode. An id without a row has an embedding of zeros."""
    import torch

    from dlrm_examples.dlrm_inference.model import Dlrm, EmbeddingShard

    pooled = []
    for table, ids_N in enumerate(request.ids_TN):
        rows = torch.zeros(request.num_rows, config.dim)
        is_there_N = torch.from_numpy(ids_N < config.table_rows[table])
        weight = EmbeddingShard(config, [table]).weight
        rows[is_there_N] = weight[torch.from_numpy(ids_N)[is_there_N]]
        pooled.append(rows)
    model = Dlrm(config)
    predictions: npt.NDArray[np.float32] = model.predict(
        model.bottom(torch.from_numpy(request.dense_NF)), pooled
    ).numpy()
    return predictions
