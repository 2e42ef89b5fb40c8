// Puts the ranks of a suite on hosts of a network that the test program makes (tests/support).
//
// Threads: from main, before and while GoogleTest runs.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conformance/conformance.h"
#include "tests/support/network.h"
#include "tests/support/program.h"

namespace afd::conformance {

inline constexpr std::uint32_t kNumHosts = 3;

/// The hosts of this test program. They share no memory. Made at first use.
class SuiteHosts {
 public:
  static const SuiteHosts& get() {
    static const SuiteHosts hosts;
    return hosts;
  }

  /// Why there are none here; empty where there are.
  const std::string& why_not() const { return why_not_; }

  /// The connector with its ranks on hosts, which have to be there.
  /// @param layout  the host of each world rank (FFN ranks first); from its start again for more
  ///                ranks. World rank 0 is on the first.
  /// @param session  its secret is that of this program's hosts
  static ConnectorUnderTest place(ConnectorUnderTest connector, std::vector<std::uint32_t> layout,
                                  SessionConfig session = {}) {
    const SuiteHosts& hosts = get();
    session.secret_file = hosts.secret_;
    connector.hosts =
        HostsUnderTest{.enter =
                           [layout](std::uint32_t world_rank) {
                             get().network_->enter(layout[world_rank % layout.size()]);
                           },
                       .address = hosts.network_->address(layout[0]),
                       .session = std::move(session)};
    return connector;
  }

  /// Every case on hosts, none where there are no hosts. The layout is as place() has it.
  static std::vector<CaseParam> cases(ConnectorUnderTest connector,
                                      std::vector<std::uint32_t> layout) {
    if (!get().network_) {
      return {};
    }
    return cases_of(place(std::move(connector), std::move(layout)));
  }

 private:
  SuiteHosts()
      : network_(testing::Network::create(kNumHosts, &why_not_, {.private_shared_memory = true})),
        secret_(folder_.write("secret", "what the ranks of this suite share\n")) {
    if (::chmod(secret_.c_str(), 0600) != 0) {
      std::abort();
    }
  }

  std::string why_not_;
  std::unique_ptr<testing::Network> network_;
  testing::TempFolder folder_;
  std::string secret_;
};

}  // namespace afd::conformance
