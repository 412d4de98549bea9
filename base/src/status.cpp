// SPDX-License-Identifier: Apache-2.0
#include "headway/base/status.hpp"

#include "headway/base/open_files.hpp"

#include <cstring>
#include <string>
#include <utility>

namespace headway::base {

namespace {

std::string with_advice(std::string text, std::string const& advice) {
  return advice.empty() ? text : std::move(text) + ": " + advice;
}

}  // namespace

SystemError::SystemError(std::string_view call, int error_number, std::string_view context)
    : std::runtime_error(with_advice(std::string(call) + " failed: " + std::strerror(error_number) +
                                         (context.empty() ? "" : " (" + std::string(context) + ")"),
                                     open_files_advice(error_number))) {}

}  // namespace headway::base
