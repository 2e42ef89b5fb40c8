#include "runtime/rank.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace afd::runtime {
namespace {

/// Waits in init for ranks that never come, until it is closed from there.
class Lonely final : public ConnectorBase {
 public:
  Lonely(std::function<void(std::string_view)> on_waiting, std::function<void()> before_init)
      : on_waiting_(std::move(on_waiting)), before_init_(std::move(before_init)) {}

  Result<void> init_afd_connector(Deadline) override {
    before_init_();
    closed_ = false;
    for (int waited = 0; waited < 3; ++waited) {
      on_waiting_("ffn rank 0");
      if (closed_) {
        return fail(ErrorCode::kFailedPrecondition, "closed");
      }
    }
    ADD_FAILURE() << "init waited on";
    return fail(ErrorCode::kDeadlineExceeded, "ffn rank 0 did not arrive");
  }
  bool is_initialized() const noexcept override { return false; }
  void close() noexcept override { closed_ = true; }
  Capabilities capabilities() const override { return {}; }
  Result<void> send_attn_output(ConstTensorView, const TransferContext&,
                                const SendAttnOptions&) override {
    return fail(ErrorCode::kInternal, "never called");
  }
  Result<TensorView> recv_ffn_output(TensorView, std::uint32_t, const RecvFfnOptions&) override {
    return fail(ErrorCode::kInternal, "never called");
  }
  Result<A2FTransferPayload> recv_attn_output(std::uint32_t, const RecvAttnOptions&) override {
    return fail(ErrorCode::kInternal, "never called");
  }
  Result<void> send_ffn_output(const F2ATransferPayload&, const TransferContext&,
                               const SendFfnOptions&) override {
    return fail(ErrorCode::kInternal, "never called");
  }

 private:
  std::function<void(std::string_view)> on_waiting_;
  std::function<void()> before_init_;
  bool closed_ = false;
};

class LonelyClass final : public ConnectorClass {
 public:
  std::string_view name() const override { return "Lonely"; }
  Result<void> check_available() const override { return {}; }
  Capabilities capabilities() const override { return {}; }
  Result<std::string> parse_extra_config(std::string_view) const override { return "{}"; }
  Result<std::unique_ptr<ConnectorBase>> create(const ConnectorParams& params) const override {
    return std::make_unique<Lonely>(params.on_waiting, [this] { before_init(); });
  }

  std::function<void()> before_init;
};

TEST(RankTest, AStopJustBeforeInitOpensTheConnectorEndsTheWait) {
  LonelyClass lonely;
  ConnectorFactory factory;
  ASSERT_TRUE(factory.register_connector(
      "Lonely", [&]() -> Result<const ConnectorClass*> { return &lonely; }));
  JobOptions options;
  options.model_dir = AFD_MODELS "/austen-moe";
  options.afd.connector = "Lonely";
  RankEvents events;
  events.on_waiting = [](std::string_view) {};
  Result<std::unique_ptr<Rank>> rank =
      Rank::create(options, {Role::kFfn, 0}, factory, std::move(events));
  ASSERT_TRUE(rank) << rank.error().message;
  lonely.before_init = [&] { (*rank)->stop(); };
  const Result<RunStats> stats = (*rank)->run({});
  ASSERT_FALSE(stats);
  EXPECT_EQ(stats.error().message, "stopped");
}

}  // namespace
}  // namespace afd::runtime
