#include "transport/ucx/ucx_wire.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

#include <afd/deadline.h>

#include "base/log.h"

namespace afd::transport {
namespace {

constexpr unsigned kMessageId = 0;

Error unavailable(const char* call, ucs_status_t status) {
  return {ErrorCode::kUnavailable, std::string("UCX: ") + call + ": " + ucs_status_string(status)};
}

/// Whether these are transports within one host, as UCX_TLS names them.
bool names_memory_only(std::string_view transports) {
  bool memory_only = !transports.empty();
  while (!transports.empty()) {
    const std::size_t comma = transports.find(',');
    const std::string_view name = transports.substr(0, comma);
    memory_only &= name == "posix" || name == "sysv" || name == "shm" || name == "cma" ||
                   name == "self" || name == "sm" || name == "mm";
    transports.remove_prefix(comma == std::string_view::npos ? transports.size() : comma + 1);
  }
  return memory_only;
}

/// UCX warns of every connection that says nothing sensible, whoever makes it: a few lines a while,
/// and then how many were left out.
///
/// Threads: any.
class WarningBudget {
 public:
  /// @return how many were left out since the last one that may be logged; none: nor may this be
  std::optional<std::uint64_t> take() {
    const std::scoped_lock lock(mutex_);
    if (while_.expired()) {
      while_ = Deadline::after(kWhile);
      num_logged_ = 0;
    }
    if (num_logged_ == kWarningsMax) {
      ++num_left_out_;
      return std::nullopt;
    }
    ++num_logged_;
    return std::exchange(num_left_out_, 0);
  }

 private:
  static constexpr std::chrono::seconds kWhile{5};
  static constexpr std::uint32_t kWarningsMax = 5;
  std::mutex mutex_;
  Deadline while_ = Deadline::now();
  std::uint32_t num_logged_ = 0;
  std::uint64_t num_left_out_ = 0;
};

/// UCX's own way is to print on stdout, which may be a program's JSON.
ucs_log_func_rc_t on_log(const char*, unsigned, const char*, ucs_log_level_t level,
                         const ucs_log_component_config_t*, const char* format, va_list arguments) {
  static WarningBudget budget;
  if (level > UCS_LOG_LEVEL_WARN) {
    return UCS_LOG_FUNC_RC_STOP;
  }
  std::array<char, 512> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  if (level <= UCS_LOG_LEVEL_ERROR) {
    base::log(base::LogLevel::kError, "UCX", {{"text", text.data()}});
  } else if (const std::optional<std::uint64_t> left_out = budget.take()) {
    base::log(base::LogLevel::kWarn, "UCX", {{"text", text.data()}, {"left_out", *left_out}});
  }
  return UCS_LOG_FUNC_RC_STOP;
}

void take_over_logging() {
  static const bool done = [] {
    ucs_log_push_handler(&on_log);
    return true;
  }();
  static_cast<void>(done);
}

void tell(void* end, ucs_status_t status) {
  static_cast<WireEnd*>(end)->on_end(status == UCS_OK ? nullptr : ucs_status_string(status));
}

struct UcxEndpoint final : WireEndpoint {
  explicit UcxEndpoint(WireEnd& end) : broken(&end) {}

  WireEnd* const broken;
  ucp_ep_h ep = nullptr;  ///< null once it is being closed
  void* closing = nullptr;
};

UcxEndpoint& own(WireEndpoint& endpoint) {
  return static_cast<UcxEndpoint&>(endpoint);
}

class UcxWire final : public Wire {
 public:
  UcxWire(WireReceiver& receiver, bool memory_only)
      : receiver_(receiver), memory_only_(memory_only) {}
  ~UcxWire() override {
    if (worker_ != nullptr) {
      ucp_worker_destroy(worker_);
    }
    if (context_ != nullptr) {
      ucp_cleanup(context_);
    }
  }

  Result<void> begin(const UcxOptions& options);

  const std::string& address() const override { return address_; }
  Result<std::unique_ptr<WireEndpoint>> connect(std::string_view address, WireEnd& broken) override;
  void close(WireEndpoint& endpoint) override;
  bool is_closed(WireEndpoint& endpoint) override;
  Result<bool> send(WireEndpoint& endpoint, std::span<const std::byte> header,
                    std::span<const std::byte> data, WireEnd& end) override;
  void fetch(const Arrival& arrival, std::byte* target, WireEnd& end) override;
  bool progress() override { return ucp_worker_progress(worker_) != 0; }
  int event_fd() const override { return event_fd_; }
  bool arm() override { return ucp_worker_arm(worker_) == UCS_OK; }
  bool is_memory_only() const override { return memory_only_; }
  // One fragment of UCX's, so that it need not put it together in memory that it allocates: the
  // settings in begin() leave room for this and the headers.
  std::uint64_t piece_bytes() const override { return memory_only_ ? 31 * 1024 : 128 * 1024; }
  std::string describe(const WireEndpoint& endpoint) const override;

 private:
  static ucs_status_t on_message(void* self, const void* header, std::size_t header_bytes,
                                 void* data, std::size_t size, const ucp_am_recv_param_t* param);

  WireReceiver& receiver_;
  const bool memory_only_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::string address_;
};

Result<void> UcxWire::begin(const UcxOptions& options) {
  take_over_logging();
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ucp_config_read(nullptr, nullptr, &config); status != UCS_OK) {
    return fail(unavailable("ucp_config_read", status));
  }
  const auto set = [config](const char* name, const std::string& value) {
    if (!value.empty()) {
      // One that this version of UCX does not know stays unset.
      static_cast<void>(ucp_config_modify(config, name, value.c_str()));
    }
  };
  // What piece_bytes() needs. A setting that no transport takes is a warning of UCX.
  const auto uses = [&options](const char* name) {
    return options.transports.empty() || options.transports.find(name) != std::string::npos;
  };
  if (uses("tcp")) {
    set("RX_SEG_SIZE", "136k");
  }
  if (uses("posix") || uses("sysv") || uses("shm")) {
    // 64 KiB and more crash UCX 1.13: a length of 16 bits. And no power of two, or the fragments'
    // first lines share a few sets of the caches: 4 KiB took 2.6 us instead of 2.2.
    set("MM_SEG_SIZE", "32320");
  }
  set("TLS", options.transports);
  set("NET_DEVICES", options.net_devices);

  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "afd";
  const ucs_status_t initialized = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  if (initialized != UCS_OK) {
    return fail(unavailable("ucp_init", initialized));
  }

  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  if (const ucs_status_t status = ucp_worker_create(context_, &worker_params, &worker_);
      status != UCS_OK) {
    return fail(unavailable("ucp_worker_create", status));
  }
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.cb = &UcxWire::on_message;
  handler.arg = this;
  if (const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_, &handler);
      status != UCS_OK) {
    return fail(unavailable("ucp_worker_set_am_recv_handler", status));
  }
  if (const ucs_status_t status = ucp_worker_get_efd(worker_, &event_fd_); status != UCS_OK) {
    return fail(unavailable("ucp_worker_get_efd", status));
  }
  ucp_address_t* address = nullptr;
  std::size_t address_bytes = 0;
  if (const ucs_status_t status = ucp_worker_get_address(worker_, &address, &address_bytes);
      status != UCS_OK) {
    return fail(unavailable("ucp_worker_get_address", status));
  }
  address_.assign(reinterpret_cast<const char*>(address), address_bytes);
  ucp_worker_release_address(worker_, address);
  return {};
}

Result<std::unique_ptr<WireEndpoint>> UcxWire::connect(std::string_view address, WireEnd& broken) {
  auto endpoint = std::make_unique<UcxEndpoint>(broken);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_handler.cb = [](void* told, ucp_ep_h, ucs_status_t status) { tell(told, status); };
  params.err_handler.arg = endpoint->broken;
  // UCX's shared memory cannot tell a peer's death, and refuses to promise it: it is used where it
  // alone was asked for, on both sides alike. One side that fell back to it would never be heard.
  params.err_mode = memory_only_ ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
  const ucs_status_t status = ucp_ep_create(worker_, &params, &endpoint->ep);
  if (status != UCS_OK) {
    Error error = unavailable("ucp_ep_create", status);
    if (status == UCS_ERR_UNREACHABLE) {
      error.message +=
          ": no transport and device of both sides that notices a peer's end (ucx_transports, "
          "ucx_net_devices, UCX_TLS and UCX_NET_DEVICES choose them)";
    }
    return fail(std::move(error));
  }
  return std::unique_ptr<WireEndpoint>(std::move(endpoint));
}

void UcxWire::close(WireEndpoint& endpoint) {
  UcxEndpoint& closed = own(endpoint);
  if (closed.ep == nullptr) {
    return;
  }
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(std::exchange(closed.ep, nullptr), &param);
  closed.closing = UCS_PTR_IS_PTR(request) ? request : nullptr;
}

bool UcxWire::is_closed(WireEndpoint& endpoint) {
  UcxEndpoint& closed = own(endpoint);
  if (closed.closing != nullptr && ucp_request_check_status(closed.closing) != UCS_INPROGRESS) {
    ucp_request_free(std::exchange(closed.closing, nullptr));
  }
  return closed.ep == nullptr && closed.closing == nullptr;
}

Result<bool> UcxWire::send(WireEndpoint& endpoint, std::span<const std::byte> header,
                           std::span<const std::byte> data, WireEnd& end) {
  UcxEndpoint& to = own(endpoint);
  if (to.ep == nullptr) {
    return fail(ErrorCode::kPeerLost, "its endpoint has been closed");
  }
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  // Never a rendezvous: it would need this rank's progress in the middle (docs/decisions/0007).
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = [](void* request, ucs_status_t status, void* told) {
    ucp_request_free(request);
    tell(told, status);
  };
  param.user_data = &end;
  const ucs_status_ptr_t request = ucp_am_send_nbx(to.ep, kMessageId, header.data(), header.size(),
                                                   data.data(), data.size(), &param);
  if (UCS_PTR_IS_ERR(request)) {
    return fail(ErrorCode::kPeerLost, ucs_status_string(UCS_PTR_STATUS(request)));
  }
  return request != nullptr;
}

void UcxWire::fetch(const Arrival& arrival, std::byte* target, WireEnd& end) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = [](void* request, ucs_status_t status, std::size_t, void* told) {
    ucp_request_free(request);
    tell(told, status);
  };
  param.user_data = &end;
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_, arrival.descriptor, target, arrival.size_bytes, &param);
  if (!UCS_PTR_IS_PTR(request)) {
    tell(&end, UCS_PTR_STATUS(request));
  }
}

std::string UcxWire::describe(const WireEndpoint& endpoint) const {
  const ucp_ep_h ep = static_cast<const UcxEndpoint&>(endpoint).ep;
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const stream = ep == nullptr ? nullptr : ::open_memstream(&text, &size);
  if (stream == nullptr) {
    return "UCX";
  }
  ucp_ep_print_info(ep, stream);
  std::fclose(stream);
  const std::string info(text, size);
  std::free(text);
  // "#                 lane[0]:  3:tcp/eth0.0 md[2]  -> ...": each name once.
  std::string found = "UCX";
  for (std::size_t at = 0; (at = info.find("lane[", at)) != std::string::npos; ++at) {
    const std::size_t lane_end = info.find(':', at);
    const std::size_t number_end = info.find(':', lane_end + 1);
    const std::size_t name_end = info.find(' ', number_end);
    if (lane_end == std::string::npos || number_end == std::string::npos ||
        name_end == std::string::npos) {
      break;
    }
    std::string name = info.substr(number_end + 1, name_end - number_end - 1);
    name.resize(std::min(name.rfind('.'), name.size()));
    if (found.find(name) == std::string::npos) {
      found += (found == "UCX" ? " " : ", ") + name;
    }
  }
  return found;
}

ucs_status_t UcxWire::on_message(void* self, const void* header, std::size_t header_bytes,
                                 void* data, std::size_t size, const ucp_am_recv_param_t* param) {
  const bool fetched = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const Arrival arrival{.header = {static_cast<const std::byte*>(header), header_bytes},
                        .data = fetched ? nullptr : static_cast<const std::byte*>(data),
                        .descriptor = fetched ? data : nullptr,
                        .size_bytes = size};
  return static_cast<UcxWire*>(self)->receiver_.on_arrival(arrival) ? UCS_INPROGRESS : UCS_OK;
}

}  // namespace

Result<std::unique_ptr<Wire>> UcxWireMaker::make(WireReceiver& receiver) const {
  auto wire = std::make_unique<UcxWire>(receiver, names_memory_only(options_.transports));
  if (Result<void> begun = wire->begin(options_); !begun) {
    return fail(std::move(begun).error());
  }
  return std::unique_ptr<Wire>(std::move(wire));
}

}  // namespace afd::transport
