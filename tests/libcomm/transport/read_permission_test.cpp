// SPDX-License-Identifier: Apache-2.0

// Permission of peers to read this process's memory. Linux's Yama module lets a process name one tracer, which may read
// it with all its descendants. The test plays the kernel.

#include "transport/shm/read_permission.hpp"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace headway::comm::shm {
namespace {

constexpr unsigned long kNobody = TracerCalls::kNobody, kAnyProcess = TracerCalls::kAnyProcess;
constexpr int kLauncher = 100;

/// Records set_tracer() and answers from tables.
class PlayedKernel final : public TracerCalls {
 public:
  int yama_level() override { return level; }
  int parent_of(int pid) override { return parents.contains(pid) ? parents.at(pid) : -1; }
  int own_pid() override { return process; }
  int own_parent() override { return parent; }
  void set_tracer(unsigned long tracer) override { named.push_back(tracer); }

  int level = 1;
  int process = 10;
  int parent = kLauncher;
  std::map<int, int> parents{{11, kLauncher}, {12, kLauncher}, {21, 200}};  ///< Process 21 has another launcher.
  std::vector<unsigned long> named;                                         ///< Tracers, in the order of the calls.
};

/// ReadPermission on a played kernel.
class ReadPermissionTest : public testing::Test {
 protected:
  ReadPermission permit(std::vector<int> const& peers) { return {process_, peers}; }

  PlayedKernel kernel_;
  ReadPermission::Process process_{kernel_};
};

TEST_F(ReadPermissionTest, SiblingsNameTheirParentUntilTheGroupEnds) {
  {
    auto const permission = permit({11, 12});
    EXPECT_EQ(kernel_.named, std::vector{static_cast<unsigned long>(kLauncher)});
  }
  EXPECT_EQ(kernel_.named.back(), kNobody);
}

TEST_F(ReadPermissionTest, WithoutACommonParentEveryProcessMayRead) {
  auto const permission = permit({11, 21});
  EXPECT_EQ(kernel_.named, std::vector{kAnyProcess});
}

TEST_F(ReadPermissionTest, APeerWhoseParentCannotBeToldHasNoneInCommon) {
  for (int const unknown : {-1, 0, 999}) {
    auto const permission = permit({11, unknown});
    EXPECT_EQ(kernel_.named.back(), kAnyProcess) << unknown;
  }
  kernel_.parent = 0;  // The parent is outside of this process's PID namespace.
  kernel_.parents[11] = 0;
  auto const permission = permit({11});
  EXPECT_EQ(kernel_.named.back(), kAnyProcess);
}

TEST_F(ReadPermissionTest, NothingIsSetWhereItWouldNotHelp) {
  // Without Yama (-1) and at level 0 every process of the user may read; at 2 and 3 a tracer does not help.
  for (int const level : {-1, 0, 2, 3}) {
    kernel_.level = level;
    auto const permission = permit({11, 21});
    EXPECT_TRUE(kernel_.named.empty()) << level;
  }
  kernel_.level = 1;
  auto const alone = permit({});
  auto const none = ReadPermission();
  EXPECT_TRUE(kernel_.named.empty());
}

TEST_F(ReadPermissionTest, TheSettingFollowsWhatTheGroupsThatExistNeed) {
  auto const siblings = static_cast<unsigned long>(kLauncher);
  std::optional<ReadPermission> first(permit({11})), second(permit({11, 12})), third(permit({21}));
  EXPECT_EQ(kernel_.named, (std::vector{siblings, kAnyProcess}));
  third.reset();
  EXPECT_EQ(kernel_.named.back(), siblings);
  first.reset();
  EXPECT_EQ(kernel_.named.back(), siblings);
  second.reset();
  EXPECT_EQ(kernel_.named, (std::vector{siblings, kAnyProcess, siblings, kNobody}));
}

TEST_F(ReadPermissionTest, GroupsThatKnewDifferentParentsLetEveryProcessRead) {
  std::optional<ReadPermission> const before(permit({11}));
  kernel_.parent = 1;  // The launcher has ended.
  kernel_.parents = {{11, 1}};
  std::optional<ReadPermission> const after(permit({11}));
  EXPECT_EQ(kernel_.named.back(), kAnyProcess);
}

TEST_F(ReadPermissionTest, AChildNamesItsTracerAnewAndDoesNotUndoThatForItsParentsGroups) {
  std::optional<ReadPermission> inherited(permit({11})), also_inherited(permit({12}));
  kernel_.process = 11;  // fork(): the kernel's setting is not inherited.
  also_inherited.reset();
  EXPECT_EQ(kernel_.named.size(), 1U);
  std::optional<ReadPermission> own(permit({12}));
  ASSERT_EQ(kernel_.named.size(), 2U);
  EXPECT_EQ(kernel_.named.back(), static_cast<unsigned long>(kLauncher));
  inherited.reset();
  EXPECT_EQ(kernel_.named.size(), 2U);
  own.reset();
  EXPECT_EQ(kernel_.named.back(), kNobody);
}

TEST_F(ReadPermissionTest, APermissionThatMovesIsGivenUpOnce) {
  auto first = permit({11});
  {
    ReadPermission const second = std::move(first);
    EXPECT_EQ(kernel_.named.size(), 1U);
  }
  EXPECT_EQ(kernel_.named.back(), kNobody);
  first = ReadPermission();
  EXPECT_EQ(kernel_.named.size(), 2U);
}

}  // namespace
}  // namespace headway::comm::shm
