#include "headway/comm/status.hpp"

#include <cstring>

namespace headway::comm {

SystemError::SystemError(std::string_view call, int error_number, std::string_view context)
    : std::runtime_error(std::string(call) + " failed: " + std::strerror(error_number) +
                         (context.empty() ? "" : " (" + std::string(context) + ")")) {}

}  // namespace headway::comm
