// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/serving/package.hpp"
#include "headway/serving/request.hpp"
#include "open_inference.pb.h"

#include <memory>
#include <string>

namespace headway::serving {

/// Finds the arrays of a request in a message of the Open Inference Protocol. A feature NAME has the tensors NAME.ids
/// (INT64) and NAME.lengths (INT32), a dense feature has NAME (FP32), and `items` (INT32) has the number of items of
/// each user. Lengths may be left out for a feature whose lists have one id each.
/// @param message kept alive by the result
/// @throws RequestError that names the tensor: it is missing, unknown or there twice, or has another type, shape or
///   size of its contents
[[nodiscard]] Request parse_request(std::shared_ptr<inference::ModelInferRequest const> message,
                                    Manifest const& manifest);

/// Writes the outputs of a reply that was answered.
/// @throws RequestError if `request` asks for an output that the model has not
void write_response(inference::ModelInferRequest const& request, Reply const& reply, Manifest const& manifest,
                    inference::ModelInferResponse& response);

/// The beginning of a text of a request, without control characters. Errors must stay short, since gRPC sends them in a
/// header, and clients refuse headers of more than 8 KiB. A zero would end the text of the error.
[[nodiscard]] std::string quoted(std::string text);

/// Describes the tensors of requests and replies.
void describe_model(Manifest const& manifest, inference::ModelMetadataResponse& response);

}  // namespace headway::serving
