// SPDX-License-Identifier: Apache-2.0

// A server behind links: clients come and go one by one, and strangers are refused.

#include "headway/hybrid/server_service.hpp"

#include "headway/comm/link.hpp"
#include "server_fixture.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace headway::hybrid {
namespace {

comm::GroupOptions link_options(comm::Transport transport = comm::Transport::kAuto) {
  auto options = request_link_options({});
  options.transport = transport;
  options.slot_bytes = 4096;
  options.connect_timeout = kLong;
  options.name = "job";
  options.secret = "a secret of the job";
  return options;
}

ServerServiceOptions service_options(comm::Transport transport = comm::Transport::kAuto) {
  return {.service = {.address = "127.0.0.1:0", .link = link_options(transport)}};
}

class ServerServiceTest : public testing::TestWithParam<comm::Transport> {};
INSTANTIATE_TEST_SUITE_P(Transports, ServerServiceTest, testing::Values(comm::Transport::kAuto, comm::Transport::kTcp));

std::vector<float> train_one_step(ServerClient& client, std::uint64_t step, std::span<std::uint64_t const> ids) {
  std::vector<std::uint32_t> const tables(ids.size(), kTable), counts(ids.size(), 1);
  KeyList const keys{.ids = ids, .tables = tables, .counts = counts};
  auto const lookup = client.start_lookup(1, {step, 0}, {&keys, 1});
  auto rows = client.wait_rows(*lookup, kLong).value();
  std::vector<float> const gradients(rows.size(), -1);
  PartValues const part{.rate = 1, .gradients = gradients};
  client.finish(*client.start_part(1, {step, 0}, {&part, 1}));
  return rows;
}

TEST_P(ServerServiceTest, KeepsRowsWhileClientsComeAndGo) {
  ServerService const service(service_options(GetParam()));
  std::vector<std::uint64_t> ids;
  for (std::uint64_t id = 0; id < 2000; ++id) ids.push_back(id * 7);
  for (std::uint64_t step = 0; step < 3; ++step) {
    ServerClient client(comm::dial(service.address(), link_options(GetParam())), kLong);
    EXPECT_EQ(client.requester().incarnation(), service.incarnation());
    client.configure(one_table(16));
    client.begin_generation(1, {.num_workers = 1});
    EXPECT_EQ(train_one_step(client, step, ids), std::vector<float>(2000 * 16, static_cast<float>(step)));
  }
  auto const until = comm::deadline_after(kLong);
  while (service.num_links() > 0 && comm::Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(service.num_links(), 0U) << "links that ended are forgotten";
  EXPECT_EQ(service.status().num_applied, 3U);
  EXPECT_EQ(service.status().rows, 2000U);
}

TEST_P(ServerServiceTest, AClientThatDiesDoesNotStopTheOthers) {
  ServerService const service(service_options(GetParam()));
  ServerClient staying(comm::dial(service.address(), link_options(GetParam())), kLong);
  auto dying = std::make_unique<ServerClient>(comm::dial(service.address(), link_options(GetParam())), kLong);
  staying.configure(one_table(1));
  staying.begin_generation(1, {.num_workers = 1});
  std::vector<std::uint64_t> const ids{1};
  std::vector<std::uint32_t> const tables{kTable}, counts{1};
  KeyList const keys{.ids = ids, .tables = tables, .counts = counts};
  auto held = dying->start_lookup(1, {1, 0}, {&keys, 1});  // Waits for step 0.
  auto const until = comm::deadline_after(kLong);
  while (service.status().held == 0 && comm::Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  held.reset();
  dying.reset();
  EXPECT_EQ(train_one_step(staying, 0, ids).at(0), 0);
  EXPECT_EQ(service.status().held, 0U) << "answered to nobody";
  EXPECT_EQ(service.status().num_applied, 1U);
}

TEST_P(ServerServiceTest, StrangersAreRefused) {
  ServerService const service(service_options(GetParam()));
  auto other_secret = link_options(GetParam());
  other_secret.secret = "not the secret";
  EXPECT_THROW(static_cast<void>(comm::dial(service.address(), other_secret)), base::SystemError);
  auto other_job = link_options(GetParam());
  other_job.name = "another job";
  EXPECT_THROW(static_cast<void>(comm::dial(service.address(), other_job)), base::SystemError);
  ServerClient client(comm::dial(service.address(), link_options(GetParam())), kLong);
  EXPECT_EQ(client.status().generation, 0U);
}

TEST(ServerService, EachLifeHasAnotherIncarnation) {
  auto const first = std::make_unique<ServerService>(service_options())->incarnation();
  EXPECT_NE(ServerService(service_options()).incarnation(), first);
}

TEST(ServerService, EndsWhileClientsWait) {
  auto service = std::make_unique<ServerService>(service_options());
  ServerClient client(comm::dial(service->address(), link_options()), kLong);
  client.configure(one_table(1));
  client.begin_generation(1, {.num_workers = 1});
  std::vector<std::uint64_t> const ids{1};
  std::vector<std::uint32_t> const tables{kTable}, counts{1};
  KeyList const keys{.ids = ids, .tables = tables, .counts = counts};
  auto const held = client.start_lookup(1, {1, 0}, {&keys, 1});
  service.reset();
  EXPECT_THROW(static_cast<void>(client.wait_rows(*held, kLong)), base::OperationError);
}

TEST(ServerService, NeedsASecret) {
  auto options = service_options();
  options.service.link.secret.clear();
  EXPECT_THROW(ServerService{options}, base::UsageError);
}

}  // namespace
}  // namespace headway::hybrid
