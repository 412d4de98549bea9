// SPDX-License-Identifier: Apache-2.0

// Programs without Python read the variables of a job as Python does.

#include "headway/comm/group_environment.hpp"

#include "headway/base/status.hpp"
#include "temporary_directory.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace headway::comm {
namespace {

class GroupEnvironment : public testing::Test {
 protected:
  void TearDown() override {
    for (char const* const name : {"HEADWAY_GROUP_SECRET", "HEADWAY_GROUP_SECRET_FILE", "HEADWAY_TRANSPORT",
                                   "HEADWAY_INTERFACE", "HEADWAY_RDMA_DEVICE"}) {
      ::unsetenv(name);
    }
  }
  static void set(char const* name, std::string const& value) { ::setenv(name, value.c_str(), 1); }
  static comm::GroupOptions read() {
    comm::GroupOptions options;
    read_group_environment(options);
    return options;
  }
  static std::string error() {
    try {
      read();
    } catch (base::UsageError const& error) {
      return error.what();
    }
    return "";
  }

  TemporaryDirectory directory_;
  std::filesystem::path file_ = directory_.path() / "secret";
};

TEST_F(GroupEnvironment, WithoutVariablesNothingChanges) {
  auto const options = read();
  EXPECT_EQ(options.secret, "");
  EXPECT_EQ(options.interface, "");
  EXPECT_EQ(options.transport, comm::Transport::kAuto);
}

TEST_F(GroupEnvironment, VariablesAreRead) {
  set("HEADWAY_GROUP_SECRET", "a secret of the job");
  set("HEADWAY_TRANSPORT", "tcp");
  set("HEADWAY_INTERFACE", "eth0");
  set("HEADWAY_RDMA_DEVICE", "mlx5_0:1");
  auto const options = read();
  EXPECT_EQ(options.secret, "a secret of the job");
  EXPECT_EQ(options.transport, comm::Transport::kTcp);
  EXPECT_EQ(options.interface, "eth0");
  EXPECT_EQ(options.rdma_device, "mlx5_0:1");
}

TEST_F(GroupEnvironment, ASecretComesFromAFile) {
  std::ofstream(file_) << "\n  a secret of the job \n";
  set("HEADWAY_GROUP_SECRET_FILE", file_);
  EXPECT_EQ(read().secret, "a secret of the job");
  set("HEADWAY_GROUP_SECRET", "another one");
  EXPECT_NE(error().find("not both"), std::string::npos);
}

TEST_F(GroupEnvironment, WhatIsWrongIsNamed) {
  set("HEADWAY_GROUP_SECRET_FILE", file_);
  EXPECT_NE(error().find("HEADWAY_GROUP_SECRET_FILE: " + file_.string() + " cannot be read"), std::string::npos);
  std::ofstream(file_) << " \n";
  EXPECT_NE(error().find("is empty"), std::string::npos);
  std::ofstream(file_) << "short";
  EXPECT_NE(error().find("HEADWAY_GROUP_SECRET_FILE: the secret has 5 bytes, and 8 are needed"), std::string::npos);
  ::unsetenv("HEADWAY_GROUP_SECRET_FILE");
  set("HEADWAY_TRANSPORT", "pigeon");
  EXPECT_NE(error().find("HEADWAY_TRANSPORT must be auto, shm, tcp or verbs, not 'pigeon'"), std::string::npos);
}

}  // namespace
}  // namespace headway::comm
