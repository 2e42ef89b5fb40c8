// What people write as configuration: parsed or refused, never anything else.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <afd/config.h>
#include <afd/extra_config.h>

namespace {

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

template <typename T>
void check_error(const afd::Result<T>& result) {
  // A message that quotes the input stays short.
  check(result || (result.error().code == afd::ErrorCode::kInvalidArgument &&
                   result.error().message.size() < 4000));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const afd::ParseConfigOptions options = {
      .connector_names = {"P2pNcclAFDConnector", "CAMAsyncAFDConnector", "Other"}};

  const afd::Result<afd::AfdConfig> config = afd::parse_afd_config(text, options);
  check_error(config);
  if (config) {
    // What was taken can be printed, read back and is the same.
    const afd::Result<afd::AfdConfig> again = afd::parse_afd_config(afd::to_json(*config), options);
    check(again && *again == *config);
    check(config->compute_hash().size() == 64);
    check(config->port != 0 && config->num_attention_ranks != 0 && config->num_ffn_ranks != 0);
  }
  check_error(afd::parse_optional_afd_config(text, options));
  check_error(afd::is_afd_async_dp(text));
  check_error(afd::connector_extra_config_from_source(text));

  const afd::Result<afd::ExtraConfig> extra = afd::ExtraConfig::parse("Test", text);
  check_error(extra);
  if (extra) {
    check_error(extra->check_keys({"n", "b", "s"}));
    check_error(extra->integer("n", 0));
    check_error(extra->positive_integer("n", 1));
    check_error(extra->optional_positive_integer("n"));
    check_error(extra->boolean("b", false));
    check_error(extra->word("s", ""));
    check(afd::ExtraConfig::parse("Test", extra->to_json()).has_value());
  }
  return 0;
}
