// SPDX-License-Identifier: Apache-2.0

// Python module headway._C. Its types are in python/headway/_C.pyi.
//
// Rules of all functions here:
// - A call that may wait, for peers or for a lock, releases the GIL (`Release`): other threads of Python may have to
//   act before it can end. Functions that make Python objects keep it.
// - Arguments are checked here too, under the names that Python gives them. A wrong one raises ValueError. Sizes are
//   signed, so that -1 gives that message and not one about an overflow.
// - Python and torch own options and backends together (c10::intrusive_ptr).
// - A former name works for now, and issues a DeprecationWarning.

#include "backend/headway_backend.hpp"
#include "backend/slot_ring.hpp"
#include "python/log.hpp"
#include "python/memory.hpp"
#include "runtime/exit_hooks.hpp"
#include "torch_headers.hpp"

#include <headway/comm/device_memory.hpp>

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/version.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <variant>

namespace py = pybind11;

namespace headway::c10d_backend {

namespace {

using Milliseconds = std::chrono::milliseconds;

/// Transports that Python may choose, by name.
std::map<std::string, comm::Transport> const& transports() {
  static std::map<std::string, comm::Transport> const by_name{{"auto", comm::Transport::kAuto},
                                                              {"shm", comm::Transport::kShm},
                                                              {"tcp", comm::Transport::kTcp},
                                                              {"verbs", comm::Transport::kVerbs}};
  return by_name;
}

comm::Transport transport_named(std::string const& name) {
  auto const found = transports().find(name);
  if (found == transports().end())
    throw py::value_error("transport must be auto, shm, tcp or verbs, not '" + name + "'");
  return found->second;
}

std::string name_of(comm::Transport transport) {
  for (auto const& [name, value] : transports()) {
    if (value == transport) return name;
  }
  throw py::value_error("this transport cannot be chosen in Python");
}

/// @throws py::value_error with `message`, a ValueError in Python, unless `condition` holds.
void expects_value(bool condition, std::string const& message) {
  if (!condition) throw py::value_error(message);
}

/// Sets the secret of a group. If it is empty, HEADWAY_GROUP_SECRET counts, or else the bootstrap draws one.
void set_secret(comm::GroupOptions& settings, std::string secret) {
  expects_value(secret.empty() || secret.size() >= comm::kMinSecretBytes,
                "secret must have at least " + std::to_string(comm::kMinSecretBytes) + " bytes, not " +
                    std::to_string(secret.size()) + "; `openssl rand -hex 32` makes a good one");
  settings.secret = std::move(secret);
}

/// Notes that the user chose a size: it then takes precedence over the one of the environment.
void set_slot_bytes(HeadwayOptions& options, std::int64_t slot_bytes) {
  expects_value(slot_bytes > 0, "slot_bytes must be above 0, not " + std::to_string(slot_bytes));
  options.group.slot_bytes = static_cast<std::size_t>(slot_bytes);
  options.has_slot_bytes = true;
}

constexpr char const* kAutomatic = "auto";
/// max_lag_limit for max_lag="auto" if none is given.
constexpr int kDefaultAutomaticLimit = 8;
using LagOrAuto = std::variant<int, std::string>;

/// Issues a DeprecationWarning, worded as those of python/headway/_deprecation.py.
/// @throws it if Python's filters make it an error.
void warn_of_old_name(char const* old_name, char const* new_name) {
  auto const text = "headway.Options: " + std::string(old_name) + " is deprecated and will be removed: use " + new_name;
  if (PyErr_WarnEx(PyExc_DeprecationWarning, text.c_str(), 1) != 0) throw py::error_already_set();
}

/// headway.Options(). `lag` may be "auto": then max_lag starts at 0, and the group collects what recommended_max_lag()
/// needs. `engine` and `allow_pull` are former names of `transport` and `allow_get`; if they are given, they take
/// precedence.
c10::intrusive_ptr<HeadwayOptions> make_options(LagOrAuto const& lag, int max_lag_limit,
                                                std::optional<std::int64_t> slot_bytes, int num_channels,
                                                std::string const& transport, std::optional<Milliseconds> timeout,
                                                Milliseconds connect_timeout, std::string secret, std::string interface,
                                                std::string rdma_device, int rdma_rails, std::int64_t rdma_cache_bytes,
                                                std::int64_t flight_records, std::int64_t cuda_slot_bytes,
                                                bool allow_get, std::optional<std::string> const& engine,
                                                std::optional<bool> allow_pull) {
  auto const* const name = std::get_if<std::string>(&lag);
  expects_value(name == nullptr || *name == kAutomatic,
                "max_lag must be a number or 'auto', not '" + (name == nullptr ? "" : *name) + "'");
  bool const is_automatic = name != nullptr;
  int const max_lag = is_automatic ? 0 : std::get<int>(lag);
  if (is_automatic && max_lag_limit == -1) max_lag_limit = kDefaultAutomaticLimit;
  expects_value(max_lag >= 0, "max_lag must be at least 0, not " + std::to_string(max_lag));
  expects_value(max_lag_limit == -1 || max_lag_limit >= max_lag,
                "max_lag_limit must be -1 (as max_lag) or at least max_lag, not " + std::to_string(max_lag_limit));
  expects_value(num_channels >= 1 && num_channels <= 64,
                "num_channels must be 1 to 64, not " + std::to_string(num_channels));
  expects_value(!timeout || timeout->count() > 0, "timeout must be above 0");
  expects_value(connect_timeout.count() > 0, "connect_timeout must be above 0");
  expects_value(rdma_rails >= 1 && rdma_rails <= 8, "rdma_rails must be 1 to 8, not " + std::to_string(rdma_rails));
  expects_value(rdma_cache_bytes >= 0, "rdma_cache_bytes must be at least 0, not " + std::to_string(rdma_cache_bytes));
  expects_value(flight_records >= 0, "flight_records must be at least 0, not " + std::to_string(flight_records));
  expects_value(cuda_slot_bytes >= 64 * 1024,
                "cuda_slot_bytes must be at least 65536, not " + std::to_string(cuda_slot_bytes));
  comm::GroupOptions settings;
  if (engine) warn_of_old_name("engine", "transport");
  settings.transport = transport_named(engine.value_or(transport));
  settings.max_lag = max_lag;
  settings.max_lag_limit = max_lag_limit;
  settings.adapt_lag = is_automatic;
  settings.num_channels = num_channels;
  settings.timeout = timeout.value_or(kBackendDefaultTimeout);
  settings.connect_timeout = connect_timeout;
  set_secret(settings, std::move(secret));
  settings.interface = std::move(interface);
  settings.rdma_device = std::move(rdma_device);
  settings.rdma_rails = rdma_rails;
  settings.rdma_cache_bytes = static_cast<std::size_t>(rdma_cache_bytes);
  settings.flight_records = static_cast<std::size_t>(flight_records);
  if (allow_pull) warn_of_old_name("allow_pull", "allow_get");
  settings.allow_get = allow_pull.value_or(allow_get);
  auto options = c10::make_intrusive<HeadwayOptions>(std::move(settings));
  options->has_timeout = timeout.has_value();
  options->cuda_slot_bytes = static_cast<std::size_t>(cuda_slot_bytes);
  if (slot_bytes) set_slot_bytes(*options, *slot_bytes);
  return options;
}

/// Returns an expression with the main options, for repr(). It leaves out the secret, among others.
std::string describe(HeadwayOptions const& options) {
  auto const& group = options.group;
  return "headway.Options(max_lag=" + (group.adapt_lag ? "'auto'" : std::to_string(group.max_lag)) +
         ", max_lag_limit=" + std::to_string(group.max_lag_limit) + ", slot_bytes=" + std::to_string(group.slot_bytes) +
         ", num_channels=" + std::to_string(group.num_channels) + ", transport='" + name_of(group.transport) + "')";
}

LagOrAuto max_lag_of(HeadwayOptions const& options) {
  if (options.group.adapt_lag) return kAutomatic;
  return options.group.max_lag;
}

constexpr char const* kOptionsDoc =
    R"(Settings of a group: ``pg_options`` of ``init_process_group()`` and ``new_group()``.

All ranks must give the same values of ``max_lag_limit``, ``slot_bytes``, ``num_channels``, ``transport``,
``cuda_slot_bytes``, ``allow_get``, ``rdma_rails`` and ``secret``, and all or none of them ``max_lag="auto"``. Otherwise
connecting fails with an error that names the difference. Each rank chooses the other settings for itself.

Args:
    max_lag: all-to-alls that a rank may run ahead, at least 0. ``"auto"`` collects what a recommended bound needs;
        ``headway.LagQueue`` then follows the recommendation.
    max_lag_limit: largest bound that ``headway.set_max_lag()`` accepts. It fixes the size of the receive buffers. -1:
        ``max_lag``, or 8 with ``"auto"``.
    slot_bytes: largest block for one peer, in bytes, that can lag. An exchange with a larger block works, but does not
        lag: the sender waits until the receiver takes part. None: 256 KiB, or ``HEADWAY_SLOT_BYTES``.
    num_channels: independent sequences of all-to-alls, 1 to 64.
    transport: ``"auto"``, ``"shm"``, ``"tcp"`` or ``"verbs"``. ``"auto"`` is shared memory inside a host, and RDMA or
        TCP between hosts.
    timeout: limit of each operation. None: the ``timeout`` of ``init_process_group()`` or ``new_group()``.
    connect_timeout: limit of creating the group.
    secret: text of at least 8 bytes that ranks must know to connect. Empty: that of ``HEADWAY_GROUP_SECRET``, or rank 0
        draws one and passes it through the store.
    interface: network interface for traffic between hosts, by name or address. Empty: all.
    rdma_device: ``DEVICE``, ``DEVICE:PORT`` or ``DEVICE:PORT:GID_INDEX``. Empty: chosen.
    rdma_rails: RDMA queue pairs per peer, 1 to 8.
    rdma_cache_bytes: memory of ``headway.empty()`` that stays registered with the RDMA device, in bytes.
    flight_records: operations that the flight recorder keeps; 0 switches it off.
    cuda_slot_bytes: largest block of CUDA tensors, in bytes, that goes in one slot; at least 64 KiB.
    allow_get: whether peers may read this process's memory. Without it, large blocks go in fragments.
    engine, allow_pull: former names of ``transport`` and ``allow_get``, for one release.
Raises:
    ValueError: a value is out of its range.
)";

/// Getter of a property that reads a member of GroupOptions.
template <typename Member>
auto reader(Member comm::GroupOptions::*member) {
  return [member](HeadwayOptions const& options) { return options.group.*member; };
}

void define_options(py::module_& module, py::object const& base) {
  auto const copy = [](HeadwayOptions const& options) { return c10::make_intrusive<HeadwayOptions>(options); };
  comm::GroupOptions const defaults;
  py::class_<HeadwayOptions, c10::intrusive_ptr<HeadwayOptions>>(module, "Options", base, kOptionsDoc)
      .def(py::init(&make_options), py::kw_only(), py::arg("max_lag") = defaults.max_lag,
           py::arg("max_lag_limit") = defaults.max_lag_limit, py::arg("slot_bytes") = py::none(),
           py::arg("num_channels") = defaults.num_channels, py::arg("transport") = "auto",
           py::arg("timeout") = py::none(), py::arg("connect_timeout") = defaults.connect_timeout,
           py::arg("secret") = "", py::arg("interface") = "", py::arg("rdma_device") = "",
           py::arg("rdma_rails") = defaults.rdma_rails,
           py::arg("rdma_cache_bytes") = static_cast<std::int64_t>(defaults.rdma_cache_bytes),
           py::arg("flight_records") = static_cast<std::int64_t>(defaults.flight_records),
           py::arg("cuda_slot_bytes") = static_cast<std::int64_t>(comm::DeviceOptions().slot_bytes),
           py::arg("allow_get") = defaults.allow_get, py::arg("engine") = py::none(),
           py::arg("allow_pull") = py::none())
      .def("__copy__", copy)
      .def("__deepcopy__", [copy](HeadwayOptions const& options, py::dict const&) { return copy(options); })
      .def("__repr__", &describe)
      .def_property_readonly("max_lag", &max_lag_of)
      .def_property_readonly("max_lag_limit", reader(&comm::GroupOptions::max_lag_limit))
      .def_property_readonly("num_channels", reader(&comm::GroupOptions::num_channels))
      .def_property_readonly("connect_timeout", reader(&comm::GroupOptions::connect_timeout))
      .def_property_readonly("timeout",
                             [](HeadwayOptions const& options) -> std::optional<Milliseconds> {
                               if (!options.has_timeout) return std::nullopt;
                               return options.timeout;
                             })
      .def_property(
          "transport", [](HeadwayOptions const& options) { return name_of(options.group.transport); },
          [](HeadwayOptions& options, std::string const& name) { options.group.transport = transport_named(name); })
      .def_property(
          "engine",
          [](HeadwayOptions const& options) {
            warn_of_old_name("engine", "transport");
            return name_of(options.group.transport);
          },
          [](HeadwayOptions& options, std::string const& name) {
            warn_of_old_name("engine", "transport");
            options.group.transport = transport_named(name);
          })
      .def_property("interface", reader(&comm::GroupOptions::interface),
                    [](HeadwayOptions& options, std::string name) { options.group.interface = std::move(name); })
      .def_property("rdma_device", reader(&comm::GroupOptions::rdma_device),
                    [](HeadwayOptions& options, std::string name) { options.group.rdma_device = std::move(name); })
      .def_property_readonly("rdma_rails", reader(&comm::GroupOptions::rdma_rails))
      .def_property_readonly("rdma_cache_bytes", reader(&comm::GroupOptions::rdma_cache_bytes))
      .def_property("slot_bytes", reader(&comm::GroupOptions::slot_bytes), &set_slot_bytes)
      .def_property_readonly("allow_get", reader(&comm::GroupOptions::allow_get))
      .def_property_readonly("allow_pull",
                             [](HeadwayOptions const& options) {
                               warn_of_old_name("allow_pull", "allow_get");
                               return options.group.allow_get;
                             })
      .def_property_readonly("flight_records", reader(&comm::GroupOptions::flight_records))
      .def_readonly("cuda_slot_bytes", &HeadwayOptions::cuda_slot_bytes)
      .def_readwrite("_flight_folder", &HeadwayOptions::flight_folder)
      .def_property_readonly("has_slot_bytes", [](HeadwayOptions const& options) { return options.has_slot_bytes; })
      .def("_set_secret",
           [](HeadwayOptions& options, std::string secret) { set_secret(options.group, std::move(secret)); })
      .def_property_readonly("has_secret", [](HeadwayOptions const& options) { return !options.group.secret.empty(); });
}

py::dict peer_statistics(comm::PeerStats const& peer) {
  py::dict row;
  row["wait_s"] = peer.wait_s;
  row["waits"] = peer.waits;
  row["bytes_sent"] = peer.bytes_sent;
  row["bytes_received"] = peer.bytes_received;
  row["messages_sent"] = peer.messages_sent;
  row["messages_received"] = peer.messages_received;
  row["repeated_fragments"] = peer.repeated_fragments;
  return row;
}

/// Counters in ``CudaStatistics``. All zero if the group has exchanged no CUDA tensor yet: asking makes no device
/// group.
py::dict device_statistics(HeadwayBackend const& backend) {
  auto const handle = backend.handle();
  auto* const group = handle->existing_device_group();
  comm::DeviceStats stats;
  if (group != nullptr) {
    py::gil_scoped_release const released;  // Another thread may be enqueuing.
    stats = group->stats();
  }
  py::dict row;
  row["operations"] = stats.operations;
  row["bytes_sent"] = stats.bytes_sent;
  row["bytes_received"] = stats.bytes_received;
  row["local_copies"] = stats.local_copies;
  row["local_copy_bytes"] = stats.local_copy_bytes;
  row["receive_buffer_bytes"] = stats.receive_buffer_bytes;
  row["mapped_bytes"] = stats.mapped_bytes;
  return row;
}

/// Counters of the group. python/headway/comm/statistics.py explains each key (GroupStatistics).
py::dict statistics(HeadwayBackend const& backend) {
  auto const stats = backend.handle()->group().monitor().stats();
  py::dict peers;
  for (std::size_t rank = 0; rank < stats.peers.size(); ++rank)
    peers[py::int_(rank)] = peer_statistics(stats.peers[rank]);
  py::dict all;
  all["peers"] = peers;
  all["lag_histogram"] = stats.lag_histogram;
  all["wait_s_by_lag"] = stats.wait_s_by_lag;
  all["operations"] = stats.operations;
  all["lag_lost"] = stats.lag_lost;                 // Blocks, not exchanges.
  all["rendezvous_fallbacks"] = stats.rts_revoked;  // Large blocks sent because the receiver did not fetch them.
  all["queued"] = stats.queued;
  all["receive_buffer_bytes"] = stats.receive_buffer_bytes;
  all["cuda"] = device_statistics(backend);
  return all;
}

/// Takes the events of the trace. python/headway/comm/tracing.py explains each key.
py::list drain_trace(HeadwayBackend const& backend) {
  py::list events;
  for (auto const& event : backend.handle()->group().monitor().drain_trace()) {
    py::dict row;
    row["seq"] = event.seq;
    row["channel"] = event.channel;
    row["started_s"] = event.started_s;
    row["posted_s"] = event.posted_s;
    row["completed_s"] = event.completed_s;
    row["bytes_sent"] = event.bytes_sent;
    row["bytes_received"] = event.bytes_received;
    row["last_peer"] = event.last_peer;
    row["lag"] = event.lag;
    events.append(row);
  }
  return events;
}

/// Name of the transport to each rank, in rank order; "self" for this one.
std::vector<std::string> transports_by_peer(HeadwayBackend const& backend) {
  std::vector<std::string> names;
  auto const handle = backend.handle();
  for (int peer = 0; peer < backend.getSize(); ++peer) {
    names.emplace_back(peer == backend.getRank() ? "self" : handle->group().monitor().traits(peer).transport);
  }
  return names;
}

void define_shrunk_backend(py::module_& module) {
  py::class_<ShrunkBackend>(module, "ShrunkBackend",
                            "Result of ``shrink_to_survivors()``; see ``headway.ShrunkGroup``.")
      .def_readonly("backend", &ShrunkBackend::backend, "Backend of the surviving ranks.")
      .def_readonly("ranks", &ShrunkBackend::ranks, "Rank in the old group of each new rank, ascending.")
      .def_readonly("all_to_alls", &ShrunkBackend::all_to_alls,
                    "Number of all-to-alls of the old group that every member completed, by channel.")
      .def_readonly("collectives", &ShrunkBackend::collectives,
                    "Number of other collectives of the old group that every member completed.");
}

void define_backend(py::module_& module, py::object const& base) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<HeadwayBackend, c10::intrusive_ptr<HeadwayBackend>>(module, "HeadwayBackend", base,
                                                                 "The headway backend of one process group.")
      .def(py::init<c10::intrusive_ptr<c10d::Store>, int, int, c10::intrusive_ptr<HeadwayOptions>, DelegateFactory>(),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"), py::arg("make_delegate"), Release())
      .def_property_readonly("options", &HeadwayBackend::getBackendOptions, "The ``headway.Options`` of the group.")
      .def("get_error", &HeadwayBackend::getError, Release())
      .def("_set_default_timeout", &HeadwayBackend::setTimeout, py::arg("timeout"), Release())
      .def("all_to_all_single", &HeadwayBackend::all_to_all_on_channel, py::arg("output"), py::arg("input"),
           py::arg("output_split_sizes"), py::arg("input_split_sizes"), py::arg("channel"),
           py::arg("timeout") = c10d::kUnsetTimeout, Release())
      .def("recommended_max_lag", &HeadwayBackend::recommended_max_lag, py::arg("channel") = 0, Release(),
           "Returns the smallest ``max_lag`` of a channel beyond which this rank would not wait noticeably less. The "
           "group "
           "needs ``Options(max_lag=\"auto\")``.")
      .def("set_max_lag", &HeadwayBackend::set_max_lag, py::arg("max_lag"), py::arg("channel") = py::none(), Release())
      .def("max_lag", &HeadwayBackend::max_lag, py::arg("channel") = 0, Release(),
           "Returns the present bound of a channel on this rank.")
      .def("shrink_to_survivors", &HeadwayBackend::shrink_to_survivors, py::arg("ranks_to_exclude"), py::arg("timeout"),
           Release())
      .def_property_readonly("store", &HeadwayBackend::store)
      .def("transports", &transports_by_peer, "Returns the transport to each rank; \"self\" for this one.")
      .def("statistics", &statistics)
      .def(
          "reset_statistics", [](HeadwayBackend const& backend) { backend.handle()->group().monitor().reset_stats(); },
          Release())
      .def(
          "set_trace_capacity",
          [](HeadwayBackend const& backend, std::int64_t capacity) {
            expects_value(capacity >= 0, "capacity must be at least 0, not " + std::to_string(capacity));
            backend.handle()->group().monitor().set_trace_capacity(static_cast<std::size_t>(capacity));
          },
          py::arg("capacity"), Release(),
          "Starts a trace of at most ``capacity`` exchanges per channel; 0 stops it. Drops the events so far.")
      .def("drain_trace", &drain_trace)
      .def(
          "flight_text", [](HeadwayBackend const& backend) { return backend.handle()->flight_text(); }, Release())
      .def(
          "health_message",
          [](HeadwayBackend const& backend) {
            return std::string(backend.handle()->group().monitor().health().message());
          },
          Release(), "Returns why the group failed; empty if it has not.");
}

void define_slots(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  // A slot has no constructor in Python: only take() makes one, and its lease ends with the last tensor in it.
  py::class_<SlotRing::Slot>(module, "Slot", "Receive memory of one exchange, leased from a ``SlotRing``.")
      .def_readonly("seq", &SlotRing::Slot::seq, "Position of the exchange among those of the ring, from 0.")
      .def_readonly("output", &SlotRing::Slot::output,
                    "Shape (size, capacity, ...features). Block r begins with the rows from rank r.")
      .def("block", &SlotRing::Slot::block, py::arg("rank"), py::arg("rows"))
      .def("blocks", &SlotRing::Slot::blocks, py::arg("rows"))
      .def("record_stream", &SlotRing::Slot::record_stream, py::arg("stream"), Release());
  py::class_<SlotRing>(module, "SlotRing",
                       "Ring of slots in device memory, into which peers write; see ``headway.slots.Ring``. "
                       "``capacity``: most rows from one rank to another per exchange. ``features``: shape of a row.")
      .def(py::init<c10::intrusive_ptr<HeadwayBackend>, at::Device, std::int64_t, std::vector<std::int64_t>,
                    at::ScalarType, int, int>(),
           py::arg("backend"), py::arg("device"), py::arg("capacity"), py::arg("features"), py::arg("dtype"),
           py::arg("num_slots"), py::arg("max_lag"), Release())
      .def("take", &SlotRing::take, Release())
      .def("exchange", &SlotRing::exchange, py::arg("slot"), py::arg("inputs"), py::arg("output_splits"),
           py::arg("timeout") = c10d::kUnsetTimeout, Release());
}

}  // namespace

}  // namespace headway::c10d_backend

PYBIND11_MODULE(_C, module) {
  module.attr("torch_version") = TORCH_VERSION;
  module.doc() = "The torch.distributed backend of Headway, in C++.";
  // torch defines the base types. They must be registered before ours are derived from them.
  py::object const c10d = py::module_::import("torch._C._distributed_c10d");
  headway::c10d_backend::define_options(module, c10d.attr("Backend").attr("Options"));
  headway::c10d_backend::define_backend(module, c10d.attr("Backend"));
  headway::c10d_backend::define_shrunk_backend(module);
  headway::c10d_backend::define_slots(module);
  headway::c10d_backend::define_log(module);
  module.def("empty", &headway::c10d_backend::empty, py::arg("size"), py::arg("dtype"),
             py::call_guard<py::gil_scoped_release>());
  module.def(
      "run_exit_hooks", &headway::c10d_backend::run_exit_hooks, py::arg("delivery_time"), py::arg("end_time"),
      py::call_guard<py::gil_scoped_release>(),
      "Ends all groups and their threads. It waits at most ``delivery_time`` until peers have received what this "
      "rank sent, and at most ``end_time`` for the threads.");
  module.def("cuda_memory_generation", &headway::comm::device_memory_generation,
             "Returns how often memory of ``headway.empty()`` on CUDA devices became unsafe to reuse, because a group "
             "failed. A pool from before the last time must not be used any more.");
}
