#include "headway/comm/status.hpp"

#include "open_files.hpp"

#include <cstring>
#include <string>
#include <utility>

namespace headway::comm {

namespace {

std::string with_advice(std::string text, std::string const& advice) {
  return advice.empty() ? text : std::move(text) + ": " + advice;
}

}  // namespace

SystemError::SystemError(std::string_view call, int error_number, std::string_view context)
    : std::runtime_error(with_advice(std::string(call) + " failed: " + std::strerror(error_number) +
                                         (context.empty() ? "" : " (" + std::string(context) + ")"),
                                     open_files_advice(error_number))) {}

}  // namespace headway::comm
