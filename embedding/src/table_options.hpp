#pragma once

#include "headway/embedding/table.hpp"

namespace headway::embedding {

/// Options with limits that fit each other. @throws comm::UsageError for what is out of its range
[[nodiscard]] TableOptions checked(TableOptions options);

/// @throws comm::UsageError unless buckets from `first_bucket` to `end_bucket` are virtual buckets
void expect_buckets(std::uint32_t first_bucket, std::uint32_t end_bucket);

/// @throws comm::UsageError if `step` with rows in use since `oldest_in_use` cannot follow step `before`
void expect_step(std::uint32_t before, std::uint32_t step, std::uint32_t oldest_in_use);

}  // namespace headway::embedding
