// SPDX-License-Identifier: Apache-2.0

// Run-length encoding of keys against a plain loop: no keys, one, all equal, and runs longer than the part of the keys
// that one thread of a host, or one block of threads of a device, takes at a time.

#include "headway/kernels/run_lengths.hpp"

#include "jagged_backend.hpp"

#include <random>

namespace headway::kernels {
namespace {

using Numbers = std::vector<std::int64_t>;

class RunLengthKernels : public JaggedKernels {
 protected:
  /// Compares a run-length encoding with a plain loop.
  template <class Key>
  void expect_runs(std::vector<Key> const& keys) {
    auto const size = static_cast<std::int64_t>(keys.size());
    // Outputs are filled with 0xa5 before, so zeros in them are the kernel's.
    auto const values = backend_->room<Key>(size);
    auto const lengths = backend_->room<std::int64_t>(size), run_of = backend_->room<std::int64_t>(size);
    auto const num_runs = backend_->room<std::int64_t>(1);
    backend_->find_run_lengths({.type = sizeof(Key) == 4 ? RunLengths::KeyType::kInt32 : RunLengths::KeyType::kInt64,
                                .size = size,
                                .keys = backend_->array(keys).data(),
                                .values = values.data(),
                                .lengths = lengths.data(),
                                .run_of = run_of.data(),
                                .num_runs = num_runs.data()});
    std::vector<Key> expected_values;
    Numbers expected_lengths, expected_run_of;  // Length of each run; run of each key.
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (i == 0 || keys[i] != keys[i - 1]) {
        expected_values.push_back(keys[i]);
        expected_lengths.push_back(0);
      }
      ++expected_lengths.back();
      expected_run_of.push_back(static_cast<std::int64_t>(expected_values.size()) - 1);
    }
    EXPECT_EQ(num_runs[0], static_cast<std::int64_t>(expected_values.size()));
    expected_values.resize(keys.size());  // The kernel writes 0 behind the last run.
    expected_lengths.resize(keys.size());
    EXPECT_EQ(to_vector(values), expected_values);
    EXPECT_EQ(to_vector(lengths), expected_lengths);
    EXPECT_EQ(to_vector(run_of), expected_run_of);
  }
};

TEST_P(RunLengthKernels, NeighboursThatAreEqualMakeARun) {
  expect_runs<std::int64_t>({7, 7, 5, 7});
  expect_runs<std::int32_t>({-1, -1, 0, 0, 0, 9});
}

TEST_P(RunLengthKernels, NoneAndOneEntry) {
  expect_runs<std::int64_t>({});
  expect_runs<std::int64_t>({0});
}

TEST_P(RunLengthKernels, RunsCrossWhatIsDoneTogether) {
  std::mt19937 random{1};
  Numbers keys;
  for (int run = 0; run < 40; ++run) keys.insert(keys.end(), 1 + random() % 9000, run % 3 == 0 ? run : -run);
  expect_runs<std::int64_t>(keys);
  expect_runs<std::int64_t>(Numbers(100'000, 3));
}

INSTANTIATE_TEST_SUITE_P(Backends, RunLengthKernels, testing::ValuesIn(jagged_backends()),
                         name_of_backend<JaggedBackend>);

}  // namespace
}  // namespace headway::kernels
