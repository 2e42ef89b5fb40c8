// A connector plug-in for the loader's tests. CMakeLists.txt builds it once as it should be, and
// once for each way in which it can be wrong, chosen by one macro a library.
#include <atomic>
#include <string>

#include <afd/plugin.h>

namespace {

std::atomic<int> num_class_calls{0};

class TestConnectorClass final : public afd::ConnectorClass {
 public:
  std::string_view name() const override {
#if defined(PLUGIN_CLASS_CALLS_ITSELF_OTHERWISE)
    return "SomebodyElse";
#else
    return PLUGIN_CONNECTOR_NAME;
#endif
  }
  afd::Result<void> check_available() const override {
    return {};
  }
  afd::Capabilities capabilities() const override {
    return {};
  }
  /// Tells the test how often the loader asked for the class.
  afd::Result<std::string> parse_extra_config(std::string_view) const override {
    return "{\"num_class_calls\":" + std::to_string(num_class_calls.load()) + "}";
  }
  afd::Result<std::unique_ptr<afd::ConnectorBase>> create(
      const afd::ConnectorParams& params) const override {
    return afd::fail(afd::ErrorCode::kUnavailable,
                     "the test plug-in makes no " + params.config.connector);
  }
};

}  // namespace

extern "C" {

// The same name in every test plug-in: with RTLD_GLOBAL, or in one namespace, they would meet.
AFD_EXPORT const afd::ConnectorClass* afd_test_plugin_class() {
#if defined(PLUGIN_CLASS_IS_NULL)
  return nullptr;
#else
  static const TestConnectorClass connector_class;
  ++num_class_calls;
  return &connector_class;
#endif
}

#if defined(PLUGIN_LACKS_A_FUNCTION)
int afd_test_plugin_function_that_nobody_has();
AFD_EXPORT int afd_test_plugin_calls() {
  return afd_test_plugin_function_that_nobody_has();
}
#endif

#if defined(PLUGIN_STRUCT_BYTES)
#define PLUGIN_BYTES PLUGIN_STRUCT_BYTES
#else
#define PLUGIN_BYTES sizeof(AfdConnectorPluginV1)
#endif

#if defined(PLUGIN_BUILD_TAG)
#define PLUGIN_TAG PLUGIN_BUILD_TAG
#else
#define PLUGIN_TAG AFD_BUILD_TAG
#endif

#if defined(PLUGIN_FUNCTION_IS_NULL)
#define PLUGIN_FUNCTION nullptr
#else
#define PLUGIN_FUNCTION &afd_test_plugin_class
#endif

AFD_EXPORT extern const AfdConnectorPluginV1 PLUGIN_SYMBOL;
const AfdConnectorPluginV1 PLUGIN_SYMBOL = {PLUGIN_BYTES, PLUGIN_TAG, PLUGIN_CONNECTOR_NAME,
                                            PLUGIN_FUNCTION};

}  // extern "C"
