// UCX alone: two processes, one worker each, and the calls that move a payload.
#pragma once

#include <ucp/api/ucp.h>

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/fence.h"
#include "transport/shm/hop_floor.h"

namespace afd::bench {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kBytesMax = 4096 * kKiB;

inline constexpr unsigned kAmId = 5;

/// The ways; ucx_ways.cc says what they are.
enum class Way { kTag, kAm, kAmEager, kAmRndv, kAmPieces, kPutPut, kPutAm };
inline constexpr std::array<const char*, 7> kWayNames = {
    "tag", "am", "am eager", "am rndv", "am pieces", "put + put", "put + am"};

[[noreturn]] inline void end(const std::string& what, ucs_status_t status) {
  std::fprintf(stderr, "%s: %s\n", what.c_str(), ucs_status_string(status));
  std::exit(1);
}
inline void must(const char* what, ucs_status_t status) {
  if (status != UCS_OK) {
    end(what, status);
  }
}

/// What the two processes tell each other: in shared memory, each a slot.
struct Card {
  std::atomic<std::uint32_t> there{0};
  std::uint64_t address_bytes = 0;
  std::uint64_t key_bytes = 0;
  std::uint64_t window = 0;
  std::array<char, 4096> address{};
  std::array<char, 4096> key{};
};

/// One process's end. One thread.
class UcxSide {
 public:
  /// @param piece_bytes        of am pieces
  /// @param notices_peers_end  whether its endpoint is one that does; UCX then leaves out some ways
  UcxSide(Card& own, Card& other, std::uint64_t piece_bytes, bool notices_peers_end)
      : own_(own), other_(other), piece_bytes_(piece_bytes), notices_peers_end_(notices_peers_end) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_RMA;
    must("ucp_init", ucp_init(&params, nullptr, &context_));
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    must("ucp_worker_create", ucp_worker_create(context_, &worker, &worker_));
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = kAmId;
    handler.cb = &UcxSide::on_am;
    handler.arg = this;
    must("am handler", ucp_worker_set_am_recv_handler(worker_, &handler));
    ucp_mem_map_params_t map{};
    map.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    map.length = kBytesMax + 4096;
    map.flags = UCP_MEM_MAP_ALLOCATE;
    must("ucp_mem_map", ucp_mem_map(context_, &map, &memory_));
    ucp_mem_attr_t attr{};
    attr.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
    must("ucp_mem_query", ucp_mem_query(memory_, &attr));
    window_ = static_cast<std::byte*>(attr.address);
    std::memset(window_, 0, kBytesMax + 4096);
    give(own_);
  }

  void connect() {
    while (other_.there.load(std::memory_order_acquire) == 0) {
      base::spin_pause();
    }
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    if (notices_peers_end_) {
      params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
      params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    }
    params.address = reinterpret_cast<const ucp_address_t*>(other_.address.data());
    must("ucp_ep_create", ucp_ep_create(worker_, &params, &ep_));
    must("ucp_ep_rkey_unpack", ucp_ep_rkey_unpack(ep_, other_.key.data(), &rkey_));
  }
  void show() {
    if (std::getenv("AFD_UCX_SHOW") != nullptr) {
      ucp_ep_print_info(ep_, stdout);
    }
  }

  std::byte* window() const { return window_ + 4096; }
  ucp_worker_h worker() const { return worker_; }
  void progress() const { ucp_worker_progress(worker_); }

  void finish(ucs_status_ptr_t request) const {
    if (request == nullptr) {
      return;
    }
    if (UCS_PTR_IS_ERR(request)) {
      end("send", UCS_PTR_STATUS(request));
    }
    while (ucp_request_check_status(request) == UCS_INPROGRESS) {
      progress();
    }
    ucp_request_free(request);
  }

  void send(Way way, const std::byte* data, std::uint64_t size) {
    ++sent_;
    ucp_request_param_t none{};
    ucp_request_param_t am{};
    am.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    const std::uint64_t header[8] = {sent_, 0};
    switch (way) {
      case Way::kTag:
        finish(ucp_tag_send_nbx(ep_, data, size, 1, &none));
        return;
      case Way::kAm:
        finish(ucp_am_send_nbx(ep_, kAmId, header, sizeof(header), data, size, &none));
        return;
      case Way::kAmEager:
        am.flags = UCP_AM_SEND_FLAG_EAGER;
        finish(ucp_am_send_nbx(ep_, kAmId, header, sizeof(header), data, size, &am));
        return;
      case Way::kAmRndv:
        am.flags = UCP_AM_SEND_FLAG_RNDV;
        finish(ucp_am_send_nbx(ep_, kAmId, header, sizeof(header), data, size, &am));
        return;
      case Way::kAmPieces: {
        am.flags = UCP_AM_SEND_FLAG_EAGER;
        std::array<ucs_status_ptr_t, kBytesMax / (8 * kKiB)> requests{};
        std::array<std::array<std::uint64_t, 8>, kBytesMax / (8 * kKiB)> headers{};
        std::size_t count = 0;
        for (std::uint64_t done = 0; done < size; done += piece_bytes_, ++count) {
          headers[count] = {sent_, done};
          requests[count] = ucp_am_send_nbx(ep_, kAmId, headers[count].data(), sizeof(header),
                                            data + done, std::min(piece_bytes_, size - done), &am);
        }
        for (std::size_t i = 0; i < count; ++i) {
          finish(requests[i]);
        }
        return;
      }
      case Way::kPutPut:
      case Way::kPutAm: {
        const ucs_status_ptr_t rows =
            ucp_put_nbx(ep_, data, size, other_.window + 4096, rkey_, &none);
        must("ucp_worker_fence", ucp_worker_fence(worker_));
        flag_ = sent_;
        const ucs_status_ptr_t flag =
            way == Way::kPutPut
                ? ucp_put_nbx(ep_, &flag_, sizeof(flag_), other_.window, rkey_, &none)
                : ucp_am_send_nbx(ep_, kAmId, header, sizeof(header), nullptr, 0, &none);
        finish(rows);
        finish(flag);
        return;
      }
    }
  }
  /// Until the peer has it all, for those ways whose completion does not say so.
  void flush() {
    ucp_request_param_t none{};
    finish(ucp_ep_flush_nbx(ep_, &none));
  }

  /// @return the sum of what was read
  std::uint64_t receive(Way way, std::uint64_t size) {
    ++received_;
    std::uint64_t done = 0;
    std::uint64_t sum = 0;
    switch (way) {
      case Way::kTag: {
        finish(posted_);
        posted_ = nullptr;
        return transport::read_fully(window(), size);
      }
      case Way::kPutPut: {
        auto& flag = *reinterpret_cast<std::atomic<std::uint64_t>*>(window_);
        while (flag.load(std::memory_order_acquire) != received_) {
          progress();
        }
        return transport::read_fully(window(), size);
      }
      case Way::kPutAm:
        while (am_sequence_ != received_) {
          progress();
        }
        return transport::read_fully(window(), size);
      default:
        while (done < size) {
          while (am_sequence_ != received_ || arrived_ <= done) {
            progress();
          }
          const std::uint64_t there = std::min(arrived_, size);
          sum += transport::read_fully(window() + done, there - done);
          done = there;
        }
        return sum;
    }
  }
  void post(Way way, std::uint64_t size) {
    if (way == Way::kTag) {
      ucp_request_param_t none{};
      posted_ = ucp_tag_recv_nbx(worker_, window(), size, 1, ~0ULL, &none);
    }
  }

 private:
  static ucs_status_t on_am(void* argument, const void* header, std::size_t header_bytes,
                            void* data, std::size_t size, const ucp_am_recv_param_t* param) {
    UcxSide& self = *static_cast<UcxSide*>(argument);
    std::uint64_t words[2] = {};
    std::memcpy(words, header, std::min(header_bytes, sizeof(words)));
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
      ucp_request_param_t receive{};
      receive.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
      receive.cb.recv_am = &UcxSide::on_data;
      receive.user_data = &self;
      self.pending_ = {words[0], size};
      const ucs_status_ptr_t request =
          ucp_am_recv_data_nbx(self.worker_, data, self.window(), size, &receive);
      if (UCS_PTR_IS_ERR(request)) {
        end("ucp_am_recv_data_nbx", UCS_PTR_STATUS(request));
      }
      if (request == nullptr) {
        self.note(words[0], size);
      }
      return UCS_INPROGRESS;
    }
    std::memcpy(self.window() + words[1], data, size);
    self.note(words[0], words[1] + size);
    return UCS_OK;
  }
  static void on_data(void* request, ucs_status_t status, std::size_t, void* argument) {
    UcxSide& self = *static_cast<UcxSide*>(argument);
    must("am data", status);
    self.note(self.pending_.first, self.pending_.second);
    ucp_request_free(request);
  }
  void note(std::uint64_t sequence, std::uint64_t bytes) {
    am_sequence_ = sequence;
    arrived_ = bytes;
  }

  void give(Card& card) {
    ucp_address_t* address = nullptr;
    std::size_t address_bytes = 0;
    must("address", ucp_worker_get_address(worker_, &address, &address_bytes));
    void* key = nullptr;
    std::size_t key_bytes = 0;
    must("rkey", ucp_rkey_pack(context_, memory_, &key, &key_bytes));
    if (address_bytes > card.address.size() || key_bytes > card.key.size()) {
      end("address too long", UCS_ERR_NO_RESOURCE);
    }
    std::memcpy(card.address.data(), address, address_bytes);
    std::memcpy(card.key.data(), key, key_bytes);
    card.address_bytes = address_bytes;
    card.key_bytes = key_bytes;
    card.window = reinterpret_cast<std::uint64_t>(window_);
    card.there.store(1, std::memory_order_release);
  }

  Card& own_;
  Card& other_;
  const std::uint64_t piece_bytes_;
  const bool notices_peers_end_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_mem_h memory_ = nullptr;
  ucp_ep_h ep_ = nullptr;
  ucp_rkey_h rkey_ = nullptr;
  std::byte* window_ = nullptr;
  ucs_status_ptr_t posted_ = nullptr;
  std::uint64_t flag_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  std::uint64_t am_sequence_ = 0;
  std::uint64_t arrived_ = 0;
  std::pair<std::uint64_t, std::uint64_t> pending_;
};

/// What both processes see.
struct UcxShared {
  std::array<Card, 2> cards;
  // Counts posted receives. Stored with release by the receiver, loaded with acquire by the sender.
  alignas(64) std::atomic<std::uint64_t> posted{0};
  // Counts sends that the sender is done with. Stored with release by it, loaded with acquire by
  // the receiver, which makes progress until then: some sends need an answer of its UCX.
  alignas(64) std::atomic<std::uint64_t> done{0};
};

/// What new TCP connections use.
inline std::string congestion_control() {
  std::array<char, 64> text{};
  const int fd = ::open("/proc/sys/net/ipv4/tcp_congestion_control", O_RDONLY);
  if (fd >= 0) {
    const ssize_t got = ::read(fd, text.data(), text.size() - 1);
    ::close(fd);
    if (got > 0) {
      text[static_cast<std::size_t>(got) - 1] = '\0';
    }
  }
  return text.data();
}

/// Mapped for this process and those that it forks.
inline UcxShared& new_ucx_shared() {
  void* const memory = ::mmap(nullptr, sizeof(UcxShared), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    end("mmap", UCS_ERR_NO_MEMORY);
  }
  return *new (memory) UcxShared;
}

}  // namespace afd::bench
