// SPDX-License-Identifier: Apache-2.0

// A rank that serves a package: `headway serve` starts one for each rank.

#include "compiled_model.hpp"
#include "front_server.hpp"
#include "headway/base/log.hpp"
#include "headway/base/status.hpp"
#include "headway/serving/engine.hpp"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unistd.h>

namespace headway::serving {

namespace {

constexpr char const* kUsage = R"(usage: headway_serve --package FOLDER [option...]
  --package FOLDER      what `headway export` has written
  --name NAME           of the model (default: model)
  --rank R, --size N    this rank of N (default: 0 of 1)
  --store FOLDER        empty folder that all ranks share, for more than one rank
  --group NAME          distinguishes groups that share the store (default: serving)
  --address HOST:PORT   where this rank listens (default: 127.0.0.1:8001)
  --max-rows N          most items of a batch (default: 512)
  --batch-delay US      longest wait of a request for others, in microseconds (default: 1000)
  --max-in-flight N     batches between keys and replies (default: 3)
  --max-queued-rows N   items that may wait; more are refused (default: 65536)
  --model-threads N     threads of the dense part (default: 1)
  --timeout MS          time limit of requests without a deadline (default: 10000)
  --key-delay US        for benchmarks: mean of a random time before the keys of a batch are known (default: 0)
)";

struct Arguments {
  std::filesystem::path package, store;
  std::string group = "serving";
  int rank = 0, size = 1, model_threads = 1;
  std::int64_t key_delay_us = 0;
  EngineOptions engine{.batch_delay = std::chrono::microseconds(1000)};
  FrontOptions front;
};

std::int64_t number_of(std::string const& option, std::string const& text, std::int64_t least) {
  char* end = nullptr;
  errno = 0;
  auto const number = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || errno != 0 || number < least || number > 2'000'000'000) {
    throw base::UsageError(option + " must be a number from " + std::to_string(least) + ", not \"" + text + "\"");
  }
  return number;
}

Arguments parse(std::vector<std::string> const& words) {
  Arguments arguments;
  using Set = std::function<void(std::string const& option, std::string const& value)>;
  auto const number = [](auto& target, std::int64_t least) -> Set {
    return [&target, least](std::string const& option, std::string const& value) {
      target = static_cast<std::remove_reference_t<decltype(target)>>(number_of(option, value, least));
    };
  };
  auto const text = [](auto& target) -> Set {
    return [&target](std::string const& /*option*/, std::string const& value) { target = value; };
  };
  std::map<std::string, Set> const options{
      {"--package", text(arguments.package)},
      {"--store", text(arguments.store)},
      {"--group", text(arguments.group)},
      {"--name", text(arguments.front.model_name)},
      {"--address", text(arguments.front.address)},
      {"--rank", number(arguments.rank, 0)},
      {"--size", number(arguments.size, 1)},
      {"--max-rows", number(arguments.engine.max_rows, 1)},
      {"--max-in-flight", number(arguments.engine.max_in_flight, 1)},
      {"--max-queued-rows", number(arguments.engine.max_queued_rows, 1)},
      {"--model-threads", number(arguments.model_threads, 1)},
      {"--key-delay", number(arguments.key_delay_us, 0)},
      {"--batch-delay",
       [&](auto const& option, auto const& value) {
         arguments.engine.batch_delay = std::chrono::microseconds(number_of(option, value, 0));
       }},
      {"--timeout",
       [&](auto const& option, auto const& value) {
         arguments.front.default_timeout = std::chrono::milliseconds(number_of(option, value, 1));
       }},
  };
  for (std::size_t i = 0; i < words.size(); i += 2) {
    auto const found = options.find(words[i]);
    if (found == options.end()) throw base::UsageError("unknown option " + words[i]);
    if (i + 1 == words.size()) throw base::UsageError(words[i] + " needs a value");
    found->second(words[i], words[i + 1]);
  }
  if (arguments.package.empty()) throw base::UsageError("--package is missing");
  if (arguments.rank >= arguments.size) throw base::UsageError("--rank must be below --size");
  if (arguments.size > 1 && arguments.store.empty()) throw base::UsageError("several ranks need --store");
  return arguments;
}

std::shared_ptr<comm::Group> connect(Arguments const& arguments) {
  if (arguments.size == 1) return nullptr;
  comm::FileStore store(arguments.store);
  comm::GroupOptions options;
  options.name = arguments.group;
  // A receive for the keys of peers is always pending. Deadlines of requests are the engine's.
  options.timeout = std::chrono::hours(24 * 365);
  return comm::Group::connect(arguments.rank, arguments.size, store, options);
}

/// Signals that end the server. They are blocked in all threads.
sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

void serve(Arguments arguments, sigset_t const& signals) {
  auto manifest = read_package(arguments.package);
  auto const number = manifest.number;
  auto tables = read_tables(manifest, arguments.package, arguments.rank, arguments.size, nullptr);
  auto dense = load_compiled_model(manifest, arguments.package, arguments.model_threads);
  auto const model = std::make_shared<ServedModel>(std::move(manifest), std::move(dense));
  auto fetcher = make_pairwise_fetcher(connect(arguments), nullptr);
  fetcher->add_version(number, std::move(tables));
  if (arguments.key_delay_us > 0) {
    arguments.engine.delay_before_keys =
        [random = std::mt19937_64(static_cast<std::uint64_t>(arguments.rank)),
         draw = std::uniform_int_distribution<std::int64_t>(0, 2 * arguments.key_delay_us)]() mutable {
          return std::chrono::nanoseconds(std::chrono::microseconds(draw(random)));
        };
  }
  Engine engine(model, std::move(fetcher), arguments.engine);
  FrontServer front(engine, arguments.front);
  std::printf("rank %d of %d serves version %s of %s on port %d\n", arguments.rank, arguments.size,
              model->manifest().version.c_str(), arguments.front.model_name.c_str(), front.port());
  std::fflush(stdout);
  int signal = 0;
  sigwait(&signals, &signal);
  engine.refuse_new();
  front.update_health();
  engine.drain();
}

}  // namespace

}  // namespace headway::serving

int main(int argc, char** argv) {
  using namespace headway;
  std::vector<std::string> const words(argv + 1, argv + argc);
  if (words == std::vector<std::string>{"--help"}) {
    std::fputs(serving::kUsage, stdout);
    return 0;
  }
  auto const signals = serving::block_signals();
  try {
    base::check_log_variable();
    serving::serve(serving::parse(words), signals);
  } catch (base::UsageError const& error) {
    std::fprintf(stderr, "headway_serve: %s\n%s", error.what(), serving::kUsage);
    return 2;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "headway_serve: %s\n", error.what());
    return 1;
  }
  return 0;
}
