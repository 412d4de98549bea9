// SPDX-License-Identifier: Apache-2.0

// Stores: each test of AnyStore runs with the store in memory and with the one in a directory.
//
// A store decides whether a job finds itself, so the tests look at the edges: keys that differ only in bytes that
// file names cannot hold, values with zero bytes, a key that comes late, one that never comes.

#include "headway/comm/store.hpp"

#include "headway/comm/status.hpp"
#include "temporary_directory.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong(20'000);

/// Makes the store of ranks that are threads.
struct MemoryStoreMaker {
  std::unique_ptr<Store> make() { return std::make_unique<MemoryStore>(); }
};

/// Makes a store in a fresh directory.
struct FileStoreMaker {
  TemporaryDirectory directory;
  std::unique_ptr<Store> make() { return std::make_unique<FileStore>(directory.path()); }
};

/// Tests that hold for every store.
template <typename Maker>
class AnyStore : public testing::Test {
 protected:
  Maker maker_;
  std::unique_ptr<Store> store_ = maker_.make();
};

using StoreMakers = testing::Types<MemoryStoreMaker, FileStoreMaker>;
TYPED_TEST_SUITE(AnyStore, StoreMakers);

TYPED_TEST(AnyStore, GivesWhatWasSetIncludingEveryByte) {
  std::string value;
  for (int byte = 0; byte < 256; ++byte) value += static_cast<char>(byte);
  this->store_->set("key", value);
  this->store_->set("empty", "");
  EXPECT_EQ(this->store_->get("key", kLong), value);
  EXPECT_EQ(this->store_->get("empty", kLong), "");
}

TYPED_TEST(AnyStore, KeepsKeysApartThatDifferInUnusualBytes) {
  std::vector<std::string> const keys = {"a/b",
                                         "a_b",
                                         "a%2fb",
                                         "a",
                                         "a/",
                                         "/",
                                         "..",
                                         ".",
                                         std::string(1000, 'x'),
                                         std::string(1001, 'x'),
                                         std::string("\0", 1),
                                         "\n"};
  for (auto const& key : keys) this->store_->set(key, "value of " + key);
  for (auto const& key : keys) EXPECT_EQ(this->store_->get(key, kLong), "value of " + key);
}

TYPED_TEST(AnyStore, TheLastValueOfAKeyCounts) {
  this->store_->set("key", "first");
  this->store_->set("key", "second");
  EXPECT_EQ(this->store_->get("key", kLong), "second");
}

TYPED_TEST(AnyStore, GetWaitsForTheKey) {
  std::string value;
  std::thread reader([&] { value = this->store_->get("late/key", kLong); });
  this->store_->set("other", "1");
  this->store_->set("late/key", "2");
  reader.join();
  EXPECT_EQ(value, "2");
}

TYPED_TEST(AnyStore, AMissingKeyIsNamedWhenTimeIsUp) {
  auto const start = std::chrono::steady_clock::now();
  try {
    static_cast<void>(this->store_->get("no/such", milliseconds(30)));
    FAIL() << "a key that nobody set was found";
  } catch (SystemError const& error) {
    EXPECT_NE(std::string(error.what()).find("'no/such'"), std::string::npos) << error.what();
  }
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(30));
}

TEST(FileStore, TwoObjectsOverOneDirectoryAreOneStoreAndLeaveNoTemporaryFiles) {
  TemporaryDirectory const directory;
  FileStore first(directory.path() / "made" / "on use");
  FileStore second(directory.path() / "made" / "on use");
  first.set("key", "value");
  EXPECT_EQ(second.get("key", kLong), "value");
  auto const entries = std::filesystem::directory_iterator(directory.path() / "made" / "on use");
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
}

TEST(FileStore, ADirectoryThatCannotBeMadeIsNamed) {
  try {
    FileStore const store("/proc/no/such");
    FAIL() << "a directory in /proc was made";
  } catch (SystemError const& error) {
    EXPECT_NE(std::string(error.what()).find("/proc/no/such"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace headway::comm
