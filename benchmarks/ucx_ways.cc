// Which of UCX's calls delivers a fresh payload fastest?
//
// Answers, by the fair measure (fair_pair.h), all interleaved in one run:
//   tag          ucp_tag_send_nbx to a receive that was posted before
//   am           ucp_am_send_nbx, protocol as UCX chooses; received into a registered window
//   am eager     the same, eager at every size
//   am rndv      the same, rendezvous at every size
//   am pieces    eager messages of at most 64 KiB, each read while the next is under way
//   put + put    ucp_put_nbx into the peer's window, fence, 8-byte put of a flag that is polled
//   put + am     the same with an empty active message as the flag
// The transports are UCX's choice from UCX_TLS: run it once with UCX_TLS=tcp and once with
// UCX_TLS=posix,cma. Not measured: several peers, sleeping.
#include <ucp/api/ucp.h>

#include <fcntl.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "fair_pair.h"
#include "transport/shm/hop_floor.h"

namespace afd::bench {
namespace {

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kBytesMax = 4096 * kKiB;
std::uint64_t kPieceBytes = 64 * kKiB;
constexpr std::uint64_t kSizes[] = {64,         4 * kKiB,    16 * kKiB,  64 * kKiB,
                                    256 * kKiB, 1024 * kKiB, 4096 * kKiB};
constexpr unsigned kAmId = 5;

enum class Way { kTag, kAm, kAmEager, kAmRndv, kAmPieces, kPutPut, kPutAm };
constexpr std::array<const char*, 7> kNames = {"tag",       "am",        "am eager", "am rndv",
                                               "am pieces", "put + put", "put + am"};

[[noreturn]] void end(const std::string& what, ucs_status_t status) {
  std::fprintf(stderr, "%s: %s\n", what.c_str(), ucs_status_string(status));
  std::exit(1);
}
void must(const char* what, ucs_status_t status) {
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

class Side {
 public:
  explicit Side(Card& own, Card& other) : own_(own), other_(other) {
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
    handler.cb = &Side::on_am;
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
        for (std::uint64_t done = 0; done < size; done += kPieceBytes, ++count) {
          headers[count] = {sent_, done};
          requests[count] = ucp_am_send_nbx(ep_, kAmId, headers[count].data(), sizeof(header),
                                            data + done, std::min(kPieceBytes, size - done), &am);
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
    Side& self = *static_cast<Side*>(argument);
    std::uint64_t words[2] = {};
    std::memcpy(words, header, std::min(header_bytes, sizeof(words)));
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
      ucp_request_param_t receive{};
      receive.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
      receive.cb.recv_am = &Side::on_data;
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
    Side& self = *static_cast<Side*>(argument);
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

struct Shared {
  std::array<Card, 2> cards;
  // Counts posted receives. Stored with release by the receiver, loaded with acquire by the sender.
  alignas(64) std::atomic<std::uint64_t> posted{0};
};

std::string congestion_control() {
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

int run(int num_turns) {
  const char* const tls = std::getenv("UCX_TLS");
  std::printf("# UCX %s, UCX_TLS=%s, congestion control %s\n", ucp_get_version_string(),
              tls == nullptr ? "" : tls, congestion_control().c_str());
  void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  auto& shared = *new (memory) Shared;
  FairPair pair;
  const auto each = [&](const auto& turn) {
    for (int i = 0; i < num_turns; ++i) {
      for (std::size_t size = 0; size < std::size(kSizes); ++size) {
        for (std::size_t way = 0; way < kNames.size(); ++way) {
          turn(size, static_cast<Way>(way), i);
        }
      }
    }
  };
  pair.start([&] {
    Side side(shared.cards[1], shared.cards[0]);
    side.connect();
    std::uint64_t posted = 0;
    each([&](std::size_t size, Way way, int) {
      side.post(way, kSizes[size]);
      shared.posted.store(++posted, std::memory_order_release);
      pair.reply(side.receive(way, kSizes[size]));
    });
    while (true) {
      side.progress();
    }
  });
  Side side(shared.cards[0], shared.cards[1]);
  side.connect();
  side.show();
  std::vector<std::byte> payload(kBytesMax);
  std::array<std::array<Times, kNames.size()>, std::size(kSizes)> times;
  std::uint64_t posted = 0;
  each([&](std::size_t size, Way way, int turn) {
    const std::uint64_t sum = rewrite(payload.data(), kSizes[size], posted);
    ++posted;
    while (shared.posted.load(std::memory_order_acquire) != posted) {
      side.progress();
    }
    const double us = pair.measure(sum, [&] {
      side.send(way, payload.data(), kSizes[size]);
      side.flush();
    });
    if (turn > 0) {
      times[size][static_cast<std::size_t>(way)].add(us);
    }
  });
  std::printf("%10s", "bytes");
  for (const char* name : kNames) {
    std::printf(" %10s", name);
  }
  std::printf("   (p50 us one way)\n");
  for (std::size_t size = 0; size < std::size(kSizes); ++size) {
    std::printf("%10llu", static_cast<unsigned long long>(kSizes[size]));
    for (Times& of : times[size]) {
      std::printf(" %10.2f", of.quantile(0.5));
    }
    std::printf("\n");
  }
  return 0;
}

}  // namespace
}  // namespace afd::bench

int main(int argc, char** argv) {
  if (argc > 2) {
    afd::bench::kPieceBytes = std::strtoull(argv[2], nullptr, 10);
  }
  return afd::bench::run(argc > 1 ? std::max(2, std::atoi(argv[1])) : 200);
}
