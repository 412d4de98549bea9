// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/hybrid/requests.hpp"

namespace headway::hybrid {

/// Takes the answer of a request. Requests that were kept share it.
class Request::Origin {
 public:
  Origin() = default;
  virtual ~Origin() = default;
  Origin(Origin const&) = delete;
  Origin& operator=(Origin const&) = delete;
  virtual void reply(Description const& request, ReplyCode code, Body body) = 0;
};

/// Calls a handler. Answers the request if it throws.
void call_handler(RequestHandler const& handler, Request& request);

}  // namespace headway::hybrid
