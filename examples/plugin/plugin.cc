// What the factory sees of this shared object: one constant.
#include <afd/plugin.h>

#include "mailbox_connector.h"

namespace mailbox {
namespace {

class MailboxClass final : public afd::ConnectorClass {
 public:
  std::string_view name() const override { return "MailboxAFDConnector"; }

  /// A vendor looks for the device, its driver and their versions here, and says what is missing.
  afd::Result<void> check_available() const override { return {}; }

  afd::Capabilities capabilities() const override { return mailbox_capabilities(); }

  afd::Result<std::string> parse_extra_config(std::string_view raw_json) const override {
    if (raw_json.empty() || raw_json == "{}") {
      return std::string("{}");
    }
    return afd::fail(afd::ErrorCode::kInvalidArgument,
                     "MailboxAFDConnector does not support connector_extra_config, got " +
                         std::string(raw_json));
  }

  afd::Result<std::unique_ptr<afd::ConnectorBase>> create(
      const afd::ConnectorParams& params) const override {
    std::string problems;
    if (params.config.num_attention_ranks != 1 || params.config.num_ffn_ranks != 1) {
      problems += "it connects 1 attention rank with 1 ffn rank, got " +
                  std::to_string(params.config.num_attention_ranks) + " and " +
                  std::to_string(params.config.num_ffn_ranks) + "\n";
    }
    if (params.role_rank != 0) {
      problems += "role_rank is " + std::to_string(params.role_rank) + ", expected 0\n";
    }
    if (params.limits.num_stages < 1 ||
        params.limits.num_stages > mailbox_capabilities().num_stages_max) {
      problems += "num_stages is " + std::to_string(params.limits.num_stages) + ", expected 1 to " +
                  std::to_string(mailbox_capabilities().num_stages_max) + "\n";
    }
    if (params.limits.hidden_size == 0 || params.limits.max_num_tokens == 0) {
      problems += "hidden_size and max_num_tokens must be positive\n";
    }
    if (params.config.compute_gate_on_attention) {
      problems += "it carries no router logits: compute_gate_on_attention must be false\n";
    }
    if (!problems.empty()) {
      problems.pop_back();
      return afd::fail(afd::ErrorCode::kInvalidArgument, "MailboxAFDConnector: " + problems);
    }
    return std::unique_ptr<afd::ConnectorBase>(std::make_unique<MailboxConnector>(params));
  }
};

const afd::ConnectorClass* mailbox_class() {
  static const MailboxClass instance;
  return &instance;
}

}  // namespace
}  // namespace mailbox

extern "C" AFD_EXPORT const AfdConnectorPluginV1 afd_connector_plugin_v1 = {
    sizeof(AfdConnectorPluginV1), AFD_BUILD_TAG, "MailboxAFDConnector", &mailbox::mailbox_class};
