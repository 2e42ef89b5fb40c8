// R1 against a peer that breaks the contract's order, or says something wrong of its rows: the
// connector of the other side never hands out what was not sent for it.
//
// The ranks are threads of this process with real connectors. Their transport is recorded, so that
// the test can publish on an attention rank's lane what its connector would refuse to.
#include <bit>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "connectors/p2p/p2p_state.h"
#include "transport/inproc/inproc_transport.h"

namespace afd::p2p {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using transport::Direction;
using transport::LaneId;
using transport::TransferHeader;

constexpr std::uint32_t kRows = 3;
constexpr std::uint32_t kWidth = 16;

/// Where the transport that this thread makes leaves the channel to its FFN rank.
thread_local transport::Channel** recorded = nullptr;

/// Passes everything on, and keeps the channel.
class RecordedTransport final : public transport::Transport {
 public:
  Result<std::string> create(const transport::ChannelGeometry* geometry) override {
    return inner_->create(geometry);
  }
  transport::Channel* own_channel() noexcept override { return inner_->own_channel(); }
  Result<transport::Channel*> attach(std::uint32_t world_rank, std::string_view blob,
                                     const transport::ChannelGeometry* geometry) override {
    Result<transport::Channel*> attached = inner_->attach(world_rank, blob, geometry);
    if (attached && *attached != nullptr) {
      *recorded = *attached;
    }
    return attached;
  }
  void set_doorbell(transport::Channel* channel, Direction direction, std::uint16_t peer_idx,
                    std::uint32_t world_rank) noexcept override {
    inner_->set_doorbell(channel, direction, peer_idx, world_rank);
  }
  void seal() noexcept override { inner_->seal(); }
  bool wait(transport::Condition condition, Deadline deadline) noexcept override {
    return inner_->wait(condition, deadline);
  }
  void wake() noexcept override { inner_->wake(); }
  transport::WaitStats wait_stats() const noexcept override { return inner_->wait_stats(); }
  std::string describe_path(std::uint32_t world_rank) const override {
    return inner_->describe_path(world_rank);
  }

 private:
  const std::unique_ptr<transport::Transport> inner_ = transport::make_inproc_transport({});
};

std::uint16_t free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

struct RankUnderTest {
  std::unique_ptr<P2pConnector> connector;
  transport::Channel* channel = nullptr;  ///< attention: to the FFN rank
};

/// `num_attention` attention ranks and one FFN rank, initialised, in the first step.
class Job {
 public:
  explicit Job(std::uint32_t num_attention) : attention(num_attention) {
    const std::uint16_t port = free_port();
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank <= num_attention; ++rank) {
      RankUnderTest& made = rank == num_attention ? ffn : attention[rank];
      ConnectorParams params;
      params.config.port = port;
      params.config.num_attention_ranks = num_attention;
      params.config.num_ffn_ranks = 1;
      params.config.role = rank == num_attention ? Role::kFfn : Role::kAttention;
      params.role_rank = rank == num_attention ? 0 : rank;
      params.limits = {.hidden_size = kWidth,
                       .num_layers = 8,
                       .num_experts = 4,
                       .max_num_tokens = kRows,
                       .num_stages = 1};
      made.connector = std::make_unique<P2pConnector>(
          "RogueAFDConnector", params, P2pLayout::create(params).value(),
          [](const ConnectorParams&, std::uint32_t) -> std::unique_ptr<transport::Transport> {
            return std::make_unique<RecordedTransport>();
          },
          Capabilities{});
      threads.emplace_back([&made] {
        recorded = &made.channel;
        const Result<void> met = made.connector->init_afd_connector(soon());
        EXPECT_TRUE(met) << met.error().message;
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    ControlPayload payload;
    payload.dp_metadata_list[0] =
        DpMetadata::create(std::vector<std::int32_t>(num_attention, kRows)).value();
    EXPECT_TRUE(ffn.connector->control_plane()->update_state_from_dp_metadata(payload));
    for (RankUnderTest& rank : attention) {
      EXPECT_TRUE(rank.connector->control_plane()->update_state_from_dp_metadata(payload));
    }
  }

  static Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

  void send(std::uint32_t rank, std::uint32_t layer_idx) {
    Tensor rows({kRows, kWidth}, kFloat32);
    TransferContext context;
    context.metadata = {.layer_idx = layer_idx, .stage_idx = 0, .seq_lens = {}};
    context.metadata.seq_lens.push_back(kRows);
    const Result<void> sent = attention[rank].connector->send_attn_output(rows.view(), context, {});
    EXPECT_TRUE(sent) << sent.error().message;
  }

  Result<A2FTransferPayload> receive(Deadline deadline = soon()) {
    return ffn.connector->recv_attn_output(0, {.deadline = deadline});
  }

  static LaneId lane(std::uint16_t rank) {
    return {.direction = Direction::kA2f, .stage_idx = 0, .peer_idx = rank};
  }

  /// What the rank's connector last published.
  TransferHeader header(std::uint16_t rank) { return attention[rank].channel->header(lane(rank)); }

  /// Publishes behind the connector's back.
  void publish(std::uint16_t rank, const TransferHeader& header) {
    const std::vector<std::byte> rows(kRows * kWidth * sizeof(float), std::byte{0xbb});
    std::array<transport::PutPart, transport::kPartsMax> parts{};
    parts[0] = {.source = rows.data(),
                .offset_bytes = std::uint64_t{rank} * rows.size(),
                .size_bytes = rows.size()};
    attention[rank].channel->publish(lane(rank), header, parts, {});
  }

  std::vector<RankUnderTest> attention;
  RankUnderTest ffn;
};

void expect_mismatch(const Result<A2FTransferPayload>& received, const std::string& words) {
  ASSERT_FALSE(received) << "expected: " << words;
  EXPECT_EQ(received.error().code, ErrorCode::kProtocolMismatch);
  EXPECT_THAT(received.error().message, HasSubstr(words));
}

TEST(P2pRoguePeerTest, TwoTransfersOnOneLaneAreAMismatch) {
  Job job(1);
  job.send(0, 3);
  TransferHeader next = job.header(0);
  next.layer_idx = 4;
  job.publish(0, next);
  expect_mismatch(job.receive(),
                  "stage 0: attention rank 0 is at transfer 2 of its lane, expected 1");
}

// The rows of rank 0 were taken when it wrote over them, while those of rank 1 were awaited.
TEST(P2pRoguePeerTest, ASecondTransferOfAPeerThatWasTakenAlreadyIsAMismatch) {
  Job job(2);
  job.send(0, 3);
  const Result<A2FTransferPayload> in_vain = job.receive(Deadline::now());
  ASSERT_FALSE(in_vain);
  EXPECT_EQ(in_vain.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(in_vain.error().message, HasSubstr("awaited attention rank 1 for layer 3"));
  TransferHeader next = job.header(0);
  next.layer_idx = 4;
  job.publish(0, next);
  job.send(1, 3);
  for (int i = 0; i < 2; ++i) {  // a repeat makes it no better
    expect_mismatch(job.receive(),
                    "stage 0: attention rank 0 is at transfer 2 of its lane, expected 1");
  }
}

TEST(P2pRoguePeerTest, EveryFieldOfAHeaderIsCompared) {
  struct Lie {
    const char* words;
    void (*tell)(TransferHeader& header);
  };
  constexpr Lie kLies[] = {
      {"epoch is ", [](TransferHeader& header) { ++header.epoch; }},
      {"step is 2, expected 1", [](TransferHeader& header) { ++header.step; }},
      {"layer_idx is 8, expected below 8", [](TransferHeader& header) { header.layer_idx = 8; }},
      {"stage_idx is 1, expected 0", [](TransferHeader& header) { ++header.stage_idx; }},
      {"source_rank is 1, expected 0", [](TransferHeader& header) { ++header.source_rank; }},
      {"num_rows is 4, expected 3", [](TransferHeader& header) { ++header.num_rows; }},
      {"row_offset is 1, expected 0", [](TransferHeader& header) { ++header.row_offset; }},
      {"row width is 17, expected 16", [](TransferHeader& header) { ++header.row_elements; }},
      {"dtype is float16, expected float32",
       [](TransferHeader& header) { header.dtype_bits = 16; }},
      {"router logits present is 1, expected 0", [](TransferHeader& header) { header.parts = 3; }},
      {"router logits width is 4, expected 0",
       [](TransferHeader& header) { header.aux_elements = 4; }},
      {"router logits bits is 32, expected 0",
       [](TransferHeader& header) { header.aux_dtype_bits = 32; }},
      {"top-k width is 2, expected 0", [](TransferHeader& header) { header.topk_elements = 2; }},
      {"further parts is 1, expected 0", [](TransferHeader& header) { header.parts = 5; }},
      {"the reserved field is 1, expected 0", [](TransferHeader& header) { header.reserved = 1; }},
  };
  for (const Lie& lie : kLies) {
    Job job(1);
    job.send(0, 0);
    const Result<A2FTransferPayload> received = job.receive();
    ASSERT_TRUE(received) << received.error().message;
    Tensor output({kRows, kWidth}, kFloat32);
    ASSERT_TRUE(job.ffn.connector->send_ffn_output({.routed_output = output.view()},
                                                   received->context, {}));
    TransferHeader header = job.header(0);
    lie.tell(header);
    job.publish(0, header);
    expect_mismatch(job.receive(), lie.words);
  }
}

}  // namespace
}  // namespace afd::p2p
