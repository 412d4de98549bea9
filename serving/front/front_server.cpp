// SPDX-License-Identifier: Apache-2.0
#include "front_server.hpp"

#include "headway/base/status.hpp"
#include "infer_request.hpp"
#include "open_inference.grpc.pb.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <string>
#include <utility>

namespace headway::serving {

namespace {

using grpc::CallbackServerContext, grpc::ServerUnaryReactor, grpc::Status, grpc::StatusCode;

StatusCode code_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kAnswered:
      return StatusCode::OK;
    case Outcome::kInvalid:
      return StatusCode::INVALID_ARGUMENT;
    case Outcome::kQueueFull:
      return StatusCode::RESOURCE_EXHAUSTED;
    case Outcome::kDeadlineExceeded:
      return StatusCode::DEADLINE_EXCEEDED;
    case Outcome::kUnavailable:
      return StatusCode::UNAVAILABLE;
    case Outcome::kFailed:
      return StatusCode::INTERNAL;
  }
  return StatusCode::UNKNOWN;
}

/// gRPC does not say why it cannot listen. With TLS, a listener without it finds out whether the address is the reason.
[[noreturn]] void throw_why_not_listening(FrontOptions const& options) {
  if (!options.tls.certificate.empty()) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(options.address, grpc::InsecureServerCredentials(), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    auto const queue = builder.AddCompletionQueue();  // Without calls to serve, a server needs one.
    auto const server = builder.BuildAndStart();
    if (server != nullptr) server->Shutdown();
    queue->Shutdown();
    if (server != nullptr && port != 0) {
      throw base::UsageError("TLS does not take the files: " + options.tls.certificate.string() + " and " +
                             options.tls.key.string() + " do not belong together, or one of them is damaged");
    }
  }
  throw base::SystemError("listening", EADDRINUSE, "on " + options.address);
}

ServerUnaryReactor* finish(CallbackServerContext& context, Status const& status = Status::OK) {
  auto* const reactor = context.DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

}  // namespace

class FrontServer::Service final : public inference::GRPCInferenceService::CallbackService {
 public:
  Service(Engine& engine, FrontOptions options) : engine_(engine), options_(std::move(options)) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(options_.address, server_credentials(options_.tls), &port_);
    builder.RegisterService(this);
    builder.SetMaxReceiveMessageSize(static_cast<int>(options_.max_message_bytes));
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // A port that is taken is an error.
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) throw_why_not_listening(options_);
    update_health();
  }
  /// Waits for replies that are being sent. Clients that watch the health of the server do not end by themselves.
  ~Service() override { server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2)); }
  Service(Service const&) = delete;
  Service& operator=(Service const&) = delete;

  [[nodiscard]] int port() const { return port_; }
  void update_health() {
    if (auto* const health = server_->GetHealthCheckService()) health->SetServingStatus(engine_.is_ready());
  }

  ServerUnaryReactor* ServerLive(CallbackServerContext* context, inference::ServerLiveRequest const* /*request*/,
                                 inference::ServerLiveResponse* response) override {
    response->set_live(true);
    return finish(*context);
  }
  ServerUnaryReactor* ServerReady(CallbackServerContext* context, inference::ServerReadyRequest const* /*request*/,
                                  inference::ServerReadyResponse* response) override {
    response->set_ready(engine_.is_ready());
    return finish(*context);
  }
  ServerUnaryReactor* ModelReady(CallbackServerContext* context, inference::ModelReadyRequest const* request,
                                 inference::ModelReadyResponse* response) override {
    response->set_ready(engine_.is_ready() && check_model(request->name(), request->version()).ok());
    return finish(*context);
  }
  ServerUnaryReactor* ServerMetadata(CallbackServerContext* context,
                                     inference::ServerMetadataRequest const* /*request*/,
                                     inference::ServerMetadataResponse* response) override {
    response->set_name("headway");
    response->set_version(HEADWAY_VERSION);
    return finish(*context);
  }
  ServerUnaryReactor* ModelMetadata(CallbackServerContext* context, inference::ModelMetadataRequest const* request,
                                    inference::ModelMetadataResponse* response) override {
    auto const status = check_model(request->name(), request->version());
    if (!status.ok()) return finish(*context, status);
    response->set_name(options_.model_name);
    describe_model(engine_.model()->manifest(), *response);
    return finish(*context);
  }
  ServerUnaryReactor* ModelInfer(CallbackServerContext* context, inference::ModelInferRequest const* request,
                                 inference::ModelInferResponse* response) override;

 private:
  [[nodiscard]] Status check_model(std::string const& name, std::string const& version) const {
    if (name != options_.model_name) {
      return {StatusCode::NOT_FOUND, "there is no model " + quoted(name) + ", only " + options_.model_name};
    }
    auto const present = engine_.model()->manifest().version;
    if (version.empty() || version == present) return Status::OK;
    return {StatusCode::NOT_FOUND, "version " + quoted(version) + " is not served, but " + present};
  }
  [[nodiscard]] Clock::time_point deadline_of(CallbackServerContext const& context,
                                              inference::ModelInferRequest const& request) const {
    auto const now = Clock::now();
    std::chrono::nanoseconds left = options_.default_timeout;
    if (auto const deadline = context.deadline(); deadline != std::chrono::system_clock::time_point::max()) {
      left = deadline - std::chrono::system_clock::now();
    }
    auto const found = request.parameters().find("timeout");
    if (found != request.parameters().end() && found->second.int64_param() > 0) {
      left = std::min(left, std::chrono::nanoseconds(std::chrono::microseconds(
                                std::min<std::int64_t>(found->second.int64_param(), 3'600'000'000))));
    }
    return now + std::min(left, std::chrono::nanoseconds(std::chrono::hours(1)));
  }

  Engine& engine_;
  FrontOptions const options_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

ServerUnaryReactor* FrontServer::Service::ModelInfer(CallbackServerContext* context,
                                                     inference::ModelInferRequest const* request,
                                                     inference::ModelInferResponse* response) {
  auto const status = check_model(request->model_name(), request->model_version());
  if (!status.ok()) return finish(*context, status);
  // A batch may read the arrays after the call has ended at its deadline, so they need a message of their own.
  auto const message = std::make_shared<inference::ModelInferRequest const>(*request);
  auto const model = engine_.model();
  Request parsed;
  try {
    parsed = parse_request(message, model->manifest());
  } catch (RequestError const& error) {
    return finish(*context, {StatusCode::INVALID_ARGUMENT, error.what()});
  }
  auto* const reactor = context->DefaultReactor();
  engine_.submit(std::move(parsed), deadline_of(*context, *message),
                 [reactor, response, message, model](Reply&& reply) {
                   if (reply.outcome != Outcome::kAnswered) {
                     return reactor->Finish({code_of(reply.outcome), reply.error});
                   }
                   write_response(*message, reply, model->manifest(), *response);
                   reactor->Finish(Status::OK);
                 });
  return reactor;
}

FrontServer::FrontServer(Engine& engine, FrontOptions const& options)
    : service_(std::make_unique<Service>(engine, options)) {}
FrontServer::~FrontServer() = default;
int FrontServer::port() const { return service_->port(); }
void FrontServer::update_health() { service_->update_health(); }

}  // namespace headway::serving
