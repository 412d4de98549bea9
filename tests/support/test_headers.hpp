// SPDX-License-Identifier: Apache-2.0
#pragma once

// Precompiled for the test programs (headway_apply_test_flags), of which each would parse them again for a second or
// more. A test still includes what it uses.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>
