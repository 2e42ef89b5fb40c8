#include <afd/factory.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "builtin/default_connector.h"

namespace afd {
namespace {

using ::testing::ElementsAre;

TEST(BuiltinConnectorsTest, NamesAllSeven) {
  EXPECT_THAT(builtin_connectors().connector_names(),
              ElementsAre("P2pAFDConnector", "P2pShmAFDConnector", "InProcessAFDConnector",
                          "P2pUcxAFDConnector", "P2pNcclAFDConnector", "CAMP2pAFDConnector",
                          "CAMAsyncAFDConnector"));
}

TEST(BuiltinConnectorsTest, ClassesHaveTheNamesThatTheyAreRegisteredUnder) {
  const ConnectorFactory factory = builtin_connectors();
  for (const char* name : {"P2pAFDConnector", "P2pShmAFDConnector", "InProcessAFDConnector"}) {
    const auto connector_class = factory.get_connector_class(name);
    ASSERT_TRUE(connector_class) << connector_class.error().message;
    EXPECT_EQ((*connector_class)->name(), name);
  }
}

TEST(BuiltinConnectorsTest, TheDefaultIsAmongThemAndNeedsNothingButTheMachine) {
  const ConnectorFactory factory = builtin_connectors();
  const auto connector_class = factory.get_connector_class(std::string(kDefaultConnector));
  ASSERT_TRUE(connector_class) << connector_class.error().message;
  EXPECT_TRUE((*connector_class)->capabilities().cross_process);
}

TEST(BuiltinConnectorsTest, AConnectorOfALaterReleaseIsNotCalledAMissingFile) {
  const auto connector_class = builtin_connectors().get_connector_class("P2pNcclAFDConnector");
  ASSERT_FALSE(connector_class);
  EXPECT_EQ(connector_class.error(),
            (Error{ErrorCode::kUnavailable,
                   "P2pNcclAFDConnector is not part of this release; it would be loaded from "
                   "libafd_connector_p2p_nccl.so"}));
}

}  // namespace
}  // namespace afd
